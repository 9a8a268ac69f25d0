"""Sources in a room, recorded by as many microphones: a demixing matrix in every bin.

Independent low-rank matrix analysis (Kitamura et al., 2016) with models of the sources that are
given, then FastMNMF (Sekiguchi et al., 2020) with the same models, whose covariances have full
rank and are jointly diagonalisable. The models decide which output is which source.

Under the diagonaliser Q of a bin, output m has the variance Σ_n g_nm λ_n: source n with variance
λ_n is spread over the outputs by g_n. A room longer than a frame, or noise at the microphones, puts
some of every source into every output, and g says how much: in each bin, since echoes and the reach
of microphones that are close together differ between frequencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.cores import each
from ondes.models.model import SourceVariances
from ondes.rebatch import slices
from ondes.separation.spatial.demixing import (
    channel_products,
    demixed_power,
    inverse,
    iterative_projection,
    scaled_to_images,
    source_order,
    weighted_covariances,
)
from ondes.signal.stft import Frames

__all__ = [
    "RoomSolver",
    "demixed",
    "expected_power",
    "noise_power",
    "output_variances",
    "soft_images",
    "updated_spread",
]

Real = NDArray[np.float32]
Matrices = NDArray[np.complex128]

DEMIXING_FLOOR, SOFT_FLOOR = np.float32(1e-2), np.float32(1e-4)  # of a bin's mean power
QUIET_FRAMES, QUIET_BINS = 0.05, 0.2  # shares that are taken to hold nothing but noise
FIRST_SPREAD = 0.05
TINY = np.float32(1e-30)
SILENT = np.float32(1e-12)  # of the loudest bin: what float32 cannot tell from zero
N_DEMIXING, N_SOFT = 15, 15  # iterations in a new room
IN_ORDER = (3, 6, 9, 12)  # those that put the outputs of all bins in order
N_FOLLOWING = 2  # iterations in a room that is known
# Where a source has no power, nothing holds its spread, which would overflow after hours.
LEAST_SPREAD, MOST_SPREAD = np.float32(1e-6), np.float32(1e3)
POOLED_FRAMES = np.float32(128)  # for which the mean over all bins counts in each
BINS_AT_ONCE = 64  # by each thread: what more take would leave the caches


class RoomSolver:
    """Separates one block of frames after the other, at constant memory.

    At first, and whenever twice as much was heard, the demixing matrices are found from scratch in
    all frames so far, up to the half-life: 15 iterations with one demixing row per source, whose
    bins are put in order on the way, and 15 with covariances of full rank. So a recording of one
    block is separated by plain iterations over all of it. From then on every block improves the
    matrices by a few iterations, where the weighted covariances of earlier blocks count with the
    half-life: sources may move slowly.

    Parameters
    ----------
    n_sources : int
        As many as channels.
    half_life : float
        In frames.
    n_threads : int
        On which the result does not depend.

    Attributes
    ----------
    demixing : complex array of shape (n_bins, n_sources, n_channels), or None before any sound

    Examples
    --------
    >>> class Flat:
    ...     def start(self, power):
    ...         return np.stack([power, power])
    ...     restart = step = settle = settled_step = lambda self, powers: powers
    >>> frames = np.random.default_rng(0).standard_normal((3, 2, 20)).astype(np.complex64)
    >>> RoomSolver(2, half_life=100).images(frames, Flat()).shape
    (1, 3, 2, 20)
    """

    def __init__(self, n_sources: int, half_life: float, n_threads: int = 1) -> None:
        self._n_sources, self._half_life, self._n_threads = n_sources, half_life, n_threads
        self._heard: Frames | None = None  # of a new room
        self._n_heard = self._n_solved = 0
        self.demixing: Matrices | None = None

    def images(self, frames: Frames, model: SourceVariances) -> Frames:
        """The images of all sources but the last in the next block.

        Parameters
        ----------
        frames : complex64 array of shape (n_bins, n_channels, n_frames)
        model : SourceVariances

        Returns
        -------
        complex64 array of shape (n_sources - 1, n_bins, n_channels, n_frames)
        """
        peak = max(np.abs(frames.real).max(initial=0), np.abs(frames.imag).max(initial=0))
        if not peak > 0:
            return np.zeros((self._n_sources - 1, *frames.shape), np.complex64)
        n_frames = frames.shape[2]
        is_new = self._n_heard < self._half_life
        self._n_heard += n_frames
        if is_new:
            heard = frames if self._heard is None else np.concatenate([self._heard, frames], axis=2)
            self._heard = heard
        else:
            self._heard = None
        if self._heard is not None and self._n_heard >= 2 * self._n_solved:
            variances = self._solve(_Block(self._heard), model)[:, :, -n_frames:]
            self._n_solved = self._n_heard
        else:
            variances = self._follow(_Block(frames), model)
        demixing, spread = self.demixing, self._spread
        assert demixing is not None
        images: Frames
        (images,) = in_bins(
            lambda bins: (
                soft_images(frames[bins], demixing[bins], spread[bins], variances[:, bins]),
            ),
            (1,), len(frames), self._n_threads,
        )  # fmt: skip
        return images

    def _solve(self, block: _Block, model: SourceVariances) -> Real:
        """Find everything from scratch in all frames that were heard; their variances."""
        n_bins, n_channels = len(block.power), block.n_channels
        self._past = _Past(np.zeros((n_channels, n_bins, n_channels, n_channels), np.complex128))
        spread = np.full((self._n_sources, n_channels), FIRST_SPREAD, np.float32)
        np.fill_diagonal(spread, 1)
        self._spread = np.tile(spread, (n_bins, 1, 1))
        floor = DEMIXING_FLOOR * block.level + block.noise
        self.demixing = demixed(block.products, block.power, floor, model, self._n_threads)
        return self._soften(block, model, self.demixing, N_SOFT)

    def _follow(self, block: _Block, model: SourceVariances) -> Real:
        """Improve what was found by the next frames; their variances."""
        assert self.demixing is not None
        self._past = self._past.faded(0.5 ** (block.n_frames / self._half_life))
        return self._soften(block, model, self.demixing, N_FOLLOWING)

    def _soften(
        self, block: _Block, model: SourceVariances, diagonaliser: Matrices, n_iterations: int
    ) -> Real:
        """Iterations of FastMNMF, from what the model makes of every output."""
        floor = SOFT_FLOOR * block.level + block.noise
        n_bins, products, past = len(block.power), block.products, self._past
        powers = demixed_power(products, diagonaliser)
        variances: Real = model.settle(powers) + floor
        together = past.covariances
        for _ in range(n_iterations):
            spread = self._spread

            def expect(bins: slice) -> tuple[Real]:
                given = spread[bins], variances[:, bins], powers[:, bins]  # noqa: B023
                return (expected_power(*given),)

            (target,) = in_bins(expect, (1,), n_bins, self._n_threads)
            variances = model.settled_step(target) + floor
            self._spread = spread = updated_spread(spread, variances, powers)

            def project(bins: slice) -> tuple[Matrices, Matrices, Real]:
                modelled = output_variances(spread[bins], variances[:, bins])  # noqa: B023
                own = weighted_covariances(products[bins], np.reciprocal(modelled + TINY))
                covariances = past.with_block(own, block.n_frames, bins)
                projected = iterative_projection(diagonaliser[bins], covariances)  # noqa: B023
                scaled = scaled_to_images(projected)
                return covariances, scaled, demixed_power(products[bins], scaled)

            together, diagonaliser, powers = in_bins(project, (1, 0, 1), n_bins, self._n_threads)
        self._past = _Past(together, past.n_frames + block.n_frames)
        self.demixing = diagonaliser
        return variances


def in_bins(
    act: Callable[[slice], tuple[Any, ...]], axes: tuple[int, ...], n_bins: int, n_threads: int
) -> tuple[Any, ...]:
    """What `act` makes of some bins after the other, joined along an axis for each result."""
    parts = list(each(act, slices(n_bins, BINS_AT_ONCE), n_threads))
    joined = zip(zip(*parts, strict=True), axes, strict=True)
    return tuple(np.concatenate(results, axis=axis) for results, axis in joined)


def noise_power(power: Real) -> np.float32:
    """The power per bin of white noise at the microphones: what quiet bins have in quiet frames.

    Models that were learned without noise mistake it for sources, and demixing follows. In a quiet
    room this is the end of the echo, which belongs to no place either.

    Parameters
    ----------
    power : array of shape (n_bins, n_frames)
        Frames of digital silence do not count.

    Examples
    --------
    >>> noise_power(np.array([[1.0, 1.0, 9.0, 0.0], [2.0, 8.0, 2.0, 0.0]])).round(1)
    np.float32(1.2)
    """
    heard = power[:, power.any(axis=0)]
    if not heard.size:
        return np.float32(0)
    return np.float32(np.quantile(np.quantile(heard, QUIET_FRAMES, axis=1), QUIET_BINS))


def demixed(
    products: Real, power: Real, floor: Real, model: SourceVariances, n_threads: int = 1
) -> Matrices:
    """Demixing matrices by independent low-rank matrix analysis with a given model.

    Parameters
    ----------
    products : array of shape (n_bins, n_channels², n_frames)
        From `channel_products`.
    power : array of shape (n_bins, n_frames)
        Mean power of the channels.
    floor : array of shape (n_bins, 1)
        Is added to every variance.
    model : SourceVariances
    n_threads : int

    Returns
    -------
    complex128 array of shape (n_bins, n_channels, n_channels)
    """
    n_channels = round(products.shape[1] ** 0.5)
    eye = np.tile(np.eye(n_channels, dtype=np.complex128), (len(products), 1, 1))
    demixing = scaled_to_images(eye)
    variances, powers = model.start(power), demixed_power(products, demixing)
    for iteration in range(N_DEMIXING):
        if iteration in IN_ORDER:
            order = source_order(powers)
            demixing = np.take_along_axis(demixing, order[:, :, None], axis=1)
            powers = np.take_along_axis(powers, order.T[:, :, None], axis=0)
            variances = model.restart(powers)
        elif iteration:
            variances = model.step(powers)

        def project(bins: slice) -> tuple[Matrices, Real]:
            weights = np.reciprocal(variances[:, bins] + floor[bins])  # noqa: B023
            covariances = weighted_covariances(products[bins], weights)
            projected = iterative_projection(demixing[bins], covariances)  # noqa: B023
            scaled = scaled_to_images(projected)
            return scaled, demixed_power(products[bins], scaled)

        demixing, powers = in_bins(project, (0, 1), len(products), n_threads)
    return demixing


class _Block:
    """Frames of any volume, and what stays the same while they are demixed."""

    def __init__(self, frames: Frames) -> None:
        peak = max(np.abs(frames.real).max(), np.abs(frames.imag).max())
        self.products = channel_products(frames / peak)
        self.n_channels, self.n_frames = frames.shape[1:]
        self.power: Real = self.products[:, : self.n_channels].mean(axis=1)
        level = self.power.mean(axis=1, keepdims=True)
        self.level: Real = np.maximum(level, SILENT * level.max())
        self.noise = noise_power(self.power)


@dataclass(frozen=True)
class _Past:
    """Mean weighted covariances of earlier blocks, and for how many frames they count."""

    covariances: Matrices
    n_frames: float = 0.0

    def faded(self, factor: float) -> _Past:
        return _Past(self.covariances, factor * self.n_frames)

    def with_block(self, covariances: Matrices, n_frames: int, bins: slice) -> Matrices:
        """The mean with that of so many frames more, in some bins."""
        share = n_frames / (self.n_frames + n_frames)
        both: Matrices = share * covariances + (1 - share) * self.covariances[:, bins]
        return both


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
