"""The dictionary's update: forget, add the new statistics, move, and rescale rows to unit sum.

A penalty on the dictionary would make rescaling change the objective, so with one the unit sum is
a constraint instead: each entry minimises A / w + (B + ν) · w + C · w², and the multiplier ν of
its row is the one that makes the row sum to one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.penalties import DictionaryPenalty
from ondes.nmf.problem import power
from ondes.nmf.statistics import SMALLEST, ArrayOrTensor, Statistics

__all__ = ["penalised_move", "update"]

_BISECTIONS = 200
_NEWTON_STEPS = 60


def update(
    dictionary: ArrayOrTensor,
    past: Statistics,
    new: Statistics,
    factor: ArrayOrTensor,
    *,
    exponent: float,
    n_fixed: int = 0,
    penalty: DictionaryPenalty | None = None,
    is_sparse: bool = False,
    xp: Any = np,
) -> tuple[ArrayOrTensor, Statistics, ArrayOrTensor]:
    """One update, as a function of its arguments alone, for NumPy arrays and PyTorch tensors.

    Of tensors it asks nothing of the host, so that a CUDA graph may record it.

    Parameters
    ----------
    dictionary : array of shape (n_components, n_bins), float64, rows sum to one
    past, new : Statistics
        Those kept so far, and those of the new frames.
    factor : float, or a tensor of one element
        What the past is multiplied by.
    exponent : float in (0, 1]
        θ of w ← w · (A / (w^(2−β) B))^θ; without effect under a penalty.
    n_fixed : int
        The first rows, which never change.
    penalty : DictionaryPenalty, optional
        Arrays only: move to the minimum of the surrogate plus the penalty.
    is_sparse : bool
        Whether the activations are under the sparsity λ Σ ‖w_k‖₂ h_k; see `_sparse_move`.
    xp : module
        ``numpy`` or ``torch``.

    Returns
    -------
    dictionary : array of shape (n_components, n_bins), rows sum to one
    statistics : Statistics
    scale : array of shape (n_components,)
        What the rows were divided by; activations kept from before are to be multiplied by it.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[0.5, 0.5]])
    >>> new = Statistics(np.array([[4.0, 1.0]]), np.ones((1, 2)), 0.0, 1.0)
    >>> dictionary, _, scale = update(rows, Statistics.zeros(1, 2), new, 1.0, exponent=0.5)
    >>> dictionary.round(3), scale
    (array([[0.667, 0.333]]), array([3.]))
    """
    if hasattr(factor, "reshape"):
        factor = factor.reshape(())
    kept = past.faded_into(new, factor)
    before: Any = None
    if penalty is not None:
        moved = penalised_move(dictionary, kept, penalty)
    elif is_sparse:
        moved, before = _sparse_move(dictionary, kept, exponent, xp)
    else:
        moved = _move(dictionary, kept, exponent, xp)
    moved[:n_fixed] = dictionary[:n_fixed]
    scale = moved.sum(axis=1)
    vanished = scale < SMALLEST  # it would be divided by nothing: the row stays what it is
    if xp is not np or vanished.any():
        moved = xp.where(vanished[:, None], dictionary, moved)
        scale = xp.where(vanished, 1.0, scale)
    scale[:n_fixed] = 1  # they sum to one except for rounding, and keep every bit
    dictionary = moved / scale[:, None]
    if is_sparse:
        before[:n_fixed] = 1
        scale = scale * before
    return dictionary, kept.rescale(scale), scale


def _move(
    dictionary: ArrayOrTensor, statistics: Statistics, exponent: float, xp: Any
) -> ArrayOrTensor:
    """w ← w · (A / (w^(2−β) B))^θ, for the paper √(A / B). Entries without statistics stay."""
    curvature = dictionary ** max(2 - statistics.beta, 1) * statistics.denominator
    known = xp.minimum(curvature, statistics.numerator) > 0
    if xp is np and known.all():  # nothing to replace: half the time
        return dictionary * power(statistics.numerator / curvature, exponent)
    safe = xp.where(known, curvature, 1.0)
    ratio = xp.where(known, statistics.numerator, safe) / safe
    return dictionary * power(ratio, exponent, xp)


def _sparse_move(
    dictionary: ArrayOrTensor, statistics: Statistics, exponent: float, xp: Any
) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """The step of Le Roux, Weninger and Hershey (2015) among rows of unit L2 norm.

    With the sparsity λ Σ ‖w_k‖₂ h_k a larger row would be a cheaper one, so the norm of a row is
    no part of the objective: ŵ ← ŵ · ((P + ŵ Σ ŵ N) / (N + ŵ Σ ŵ P))^θ with the two parts P and N
    of the gradient, then rows of unit norm again.
    """
    beta = statistics.beta
    norms = xp.sqrt((dictionary**2).sum(axis=1))
    unit = dictionary / norms[:, None]
    scaled = statistics.rescale(norms)
    known = (scaled.numerator > 0) & (unit > 0)
    safe = xp.where(known, unit, 1.0).clip(SMALLEST)
    data = xp.where(known, scaled.numerator / safe ** (2 - beta), 0.0)
    model = scaled.denominator if beta <= 1 else scaled.denominator * unit ** (beta - 1)
    above = data + unit * (unit * model).sum(axis=1)[:, None]
    below = model + unit * (unit * data).sum(axis=1)[:, None]
    moves = known & (above > 0) & (below > 0)
    ratio = xp.where(moves, above / xp.where(moves, below, 1.0), 1.0)
    moved = unit * power(ratio, exponent, xp)
    return moved / xp.sqrt((moved**2).sum(axis=1))[:, None], norms


def penalised_move(dictionary: Array, statistics: Statistics, penalty: DictionaryPenalty) -> Array:
    """Minimise the accumulated surrogate plus `n_frames` times the penalty's majoriser."""
    linear, quadratic = penalty.majoriser(dictionary)
    known = statistics.numerator.sum(axis=1) > 0
    a = statistics.numerator[known]
    b = (statistics.denominator + statistics.n_frames * linear)[known]
    c = (statistics.n_frames * quadratic)[known]
    moved = dictionary.copy()
    moved[known] = _rows_of_unit_sum(a, b, c)
    return moved


