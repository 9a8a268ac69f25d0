"""The sound of every part of a recording, in chunks of about a second that the page mixes.

A chunk is the samples of all parts side by side, so the page can change any gain at once. A frame's
activations depend on that frame alone, so a chunk that is computed with enough samples around it is
the same as if all of the recording had been separated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ondes.models.masks import NoiseSubtraction
from ondes.models.model import Model
from ondes.models.sources import Sources
from ondes.nmf.encoding import Compute
from ondes.rebatch import slices
from ondes.separation.separator import Separator
from ondes.signal.audio_settings import AudioSettings
from ondes.studio.recording import Recording

__all__ = ["ALL_CORES", "Listening", "chunk", "power_of_parts", "separator"]

Samples = NDArray[np.float32]

HIGHEST_RATE, LOWEST_RATE = 48000, 8000
CHUNK_SECONDS = 1.0
CONTEXT = 4  # seconds
FRAMES_AT_ONCE = 16  # a page has many parts at once
ALL_CORES = Compute(n_jobs=-1)


@dataclass(frozen=True)
class Listening:
    """How sound reaches the page: rate and channels of every chunk.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> Listening(44100, 2).chunk_samples(AudioSettings(44100, Stft(4096, 1024)))
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

    def chunk_samples(self, audio: AudioSettings | None = None) -> int:
        """Samples in a chunk: whole hops, so that frames lie as in the whole recording."""
        if audio is None:
            return round(CHUNK_SECONDS * self.rate)
        hop = audio.stft.at_rate(self.rate / audio.sr).hop_length
        return hop * max(1, round(CHUNK_SECONDS * self.rate / hop))

    def samples(self, recording: Recording, start: int, stop: int) -> Samples:
        """A span of a recording at this rate, shape (n, channels)."""
        samples = recording.samples(start, stop, self.rate)
        if samples.shape[1] == self.channels:
            return samples
        mono = samples.mean(axis=1, keepdims=True, dtype=np.float32)
        return np.repeat(mono, self.channels, axis=1)


def chunk(
    recording: Recording, listening: Listening, index: int, model: Model | None = None
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
    n = listening.chunk_samples(model.audio)
    stft = model.audio.stft.at_rate(listening.rate / model.audio.sr)
    # Trained separators hear a moment in the light of the seconds around it.
    n_around = (
        stft.n_fft if isinstance(model, (Sources, NoiseSubtraction)) else CONTEXT * listening.rate
    )
    margin = math.ceil(n_around / stft.hop_length) * stft.hop_length
    first = max(0, index * n - margin)
    samples = listening.samples(recording, first, (index + 1) * n + margin)
    parts = separator(model, listening.rate, FRAMES_AT_ONCE)
    cuts = slices(len(samples), FRAMES_AT_ONCE * stft.hop_length)
    blocks = [*(parts.push(samples[cut]) for cut in cuts), parts.flush()]
    inner = slice(index * n - first, (index + 1) * n - first)
    return _packed(
        [np.concatenate([block[name] for block in blocks])[inner] for name in parts.names]
    )


def separator(model: Model, sr: int, batch_size: int | None = None) -> Separator:
    """A separator of a model's parts, frame by frame: what is played is what is exported."""
    return Separator(model, sr=sr, batch_size=batch_size, compute=ALL_CORES)


def power_of_parts(model: Model, power: Samples) -> Samples:
    """What is heard of each part in power frames, (n_parts, n_frames, n_bins)."""
    power = power[:, : model.audio.n_bins]
    masks = model.masks(ALL_CORES)
    pushed = masks.push(power, np.ones(len(power), np.float32))
    shares: Samples = np.concatenate([pushed, masks.flush()], axis=1)
    return np.square(shares) * power


def _packed(parts: Sequence[Samples]) -> bytes:
    peaks = np.array([np.abs(part).max(initial=0) for part in parts], "<f4")
    scales = np.float32(32767) / np.maximum(peaks, np.float32(1e-20))
    samples = [
        np.round(part.T * scale).astype("<i2").tobytes()
        for part, scale in zip(parts, scales, strict=True)
    ]
    return b"".join([peaks.tobytes(), *samples])
