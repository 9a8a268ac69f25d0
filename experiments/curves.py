"""Learning curves: held-out divergence against seconds of learning, on one thread.

A run is the estimator's own `fit` with a callback: at times evenly spaced in log time the
dictionary is kept, and the run stops when its time is up. All scoring comes afterwards, so that the
clock counts learning alone. Seconds are processor time, which other work on the machine does not
lengthen.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from threadpoolctl import threadpool_limits

import ondes

FIRST_MARK_S = 1e-3
MARK_RATIO = 1.2
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
    contestants: Iterable[Contestant],
    held_out: np.ndarray,
    seconds: float,
    n_jobs: int = 1,
    journal: Journal | None = None,
) -> list[Run]:
    """`record` each, so many at a time, each in a process and on a thread of its own.

    Those that the journal has are not made again.
    """
    _waiting[:] = [(contestant, held_out, seconds) for contestant in contestants]
    runs = dict(
        enumerate(journal.find(names) if journal else None for (_, _, names), _, _ in _waiting)
    )
    missing = [number for number, run in runs.items() if run is None]
    with ExitStack() as stack:
        made: Iterable[tuple[int, Run]] = map(_recorded, missing)
        if n_jobs > 1:
            fork = multiprocessing.get_context("fork")
            pool = stack.enter_context(ProcessPoolExecutor(n_jobs, fork))
            futures = [pool.submit(_recorded, number) for number in missing]
            made = (future.result() for future in as_completed(futures))
        for number, run in made:
            runs[number] = run
            if journal:
                journal.keep(run)
    return [run for _, run in sorted(runs.items()) if run is not None]


def _recorded(number: int) -> tuple[int, Run]:
    (model, frames, names), held_out, seconds = _waiting[number]
    run = record(model, frames, held_out, seconds, **names)
    print(f"{names}: {run.end:.4f}", file=sys.stderr)
    return number, run


class Journal:
    """Finished runs, a line each, so that a break loses none; under other conditions none are kept.

    Parameters
    ----------
    path : Path
    conditions : dict
        All that a run depends on, beside what names it.
    """

    def __init__(self, path: Path, conditions: dict[str, Any]) -> None:
        self._path, first = path, json.dumps(conditions)
        lines = path.read_text().splitlines() if path.exists() else []
        if lines[:1] != [first]:
            lines = [first]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(first + "\n")
        self._runs = [Run(**json.loads(line)) for line in lines[1:]]

    def find(self, names: dict[str, Any]) -> Run | None:
        """The run of this name; None where there is none yet."""
        named = (run for run in self._runs if asdict(run).items() >= names.items())
        return next(named, None)

    def keep(self, run: Run) -> None:
        """Add a run."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")


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
