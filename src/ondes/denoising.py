"""Noise reduction, from an example of the noise and, where there is one, a dictionary of speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soxr
from numpy.typing import ArrayLike, NDArray

from ondes.nmf.learner import DictionaryLearner
from ondes.separation.separator import MaskStream, Separator, StemBlocks, separate
from ondes.separation.sources import SourceDictionary, Sources
from ondes.separation.subtraction import SubtractionMasks
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.excerpt import open_excerpt
from ondes.signal.pcm import in_range
from ondes.signal.recordings import RawFormat
from ondes.signal.segments import is_stream
from ondes.signal.silence import is_active, loudest_of
from ondes.signal.stft import Stft

__all__ = ["AMOUNT", "DenoisedBlocks", "denoise", "denoise_file"]

Samples = NDArray[np.float32]
Span = tuple[float, float]

SPEECH, NOISE = "speech", "noise"
AMOUNT = 30.0  # decibels
N_COMPONENTS, N_PASSES = 16, 20  # of the noise's dictionary: seconds of sound are enough
STFT, STFT_RATE = Stft(4096, 1024), 16000  # without a dictionary of speech: 256 ms
TOP_DB = 60.0
MAX_NOISE_S = 300.0  # of an example, which is held in memory


def denoise(
    samples: ArrayLike,
    sr: int,
    *,
    noise: Span | ArrayLike,
    speech: SourceDictionary | None = None,
    amount: float = AMOUNT,
    random_state: int = 0,
) -> Samples:
    """Reduce the noise in a recording held in memory.

    With a dictionary of speech, a dictionary of the noise is learned as well, and both are
    separated. Without it, the mean spectrum of the noise is subtracted, which works only if the
    noise hardly changes.

    Parameters
    ----------
    samples : array of shape (n,) or (n, n_channels)
    sr : int
        Sampling rate in Hz.
    noise : tuple of two float, or array of shape (m,) or (m, n_channels)
        An example of the noise alone: where it is in `samples`, from one second to another, or
        other samples at `sr`. A few seconds are best.
    speech : Dictionary, optional
        A dictionary of the sound to keep, at any sampling rate.
    amount : float
        The noise is reduced by at most this many decibels.
    random_state : int
        Decides the first dictionary of the noise.

    Returns
    -------
    float32 array of the shape of `samples`

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tone = np.r_[np.zeros(8000), np.sin(np.arange(16000))]
    >>> noisy = tone + 0.3 * rng.standard_normal(24000)
    >>> clean = denoise(noisy, 8000, noise=(0.0, 1.0))
    >>> bool(np.std(clean - tone) < 0.5 * np.std(noisy - tone))
    True
    """
    mixture = np.asarray(samples)
    example = mixture
    if _is_span(noise):
        start, end = _checked_span(noise)
        if round(end * sr) > len(mixture):
            raise ValueError(_too_late(len(mixture) / sr, end))
        example = mixture[round(start * sr) : round(end * sr)]
    else:
        example = np.asarray(noise)
    models = _models(example, sr, sr, speech, random_state)
    gain = _gain(amount)
    stems = separate(mixture, models, sr=sr)
    return _mixed(stems, gain)


def denoise_file(
    path: str | Path | BinaryIO,
    *,
    noise: Span | str | Path,
    speech: SourceDictionary | None = None,
    amount: float = AMOUNT,
    random_state: int = 0,
    raw: RawFormat | None = None,
) -> DenoisedBlocks:
    """Reduce the noise in a recording of any length, at constant memory.

    Parameters
    ----------
    path : str, Path or binary stream
    noise : tuple of two float, or str or Path
        Where only the noise is heard, from one second to another, or a recording of the noise; at
        most its first five minutes are used.
    speech, amount, random_state
        As in `denoise`.
    raw : RawFormat, optional
        Format of samples without a header.

    Returns
    -------
    DenoisedBlocks
        Iterates over float32 arrays of shape (m, n_channels), the next samples.

    Raises
    ------
    FileError
        If a recording cannot be read, or ends before its noise begins.

    Examples
    --------
    >>> import tempfile, soundfile
    >>> hiss = 0.1 * np.random.default_rng(0).standard_normal(8000)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(f"{folder}/hiss.wav", hiss, 8000)
    ...     quiet = np.concatenate(list(denoise_file(f"{folder}/hiss.wav", noise=(0.0, 0.5))))
    >>> bool(np.std(quiet) < 0.5 * np.std(hiss))
    True
    """
    gain = _gain(amount)
    if isinstance(noise, (str, Path)):
        excerpt = open_excerpt(noise, end=MAX_NOISE_S)
    else:
        start, end = _checked_span(noise)
        if is_stream(path):
            raise ValueError("A stream can be read only once; give the noise as a recording.")
        end = min(end, start + MAX_NOISE_S)
        excerpt = open_excerpt(path, start=start, end=end, raw=raw)
    with excerpt as blocks:
        example = np.concatenate([np.zeros((0, blocks.channels), np.float32), *blocks])
    if not isinstance(noise, (str, Path)) and len(example) < (end - start) * excerpt.sr - 1:
        raise ValueError(_too_late(start + len(example) / excerpt.sr, end))
    with ExitStack() as stack:
        recording = stack.enter_context(open_excerpt(path, raw=raw))
        models = _models(example, excerpt.sr, recording.sr, speech, random_state)
        separator = Separator(models, sr=recording.sr)
        stack.pop_all()  # from here on, iterating closes it
    return DenoisedBlocks(StemBlocks(separator, recording), gain)


class DenoisedBlocks:
    """Iterator over the blocks of a recording without its noise; made by `denoise_file`.

    Attributes
    ----------
    sr : int
        Sampling rate of the recording and of its blocks.
    channels : int
    """

    def __init__(self, stems: StemBlocks, gain: float) -> None:
        self.sr, self.channels = stems.sr, stems.channels
        self._blocks = (_mixed(each, gain) for each in stems)

    def __iter__(self) -> Iterator[Samples]:
        return self._blocks


def _mixed(stems: Mapping[str, Samples], gain: float) -> Samples:
    return stems[SPEECH] + np.float32(gain) * stems[NOISE]


def _gain(amount: float) -> float:
    if not 0 < amount < float("inf"):
        raise ValueError(f"amount={amount!r} must be a positive number of decibels.")
    return float(10 ** (-amount / 20))


def _is_span(noise: Any) -> bool:
    return isinstance(noise, tuple) and len(noise) == 2 and np.ndim(noise[0]) == 0


def _checked_span(noise: Any) -> Span:
    start, end = noise
    if not 0 <= start < end < float("inf"):
        raise ValueError(f"noise={noise!r} must be two times in seconds, the later one last.")
    return start, end


def _too_late(seconds: float, end: float) -> str:
    return (
        f"The recording ends after {seconds:.2f} s, before its noise does ({end:g} s); choose less."
    )


def _models(
    example: NDArray[Any],
    example_sr: int,
    sr: int,
    speech: SourceDictionary | None,
    random_state: int,
) -> Sources | MaskStream:
    """What separates speech from the noise of an example."""
    example = example.astype(np.float32)
    if speech is None:
        audio = AudioSettings(sr, STFT.at_rate(sr / STFT_RATE), spectrum="magnitude")
        frames, exponent = _frames(example, example_sr, audio)
        mean = frames.mean(axis=0)
        return SubtractionMasks((SPEECH, NOISE), audio, np.ldexp(mean, exponent))
    known = Sources.of({SPEECH: speech})
    frames, _ = _frames(example, example_sr, known.audio)
    estimator = DictionaryLearner(
        min(N_COMPONENTS, len(frames)),
        beta_loss=known.divergence.beta,
        sparsity=known.sparsity,
        batch_size=32,
        n_passes=N_PASSES,
        random_state=random_state,
    )
    rows = estimator.fit(frames).components_
    both = known.with_source(rows, NOISE)
    # Without sparsity the noise explains all that it can, and speech only the rest.
    return replace(both, sparsity_weights=(both.source_of == 0).astype(float))


def _frames(example: NDArray[Any], sr: int, audio: AudioSettings) -> tuple[Samples, int]:
    """The non-silent frames that lie wholly in an example of noise, over two to some power."""
    example, exponent = in_range(example)
    if sr != audio.sr:
        example = soxr.resample(example, sr, audio.sr)
    n_frames = len(audio.stft.windows(example))
    if not n_frames:
        raise ValueError(
            f"The noise lasts {len(example) / audio.sr:.2g} s, which is too short; give at least "
            f"{audio.stft.n_fft / audio.sr:.2g} s, better a few seconds."
        )
    power = audio.stft.power_within(example, np.empty((n_frames, audio.stft.n_bins), np.float32))
    energies = power.sum(axis=1)
    power = power[is_active(energies, 0, loudest_of(energies, 0), TOP_DB)]
    if not len(power):
        raise ValueError("The example of the noise is silent; choose another one.")
    return audio.from_power(power), exponent
