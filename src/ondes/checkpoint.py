"""Checkpoints: a model, and how its learning goes on from there to the very bytes of its end.

A checkpoint is a model file with one more part, `run`. So it can be looked at and used like any
model while its run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ondes.archive import ModelFileError, pack, read_whole, sentence_part, unpack, write_archive
from ondes.model_file import (
    CLASSES,
    OF_THE_MACHINE,
    AudioSettings,
    Provenance,
    document_of,
    model_of,
    packed,
)
from ondes.nmf.estimator import OnlineISNMF

__all__ = ["EVERY_S", "Checkpoint", "check_kept", "check_same_run", "read", "write"]

EVERY_S = 60.0
# Who does the work may change on the way. The rest of these the run's own `passes` and `seed` say.
FREE_PARAMETERS = (
    *OF_THE_MACHINE,
    *("backend", "device", "precision"),
    *("n_passes", "random_state"),
)
MAX_SHOWN = 60


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Attributes
    ----------
    model : OnlineISNMF
        Its `provenance_` tells how the run went so far.
    position : dict
        Where the lessons go on, as they say it themselves.
    settings : dict
        What the model does not know of the run: `passes`, `seed` and the like.
    failures : dict
        By path, why a recording could not be read.
    before : Provenance or None
        What the model knew of itself when the run began.
    """

    model: OnlineISNMF
    position: dict[str, Any]
    settings: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)
    before: Provenance | None = None


def write(path: str | Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint in the place of the last one; whatever happens, one of them is there.

    Raises
    ------
    ModelFileError
        Where it cannot be written; the last one is still there.
    """
    run = {
        "position": checkpoint.position,
        "settings": dict(checkpoint.settings),
        "failures": [list(pair) for pair in checkpoint.failures.items()],
        "before": checkpoint.before,
    }
    document = document_of(path, checkpoint.model) | {"run": run}
    write_archive(path, packed(path, document), force=True)


def read(path: str | Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    ModelFileError
        Where the file is missing, damaged, cut short, of a newer ondes, or no checkpoint.
    """
    document = unpack(read_whole(path), path, CLASSES)
    model, run = model_of(path, document), document.get("run")
    if run is None:
        raise ModelFileError(path, "is a model and no checkpoint; name another file")
    try:
        return Checkpoint(
            model,
            _of_type(run["position"], dict),
            _of_type(run["settings"], dict),
            {_of_type(name, str): _of_type(reason, str) for name, reason in run["failures"]},
            None if run["before"] is None else _of_type(run["before"], Provenance),
        )
    except (ValueError, TypeError, LookupError) as error:
        raise ModelFileError(path, f"holds no valid checkpoint: {sentence_part(error)}") from error


def check_kept(path: str | Path, model: OnlineISNMF, settings: Mapping[str, Any]) -> None:
    """Raise ModelFileError where a setting is of a class that no file can hold."""
    packed(path, _what_is_learned(model, settings))


def check_same_run(
    path: str | Path, checkpoint: Checkpoint, model: OnlineISNMF, settings: Mapping[str, Any]
) -> None:
    """Raise ModelFileError for the first setting that is not what the checkpoint's run had."""
    before = _what_is_learned(checkpoint.model, checkpoint.settings)
    now = _what_is_learned(model, settings)
    for name in before | now:
        values = [pack({"value": each.get(name)}, CLASSES) for each in (before, now)]
        if values[0] != values[1]:
            was, become = (repr(each.get(name)) for each in (before, now))
            is_short = len(was + become) < MAX_SHOWN
            change = f"was {was} and is {become}" if is_short else "is not what it was"
            raise ModelFileError(
                path,
                f"is of a run with another setting, {name} {change}; give the same again, or "
                "delete the file to begin anew",
            )


def _what_is_learned(model: OnlineISNMF, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings that decide what the run ends with, by name."""
    told = {
        name: value
        for name, value in model.get_params(deep=False).items()
        if name not in FREE_PARAMETERS
    }
    audio: AudioSettings | None = getattr(model, "audio_", None)
    if audio is not None:
        told |= {"sr": audio.sr, "silence": audio.silence, "n_fft": audio.stft.n_fft}
        told |= {"hop_length": audio.stft.hop_length, "window": audio.stft.window}
    return told | dict(settings)


def _of_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value
