"""The dictionaries of a mixture: given with -d, or learned from the mixture itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal

if TYPE_CHECKING:
    from ondes.dictionary import Dictionary
    from ondes.separation import Sources
    from ondes.separation.mixed_sources import MixedSources
    from ondes.signal.locations import Location
    from ondes.trained import TrainedSeparator


def load_dictionaries(given: Sequence[str]) -> dict[str, Dictionary]:
    """The dictionaries of `-d MODEL` or `-d NAME=MODEL`; by default the file gives the name."""
    dictionaries: dict[str, Dictionary] = {}
    for each in given:
        name, path = _name_and_path(each)
        if name in dictionaries:
            raise click.UsageError(
                f"Two sources have the name {name!r}; rename one, as in -d other={path}."
            )
        dictionaries[name] = terminal.load_model(path)
    return dictionaries


def _name_and_path(given: str) -> tuple[str, str]:
    name, equals, path = given.partition("=")
    return (name, path) if equals and not Path(given).exists() else (Path(given).stem, given)


def named_files(given: Sequence[str]) -> dict[str, list[str]]:
    """Files, folders and globs by the source they are of, from NAME=FILES; names may recur."""
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, files = each.partition("=")
        if not (name and equals and files):
            raise click.UsageError(f"{each!r} is not NAME=FILES, such as speech=lectures/.")
        found.setdefault(name, []).append(files)
    return found


def load_sources(
    given: Sequence[str], *, mixed: bool = False
) -> Sources | TrainedSeparator | MixedSources:
    """The dictionaries of `-d` side by side, or the one trained separator; with `mixed`, both."""
    from ondes.loading import load
    from ondes.separation.mixed_sources import MixedSources
    from ondes.trained import TrainedSeparator

    if len(given) == 1:
        model = load(_name_and_path(given[0])[1])
        if isinstance(model, TrainedSeparator):
            return model
    elif mixed:
        models = {path: load(path) for _, path in map(_name_and_path, given)}
        trained = [each for each in models.values() if isinstance(each, TrainedSeparator)]
        if trained:
            others = [each for each in given if models[_name_and_path(each)[1]] not in trained]
            separators = {f"separator {n}": each for n, each in enumerate(trained)}
            return MixedSources.of({**separators, **load_dictionaries(others)})
    return as_sources(load_dictionaries(given))


def as_sources(dictionaries: Mapping[str, Dictionary]) -> Sources:
    """One source per dictionary, or the groups of a single one."""
    from ondes.separation import Sources

    if len(dictionaries) == 1:
        (dictionary,) = dictionaries.values()
        if dictionary.groups is not None:
            return Sources.of(dictionary)
    return Sources.of(dictionaries)


def check_discovery(mixes: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise UsageError where the sources of these mixtures cannot be discovered."""
    from ondes.signal.segments import is_stream

    if any(map(is_stream, mixes)):
        name = "Standard input" if "-" in mixes else "A pipe"
        raise click.UsageError(
            f"{name} can be read only once; give dictionaries with -d, or a file."
        )
    if given["components"] < given["sources"]:
        raise click.UsageError(
            f"-k {given['components']} is too small for --sources {given['sources']}."
        )


def discover(
    path: str | Location, given: Mapping[str, Any], progress: Callable[[Any], object]
) -> Dictionary:
    """The sources of a mixture, learned from the mixture at its own sampling rate."""
    from ondes.discovery import discover_sources

    return discover_sources(
        path,
        given["sources"],
        n_components=given["components"],
        random_state=given["seed"],
        raw=given["raw"],
        progress=progress,
        **options.compute_settings(given),
    )
