"""Who is in a mixture: dictionaries that were given, or what the mixture itself teaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import terminal

if TYPE_CHECKING:
    from ondes.nmf.estimator import OnlineISNMF
    from ondes.separation import Sources

# Long frames tell a bass from a drum, and a mixture has few of them: they are heard often.
DISCOVERY: dict[str, Any] = {"n_fft": 2048, "hop_length": 512, "passes": 10}


def load_models(given: Sequence[str]) -> dict[str, OnlineISNMF]:
    """The models of `-d MODEL` or `-d NAME=MODEL`, by name; a file's name is its source's."""
    models: dict[str, OnlineISNMF] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or Path(each).exists():
            name, path = Path(each).stem, each
        if name in models:
            raise click.UsageError(
                f"Two sources are called {name!r}; rename one, as in -d other={path}."
            )
        models[name], _ = terminal.load_model(path)
    return models


def as_sources(models: dict[str, OnlineISNMF]) -> Sources:
    """One source a model, or the groups of a single model."""
    from ondes.separation import Sources

    if len(models) == 1:
        (model,) = models.values()
        if model.groups is not None:
            return Sources.of(model)
    return Sources.of(models)


def discover(
    path: Path,
    n_sources: int,
    n_components: int,
    *,
    progress: Callable[[Any], object] | None = None,
    **settings: Any,
) -> OnlineISNMF:
    """Learn from a mixture what it consists of, at constant memory and its own sampling rate."""
    from ondes.learning import learn
    from ondes.separation.grouping import group_components, power_frames
    from ondes.signal.audio import open_blocks, probe

    if str(path) == "-":
        raise click.UsageError(
            "Standard input can be heard only once: give dictionaries, or a file."
        )
    if n_components < n_sources:
        raise click.UsageError(f"-k {n_components} is too few for --sources {n_sources}.")
    sr = probe(path).sr
    model = learn([path], n_components, sr=sr, progress=progress, **DISCOVERY, **settings)
    if model.provenance_.stopped_by is not None:
        raise KeyboardInterrupt
    with open_blocks(path, sr=sr, mono=False) as blocks:
        labels = group_components(model, power_frames(blocks, model.audio_), n_sources)
    model.groups = [f"source {label + 1}" for label in labels]
    return model
