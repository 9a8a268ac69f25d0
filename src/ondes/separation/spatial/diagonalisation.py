"""Jointly diagonalisable covariances of full rank: FastMNMF with variances that are given.

Under the diagonaliser Q of a bin, output m has the variance Σ_n g_nm λ_n: source n with variance
λ_n is spread over the outputs by g_n (Sekiguchi et al., 2020). A room longer than a frame, or noise
at the microphones, puts some of every source into every output, and g says how much: in each bin,
since echoes and the reach of microphones that are close together differ between frequencies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.separation.spatial.demixing import inverse
from ondes.signal.stft import Frames

__all__ = ["expected_power", "output_variances", "soft_images", "updated_spread"]

Real = NDArray[np.float32]
Matrices = NDArray[np.complex128]

TINY = np.float32(1e-30)
# Where a source has no power, nothing holds its spread, which would overflow after hours.
LEAST_SPREAD, MOST_SPREAD = np.float32(1e-6), np.float32(1e3)
POOLED_FRAMES = np.float32(128)  # for which the mean over all bins counts in each


def output_variances(spread: Real, variances: Real) -> Real:
    """Σ_n g_nm λ_n for every output.

    Parameters
    ----------
    spread : array of shape (n_bins, n_sources, n_channels)
    variances : array of shape (n_sources, n_bins, n_frames)

    Returns
    -------
    array of shape (n_channels, n_bins, n_frames)

    Examples
    --------
    >>> spread = np.array([[[1.0, 0.5], [0.0, 1.0]]])
    >>> output_variances(spread, np.array([[[2.0]], [[3.0]]])).ravel()
    array([2., 4.])
    """
    return _in_each_bin(np.swapaxes(spread, 1, 2), variances)


def expected_power(spread: Real, variances: Real, power: Real) -> Real:
    """The power that each source is estimated to have: λ_n √(Σ_m g_nm p_m / v_m² / Σ_m g_nm / v_m).

    With v the variances of the outputs. It is the target of a multiplicative update of λ_n, and
    λ_n itself where the model explains the power of the outputs.

    Parameters
    ----------
    spread : array of shape (n_bins, n_sources, n_channels)
    variances : array of shape (n_sources, n_bins, n_frames)
    power : array of shape (n_channels, n_bins, n_frames)
        Of the outputs.

    Returns
    -------
    array of shape (n_sources, n_bins, n_frames)

    Examples
    --------
    >>> spread, power = np.eye(2)[None], np.array([[[1.0]], [[4.0]]])
    >>> expected_power(spread, np.full((2, 1, 1), 4.0), power).ravel()
    array([2., 4.])
    """
    inverses: Real = np.reciprocal(output_variances(spread, variances) + TINY)
    weighted: Real = power * inverses * inverses
    numerator = _in_each_bin(spread, weighted)
    numerator /= _in_each_bin(spread, inverses) + TINY
    expected: Real = variances * np.sqrt(numerator)
    return expected


def updated_spread(spread: Real, variances: Real, power: Real) -> Real:
    """One multiplicative update of how each source is spread over the outputs.

    Parameters and shapes as in `expected_power`. A bin has few frames to tell its spread from, so
    the mean over all bins counts in each like 128 frames more.

    Examples
    --------
    >>> spread, power = np.ones((1, 1, 2)), np.array([[[2.0]], [[8.0]]])
    >>> updated_spread(spread, np.full((1, 1, 1), 2.0), power)
    array([[[1., 2.]]])
    """
    inverses: Real = np.reciprocal(output_variances(spread, variances) + TINY)
    weighted: Real = power * inverses * inverses
    of_bins = np.moveaxis(variances, 0, 1)
    ratio = _pooled(of_bins, np.moveaxis(weighted, 0, 2))
    ratio /= _pooled(of_bins, np.moveaxis(inverses, 0, 2)) + TINY
    updated: Real = np.clip(spread * np.sqrt(ratio), LEAST_SPREAD, MOST_SPREAD)
    return updated


def soft_images(frames: Frames, diagonaliser: Matrices, spread: Real, variances: Real) -> Frames:
    """Wiener estimates of the images of all sources but the last; with it they sum to the frames.

    Parameters
    ----------
    frames : complex array of shape (n_bins, n_channels, n_frames)
    diagonaliser : complex array of shape (n_bins, n_channels, n_channels)
    spread : array of shape (n_bins, n_sources, n_channels)
    variances : array of shape (n_sources, n_bins, n_frames)

    Returns
    -------
    complex64 array of shape (n_sources - 1, n_bins, n_channels, n_frames)

    Examples
    --------
    >>> frames = np.array([[[3.0], [1.0]]])
    >>> spread, variances = np.array([[[1.0, 0.0], [0.5, 1.0]]]), np.array([[[2.0]], [[4.0]]])
    >>> soft_images(frames, np.eye(2)[None], spread, variances)[0, 0, :, 0].real
    array([1.5, 0. ], dtype=float32)
    """
    outputs = np.matmul(diagonaliser, frames).astype(np.complex64)
    mixing = inverse(diagonaliser).astype(np.complex64)
    outputs /= np.moveaxis(output_variances(spread, variances) + TINY, 0, 1)
    images = np.empty((len(variances) - 1, *frames.shape), np.complex64)
    for source, image in enumerate(images):
        share = variances[source, :, None] * spread[:, source, :, None].astype(np.float32)
        np.matmul(mixing, outputs * share, out=image)
    return images


def _in_each_bin(matrices: Real, values: Real) -> Real:
    """Matrices of every bin, (n_bins, m, n), times values of shape (n, n_bins, n_frames)."""
    shape = (matrices.shape[1], *values.shape[1:])
    product: Real = np.empty(shape, np.result_type(matrices, values))
    np.matmul(matrices, np.moveaxis(values, 0, 1), out=np.moveaxis(product, 0, 1))
    return product


def _pooled(left: Real, right: Real) -> Real:
    """Products of every bin, sums over frames, and some of their mean."""
    sums = left @ right
    pooled: Real = sums + POOLED_FRAMES / max(1, left.shape[2]) * sums.mean(axis=0)
    return pooled
