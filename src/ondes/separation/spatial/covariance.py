"""Spatial covariances: sums over frames of weighted products between channels.

All products are kept as real numbers, one row per pair of channels: the squared magnitudes, then
the real and imaginary parts of every product x_i x_j* with i < j. Weighted covariances and the
power of any linear combination of channels are then small matrix products.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.signal.stft import Frames

__all__ = ["channel_products", "demixed_power", "weighted_covariances"]

Real = NDArray[np.float32]
Matrices = NDArray[np.complex128]


def channel_products(frames: Frames) -> Real:
    """Products between channels, bin by bin and frame by frame.

    Parameters
    ----------
    frames : complex array of shape (n_bins, n_channels, n_frames)

    Returns
    -------
    float32 array of shape (n_bins, n_channels², n_frames)

    Examples
    --------
    >>> channel_products(np.array([[[1j], [2.0]]], np.complex64))[0, :, 0]
    array([1., 4., 0., 2.], dtype=float32)
    """
    n_bins, n_channels, n_frames = frames.shape
    products = np.empty((n_bins, n_channels**2, n_frames), np.float32)
    np.square(frames.real, out=products[:, :n_channels])
    products[:, :n_channels] += np.square(frames.imag)
    for row, (i, j) in zip(_pair_rows(n_channels), _pairs(n_channels), strict=True):
        product = frames[:, i] * frames[:, j].conj()
        products[:, row], products[:, row + 1] = product.real, product.imag
    return products


def weighted_covariances(products: Real, weights: Real) -> Matrices:
    """Σ_t weights x xᴴ / n_frames for each source and bin.

    Parameters
    ----------
    products : array of shape (n_bins, n_channels², n_frames)
    weights : array of shape (n_sources, n_bins, n_frames)

    Returns
    -------
    complex128 array of shape (n_sources, n_bins, n_channels, n_channels)

    Examples
    --------
    >>> frames = np.array([[[1j], [2.0]]], np.complex64)
    >>> weighted_covariances(channel_products(frames), np.full((1, 1, 1), 0.5))[0, 0]
    array([[0.5+0.j, 0. +1.j],
           [0. -1.j, 2. +0.j]])
    """
    sums = np.matmul(products, np.moveaxis(weights, 0, 2))
    means = np.moveaxis(sums, 2, 0) / float(max(1, products.shape[2]))
    n_channels = round(products.shape[1] ** 0.5)
    covariances = np.empty((*means.shape[:2], n_channels, n_channels), np.complex128)
    for i in range(n_channels):
        covariances[..., i, i] = means[..., i]
    for row, (i, j) in zip(_pair_rows(n_channels), _pairs(n_channels), strict=True):
        covariances[..., i, j] = means[..., row] + 1j * means[..., row + 1]
        covariances[..., j, i] = covariances[..., i, j].conj()
    return covariances


def demixed_power(products: Real, demixing: Matrices) -> Real:
    """The power |w x|² of every row of the demixing matrices.

    Parameters
    ----------
    products : array of shape (n_bins, n_channels², n_frames)
    demixing : complex array of shape (n_bins, n_sources, n_channels)

    Returns
    -------
    float32 array of shape (n_sources, n_bins, n_frames)

    Examples
    --------
    >>> frames = np.array([[[1j], [2.0]]], np.complex64)
    >>> demixed_power(channel_products(frames), np.array([[[2, 1j]]]))
    array([[[16.]]], dtype=float32)
    """
    n_bins, n_sources, n_channels = demixing.shape
    rows = np.empty((n_bins, n_sources, n_channels**2), np.float32)
    rows[..., :n_channels] = np.square(np.abs(demixing))
    for row, (i, j) in zip(_pair_rows(n_channels), _pairs(n_channels), strict=True):
        product = 2 * demixing[..., i] * demixing[..., j].conj()
        rows[..., row], rows[..., row + 1] = product.real, -product.imag
    power = np.moveaxis(np.matmul(rows, products), 1, 0)
    positive: Real = np.maximum(power, np.float32(0), order="C")
    return positive


def _pairs(n_channels: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n_channels) for j in range(i + 1, n_channels)]


def _pair_rows(n_channels: int) -> range:
    return range(n_channels, n_channels**2, 2)
