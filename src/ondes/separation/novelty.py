"""How novel a moment is: how badly the components explain it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ondes.models.model import MaskStream, SourceVariances, known_power
from ondes.models.sources import Sources
from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, encode
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Frames, StftStream

__all__ = ["MeasuredSources", "Novelty"]

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
        return self.push_power(known_power(frames, self._sources.audio))

    def push_power(self, power: Array) -> Array:
        """The same of the power of frames in the bins that the sources know."""
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


class MeasuredSources:
    """Sources that are a `Model` as they are, and measure novelty of the frames that they mask.

    So a mixture that is separated need not be transformed once more.

    Parameters
    ----------
    sources : Sources
    sr : int
        Sampling rate of the mixture.
    compute : Compute
        Of the novelty.

    Attributes
    ----------
    novelty : Novelty
        To which the frames go.
    """

    def __init__(self, sources: Sources, sr: int, compute: Compute) -> None:
        self._sources = sources
        self.novelty = Novelty(sources, sr=sr, compute=compute)
        self._values: list[Array] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, in the order of the masks."""
        return self._sources.names

    @property
    def audio(self) -> AudioSettings:
        """Of the frames that the model knows."""
        return self._sources.audio

    def masks(self, compute: Compute) -> MaskStream:
        """Begin a stream of masks, whose frames are measured."""
        return _MeasuredMasks(self._sources.masks(compute), self)

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """Those of the sources, which see no frames."""
        return self._sources.variances(n_bins, compute)

    def measure(self, power: Array) -> None:
        """Take the power of the next frames."""
        self._values.append(self.novelty.push_power(power))

    def taken(self) -> Array:
        """The values that have become ready since the last call."""
        values, self._values = self._values, []
        return np.concatenate([np.zeros(0), *values])


class _MeasuredMasks:
    def __init__(self, masks: MaskStream, measured: MeasuredSources) -> None:
        self._masks, self._measured, self.delay = masks, measured, masks.delay

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._masks.reset()

    def push(self, spectra: Any, amplitude: Any) -> Any:
        """Take the next frames; return the masks that are ready."""
        power = spectra * (amplitude * amplitude)[:, None]
        self._measured.measure(power.cpu().numpy() if tensors.is_tensor(power) else power)
        return self._masks.push(spectra, amplitude)

    def flush(self) -> Any:
        """Return the last masks, and reset."""
        return self._masks.flush()
