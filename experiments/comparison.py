"""What several runs say together: medians over seeds, and how soon they reach a level.

Nothing here changes what is measured, so a change here makes no result older.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from curves import FIRST_MARK_S, MARK_RATIO, Run

UNSTABLE_RISE = 0.05  # above the lowest so far, once every frame has been visited
PAPER_BETA, PAPER_R = 1000, 0.7  # the paper's choice
NEAR = 1.02  # times the lowest: batch's level, below which it creeps


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

    @property
    def last_half(self) -> float:
        """By what share the median fell in the second half of the time."""
        middle = np.searchsorted(self.times, self.times[-1] / 2, side="right") - 1
        before = self.median[max(middle, 0)]
        return float(1 - self.end / before) if np.isfinite(self.end) else np.nan

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


def fallen(runs: Sequence[Run]) -> str:
    """By how much the median fell in the second half of the time."""
    share = Spread.of(runs).last_half
    return "" if np.isnan(share) else f"{max(share, 0):.1%}"


def sooner(factor: float) -> str:
    if factor == 0:
        return "never reaches batch's level in that time"
    if 0.9 < factor < 1.1:
        return "reaches batch's level when batch does"
    if factor < 1:
        return f"reaches batch's level {plain(1 / factor)} × later than batch"
    return f"reaches batch's level {plain(factor)} × sooner than batch"


def is_unstable(run: Run) -> bool:
    """Whether it rises well above its own lowest, once every frame has been visited."""
    later = run.curve[np.array(run.visited) >= run.n_frames]
    lowest = np.minimum.accumulate(later)
    return not np.isfinite(later).all() or bool((later > (1 + UNSTABLE_RISE) * lowest).any())


def setting_name(beta: int, r: float) -> str:
    return f"β = {beta:,}, r = {r:g}"


class Grid:
    """The results of one set, as figures and claims need them."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.name: str = results["settings"]["name"]
        self.n_train: int = results["n_train"]
        self.betas: list[int] = [beta or self.n_train for beta in results["settings"]["betas"]]
        self.rs: list[float] = results["settings"]["rs"]
        self._cells: dict[tuple[Any, ...], list[Run]] = {}
        for each in (Run(**stored) for stored in results["runs"]):
            self._cells.setdefault((each.algorithm, each.beta, each.r), []).append(each)

    @cached_property
    def batch(self) -> list[Run]:
        return self._cells["batch", None, None]

    @cached_property
    def default(self) -> list[Run]:
        return self._cells["default", None, None]

    def cell(self, beta: int, r: float) -> list[Run]:
        return self._cells["online", beta, r]

    @cached_property
    def cells(self) -> list[tuple[int, float]]:
        return [(beta, r) for beta in self.betas for r in self.rs]

    @property
    def online_betas(self) -> list[int]:
        """Those with at least two updates in a pass: N and what is close to it is batch."""
        return [beta for beta in self.betas if 2 * beta <= self.n_train]

    @property
    def online_cells(self) -> list[tuple[int, float]]:
        return [(beta, r) for beta, r in self.cells if beta in self.online_betas]

    @property
    def ends(self) -> dict[str, float]:
        """Where batch and every cell end, by name."""
        cells = {setting_name(beta, r): self.end(beta, r) for beta, r in self.cells}
        return {"batch": Spread.of(self.batch).end} | cells

    @property
    def papers_choice(self) -> list[Run]:
        return self.cell(PAPER_BETA, PAPER_R)

    def end(self, beta: int, r: float) -> float:
        return Spread.of(self.cell(beta, r)).end

    def is_unstable(self, beta: int, r: float) -> bool:
        """Whether any seed is."""
        return any(is_unstable(run) for run in self.cell(beta, r))

    def times_faster(self, runs: Sequence[Run]) -> float:
        return times_faster(self.batch, runs)

    def beta_name(self, beta: int) -> str:
        return "N" if beta == self.n_train else f"{beta:,}"


class Large:
    """The results of the large set, as its figure and the claims need them."""

    name = "large"

    def __init__(self, results: dict[str, Any]) -> None:
        self.n_train: int = results["n_train"]
        self.minutes: int = results["minutes"]
        self.settings_of_online: list[tuple[int, float]] = [
            (beta, r) for beta, r in results["settings"]["online"]
        ]
        self._runs = [Run(**stored) for stored in results["runs"]]

    @property
    def ends(self) -> dict[str, float]:
        """Where batch on each subset and the paper's settings end, by name."""
        batches = {f"batch on {amount(self, n)}": runs for n, runs in self.batches.items()}
        online = {setting_name(*each): self.online(*each) for each in self.settings_of_online}
        return {name: Spread.of(runs).end for name, runs in (batches | online).items()}

    @property
    def default(self) -> list[Run]:
        return [run for run in self._runs if run.algorithm == "default"]

    @property
    def papers_choice(self) -> list[Run]:
        return self.online(PAPER_BETA, PAPER_R)

    def online(self, beta: int, r: float) -> list[Run]:
        return [run for run in self._runs if (run.beta, run.r) == (beta, r)]

    @property
    def batches(self) -> dict[int, list[Run]]:
        """Runs of batch by the size of their subset, the smallest first."""
        found = [run for run in self._runs if run.algorithm == "batch"]
        sizes = sorted({run.n_frames for run in found})
        return {size: [run for run in found if run.n_frames == size] for size in sizes}

    @property
    def best_batch(self) -> int:
        """The size of the subset on which batch ends lowest."""
        ends = {size: Spread.of(runs).end for size, runs in self.batches.items()}
        return min(ends, key=lambda size: ends[size])

    def times_faster(self, runs: Sequence[Run], n_frames: int) -> float:
        """How much sooner `runs` reach the level of batch on a subset of `n_frames`."""
        return times_faster(self.batches[n_frames], runs)


def amount(compared: Large, size: int) -> str:
    return f"all {size:,} frames" if size == compared.n_train else f"{size:,} frames"
