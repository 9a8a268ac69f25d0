"""How recordings become frames: a model keeps this beside its dictionary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from ondes.signal.stft import Stft

__all__ = ["AudioSettings"]


@dataclass(frozen=True)
class AudioSettings:
    """How recordings become frames.

    Parameters
    ----------
    sr : int
        Samples per second that every recording is resampled to.
    stft : Stft
    top_db : float or None
        Frames this many decibels below the loudest so far of their recording are silent: they are
        left out, and so are frames of zeros. None keeps every frame.

    Examples
    --------
    >>> AudioSettings(22050, Stft(512)).stft.n_bins
    257
    """

    sr: int
    stft: Stft
    top_db: float | None = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.sr, Integral) or not 1 <= self.sr < 2**31:
            raise ValueError(f"sr={self.sr!r} must be a whole number of samples per second.")
        if not isinstance(self.stft, Stft):
            raise ValueError(f"stft={self.stft!r} must be an Stft.")
        if self.top_db is not None and not _is_positive(self.top_db):
            raise ValueError(
                f"top_db={self.top_db!r} must be a positive number of decibels, or None to keep "
                "every frame."
            )
        object.__setattr__(self, "sr", int(self.sr))
        object.__setattr__(self, "top_db", None if self.top_db is None else float(self.top_db))


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf  # type: ignore[operator]
