"""Masks of a stream of frames, from a trained separator."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.unfolded import UnfoldedMasks, UnfoldedWeights
from ondes.signal.audio_settings import AudioSettings

__all__ = ["TrainedModel", "UnfoldedMaskStream"]

Spectra = NDArray[np.float32]


@runtime_checkable
class TrainedModel(Protocol):
    """What separation needs of an `ondes.TrainedSeparator`."""

    names: tuple[str, ...]
    audio: AudioSettings
    weights: UnfoldedWeights


class UnfoldedMaskStream:
    """What `DictionaryMasks` is for dictionaries; the masks come a fixed number of frames later."""

    def __init__(self, model: TrainedModel, n_threads: int = 1) -> None:
        self.names, self.sr, self.stft = model.names, model.audio.sr, model.audio.stft
        self._masks = UnfoldedMasks(model.weights, n_threads)

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._masks.reset()

    def push(self, spectra: Spectra, amplitude: Spectra) -> Spectra:
        """Take the next frames; return the masks that are ready; see `DictionaryMasks.push`."""
        return self._masks.push(np.sqrt(spectra) * amplitude[:, None])

    def flush(self) -> Spectra:
        """Return the last masks, and reset."""
        return self._masks.flush()
