"""Masks that subtract a noise of which the mean spectrum is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio_settings import AudioSettings

__all__ = ["SubtractionMasks"]

Spectra = NDArray[np.float32]

# Of the mean magnitude: half of all frames of a noise lie above the mean.
OVERSUBTRACTION = 1.5


class SubtractionMasks:
    """Spectral subtraction: a `MaskStream` of two sources, the second of which is the noise.

    Parameters
    ----------
    names : tuple of two str
    audio : AudioSettings
    noise : array of shape (n_bins,)
        The noise's mean magnitude.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(2))
    >>> masks = SubtractionMasks(("speech", "noise"), audio, np.array([1.0, 2.0]))
    >>> masks.push(np.array([[1.0, 0.04]]), np.array([10.0]))
    array([[[0.85, 0.  ]],
    <BLANKLINE>
           [[0.15, 1.  ]]])
    """

    def __init__(
        self, names: tuple[str, str], audio: AudioSettings, noise: NDArray[np.floating]
    ) -> None:
        self.names: tuple[str, ...] = names
        self.sr, self.stft = audio.sr, audio.stft
        self._noise = OVERSUBTRACTION * noise

    def reset(self) -> None:
        """Forget everything pushed so far: nothing, every frame stands for itself."""

    def push(self, spectra: Spectra, amplitude: Spectra) -> Spectra:
        """Take the next frames and return their masks; see `DictionaryMasks.push`."""
        magnitude = np.sqrt(spectra) * amplitude[:, None]
        is_louder = magnitude > self._noise
        share = np.divide(self._noise, magnitude, out=np.ones_like(magnitude), where=is_louder)
        return np.stack([1 - share, share])

    def flush(self) -> Spectra:
        """Return the last masks: none are left."""
        return np.zeros((2, 0, self.stft.n_bins), np.float32)
