"""The β-divergences, and the one place where a frame's level and floor are defined.

Every frame is divided by its own level, and the noise floor ε is relative to that level. The same
sound at any volume is then the same problem, float32 is safe, and a frame's floor depends on that
frame alone. The Itakura-Saito divergence (β = 0) is invariant to scale anyway; with the others it
makes every frame weigh the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.sparse import SparseFrames

Array = NDArray[Any]

BETA_LOSSES = {"itakura-saito": 0.0, "kullback-leibler": 1.0, "frobenius": 2.0}


class StepTerms(NamedTuple):
    """What a multiplicative step needs of a target v and a model y, bin by bin.

    `data` is v · y^(β−2), `model` is y^(β−1), `cost` the divergence or None.
    """

    data: Any
    model: Any
    cost: Any


@dataclass(frozen=True)
class BetaDivergence:
    """The divergence of index β in [0, 2], for NumPy arrays and PyTorch tensors.

    0 is Itakura-Saito, 1 Kullback-Leibler, 2 half the squared Euclidean distance.

    Examples
    --------
    >>> BetaDivergence.of("kullback-leibler")
    BetaDivergence(beta=1.0)
    >>> BetaDivergence(2.0).value(np.array([[3.0, 1.0]]), np.array([[1.0, 1.0]]))
    array([2.])
    """

    beta: float = 0.0

    @classmethod
    def of(cls, loss: str | float) -> BetaDivergence:
        """The divergence of scikit-learn's name, or of a number; ValueError for any other."""
        if isinstance(loss, str) and loss in BETA_LOSSES:
            return cls(BETA_LOSSES[loss])
        if isinstance(loss, Real) and not isinstance(loss, bool) and 0 <= float(loss) <= 2:
            return cls(float(loss))
        names = ", ".join(map(repr, BETA_LOSSES))
        raise ValueError(f"beta_loss={loss!r} must be one of {names}, or a number from 0 to 2.")

    def step_terms(self, target: Any, model: Any, xp: Any = np, cost: bool = False) -> StepTerms:
        """The terms of a step; `target` and `model` are positive, `xp` is NumPy or PyTorch."""
        each = None
        if self.beta == 0:
            inverse = 1 / model
            ratio = target * inverse
            if cost:
                each = ratio - xp.log(ratio) - 1
            return StepTerms(ratio * inverse, inverse, each)
        if self.beta == 1:
            ratio = target / model
            if cost:
                each = target * xp.log(ratio) - target + model
            return StepTerms(ratio, xp.ones_like(model), each)
        power = model ** (self.beta - 1)
        if cost:
            each = self._each(target, model, power)
        return StepTerms(target * power / model, power, each)

    def value(self, target: Array, model: Array) -> Array:
        """Σ over bins of d(target, model), one float64 value per frame."""
        if self.beta == 0:
            return itakura_saito(target, model)
        each: Array = self.step_terms(target, model, cost=True).cost
        summed: Array = each.sum(axis=1, dtype=np.float64)
        return summed

    def _each(self, target: Any, model: Any, power: Any) -> Any:
        beta = self.beta
        fit = target**beta + (beta - 1) * model * power - beta * target * power
        return fit / (beta * (beta - 1))


ITAKURA_SAITO = BetaDivergence(0.0)


def itakura_saito(target: Array, model: Array) -> Array:
    """d(target, model) = Σ_bins target/model − log(target/model) − 1, one value per frame.

    Parameters
    ----------
    target, model : arrays of shape (n_frames, n_bins), positive everywhere

    Returns
    -------
    array of shape (n_frames,), float64

    Examples
    --------
    >>> import numpy as np
    >>> itakura_saito(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0]]))
    array([0.])
    """
    ratio = target / model
    each: Array = ratio - np.log(ratio) - 1
    summed: Array = each.sum(axis=1, dtype=np.float64)
    return summed


@dataclass(frozen=True)
class LevelledFrames:
    """The non-silent frames, each divided by its level: what a backend works on.

    Of frames given as a tensor, all of these are tensors.

    Attributes
    ----------
    values : array or SparseFrames of shape (n_active, n_bins), float32 or float64, mean near one
    level : array of shape (n_active,), float64; activations times this are in the data's units
    active : boolean array of shape (n_frames,), which of the given frames these are
    """

    values: Any
    level: Array
    active: Array

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Array) -> LevelledFrames:
        level = self.level[rows]
        everything = np.ones(len(level), dtype=bool)
        return LevelledFrames(self.values[rows], level, everything)

    def spread(self, rows: Array) -> Array:
        """One row per given frame, from one per active frame; silent frames get zeros."""
        shape = (len(self.active), *rows.shape[1:])
        if shape[0] == len(rows):
            return rows
        # A tensor makes its zeros itself, on its own device.
        whole: Any = (
            np.zeros(shape, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_zeros(shape)
        )
        whole[self.active] = rows
        spread: Array = whole
        return spread


def levels(frames: Array | SparseFrames, background: Array | None = None) -> Array:
    """The level of each frame: its mean power, plus that of the known background."""
    sums: Any
    if isinstance(frames, SparseFrames):
        sums = frames.sums(frames.values)
    else:
        sums = np.sum(frames, axis=1, dtype=np.float64)
    level: Array = sums / frames.shape[1]
    return level if background is None else level + background.mean()


def level_frames(frames: Array | SparseFrames, background: Array | None = None) -> LevelledFrames:
    """Divide each frame by its level.

    A frame whose level is zero is silent: there is nothing to explain, and it is left out.
    """
    level = levels(frames, background)
    active = level > 0
    if not active.all():
        frames, level = frames[active], level[active]
    if isinstance(frames, SparseFrames):
        shares = np.divide(frames.values, level[frames.rows], dtype=np.float64)
        return LevelledFrames(frames.with_values(shares.astype(frames.dtype)), level, active)
    values = np.divide(frames, level[:, None], dtype=np.float64).astype(frames.dtype)
    return LevelledFrames(values, level, active)
