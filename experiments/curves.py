"""Learning curves: held-out divergence against seconds of learning, on one thread.

A run is the estimator's own `fit`, watched: at moments evenly spaced in log time its dictionary is
set aside, and it stops when its time is up. All scoring comes afterwards, so that the clock counts
learning alone. Seconds are the processor's, which others at work on the machine do not lengthen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import ondes

FIRST_MARK_S = 1e-3
MARK_RATIO = 1.2
UNSTABLE_RISE = 0.05  # above the lowest so far, once every frame has been visited
NEAR = 1.02  # times the lowest: batch's level, below which it creeps
ENDLESS = 10**9  # passes: time is up before


class TimeUpError(Exception):
    """Ends a `fit` from inside."""


@dataclass(frozen=True)
class Snapshot:
    seconds: float
    n_frames: int  # learned from so far, counting every visit
    dictionary: np.ndarray


class Watched(ondes.OnlineISNMF):
    """The estimator itself; `watch` is a `fit` that stops in time and keeps snapshots."""

    def watch(self, frames: Any, seconds: float) -> list[Snapshot]:
        self._budget, self._snapshots, self._mark = seconds, [], FIRST_MARK_S
        # A run that falls apart is a result here, and the curve shows it better than warnings.
        with threadpool_limits(1), np.errstate(all="ignore"), suppress(TimeUpError):
            self.fit(frames)
        if self._snapshots[-1].dictionary is not self.components_:  # it ended by itself
            self._set_aside(time.process_time() - self._started)
        return self._snapshots

    def _begin(self, frames: np.ndarray) -> None:
        self._started = time.process_time()
        super()._begin(frames)
        self._set_aside(time.process_time() - self._started)

    def _absorb(self, statistics: Any, n_frames_in_set: int | None) -> Any:
        moved = super()._absorb(statistics, n_frames_in_set)
        seconds = time.process_time() - self._started
        if seconds >= min(self._mark, self._budget):
            self._set_aside(seconds)
        if seconds >= self._budget:
            raise TimeUpError
        return moved

    def _set_aside(self, seconds: float) -> None:
        self._snapshots.append(Snapshot(seconds, self.n_frames_seen_, self.components_))
        while self._mark <= seconds:
            self._mark *= MARK_RATIO


@dataclass(frozen=True)
class Run:
    """One curve: who learned, from how many frames, and what was reached when."""

    algorithm: str  # "online" (the paper's), "batch" or "default"
    n_frames: int
    seed: int
    beta: int | None = None
    r: float | None = None
    backend: str = ""
    seconds: list[float] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    divergence: list[float | None] = field(default_factory=list)  # None: no number any more

    @property
    def curve(self) -> np.ndarray:
        return np.array([np.inf if each is None else each for each in self.divergence])

    @property
    def end(self) -> float:
        return float(self.curve[-1])

    @property
    def seconds_a_pass(self) -> float:
        learning = self.seconds[-1] - self.seconds[0]
        return float(learning * self.n_frames / self.visited[-1])

    @property
    def is_unstable(self) -> bool:
        """Whether it rises well above its own lowest, once every frame has been visited."""
        later = self.curve[np.array(self.visited) >= self.n_frames]
        lowest = np.minimum.accumulate(later)
        return not np.isfinite(later).all() or bool((later > (1 + UNSTABLE_RISE) * lowest).any())

    def at(self, times: np.ndarray) -> np.ndarray:
        """What the newest dictionary of each time reaches; NaN before there is one."""
        newest = np.searchsorted(self.seconds, times, side="right") - 1
        return np.where(newest >= 0, self.curve[newest], np.nan)


def record(model: Watched, frames: Any, held_out: np.ndarray, seconds: float, **names: Any) -> Run:
    """Learn for so many seconds, then score every snapshot at converged activations."""
    snapshots = model.watch(frames, seconds)
    divergence: list[float | None] = []
    with threadpool_limits(1), np.errstate(all="ignore"):
        for snapshot in snapshots:
            model.components_ = snapshot.dictionary
            reached = -model.score(held_out) if np.isfinite(snapshot.dictionary).all() else np.nan
            divergence.append(float(f"{reached:.6g}") if np.isfinite(reached) else None)
    return Run(
        backend=model.backend_,
        seconds=[float(f"{snapshot.seconds:.5g}") for snapshot in snapshots],
        visited=[snapshot.n_frames for snapshot in snapshots],
        divergence=divergence,
        **names,
    )


def first_dictionary(frames: np.ndarray, n_components: int, seed: int) -> np.ndarray:
    """Random frames: the start that the paper gives to both algorithms alike."""
    return ondes.OnlineISNMF.paper(n_components, random_state=seed).begin(frames).components_


def every_fifth_second(frames: np.ndarray, per_second: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames to learn from and held-out ones: every fifth second.

    Windows overlap by half, so the two frames at a held-out second's edges share samples with
    frames to learn from, and are left out.
    """
    second, place = np.divmod(np.arange(len(frames)), per_second)
    held_out = second % 5 == 4
    inside = (place > 0) & (place < per_second - 1)
    return frames[~held_out], frames[held_out & inside]


# ---- what several seeds say together ----


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest over seeds, at common times."""

    times: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Spread:
        times = between_marks(max(run.seconds[-1] for run in runs))
        values = np.array([run.at(times) for run in runs])
        begun = ~np.isnan(values).any(axis=0)
        times, values = times[begun], values[:, begun]
        middle = np.sort(values, axis=0)[(len(values) - 1) // 2]  # infinities have no mean
        return cls(times, middle, values.min(axis=0), values.max(axis=0))

    @property
    def end(self) -> float:
        return float(self.median[-1])

    def seconds_to(self, level: float) -> float | None:
        """When the median first is at `level` or below; None if never."""
        reached = np.flatnonzero(self.median <= level)
        return float(self.times[reached[0]]) if len(reached) else None


def between_marks(seconds: float) -> np.ndarray:
    """Times half-way between marks, when the snapshot of the last mark is there, and the end."""
    n_marks = int(np.log(seconds / FIRST_MARK_S) / np.log(MARK_RATIO))
    times = FIRST_MARK_S * MARK_RATIO ** (np.arange(n_marks) + 0.5)
    return np.append(times, seconds)


def best_seed(runs: Iterable[Run]) -> Run:
    """The one that ends lowest, which is all that the paper shows."""
    return min(runs, key=lambda run: run.end)


def level_of(batch: Sequence[Run]) -> float:
    """A little above the lowest that batch's median reaches."""
    return NEAR * float(Spread.of(batch).median.min())


def times_faster(batch: Sequence[Run], runs: Sequence[Run]) -> float:
    """Batch's time to its own level, over that of `runs`; 0 if they never get there."""
    level = level_of(batch)
    needed, batch_needed = Spread.of(runs).seconds_to(level), Spread.of(batch).seconds_to(level)
    return 0.0 if needed is None or batch_needed is None else batch_needed / needed


def plain(value: float) -> str:
    """Two digits or more, and no powers of ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def sooner(factor: float) -> str:
    if factor == 0:
        return "never is at batch's level in that time"
    if 0.9 < factor < 1.1:
        return "is at batch's level when batch is"
    if factor < 1:
        return f"is at batch's level {plain(1 / factor)} × later than batch"
    return f"is at batch's level {plain(factor)} × sooner than batch"
