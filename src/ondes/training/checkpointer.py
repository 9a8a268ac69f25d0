"""Writes a run's checkpoints while it goes on, and restores the last one."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ondes.archive import sentence_part
from ondes.atomic_file import check_destination, exclusive_writer
from ondes.errors import FileError
from ondes.model_file import SavedModel
from ondes.training import checkpoint
from ondes.training.batch_source import Resumable
from ondes.training.checkpoint import Checkpoint
from ondes.training.recorder import HistoryRecorder

__all__ = ["EVERY_S", "CheckpointPlan", "Checkpointer"]

EVERY_S = 60.0


@dataclass(frozen=True)
class CheckpointPlan:
    """Where checkpoints go, and when.

    Attributes
    ----------
    path : Path
    every : float
        Seconds from one to the next.
    resume : bool
        Whether to continue from an existing one; where there is none, training begins.
    """

    path: Path
    every: float = EVERY_S
    resume: bool = False

    @classmethod
    def of(cls, path: str | Path | None, every: float, resume: bool) -> CheckpointPlan | None:
        """The plan that a user asks for; None where no path is given."""
        if path is None:
            if resume:
                raise ValueError("resume=True needs the checkpoint to continue: give its path.")
            return None
        if not every >= 0 or math.isinf(every):
            raise ValueError(f"checkpoint_every={every!r} must be a number of seconds.")
        return cls(Path(path), every, resume)


class Checkpointer:
    """Writes the checkpoints of a run as their only writer; does nothing without a plan.

    A checkpoint that cannot be written is a warning, and training goes on.

    Parameters
    ----------
    plan : CheckpointPlan or None
    model : SavedModel
    position : Resumable
        Of the batches.
    settings : mapping
    recorder : HistoryRecorder

    Attributes
    ----------
    is_enabled : bool
        Whether the position of the batches is where the model stands.
    """

    def __init__(
        self,
        plan: CheckpointPlan | None,
        model: SavedModel,
        position: Resumable,
        settings: Mapping[str, Any],
        recorder: HistoryRecorder,
    ) -> None:
        self._plan, self._model, self._position = plan, model, position
        self._settings, self._recorder = settings, recorder
        self._lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self._due = 0.0
        self._is_failing = False
        self.is_enabled = False

    def __enter__(self) -> Self:
        if self._plan is not None:
            check_destination(self._plan.path, force=True)
            checkpoint.check_writable(self._plan.path, self._model, self._settings)
            self._lock = exclusive_writer(self._plan.path)
            self._due = time.monotonic() + self._plan.every
        self._lock.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def resume(self) -> bool:
        """Restore the last checkpoint; whether there is one."""
        if self._plan is None or not self._plan.path.exists():
            return False
        path = self._plan.path
        if not self._plan.resume:
            raise FileError(
                path, "belongs to an unfinished run; resume it, or delete the file to start over"
            )
        kept = checkpoint.read(path)
        checkpoint.check_same_run(path, kept, self._model, self._settings)
        try:
            self._position.restore(kept.position)
        except (LookupError, TypeError, AttributeError) as error:
            reason = f"has an invalid position ({sentence_part(error)})"
            raise FileError(path, f"{reason}; delete the file to start over") from error
        self._model.estimator.restore(kept.model.estimator.state())
        self._recorder.resume(kept.before, kept.model.history)
        for name, reason in kept.failures.items():
            self._recorder.failures(name, FileError(name, reason))
        self.is_enabled = True
        return True

    def write_if_due(self) -> None:
        """Write a checkpoint if the last one is old enough."""
        if self._plan is not None and time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write a checkpoint."""
        if self._plan is None or not self.is_enabled:
            return
        recorder = self._recorder
        history = recorder.history(self._position.seconds_done)
        kept = Checkpoint(
            self._model._replace(history=history),
            self._position.state(),
            self._settings,
            recorder.failures.reasons,
            recorder.before,
        )
        try:
            checkpoint.write(self._plan.path, kept)
            self._is_failing = False
        except FileError as error:
            if not self._is_failing:
                warnings.warn(
                    f"{str(error).rstrip('.')}, so the previous checkpoint stays; training goes on "
                    f"and tries again every {self._plan.every:g} s.",
                    RuntimeWarning,
                    stacklevel=4,
                )
            self._is_failing = True
        self._due = time.monotonic() + self._plan.every
