"""Lessons taught to a model one after the other, on one machine or many, and never lost."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from ondes import checkpoint
from ondes.archive import ModelFileError, check_destination
from ondes.checkpoint import Checkpoint
from ondes.model_file import LEARNED, Provenance
from ondes.nmf.estimator import OnlineISNMF
from ondes.signal.audio import AudioError
from ondes.stop_signals import StopSignals
from ondes.whole_file import only_writer

__all__ = ["CheckpointPlan", "Failures", "LearningProgress", "Lessons", "run"]

SEED_FRAMES = 3000  # the first dictionary is drawn from so many; one mini-batch is too alike
# The dictionary remembers its last frames best, so these must be a fair sample of all there are:
# the more frames are shuffled the better, as far as memory goes.
SHUFFLED_BYTES = 2**25
CURVE_GROWTH = 1.03  # a point of the learning curve whenever the frames have grown by this
MAX_FILES_NAMED = 1000

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Lessons(Protocol[T_co]):
    """What a model is taught, in an order that a position can be found in again.

    Iterating goes on from the present position. A lesson may depend on the model as the lessons
    before have left it, as the statistics of a cluster's workers do.
    """

    @property
    def seconds_done(self) -> float:
        """Seconds of sound in the lessons given so far, over all passes."""

    @property
    def seconds_total(self) -> float | None:
        """Seconds of sound in all lessons; None where unknown."""

    def __iter__(self) -> Iterator[T_co]: ...

    def state(self) -> dict[str, Any]:
        """The position after the last lesson given, ready for JSON."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position; ValueError of one sentence where it is not of these lessons."""


@dataclass(frozen=True)
class LearningProgress:
    """Where learning stands after a mini-batch.

    Attributes
    ----------
    seconds_done : float
        Of sound, over all passes.
    seconds_total : float or None
        None for a stream.
    n_frames : int
        Frames learned from.
    divergence : float
        Per bin, of the frames that the statistics still remember.
    """

    seconds_done: float
    seconds_total: float | None
    n_frames: int
    divergence: float


@dataclass(frozen=True)
class CheckpointPlan:
    """Where checkpoints go, and when.

    Attributes
    ----------
    path : Path
    every : float
        Seconds from one to the next.
    resume : bool
        Whether to go on from the one that is there; where there is none, learning begins.
    """

    path: Path
    every: float = checkpoint.EVERY_S
    resume: bool = False

    @classmethod
    def of(cls, path: str | Path | None, every: float, resume: bool) -> CheckpointPlan | None:
        """What was asked for; None where no path is given."""
        if path is None:
            if resume:
                raise ValueError("resume=True needs the checkpoint to go on from: give its path.")
            return None
        if not every >= 0 or math.isinf(every):
            raise ValueError(f"checkpoint_every={every!r} must be a number of seconds.")
        return cls(Path(path), every, resume)


class Failures:
    """The bad recordings of a run: each is told once, to `on_error` or by raising its error."""

    def __init__(self, on_error: Callable[[str, AudioError], object] | None = None) -> None:
        self.reasons: dict[str, str] = {}
        self._on_error = on_error

    def __call__(self, path: str, error: AudioError) -> None:
        """Tell of a recording."""
        if path in self.reasons:
            return
        self.reasons[path] = error.reason
        if self._on_error is None:
            raise error
        self._on_error(path, error)


def run(
    model: OnlineISNMF,
    lessons: Lessons[T],
    teach: Callable[[OnlineISNMF, T], object],
    *,
    names: Sequence[str],
    settings: Mapping[str, Any],
    failures: Failures,
    begin: Callable[[OnlineISNMF, Iterator[T]], Sequence[T]] | None = None,
    progress: Callable[[LearningProgress], object] | None = None,
    plan: CheckpointPlan | None = None,
) -> OnlineISNMF:
    """Teach a model all lessons, or those that come before a signal to stop.

    Parameters
    ----------
    model : OnlineISNMF
        It is changed, and gets its `provenance_`.
    lessons : Lessons
    teach : callable
        Changes the model by one lesson.
    names : sequence of str
        What the lessons come from, for `provenance_`.
    settings : mapping
        What decides the end of the run beside the model's own settings, as plain values: a run
        is resumed with the same alone.
    failures : Failures
        What the lessons report bad recordings to.
    begin : callable, optional
        Draws the first dictionary of a model that has learned nothing: it takes lessons from the
        iterator and returns them, to be taught in turn. Without it, `teach` or the lessons do.
    progress : callable, optional
        Called after every lesson.
    plan : CheckpointPlan, optional

    Raises
    ------
    ModelFileError
        About a checkpoint that is in the way, is of another run or cannot be read.
    FileInUseError
        Where another process writes the same checkpoint.
    """
    story = _Story(getattr(model, "provenance_", None), names, failures)
    keeper = _Keeper(plan, model, lessons, settings, story)
    with keeper, StopSignals(cuts_waits=plan is None) as signals:
        is_begun = keeper.go_back() or _has_learned(model)
        arriving = signals.until_one_comes(iter(lessons))
        first = [] if is_begun or begin is None else begin(model, arriving)
        # A first dictionary from less than all it asks for is not what it would have been.
        is_cut_short = signals.received is not None
        try:
            for n_taught, lesson in enumerate(itertools.chain(first, arriving), 1):
                teach(model, lesson)
                story.note(model)
                if progress is not None:
                    seconds = lessons.seconds_done, lessons.seconds_total
                    progress(LearningProgress(*seconds, *story.now(model)))
                keeper.is_off = is_cut_short or n_taught < len(first)
                keeper.keep_if_due()
        except ConnectionError:  # the lessons stopped coming: what was taught is kept
            keeper.keep()
            raise
        if signals.received is not None:
            keeper.keep()
    if not _has_learned(model):
        if signals.received is not None:
            raise KeyboardInterrupt
        raise ValueError("There is no sound to learn from in what was given; give recordings.")
    model.provenance_ = story.told(model, lessons.seconds_done, signals.received, is_over=True)
    return model