def _rows_of_unit_sum(a: Array, b: Array, c: Array) -> Array:
    # At the sought ν no entry exceeds one: −a/w² + b + ν + 2cw = 0 with w ≤ 1 bounds ν below, and
    # an entry of at least 1/n_bins in each row bounds it above.
    n_bins = a.shape[1]
    # ν absorbs what all bins share; where that is large it would swallow the digits of the rest.
    shared = b.min(axis=1, keepdims=True)
    b = b - np.where(shared > 1e6 * a.max(axis=1, keepdims=True), shared, 0.0)
    low = np.max(a - b - 2 * c, axis=1)
    high = np.max(a * n_bins**2 - b - 2 * c / n_bins, axis=1)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_large = _minimisers(a, b + middle[:, None], c).sum(axis=1) > 1
        low, high = np.where(too_large, middle, low), np.where(too_large, high, middle)
        if np.all(high - low <= 1e-15 * np.maximum(np.abs(low), np.abs(high))):
            break
    rows = np.minimum(_minimisers(a, b + high[:, None], c), 1.0)  # at a pole rounding decides
    unit: Array = rows / rows.sum(axis=1, keepdims=True)
    return unit


def _minimisers(a: Array, b: Array, c: Array) -> Array:
    """The one positive root w of 2c·w³ + b·w² = a, entry by entry; zero where a is zero.

    In x = 1/w it is a·x³ − b·x − 2c = 0: convex beyond its root, so Newton's method from above
    comes down to it without overshooting.
    """
    if not c.any():
        limit = np.where(a > 0, np.inf, 0.0)  # where ν is at the pole of an entry
        return np.sqrt(np.divide(a, b, out=limit, where=b > 0))
    positive_b = np.maximum(b, 0)
    safe_a = np.where(a > 0, a, 1.0)
    x = np.minimum(np.sqrt(positive_b / safe_a) + np.cbrt(2 * c / safe_a), 1 / SMALLEST)
    for _ in range(_NEWTON_STEPS):
        slope = 3 * safe_a * x**2 - b
        following = x - (safe_a * x**3 - b * x - 2 * c) / slope
        if np.all(np.abs(following - x) <= 1e-15 * x):
            break
        x = np.minimum(following, 1 / SMALLEST)
    return np.where(a > 0, 1 / x, 0.0)
