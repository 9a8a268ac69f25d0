"""`ondes denoise`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ondes.cli import options, terminal
from ondes.cli.models import load_dictionary, load_model
from ondes.errors import printable

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


@click.command(short_help="Reduce the noise in a recording.")
@click.argument("recording")
@click.option(
    "--noise",
    metavar="TIME-TIME|FILE",
    multiple=True,
    callback=_as_noises,
    help="Where only the noise is heard, as in 0:03-0:09, or a recording of it; may be repeated.",
)
@options.dictionaries(required=False, multiple=False)
@click.option(
    "--amount",
    type=click.FloatRange(0, min_open=True),
    metavar="DB",
    default=30.0,
    show_default=True,
    help="Reduce the noise by at most this many decibels.",
)
@options.output(
    "The file to write, or - for standard output.  [default: NAME-denoised.wav]",
    may_be_stream=True,
    type=click.Path(dir_okay=False, allow_dash=True),
)
@options.seed
@options.raw
@options.compute
@options.force
@options.as_json
def denoise(recording: str, **given: Any) -> int:
    """Reduce the noise in a RECORDING of speech.

    Without --noise, a separator that comes with ondes tells speech from everything else; -d gives
    another one, from `ondes train`, of which one source is called speech. With --noise, the noise
    is known from an example, and -d a dictionary of speech, or of any other sound to keep. The
    result has the sampling rate and the channels of the RECORDING. Into a pipe, it is written while
    it is made: as WAV, or with --raw in the format of the input.

    \b
    ondes denoise talk.wav
    ondes denoise talk.wav --noise 0:03-0:09 -d speech.ondes
    ondes denoise talk.wav --noise hiss.wav --amount 12 -o better.wav
    ffmpeg -i call.mp4 -f wav - | ondes denoise - -o - | mpv -
    """  # noqa: D301
    from ondes.atomic_file import check_destination
    from ondes.prefetch import prefetch
    from ondes.separation.denoising import denoise_file
    from ondes.signal.audio_writer import AudioWriter
    from ondes.signal.stream_writer import StreamWriter
    from ondes.signal.survey import is_stream

    if is_stream(recording) and any(isinstance(each, tuple) for each in given["noise"]):
        what = "Standard input" if recording == "-" else "A pipe"
        raise click.UsageError(f"{what} can be read only once; give the noise as a recording.")
    if (recording, *given["noise"]).count("-") > 1:
        raise click.UsageError("Standard input can be read only once; give a file.")
    if recording == "-" and given["output"] is None:
        raise click.UsageError("Standard input has no name; give one with -o.")
    compute = options.compute_settings(given)
    output = Path(given["output"] or f"{Path(recording).stem}-denoised.wav")
    is_streamed = is_stream(output)
    if str(output) == "-" and given["as_json"]:
        raise click.UsageError("With -o -, standard output has the sound; leave out --json.")
    if not is_streamed:
        check_destination(output, given["force"])
    speech: Any = None
    if given["dictionary"] is not None:
        load = load_dictionary if given["noise"] else load_model
        speech = load(given["dictionary"])
    elif not given["noise"]:
        terminal.say(WITHOUT_A_MODEL, err=True)
    with terminal.bar(Path(recording).name) as bar:
        blocks = denoise_file(
            recording,
            noise=given["noise"] or None,
            speech=speech,
            amount=given["amount"],
            random_state=given["seed"],
            raw=given["raw"],
            **compute,
        )
        n_samples, is_interrupted = 0, False
        facts = output, blocks.sr, blocks.channels
        writer = (
            StreamWriter(*facts, raw=given["raw"])
            if is_streamed
            else AudioWriter(*facts, force=given["force"])
        )
        with writer:
            try:
                for block in prefetch(blocks, BLOCKS_AHEAD, should_stop=writer.is_abandoned):
                    writer.write(block)
                    n_samples += len(block)
                    bar.show(n_samples / blocks.sr, None, "reducing noise")
                writer.check()
            except KeyboardInterrupt:
                if not n_samples or not (is_streamed or is_stream(recording)):
                    raise
                is_interrupted = True  # nobody could give the stream again: keep what is finished
    if given["as_json"]:
        terminal.print_json({"file": output, "seconds": n_samples / blocks.sr, "sr": blocks.sr})
    elif str(output) != "-":
        terminal.say(printable(str(output)))
    if is_interrupted:
        terminal.complain("interrupted; what was finished is written.")
        return terminal.INTERRUPTED
    return terminal.DONE
