"""Masks of a stream of frames, from a trained separator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.models.band_network import FRAME_SECONDS, BandMasks, BandWeights, LiveBandMasks
from ondes.models.model import MaskStream
from ondes.nmf.encoding import Compute
from ondes.nmf.unfolded import UnfoldedMasks, UnfoldedWeights
from ondes.signal.audio_settings import AudioSettings

__all__ = ["TrainedMaskStream", "trained_masks"]

Spectra = NDArray[np.float32]


def trained_masks(
    weights: UnfoldedWeights | BandWeights, audio: AudioSettings, compute: Compute
) -> MaskStream:
    """A `MaskStream` of a trained separator, on the host or on a device."""
    if compute.backend != "torch":
        n_turns = 0
        if audio.stft.n_synthesis is not None and isinstance(weights, BandWeights):
            n_turns = max(1, round(FRAME_SECONDS * audio.sr / audio.stft.hop_length))
        return TrainedMaskStream(weights, compute.n_threads, n_turns)
    from ondes.models.device_masks import DeviceUnfoldedMasks

    if isinstance(weights, BandWeights):
        raise ValueError(
            "The separators on the shelf run on the host alone: leave out backend='torch'."
        )
    return DeviceUnfoldedMasks(weights, compute.device or "cpu")


class TrainedMaskStream:
    """What a trained separator makes of magnitudes, for a `MaskStream`'s power and amplitude.

    With `n_turns`, of live sound: see `LiveBandMasks`.
    """

    def __init__(
        self, weights: UnfoldedWeights | BandWeights, n_threads: int = 1, n_turns: int = 0
    ) -> None:
        self._masks: BandMasks | LiveBandMasks | UnfoldedMasks
        if not isinstance(weights, BandWeights):
            self._masks = UnfoldedMasks(weights, n_threads)
        elif n_turns:
            self._masks = LiveBandMasks(weights, n_turns)
        else:
            self._masks = BandMasks(weights, n_threads)
        self.delay = self._masks.delay

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._masks.reset()

    def push(self, spectra: Spectra, amplitude: Spectra) -> Spectra:
        """Take the next frames; return the masks that are ready; see `MaskStream`."""
        magnitudes = np.nan_to_num(np.sqrt(spectra), copy=False)  # it knows of nothing missing
        return self._masks.push(magnitudes * amplitude[:, None])

    def flush(self) -> Spectra:
        """Return the last masks, and reset."""
        return self._masks.flush()
