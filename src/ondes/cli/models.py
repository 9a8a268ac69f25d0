"""The models of a command: given with -d, or learned from the mixture itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.errors import FileError

if TYPE_CHECKING:
    from ondes.models.dictionary import Dictionary
    from ondes.models.model import Model
    from ondes.models.trained_separator import TrainedSeparator
    from ondes.signal.locations import Location


def load_models(given: Sequence[str]) -> dict[str, Dictionary | TrainedSeparator]:
    """The models of `-d MODEL` or `-d NAME=MODEL`; by default the file gives the name."""
    models: dict[str, Dictionary | TrainedSeparator] = {}
    for each in given:
        name, path = _name_and_path(each)
        if name in models:
            raise click.UsageError(
                f"Two sources have the name {name!r}; rename one, as in -d other={path}."
            )
        models[name] = load_model(path)
    return models


def load_dictionary(path: str) -> Dictionary:
    """Load a dictionary that was learned from recordings."""
    from ondes.models.dictionary import Dictionary

    model = load_model(path)
    if not isinstance(model, Dictionary):
        raise FileError(path, "is a trained separator; give a dictionary from `ondes learn`")
    return model


def as_model(models: Mapping[str, Dictionary | TrainedSeparator]) -> Model:
    """Models side by side, or the sources of a single one."""
    from ondes.models.combined import model_of
    from ondes.models.model import Model

    if len(models) == 1:
        (model,) = models.values()
        if isinstance(model, Model) or model.groups is not None:
            return model_of(model)
    return model_of(models)


def load_model(path: str) -> Dictionary | TrainedSeparator:
    """The model of `-d`: a file, a URL, or the name of one that comes with ondes."""
    from ondes.models.dictionary import Dictionary
    from ondes.models.loading import load

    model = load(path)
    if isinstance(model, Dictionary) and model.audio is None:
        raise FileError(
            path,
            "was learned from arrays, so its sampling rate and STFT are unknown; use `ondes learn`",
        )
    return model


def with_delay(model: Model, seconds: float) -> Model:
    """The same model for live sound, late by so many seconds at most."""
    from ondes.models.band_network import BandWeights
    from ondes.models.trained_separator import TrainedSeparator

    stft, sr = model.audio.stft, model.audio.sr
    if stft.n_synthesis is None and isinstance(model, TrainedSeparator):
        if isinstance(model.weights, BandWeights):
            try:
                return model.with_delay(seconds)
            except ValueError as error:
                raise click.UsageError(str(error)) from None
        raise click.UsageError(
            "Separators of `ondes train` are not for live sound: use one that comes with ondes, or "
            "dictionaries from ondes learn --delay 30ms."
        )
    if stft.n_synthesis is None or stft.delay > seconds * sr + 1e-6:
        raise click.UsageError(
            f"These models are late by {1000 * stft.delay / sr:.0f} ms: make them with --delay "
            f"{1000 * seconds:g}ms, as in ondes learn room/ -o room.ondes --delay "
            f"{1000 * seconds:g}ms."
        )
    return model


def _name_and_path(given: str) -> tuple[str, str]:
    from ondes.signal.locations import as_location

    name, equals, path = given.partition("=")
    is_named = equals and "://" not in name and not Path(given).exists()
    return (name, path) if is_named else (as_location(given).stem, given)


def named_files(given: Sequence[str]) -> dict[str, list[str]]:
    """Files, folders and globs by the source they are of, from NAME=FILES; names may recur."""
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, files = each.partition("=")
        if not (name and equals and files):
            raise click.UsageError(f"{each!r} is not NAME=FILES, such as speech=lectures/.")
        found.setdefault(name, []).append(files)
    return found


def check_discovery(mixes: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise UsageError where the sources of these mixtures cannot be discovered."""
    from ondes.signal.survey import is_stream

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
    from ondes.separation.discovery import discover_sources

    return discover_sources(
        path,
        given["sources"],
        n_components=given["components"],
        random_state=given["seed"],
        raw=given["raw"],
        progress=progress,
        **options.compute_settings(given),
    )


@click.command("models", short_help="List the models that come with ondes.")
@options.as_json
def list_models(as_json: bool) -> None:
    """List the separators that come with ondes: -d takes their names.

    \b
    ondes models
    ondes separate podcast.mp3 -d talk
    """  # noqa: D301
    from ondes.models.loading import SHELF, from_shelf

    sources = {name: from_shelf(name).names for name in SHELF}
    if as_json:
        terminal.print_json({"models": {name: list(each) for name, each in sources.items()}})
    else:
        for name, text in SHELF.items():
            terminal.say(f"{name:8s}  {text}")
