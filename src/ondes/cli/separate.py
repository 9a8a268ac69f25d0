"""`ondes separate`."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.sources import as_sources, discover, load_models

if TYPE_CHECKING:
    from ondes.separation import Sources

REST = "rest"


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
    help="Where in that folder; {trackext} is the mix's own suffix.",
)
@click.option("--flac", is_flag=True, help="Write 24-bit flac instead of float wav.")
@options.count("--adapt", help="Learn so many more components from the mix; they are 'rest'.")
@options.count("--sources", default=2, help="Without -d: how many to look for.")
@options.count("-k", "--components", default=24, help="Without -d: of all sources together.")
@options.seed
@options.raw
@options.backend
@options.jobs
@options.force
@options.as_json
def separate(mixes: tuple[str, ...], **given: Any) -> int:
    """Separate each MIX into sources, whose sum is the mix, at the dictionaries' sampling rate.

    Each -d is one source, called like its file or as in -d NAME=MODEL. One model whose components
    are in groups is as many sources. Without -d, the mix itself teaches what it consists of.

    \b
    ondes separate talk.mp3 -d speech.ondes -d music.ondes -o stems/
    ondes separate talk.mp3 -d speech.ondes --adapt 16
    ondes separate band.wav --sources 4
    """  # noqa: D301
    sources = None
    if given["dictionaries"]:
        sources = as_sources(load_models(given["dictionaries"]))
        if len(sources.names) == 1 and not given["adapt"]:
            raise click.UsageError(
                "One dictionary is one source: give another -d, or --adapt 16 for all the rest."
            )
    recordings, n_failed = terminal.gather(mixes)
    names = sources.names if sources else [f"source {n + 1}" for n in range(given["sources"])]
    targets = _targets(recordings, [*names, *([REST] if given["adapt"] else [])], given)
    tracks = []
    for path, files in targets.items():
        try:
            tracks.append(_separate_one(path, sources, files, given))
        except ValueError as error:
            terminal.complain(str(error))
            n_failed += 1
    if given["as_json"]:
        terminal.print_json({"tracks": tracks, "n_failed": n_failed})
    else:
        for track in tracks:
            for file in track["stems"].values():
                click.echo(terminal.printable(str(file)))
    if n_failed:
        return terminal.SOME_FAILED if tracks else terminal.FAILED
    return terminal.DONE


def _targets(
    recordings: list[Path], names: list[str], given: dict[str, Any]
) -> dict[Path, dict[str, Path]]:
    """Where every stem of every mix will go: known, and known to be free, before any work."""
    from ondes.signal.audio import AudioError

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
                f"--filename {given['filename']!r} is not made of {{track}}, {{stem}}, {{ext}} and "
                f"{{trackext}}: {error}"
            ) from None
        targets[path] = files
    everything = [file for files in targets.values() for file in files.values()]
    if len(set(everything)) < len(everything):
        raise click.UsageError(
            f"--filename {given['filename']!r} names two stems alike; use {{track}} and {{stem}}."
        )
    for file in everything:
        if file.exists() and not given["force"]:
            raise AudioError(file, "exists already; choose another folder, or --force")
    return targets


def _as_name(source: str) -> str:
    """A source's name as a file's: labels in a model may be anything."""
    return re.sub(r"[/\\\0]|^\.+", "_", source) or "_"


def _separate_one(
    path: Path, sources: Sources | None, files: dict[str, Path], given: dict[str, Any]
) -> dict[str, Any]:
    from ondes.separation import separate_file
    from ondes.signal.audio import AudioWriter, probe

    how = {"backend": given["backend"], "n_jobs": given["jobs"]}
    total = None if str(path) == "-" or given["raw"] is not None else probe(path).seconds
    with terminal.bar(path.name) as bar, contextlib.ExitStack() as stack:
        if sources is None:
            model = discover(
                path, given["sources"], given["components"], seed=given["seed"], **how,
                progress=lambda p: bar.show(p.seconds_done, p.seconds_total, "learning"),
            )  # fmt: skip
            sources = as_sources({"mix": model})
        separated = separate_file(
            path, sources, raw=given["raw"], n_free=given["adapt"] or 0, rest=REST,
            random_state=given["seed"], **how,
        )  # fmt: skip
        writers: dict[str, AudioWriter] = {}
        n_samples = 0
        for blocks in separated:
            if not writers:
                channels = next(iter(blocks.values())).shape[1]
                for name, file in files.items():
                    _make_folder(file.parent, stack)
                    writer = AudioWriter(file, sources.sr, channels, force=given["force"])
                    writers[name] = stack.enter_context(writer)
            for name, samples in blocks.items():
                writers[name].write(samples)
            n_samples += len(next(iter(blocks.values())))
            bar.show(n_samples / sources.sr, total, "separating")
    seconds = n_samples / sources.sr
    return {"track": path, "seconds": seconds, "sr": sources.sr, "stems": files}


def _make_folder(folder: Path, stack: contextlib.ExitStack) -> None:
    """Make a folder that goes away again where nothing came to be in it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)

    def remove_if_empty() -> None:
        with contextlib.suppress(OSError):
            for each in missing:
                each.rmdir()

    stack.callback(remove_if_empty)
