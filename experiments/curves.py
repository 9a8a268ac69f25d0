"""Learning curves: held-out divergence against seconds of learning, on one thread.

A run is the estimator's own `fit` with a callback: at times evenly spaced in log time the
dictionary is kept, and the run stops when its time is up. All scoring comes afterwards, so that the
clock counts learning alone. Seconds are processor time, which other work on the machine does not
lengthen.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone
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


def watch(model: ondes.OnlineNMF, frames: Any, seconds: float) -> list[Snapshot]:
    """Snapshots of a `fit` that stops after so many seconds; the estimator itself is not fitted."""
    snapshots: list[Snapshot] = []
    next_mark = FIRST_MARK_S

    def keep(watched: ondes.OnlineNMF, elapsed: float) -> None:
        nonlocal next_mark
        snapshots.append(Snapshot(elapsed, watched.n_frames_seen_, watched.components_))
        while next_mark <= elapsed:
            next_mark *= MARK_RATIO

    def after_update(watched: ondes.OnlineNMF) -> None:
        elapsed = time.process_time() - started
        if not snapshots:
            keep(initialised, min(initialisation, elapsed))
        if elapsed >= min(next_mark, seconds):
            keep(watched, elapsed)
        if elapsed >= seconds:
            raise TimeUpError

    watched = clone(model)
    # A run that diverges is a result here, and the curve shows it better than warnings.
    with threadpool_limits(1), np.errstate(all="ignore"), suppress(TimeUpError):
        started = time.process_time()
        initialised = clone(model).initialise(_first_array(frames))
        initialisation = time.process_time() - started
        watched.set_params(callback=after_update)
        started = time.process_time()
        watched.fit(frames)
    if snapshots[-1].dictionary is not watched.components_:  # it ended before its time
        keep(watched, time.process_time() - started)
    return snapshots


def _first_array(frames: Any) -> np.ndarray:
    """What `fit` draws the first dictionary from."""
    return frames if isinstance(frames, np.ndarray) else frames[0]


@dataclass(frozen=True)
class Run:
    """One curve: which algorithm, on how many frames, and the divergence reached over time."""

    algorithm: str  # "online" (the paper's), "batch" or "default"
    n_frames: int
    seed: int
    beta: int | None = None
    r: float | None = None
    backend: str = ""
    seconds: list[float] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    divergence: list[float | None] = field(default_factory=list)  # None: not a number

    @property
    def curve(self) -> np.ndarray:
        return np.array([np.inf if each is None else each for each in self.divergence])

    @property
    def end(self) -> float:
        return float(self.curve[-1])

    @property
    def seconds_per_pass(self) -> float:
        learning = self.seconds[-1] - self.seconds[0]
        return float(learning * self.n_frames / self.visited[-1])

    @property
    def is_unstable(self) -> bool:
        """Whether it rises well above its own lowest, once every frame has been visited."""
        later = self.curve[np.array(self.visited) >= self.n_frames]
        lowest = np.minimum.accumulate(later)
        return not np.isfinite(later).all() or bool((later > (1 + UNSTABLE_RISE) * lowest).any())

    def at(self, times: np.ndarray) -> np.ndarray:
        """The divergence of the newest dictionary at each time; NaN before there is one."""
        newest = np.searchsorted(self.seconds, times, side="right") - 1
        return np.where(newest >= 0, self.curve[newest], np.nan)


def record(
    model: ondes.OnlineNMF, frames: Any, held_out: np.ndarray, seconds: float, **names: Any
) -> Run:
    """Learn for so many seconds, then score every snapshot at converged activations."""
    snapshots = watch(model, frames, seconds)
    scored = clone(model).initialise(_first_array(frames))
    divergence: list[float | None] = []
    with threadpool_limits(1), np.errstate(all="ignore"):
        for snapshot in snapshots:
            reached = np.nan
            if np.isfinite(snapshot.dictionary).all():
                scored.restore(replace(scored.state(), components=snapshot.dictionary))
                reached = -scored.score(held_out)
            divergence.append(float(f"{reached:.6g}") if np.isfinite(reached) else None)
    return Run(
        backend=scored.backend_,
        seconds=[float(f"{snapshot.seconds:.5g}") for snapshot in snapshots],
        visited=[snapshot.n_frames for snapshot in snapshots],
        divergence=divergence,
        **names,
    )


Contestant = tuple[ondes.OnlineNMF, Any, dict[str, Any]]  # a model, its frames, what names the run
_waiting: list[tuple[Contestant, np.ndarray, float]] = []  # for the processes that are forked


def record_all(
    contestants: Iterable[Contestant], held_out: np.ndarray, seconds: float, n_jobs: int = 1
) -> list[Run]:
    """`record` each, so many at a time, each in a process and on a thread of its own."""
    _waiting[:] = [(contestant, held_out, seconds) for contestant in contestants]
    numbers = range(len(_waiting))
    if n_jobs == 1:
        return [_recorded(number) for number in numbers]
    with ProcessPoolExecutor(n_jobs, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(_recorded, numbers))


def _recorded(number: int) -> Run:
    (model, frames, names), held_out, seconds = _waiting[number]
    run = record(model, frames, held_out, seconds, **names)
    print(f"{names}: {run.end:.4f}", file=sys.stderr)
    return run


def first_dictionary(frames: np.ndarray, n_components: int, seed: int) -> np.ndarray:
    """Random frames: the start that the paper gives to both algorithms alike."""
    return ondes.OnlineNMF.paper(n_components, random_state=seed).initialise(frames).components_


def every_fifth_second(frames: np.ndarray, per_second: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames to learn from and held-out ones: every fifth second.

    Windows overlap by half, so the two frames at a held-out second's edges share samples with
    frames to learn from, and are left out.
    """
    second, place = np.divmod(np.arange(len(frames)), per_second)
    held_out = second % 5 == 4
    inside = (place > 0) & (place < per_second - 1)
    return frames[~held_out], frames[held_out & inside]


# ---- several seeds together ----


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
    """Times half-way between marks, when the snapshot of the last mark exists, and the end."""
    n_marks = int(np.log(seconds / FIRST_MARK_S) / np.log(MARK_RATIO))
    times = FIRST_MARK_S * MARK_RATIO ** (np.arange(n_marks) + 0.5)
    return np.append(times, seconds)


def best_seed(runs: Iterable[Run]) -> Run:
    """The run that ends lowest, which is all that the paper shows."""
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
        return "never reaches batch's level in that time"
    if 0.9 < factor < 1.1:
        return "reaches batch's level when batch does"
    if factor < 1:
        return f"reaches batch's level {plain(1 / factor)} × later than batch"
    return f"reaches batch's level {plain(factor)} × sooner than batch"
