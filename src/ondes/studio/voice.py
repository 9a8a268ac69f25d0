"""A voice and its noise, from selections of the same recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.denoising import NOISE, SPEECH, STFT, STFT_RATE
from ondes.learning import learn
from ondes.nmf.encoding import Compute
from ondes.separation.dictionary_masks import DictionaryMasks
from ondes.separation.masked_frames import MaskStream
from ondes.separation.separator import Separator
from ondes.separation.sources import REST, Sources
from ondes.separation.subtraction import SubtractionMasks
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft
from ondes.studio.project import Span
from ondes.studio.recordings import Recording

__all__ = ["Cleaner", "learn_cleaner"]

N_NOISE, N_VOICE = 16, 48
N_PASSES = 20
SHORTEST = 0.3  # seconds


@dataclass(frozen=True, eq=False)
class Cleaner:
    """Divides a recording into the voice and the noise, in this order.

    Parameters
    ----------
    make : callable
        Makes what gives the masks: a new one for every use.
    stft : Stft
    sr : int
        Of `stft`.
    noise, voice : Span
        What it was learned from; no voice where the noise is only subtracted.
    """

    make: Callable[[], Sources | SubtractionMasks]
    stft: Stft
    sr: int
    noise: Span
    voice: Span | None

    @property
    def n_parts(self) -> int:
        """Two: the voice and the noise."""
        return 2

    def masks(self, batch_size: int) -> MaskStream:
        """A new stream of the masks of voice and noise."""
        made = self.make()
        if isinstance(made, SubtractionMasks):
            return made
        return DictionaryMasks(made, rest=REST, batch_size=batch_size, compute=Compute())

    def separator(self, sr: int) -> Separator:
        """A separator of voice and noise for a mixture of some rate."""
        return Separator(self.make(), sr=sr)


def learn_cleaner(find: Callable[[str], Recording], noise: Span, voice: Span | None) -> Cleaner:
    """Learn a noise from a pause and, where it is selected, the voice from a part with speech.

    Without the voice, the noise's mean spectrum is subtracted. With it, the noise's spectra are
    known when those of the voice are learned, so that the voice's are without the noise.
    """
    recording = find(noise.recording)
    if voice is None:
        sr = recording.sr
        audio = AudioSettings(sr, STFT.at_rate(sr / STFT_RATE), spectrum="magnitude")
        mean = _frames_within(_samples(recording, noise, sr), audio).mean(axis=0)
        if not mean.any():
            raise ValueError("The pause is silent, so there is no noise in it; select another.")
        return Cleaner(
            lambda: SubtractionMasks((SPEECH, NOISE), audio, mean), audio.stft, sr, noise, None
        )
    settings: dict[str, Any] = {"sr": STFT_RATE, "n_fft": STFT.n_fft, "hop_length": STFT.hop_length}
    of_noise = learn(
        _samples(recording, noise, STFT_RATE), N_NOISE, n_passes=N_PASSES, batch_size=32, **settings
    )
    rows = of_noise.components
    both = learn(
        _samples(find(voice.recording), voice, STFT_RATE), N_NOISE + N_VOICE, n_passes=N_PASSES,
        batch_size=32, fixed_components=rows, **settings,
    )  # fmt: skip
    known = Sources.from_components(both, {SPEECH: range(N_NOISE, N_NOISE + N_VOICE)})
    # Without sparsity the noise explains all that it can, and the voice only the rest.
    sources = replace(
        known, names=(SPEECH, NOISE), sparsity_weights=(known.source_of == 0).astype(float)
    )
    return Cleaner(lambda: sources, sources.stft, sources.sr, noise, voice)


def _frames_within(samples: NDArray[np.float32], audio: AudioSettings) -> NDArray[np.float32]:
    """Frames that lie wholly in a selection: beside it, there may be a voice."""
    stft = audio.stft
    samples = np.pad(samples, ((0, max(0, stft.n_fft - len(samples))), (0, 0)))
    n_frames = len(stft.windows(samples))
    power = stft.power_within(samples, np.empty((n_frames, stft.n_bins), np.float32))
    return audio.from_power(power)


def _samples(recording: Recording, span: Span, sr: int) -> NDArray[np.float32]:
    samples = recording.samples(round(span.start * sr), round(span.end * sr), sr)
    if len(samples) < SHORTEST * sr:
        raise ValueError(
            f"The selection lasts {len(samples) / sr:.2g} s, which is too short; select at least "
            f"{SHORTEST:g} s, better a few seconds."
        )
    return samples
