"""How novel a moment is: how badly the components explain it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ondes.models.model import known_power
from ondes.models.sources import Sources
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, encode
from ondes.signal.stft import Frames, StftStream

__all__ = ["Novelty"]

FRAMES_AVERAGED = 8  # the divergence of averaged frames tells novel moments better apart
MOMENTS_AT_ONCE = 128  # solved together: the kernel prepares the dictionary for every call


class Novelty:
    """How badly components explain a moment: the divergence per bin of eight averaged frames.

    Parameters
    ----------
    sources : Sources
    sr : int, optional
        Sampling rate of the samples; by default that of the sources.
    compute : Compute, optional
        Backend, device and threads.

    Attributes
    ----------
    first, step
        Which samples a value belongs to, as in `ComponentEnergies`.

    Examples
    --------
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(4))
    >>> low = Sources(np.array([[0.9, 0.1, 0.0]]), np.zeros(1, int), ("low",), audio)
    >>> novelty = Novelty(low)
    >>> usual, novel = np.ones(1600), (-1.0) ** np.arange(1600)
    >>> values = np.concatenate([novelty.push(np.r_[usual, novel]), novelty.flush()])
    >>> bool(values[-20] > 2 * values[20])
    True
    """

    def __init__(
        self, sources: Sources, *, sr: int | None = None, compute: Compute | None = None
    ) -> None:
        self._stft = sources.stft.at_rate((sr or sources.sr) / sources.sr)
        self._sources, self._problem = sources, sources.problem()
        self._compute = sources.compute(compute)
        self.step = FRAMES_AVERAGED * self._stft.hop_length
        self.first = -self._stft.n_padding / 2
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._stream: StftStream | None = None
        self._power = np.zeros((0, self._sources.audio.n_bins), np.float32)
        self._moments: list[Array] = []  # averaged frames

    def push(self, samples: ArrayLike) -> Array:
        """Take the next samples; return values that are ready, one per eight frames, shape (m,)."""
        block = np.asarray(samples, dtype=np.float32)
        if self._stream is None:
            self._stream = self._stft.stream(block.shape[1] if block.ndim == 2 else None)
        return self.push_frames(self._stream.push(block))

    def flush(self) -> Array:
        """Return the last values, one of them of the frames that are left, and reset."""
        values = np.zeros(0)
        if self._stream is not None:
            values = self.push_frames(self._stream.flush())
        if len(self._power):
            self._moments.append(self._power.mean(axis=0, keepdims=True))
        values = np.append(values, self._divergences())
        self.reset()
        return values

    def push_frames(self, frames: Frames) -> Array:
        """The same of frames that are transformed already, by `ComponentEnergies.stft`."""
        power = known_power(frames, self._sources.audio)
        power = np.concatenate([self._power, power])
        n_whole = len(power) - len(power) % FRAMES_AVERAGED
        self._power = power[n_whole:].copy()
        whole = power[:n_whole].reshape(-1, FRAMES_AVERAGED, power.shape[1])
        self._moments.append(whole.mean(axis=1))
        if sum(map(len, self._moments)) < MOMENTS_AT_ONCE:
            return np.zeros(0)
        return self._divergences()

    def _divergences(self) -> Array:
        """Those of all moments that wait."""
        if not self._moments:
            return np.zeros(0)
        power = np.concatenate(self._moments)
        self._moments = []
        encoding = encode(self._sources.audio.from_power(power), self._problem, self._compute)
        return -encoding.scores()
