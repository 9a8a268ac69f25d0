"""Dictionaries that follow live sound: masks do not wait for what is learned from their frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ondes.models.adaptation import AdaptedSources
from ondes.models.masks import source_masks
from ondes.models.model import MaskStream, SourceVariances
from ondes.models.sources import Sources
from ondes.nmf.encoding import Compute
from ondes.signal.audio_settings import AudioSettings

__all__ = ["LiveAdaptingSources"]

Real = NDArray[np.float32]

BATCH_SIZE = 32  # frames from one move to the next: few, since sound waits for a move


class LiveAdaptingSources:
    """Sources of which some follow the sound, as `AdaptingSources`, without any delay: a `Model`.

    The masks of a frame are those of the dictionaries as they were learned until the batch before.

    Parameters
    ----------
    sources : Sources
    moving : sequence of str
        The names of those that follow.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> rows, audio = np.full((2, 5), 0.2), AudioSettings(8000, Stft(8), spectrum="magnitude")
    >>> sources = Sources(rows, np.arange(2), ("speech", "room"), audio)
    >>> LiveAdaptingSources(sources, ["room"]).masks(Compute()).delay
    0
    """

    def __init__(self, sources: Sources, moving: Sequence[str]) -> None:
        self._sources, self._moving = sources, tuple(moving)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all sources."""
        return self._sources.names

    @property
    def audio(self) -> AudioSettings:
        """Of the frames that the sources were learned from."""
        return self._sources.audio

    def masks(self, compute: Compute) -> MaskStream:
        """Begin a stream of masks; see `Model`."""
        return _LiveMasks(self._sources, self._moving, compute)

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """The same for spatial separation; see `Model`."""
        return self._sources.adapting(*self._moving).variances(n_bins, compute)


class _LiveMasks:
    """A `MaskStream`, one frame after the other: the same however they are cut."""

    delay = 0

    def __init__(self, sources: Sources, moving: Sequence[str], compute: Compute) -> None:
        self._first, self._compute = sources, compute
        self._learner = AdaptedSources(sources, moving, compute)
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what was learned from it."""
        self._now, self._waiting = self._first, list[tuple[Real, Real]]()
        self._learner.reset()

    def push(self, spectra: Real, amplitude: Real) -> Real:
        """Take the next frames; return their masks; see `MaskStream`."""
        frames = self._first.audio.from_power(spectra)
        masks = np.empty((len(self._first.names), *frames.shape), np.float32)
        for number in range(len(frames)):
            row = slice(number, number + 1)
            masks[:, row] = source_masks(frames[row], self._now, compute=self._compute)
            self._waiting.append((frames[row], amplitude[row]))
            if len(self._waiting) == BATCH_SIZE:
                batch, largest = map(np.concatenate, zip(*self._waiting, strict=True))
                self._waiting.clear()
                self._now = self._learner.learn(batch, largest)
        return masks

    def flush(self) -> Real:
        """Return the last masks, none, and reset."""
        self.reset()
        return np.zeros((len(self._first.names), 0, self._first.audio.n_bins), np.float32)
