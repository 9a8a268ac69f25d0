"""Panned stereo: every source stands at an angle between left and right, in both channels alike.

An angle of 0° is left, 45° the centre, 90° right: amplitudes cos θ and sin θ. The sources' angles
are peaks in the histogram of all bins; their variances come from the sources' models, and each
image is the multichannel Wiener estimate.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from ondes.models.model import SourceVariances
from ondes.signal.stft import Frames

__all__ = [
    "PanSolver",
    "panned_power",
    "panning_covariances",
    "panning_histogram",
    "panning_peaks",
    "wiener_images",
]

Real = NDArray[np.float32]

N_DEGREES = 90
IN_PHASE = 0.95  # cosine of the phase difference
NEAREST_PEAKS = 8  # degrees
SMOOTHING = np.array([1, 2, 3, 2, 1]) / 9.0
LEAST_PEAK = 0.02  # of the highest one
LEAST_MARGIN = 0.25  # of a source's share around its own peak, over that around others
AT_PEAK, LEAST_AT_PEAKS = 3.0, 0.5  # degrees; share of the histogram so close to its peaks
DIFFUSE = 1e-3  # of a source is everywhere
N_UPDATES = 5
FLOOR = np.float32(1e-4)  # of a bin's mean power
TINY = np.float32(1e-30)


class PanSolver:
    """Separates one block of stereo frames after the other; the histogram fades.

    Parameters
    ----------
    n_sources : int
    half_life : float
        In frames.

    Attributes
    ----------
    angles : array of shape (n_sources,), or None before any sound
        In degrees; NaN where places were not found: then the variances alone separate.
    """

    def __init__(self, n_sources: int, half_life: float) -> None:
        self._n_sources, self._half_life = n_sources, half_life
        self._histograms = np.zeros((n_sources, N_DEGREES))  # each source's share of the bins
        self._has_warned = False
        self.angles: NDArray[np.float64] | None = None

    def images(self, frames: Frames, model: SourceVariances) -> Frames:
        """The images of all sources but the last in the next block.

        Parameters
        ----------
        frames : complex64 array of shape (n_bins, 2, n_frames)
        model : SourceVariances

        Returns
        -------
        complex64 array of shape (n_sources - 1, n_bins, 2, n_frames)
        """
        peak = max(np.abs(frames.real).max(initial=0), np.abs(frames.imag).max(initial=0))
        if not peak > 0:
            return np.zeros((self._n_sources - 1, *frames.shape), np.complex64)
        frames = frames / peak
        power: Real = np.square(np.abs(frames)).mean(axis=1)
        level = power.mean(axis=1, keepdims=True)
        floor = FLOOR * np.maximum(level, np.float32(1e-12) * level.max())
        modelled = model.start(power)
        variances: Real = modelled + floor
        self._histograms *= 0.5 ** (frames.shape[2] / self._half_life)
        self._histograms += panning_histogram(frames, variances / variances.sum(axis=0))
        self.angles = self._matched_angles()
        covariances = panning_covariances(self.angles)
        if np.isnan(self.angles).any():
            variances = modelled + np.float32(1e-12) * floor
        else:
            for _ in range(N_UPDATES):
                target = panned_power(frames, covariances, variances)
                variances = model.settled_step(target) + floor
        images = wiener_images(frames, covariances, variances)[:-1]
        images *= peak
        return images

    def _matched_angles(self) -> NDArray[np.float64]:
        """A peak for each source: the one around which it has the largest share, by far."""
        from scipy.optimize import linear_sum_assignment

        peaks = panning_peaks(self._histograms.sum(axis=0), self._n_sources)
        nowhere = np.full(self._n_sources, np.nan)
        if len(peaks) < self._n_sources:
            return self._warned(nowhere)
        away = np.abs(np.arange(N_DEGREES)[:, None] + 0.5 - peaks)
        at_peaks = self._histograms[:, away.min(axis=1) <= AT_PEAK].sum()
        if at_peaks < LEAST_AT_PEAKS * self._histograms.sum():
            return self._warned(nowhere)
        nearest = away.argmin(axis=1)
        around = np.stack([self._histograms[:, nearest == n].sum(1) for n in range(len(peaks))], 1)
        around /= around.sum(axis=0) + 1e-300
        rows, columns = linear_sum_assignment(around, maximize=True)
        own = around[rows, columns]
        elsewhere = (around.sum(axis=1) - own) / max(1, len(peaks) - 1)
        if len(peaks) > 1 and (own - elsewhere).min() < LEAST_MARGIN:
            return self._warned(nowhere)
        angles = nowhere
        angles[rows] = peaks[columns]
        return angles

    def _warned(self, nowhere: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self._has_warned:
            warnings.warn(
                "spatial='pan' found no places that fit the dictionaries; only the dictionaries "
                "are used, as with 'none'.",
                stacklevel=2,
            )
        self._has_warned = True
        return nowhere


def panning_histogram(frames: Frames, shares: Real) -> NDArray[np.float64]:
    """Histogram of atan2(|right|, |left|) over the bins whose channels are in phase.

    Parameters
    ----------
    frames : complex array of shape (n_bins, 2, n_frames)
    shares : array of shape (n_sources, n_bins, n_frames)
        How much of each bin belongs to each source.

    Returns
    -------
    array of shape (n_sources, 90)
        One value per degree. A bin counts as the root of its power, relative to that of its
        frequency.

    Examples
    --------
    >>> frames = np.array([[[1.0], [1.0]]])
    >>> panning_histogram(frames, np.ones((1, 1, 1)))[0].argmax()
    np.int64(45)
    """
    left, right = frames[:, 0], frames[:, 1]
    size = np.abs(left), np.abs(right)
    power = np.square(size[0]) + np.square(size[1])
    in_phase = (left * right.conj()).real >= IN_PHASE * size[0] * size[1]
    weight = np.sqrt(power / (power.mean(axis=1, keepdims=True) + TINY)) * (in_phase & (power > 0))
    degree = np.degrees(np.arctan2(size[1], size[0])).astype(np.intp)
    degree = np.minimum(degree, N_DEGREES - 1).ravel()
    return np.stack([np.bincount(degree, (weight * share).ravel(), N_DEGREES) for share in shares])


def panning_peaks(histogram: NDArray[np.float64], n_peaks: int) -> NDArray[np.float64]:
    """The highest peaks of a histogram of degrees, at least 8° apart; fewer where there are none.

    Examples
    --------
    >>> histogram = np.zeros(90)
    >>> histogram[[20, 22, 65]] = 3, 2, 1
    >>> panning_peaks(histogram, 2).tolist()
    [20.5, 65.5]
    """
    padded = np.pad(histogram, len(SMOOTHING) // 2, mode="edge")
    smooth = np.convolve(padded, SMOOTHING, mode="valid")
    is_top = (smooth >= np.roll(smooth, 1)) & (smooth >= np.roll(smooth, -1))
    is_top[0], is_top[-1] = smooth[0] >= smooth[1], smooth[-1] >= smooth[-2]
    peaks: list[int] = []
    for degree in np.argsort(-smooth, kind="stable"):
        enough = smooth[degree] > LEAST_PEAK * smooth.max(initial=0)
        if is_top[degree] and enough and all(abs(degree - each) >= NEAREST_PEAKS for each in peaks):
            peaks.append(int(degree))
    return np.array(sorted(peaks[:n_peaks])) + 0.5


def panning_covariances(angles: NDArray[np.float64]) -> Real:
    """Rank-one covariances of sources at these angles, and a little of them everywhere.

    Parameters
    ----------
    angles : array of shape (n_sources,)
        In degrees; a source at NaN is everywhere.

    Returns
    -------
    float32 array of shape (n_sources, 2, 2)

    Examples
    --------
    >>> panning_covariances(np.array([0.0, np.nan]))[:, 0, 0]
    array([1.001, 0.5  ], dtype=float32)
    """
    turn = np.radians(angles)
    places = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    rank_one = places[:, :, None] * places[:, None] + DIFFUSE * np.eye(2)
    nowhere = np.isnan(angles)[:, None, None]
    return np.where(nowhere, np.eye(2) / 2, rank_one).astype(np.float32)


def panned_power(frames: Frames, covariances: Real, variances: Real) -> Real:
    """The power that each source is estimated to have: λ √(xᴴ V⁻¹ R V⁻¹ x / tr(V⁻¹ R)), V = Σ λ R.

    Parameters
    ----------
    frames : complex array of shape (n_bins, 2, n_frames)
    covariances : array of shape (n_sources, 2, 2)
        R of each source.
    variances : array of shape (n_sources, n_bins, n_frames)
        λ of each source.

    Returns
    -------
    array of shape (n_sources, n_bins, n_frames)
    """
    inverse = _inverse_total(covariances, variances)
    left, right = _whitened(frames, inverse)
    a, b, d = inverse
    powers = np.empty_like(variances)
    for power, (row, other), variance in zip(powers, covariances, variances, strict=True):
        explained = row[0] * np.square(np.abs(left)) + other[1] * np.square(np.abs(right))
        explained += 2 * row[1] * (left * right.conj()).real
        trace = row[0] * a + other[1] * d + 2 * row[1] * b
        power[:] = variance * np.sqrt(np.maximum(explained, 0) / (trace + TINY))
    return powers


def wiener_images(frames: Frames, covariances: Real, variances: Real) -> Frames:
    """λ R V⁻¹ x of each source, V = Σ λ R: they sum to the frames.

    Parameters as in `panned_power`.

    Returns
    -------
    complex64 array of shape (n_sources, n_bins, 2, n_frames)

    Examples
    --------
    >>> frames, both = np.array([[[1.0], [1.0]]]), np.ones((2, 1, 1), np.float32)
    >>> images = wiener_images(frames, panning_covariances(np.array([0.0, 90.0])), both)
    >>> images[0, 0, :, 0].real.round(2)
    array([1., 0.], dtype=float32)
    """
    left, right = _whitened(frames, _inverse_total(covariances, variances))
    images = np.empty((len(variances), *frames.shape), np.complex64)
    for image, (row, other), variance in zip(images, covariances, variances, strict=True):
        image[:, 0] = variance * (row[0] * left + row[1] * right)
        image[:, 1] = variance * (other[0] * left + other[1] * right)
    return images


def _inverse_total(covariances: Real, variances: Real) -> tuple[Real, Real, Real]:
    """Three entries of the symmetric inverse of V = Σ λ R, each of shape (n_bins, n_frames)."""
    a, b, d = (
        np.tensordot(covariances[:, i, j], variances, 1) for i, j in ((0, 0), (0, 1), (1, 1))
    )
    determinant = np.maximum(a * d - b * b, np.float32(1e-7) * a * d) + TINY
    return d / determinant, -b / determinant, a / determinant


def _whitened(frames: Frames, inverse: tuple[Real, Real, Real]) -> tuple[Frames, Frames]:
    a, b, d = inverse
    left, right = frames[:, 0], frames[:, 1]
    return a * left + b * right, b * left + d * right
