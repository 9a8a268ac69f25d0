"""Jointly diagonalisable covariances of full rank: FastMNMF2 with variances that are given.

Under the diagonaliser Q of a bin, output m has the variance Σ_n g_nm λ_n: source n with variance
λ_n is spread over the outputs by g_n (Sekiguchi et al., 2020). A room longer than a frame, or noise
at the microphones, puts some of every source into every output, and g says how much.
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


def output_variances(spread: Real, variances: Real) -> Real:
    """Σ_n g_nm λ_n for every output.

    Parameters
    ----------
    spread : array of shape (n_sources, n_channels)
    variances : array of shape (n_sources, n_bins, n_frames)

    Returns
    -------
    array of shape (n_channels, n_bins, n_frames)

    Examples
    --------
    >>> output_variances(np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[[2.0]], [[3.0]]])).ravel()
    array([2., 4.])
    """
    total: Real = np.tensordot(spread.T, variances, 1)
    return total


def expected_power(spread: Real, variances: Real, power: Real) -> Real:
    """The power that each source is estimated to have: λ_n √(Σ_m g_nm p_m / v_m² / Σ_m g_nm / v_m).

    With v the variances of the outputs. It is the target of a multiplicative update of λ_n, and
    λ_n itself where the model explains the power of the outputs.

    Parameters
    ----------
    spread : array of shape (n_sources, n_channels)
    variances : array of shape (n_sources, n_bins, n_frames)
    power : array of shape (n_channels, n_bins, n_frames)
        Of the outputs.

    Returns
    -------
    array of shape (n_sources, n_bins, n_frames)

    Examples
    --------
    >>> expected_power(np.eye(2), np.full((2, 1, 1), 4.0), np.array([[[1.0]], [[4.0]]])).ravel()
    array([2., 4.])
    """
    inverses = 1 / (output_variances(spread, variances) + TINY)
    numerator = np.tensordot(spread, power * inverses * inverses, 1)
    numerator /= np.tensordot(spread, inverses, 1) + TINY
    expected: Real = variances * np.sqrt(numerator)
    return expected


def updated_spread(spread: Real, variances: Real, power: Real) -> Real:
    """One multiplicative update of how each source is spread over the outputs.

    Parameters and shapes as in `expected_power`.

    Examples
    --------
    >>> updated_spread(np.ones((1, 2)), np.full((1, 1, 1), 2.0), np.array([[[2.0]], [[8.0]]]))
    array([[1., 2.]])
    """
    inverses = 1 / (output_variances(spread, variances) + TINY)
    flat = variances.reshape(len(variances), -1)
    n_outputs = len(power)
    numerator = flat @ (power * inverses * inverses).reshape(n_outputs, -1).T
    denominator = flat @ inverses.reshape(n_outputs, -1).T
    updated: Real = spread * np.sqrt(numerator / (denominator + TINY))
    return updated


def soft_images(frames: Frames, diagonaliser: Matrices, spread: Real, variances: Real) -> Frames:
    """Wiener estimates of the images of all sources but the last; with it they sum to the frames.

    Parameters
    ----------
    frames : complex array of shape (n_bins, n_channels, n_frames)
    diagonaliser : complex array of shape (n_bins, n_channels, n_channels)
    spread : array of shape (n_sources, n_channels)
    variances : array of shape (n_sources, n_bins, n_frames)

    Returns
    -------
    complex64 array of shape (n_sources - 1, n_bins, n_channels, n_frames)

    Examples
    --------
    >>> frames = np.array([[[3.0], [1.0]]])
    >>> spread, variances = np.array([[1.0, 0.0], [0.5, 1.0]]), np.array([[[2.0]], [[4.0]]])
    >>> soft_images(frames, np.eye(2)[None], spread, variances)[0, 0, :, 0].real
    array([1.5, 0. ], dtype=float32)
    """
    outputs = np.matmul(diagonaliser, frames).astype(np.complex64)
    mixing = inverse(diagonaliser).astype(np.complex64)
    outputs /= np.moveaxis(output_variances(spread, variances) + TINY, 0, 1)
    images = np.empty((len(variances) - 1, *frames.shape), np.complex64)
    for image, rows, variance in zip(images, spread, variances, strict=False):
        share = variance[:, None] * rows[:, None].astype(np.float32)
        np.matmul(mixing, outputs * share, out=image)
    return images
