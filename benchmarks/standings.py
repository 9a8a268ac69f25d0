"""Comparisons of learning curves of several seeds, by their median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Curve:
    """Held-out divergence of one run after so many seconds and passes of learning."""

    seconds: np.ndarray
    passes: np.ndarray
    divergence: np.ndarray

    @classmethod
    def of(cls, points: Sequence[Sequence[float | None]]) -> Curve:
        """From rows of seconds, passes and divergence, None where that is not a number."""
        rows = [[np.inf if value is None else value for value in point] for point in points]
        return cls(*np.array(rows, dtype=np.float64).T)

    def at(self, seconds: float) -> float:
        """Between two points, straight in log time; infinite before the first, level after all."""
        if seconds < self.seconds[0]:
            return np.inf
        return float(np.interp(np.log(seconds), np.log(self.seconds), self.divergence))

    def seconds_to(self, divergence: float) -> float:
        """The first time at or below this divergence; infinite if never."""
        reached = np.flatnonzero(self.divergence <= divergence)
        if not len(reached):
            return np.inf
        after = reached[0]
        if after == 0 or not np.isfinite(self.divergence[after - 1]):
            return float(self.seconds[after])
        before = after - 1
        drop = self.divergence[before] - self.divergence[after]
        share = (self.divergence[before] - divergence) / drop
        logs = np.log(self.seconds)
        return float(np.exp(logs[before] + share * (logs[after] - logs[before])))

    @property
    def first_pass_s(self) -> float:
        """When every frame has been visited once; infinite if never."""
        whole = np.flatnonzero(self.passes >= 1)
        return float(self.seconds[whole[0]]) if len(whole) else np.inf


def middle(values: Sequence[float]) -> float:
    """The median, of an even number the worse of two: infinities have no mean."""
    return float(np.sort(values)[len(values) // 2])


def at(curves: Sequence[Curve], seconds: float) -> float:
    return middle([curve.at(seconds) for curve in curves])


def seconds_to(curves: Sequence[Curve], divergence: float) -> float:
    return middle([curve.seconds_to(divergence) for curve in curves])


def end_s(curves: Sequence[Curve]) -> float:
    return middle([float(curve.seconds[-1]) for curve in curves])


def end(curves: Sequence[Curve]) -> float:
    return at(curves, end_s(curves))


@dataclass(frozen=True)
class Loss:
    """A time at which the peer's divergence is lower than ours, by `share` of ours."""

    seconds: float
    ours: float
    peers: float

    @property
    def share(self) -> float:
        return 1 - self.peers / self.ours


def losses(ours: Sequence[Curve], peers: Sequence[Curve]) -> list[Loss]:
    """Every recorded time, from our first pass on, at which the peer is lower than we are."""
    begin = middle([curve.first_pass_s for curve in ours])
    recorded = np.unique(np.concatenate([curve.seconds for curve in (*ours, *peers)]))
    last = max(end_s(ours), end_s(peers))
    compared = [
        Loss(float(seconds), at(ours, seconds), at(peers, seconds))
        for seconds in recorded
        if begin <= seconds <= last
    ]
    return [moment for moment in compared if moment.peers < moment.ours]
