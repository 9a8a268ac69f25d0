"""How recordings become frames: a model keeps this beside its dictionary."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.signal.stft import Stft

__all__ = ["AudioSettings"]

SPECTRA = ("power", "magnitude")
MIN_SR, MAX_SR = 100, 10**6
MAX_DB = 300  # more than single precision tells apart


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

    Examples
    --------
    >>> AudioSettings(22050, Stft(512)).stft.n_bins
    257
    """

    sr: int
    stft: Stft
    top_db: float | None = 60.0
    spectrum: str = "power"

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
        object.__setattr__(self, "sr", int(self.sr))
        object.__setattr__(self, "top_db", None if self.top_db is None else float(self.top_db))

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
        power = self.stft.power(samples)
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


def _is_level(value: object) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < value <= MAX_DB  # type: ignore[operator]
