"""`ondes separate`."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.destinations import failure_of, open_writer
from ondes.cli.models import as_model, check_discovery, discover, load_models, with_delay
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from ondes.models.model import Model
    from ondes.separation import StemLevels
    from ondes.signal.audio_writer import AudioWriter
    from ondes.signal.locations import Location
    from ondes.signal.stream_writer import StreamWriter


NEARLY_SILENT = -20.0  # decibels relative to the mix
BEGINNING = 10  # seconds that a hint is based on
BLOCKS_AHEAD = 2  # separated while those before are written
WITHOUT_A_MODEL = (
    "ondes: speech, music and effects by the separator 'talk', which comes with ondes; `ondes "
    "train` makes a better one from recordings like yours, for -d."
)
FILENAME = "{track}/{stem}.{ext}"
HIGHEST_RATE = 192_000  # Hz: a faster recording gets no hint


@click.command(short_help="Separate recordings into sources.")
@click.argument("mixes", nargs=-1, required=True, metavar="MIX...")
@options.dictionaries(required=False)
@options.output(
    "The folder to write to, or with one --stem - for standard output.",
    may_be_stream=True,
    default="separated",
    type=click.Path(file_okay=False, allow_dash=True),
)
@click.option(
    "--stem",
    "stems",
    multiple=True,
    metavar="NAME",
    help="Write this source alone; may be repeated.  [default: all]",
)
@click.option(
    "--filename",
    default=FILENAME,
    show_default=True,
    help="Names of the files to write; {folder} is the folder of the mix, {trackext} its suffix.",
)
@click.option("--flac", is_flag=True, help="Write 24-bit FLAC instead of 32-bit float WAV.")
@click.option(
    "--adapt",
    multiple=True,
    metavar="NAME",
    help="Adapt the dictionary of this source to the mix; may be repeated.",
)
@options.count("--free", help="Learn N more components from the mix, as the source 'rest'.")
@click.option(
    "--spatial",
    type=click.Choice(["auto", "none", "room", "pan"]),
    default="auto",
    show_default=True,
    help="What to use of the places of the sources: auto for how each lies between left and right "
    "in stereo, room for as many microphones as sources, pan for panned sources.",
)
@options.live_delay
@options.span
@options.discovery
@options.seed
@options.raw
@options.compute
@options.force
@options.as_json
def separate(mixes: tuple[str, ...], **given: Any) -> int:
    """Separate each MIX into sources, which have its sampling rate and sum to it.

    Each -d is one source, named after its file or as in -d NAME=MODEL. A model whose components
    are in groups has one source per group. Without -d, a separator that comes with ondes tells
    speech, music and effects apart; with --sources, the sources are learned from the mix itself.
    Use --adapt for the source that the models describe less well, usually the music under a voice.
    With --spatial room, the mix has as many microphones as sources, from two to eight, and each
    stem is the sound of its source at every microphone. Into a pipe, one --stem is written while it
    is made: as WAV, or with --raw in the format of the input.

    \b
    ondes separate podcast.mp3
    ondes separate talk.mp3 -d speech.ondes -d music.ondes -o stems/
    ondes separate talk.mp3 -d speech.ondes -d music.ondes --adapt music
    ondes separate talk.mp3 -d speech.ondes --free 8
    ondes separate talk.mp3 -d talk.ondes              (from ondes train)
    ondes separate mics.wav -d speech.ondes -d music.ondes --spatial room
    ondes separate band.wav --sources 4
    ffmpeg -i talk.mp4 -f wav - | ondes separate - --stem speech --delay 30ms -o - | mpv -
    """  # noqa: D301
    from concurrent.futures import ThreadPoolExecutor

    from ondes.models.loading import from_shelf
    from ondes.separation import REST
    from ondes.separation.discovery import source_names

    compute = options.compute_settings(given)
    options.check_span(given)
    sources: Model | None = None
    if given["dictionaries"]:
        sources = as_model(load_models(given["dictionaries"]))
        if len(sources.names) == 1 and not given["free"]:
            raise click.UsageError(
                "Separation needs two sources or more: give another -d, or --free 8 for the rest."
            )
    elif given["sources"] or given["components"]:
        options.discovered(given)
        check_discovery(mixes, given)
    else:
        sources = from_shelf("talk")
        terminal.say(WITHOUT_A_MODEL, err=True)
    if given["delay"] is not None:
        if sources is None:
            raise click.UsageError("--delay needs a model; --sources learns from the whole mix.")
        sources = with_delay(sources, given["delay"])
    names: Sequence[str] = sources.names if sources else source_names(given["sources"])
    _check_adaptation(names, given)
    recordings, failures = terminal.find_recordings(mixes)
    n_files = len(recordings) + len(failures)
    names = [*names, *([REST] if given["free"] else [])]
    targets = _targets(recordings, _stems(names, given), given)
    tracks: list[dict[str, Any]] = []
    unfinished: deque[tuple[dict[str, Any], Future[None]]] = deque()

    def finish_one() -> None:
        track, is_written = unfinished.popleft()
        with failure_of(track["track"], failures):
            is_written.result()
            tracks.append(track)

    # The disk takes a while to say that it has all: meanwhile the next recording is separated.
    is_interrupted = False
    with terminal.warnings_shown_by(), ThreadPoolExecutor(1, "ondes-finish") as pool:
        for path, files in targets.items():
            with failure_of(path, failures):
                track, written, is_interrupted = _separate_one(
                    path, sources, files, given, compute, pool
                )
                unfinished.append((track, written))
            if len(unfinished) > 1:
                finish_one()
            if is_interrupted:
                break
        while unfinished:
            finish_one()
    if given["as_json"]:
        result = {"tracks": tracks, "n_files": n_files, **terminal.listed(failures)}
        terminal.print_json(result)
    elif given["output"] != "-":
        for track in tracks:
            for file in track["stems"].values():
                terminal.say(printable(str(file)))
    if is_interrupted:
        terminal.complain("interrupted; what was separated so far is saved.")
        return terminal.INTERRUPTED
    if failures:
        return terminal.SOME_FAILED if tracks else terminal.FAILED
    return terminal.DONE


def _check_adaptation(names: Sequence[str], given: dict[str, Any]) -> None:
    if given["adapt"] and given["free"]:
        raise click.UsageError("Give --adapt or --free, not both.")
    given["adapt"] = tuple(
        stem if name not in names and (stem := Path(name).stem) in names else name
        for name in given["adapt"]
    )
    for name in given["adapt"]:
        if name not in names:
            raise click.UsageError(
                f"--adapt {name!r} is not one of the sources: {', '.join(names)}."
            )


def _stems(names: Sequence[str], given: dict[str, Any]) -> Sequence[str]:
    """The sources to write."""
    for name in given["stems"]:
        if name not in names:
            raise click.UsageError(
                f"--stem {name!r} is not one of the sources: {', '.join(names)}."
            )
    return [name for name in names if name in given["stems"]] or names


def _check_stream(n_mixes: int, stems: Sequence[str], given: dict[str, Any]) -> None:
    """Raise UsageError where a stream could not hold what is asked for."""
    if n_mixes > 1 or len(stems) > 1:
        raise click.UsageError(
            f"A stream holds one source of one MIX; choose one of {', '.join(stems)} with --stem."
        )
    for option, is_given in {
        "--flac": given["flac"],
        "--filename": given["filename"] != FILENAME,
        "--json": given["as_json"] and given["output"] == "-",
    }.items():
        if is_given:
            raise click.UsageError(f"{option} does not go with a stream; leave it out.")


def _targets(
    recordings: Sequence[Location], names: Sequence[str], given: dict[str, Any]
) -> dict[Location, dict[str, Path]]:
    """The file of every stem of every mix, checked before any work."""
    from ondes.atomic_file import check_destination, remove_abandoned
    from ondes.signal.survey import is_stream

    if is_stream(given["output"]):
        _check_stream(len(recordings), names, given)
        return {path: {names[0]: Path(given["output"])} for path in recordings}
    targets: dict[Location, dict[str, Path]] = {}
    for path in recordings:
        track = "stdin" if str(path) == "-" else path.stem
        words = {"track": _no_dots(track), "trackext": path.suffix[1:], "ext": "wav"}
        words |= {"ext": "flac"} if given["flac"] else {}
        words |= {"folder": path.resolve().parent.name or "_"}
        try:
            files = {
                name: Path(
                    given["output"], given["filename"].format(stem=as_file_name(name), **words)
                )
                for name in names
            }
        except (LookupError, ValueError, AttributeError) as error:
            raise click.UsageError(
                f"--filename {given['filename']!r} may contain only {{folder}}, {{track}}, "
                f"{{stem}}, {{ext}} and {{trackext}} in braces: {error}"
            ) from None
        targets[path] = files
    everything = [file for files in targets.values() for file in files.values()]
    if len(set(everything)) < len(everything):
        raise click.UsageError(
            f"--filename {given['filename']!r} gives two stems the same name; use {{track}} and "
            "{stem}, and {folder} if recordings in different folders have the same name."
        )
    for file in filter(os.path.lexists, everything):
        check_destination(file, given["force"])
    remove_abandoned(everything)
    return targets


def _no_dots(track: str) -> str:
    """A track's name, unless it would lead to another folder."""
    return track if track.strip(".") else "_" * len(track)


