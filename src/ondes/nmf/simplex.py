"""A dictionary's update under a penalty: the surrogate's minimum among rows that sum to one.

A penalty on the dictionary would make rescaling change the objective, so here the unit sum is kept
as a constraint instead. Each entry minimises A / w + (B + ν) · w + C · w², and the multiplier ν of
its row is the one that makes the row sum to one.
"""

from __future__ import annotations

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.penalties import DictionaryPenalty
from ondes.nmf.statistics import Statistics

_BISECTIONS = 200
_NEWTON_STEPS = 60


def penalised_update(
    dictionary: Array, statistics: Statistics, penalty: DictionaryPenalty
) -> Array:
    """Minimise the accumulated surrogate plus `n_frames` times the penalty's majoriser.

    Parameters
    ----------
    dictionary : array of shape (n_components, n_bins), rows sum to one
    statistics : Statistics
    penalty : DictionaryPenalty

    Returns
    -------
    array of shape (n_components, n_bins), rows sum to one; rows never heard stay
    """
    linear, quadratic = penalty.majoriser(dictionary)
    heard = statistics.numerator.sum(axis=1) > 0
    a = statistics.numerator[heard]
    b = (statistics.denominator + statistics.n_frames * linear)[heard]
    c = (statistics.n_frames * quadratic)[heard]
    updated = dictionary.copy()
    updated[heard] = _rows_of_unit_sum(a, b, c)
    return updated


def _rows_of_unit_sum(a: Array, b: Array, c: Array) -> Array:
    # At the sought ν no entry exceeds one: −a/w² + b + ν + 2cw = 0 with w ≤ 1 bounds ν below, and
    # an entry of at least 1/n_bins in each row bounds it above.
    n_bins = a.shape[1]
    low = np.max(a - b - 2 * c, axis=1)
    high = np.max(a * n_bins**2 - b - 2 * c / n_bins, axis=1)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_large = _minimisers(a, b + middle[:, None], c).sum(axis=1) > 1
        low, high = np.where(too_large, middle, low), np.where(too_large, high, middle)
        if np.all(high - low <= 1e-15 * np.maximum(np.abs(low), np.abs(high))):
            break
    rows = _minimisers(a, b + high[:, None], c)
    unit: Array = rows / rows.sum(axis=1, keepdims=True)
    return unit


def _minimisers(a: Array, b: Array, c: Array) -> Array:
    """The one positive root w of 2c·w³ + b·w² = a, entry by entry; zero where a is zero.

    In x = 1/w it is a·x³ − b·x − 2c = 0: convex beyond its root, so Newton's method from above
    comes down to it without overshooting.
    """
    if not c.any():
        return np.sqrt(a / b)
    positive_b = np.maximum(b, 0)
    safe_a = np.where(a > 0, a, 1.0)
    x = np.sqrt(positive_b / safe_a) + np.cbrt(2 * c / safe_a)
    for _ in range(_NEWTON_STEPS):
        slope = 3 * safe_a * x**2 - b
        following = x - (safe_a * x**3 - b * x - 2 * c) / slope
        if np.all(np.abs(following - x) <= 1e-15 * x):
            break
        x = following
    return np.where(a > 0, 1 / x, 0.0)
