"""A voice without its noise: by a pause of the same recording, or by a trained separator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ondes.models.masks import NoiseSubtraction
from ondes.models.model import Model
from ondes.separation.denoising import NOISE, SPEECH, STFT, STFT_RATE
from ondes.signal.audio_settings import AudioSettings
from ondes.studio.project import Span
from ondes.studio.recording import Recording

__all__ = ["Cleaner", "by_noise", "by_separator", "quietest"]

Samples = NDArray[np.float32]

VOICES = ("speech", "voice", "vocals", "talk")
SHORTEST, PAUSE = 0.3, 0.5  # seconds
STEP = 0.05  # seconds
DIGITAL_SILENCE = 1e-10  # of full scale


@dataclass(frozen=True, eq=False)
class Cleaner:
    """Divides a recording into a voice and what is not the voice.

    Parameters
    ----------
    model : Model
    voice : int
        Which part of the model is the voice.
    label : str
        What the page calls it.
    """

    model: Model
    voice: int
    label: str


def by_separator(model: Model, name: str) -> Cleaner:
    """Clean with a trained separator; ValueError where none of its sources is a voice."""
    lowered = [each.casefold() for each in model.names]
    voice = next((lowered.index(each) for each in VOICES if each in lowered), None)
    if voice is None:
        sounds = ", ".join(model.names)
        raise ValueError(f"{name} separates {sounds}, but no speech; choose another model.")
    return Cleaner(model, voice, name)


def by_noise(recording: Recording, noise: Span) -> Cleaner:
    """Subtract the mean spectrum of a pause."""
    sr = recording.sr
    audio = AudioSettings(sr, STFT.at_rate(sr / STFT_RATE), spectrum="magnitude")
    samples = recording.samples(round(noise.start * sr), round(noise.end * sr))
    if len(samples) < SHORTEST * sr:
        raise ValueError(
            f"The selection lasts {len(samples) / sr:.2g} s, which is too short; select at least "
            f"{SHORTEST:g} s, better a few seconds."
        )
    mean = _frames_within(samples, audio).mean(axis=0)
    if not mean.any():
        raise ValueError("The pause is silent, so there is no noise in it; select another.")
    return Cleaner(NoiseSubtraction((SPEECH, NOISE), audio, mean), 0, "the noise of a pause")


def quietest(recording: Recording) -> Span:
    """The quietest half second that is not silent: most likely a pause of the speaker."""
    n = max(1, round(STEP * recording.sr))
    power, left = [np.zeros(0)], np.zeros((0, recording.channels), np.float32)
    for block in recording.blocks(recording.sr):
        left = np.concatenate([left, block])
        whole = left[: len(left) // n * n].astype(np.float64)
        power.append(np.square(whole).reshape(-1, n * recording.channels).mean(axis=1))
        left = left[len(whole) :]
    levels = np.concatenate(power)
    n_steps = round(PAUSE / STEP)
    if len(levels) < n_steps:
        raise ValueError("This recording is too short to clean.")
    windows = np.lib.stride_tricks.sliding_window_view(levels, n_steps)
    mean = np.where(windows.min(axis=1) > DIGITAL_SILENCE, windows.mean(axis=1), np.inf)
    if not np.isfinite(mean).any():
        raise ValueError("There is no noise in this recording; its pauses are silent.")
    start = float(mean.argmin()) * STEP
    return Span(recording.id, start, min(start + PAUSE, recording.seconds))


def _frames_within(samples: Samples, audio: AudioSettings) -> Samples:
    """Frames that lie wholly in a selection: beside it, there may be a voice."""
    stft = audio.stft
    samples = np.pad(samples, ((0, max(0, stft.n_fft - len(samples))), (0, 0)))
    power = stft.power_within(
        samples, np.empty((len(stft.windows(samples)), stft.n_bins), np.float32)
    )
    return audio.from_power(power)
