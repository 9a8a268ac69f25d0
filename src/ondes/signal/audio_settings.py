"""How recordings become frames, and which frames are silent; models keep the settings.

A frame is silent where it lies far below the loudest frame so far of its own recording.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.signal.stft import Stft

__all__ = ["AudioSettings", "Loudest", "is_active", "loudest_of", "merge"]

FramesT = TypeVar("FramesT")  # an array or a tensor

SPECTRA = ("power", "magnitude")
MIN_SR, MAX_SR = 100, 10**6
MAX_DB = 300  # more than single precision tells apart
# Of half the lower rate: soxr changes levels by 0.01 dB up to 0.92, by 3 dB at 0.95, by 60 at 0.99,
# and the window spreads each frequency over its neighbours.
PASSBAND = 0.9


@dataclass(frozen=True)
class AudioSettings:
    """How recordings become frames.

    Parameters
    ----------
    sr : int
        Samples per second that every recording is resampled to.
    stft : Stft
    top_db : float or None
        Frames this many decibels below the loudest frame so far of their recording are silent: they
        are left out, and so are frames of zeros. None keeps every frame.
    spectrum : {"power", "magnitude"}
        The values of a frame: the mean power of the channels, or its square root. Which frames are
        silent depends on power in either case.
    fmax : float or None
        The highest frequency in Hz that counts. A resampled recording lacks the highest tenth of
        its band and one at another rate has it, so frames should end below: see `passband`. None
        is half of `sr`, which is right where every recording has this rate.

    Examples
    --------
    >>> AudioSettings(22050, Stft(512)).n_bins, AudioSettings(22050, Stft(512), fmax=9922.5).n_bins
    (257, 231)
    """

    sr: int
    stft: Stft
    top_db: float | None = 60.0
    spectrum: str = "power"
    fmax: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sr, Integral) or not MIN_SR <= self.sr <= MAX_SR:
            raise ValueError(
                f"sr={self.sr!r} must be a whole number of samples per second from {MIN_SR} to "
                f"{MAX_SR}."
            )
        if not isinstance(self.stft, Stft):
            raise ValueError(f"stft={self.stft!r} must be an Stft.")
        if self.top_db is not None and not _is_level(self.top_db):
            raise ValueError(
                f"top_db={self.top_db!r} must be a positive number of decibels up to {MAX_DB}, or "
                "None to keep every frame."
            )
        if self.spectrum not in SPECTRA:
            raise ValueError(f"spectrum={self.spectrum!r} must be 'power' or 'magnitude'.")
        if self.fmax is not None and not (_is_number(self.fmax) and 0 < self.fmax <= self.sr / 2):
            raise ValueError(
                f"fmax={self.fmax!r} must be a positive frequency of at most half of sr={self.sr}, "
                "or None for that."
            )
        object.__setattr__(self, "sr", int(self.sr))
        is_all = self.fmax is None or self.fmax == self.sr / 2
        object.__setattr__(self, "fmax", None if is_all else float(self.fmax))
        object.__setattr__(self, "top_db", None if self.top_db is None else float(self.top_db))

    @property
    def n_bins(self) -> int:
        """Bins of a frame, and so of a dictionary: those of the transform up to `fmax`."""
        if self.fmax is None:
            return self.stft.n_bins
        return min(self.stft.n_bins, _n_bins_up_to(self.fmax, self.stft.n_fft, self.sr))

    def bins_of_rate(self, sr: float) -> int:
        """Bins of a frame that a recording of this rate has: the others are missing.

        Of one with the rate asked for, or a higher one, all.

        Examples
        --------
        >>> audio = AudioSettings(16000, Stft(1600), fmax=7200)
        >>> [audio.bins_of_rate(sr) for sr in (44100, 16000, 8000)]
        [721, 721, 361]
        """
        if sr >= self.sr:
            return self.n_bins
        return min(self.n_bins, _n_bins_up_to(passband(sr), self.stft.n_fft, self.sr))

    def mark_missing(self, frames: FramesT, sr: float) -> FramesT:
        """Frames of a recording of this rate, NaN in what it does not have; changed in place."""
        marked: Any = frames
        marked[..., self.bins_of_rate(sr) :] = np.nan
        return frames

    def frames(self, samples: ArrayLike) -> NDArray[np.float32]:
        """All frames of a signal at `sr`, silent ones included.

        Parameters
        ----------
        samples : array of shape (n,) or (n, n_channels)

        Returns
        -------
        float32 array of shape (n_frames, n_bins)

        Examples
        --------
        >>> audio = AudioSettings(8000, Stft(8), spectrum="magnitude")
        >>> audio.frames(np.ones((10, 2))).shape
        (4, 5)
        """
        power = self.stft.power(samples, self.n_bins)
        return self.from_power(power, out=power)

    def from_power(
        self, power: NDArray[np.float32], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Frames from their power: the same array, or its square root, written to `out` if given.

        Examples
        --------
        >>> AudioSettings(8000, Stft(2), spectrum="magnitude").from_power(np.array([[4.0, 9.0]]))
        array([[2., 3.]])
        """
        return power if self.spectrum == "power" else np.sqrt(power, out=out)


