"""Sources as shares of the mixture: every frame, in every channel, times the source's mask."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.blas_threads import one_blas_thread
from ondes.nmf.divergence import Array
from ondes.signal.stft import Frames, Stft, mean_power

__all__ = ["LOUDEST_SAMPLE", "MaskStream", "MaskedFrames", "all_bins", "known_bins", "levelled"]

Spectra = NDArray[np.float32]

LOUDEST_SAMPLE = 1e30  # beyond, the Fourier sums of float32 may overflow


@runtime_checkable
class MaskStream(Protocol):
    """Masks of a stream of frames: `DictionaryMasks`, `UnfoldedMaskStream`, `SubtractionMasks`."""

    names: tuple[str, ...]
    sr: int
    stft: Stft

    def reset(self) -> None:
        """Forget everything pushed so far."""

    def push(self, spectra: Spectra, amplitude: Spectra) -> Array:
        """Take the next frames; return the masks that are ready, (n_sources, m, n_bins)."""

    def flush(self) -> Array:
        """Return the last masks, and reset."""


class MaskedFrames:
    """An `ImageStream` of masks, which are the same for each channel.

    Parameters
    ----------
    masks : MaskStream
    stft : Stft
        Of the mixture; the masks' own at another sampling rate.

    Examples
    --------
    >>> from ondes.separation.subtraction import SubtractionMasks
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> audio = AudioSettings(8000, Stft(2))
    >>> masks = SubtractionMasks(("speech", "noise"), audio, np.array([1.0, 2.0]))
    >>> MaskedFrames(masks, audio.stft).push(np.array([[10.0, 2.0]], np.complex64)).real.tolist()
    [[[8.5, 0.0]]]
    """

    def __init__(self, masks: MaskStream, stft: Stft) -> None:
        self.names, self.masks = masks.names, masks
        self._masks, self._n_known, self._n_bins = masks, masks.stft.n_bins, stft.n_bins
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._waiting: Frames | None = None
        self._masks.reset()

    @one_blas_thread()
    def push(self, frames: Frames) -> Frames:
        """Take the next frames; return the images that are ready of all sources but the last.

        Parameters
        ----------
        frames : complex64 array of shape (n, n_bins) or (n, n_channels, n_bins)

        Returns
        -------
        array of shape (n_sources - 1, m, n_bins) or (n_sources - 1, m, n_channels, n_bins)
        """
        waiting = frames if self._waiting is None else np.concatenate([self._waiting, frames])
        self._waiting = waiting
        scaled, peak = levelled(frames)
        spectra = known_power(scaled, self._n_known)
        return self._masked(self._masks.push(spectra, peak))

    @one_blas_thread()
    def flush(self) -> Frames:
        """Return the last images, and reset."""
        images = self._masked(self._masks.flush())
        self.reset()
        return images

    def _masked(self, masks: Array) -> Frames:
        n_frames = masks.shape[1]
        waiting = self._waiting
        if waiting is None:
            waiting = np.zeros((0, self._n_bins), np.complex64)
        frames, self._waiting = waiting[:n_frames], waiting[n_frames:].copy()
        masks = all_bins(masks[:-1], self._n_bins)
        if frames.ndim == 3:
            masks = masks[:, :, None]
        images: Frames = masks * frames
        return images


def levelled(frames: Frames) -> tuple[Frames, Spectra]:
    """Frames divided by their largest amplitude, and that: squares of float32 overflow otherwise.

    Examples
    --------
    >>> levelled(np.array([[0, 4e20]], np.complex64))[1]
    array([4.e+20], dtype=float32)
    """
    axes = tuple(range(1, frames.ndim))
    numbers = np.ascontiguousarray(frames).view(np.float32)
    peak = np.maximum(numbers.max(axis=axes, initial=0), -numbers.min(axis=axes, initial=0))
    gain = 1 / np.maximum(peak, 1 / LOUDEST_SAMPLE)
    return (numbers * gain.reshape(-1, *(1 for _ in axes))).view(np.complex64), peak


def known_bins(spectra: Spectra, n_known: int) -> Spectra:
    """The bins that the models know; zeros beyond the band of a mixture of a lower rate.

    Examples
    --------
    >>> known_bins(np.ones((1, 2)), 3)
    array([[1., 1., 0.]])
    """
    missing = n_known - spectra.shape[-1]
    return np.pad(spectra, ((0, 0), (0, missing))) if missing > 0 else spectra[:, :n_known]


def known_power(frames: Frames, n_known: int) -> Spectra:
    """The mean power over the channels in the bins that the models know.

    Examples
    --------
    >>> known_power(np.array([[2j, 3.0]], np.complex64), 1)
    array([[4.]], dtype=float32)
    """
    return known_bins(mean_power(frames[..., :n_known]), n_known)


def all_bins(known: Array, n_bins: int) -> Array:
    """Values for the mixture's own bins; above the known ones, the mean over the octave below.

    Examples
    --------
    >>> all_bins(np.array([[1.0, 2.0, 4.0]]), 5)
    array([[1., 2., 4., 3., 3.]])
    """
    n_known = known.shape[-1]
    missing = n_bins - n_known
    if missing <= 0:
        return known[..., :n_bins]
    above = known[..., n_known // 2 :].mean(axis=-1, keepdims=True)
    return np.concatenate([known, np.repeat(above, missing, axis=-1)], axis=-1)
