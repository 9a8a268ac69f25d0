"""Short-time Fourier transform and its exact inverse, as streams of float32.

One layout everywhere, rows are time:

=======================  =================================
samples                  frames
=======================  =================================
``(n,)``                 ``(n_frames, n_bins)``
``(n, n_channels)``      ``(n_frames, n_channels, n_bins)``
=======================  =================================

Frame ``i`` spans samples ``i * hop_length - (n_fft - hop_length)`` and the ``n_fft - 1`` after it,
with zeros outside the signal. Each sample thus lies in as many frames at the edges as in the
middle, which makes the inverse exact for every length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from ondes.rebatch import slices
from ondes.signal.windows import make_window

__all__ = ["InverseStftStream", "Stft", "StftStream", "mean_power"]

Samples = NDArray[np.float32]
Frames = NDArray[np.complex64]

VALUES_AT_ONCE = 2**18  # in a transform: more would leave the caches, fewer mean more calls
# Before its version 2, NumPy transforms in float64 alone; SciPy takes long to import.
IS_NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
fft: Any = import_module("numpy.fft" if IS_NUMPY_2 else "scipy.fft")
# The FFT library transforms rows in groups as wide as a vector register and the remainder one by
# one. With whole groups only, a row's bits never depend on how many rows came with it.
ROW_GROUP = 16
# Where the summed squared window is below this fraction of its peak, the inverse would amplify the
# rounding of float32 frames beyond 1e-6 of full scale.
MIN_OVERLAP = 0.08


@dataclass(frozen=True)
class Stft:
    """Settings of a short-time Fourier transform.

    Parameters
    ----------
    n_fft : int
        Length of a frame in samples.
    hop_length : int, optional
        Samples from one frame to the next; ``n_fft // 2`` if not given.
    window : str
        ``"hann"``, ``"hamming"``, ``"sine"``, ``"boxcar"``, or any name that
        `scipy.signal.get_window` knows.

    Examples
    --------
    >>> import numpy as np
    >>> stft = Stft(n_fft=8)
    >>> frames = stft.forward(np.arange(10.0))
    >>> frames.shape
    (4, 5)
    >>> bool(np.allclose(stft.inverse(frames, 10), np.arange(10.0), atol=1e-5))
    True
    """

    n_fft: int = 512
    hop_length: int = 0
    window: str = "hann"

    def __init__(
        self, n_fft: int = 512, hop_length: int | None = None, window: str = "hann"
    ) -> None:
        if not isinstance(window, str):  # a number would be the parameter of a Kaiser window
            raise ValueError(f"window={window!r} must be the name of a window.")
        if n_fft < 1:
            raise ValueError(f"n_fft must be at least 1, not {n_fft}.")
        hop = max(n_fft // 2, 1) if hop_length is None else hop_length
        if not 1 <= hop <= n_fft:
            raise ValueError(f"hop_length must lie between 1 and n_fft = {n_fft}, not {hop}.")
        object.__setattr__(self, "n_fft", int(n_fft))
        object.__setattr__(self, "hop_length", int(hop))
        object.__setattr__(self, "window", window)
        make_window(window, 1)

    @property
    def n_bins(self) -> int:
        """Number of frequencies in a frame."""
        return self.n_fft // 2 + 1

    @property
    def n_padding(self) -> int:
        """Zeros in front of the first sample."""
        return self.n_fft - self.hop_length

    @cached_property
    def window_array(self) -> Samples:
        """The analysis window, shape (n_fft,)."""
        window = make_window(self.window, self.n_fft).astype(np.float32)
        window.flags.writeable = False
        return window

    @cached_property
    def _loud_window(self) -> Samples:
        """The analysis window for a transform that divides by its length, as `spectra` has it."""
        return (self.n_fft * self.window_array.astype(np.float64)).astype(np.float32)

    @cached_property
    def dual_window_array(self) -> NDArray[np.float64]:
        """The synthesis window that makes overlap-add the exact inverse, shape (n_fft,)."""
        self.check_invertible()
        dual: NDArray[np.float64] = self.window_array / np.resize(self._summed_squares, self.n_fft)
        dual.flags.writeable = False
        return dual

    @cached_property
    def _summed_squares(self) -> NDArray[np.float64]:
        squares = np.zeros(-(-self.n_fft // self.hop_length) * self.hop_length)
        squares[: self.n_fft] = np.square(self.window_array, dtype=np.float64)
        summed: NDArray[np.float64] = squares.reshape(-1, self.hop_length).sum(axis=0)
        return summed

    def check_invertible(self) -> None:
        """Raise ValueError unless the frames determine the samples."""
        if self._summed_squares.min() <= MIN_OVERLAP * self._summed_squares.max():
            raise ValueError(
                f"A {self.window} window of n_fft = {self.n_fft} at hop_length = "
                f"{self.hop_length} cannot be inverted: choose a smaller hop_length."
            )

    def at_rate(self, ratio: float) -> Stft:
        """The transform whose frames have the same length and hop in seconds at another rate.

        Parameters
        ----------
        ratio : float
            The other sampling rate, divided by the one of this transform. The first bins are the
            same frequencies, except for the rounding of `n_fft` to whole samples.

        Examples
        --------
        >>> Stft(2048, 512).at_rate(2)
        Stft(n_fft=4096, hop_length=1024, window='hann')
        """
        n_fft = max(1, round(self.n_fft * ratio))
        hop_length = max(1, min(n_fft, round(self.hop_length * ratio)))
        return Stft(n_fft, hop_length, self.window)

    def n_frames(self, n_samples: int) -> int:
        """Number of frames of a signal of `n_samples` samples."""
        return -(-(n_samples + self.n_padding) // self.hop_length) if n_samples else 0

    def span(self, n_frames: int) -> int:
        """Number of samples under `n_frames` consecutive frames."""
        return (n_frames - 1) * self.hop_length + self.n_fft if n_frames > 0 else 0

    def windows(self, samples: NDArray[Any]) -> NDArray[Any]:
        """The samples under each frame that lies wholly in them, (n_frames, ..., n_fft): a view."""
        if len(samples) < self.n_fft:
            return np.empty((0, *samples.shape[1:], self.n_fft), samples.dtype)
        return sliding_window_view(samples, self.n_fft, axis=0)[:: self.hop_length]

    def spectra(self, windows: Samples) -> Iterator[tuple[slice, Frames]]:
        """Transform windows, some rows at a time: pairs of these rows and their frames."""
        n_at_once = _rows_at_once(windows.shape[1:])
        n_rows = min(n_at_once, _whole_groups(len(windows)))
        work = np.zeros((n_rows, *windows.shape[1:]), np.float32)
        for part in slices(len(windows), n_at_once):
            rows = windows[part]
            np.multiply(rows, self._loud_window, out=work[: len(rows)])
            # Where it need not scale, NumPy transforms in float64, which takes four times as long.
            transformed = fft.rfft(work[: _whole_groups(len(rows))], axis=-1, norm="forward")
            yield part, transformed[: len(rows)]

    def power(self, samples: ArrayLike) -> Samples:
        """Power frames of a whole signal, float32 of shape (n_frames, n_bins): see `mean_power`.

        Parameters
        ----------
        samples : array of shape (n,) or (n, n_channels)

        Examples
        --------
        >>> Stft(n_fft=8).power(np.ones((10, 2))).shape
        (4, 5)
        """
        signal = np.asarray(samples, dtype=np.float32)
        n_frames = self.n_frames(len(signal))
        padded = np.zeros((self.span(n_frames), *signal.shape[1:]), np.float32)
        padded[self.n_padding : self.n_padding + len(signal)] = signal
        return self.power_within(padded, np.empty((n_frames, self.n_bins), np.float32))

    def power_within(self, samples: Samples, out: Samples) -> Samples:
        """Power frames, written to `out`, of the frames that lie wholly in the samples."""
        # Channel by channel, else every window would gather its own.
        for rows, spectra in self.spectra(self.windows(np.asfortranarray(samples))):
            mean_power(spectra, out=out[rows])
        return out

    def stream(self, n_channels: int | None = None) -> StftStream:
        """Begin a forward transform; without `n_channels`, of one-dimensional samples."""
        return StftStream(self, n_channels)

    def inverse_stream(self, n_channels: int | None = None) -> InverseStftStream:
        """Begin an inverse transform; without `n_channels`, to one-dimensional samples."""
        return InverseStftStream(self, n_channels)

    def forward(self, samples: ArrayLike) -> Frames:
        """Transform a whole signal.

        Parameters
        ----------
        samples : array of shape (n,) or (n, n_channels)

        Returns
        -------
        complex64 array of shape (n_frames, n_bins) or (n_frames, n_channels, n_bins)
        """
        signal = np.asarray(samples, dtype=np.float32)
        stream = self.stream(signal.shape[1] if signal.ndim > 1 else None)
        return np.concatenate([stream.push(signal), stream.flush()])

    def inverse(self, frames: ArrayLike, n_samples: int | None = None) -> Samples:
        """Undo `forward`.

        Parameters
        ----------
        frames : array of shape (n_frames, n_bins) or (n_frames, n_channels, n_bins)
        n_samples : int, optional
            Length of the signal; if not given, all samples that the frames cover, which may be up
            to ``hop_length - 1`` more than the signal had.

        Returns
        -------
        float32 array of shape (n_samples,) or (n_samples, n_channels)
        """
        spectra = np.asarray(frames, dtype=np.complex64)
        stream = self.inverse_stream(spectra.shape[1] if spectra.ndim > 2 else None)
        return np.concatenate([stream.push(spectra), stream.flush(n_samples)])


class StftStream:
    """Samples in, frames out; the bits do not depend on how the samples are cut into blocks.

    Made by `Stft.stream`.
    """

    def __init__(self, stft: Stft, n_channels: int | None = None) -> None:
        self.stft = stft
        self._channels = () if n_channels is None else (n_channels,)
        self.reset()

    def reset(self) -> None:
        """Discard everything pushed so far."""
        self.n_samples = 0
        self._held = np.zeros((self.stft.n_padding, *self._channels), np.float32)

    def push(self, samples: ArrayLike) -> Frames:
        """Take the next samples, (n,) or (n, n_channels); return the frames they complete."""
        block = np.asarray(samples, dtype=np.float32)
        if block.shape[1:] != self._channels or block.ndim == 0:
            raise ValueError(
                f"Samples of shape {block.shape} do not fit a stream of (n, *{self._channels})."
            )
        self.n_samples += len(block)
        return self._advance(np.concatenate([self._held, block]))

    def flush(self) -> Frames:
        """Return the last frames, with zeros after the end, and start over."""
        n_left = self.stft.n_frames(self.n_samples) - self.n_samples // self.stft.hop_length
        length = self.stft.span(n_left)
        padded = np.zeros((length, *self._channels), np.float32)
        padded[: len(self._held)] = self._held[:length]
        frames = self._advance(padded)
        self.reset()
        return frames

    def _advance(self, signal: Samples) -> Frames:
        windows = self.stft.windows(signal)
        frames = np.empty((*windows.shape[:-1], self.stft.n_bins), np.complex64)
        for rows, spectra in self.stft.spectra(windows):
            frames[rows] = spectra
        self._held = signal[len(windows) * self.stft.hop_length :].copy()
        return frames


class InverseStftStream:
    """Frames in, samples out by overlap-add; the bits do not depend on how the frames are cut.

    Made by `Stft.inverse_stream`. The last `hop_length` samples are held back until `flush`, where
    the length of the signal is known.
    """

    def __init__(self, stft: Stft, n_channels: int | None = None) -> None:
        self.stft = stft
        self._channels = () if n_channels is None else (n_channels,)
        self._window = stft.dual_window_array.astype(np.float32)
        self._n_hops = -(-stft.n_fft // stft.hop_length)
        n_at_once = _rows_at_once((*self._channels, stft.n_fft))
        self._work = np.zeros((n_at_once, *self._channels, stft.n_bins), np.complex64)
        self.reset()

    def reset(self) -> None:
        """Discard everything pushed so far."""
        hop = self.stft.hop_length
        self.n_samples = 0
        self._unwanted = self.stft.n_padding
        # The sum of two rounds once in either; of more frames float32 would round at each.
        dtype = np.float32 if self._n_hops <= 2 else np.float64
        self._tail = np.zeros((self._n_hops - 1, *self._channels, hop), dtype)
        self._ready = np.zeros((0, *self._channels), np.float32)

    def push(self, frames: ArrayLike) -> Samples:
        """Take the next frames; return the samples that no later frame can change."""
        spectra = np.asarray(frames, dtype=np.complex64)
        if spectra.shape[1:] != (*self._channels, self.stft.n_bins):
            raise ValueError(
                f"Frames of shape {spectra.shape} do not fit a stream of "
                f"(n_frames, *{(*self._channels, self.stft.n_bins)})."
            )
        added = [self._overlap_add(spectra[rows]) for rows in slices(len(spectra), len(self._work))]
        ready = np.concatenate([self._ready, *added])
        skipped = min(self._unwanted, len(ready))
        self._unwanted -= skipped
        end = max(skipped, len(ready) - self.stft.hop_length)
        self._ready = ready[end:].copy()
        self.n_samples += end - skipped
        return ready[skipped:end]

    def flush(self, n_samples: int | None = None) -> Samples:
        """Return the last samples, so that the total is `n_samples`, and start over."""
        available = self.n_samples + len(self._ready)
        total = available if n_samples is None else n_samples
        if not self.n_samples <= total <= available:
            raise ValueError(
                f"The frames pushed hold {self.n_samples} to {available} samples, not {total}."
            )
        rest = self._ready[: total - self.n_samples]
        self.reset()
        return rest

    def _overlap_add(self, spectra: Frames) -> Samples:
        n, hop, n_fft = len(spectra), self.stft.hop_length, self.stft.n_fft
        if n % ROW_GROUP:
            self._work[:n] = spectra
            spectra = self._work[: _whole_groups(n)]
        segments = fft.irfft(spectra, n=n_fft, axis=-1)[:n]
        segments *= self._window
        n_last = n_fft - (self._n_hops - 1) * hop  # of a frame's last hop, which may be shorter
        summed = np.zeros((n + self._n_hops - 1, *self._channels, hop), self._tail.dtype)
        summed[: self._n_hops - 1] = self._tail
        # Oldest frame first for every sample, as in the tail: the bits do not depend on the cut.
        for age in reversed(range(self._n_hops)):
            width = n_last if age == self._n_hops - 1 else hop
            summed[age : age + n, ..., :width] += segments[..., age * hop : age * hop + width]
        self._tail = summed[n:].copy()
        samples = summed[:n].astype(np.float32, copy=False)
        return np.moveaxis(samples, 1, -1).reshape(-1, *self._channels)


def mean_power(spectra: Frames, out: Samples | None = None) -> Samples:
    """Squared magnitude of frames, averaged over the channels where there are any.

    Parameters
    ----------
    spectra : complex64 array of shape (n_frames, n_bins) or (n_frames, n_channels, n_bins)
    out : float32 array of shape (n_frames, n_bins), optional
        Where to write the result.

    Examples
    --------
    >>> mean_power(np.array([[[3 + 4j], [1 + 0j]]], dtype=np.complex64))
    array([[13.]], dtype=float32)
    """
    squares = np.square(np.ascontiguousarray(spectra).view(spectra.real.dtype))
    if spectra.ndim == 2:
        return np.add(squares[:, ::2], squares[:, 1::2], out=out)
    powers: Samples = squares[..., ::2] + squares[..., 1::2]
    # Channel by channel: the order of the sum, and so its bits, never varies.
    power: Samples = np.positive(powers[:, 0], out=out)
    for channel in range(1, powers.shape[1]):
        power += powers[:, channel]
    return power if powers.shape[1] == 1 else np.divide(power, np.float32(powers.shape[1]), power)


def _rows_at_once(shape: tuple[int, ...]) -> int:
    """How many rows of this shape to transform at a time: whole groups."""
    return max(1, VALUES_AT_ONCE // (ROW_GROUP * math.prod(shape))) * ROW_GROUP


def _whole_groups(n_rows: int) -> int:
    return -(-n_rows // ROW_GROUP) * ROW_GROUP