def passband(sr: float) -> float:
    """The highest frequency that resampling to a rate leaves as it is.

    Examples
    --------
    >>> passband(16000)
    7200.0
    """
    return PASSBAND * sr / 2


def _n_bins_up_to(frequency: float, n_fft: int, sr: int) -> int:
    return math.floor(frequency * n_fft / sr + 1e-6) + 1


def _is_level(value: object) -> bool:
    return _is_number(value) and 0 < value <= MAX_DB  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


Loudest = dict[int, float]  # by recording: the energy of its loudest frame so far
Files = int | NDArray[np.intp]


def loudest_of(energies: NDArray[Any], files: Files) -> Loudest:
    """The energy of the loudest frame of each recording.

    Parameters
    ----------
    energies : array of shape (n_frames,), float32, or float64 where the range must be wider
    files : int or array of shape (n_frames,)
        The recording of all frames, or of each.

    Examples
    --------
    >>> loudest_of(np.array([1, 4, 2], np.float32), np.array([7, 7, 3]))
    {3: 2.0, 7: 4.0}
    """
    numbers, which = _numbered(energies, files)
    peaks = np.zeros(len(numbers), energies.dtype)
    np.maximum.at(peaks, which, energies)
    return dict(zip(numbers.tolist(), peaks.tolist(), strict=True))


def merge(before: Loudest, new: Loudest) -> Loudest:
    """The loudest so far, with new frames.

    Examples
    --------
    >>> merge({3: 2.0, 7: 4.0}, {3: 1.0, 5: 6.0})
    {3: 2.0, 7: 4.0, 5: 6.0}
    """
    return before | {file: max(before.get(file, 0.0), energy) for file, energy in new.items()}


def is_active(
    energies: NDArray[Any], files: Files, loudest: Loudest, top_db: float | None
) -> NDArray[np.bool_]:
    """Which frames are less than `top_db` decibels below the loudest of their recording.

    Frames of zeros never are. With ``top_db=None`` every frame is active, zeros included.

    Parameters
    ----------
    energies : array of shape (n_frames,), float32, or float64 where the range must be wider
    files : int or array of shape (n_frames,)
        The recording of all frames, or of each.
    loudest : dict of int to float
        By recording; those of `files` must be in it.
    top_db : float or None

    Examples
    --------
    >>> is_active(np.array([3, 0.1, 0.01], np.float32), 0, {0: 3.0}, 20.0).tolist()
    [True, True, False]
    """
    if top_db is None:
        return np.ones(len(energies), np.bool_)
    numbers, which = _numbered(energies, files)
    peaks = np.array([loudest[file] for file in numbers.tolist()], np.float64)
    mantissas, exponents = np.frexp(float(np.float32(10 ** (-top_db / 10))) * peaks)
    # As precise as float32, though its range may be exceeded.
    thresholds = np.ldexp(mantissas.astype(np.float32).astype(np.float64), exponents)
    return np.asarray(energies > thresholds[which])


def _numbered(energies: NDArray[Any], files: Files) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The recordings that occur, and which of these each frame is from."""
    return np.unique(np.broadcast_to(np.asarray(files), len(energies)), return_inverse=True)
