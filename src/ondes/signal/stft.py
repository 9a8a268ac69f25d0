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

__all__ = ["InverseStftStream", "Stft", "StftStream", "make_window", "mean_power"]

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
LIVE_FRAME, LOWEST_DELAY = 0.12, 0.01  # seconds, of `Stft.with_delay`
LARGEST_PRIME = 100  # factor of a length whose transform needs no other method


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
    n_synthesis : int, optional
        Length of the part of a frame, at its end, that the inverse uses; all of it if not given.
        The inverse is late by that many samples, while the bins stay as close as `n_fft` makes
        them. A multiple of `hop_length`, twice as large at least, with the window "hann", whose
        rise and fall then differ (Mauler and Martin, 2007).

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
    n_synthesis: int | None = None

    def __init__(
        self,
        n_fft: int = 512,
        hop_length: int | None = None,
        window: str = "hann",
        n_synthesis: int | None = None,
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
        object.__setattr__(self, "n_synthesis", None if n_synthesis is None else int(n_synthesis))
        make_window(window, 1)
        if n_synthesis is not None and not (
            window == "hann" and n_synthesis in range(2 * self.hop_length, n_fft + 1, hop)
        ):
            raise ValueError(
                f"n_synthesis={n_synthesis} must be a multiple of hop_length = {hop}, from two of "
                f"them to n_fft = {n_fft}, with the window 'hann'."
            )

    @classmethod
    def with_delay(cls, seconds: float, sr: int) -> Stft:
        """The transform for live sound whose inverse is late by so many seconds at most.

        Its frames have 120 ms, whatever the delay: with the bins of so short a frame as the delay
        allows, sources are hard to tell apart.

        Parameters
        ----------
        seconds : float
            From 10 ms to 120 ms.
        sr : int
            Sampling rate in Hz.

        Examples
        --------
        >>> Stft.with_delay(0.032, 16000)
        Stft(n_fft=1920, hop_length=160, window='hann', n_synthesis=480)
        """
        if not LOWEST_DELAY <= seconds <= LIVE_FRAME:
            raise ValueError(
                f"delay={seconds!r} must lie between {LOWEST_DELAY} and {LIVE_FRAME} seconds."
            )
        # Of 20 ms and more in hops of 10 ms, which are whole at most rates.
        hop_s = 0.01 if seconds >= 0.02 else LOWEST_DELAY / 2
        hop_length = round(hop_s * sr)
        n_synthesis = int(seconds / hop_s + 1e-9) * hop_length
        return cls(round(LIVE_FRAME / hop_s) * hop_length, hop_length, "hann", n_synthesis)

    @property
    def n_bins(self) -> int:
        """Number of frequencies in a frame."""
        return self.n_fft // 2 + 1

    @property
    def n_padding(self) -> int:
        """Zeros in front of the first sample."""
        return self.n_fft - self.hop_length

    @property
    def delay(self) -> int:
        """Samples that the inverse is late by: the part of a frame that it uses."""
        return self.n_fft if self.n_synthesis is None else self.n_synthesis

    @cached_property
    def window_array(self) -> Samples:
        """The analysis window, shape (n_fft,)."""
        window = make_window(self.window, self.n_fft)
        if self.n_synthesis is not None:
            half = self.n_synthesis // 2
            n_rising = self.n_fft - half
            rising = make_window("hann", 2 * n_rising)[:n_rising]
            falling = make_window("hann", self.n_synthesis)[self.n_synthesis - half :]
            window = np.sqrt(np.concatenate([rising, falling]))
        rounded = window.astype(np.float32)
        rounded.flags.writeable = False
        return rounded

    @cached_property
    def _loud_window(self) -> Samples:
        """The analysis window for a transform that divides by its length, as `spectra` has it."""
        return (self.n_fft * self.window_array.astype(np.float64)).astype(np.float32)

    @cached_property
    def dual_window_array(self) -> NDArray[np.float64]:
        """The synthesis window that makes overlap-add the exact inverse, shape (n_fft,).

        It is zero before the last `delay` samples.
        """
        self.check_invertible()
        dual: NDArray[np.float64]
        if self.n_synthesis is None:
            dual = self.window_array / np.resize(self._summed_squares, self.n_fft)
        else:
            # The product of both windows is a Hann window, which sums to half its overlaps.
            product = make_window("hann", self.n_synthesis) * 2 * self.hop_length / self.n_synthesis
            dual = np.zeros(self.n_fft)
            analysis = self.window_array[-self.n_synthesis :].astype(np.float64)
            np.divide(product, analysis, out=dual[-self.n_synthesis :], where=analysis > 0)
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
        if self.n_synthesis is not None:
            return
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
            same frequencies, except for the rounding of `n_fft` to whole samples; where it must be
            rounded, a length with a large prime factor is avoided.

        Examples
        --------
        >>> Stft(3840, 960).at_rate(44100 / 16000).n_fft
        10584
        >>> Stft(4096, 1024).at_rate(44100 / 16000).n_fft
        11289
        """
        n_fft = _fast_length(self.n_fft * ratio, max(1.0, ratio))  # half a bin at most
        hop_length = max(1, min(n_fft, round(self.hop_length * ratio)))
        n_synthesis = None
        if self.n_synthesis is not None:
            n_synthesis = min(n_fft // hop_length, self.n_synthesis // self.hop_length) * hop_length
        return Stft(n_fft, hop_length, self.window, n_synthesis)

    def n_frames(self, n_samples: int) -> int:
        """Number of frames of a signal of `n_samples` samples."""
        n_covered = n_samples + self.delay - self.hop_length
        return -(-n_covered // self.hop_length) if n_samples else 0

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

    def power(self, samples: ArrayLike, n_bins: int | None = None) -> Samples:
        """Power frames of a whole signal, float32 of shape (n_frames, n_bins): see `mean_power`.

        Parameters
        ----------
        samples : array of shape (n,) or (n, n_channels)
        n_bins : int, optional
            Only the first ones; all by default.

        Examples
        --------
        >>> Stft(n_fft=8).power(np.ones((10, 2))).shape
        (4, 5)
        """
        signal = np.asarray(samples, dtype=np.float32)
        n_frames = self.n_frames(len(signal))
        padded = np.zeros((self.span(n_frames), *signal.shape[1:]), np.float32)
        padded[self.n_padding : self.n_padding + len(signal)] = signal
        shape = n_frames, self.n_bins if n_bins is None else n_bins
        return self.power_within(padded, np.empty(shape, np.float32))

    def power_within(self, samples: Samples, out: Samples) -> Samples:
        """Power frames of the frames that lie wholly in the samples: as many bins as `out` has."""
        # Channel by channel, else every window would gather its own.
        for rows, spectra in self.spectra(self.windows(np.asfortranarray(samples))):
            mean_power(spectra[..., : out.shape[1]], out=out[rows])
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
        return self.transform(self.windows(samples))

    def flush(self) -> Frames:
        """Return the last frames, with zeros after the end, and start over."""
        return self.transform(self.last_windows())

    def windows(self, samples: ArrayLike) -> Samples:
        """Take the next samples; return those under each frame they complete, for `transform`."""
        block = np.asarray(samples, dtype=np.float32)
        if block.shape[1:] != self._channels or block.ndim == 0:
            raise ValueError(
                f"Samples of shape {block.shape} do not fit a stream of (n, *{self._channels})."
            )
        self.n_samples += len(block)
        signal = np.concatenate([self._held, block])
        windows = self.stft.windows(signal)
        self._held = signal[len(windows) * self.stft.hop_length :].copy()
        return windows

    def last_windows(self) -> Samples:
        """Return the samples under the last frames, with zeros after the end, and start over."""
        n_left = self.stft.n_frames(self.n_samples) - self.n_samples // self.stft.hop_length
        length = self.stft.span(n_left)
        padded = np.zeros((length, *self._channels), np.float32)
        padded[: len(self._held)] = self._held[:length]
        self.reset()
        return self.stft.windows(padded)

    def transform(self, windows: Samples) -> Frames:
        """The frames of windows: any rows of them, in any thread."""
        frames = np.empty((*windows.shape[:-1], self.stft.n_bins), np.complex64)
        for rows, spectra in self.stft.spectra(windows):
            frames[rows] = spectra
        return frames


class InverseStftStream:
    """Frames in, samples out by overlap-add; the bits do not depend on how the frames are cut.

    Made by `Stft.inverse_stream`. Without a number of samples, the last `hop_length` are held back
    until `flush`, where the length of the signal is known.
    """

    def __init__(self, stft: Stft, n_channels: int | None = None) -> None:
        self.stft = stft
        self._channels = () if n_channels is None else (n_channels,)
        self._window = stft.dual_window_array[-stft.delay :].astype(np.float32)
        self._n_hops = -(-stft.delay // stft.hop_length)
        self._n_at_once = _rows_at_once((*self._channels, stft.n_fft))
        self.reset()

    def reset(self) -> None:
        """Discard everything pushed so far."""
        hop = self.stft.hop_length
        self.n_samples = 0
        self._unwanted = self.stft.delay - hop
        # The sum of two rounds once in either; of more frames float32 would round at each.
        dtype = np.float32 if self._n_hops <= 2 else np.float64
        self._tail = np.zeros((self._n_hops - 1, *self._channels, hop), dtype)
        self._ready = np.zeros((0, *self._channels), np.float32)

    def push(self, frames: ArrayLike, n_samples: int | None = None) -> Samples:
        """Take the next frames; return the samples that no later frame can change.

        Parameters
        ----------
        frames : array of shape (n_frames, n_bins) or (n_frames, n_channels, n_bins)
        n_samples : int, optional
            How many samples the signal has at least: of these none is held back.
        """
        spectra = np.asarray(frames, dtype=np.complex64)
        if spectra.shape[1:] != (*self._channels, self.stft.n_bins):
            raise ValueError(
                f"Frames of shape {spectra.shape} do not fit a stream of "
                f"(n_frames, *{(*self._channels, self.stft.n_bins)})."
            )
        cuts = slices(len(spectra), self._n_at_once)
        parts = [self.add(self.segments(spectra[rows]), n_samples) for rows in cuts]
        return np.concatenate([np.zeros((0, *self._channels), np.float32), *parts])

    def segments(self, spectra: Frames) -> Samples:
        """What each frame contributes to the signal: of any frames, in any thread."""
        n = len(spectra)
        if n % ROW_GROUP:
            whole = np.zeros((_whole_groups(n), *spectra.shape[1:]), np.complex64)
            whole[:n] = spectra
            spectra = whole
        segments: Samples = fft.irfft(spectra, n=self.stft.n_fft, axis=-1)
        segments = segments[:n, ..., -self.stft.delay :]
        segments *= self._window
        return segments

    def add(self, segments: Samples, n_samples: int | None = None) -> Samples:
        """Take the segments of the next frames; return what `push` returns of them."""
        ready = np.concatenate([self._ready, self._overlap_add(segments)])
        skipped = min(self._unwanted, len(ready))
        self._unwanted -= skipped
        end = max(skipped, len(ready) - self.stft.hop_length)
        if n_samples is not None:
            end = max(skipped, min(len(ready), skipped + n_samples - self.n_samples))
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

    def _overlap_add(self, segments: Samples) -> Samples:
        n, hop, length = len(segments), self.stft.hop_length, self.stft.delay
        n_last = length - (self._n_hops - 1) * hop  # of a frame's last hop, which may be shorter
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
    if spectra.strides[-1] != spectra.itemsize:
        spectra = np.ascontiguousarray(spectra)
    squares = np.square(spectra.view(spectra.real.dtype))
    if spectra.ndim == 2:
        return np.add(squares[:, ::2], squares[:, 1::2], out=out)
    powers: Samples = squares[..., ::2] + squares[..., 1::2]
    # Channel by channel: the order of the sum, and so its bits, never varies.
    power: Samples = np.positive(powers[:, 0], out=out)
    for channel in range(1, powers.shape[1]):
        power += powers[:, channel]
    return power if powers.shape[1] == 1 else np.divide(power, np.float32(powers.shape[1]), power)


def _fast_length(length: float, tolerance: float) -> int:
    """The nearest whole number; another one nearby if that has a large prime factor.

    A transform of 11,290 = 2 · 5 · 1,129 samples takes three times as long as one of 11,289.
    """
    nearest = max(1, round(length))
    if abs(nearest - length) < 1e-6:
        return nearest
    around = range(max(1, math.ceil(length - tolerance)), math.floor(length + tolerance) + 1)
    return min(filter(_is_fast, around), key=lambda each: abs(each - length), default=nearest)


def _is_fast(length: int) -> bool:
    for prime in range(2, LARGEST_PRIME + 1):
        while length % prime == 0:
            length //= prime
    return length == 1


def _rows_at_once(shape: tuple[int, ...]) -> int:
    """How many rows of this shape to transform at a time: whole groups."""
    return max(1, VALUES_AT_ONCE // (ROW_GROUP * math.prod(shape))) * ROW_GROUP


def _whole_groups(n_rows: int) -> int:
    return -(-n_rows // ROW_GROUP) * ROW_GROUP


def make_window(name: str, length: int) -> NDArray[np.float64]:
    """The periodic window of this name, shape (length,); ValueError where there is none.

    Examples
    --------
    >>> make_window("hann", 4)
    array([0. , 0.5, 1. , 0.5])
    """
    turn = 2 * np.pi * np.arange(length) / length
    if length == 1 and name in ("hann", "hamming"):
        return np.ones(1)
    if name == "hann":
        return 0.5 - 0.5 * np.cos(turn)
    if name == "hamming":
        return 0.54 - 0.46 * np.cos(turn)
    if name == "sine":
        return np.sin((turn + np.pi / length) / 2)
    if name == "boxcar":
        return np.ones(length)
    from scipy.signal import get_window  # 2 s to import, so only for rare windows

    try:
        return np.asarray(get_window(name, length), dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"No window is called {name!r}: {error}.") from None
