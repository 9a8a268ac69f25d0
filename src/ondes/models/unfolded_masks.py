"""Masks of a stream of frames, from a trained separator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.models.band_network import BandMasks, BandWeights
from ondes.models.model import MaskStream
from ondes.nmf.encoding import Compute
from ondes.nmf.unfolded import UnfoldedMasks, UnfoldedWeights

__all__ = ["TrainedMaskStream", "masks_of"]

Spectra = NDArray[np.float32]


def masks_of(weights: UnfoldedWeights | BandWeights, compute: Compute) -> MaskStream:
    """A `MaskStream` of a trained separator, on the host or on a device."""
    if compute.backend != "torch":
        return TrainedMaskStream(weights, compute.n_threads)
    from ondes.models.device_masks import DeviceUnfoldedMasks

    if isinstance(weights, BandWeights):
        raise ValueError(
            "The separators on the shelf run on the host alone: leave out backend='torch'."
        )
    return DeviceUnfoldedMasks(weights, compute.device or "cpu")


class TrainedMaskStream:
    """What a trained separator makes of magnitudes, for a `MaskStream`'s power and amplitude."""

    def __init__(self, weights: UnfoldedWeights | BandWeights, n_threads: int = 1) -> None:
        kind = BandMasks if isinstance(weights, BandWeights) else UnfoldedMasks
        self._masks = kind(weights, n_threads)  # type: ignore[arg-type]
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
