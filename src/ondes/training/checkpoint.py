"""Checkpoint files: a model, and where its training continues.

A checkpoint is a model file with one more part, `run`. So it can be inspected and used like any
model while training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ondes.archive import pack, sentence_part
from ondes.atomic_file import write_atomically
from ondes.errors import FileError
from ondes.history import TrainingHistory
from ondes.model_file import (
    CLASSES,
    NOT_SAVED,
    SavedModel,
    document_of,
    model_of,
    of_type,
    packed,
    read_document,
)

__all__ = ["Checkpoint", "check_finished_run", "check_same_run", "check_writable", "read", "write"]

# What does the work may change on the way; the run's own settings have the last two.
FREE_PARAMETERS = (*NOT_SAVED, "backend", "device", "precision", "n_passes", "random_state")
MAX_SHOWN = 60
OTHER_NAME = "choose another name, or replace it (--force)"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Attributes
    ----------
    model : SavedModel
        Its `history` includes this run so far.
    position : dict
        Where the batches continue, as their source describes it.
    settings : dict
        What decides the result beside the model's own parameters: `n_passes` and the like.
    failures : dict
        By path, why a recording could not be read.
    before : TrainingHistory or None
        The history when the run began.
    """

    model: SavedModel
    position: dict[str, Any]
    settings: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)
    before: TrainingHistory | None = None


def write(path: str | Path, checkpoint: Checkpoint) -> None:
    """Replace the last checkpoint; whatever happens, one of the two is there.

    Raises
    ------
    FileError
        Where it cannot be written; the last one is still there.
    """
    run = {
        "position": checkpoint.position,
        "settings": dict(checkpoint.settings),
        "failures": [list(pair) for pair in checkpoint.failures.items()],
        "before": checkpoint.before,
    }
    document = document_of(checkpoint.model) | {"run": run}
    write_atomically(path, packed(path, document), force=True)


def read(path: str | Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    FileError
        Where the file is missing, damaged, truncated, from a newer ondes, or not a checkpoint.
    """
    document = read_document(path)
    model, run = model_of(path, document), document.get("run")
    if run is None:
        raise FileError(path, "is a model, not a checkpoint; name another file")
    try:
        return Checkpoint(
            model,
            of_type(run["position"], dict),
            of_type(run["settings"], dict),
            {of_type(name, str): of_type(reason, str) for name, reason in run["failures"]},
            None if run["before"] is None else of_type(run["before"], TrainingHistory),
        )
    except (ValueError, TypeError, LookupError) as error:
        raise FileError(path, f"is not a valid checkpoint: {sentence_part(error)}") from error


def check_writable(path: str | Path, model: SavedModel, settings: Mapping[str, Any]) -> None:
    """Raise FileError where a setting is of a class that no file can hold."""
    packed(path, _deciding_settings(model, settings))


def check_finished_run(
    path: str | Path,
    finished: SavedModel,
    model: SavedModel,
    settings: Mapping[str, Any],
    recordings: str,
) -> None:
    """Raise FileError unless the model in a file is from a run with these settings and recordings.

    Parameters
    ----------
    path : str or Path
        Of `finished`.
    finished : SavedModel
    model : SavedModel
        As it is before the run.
    settings : mapping
        As in `Checkpoint`.
    recordings : str
        Their digest; see `ondes.signal.inventory.digest`.
    """
    run = None if finished.history is None else finished.history.run
    if run is None:
        raise FileError(path, f"exists already, and does not belong to this run; {OTHER_NAME}")
    check_same_run(
        path, Checkpoint(finished, {}, run["settings"]), model, settings, remedy=OTHER_NAME
    )
    if run["recordings"] != recordings:
        raise FileError(path, f"belongs to a run with other recordings; {OTHER_NAME}")


def check_same_run(
    path: str | Path,
    checkpoint: Checkpoint,
    model: SavedModel,
    settings: Mapping[str, Any],
    remedy: str = "delete the file to start over",
) -> None:
    """Raise FileError for the first setting that differs from the checkpoint's run."""
    before = _deciding_settings(checkpoint.model, checkpoint.settings)
    now = _deciding_settings(model, settings)
    for name in before | now:
        values = [pack({"value": each.get(name)}, CLASSES) for each in (before, now)]
        if values[0] != values[1]:
            was, become = (repr(each.get(name)) for each in (before, now))
            is_short = len(was + become) < MAX_SHOWN
            change = f"was {was} and is {become}" if is_short else "has changed"
            raise FileError(
                path,
                f"belongs to a run with another setting, {name} {change}; give the same again, or "
                f"{remedy}",
            )


def _deciding_settings(model: SavedModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings that decide the result of the run, by name."""
    parameters = model.estimator.get_params(deep=False)
    deciding = {name: value for name, value in parameters.items() if name not in FREE_PARAMETERS}
    if model.audio is not None:
        stft = model.audio.stft
        deciding |= {"sr": model.audio.sr, "top_db": model.audio.top_db, "n_fft": stft.n_fft}
        deciding |= {"hop_length": stft.hop_length, "window": stft.window}
        deciding |= {"spectrum": model.audio.spectrum}
    return deciding | dict(settings)
