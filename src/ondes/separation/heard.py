"""How loud each component or source is when it is heard alone.

Energies are those of the sounds themselves: a source's is that of its stem, sample by sample; a
component's is that of its stem, too, but counted frame by frame. Activations are not what is heard:
they overlap, and overshoot wherever another component explains the same sound.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.nmf.blas_threads import one_blas_thread
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.rebatch import slices
from ondes.separation.component_masks import ComponentMasks, EncodedFrames
from ondes.separation.overlap_energy import OverlapEnergy
from ondes.separation.separator import Separator
from ondes.separation.sources import Models, Sources
from ondes.separation.unfolded_masks import TrainedModel
from ondes.signal.stft import Frames, Stft, StftStream, mean_power

__all__ = ["HeardComponents", "HeardSources", "HeardStream"]

Samples = NDArray[np.float32]

FRAMES_AT_ONCE = 512  # the kernel prepares the dictionary for every call
VALUES_AT_ONCE = 2**20  # complex, so 8 MiB


class HeardStream(Protocol):
    """Samples in, energies out: `HeardComponents` and `HeardSources`.

    Row i of all that `push` and `flush` return belongs to the samples from ``first + i * step`` to
    ``first + (i + 1) * step``; what lies before the first sample or after the last belongs to it.
    """

    names: tuple[str, ...]
    first: float
    step: int

    def push(self, samples: ArrayLike) -> Array:
        """Take the next samples, (n,) or (n, n_channels); return (m, n_names), mean of channels."""

    def flush(self) -> Array:
        """Return the last energies, and reset."""


class HeardSources:
    """The energy of each source's stem: see `HeardStream` and, for the parameters, `Separator`.

    Examples
    --------
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> heard = HeardSources(sources)
    >>> energies = np.concatenate([heard.push(np.ones(1000)), heard.flush()])
    >>> energies.shape, bool(energies[:, 0].sum() > 100 * energies[:, 1].sum())
    ((1000, 2), True)
    """

    step, first = 1, 0.0

    def __init__(self, models: Models | TrainedModel, **options: Any) -> None:
        self._separator = Separator(models, **options)
        self.names = self._separator.names

    def push(self, samples: ArrayLike) -> Array:
        """Take the next samples; return the energies of those that are separated."""
        return self._energies(self._separator.push(samples))

    def flush(self) -> Array:
        """Return the last energies, and reset."""
        return self._energies(self._separator.flush())

    def _energies(self, stems: dict[str, Samples]) -> Array:
        each = [np.square(stems[name], dtype=np.float32) for name in self.names]
        return np.stack([e.mean(axis=1) if e.ndim == 2 else e for e in each], axis=1)


class HeardComponents:
    """The energy of each component as it is heard alone, frame by frame: see `HeardStream`.

    Parameters
    ----------
    sources : Sources
        Its components are heard one by one, whichever source they belong to.
    sr : int, optional
        Sampling rate of the samples; by default that of the sources.
    compute : Compute, optional
        Backend, device and threads.

    Attributes
    ----------
    stft : Stft
        Of the frames at `sr`.

    Examples
    --------
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> heard = HeardComponents(sources)
    >>> energies = np.concatenate([heard.push(np.ones(1000)), heard.flush()])
    >>> bool(energies[:, 0].sum() > 100 * energies[:, 1].sum())
    True
    """

    def __init__(
        self, sources: Sources, *, sr: int | None = None, compute: Compute | None = None
    ) -> None:
        self.names = tuple(map(str, range(sources.n_components)))
        self._masks = ComponentMasks(sources, sr=sr, compute=compute)
        self.stft = stft = self._masks.stft
        self._n_threads = 1 if compute is None else compute.n_threads
        self.step, self.first = stft.hop_length, -stft.n_padding / 2
        self._energy = OverlapEnergy(self._masks.shapes[:, : stft.n_bins], stft)
        self._weights = np.full(stft.n_bins, 2.0, np.float32)
        self._weights[0] = 1
        self._weights[-1] = 1 if stft.n_fft % 2 == 0 else 2
        self._hops = _hop_weights(stft)
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._stream: StftStream | None = None
        self._waiting: list[Frames] = []
        self._before: EncodedFrames | None = None
        self._n_returned = 0  # of the frames before

    def push(self, samples: ArrayLike) -> Array:
        """Take the next samples; return the energies of the frames that are complete."""
        block = np.asarray(samples, dtype=np.float32)
        if self._stream is None:
            self._stream = self.stft.stream(block.shape[1] if block.ndim == 2 else None)
        return self.push_frames(self._stream.push(block))

    def push_frames(self, frames: Frames) -> Array:
        """The same of frames that are transformed already, by `stft`."""
        energies = [np.zeros((0, len(self.names)))]
        n_at_once = max(16, min(FRAMES_AT_ONCE, VALUES_AT_ONCE // max(1, frames[:1].size)))
        for rows in slices(len(frames), n_at_once):
            self._waiting.append(frames[rows])
            if sum(map(len, self._waiting)) >= n_at_once:
                energies.append(self._advance(is_last=False))
        return np.concatenate(energies)

    def flush(self) -> Array:
        """Return the last energies, and reset."""
        if self._stream is not None:
            self._waiting.append(self._stream.flush())
        if self._waiting or self._before is not None:
            energies = self._advance(is_last=True)
        else:
            energies = np.zeros((0, len(self.names)))
        self.reset()
        return energies

    @one_blas_thread()
    def _advance(self, is_last: bool) -> Array:
        encoded = self._before
        if self._waiting:
            new = self._masks.encode(np.concatenate(self._waiting))
            encoded = new if encoded is None else encoded.followed_by(new)
        assert encoded is not None
        self._waiting = []
        reach = self._energy.reach
        end = len(encoded.peak) if is_last else max(self._n_returned, len(encoded.peak) - reach)
        energies = self._energies(encoded)[self._n_returned : end]
        kept = max(0, end - reach)
        self._before, self._n_returned = encoded.after(kept), end - kept
        return energies

    def _energies(self, encoded: EncodedFrames) -> Array:
        scaled, peak, gains = encoded.scaled, encoded.peak.astype(np.float64), encoded.gains
        inverse = self._masks.inverse_model(gains)
        n_shared = min(self.stft.n_bins, inverse.shape[1])
        shared = scaled[..., :n_shared] * inverse[:, None, :n_shared]
        energies = self._energy.of(gains * peak[:, None], shared, self._n_threads)
        if n_shared < self.stft.n_bins:
            energies += self._energies_above(scaled, peak, gains, inverse)
        return np.maximum(energies, 0)

    def _energies_above(self, scaled: Frames, peak: Array, gains: Array, inverse: Array) -> Array:
        """Of the bins above the known ones, where a component's mask is one number per frame."""
        n_known = inverse.shape[1]
        octave = slice(n_known // 2, None)
        shares = gains * (inverse[:, octave] @ self._masks.shapes[:, octave].T)
        shares /= n_known - n_known // 2
        reach = len(self._hops) // 2
        padded = np.pad(shares, ((reach, reach), (0, 0)))
        heard = sum(weight * padded[i : i + len(shares)] for i, weight in enumerate(self._hops))
        power = mean_power(scaled[..., n_known:]) @ self._weights[n_known:]
        window = np.square(self.stft.window_array, dtype=np.float64).sum()
        energy = power * peak**2 * self.stft.hop_length / (self.stft.n_fft * window)
        energies: Array = np.square(heard) * energy[:, None]
        return energies


def _hop_weights(stft: Stft) -> Array:
    """How much the frames around it decide what is heard at the centre of a frame."""
    centre, n_fft, hop = stft.n_fft // 2, stft.n_fft, stft.hop_length
    reach = (n_fft - 1 - centre) // hop
    places = centre + hop * np.arange(-reach, reach + 1)
    weights: Array = (stft.window_array * stft.dual_window_array)[places]
    normalised: Array = weights / weights.sum()
    return normalised
