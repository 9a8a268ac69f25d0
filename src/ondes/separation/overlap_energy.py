"""The energy of many overlap-added signals, without adding a single one of them.

A component that is heard alone is the inverse STFT of its masked frames, and its energy is less
than that of the frames: what neighbouring frames disagree on cancels when they are added. All
components share one array: component k's frames are g_k(t) · u_k(f) · G(t, f). The energy is then
a sum over pairs of neighbouring frames and bins in which the components are one matrix product.

With x(n) = Σ_t d(n − tH) z_t(n − tH) and N bins around the circle,

    Σ_n x(n)² = N⁻² Σ_{t, Δ, f, q} Q_Δ(q) conj(Z_t(f)) Z_{t+Δ}(f + q) · phase,

where Q_Δ is the Fourier transform of d(n) d(n − ΔH). For smooth windows it is negligible but for a
few q, and the phase is one when time is counted from the centre of what two frames share.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends import native
from ondes.nmf.blas_threads import one_blas_thread
from ondes.nmf.divergence import Array
from ondes.rebatch import slices
from ondes.signal.stft import Stft

__all__ = ["OverlapEnergy"]

Spectra = NDArray[np.complex64]

NEGLIGIBLE = 3e-2  # of the largest coefficient; together they change energies by 0.04 dB
MAX_BINS = 12  # apart; only windows that are not smooth reach this
ROWS_AT_ONCE = 64


class OverlapEnergy:
    """Energies of the signals whose frames are g_k(t) · u_k(f) · G(t, f), frame by frame.

    Parameters
    ----------
    shapes : array of shape (n_signals, n_bins), nonnegative
        u; where they are fewer than the transform's bins, G is zero in the others.
    stft : Stft

    Attributes
    ----------
    reach : int
        How many frames before and after it decide a frame's energy.

    Examples
    --------
    >>> samples = np.random.default_rng(0).standard_normal(1000)
    >>> stft = Stft(64, 16)
    >>> frames = stft.forward(samples)
    >>> energies = OverlapEnergy(np.ones((1, 33)), stft).of(np.ones((len(frames), 1)), frames)
    >>> bool(np.isclose(energies.sum(), np.sum(samples**2), rtol=1e-2))
    True
    """

    def __init__(self, shapes: Array, stft: Stft) -> None:
        n_fft, hop = stft.n_fft, stft.hop_length
        self._n_bins = shapes.shape[1]
        self._largest = np.maximum(shapes.max(axis=1, initial=0), 1e-300)
        kernel = [each[: self._n_bins] for each in _kernel(stft)]
        self.reach = len(kernel) - 1
        self._pad = max(len(each) for each in kernel) - 1
        normalised = (shapes.T / self._largest).astype(np.float32, order="C")
        padded = np.pad(normalised, ((self._pad, 0), (0, 0)), mode="reflect")
        bins = np.arange(self._n_bins)
        weights = np.full(self._n_bins, 2.0)
        weights[0] = 1
        if n_fft % 2 == 0 and self._n_bins == stft.n_bins:
            weights[-1] = 1
        self._terms = []
        for delta, coefficients in enumerate(kernel):
            # Time is counted from the centre of what the two frames share.
            turn = np.exp(1j * np.pi * bins * (1 + delta * hop / n_fft))
            turn_later = np.exp(1j * np.pi * bins * (1 - delta * hop / n_fft))
            scale = (2 if delta else 1) / n_fft**2
            factors = (scale * coefficients).astype(np.float32)
            pairs = [padded[self._pad - q :][: self._n_bins] for q in range(len(factors))]
            products = np.stack(
                [c * each * pairs[0] for c, each in zip(factors, pairs, strict=True)]
            )
            turns = ((weights * turn).astype(np.complex64), turn_later.astype(np.complex64))
            self._terms.append((*turns, products))

    def of(self, gains: Array, frames: Array, n_threads: int = 1) -> Array:
        """The energy of each frame of each signal; those of two frames together are halved.

        Parameters
        ----------
        gains : array of shape (n_frames, n_signals)
            g.
        frames : complex array of shape (n_frames, n_bins) or (n_frames, n_channels, n_bins)
            G.
        n_threads : int

        Returns
        -------
        float64 array of shape (n_frames, n_signals)
            Mean over the channels. Summed over all frames, the energy of the signals.
        """
        frames = frames[:, None] if frames.ndim == 2 else frames
        frames = np.ascontiguousarray(frames, np.complex64)
        sum_pairs = native.sum_pairs if native.available() else _sum_pairs
        gains = gains * self._largest
        energies = np.zeros(gains.shape)
        pairs = [
            (delta, rows)
            for delta in range(self.reach + 1)
            for rows in slices(max(0, len(gains) - delta), ROWS_AT_ONCE)
        ]

        def of_pairs(delta: int, rows: slice) -> Array:
            later = slice(rows.start + delta, rows.stop + delta)
            sums = sum_pairs(frames[rows], frames[later], *self._terms[delta])
            each: Array = gains[rows] * gains[later] * sums
            return each

        with one_blas_thread(), ThreadPoolExecutor(n_threads) as pool:
            each_of_pairs = pool.map(lambda pair: of_pairs(*pair), pairs)
            for (delta, rows), each in zip(pairs, each_of_pairs, strict=True):
                energies[rows] += each
                energies[rows.start + delta : rows.stop + delta] += each
        energies /= 2 * frames.shape[1]
        return energies


def _sum_pairs(
    earlier: Spectra, later: Spectra, turn: Spectra, turn_later: Spectra, shapes: Array
) -> Array:
    """What `native.sum_pairs` computes, by NumPy."""
    products = _products(earlier * turn, later * turn_later, len(shapes))
    sums: Array = sum(p @ s for p, s in zip(products, shapes, strict=True))
    return sums


def _products(earlier: Spectra, later: Spectra, n_distances: int) -> NDArray[np.float32]:
    """Re conj(Z_t(f)) Z_t'(f') summed over the channels, (n_distances, n_rows, n_bins).

    For every distance q of two bins, f' is f − q and the other way round. Below the first bin are
    the conjugates of those above.
    """
    n_rows, n_channels, n_bins = earlier.shape
    products = np.zeros((n_distances, n_rows, n_bins), np.float32)
    work = np.empty(n_rows * n_bins, np.float32)
    for channel in range(n_channels):
        for part, mirrored in ((np.real, 1), (np.imag, -1)):
            a = np.ascontiguousarray(part(earlier[:, channel]))
            b = np.ascontiguousarray(part(later[:, channel]))
            for q in range(n_distances):
                lowest = products[q, :, :q] + mirrored * a[:, :q] * b[:, q:0:-1]
                # All rows as one: long loops, and what crosses from row to row is replaced.
                total, n = products[q].reshape(-1)[q:], a.size - q
                total += np.multiply(a.reshape(-1)[q:], b.reshape(-1)[:n], out=work[:n])
                if q:
                    total += np.multiply(a.reshape(-1)[:n], b.reshape(-1)[q:], out=work[:n])
                    products[q, :, :q] = lowest
    return products


def _kernel(stft: Stft) -> list[Array]:
    """For each distance of two frames, Q of the distances 0, 1, ... of two bins that matter."""
    n_fft, hop, dual = stft.n_fft, stft.hop_length, stft.dual_window_array
    kernel = []
    for delta in range(-(-n_fft // hop)):
        shared = dual[delta * hop :] * dual[: n_fft - delta * hop]
        times = np.arange(len(shared)) - len(shared) / 2
        distances = np.arange(min(MAX_BINS, n_fft // 2) + 1)
        kernel.append(np.cos(2 * np.pi * np.outer(distances, times) / n_fft) @ shared)
    matters = [np.abs(each) > NEGLIGIBLE * kernel[0][0] for each in kernel]
    lengths = [int(np.flatnonzero(each)[-1]) + 1 if each.any() else 0 for each in matters]
    n_deltas = 1 + max(delta for delta, length in enumerate(lengths) if length)
    return [each[:length] for each, length in zip(kernel[:n_deltas], lengths, strict=False)]
