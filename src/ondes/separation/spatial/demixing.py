"""Demixing matrices: found by iterative projection, scaled to images at the microphones.

Spatial covariances are sums over frames of weighted products between channels. All products are
kept as real numbers, one row per pair of channels: the squared magnitudes, then the real and
imaginary parts of every product x_i x_j* with i < j. Weighted covariances and the power of any
linear combination of channels are then small matrix products.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.signal.stft import Frames

__all__ = [
    "assigned",
    "channel_products",
    "demixed_power",
    "inverse",
    "iterative_projection",
    "scaled_to_images",
    "source_order",
    "weighted_covariances",
]

Real = NDArray[np.float32]
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
    return assigned(correlation.astype(np.float64))


def assigned(score: NDArray[np.float64]) -> NDArray[np.intp]:
    """For each of many (output, source) tables of scores, the outputs with the highest sum.

    Examples
    --------
    >>> assigned(np.array([[[0.1, 0.9], [0.3, 0.4]]]))
    array([[1, 0]])
    """
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
