"""The training loop: batches in, one update each, with history, checkpoints and a clean stop."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ondes.errors import ClusterError
from ondes.history import TrainingHistory
from ondes.model_file import SavedModel
from ondes.nmf.divergence import Array
from ondes.nmf.learner import DictionaryLearner
from ondes.training.batch_source import BatchSource
from ondes.training.checkpointer import Checkpointer, CheckpointPlan
from ondes.training.failures import Failures
from ondes.training.recorder import HistoryRecorder
from ondes.training.stop_signals import StopSignals

__all__ = ["LearningProgress", "initialise", "train"]

INITIAL_FRAMES = 3000  # the first dictionary is drawn from this many; one mini-batch is too alike

T = TypeVar("T")


@dataclass(frozen=True)
class LearningProgress:
    """Where training stands.

    Attributes
    ----------
    seconds_done : float
        Seconds of audio so far, over all passes.
    seconds_total : float or None
        None for a stream.
    n_frames : int
        Frames learned from.
    divergence : float
        Per bin; see `TrainingHistory`.
    """

    seconds_done: float
    seconds_total: float | None
    n_frames: int
    divergence: float


def train(
    model: SavedModel,
    source: BatchSource[T],
    *,
    files: Sequence[str],
    recordings: str,
    settings: dict[str, Any],
    failures: Failures,
    signals: StopSignals,
    progress: Callable[[LearningProgress], object] | None = None,
    plan: CheckpointPlan | None = None,
) -> TrainingHistory:
    """Train on all batches, or on those that come before a signal to stop.

    Parameters
    ----------
    model : SavedModel
        Its estimator is trained; a checkpoint is restored into it.
    source : BatchSource
    files : sequence of str
        The recordings, for the history.
    recordings : str
        Their digest, for the history.
    settings : dict
        What decides the result beside the model's own parameters, as plain values: a run is
        resumed only with the same.
    failures : Failures
        Where the source reports unreadable recordings.
    signals : StopSignals
        Not yet entered. The source should end where they request a stop.
    progress : callable, optional
        Called after every batch.
    plan : CheckpointPlan, optional

    Returns
    -------
    TrainingHistory

    Raises
    ------
    FileError
        Where a checkpoint is in the way, belongs to another run, cannot be read, or is being
        written by another process.
    """
    estimator, position = model.estimator, source.position
    recorder = HistoryRecorder(model.history, files, failures)
    checkpointer = Checkpointer(plan, model, position, settings, recorder)
    with checkpointer, signals, contextlib.ExitStack() as stack:
        is_initialised = checkpointer.resume() or _has_learned(estimator)
        batches = stack.enter_context(contextlib.closing(_until_stopped(source.batches, signals)))
        first: Sequence[T] = []
        if source.initialise is not None and not is_initialised:
            first = source.initialise(batches)
        # A first dictionary drawn from fewer frames than it asks for is not the final one.
        is_cut_short = signals.is_requested()
        try:
            for n_batches, batch in enumerate(itertools.chain(first, batches), 1):
                recorder.add(source.step(batch), estimator)
                if progress is not None:
                    seconds = position.seconds_done, position.seconds_total
                    progress(LearningProgress(*seconds, *recorder.now))
                checkpointer.is_enabled = not is_cut_short and n_batches >= len(first)
                checkpointer.write_if_due()
        except ClusterError:  # no more batches will come: what was learned is kept
            checkpointer.write()
            raise
        if signals.is_requested():
            checkpointer.write()
    if not _has_learned(estimator):
        if signals.is_requested():
            raise KeyboardInterrupt
        raise ValueError("The recordings are silent, so there is nothing to learn; give others.")
    if recorder.now[0] < estimator.n_components and not signals.is_requested():
        warnings.warn(
            f"{estimator.n_components} components were learned from {recorder.now[0]} non-silent "
            "frames, which is too few to be useful; give more recordings, or fewer components.",
            RuntimeWarning,
            stacklevel=4,
        )
    run = {"settings": settings, "recordings": recordings}
    return recorder.history(position.seconds_done, signals.received, run)


def _until_stopped(batches: Iterable[T], signals: StopSignals) -> Generator[T]:
    """The batches until a stop is requested; one that has come is never dropped."""
    coming = iter(batches)
    try:
        while not signals.is_requested() and (batch := next(coming, None)) is not None:
            yield batch
    finally:
        if isinstance(coming, Generator):
            coming.close()


def _has_learned(estimator: DictionaryLearner) -> bool:
    return getattr(estimator, "n_frames_seen_", 0) > 0


def initialise(estimator: DictionaryLearner, batches: Iterator[Array]) -> list[Array]:
    """Draw the first dictionary from the first frames, and return their batches.

    It stays undrawn where all of them are empty.
    """
    first: list[Array] = []
    for batch in batches:
        first.append(batch)
        if sum(map(len, first)) >= INITIAL_FRAMES:
            break
    if any(map(len, first)):
        joined = np.concatenate(first)
        first = np.split(joined, np.cumsum([len(batch) for batch in first])[:-1])  # held once
        estimator.initialise(joined)
    return first
