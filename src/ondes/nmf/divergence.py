"""The β-divergences, and the one place where a frame's level and floor are defined.

Every frame is divided by its own level, and the noise floor ε is relative to that level. The same
sound at any volume is then the same problem, float32 is safe, and a frame's floor depends on that
frame alone. The Itakura-Saito divergence (β = 0) is invariant to scale anyway; with the others it
makes every frame weigh the same, unless a frame's weight undoes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.sparse import SparseFrames

Array = NDArray[Any]

FRAME_WEIGHTS = 1e-150, 1e150  # what is summed over frames stays within the range of float64

BETA_LOSSES = {"itakura-saito": 0.0, "kullback-leibler": 1.0, "frobenius": 2.0}


class StepTerms(NamedTuple):
    """What a multiplicative step needs of a target v and a model y, bin by bin.

    `data` is v · y^(β−2), `model` is y^(β−1), `cost` the divergence or None.
    """

    data: Any
    model: Any
    cost: Any

    def times(self, weights: Any) -> StepTerms:
        """Each bin by its weight."""
        cost = None if self.cost is None else self.cost * weights
        return StepTerms(self.data * weights, self.model * weights, cost)


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
    weights : array of shape (n_active, n_bins), of the values' type, or None
        What each entry counts, in the objective and in all sums; a missing one is 0 and its value
        is 1. None: all count 1.
    counts : array of shape (n_active,), float64, or None
        How many frames each stands for; None is 1.
    frame_weights : array of shape (n_active,), float64, or None
        What each frame's terms are multiplied by in sums over frames; None is 1.
    """

    values: Any
    level: Array
    active: Array
    weights: Any = None
    counts: Any = None
    frame_weights: Any = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Array) -> LevelledFrames:
        level = self.level[rows]
        everything = np.ones(len(level), dtype=bool)
        each = (self.weights, self.counts, self.frame_weights)
        return LevelledFrames(
            self.values[rows],
            level,
            everything,
            *(None if weights is None else weights[rows] for weights in each),
        )

    @property
    def n_frames(self) -> float:
        """How many frames these stand for."""
        return float(len(self) if self.counts is None else self.counts.sum())

    @property
    def totals(self) -> Any:
        """Σ of the weights of each frame's entries: the number of bins where all count 1."""
        return self.values.shape[1] if self.weights is None else self.weights.sum(axis=1)

    @property
    def largest_weight(self) -> float:
        """Of a frame: what is summed in single precision is divided by it before."""
        has_any = self.frame_weights is not None and len(self)
        return float(self.frame_weights.max()) if has_any else 1.0

    @property
    def relative_weights(self) -> Any:
        """The frames' weights over the largest, in the type of the values; None where all are 1."""
        if self.frame_weights is None or not len(self):
            return None
        return (self.frame_weights / self.largest_weight).astype(self.values.dtype)

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


def levels(
    frames: Array | SparseFrames,
    background: Array | None = None,
    feature_weight: Array | None = None,
) -> Array:
    """The level of each frame: its mean power, plus that of the known background.

    Bins count by their weights, and missing entries, NaN, not at all.
    """
    if isinstance(frames, SparseFrames):
        level = frames.sums(frames.values) / frames.shape[1]
    else:
        level = np.sum(frames, axis=1, dtype=np.float64) / frames.shape[1]
        if feature_weight is not None or np.isnan(level).any():
            return _weighted_levels(frames, entry_weights(frames, feature_weight), background)
    return level if background is None else level + background.mean()


def entry_weights(frames: Array, feature_weight: Array | None = None) -> Array:
    """What each entry counts: the weight of its bin, or 0 where it is missing.

    Examples
    --------
    >>> entry_weights(np.array([[1.0, np.nan]]), np.array([2.0, 2.0]))
    array([[2., 0.]])
    """
    weights = (~np.isnan(frames)).astype(frames.dtype)
    if feature_weight is not None:
        weights *= feature_weight.astype(frames.dtype)
    return weights


def _weighted_levels(frames: Array, weights: Array, background: Array | None) -> Array:
    totals = weights.sum(axis=1, dtype=np.float64)
    sums = np.sum(np.where(np.isnan(frames), 0, frames) * weights, axis=1, dtype=np.float64)
    if background is not None:
        sums += weights @ background
    level: Array = np.divide(sums, totals, out=np.zeros(len(frames)), where=totals > 0)
    return level


def level_frames(
    frames: Array | SparseFrames,
    background: Array | None = None,
    feature_weight: Array | None = None,
    sample_weight: Array | None = None,
    exponent: float = 0.0,
) -> LevelledFrames:
    """Divide each frame by its level.

    A frame whose level is zero is silent: there is nothing to explain, and it is left out, as are
    frames that count nothing. The terms of a frame are weighed by its level to the power of
    `exponent`, times its `sample_weight`.
    """
    level = levels(frames, background, feature_weight)
    active = level > 0
    if sample_weight is not None:
        active &= sample_weight > 0
    if not active.all():
        frames, level = frames[active], level[active]
    counts = None if sample_weight is None else sample_weight[active]
    each = counts, _frame_weights(level, counts, exponent)
    if isinstance(frames, SparseFrames):
        shares = np.divide(frames.values, level[frames.rows], dtype=np.float64)
        frames = frames.with_values(shares.astype(frames.dtype))
        return LevelledFrames(frames, level, active, None, *each)
    values = np.divide(frames, level[:, None], dtype=np.float64).astype(frames.dtype)
    if feature_weight is None and not np.isnan(values.sum()):
        return LevelledFrames(values, level, active, None, *each)
    weights = entry_weights(values, feature_weight)
    values = np.where(np.isnan(values), values.dtype.type(1), values)
    return LevelledFrames(values, level, active, weights, *each)


def _frame_weights(level: Array, counts: Array | None, exponent: float) -> Array | None:
    if exponent == 0:
        return counts
    with np.errstate(over="ignore", under="ignore"):
        weights: Array = np.clip(level**exponent, *FRAME_WEIGHTS)
    return weights if counts is None else weights * counts
