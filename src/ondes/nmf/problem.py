"""What a frame's activations depend on besides the frame itself; the input of every backend."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from ondes.nmf.divergence import ITAKURA_SAITO, Array, BetaDivergence
from ondes.nmf.penalties import ActivationPenalty

__all__ = ["TRANSFORM_SOLVER", "AbsoluteFloor", "Problem", "Solver", "power"]

# Activations stay above this, in units of a frame's level: a zero could never grow again, and
# numbers far below the noise floor only cost time.
ACTIVATION_FLOOR = 1e-20

# Nor does any step lead beyond this: a component whose row has almost nothing where a frame has all
# would grow, or be extrapolated, until the model overflows.
ACTIVATION_CEILING = 1e15

# Where no entry of a component counts, nothing divided by nothing would be no number.
LEAST_DENOMINATOR = 1e-37

# A smaller rise of the objective per bin causes no restart: near convergence rounding decides every
# comparison, and the path, hence the result, would depend on it.
TOLERATED_RISE = 1e-4

LARGEST_BACKGROUND = 1e30  # activations in the data's units stay within it

MOST_STEPS = 1_000_000  # more would not end

NESTEROV = tuple(n / (n + 2) for n in range(20))


@dataclass(frozen=True)
class Solver:
    """How the activations of a frame are found: by multiplicative steps.

    Attributes
    ----------
    max_steps : int
        At most this many steps per frame.
    exponent : float in (0, 1]
        θ of h ← h · (numerator / denominator)^θ. ½ is the paper's; 1 goes about twice as far.
    momentum : tuple of float
        Step n after a restart starts from h · (h / h_before)^momentum[n]. The first entry is zero
        and the tuple is cycled, so that plain steps recur and limits are stationary. A start that
        raises the objective by more than 1e-4 per bin is dropped, and the cycle restarts. Empty:
        plain steps only.
    tol : float
        A frame is finished when ``Σ_k h_k |numerator_k − denominator_k| / n_bins`` is below this.
        With zero every step is taken, and the result is a smooth function of the frame.

    Examples
    --------
    >>> Solver.paper(max_steps=100)
    Solver(max_steps=100, exponent=0.5, momentum=(), tol=0.0)
    """

    max_steps: int = 10
    exponent: float = 1.0
    momentum: tuple[float, ...] = NESTEROV
    tol: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, Integral) or isinstance(self.max_steps, bool):
            raise TypeError(f"max_steps={self.max_steps!r} of Solver must be a whole number.")
        if not 1 <= self.max_steps <= MOST_STEPS:
            raise ValueError(
                f"max_steps={self.max_steps!r} of Solver must lie between 1 and {MOST_STEPS}."
            )
        if not 0 < self.exponent <= 1:
            raise ValueError(f"exponent={self.exponent!r} of Solver must lie in (0, 1].")
        if self.momentum and self.momentum[0] != 0:
            raise ValueError("momentum of Solver must begin with 0, a plain first step.")
        if not all(0 <= weight < 1 for weight in self.momentum):
            raise ValueError(f"momentum={self.momentum!r} of Solver must lie in [0, 1).")
        if not self.tol >= 0:
            raise ValueError(f"tol={self.tol!r} of Solver must be 0 or more.")

    @classmethod
    def paper(cls, max_steps: int = 100) -> Solver:
        """Plain majorise-minimise steps, as many as `max_steps`."""
        return cls(max_steps=max_steps, exponent=0.5, momentum=(), tol=0.0)


# Of most frames within 1e-3 of the converged divergence; of some, 2e-2 above it.
TRANSFORM_SOLVER = Solver(max_steps=200, tol=1e-3)


@dataclass(frozen=True)
class AbsoluteFloor:
    """A noise floor ε in the data's units, as in the paper: d(ε + v, ε + W h).

    Silent frames are then frames like others, and the result depends on the scale of the data.

    Examples
    --------
    >>> AbsoluteFloor(1e-12)
    AbsoluteFloor(epsilon=1e-12)
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= LARGEST_BACKGROUND:
            raise ValueError(
                f"epsilon={self.epsilon!r} of AbsoluteFloor must lie in "
                f"(0, {LARGEST_BACKGROUND:g}]."
            )


@dataclass(frozen=True)
class Problem:
    """The model y = h · dictionary + background / level + floor, and how to solve for h.

    Attributes
    ----------
    dictionary : array of shape (n_components, n_bins), float64, rows sum to one
    floor : float, ε relative to a frame's level
    solver : Solver
    background : array of shape (n_bins,) in the data's units, or None
    penalty : ActivationPenalty or None
    groups : integer array of shape (n_components,), the group of each component, from 0 on; or None
    divergence : BetaDivergence
    sparsity : float
        λ of the penalty λ Σ_k ‖w_k‖₂ h_k on a levelled frame's activations.
    added : float
        What is added to every frame, in the data's units, before its level is taken.
    feature_weight : array of shape (n_bins,), or None
        What the entries of each bin count; None is 1.
    level_exponent : float
        A frame's terms count by its level to this power, where they are summed over frames.
    """

    dictionary: Array
    floor: float
    solver: Solver
    background: Array | None = None
    penalty: ActivationPenalty | None = None
    groups: Array | None = None
    divergence: BetaDivergence = ITAKURA_SAITO
    sparsity: float = 0.0
    added: float = 0.0
    feature_weight: Array | None = None
    level_exponent: float = 0.0

    @property
    def sparsity_slope(self) -> Array:
        """λ ‖w_k‖₂, what sparsity adds to each component's denominator; shape (n_components,)."""
        slope: Array = self.sparsity * np.sqrt(np.square(self.dictionary).sum(axis=1))
        return slope

    @property
    def group_of(self) -> Array:
        """The group of each component; without groups, each component is its own."""
        return np.arange(len(self.dictionary)) if self.groups is None else self.groups


def power(ratio: Any, exponent: float, xp: Any = np) -> Any:
    """The ratio^θ of a multiplicative step, for arrays and tensors (`xp` is NumPy or PyTorch)."""
    if exponent == 1:
        return ratio
    return xp.sqrt(ratio) if exponent == 0.5 else ratio ** float(exponent)
