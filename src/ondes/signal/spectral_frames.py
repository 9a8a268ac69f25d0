"""Frames of a recording that comes in blocks, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.rebatch import slices
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.pcm import MAX_PEAK, MIN_PEAK
from ondes.signal.silence import Loudest, is_active, loudest_of, merge
from ondes.signal.stft import Frames, Stft, mean_power

__all__ = ["active_frames", "spectral_frames"]

FRAMES_AT_ONCE = 4096


def spectral_frames(
    blocks: Iterable[ArrayLike], audio: AudioSettings
) -> Iterator[NDArray[np.float32]]:
    """Power or magnitude of a recording, frame by frame, at constant memory.

    Parameters
    ----------
    blocks : iterable of arrays of shape (n,) or (n, n_channels)
        At the sampling rate of `audio`, for example from `ondes.signal.recordings.open_blocks`.
    audio : AudioSettings

    Yields
    ------
    float32 array of shape (n_frames, n_bins), silent frames included
        float64 where float32 is too narrow: samples of 1e25, say.

    Examples
    --------
    >>> audio = AudioSettings(8000, Stft(8))
    >>> [frames.shape for frames in spectral_frames([np.ones(6), np.ones(6)], audio)]
    [(1, 5), (2, 5), (1, 5)]
    """
    for power, exponents in _power_frames(blocks, audio.stft):
        frames = audio.from_power(power, out=power)
        if exponents.any():
            scale = exponents if audio.spectrum == "magnitude" else 2 * exponents
            frames = np.ldexp(frames.astype(np.float64), scale[:, None])
        yield frames


def active_frames(
    blocks: Iterable[ArrayLike], audio: AudioSettings
) -> Iterator[NDArray[np.float32]]:
    """The same without silent frames, where the loudest frame so far decides.

    Yields
    ------
    float32 array of shape (n_frames, n_bins), at least one frame
        Where float32 is too narrow, a frame is on another scale, which no divergence from a
        dictionary depends on.

    Examples
    --------
    >>> samples = np.r_[np.ones(8), np.zeros(80)]
    >>> sum(map(len, active_frames([samples], AudioSettings(8000, Stft(8)))))
    3
    """
    loudest: Loudest = {}
    for power, exponents in _power_frames(blocks, audio.stft):
        energies = power.sum(axis=1)
        if exponents.any():
            energies = np.ldexp(energies.astype(np.float64), 2 * exponents)
        loudest = merge(loudest, loudest_of(energies, 0))
        active = power[energies > 0]
        if audio.top_db is not None and len(power):
            active = power[is_active(energies, 0, loudest, audio.top_db)]
        if len(active):
            yield audio.from_power(active, out=active)


def _power_frames(blocks: Iterable[ArrayLike], stft: Stft) -> Iterator[_PowerFrames]:
    stream = None
    for block in map(np.asarray, blocks):
        if stream is None:
            stream = stft.stream(block.shape[1] if block.ndim == 2 else None)
        for rows in slices(len(block), FRAMES_AT_ONCE * stft.hop_length):
            yield _power_in_range(stream.push(block[rows]))
    if stream is not None:
        yield _power_in_range(stream.flush())


_PowerFrames = tuple[NDArray[np.float32], NDArray[np.intc]]


def _power_in_range(spectra: Frames) -> _PowerFrames:
    """Mean power, where each frame was divided by two to some power so that float32 can hold it."""
    parts = spectra.view(np.float32)
    axes = tuple(range(1, parts.ndim))
    peaks = np.maximum(parts.max(axis=axes, initial=0), -parts.min(axis=axes, initial=0))
    is_far = (peaks > 0) & ~((peaks >= MIN_PEAK) & (peaks <= MAX_PEAK))
    exponents = np.where(is_far, np.frexp(peaks)[1], 0).astype(np.intc)
    if exponents.any():
        scaled = np.ldexp(parts, -exponents.reshape(-1, *(1 for _ in axes)))
        spectra = scaled.view(np.complex64)
    return mean_power(spectra), exponents
