"""How much the past still counts when new frames arrive: one small class per rule.

A rule has one method: `factor(seen, new, total)`, the number by which past statistics are
multiplied before those of `new` frames are added to the `seen` ones. `total` is the size of the
training set where it is known, else None. Every rule here but `ConstantFactor` is per frame: the
same stream in other batches is forgotten at the same rate.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Forgetting(Protocol):
    """The interface of a forgetting rule."""

    def factor(self, seen: float, new: float, total: float | None) -> float:
        """What past statistics are multiplied by."""
        ...


@dataclass(frozen=True)
class GrowingMemory:
    """Weight frame s at time t by (s/t)^power: forget fast at first, and slowly later.

    The weights depend neither on the size of the batches nor on the length of the stream.
    `power=0` forgets nothing.

    Examples
    --------
    >>> GrowingMemory(2.0).factor(seen=100, new=100, total=None)
    0.25
    """

    power: float = 200.0

    def __post_init__(self) -> None:
        if not 0 <= self.power < math.inf:
            raise ValueError(f"power={self.power!r} of GrowingMemory must be 0 or more.")

    def factor(self, seen: float, new: float, total: float | None) -> float:
        """(seen / (seen + new))^power."""
        if self.power == 0 or new == 0:
            return 1.0
        return float((seen / (seen + new)) ** self.power)


@dataclass(frozen=True)
class HalfLife:
    """Halve the weight of a frame every `n_frames` frames: for streams that keep changing.

    Examples
    --------
    >>> HalfLife(1000).factor(seen=5000, new=500, total=None)
    0.7071067811865476
    """

    n_frames: float

    def __post_init__(self) -> None:
        if not self.n_frames > 0:
            raise ValueError(f"n_frames={self.n_frames!r} of HalfLife must be positive.")

    def factor(self, seen: float, new: float, total: float | None) -> float:
        """½^(new / n_frames)."""
        return float(0.5 ** (new / self.n_frames))


@dataclass(frozen=True)
class PerPass:
    """The paper's rule: ρ = r^(β/N), so that one pass over N frames scales the past by r.

    `n_frames` is N; by default it is the number of frames given to `fit` that are not silent.
    `ondes.learn` reads the recordings once more to count them; a cluster counts the silent ones
    too. On a stream, whose N is unknown, the limit N → ∞ is used: ρ = 1, so nothing is forgotten.

    Examples
    --------
    >>> PerPass(0.25).factor(seen=0, new=50, total=100)
    0.5
    """

    r: float = 0.7
    n_frames: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.r <= 1:
            raise ValueError(f"r={self.r!r} of PerPass must lie between 0 and 1.")
        if self.n_frames is not None and self.n_frames < 1:
            raise ValueError(f"n_frames={self.n_frames!r} of PerPass must be 1 or more.")

    def factor(self, seen: float, new: float, total: float | None) -> float:
        """r^(new / N)."""
        n_frames = self.n_frames or total
        if n_frames is None or new == 0:
            return 1.0
        return float(self.r ** (new / n_frames))


@dataclass(frozen=True)
class ConstantFactor:
    """Multiply the past by the same ρ at every update, whatever the number of frames.

    Examples
    --------
    >>> ConstantFactor(0.9).factor(seen=100, new=7, total=None)
    0.9
    """

    rho: float

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= 1:
            raise ValueError(f"rho={self.rho!r} of ConstantFactor must lie between 0 and 1.")

    def factor(self, seen: float, new: float, total: float | None) -> float:
        """The constant ρ; it does not count updates without frames."""
        return self.rho if new else 1.0


def warn_without_total(rule: Forgetting) -> None:
    """Warn where this rule would forget, if only the number of all frames were known."""
    if isinstance(rule, PerPass) and rule.n_frames is None and rule.r < 1:
        warnings.warn(
            f"PerPass(r={rule.r:g}) forgets nothing where the number of all frames is not known: "
            f"give it as PerPass({rule.r:g}, n_frames), or use HalfLife(n_frames).",
            RuntimeWarning,
            stacklevel=3,
        )
