"""Checkpoint files: a model, and where its training continues.

A checkpoint is a model file with one more part, `run`. So it can be inspected and used like any
model while training goes on.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ondes.atomic_file import check_destination, exclusive_writer, write_atomically
from ondes.errors import FileError
from ondes.models.archive import pack, sentence_part
from ondes.models.dictionary import Dictionary
from ondes.models.history import TrainingHistory
from ondes.models.model_file import (
    CLASSES,
    NOT_SAVED,
    document_of,
    model_of,
    of_type,
    packed,
    read_document,
)

__all__ = ["EVERY_S", "Checkpoint", "CheckpointFile", "check_same_run", "read", "write"]

# What does the work may change on the way; the run's own settings have the last two.
FREE_PARAMETERS = (*NOT_SAVED, "backend", "device", "precision", "n_passes", "random_state")
MAX_SHOWN = 60
EVERY_S = 60.0  # from one to the next


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Attributes
    ----------
    dictionary : Dictionary
        Its `history` includes this run so far.
    position : dict
        Where the batches continue, as their source describes it.
    settings : dict
        What decides the result beside the dictionary's own parameters: `n_passes` and the like.
    failures : dict
        By path, why a recording could not be read.
    before : TrainingHistory or None
        The history when the run began.
    """

    dictionary: Dictionary
    position: dict[str, Any]
    settings: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)
    before: TrainingHistory | None = None

    def document(self) -> dict[str, Any]:
        """The content of the file as a tree of values."""
        run = {
            "position": self.position,
            "settings": dict(self.settings),
            "failures": [list(pair) for pair in self.failures.items()],
            "before": self.before,
        }
        learned = self.dictionary
        return document_of(learned.learner, learned.audio, learned.history) | {"run": run}


class CheckpointFile:
    """The checkpoint of a run, of which it is the only writer; without a path it does nothing.

    One that cannot be written is a warning, and training goes on.

    Parameters
    ----------
    path : str, Path or None
    every : float
        Seconds from one to the next.
    """

    def __init__(self, path: str | Path | None, every: float) -> None:
        self._path, self._every = None if path is None else Path(path), every
        self._lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self._due = 0.0
        self._is_failing = False

    def __enter__(self) -> Self:
        if self._path is not None:
            check_destination(self._path, force=True)
            self._lock = exclusive_writer(self._path)
            self._due = time.monotonic() + self._every
        self._lock.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    @property
    def is_due(self) -> bool:
        """Whether the last one is old enough."""
        return self._path is not None and time.monotonic() >= self._due

    def is_there(self, resume: bool) -> bool:
        """Whether there is one to resume from; FileError where it should not be resumed."""
        if self._path is None or not self._path.exists():
            return False
        if not resume:
            raise FileError(
                self._path,
                "belongs to an unfinished run; resume it, or delete the file to start over",
            )
        return True

    def resumed(
        self, resume: bool, dictionary: Dictionary, settings: Mapping[str, Any]
    ) -> Checkpoint | None:
        """The last checkpoint, if there is one; FileError where it is in the way, or another's."""
        if self._path is None:
            return None
        packed(self._path, _deciding_settings(dictionary, settings))  # a class no file can hold?
        if not self.is_there(resume):
            return None
        kept = read(self._path)
        check_same_run(self._path, (kept.dictionary, kept.settings), (dictionary, settings))
        return kept

    def write(self, document: Callable[[], dict[str, Any]]) -> None:
        """Replace the last checkpoint by one with this content."""
        if self._path is None:
            return
        try:
            write(self._path, document())
            self._is_failing = False
        except FileError as error:
            if not self._is_failing:
                warnings.warn(
                    f"{str(error).rstrip('.')}, so the previous checkpoint stays; training goes on "
                    f"and tries again every {self._every:g} s.",
                    RuntimeWarning,
                    stacklevel=4,
                )
            self._is_failing = True
        self._due = time.monotonic() + self._every


def write(path: str | Path, document: dict[str, Any]) -> None:
    """Replace the last checkpoint; FileError where that is impossible, and the last one stays."""
    write_atomically(path, packed(path, document), force=True)


def read(path: str | Path) -> Checkpoint:
    """Read a checkpoint; FileError where the file is missing, damaged, or not a checkpoint."""
    document = read_document(path)
    dictionary, run = Dictionary(*model_of(path, document)), document.get("run")
    if run is None:
        raise FileError(path, "is a model, not a checkpoint; name another file")
    try:
        return Checkpoint(
            dictionary,
            of_type(run["position"], dict),
            of_type(run["settings"], dict),
            {of_type(name, str): of_type(reason, str) for name, reason in run["failures"]},
            None if run["before"] is None else of_type(run["before"], TrainingHistory),
        )
    except (ValueError, TypeError, LookupError) as error:
        raise FileError(path, f"is not a valid checkpoint: {sentence_part(error)}") from error


Run = tuple[Dictionary, Mapping[str, Any]]  # a dictionary, and the settings of the run beside it


def check_same_run(
    path: str | Path, before: Run, now: Run, remedy: str = "delete the file to start over"
) -> None:
    """Raise FileError for the first setting that differs between two runs."""
    deciding = [_deciding_settings(*each) for each in (before, now)]
    for name in deciding[0] | deciding[1]:
        values = [each.get(name) for each in deciding]
        if pack({"value": values[0]}, CLASSES) != pack({"value": values[1]}, CLASSES):
            was, become = map(repr, values)
            is_short = len(was + become) < MAX_SHOWN
            change = f"was {was} and is {become}" if is_short else "has changed"
            raise FileError(
                path,
                f"belongs to a run with another setting, {name} {change}; give the same again, or "
                f"{remedy}",
            )


def _deciding_settings(dictionary: Dictionary, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings that decide the result of the run, by name."""
    parameters = dictionary.learner.get_params(deep=False)
    deciding = {name: value for name, value in parameters.items() if name not in FREE_PARAMETERS}
    if (audio := dictionary.audio) is not None:
        stft = audio.stft
        deciding |= {"sr": audio.sr, "top_db": audio.top_db, "n_fft": stft.n_fft}
        deciding |= {"hop_length": stft.hop_length, "window": stft.window}
        deciding |= {"spectrum": audio.spectrum, "fmax": audio.fmax}
    return deciding | dict(settings)