def as_file_name(source: str) -> str:
    """A source's name as a file name: labels in a model may be anything."""
    return re.sub(r"[/\\\0]|^\.+", "_", source) or "_"


def _separate_one(
    path: Location,
    sources: Model | None,
    files: dict[str, Path],
    given: dict[str, Any],
    compute: dict[str, Any],
    pool: ThreadPoolExecutor,
) -> tuple[dict[str, Any], Future[None], bool]:
    """What to report of a track, when its files are in place, and whether Ctrl-C ended it."""
    import numpy as np

    from ondes.prefetch import prefetch
    from ondes.separation import StemLevels, separate_file
    from ondes.signal.audio_writer import deferred_signals
    from ondes.signal.recordings import probe
    from ondes.signal.survey import is_stream

    total = None if is_stream(path) or given["raw"] is not None else probe(path).seconds
    ends = [each for each in (given["end"], total) if each is not None]
    total = max(0.0, min(ends) - given["start"]) if ends else None
    is_discovered, is_streamed = sources is None, is_stream(given["output"])
    with (
        terminal.bar(path.name) as bar,
        terminal.warnings_shown_by(bar),
        contextlib.ExitStack() as stack,
    ):
        if sources is None:
            sources = as_model({"mix": discover(path, given, bar.show_learning)})
        separated = separate_file(
            path, sources, start=given["start"], end=given["end"], raw=given["raw"],
            adapt=given["adapt"], n_free=given["free"] or 0, spatial=given["spatial"],
            random_state=given["seed"], **compute,
        )  # fmt: skip
        writers: dict[str, AudioWriter | StreamWriter] = {}
        levels = StemLevels()
        may_be_a_room = (
            not is_discovered
            and given["spatial"] in ("auto", "none")
            and len(separated.names) == separated.channels > 1
            and separated.sr <= HIGHEST_RATE
        )
        beginning: list[Any] = []
        n_samples, is_silent = 0, True

        def has_no_reader() -> bool:
            return any(writer.is_abandoned() for writer in writers.values())

        is_interrupted = False
        try:
            for blocks in prefetch(separated, BLOCKS_AHEAD, should_stop=has_no_reader):
                first = next(iter(blocks.values()))
                if not len(first):
                    continue
                if not writers:
                    facts = separated.sr, first.shape[1]
                    for name, file in files.items():
                        writers[name] = open_writer(file, *facts, given, stack)
                # All stems, or none, have the block; a stream has one, and may wait for its reader.
                with contextlib.nullcontext() if is_streamed else deferred_signals():
                    for name, writer in writers.items():
                        writer.write(blocks[name])
                if is_discovered or given["as_json"]:
                    levels.add(blocks)
                if may_be_a_room and n_samples < BEGINNING * separated.sr:
                    beginning.append(sum(samples[:, :2] for samples in blocks.values()))
                n_samples += len(first)
                is_silent = is_silent and not any(np.any(each) for each in blocks.values())
                bar.show(n_samples / separated.sr, total, "separating")
            if n_samples and is_silent and not is_streamed:
                raise FileError(path, "is silent: there is nothing to separate")
            for writer in writers.values():
                writer.check()
        except KeyboardInterrupt:
            if not (writers and (is_streamed or is_stream(path))):
                raise
            is_interrupted = True  # a stream cannot be given again: keep what is finished
        is_written = pool.submit(stack.pop_all().close)
    if is_discovered:
        _say_what_is_silent(path, levels)
    elif beginning:
        _hint_at_a_room(path, np.concatenate(beginning), separated.sr)
    seconds = n_samples / separated.sr
    track = {
        "track": path,
        "seconds": seconds,
        "sr": separated.sr,
        "stems": files,
        "levels": levels.decibels(),
    }
    return track, is_written, is_interrupted


def _say_what_is_silent(path: Location, levels: StemLevels) -> None:
    for name, decibels in levels.decibels().items():
        if decibels < NEARLY_SILENT:
            below = "" if decibels == -math.inf else f", {-decibels:.0f} dB below the mixture"
            silent = "nearly silent" if below else "silent"
            terminal.complain(
                f"{printable(path.name)}: {name} is {silent}{below}; try fewer --sources."
            )


def _hint_at_a_room(path: Location, samples: Any, sr: int) -> None:
    from ondes.separation.spatial.places import resembles_room

    if resembles_room(samples[: BEGINNING * sr], sr):
        terminal.complain(
            f"{printable(path.name)}: the channels differ in phase as those of microphones in a "
            "room do; --spatial room may separate better."
        )