def _has_learned(model: OnlineISNMF) -> bool:
    return getattr(model, "n_frames_seen_", 0) > 0


class _Story:
    """How a run goes, and what came before it."""

    def __init__(self, before: Provenance | None, names: Sequence[str], failures: Failures) -> None:
        self.before, self.failures = before, failures
        self._names = names
        self.go_on_from(before)

    def go_on_from(self, told: Provenance | None) -> None:
        points = [] if told is None else told.learning_curve.tolist()
        self._curve = [(n_frames, divergence) for n_frames, divergence in points]

    @staticmethod
    def now(model: OnlineISNMF) -> tuple[int, float]:
        return model.n_frames_seen_, model.statistics_.divergence_per_bin

    def note(self, model: OnlineISNMF) -> None:
        n_frames, divergence = self.now(model)
        if n_frames and (not self._curve or n_frames >= CURVE_GROWTH * self._curve[-1][0]):
            self._curve.append((n_frames, divergence))

    def told(
        self,
        model: OnlineISNMF,
        seconds_done: float,
        stopped_by: str | None = None,
        is_over: bool = False,
    ) -> Provenance:
        before = self.before or Provenance(np.empty((0, 2)))
        end = self.now(model)
        last = [end] if is_over and self._curve[-1] != end else []
        return Provenance(
            learning_curve=np.array([*self._curve, *last], dtype=np.float64).reshape(-1, 2),
            files=(*before.files, *self._names)[:MAX_FILES_NAMED],
            n_files=before.n_files + len(self._names),
            n_failed=before.n_failed + len(self.failures.reasons),
            n_frames=end[0],
            seconds=before.seconds + seconds_done,
            divergence=end[1],
            stopped_by=stopped_by,
        )


class _Keeper:
    """Keeps a run's checkpoints, as the only one to do so, or none where there is no plan.

    Where one cannot be written that is told, and learning goes on.
    """

    def __init__(
        self,
        plan: CheckpointPlan | None,
        model: OnlineISNMF,
        lessons: Lessons[Any],
        settings: Mapping[str, Any],
        story: _Story,
    ) -> None:
        self._plan, self._model, self._lessons = plan, model, lessons
        self._settings, self._story = settings, story
        self._claim: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self._due = 0.0
        self._is_failing = False
        self.is_off = True  # until the lessons stand where the model does

    def __enter__(self) -> Self:
        if self._plan is not None:
            check_destination(self._plan.path, force=True)
            checkpoint.check_kept(self._plan.path, self._model, self._settings)
            self._claim = only_writer(self._plan.path)
            self._due = time.monotonic() + self._plan.every
        self._claim.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._claim.__exit__(*error)

    def go_back(self) -> bool:
        """Make everything what it was when the checkpoint was written; whether there is one."""
        if self._plan is None or not self._plan.path.exists():
            return False
        path = self._plan.path
        if not self._plan.resume:
            raise ModelFileError(
                path, "is of a run that did not end; resume it, or delete the file to begin anew"
            )
        kept = checkpoint.read(path)
        checkpoint.check_same_run(path, kept, self._model, self._settings)
        try:
            self._lessons.restore(kept.position)
        except (LookupError, TypeError, AttributeError) as error:
            raise ModelFileError(
                path, "is of lessons of another kind; delete the file to begin anew"
            ) from error
        for name, value in vars(kept.model).items():
            if name in LEARNED:
                setattr(self._model, name, value)
        self._story.before = kept.before
        self._story.go_on_from(kept.model.provenance_)
        for name, reason in kept.failures.items():
            self._story.failures(name, AudioError(name, reason))
        self.is_off = False
        return True

    def keep_if_due(self) -> None:
        if self._plan is not None and time.monotonic() >= self._due:
            self.keep()

    def keep(self) -> None:
        if self._plan is None or self.is_off:
            return
        model, story = self._model, self._story
        model.provenance_ = story.told(model, self._lessons.seconds_done)
        position, failures = self._lessons.state(), story.failures.reasons
        kept = Checkpoint(model, position, self._settings, failures, story.before)
        try:
            checkpoint.write(self._plan.path, kept)
            self._is_failing = False
        except ModelFileError as error:
            if not self._is_failing:
                warnings.warn(
                    f"{str(error).rstrip('.')}, so the last checkpoint stays; learning goes on "
                    f"and tries again every {self._plan.every:g} s.",
                    RuntimeWarning,
                    stacklevel=4,
                )
            self._is_failing = True
        self._due = time.monotonic() + self._plan.every
