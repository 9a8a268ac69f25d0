"""Stereo: how each source lies between left and right, found from its masks and used beside them.

A source has one real covariance R_j of the two channels, the same in all bins; m_j is its mask.
With M = Σ m_i R_i, the multichannel Wiener estimate of its image is

    y_j = m_j R_j M⁻¹ x,

and an iteration of expectation maximisation is, with p the power of a bin,

    R_j ← R_j + R_j (Σ m_j² M⁻¹ (x xᴴ − p M) M⁻¹) R_j / Σ m_j p,

where the sums are over bins and frames. Where all sources lie alike, all R_j are the same, and what
is left are the masks. Sums over earlier blocks fade, so a source may move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.models.model import scaled
from ondes.nmf.backends import tensors
from ondes.rebatch import slices

__all__ = ["StereoFilter", "stereo_images"]

Real = NDArray[np.float64]

N_FIRST, N_FOLLOWING = 4, 2  # iterations
MOST_BINS = 512  # that covariances, which are three numbers, are found from
ROWS_AT_A_TIME = 8  # more would leave the caches
EVEN = np.array([1.0, 1.0, 0.0])
DIFFUSE = 0.01  # of a source is everywhere: of places that hardly differ little is made


class StereoFilter:
    """The covariances of sources in stereo, from block to block; arrays may be tensors.

    Parameters
    ----------
    half_life : float
        In frames.

    Attributes
    ----------
    covariances : array of shape (n_sources, 3), or None before any sound
        Of left, of right, and of one with the other; the first two sum to two.

    Examples
    --------
    >>> frames = np.array([[[3.0, 1.0], [0.0, 1.0]]], np.complex64)  # left, and in the middle
    >>> masks = np.array([[[0.9, 0.1]], [[0.1, 0.9]]], np.float32)
    >>> stereo = StereoFilter(half_life=100)
    >>> stereo.learn(frames, masks)
    >>> abs(stereo.covariances).round(1)
    array([[2. , 0. , 0. ],
           [1. , 1. , 0.9]])
    """

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._past: Real | float = 0.0
        self.covariances: Real | None = None

    def learn(self, frames: Any, masks: Any) -> None:
        """Improve the covariances by the next block.

        Parameters
        ----------
        frames : complex array of shape (n, 2, n_bins)
        masks : array of shape (n_sources, n, n_bins)
        """
        step = max(1, -(-frames.shape[2] // MOST_BINS))
        frames, masks = frames[:, :, ::step], masks[:, :, ::step]
        if not len(frames):
            return
        peak = max(float(abs(each).max()) for each in (frames.real, frames.imag))
        if not peak > 0:
            return
        cuts = slices(len(frames), ROWS_AT_A_TIME)
        parts = [_Part(frames[rows] / peak, masks[:, rows]) for rows in cuts]
        weights = _total(part.weights for part in parts)
        past = self._past * 0.5 ** (len(frames) / self._half_life)
        found, n_iterations = self.covariances, N_FOLLOWING
        if found is None:
            found, n_iterations = _normalised(_total(part.sums() for part in parts)), N_FIRST
        total = past
        for _ in range(n_iterations):
            excess = _total(part.excess(found) for part in parts)
            now = weights * found + _between(found, excess)
            total = past + peak**2 * now
            found = _normalised(total)
        self._past, self.covariances = total, found


class _Part:
    """Some rows of a block, few enough for the caches: real products of their channels."""

    def __init__(self, frames: Any, masks: Any) -> None:
        left, right = frames[:, 0], frames[:, 1]
        squares = [each.real**2 + each.imag**2 for each in (left, right)]
        both = left.real * right.real + left.imag * right.imag
        self._products = _stacked([*squares, both]).reshape(3, -1)
        self._power = (self._products[0] + self._products[1]) / 2
        self._masks = masks.reshape(len(masks), -1)
        self._squares = self._masks**2
        self.weights = _on_host(self._masks @ self._power[:, None])

    def sums(self) -> Real:
        """Σ m² x xᴴ of each source."""
        return _on_host(self._squares @ self._products.T)

    def excess(self, covariances: Real) -> Real:
        """Σ m² M⁻¹ (x xᴴ − p M) M⁻¹ of each source."""
        left, right, both = _inverse(covariances, self._masks)
        of_left, of_right, of_both = self._products
        # M⁻¹ x xᴴ − p, row by row
        first = left * of_left + both * of_both - self._power, left * of_both + both * of_right
        second = both * of_left + right * of_both, both * of_both + right * of_right - self._power
        excess = [
            left * first[0] + both * first[1],
            both * second[0] + right * second[1],
            both * first[0] + right * first[1],
        ]
        return _on_host(self._squares @ _stacked(excess).T)


def stereo_images(covariances: Real | None, frames: Any, masks: Any) -> Any:
    """The images of all sources but the last, (n_sources - 1, n, 2, n_bins).

    Parameters
    ----------
    covariances : array of shape (n_sources, 3), or None for even ones
    frames : complex array of shape (n, 2, n_bins)
    masks : array of shape (n_sources, n, n_known)
        As `scaled` takes them: with fewer bins than frames have, the last is of all above.

    Examples
    --------
    >>> frames = np.array([[[3.0, 1.0], [0.0, 1.0]]], np.complex64)
    >>> covariances = np.array([[1.98, 0.02, 0.0], [1.0, 1.0, 0.99]])
    >>> stereo_images(covariances, frames, np.full((2, 1, 2), 0.5, np.float32)).real.round(1)
    array([[[[ 2.9,  0. ],
             [-0. ,  0. ]]]], dtype=float32)
    """
    if covariances is None:
        covariances = np.tile(EVEN, (len(masks), 1))
    left, right, both = _inverse(covariances, masks)
    x, y = frames[:, 0], frames[:, 1]
    images = []
    for mask, place in zip(masks[:-1], covariances[:-1].tolist(), strict=True):
        of_left, of_right, of_both = (mask * each for each in place)
        rows = ((of_left, of_both), (of_both, of_right))
        gains = [(a * left + b * both, a * both + b * right) for a, b in rows]
        images.append(_stacked([scaled(x, of_x) + scaled(y, of_y) for of_x, of_y in gains], 1))
    return _stacked(images) if images else frames[None][:0]


def _inverse(covariances: Real, masks: Any) -> tuple[Any, Any, Any]:
    """M⁻¹ of M = Σ m R: its entries for left, right, and both."""
    pairs = list(zip(masks, covariances.tolist(), strict=True))
    left, right, both = (sum(mask * each[n] for mask, each in pairs) for n in range(3))
    scale = 1 / (left * right - both * both)
    return right * scale, left * scale, -both * scale


def _stacked(arrays: Sequence[Any], axis: int = 0) -> Any:
    if tensors.is_tensor(arrays[0]):
        from ondes.nmf.backends.devices import torch

        return torch.stack(list(arrays), axis)
    return np.stack(arrays, axis)


def _total(sums: Iterable[Real]) -> Real:
    total: Real = np.sum(list(sums), axis=0)
    return total


def _on_host(sums: Any) -> Real:
    return np.array(sums.tolist())


def _between(outer: Real, inner: Real) -> Real:
    """R S R for symmetric matrices, each given by three numbers."""
    whole = [each[:, [0, 2, 2, 1]].reshape(-1, 2, 2) for each in (outer, inner)]
    product = whole[0] @ whole[1] @ whole[0]
    return np.stack([product[:, 0, 0], product[:, 1, 1], product[:, 0, 1]], axis=1)


def _normalised(sums: Real) -> Real:
    """Covariances whose first two numbers sum to two, a little of them everywhere."""
    size = sums[:, :2].sum(axis=1, keepdims=True) / 2
    shares = np.divide(sums, size, out=np.tile(EVEN, (len(sums), 1)), where=size > 0)
    covariances: Real = (1 - DIFFUSE) * shares + DIFFUSE * EVEN
    return covariances
