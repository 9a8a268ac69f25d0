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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends import tensors

__all__ = ["StereoFilter", "stereo_images"]

Real = NDArray[np.float64]

N_FIRST, N_FOLLOWING = 4, 2  # iterations
MOST_BINS = 1024  # that covariances are found from: they are three numbers
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
        step = max(1, frames.shape[2] // MOST_BINS)
        left, right, masks = frames[:, 0, ::step], frames[:, 1, ::step], masks[:, :, ::step]
        peak = max(float(abs(each).max()) for each in (left, right)) if len(frames) else 0.0
        if not peak > 0:
            return
        left, right = left / peak, right / peak
        power = (abs(left) ** 2 + abs(right) ** 2) / 2
        weights = np.array([float((mask * power).sum()) for mask in masks])
        past = self._past * 0.5 ** (len(frames) / self._half_life)
        found, n_iterations = self.covariances, N_FOLLOWING
        if found is None:
            found, n_iterations = _normalised(_sums(left, right, masks**2)), N_FIRST
        total = past
        for _ in range(n_iterations):
            whitened = _whitened(left, right, *_total(found, masks))
            inverse = _inverse(*_total(found, masks))
            excess = _sums(*whitened, masks**2) - _weighted(masks**2, power, inverse)
            now = weights[:, None] * found + _between(found, excess)
            total = past + peak**2 * now
            found = _normalised(total)
        self._past, self.covariances = total, found


def stereo_images(covariances: Real | None, frames: Any, masks: Any) -> Any:
    """The images of all sources but the last, (n_sources - 1, n, 2, n_bins).

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
    stack: Any = np.stack
    if tensors.is_tensor(frames):
        from ondes.nmf.backends.devices import torch

        stack = torch.stack
    left, right = _whitened(frames[:, 0], frames[:, 1], *_total(covariances, masks))
    places = zip(masks[:-1], covariances[:-1].tolist(), strict=True)
    images = [
        stack([mask * (own_left * left + both * right), mask * (both * left + own_right * right)])
        for mask, (own_left, own_right, both) in places
    ]
    if not images:
        return frames[None][:0]
    return stack(images).swapaxes(1, 2)


def _total(covariances: Real, masks: Any) -> tuple[Any, Any, Any]:
    """M = Σ m R: its entries for left, right, and both."""
    pairs = list(zip(masks, covariances.tolist(), strict=True))
    left, right, both = (sum(mask * each[n] for mask, each in pairs) for n in range(3))
    return left, right, both


def _inverse(left: Any, right: Any, both: Any) -> tuple[Any, Any, Any]:
    determinant = left * right - both * both
    return right / determinant, left / determinant, -both / determinant


def _whitened(x: Any, y: Any, left: Any, right: Any, both: Any) -> tuple[Any, Any]:
    """M⁻¹ times the channels x and y."""
    scale = 1 / (left * right - both * both)
    return scale * (right * x - both * y), scale * (left * y - both * x)


def _sums(left: Any, right: Any, weights: Any) -> Real:
    """Σ weights x xᴴ of each source."""
    products = abs(left) ** 2, abs(right) ** 2, (left * right.conj()).real
    return np.array([[float((w * each).sum()) for each in products] for w in weights])


def _weighted(weights: Any, power: Any, entries: tuple[Any, Any, Any]) -> Real:
    return np.array([[float((w * power * each).sum()) for each in entries] for w in weights])


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
