"""What is heard of the sources of a stream: their gains, their levels, and who else gets them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.separation.separator import Separator

__all__ = ["LiveMix"]

Samples = NDArray[np.float32]
Listener = Callable[[Mapping[str, Samples]], object]

LOWEST_DB = -120.0


class LiveMix:
    """A separator whose sources are added with gains, which may change at any time.

    Parameters
    ----------
    separator : Separator
    gains : mapping of str to float
        Of each source, in decibels; minus infinity is silence.
    listeners : sequence of callable
        Called with the next samples of every source.

    Attributes
    ----------
    gains : dict of str to float
        A change is heard from the next block on, as a ramp over that block.

    Examples
    --------
    >>> from ondes.separation import Sources
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> mix = LiveMix(Separator(sources), {"low": 0.0, "high": -math.inf})
    >>> heard = mix.push(np.ones(1000))
    >>> bool(heard[500] > 0.9), {name: round(db) for name, db in mix.levels().items()}
    (True, {'low': 1, 'high': -17})
    """

    def __init__(
        self,
        separator: Separator,
        gains: Mapping[str, float],
        listeners: tuple[Listener, ...] = (),
    ) -> None:
        self._separator, self._listeners = separator, listeners
        self.names = separator.names
        self.gains = dict(gains)
        self._gains = {name: _factor(gains[name]) for name in self.names}
        self._peaks = dict.fromkeys(self.names, 0.0)

    def push(self, samples: ArrayLike) -> Samples:
        """Take the next samples, (n,) or (n, n_channels); return what is heard of those ready."""
        stems = self._separator.push(samples)
        for listener in self._listeners:
            listener(stems)
        heard: Samples | None = None
        for name, stem in stems.items():
            before, now = self._gains[name], _factor(self.gains[name])
            self._gains[name] = now
            if len(stem):
                self._peaks[name] = max(self._peaks[name], float(np.abs(stem).max()))
            ramp = np.linspace(before, now, len(stem) + 1, dtype=np.float32)[1:]
            part = stem * ramp.reshape(-1, *(1 for _ in stem.shape[1:]))
            heard = part if heard is None else heard + part
        assert heard is not None
        return heard

    def levels(self) -> dict[str, float]:
        """The peak of each source since the last call, in decibels of full scale."""
        peaks, self._peaks = self._peaks, dict.fromkeys(self.names, 0.0)
        return {
            name: max(LOWEST_DB, 20 * math.log10(max(peak, 1e-9))) for name, peak in peaks.items()
        }


def _factor(decibels: float) -> float:
    return float(10 ** (decibels / 20))
