"""The sound of every component, in chunks of about a second that the page mixes.

A chunk is the samples of all components side by side, so the page can change any gain at once. A
frame's activations depend on that frame alone, so a chunk that is computed with enough samples
around it is the same as if all of the recording had been separated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ondes.rebatch import slices
from ondes.separation.masked_frames import MaskedFrames, MaskStream
from ondes.signal.stft import Stft
from ondes.studio.recordings import Recording

__all__ = ["Listening", "Separable", "chunk"]

Samples = NDArray[np.float32]

HIGHEST_RATE, LOWEST_RATE = 48000, 8000
CHUNK_SECONDS = 1.0
FRAMES_AT_ONCE = 16


class Separable(Protocol):
    """What a recording can be divided by: components, or a voice and its noise."""

    @property
    def n_parts(self) -> int:
        """How many sounds it gives."""

    @property
    def stft(self) -> Stft:
        """Its transform."""

    @property
    def sr(self) -> int:
        """The sampling rate of that transform."""

    def masks(self, batch_size: int) -> MaskStream:
        """A new stream of the masks of its parts."""


@dataclass(frozen=True)
class Listening:
    """How sound reaches the page: rate and channels of every chunk.

    Examples
    --------
    >>> Listening(44100, 2).chunk_samples(Stft(4096, 1024), 44100)
    44032
    """

    rate: int
    channels: int

    @classmethod
    def to(cls, recordings: Sequence[Recording]) -> Listening:
        """The best rate that a browser plays, and one or two channels."""
        rate = max((recording.sr for recording in recordings), default=HIGHEST_RATE)
        is_stereo = any(recording.channels == 2 for recording in recordings)
        return cls(min(max(rate, LOWEST_RATE), HIGHEST_RATE), 2 if is_stereo else 1)

    def chunk_samples(self, stft: Stft | None = None, sr: int = 1) -> int:
        """Samples in a chunk: whole hops, so that frames lie as in the whole recording."""
        if stft is None:
            return round(CHUNK_SECONDS * self.rate)
        hop = stft.at_rate(self.rate / sr).hop_length
        return hop * max(1, round(CHUNK_SECONDS * self.rate / hop))

    def samples(self, recording: Recording, start: int, stop: int) -> Samples:
        """A part of a recording at this rate, shape (n, channels)."""
        samples = recording.samples(start, stop, self.rate)
        if samples.shape[1] == self.channels:
            return samples
        mono = samples.mean(axis=1, keepdims=True, dtype=np.float32)
        return np.repeat(mono, self.channels, axis=1)


def chunk(
    recording: Recording, listening: Listening, index: int, model: Separable | None = None
) -> bytes:
    """Samples of every part from one time to another; without a model, of the recording itself.

    Returns
    -------
    bytes
        For each part its largest absolute sample as float32; then the samples as int16 in units of
        it, part by part, and channel by channel within a part.
    """
    if model is None:
        n = listening.chunk_samples()
        return _packed([listening.samples(recording, index * n, (index + 1) * n)])
    n = listening.chunk_samples(model.stft, model.sr)
    stft = model.stft.at_rate(listening.rate / model.sr)
    margin = math.ceil(stft.n_fft / stft.hop_length) * stft.hop_length
    first = max(0, index * n - margin)
    samples = listening.samples(recording, first, (index + 1) * n + margin)
    inner = slice(index * n - first, (index + 1) * n - first)
    parts = _separated(samples, stft, model.masks(FRAMES_AT_ONCE))
    return _packed([part[inner] for part in parts])


def _separated(samples: Samples, stft: Stft, masks: MaskStream) -> Samples:
    """All sources, (n_sources, n, channels): what `Separator` gives, up to rounding.

    In single precision and a few frames at a time, because a page has many sources at once.
    """
    frames = stft.forward(samples)
    stream = MaskedFrames(masks, stft)
    n_others, hop = len(masks.names) - 1, stft.hop_length
    shape = (n_others, stft.span(len(frames)), samples.shape[1])
    padded = np.zeros(shape, np.float32)
    window = stft.dual_window_array.astype(np.float32)
    at = 0
    for part in [*slices(len(frames), FRAMES_AT_ONCE), None]:
        images = stream.flush() if part is None else stream.push(frames[part])
        for image in np.moveaxis(images, 1, 0):  # (n_others, channels, n_bins)
            segment = np.fft.irfft(image, n=stft.n_fft, axis=-1) * window
            padded[:, at : at + stft.n_fft] += np.moveaxis(segment, 1, 2)
            at += hop
    others = padded[:, stft.n_padding :][:, : len(samples)]
    return np.concatenate([others, (samples - others.sum(axis=0))[None]])


def _packed(parts: Sequence[Samples]) -> bytes:
    peaks = np.array([np.abs(part).max(initial=0) for part in parts], "<f4")
    scales = np.float32(32767) / np.maximum(peaks, np.float32(1e-20))
    samples = [
        np.round(part.T * scale).astype("<i2").tobytes()
        for part, scale in zip(parts, scales, strict=True)
    ]
    return b"".join([peaks.tobytes(), *samples])
