"""The share of each component in the power of every bin: what is heard when it plays alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondes.models.model import known_power, levelled, mixture_stft, with_above
from ondes.models.sources import FLOOR, Sources
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, encode
from ondes.signal.stft import Frames

__all__ = ["ComponentMasks", "EncodedFrames"]


class EncodedFrames(NamedTuple):
    """Frames of a mixture and the power that each component has in them, up to its spectrum.

    Attributes
    ----------
    scaled : complex64 array of shape (n_frames, n_channels, n_bins)
        Divided by `peak`.
    peak : float32 array of shape (n_frames,)
    gains : float64 array of shape (n_frames, n_components)
    """

    scaled: Array
    peak: Array
    gains: Array

    def followed_by(self, other: EncodedFrames) -> EncodedFrames:
        """Both, one after the other."""
        pairs = [np.concatenate(pair) for pair in zip(self, other, strict=True)]
        return EncodedFrames(*pairs)

    def after(self, row: int) -> EncodedFrames:
        """From a row on."""
        return EncodedFrames(*[each[row:].copy() for each in self])


class ComponentMasks:
    """Masks of single components, whichever source they belong to; they sum to one.

    Parameters
    ----------
    sources : Sources
    sr : int, optional
        Sampling rate of the mixture; by default that of the sources.
    compute : Compute, optional
        Backend, device and threads.

    Attributes
    ----------
    stft : Stft
        Of the mixture.
    shapes : float32 array of shape (n_components, n_known_bins)
        The components' power spectra.

    Examples
    --------
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> masks = ComponentMasks(sources)
    >>> encoded = masks.encode(masks.stft.forward(np.ones(8)))
    >>> masks.mask(encoded, 0)[2].round(2)
    array([1., 1., 0.], dtype=float32)
    """

    def __init__(
        self, sources: Sources, *, sr: int | None = None, compute: Compute | None = None
    ) -> None:
        self.stft = mixture_stft(sources.audio, sr)
        self._sources, self._problem = sources, sources.problem()
        self._compute = sources.compute(compute)
        self.shapes = (sources.dictionary**sources.exponent).astype(np.float32)

    def encode(self, frames: Frames) -> EncodedFrames:
        """Encode frames of shape (n_frames, n_bins) or (n_frames, n_channels, n_bins)."""
        frames = frames[:, None] if frames.ndim == 2 else frames
        scaled, peak = levelled(frames)
        power = known_power(scaled, self._sources.audio)
        encoding = encode(self._sources.audio.from_power(power), self._problem, self._compute)
        activations = encoding.levelled.spread(encoding.activations.astype(np.float64))
        return EncodedFrames(scaled, peak, activations**self._sources.exponent)

    def inverse_model(self, gains: Array) -> Array:
        """One over the power of all components together, (n_frames, n_known_bins), float32."""
        inverse: Array = 1 / (gains.astype(np.float32) @ self.shapes + np.float32(FLOOR))
        return inverse

    def mask(self, encoded: EncodedFrames, component: int, inverse: Array | None = None) -> Array:
        """The mask of one component for `ondes.models.model.scaled`, float32.

        `inverse` is `inverse_model` of the frames, where it is known already.
        """
        inverse = self.inverse_model(encoded.gains) if inverse is None else inverse
        share = encoded.gains[:, component, None].astype(np.float32) * self.shapes[component]
        return with_above(share * inverse, self.stft.n_bins)
