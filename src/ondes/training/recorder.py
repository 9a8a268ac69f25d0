"""Keeps the history of a run while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ondes.history import TrainingHistory
from ondes.nmf.learner import DictionaryLearner
from ondes.training.batch_source import Update
from ondes.training.failures import Failures

__all__ = ["HistoryRecorder"]

CURVE_GROWTH = 1.03  # one point of the learning curve whenever the frames have grown by this
MAX_FILES_NAMED = 1000


class HistoryRecorder:
    """The history of a run so far, on top of what came before it.

    Parameters
    ----------
    before : TrainingHistory or None
    files : sequence of str
        The recordings of this run.
    failures : Failures

    Attributes
    ----------
    before : TrainingHistory or None
    failures : Failures
    """

    def __init__(
        self, before: TrainingHistory | None, files: Sequence[str], failures: Failures
    ) -> None:
        self.failures, self._files = failures, files
        self.resume(before, before)

    def resume(self, before: TrainingHistory | None, so_far: TrainingHistory | None) -> None:
        """Continue a run that began after `before` and got to `so_far`."""
        self.before = before
        self._current = so_far or TrainingHistory()
        self._curve = [(n, divergence) for n, divergence in self._current.learning_curve.tolist()]

    @property
    def now(self) -> tuple[int, float]:
        """Frames learned from, and their average divergence per bin."""
        return self._current.n_frames, self._current.divergence

    def add(self, update: Update, estimator: DictionaryLearner) -> None:
        """Record an update."""
        if update.n_frames == 0:
            return
        per_bin = update.divergence / update.n_frames / estimator.n_features_in_
        self._current = self._current.with_update(round(update.n_frames), per_bin)
        if not self._curve or self.now[0] >= CURVE_GROWTH * self._curve[-1][0]:
            self._curve.append(self.now)

    def history(
        self,
        seconds_done: float,
        stopped_by: str | None = None,
        run: dict[str, Any] | None = None,
    ) -> TrainingHistory:
        """The history up to now; with what decided the run, that of its end."""
        before = self.before or TrainingHistory()
        last = [self.now] if run is not None and self._curve and self._curve[-1] != self.now else []
        return replace(
            self._current,
            learning_curve=np.array([*self._curve, *last], dtype=np.float64).reshape(-1, 2),
            files=(*before.files, *self._files)[:MAX_FILES_NAMED],
            n_files=before.n_files + len(self._files),
            n_failed=before.n_failed + len(self.failures.reasons),
            seconds=before.seconds + seconds_done,
            stopped_by=stopped_by,
            run=run,
        )
