"""`ondes separate`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.sources import as_sources, check_discovery, discover, load_dictionaries
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.separation import Sources


@click.command(short_help="Separate recordings into sources.")
@click.argument("mixes", nargs=-1, required=True, metavar="MIX...")
@options.dictionaries(required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    default="separated",
    show_default=True,
    help="The folder to write to.",
)
@click.option(
    "--filename",
    default="{track}/{stem}.{ext}",
    show_default=True,
    help="File names in that folder; {trackext} is the suffix of the mix.",
)
@click.option("--flac", is_flag=True, help="Write 24-bit flac instead of float wav.")
@options.count("--adapt", help="Learn N more components from the mix; they are the source 'rest'.")
@options.discovery
@options.seed
@options.raw
@options.compute
@options.force
@options.as_json
def separate(mixes: tuple[str, ...], **given: Any) -> int:
    """Separate each MIX into sources, which sum to the mix, at its own sampling rate.

    Each -d is one source, named after its file or as in -d NAME=MODEL. One model whose components
    are in groups is as many sources. Without -d, the sources are learned from the mix itself.

    \b
    ondes separate talk.mp3 -d speech.ondes -d music.ondes -o stems/
    ondes separate talk.mp3 -d speech.ondes --adapt 16
    ondes separate band.wav --sources 4
    """  # noqa: D301
    from ondes.discovery import source_names
    from ondes.separation import REST

    compute = options.compute_settings(given)
    sources = None
    if given["dictionaries"]:
        sources = as_sources(load_dictionaries(given["dictionaries"]))
        if len(sources.names) == 1 and not given["adapt"]:
            raise click.UsageError(
                "One dictionary is one source; give another -d, or --adapt 16 for the rest."
            )
    else:
        check_discovery(mixes, given)
    recordings, n_failed = terminal.find_recordings(mixes)
    names = sources.names if sources else source_names(given["sources"])
    targets = _targets(recordings, [*names, *([REST] if given["adapt"] else [])], given)
    tracks = []
    for path, files in targets.items():
        try:
            tracks.append(_separate_one(path, sources, files, given, compute))
        except (FileError, ValueError) as error:
            terminal.complain(str(error))
            n_failed += 1
    if given["as_json"]:
        terminal.print_json({"tracks": tracks, "n_failed": n_failed})
    else:
        for track in tracks:
            for file in track["stems"].values():
                click.echo(printable(str(file)))
    if n_failed:
        return terminal.SOME_FAILED if tracks else terminal.FAILED
    return terminal.DONE


def _targets(
    recordings: Sequence[Path], names: Sequence[str], given: dict[str, Any]
) -> dict[Path, dict[str, Path]]:
    """The file of every stem of every mix, checked before any work."""
    from ondes.atomic_file import check_destination

    targets: dict[Path, dict[str, Path]] = {}
    for path in recordings:
        track = "stdin" if str(path) == "-" else path.stem
        words = {"track": track, "trackext": path.suffix[1:], "ext": "wav"}
        words |= {"ext": "flac"} if given["flac"] else {}
        try:
            files = {
                name: Path(given["output"], given["filename"].format(stem=_as_name(name), **words))
                for name in names
            }
        except (LookupError, ValueError, AttributeError) as error:
            raise click.UsageError(
                f"--filename {given['filename']!r} may contain only {{track}}, {{stem}}, {{ext}} "
                f"and {{trackext}} in braces: {error}"
            ) from None
        targets[path] = files
    everything = [file for files in targets.values() for file in files.values()]
    if len(set(everything)) < len(everything):
        raise click.UsageError(
            f"--filename {given['filename']!r} gives two stems the same name; use {{track}} and "
            "{stem}."
        )
    for file in filter(Path.exists, everything):
        check_destination(file, given["force"])
    return targets


def _as_name(source: str) -> str:
    """A source's name as a file name: labels in a model may be anything."""
    return re.sub(r"[/\\\0]|^\.+", "_", source) or "_"


def _separate_one(
    path: Path,
    sources: Sources | None,
    files: dict[str, Path],
    given: dict[str, Any],
    compute: dict[str, Any],
) -> dict[str, Any]:
    from ondes.separation import separate_file
    from ondes.signal.audio_writer import AudioWriter
    from ondes.signal.recordings import probe

    total = None if str(path) == "-" or given["raw"] is not None else probe(path).seconds
    with terminal.bar(path.name) as bar, contextlib.ExitStack() as stack:
        if sources is None:
            sources = as_sources({"mix": discover(path, given, bar.show_learning)})
        separated = separate_file(
            path, sources, raw=given["raw"], n_free=given["adapt"] or 0,
            random_state=given["seed"], **compute,
        )  # fmt: skip
        writers: dict[str, AudioWriter] = {}
        n_samples = 0
        for blocks in separated:
            if not writers:
                channels = next(iter(blocks.values())).shape[1]
                for name, file in files.items():
                    _make_folder(file.parent, stack)
                    writer = AudioWriter(file, separated.sr, channels, force=given["force"])
                    writers[name] = stack.enter_context(writer)
            for name, samples in blocks.items():
                writers[name].write(samples)
            n_samples += len(next(iter(blocks.values())))
            bar.show(n_samples / separated.sr, total, "separating")
    seconds = n_samples / separated.sr
    return {"track": path, "seconds": seconds, "sr": separated.sr, "stems": files}


def _make_folder(folder: Path, stack: contextlib.ExitStack) -> None:
    """Make a folder, and remove it at the end where it is still empty."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)

    def remove_if_empty() -> None:
        with contextlib.suppress(OSError):
            for each in missing:
                each.rmdir()

    stack.callback(remove_if_empty)
