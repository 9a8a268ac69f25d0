"""`ondes denoise`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.destinations import failure_of, open_writer
from ondes.cli.models import load_dictionary, load_model, with_delay
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.signal.locations import Location

BLOCKS_AHEAD = 2  # made while those before are written
WITHOUT_A_MODEL = (
    "ondes: speech by the separator 'denoise', which comes with ondes; where it is wrong, give an "
    "example of the noise with --noise, or a model of yours with -d."
)


def _as_noises(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> list[str | tuple[float, float]]:
    return [_as_noise(each) for each in given]


def _as_noise(given: str) -> str | tuple[float, float]:
    """A span of the recording, or another recording."""
    parts = re.fullmatch(rf"({options.TIME})-({options.TIME})", given)
    if parts is None or Path(given).exists():
        return given
    first, _dash, last = given.partition("-")
    start, end = options.parse_time(first), options.parse_time(last)
    if start >= end:
        raise click.BadParameter(f"{given!r} ends before it begins.")
    return start, end


@click.command(short_help="Reduce the noise in recordings.")
@click.argument("recordings", nargs=-1, required=True, metavar="RECORDING...")
@click.option(
    "--noise",
    metavar="TIME-TIME|FILE",
    multiple=True,
    callback=_as_noises,
    help="Where only the noise is heard in each RECORDING, as in 0:03-0:09, or a recording of it; "
    "may be repeated.",
)
@options.dictionaries(
    required=False,
    multiple=False,
    text="A separator of speech from `ondes train` or `ondes models`; with --noise, a dictionary "
    "of speech from `ondes learn`.",
)
@click.option(
    "--amount",
    type=click.FloatRange(0, min_open=True),
    metavar="DB",
    default=30.0,
    show_default=True,
    help="Reduce the noise by at most this many decibels.",
)
@options.output(
    "The file to write, or - for standard output; for several recordings, or if it is a folder or "
    "ends in a slash, the folder to write to.  [default: NAME-denoised.wav]",
    may_be_stream=True,
    type=click.Path(allow_dash=True),
)
@options.live_delay
@options.seed
@options.raw
@options.compute
@options.force
@options.as_json
def denoise(recordings: tuple[str, ...], **given: Any) -> int:
    """Reduce the noise in each RECORDING of speech: files, folders and globs.

    Without --noise, a separator that comes with ondes tells speech from everything else; -d gives
    another one, from `ondes train`, of which one source is called speech. With --noise, the noise
    is known from an example, and -d a dictionary of speech, or of any other sound to keep. Each
    result has the sampling rate and the channels of its RECORDING. Into a pipe, it is written while
    it is made: as WAV, or with --raw in the format of the input.

    \b
    ondes denoise talk.wav
    ondes denoise lectures/ -o clean/
    ondes denoise talk.wav --noise 0:03-0:09 -d speech.ondes
    ondes denoise talk.wav --noise hiss.wav --amount 12 -o better.wav
    ffmpeg -i call.mp4 -f wav - | ondes denoise - --delay 30ms -o - | mpv -
    """  # noqa: D301
    from ondes.models.loading import from_shelf
    from ondes.separation.denoising import check_separator

    _check_streams(recordings, given)
    if given["output"] == "-" and given["as_json"]:
        raise click.UsageError("With -o -, standard output has the sound; leave out --json.")
    compute = options.compute_settings(given)
    found, failures = terminal.find_recordings(recordings)
    n_files = len(found) + len(failures)
    targets = _targets(found, recordings, given["output"], given["force"])
    speech: Any = None
    if given["dictionary"] is not None:
        load = load_dictionary if given["noise"] else load_model
        speech = load(given["dictionary"])
        if not given["noise"]:
            check_separator(speech)
    elif not given["noise"]:
        terminal.say(WITHOUT_A_MODEL, err=True)
    if given["delay"] is not None:
        if given["noise"]:
            raise click.UsageError("With --noise the delay is that of -d; leave out --delay.")
        speech = with_delay(speech or from_shelf("denoise"), given["delay"])
    done: list[dict[str, Any]] = []
    with terminal.warnings_shown_by():
        is_interrupted = False
        for recording, file in targets.items():
            with failure_of(recording, failures):
                facts, is_interrupted = _denoise_one(recording, file, speech, given, compute)
                done.append(facts)
                if is_interrupted:
                    break
    if given["as_json"]:
        result = {"recordings": done, "n_files": n_files, **terminal.listed(failures)}
        terminal.print_json(result)
    else:
        for each in done:
            if str(each["file"]) != "-":
                terminal.say(printable(str(each["file"])))
    if is_interrupted:
        terminal.complain("interrupted; what was finished is written.")
        return terminal.INTERRUPTED
    if failures:
        return terminal.SOME_FAILED if done else terminal.FAILED
    return terminal.DONE


def _check_streams(recordings: Sequence[str], given: dict[str, Any]) -> None:
    """Raise UsageError where a stream would have to be read twice, or has no name."""
    from ondes.signal.survey import is_stream

    for recording in filter(is_stream, recordings):
        if any(isinstance(each, tuple) for each in given["noise"]):
            what = "Standard input" if recording == "-" else "A pipe"
            raise click.UsageError(f"{what} can be read only once; give the noise as a recording.")
    if (*recordings, *given["noise"]).count("-") > 1:
        raise click.UsageError("Standard input can be read only once; give a file.")
    if "-" in recordings and (given["output"] is None or len(recordings) > 1):
        raise click.UsageError("Standard input has no name; give it alone, and one with -o.")


def _targets(
    found: Sequence[Location], given: Sequence[str], output: str | None, force: bool
) -> dict[Location, Path]:
    """The file of each recording, checked before any work."""
    from ondes.atomic_file import check_destination, remove_abandoned
    from ondes.signal.survey import is_stream

    if output is not None and is_stream(output):
        if len(given) > 1 or len(found) > 1:
            raise click.UsageError("A stream takes one recording; give a folder with -o.")
        return {recording: Path(output) for recording in found}
    is_folder = output is not None and (
        len(given) > 1
        or len(found) > 1
        or output.endswith(os.sep)
        or any(Path(each).is_dir() for each in (output, *given))
    )
    if output is not None and not is_folder:
        targets = {recording: Path(output) for recording in found}
    else:
        folder = Path(output or "")
        targets = {each: folder / f"{each.stem}-denoised.wav" for each in found}
    seen: set[Path] = set()
    for file in targets.values():
        if file in seen:
            raise click.UsageError(
                f"Two recordings would be written as {printable(str(file))}; give them in separate "
                "commands, with other folders after -o."
            )
        seen.add(file)
        if not is_folder or os.path.lexists(file):
            check_destination(file, force)
    remove_abandoned(seen)
    return targets


def _denoise_one(
    recording: Location, file: Path, speech: Any, given: dict[str, Any], compute: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    """What to report of a recording, once it is written, and whether that was interrupted."""
    from ondes.prefetch import prefetch
    from ondes.separation.denoising import denoise_file
    from ondes.signal.survey import is_stream

    is_streamed = is_stream(file)
    n_samples, is_interrupted, is_silent = 0, False, True
    with (
        terminal.bar(recording.name) as bar,
        terminal.warnings_shown_by(bar),
        contextlib.ExitStack() as stack,
    ):
        blocks = denoise_file(
            recording,
            noise=given["noise"] or None,
            speech=speech,
            amount=given["amount"],
            random_state=given["seed"],
            raw=given["raw"],
            **compute,
        )
        writer = open_writer(file, blocks.sr, blocks.channels, given, stack)
        try:
            for block in prefetch(blocks, BLOCKS_AHEAD, should_stop=writer.is_abandoned):
                writer.write(block)
                n_samples += len(block)
                is_silent = is_silent and not block.any()
                bar.show(n_samples / blocks.sr, None, "reducing noise")
            if n_samples and is_silent and not is_streamed:
                raise FileError(recording, "is silent: there is no speech in it")
            writer.check()
        except KeyboardInterrupt:
            if not n_samples or not (is_streamed or is_stream(recording)):
                raise
            is_interrupted = True  # a stream cannot be given again: keep what is finished
    seconds = n_samples / blocks.sr
    found = {"recording": recording, "file": file, "seconds": seconds, "sr": blocks.sr}
    return found, is_interrupted
