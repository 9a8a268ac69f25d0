"""The permutation problem: which output is which source, in every bin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["source_order"]

Real = NDArray[np.float32]


def source_order(power: Real) -> NDArray[np.intp]:
    """The outputs of every bin in the order in which they rise and fall with the whole sources.

    A source is active in all bins at about the same time. In each bin, the share of the power that
    every output has is correlated over time with the mean share over all bins.

    Parameters
    ----------
    power : array of shape (n_sources, n_bins, n_frames)
        Of the outputs, most bins of which are in order already.

    Returns
    -------
    integer array of shape (n_bins, n_sources)
        Output ``order[f, s]`` of bin f belongs to source s.

    Examples
    --------
    >>> talk = np.array([1, 0, 1, 0, 0.1])
    >>> power = np.stack([np.stack([talk, talk, 1 - talk]), np.stack([1 - talk, 1 - talk, talk])])
    >>> source_order(power)
    array([[0, 1],
           [0, 1],
           [1, 0]])
    """
    total = power.sum(axis=0)
    share = power / (total + np.float32(1e-30))
    of_bin = np.sqrt(total.sum(axis=1))
    activity = np.einsum("sft,f->st", share, of_bin, optimize=True)
    activity -= activity.mean(axis=1, keepdims=True)
    weight = np.sqrt(total)
    weight /= weight.sum(axis=1, keepdims=True) + np.float32(1e-30)
    share -= share.mean(axis=2, keepdims=True)
    correlation = np.matmul(np.moveaxis(share * weight, 0, 1), activity.T)
    return _assigned(correlation.astype(np.float64))


def _assigned(score: NDArray[np.float64]) -> NDArray[np.intp]:
    """For each of many (output, source) tables of scores, the outputs with the highest sum."""
    n_bins, n_sources, _ = score.shape
    order = np.tile(np.arange(n_sources), (n_bins, 1))
    if n_sources == 2:
        is_swapped = score[:, 1, 0] + score[:, 0, 1] > score[:, 0, 0] + score[:, 1, 1]
        order[is_swapped] = (1, 0)
        return order
    from scipy.optimize import linear_sum_assignment

    for row, table in enumerate(score):
        order[row] = linear_sum_assignment(table.T, maximize=True)[1]
    return order
