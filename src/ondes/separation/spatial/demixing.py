"""Demixing matrices: found by iterative projection, scaled to images at the microphones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.signal.stft import Frames

__all__ = ["inverse", "iterative_projection", "scaled_to_images", "source_images"]

Matrices = NDArray[np.complex128]

LOADING = 1e-6  # of a covariance's mean power: more than the rounding of float32 sums
SINGULAR = 1e-13
SMALLEST = 1e-200


def inverse(matrices: Matrices) -> Matrices:
    """Inverses of small matrices, (..., n, n); those of a singular one are finite.

    Examples
    --------
    >>> inverse(np.array([[2.0, 1.0], [1.0, 1.0]]))
    array([[ 1., -1.],
           [-1.,  2.]])
    """
    if matrices.shape[-1] == 2:
        a, b, c, d = (matrices[..., i, j] for i in (0, 1) for j in (0, 1))
        determinant = a * d - b * c
        size = np.abs(matrices).max(axis=-1).prod(axis=-1)  # rows may be of any scale
        too_small = np.abs(determinant) <= SINGULAR * size
        determinant = np.where(too_small, SINGULAR * size + SMALLEST, determinant)
        adjugate = np.stack([np.stack([d, -b], axis=-1), np.stack([-c, a], axis=-1)], axis=-2)
        inverted: Matrices = adjugate / determinant[..., None, None]
        return inverted
    try:
        inverted = np.asarray(np.linalg.inv(matrices), np.complex128)
    except np.linalg.LinAlgError:
        inverted = np.asarray(np.linalg.pinv(matrices), np.complex128)
    return inverted


def iterative_projection(demixing: Matrices, covariances: Matrices) -> Matrices:
    """One sweep of iterative projection (IP1): each source's row is updated once.

    Row s becomes the vector that is orthogonal, under its covariance, to what the other rows let
    through (Ono, 2011): w = (W V_s)⁻¹ e_s, scaled so that wᴴ V_s w = 1.

    Parameters
    ----------
    demixing : complex array of shape (n_bins, n_sources, n_channels), square
    covariances : complex array of shape (n_sources, n_bins, n_channels, n_channels)
        Weighted by the inverse variance of each source.

    Returns
    -------
    complex128 array of the shape of `demixing`

    Examples
    --------
    >>> covariances = np.array([[[[1, 0], [0, 4]]], [[[4, 0], [0, 1]]]], complex)
    >>> iterative_projection(np.array([[[1, 0], [0, 1]]], complex), covariances).real.round(3)
    array([[[1., 0.],
            [0., 1.]]])
    """
    demixing = demixing.astype(np.complex128)
    n_channels = demixing.shape[-1]
    mean_power = np.trace(covariances, axis1=-2, axis2=-1).real / n_channels
    loading = LOADING * mean_power + SMALLEST
    loaded = covariances + loading[..., None, None] * np.eye(n_channels)
    for source, covariance in enumerate(loaded):
        row = inverse(demixing @ covariance)[..., source]
        row /= np.abs(row).max(axis=1, keepdims=True) + SMALLEST
        norm = np.einsum("fi,fij,fj->f", row.conj(), covariance, row).real
        least = loading[source] * np.square(np.abs(row)).sum(axis=1)  # rounding may go below
        demixing[:, source] = (row / np.sqrt(np.maximum(norm, least))[:, None]).conj()
    return demixing


def scaled_to_images(demixing: Matrices) -> Matrices:
    """Demixing matrices whose outputs have the mean power of their images at the microphones.

    Parameters
    ----------
    demixing : complex array of shape (n_bins, n_sources, n_channels), square

    Examples
    --------
    >>> scaled_to_images(np.array([[[2.0, 0.0], [0.0, 4.0]]])).round(3)
    array([[[0.707, 0.   ],
            [0.   , 0.707]]])
    """
    power = np.square(np.abs(inverse(demixing))).mean(axis=-2)
    scaled: Matrices = demixing * np.sqrt(power)[..., None]
    return scaled


def source_images(frames: Frames, demixing: Matrices) -> Frames:
    """What each output of the demixing contributes to each channel; they sum to the frames.

    Parameters
    ----------
    frames : complex array of shape (n_bins, n_channels, n_frames)
    demixing : complex array of shape (n_bins, n_sources, n_channels), square

    Returns
    -------
    complex64 array of shape (n_sources, n_bins, n_channels, n_frames)

    Examples
    --------
    >>> frames = np.array([[[3.0], [1.0]]])
    >>> source_images(frames, np.array([[[1, -1], [0, 1]]]))[:, 0, :, 0].real
    array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    outputs = np.matmul(demixing, frames)
    mixing = np.moveaxis(inverse(demixing), 2, 0)
    images: Frames = mixing[..., None] * np.moveaxis(outputs, 1, 0)[:, :, None]
    return images.astype(np.complex64)
