"""Noise reduction, from an example of the noise and, where there is one, a dictionary of speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soxr
from numpy.typing import ArrayLike, NDArray

from ondes.models.dictionary import Dictionary
from ondes.models.loading import from_shelf
from ondes.models.masks import NoiseSubtraction
from ondes.models.model import Model
from ondes.models.sources import Sources
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.encoding import Compute
from ondes.nmf.learner import DictionaryLearner
from ondes.separation.separator import BLOCK_SIZE, Separator, StemBlocks
from ondes.signal.audio_settings import AudioSettings, is_active, loudest_of
from ondes.signal.locations import LATEST_S, Location
from ondes.signal.pcm import in_range
from ondes.signal.recordings import RawFormat, open_span
from ondes.signal.stft import Stft
from ondes.signal.survey import is_stream

__all__ = ["AMOUNT", "DenoisedBlocks", "Denoiser", "denoise", "denoise_file"]

Samples = NDArray[np.float32]
Span = tuple[float, float]

SPEECH, NOISE = "speech", "noise"
AMOUNT = 30.0  # decibels
N_COMPONENTS, N_PASSES = 16, 20  # of the noise's dictionary: seconds of sound are enough
STFT, STFT_RATE = Stft(3840, 960), 16000  # without a dictionary of speech: 240 ms
TOP_DB = 60.0
MAX_NOISE_S = 300.0  # of an example, which is held in memory


def denoise(
    samples: ArrayLike,
    sr: int,
    *,
    noise: Span | ArrayLike | list[Span] | None = None,
    speech: Dictionary | TrainedSeparator | None = None,
    amount: float = AMOUNT,
    random_state: int = 0,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
) -> Samples:
    """Reduce the noise in a recording held in memory.

    Without an example of the noise, speech is kept by the separator ``ondes.load("denoise")``, or
    by one from `ondes.train` that has a source "speech". With an example and a dictionary of
    speech, a dictionary of the noise is learned as well, and both are
    separated. Without it, the mean spectrum of the noise is subtracted, which works only if the
    noise hardly changes.

    Parameters
    ----------
    samples : array of shape (n,) or (n, n_channels)
    sr : int
        Sampling rate in Hz.
    noise : tuple of two float, list of these, or array of shape (m,) or (m, n_channels)
        An example of the noise alone: where it is in `samples`, from one second to another, or
        other samples at `sr`. A few seconds are best. None where there is none.
    speech : Dictionary or TrainedSeparator, optional
        A dictionary of the sound to keep, at any sampling rate.
    amount : float
        The noise is reduced by at most this many decibels.
    random_state : int
        Decides the first dictionary of the noise.
    backend, device, n_jobs
        As in `OnlineNMF`.

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
    examples: list[Any] = []
    for each in _several(noise):
        if _is_span(each):
            start, end = _checked_span(each)
            if round(end * sr) > len(mixture):
                raise ValueError(_too_late(len(mixture) / sr, end))
            each = mixture[round(start * sr) : round(end * sr)]
        examples.append(np.asarray(each))
    compute = Compute(backend, device, n_jobs=n_jobs)
    denoiser = Denoiser(
        speech, sr=sr, noise=examples, amount=amount, random_state=random_state, compute=compute
    )
    return np.concatenate([denoiser.push(mixture), denoiser.flush()])


class Denoiser:
    """Reduce the noise in a stream at constant memory: samples in, samples out.

    Parameters
    ----------
    speech : Dictionary or TrainedSeparator, optional
        As in `denoise`. One from ``ondes.learn(..., delay=0.03)``, with an example of the noise, is
        late by 30 ms; the separator that comes with ondes looks at many seconds.
    sr : int
        Sampling rate of the stream.
    noise : array of shape (m,) or (m, n_channels), or list of these, optional
        Examples of the noise alone, at `sr`.
    amount : float
        The noise is reduced by at most this many decibels.
    random_state : int
        Decides the first dictionary of the noise.
    compute : Compute, optional
        Backend, device and threads.

    Attributes
    ----------
    sr : int
    delay : int
        Samples that the output of `push` is late by, at most.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> hiss = 0.1 * rng.standard_normal(16000)
    >>> denoiser = Denoiser(sr=8000, noise=hiss[:8000])
    >>> parts = [denoiser.push(hiss[first : first + 1000]) for first in range(0, 16000, 1000)]
    >>> quiet = np.concatenate([*parts, denoiser.flush()])
    >>> bool(np.std(quiet) < 0.5 * np.std(hiss)), len(quiet)
    (True, 16000)
    """

    def __init__(
        self,
        speech: Dictionary | TrainedSeparator | None = None,
        *,
        sr: int,
        noise: ArrayLike | list[ArrayLike] | None = None,
        amount: float = AMOUNT,
        random_state: int = 0,
        compute: Compute | None = None,
    ) -> None:
        self._gain = _gain(amount)
        examples = [(np.asarray(each), sr) for each in _several(noise)]
        compute = compute or Compute()
        model = _model(examples, sr, speech, random_state, compute)
        self._separator = Separator(model, sr=sr, compute=compute)
        self.sr, self.delay = sr, self._separator.delay

    def push(self, samples: ArrayLike) -> Samples:
        """Take the next samples, (n,) or (n, n_channels); return those that are ready."""
        return _mixed(self._separator.push(samples), self._gain)

    def flush(self) -> Samples:
        """Return the last samples, and reset."""
        return _mixed(self._separator.flush(), self._gain)

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._separator.reset()


def denoise_file(
    path: str | Location | BinaryIO,
    *,
    noise: Span | str | Path | list[Span | str | Path] | None = None,
    speech: Dictionary | TrainedSeparator | None = None,
    amount: float = AMOUNT,
    random_state: int = 0,
    raw: RawFormat | None = None,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
) -> DenoisedBlocks:
    """Reduce the noise in a recording of any length, at constant memory.

    Parameters
    ----------
    path : str, Path, RemotePath, Span or binary stream
    noise : tuple of two float, str or Path, or list of these
        Where only the noise is heard, from one second to another, or a recording of the noise; at
        most the first five minutes of each are used.
    speech, amount, random_state, backend, device, n_jobs
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
    examples = [_example(path, each, raw) for each in _several(noise)]
    block_size = None if is_stream(path) else BLOCK_SIZE
    with ExitStack() as stack:
        recording = stack.enter_context(open_span(path, block_size=block_size, raw=raw))
        compute = Compute(backend, device, n_jobs=n_jobs)
        model = _model(examples, recording.sr, speech, random_state, compute)
        separator = Separator(model, sr=recording.sr, compute=compute)
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


def _example(
    path: str | Location | BinaryIO, noise: Span | str | Path, raw: RawFormat | None
) -> tuple[Samples, int]:
    """The samples of an example of the noise, and their sampling rate."""
    if isinstance(noise, (str, Path)):
        with open_span(noise, end=MAX_NOISE_S) as blocks:
            return np.concatenate([np.zeros((0, blocks.channels), np.float32), *blocks]), blocks.sr
    start, end = _checked_span(noise)
    if is_stream(path):
        raise ValueError("A stream can be read only once; give the noise as a recording.")
    end = min(end, start + MAX_NOISE_S)
    with open_span(path, start=start, end=end, raw=raw) as blocks:
        samples = np.concatenate([np.zeros((0, blocks.channels), np.float32), *blocks])
    if len(samples) < (end - start) * blocks.sr - 1:
        raise ValueError(_too_late(start + len(samples) / blocks.sr, end))
    return samples, blocks.sr


def _mixed(stems: Mapping[str, Samples], gain: float) -> Samples:
    rest = [stem for name, stem in stems.items() if name != SPEECH]
    mixed: Samples = stems[SPEECH] + np.float32(gain) * sum(rest[1:], rest[0])
    return mixed


def _gain(amount: float) -> float:
    if not 0 < amount < float("inf"):
        raise ValueError(f"amount={amount!r} must be a positive number of decibels.")
    return float(10 ** (-amount / 20))


def _several(noise: Any) -> list[Any]:
    if noise is None:
        return []
    are_several = isinstance(noise, list) and all(
        isinstance(each, (tuple, str, Path, np.ndarray)) for each in noise
    )
    return noise if are_several else [noise]


def _is_span(noise: Any) -> bool:
    return isinstance(noise, tuple) and len(noise) == 2 and np.ndim(noise[0]) == 0


def _checked_span(noise: Any) -> Span:
    start, end = noise
    if not 0 <= start < end < LATEST_S:
        raise ValueError(f"noise={noise!r} must be two times in seconds, the later one last.")
    return start, end


def _too_late(seconds: float, end: float) -> str:
    return (
        f"The recording ends after {seconds:.2f} s, before its noise does ({end:g} s); choose less."
    )


def _model(
    examples: Sequence[tuple[NDArray[Any], int]],
    sr: int,
    speech: Dictionary | TrainedSeparator | None,
    random_state: int,
    compute: Compute,
) -> Model:
    """What separates speech from the noise of some examples, or from any noise without them."""
    if not examples:
        return from_shelf("denoise") if speech is None else check_separator(speech)
    if isinstance(speech, TrainedSeparator):
        raise ValueError(
            "A trained separator needs no example of the noise; leave out --noise, or give a "
            "dictionary of speech."
        )
    if speech is None:
        audio = AudioSettings(sr, STFT.at_rate(sr / STFT_RATE), spectrum="magnitude")
        frames, exponent = _frames(examples, audio)
        mean = frames.mean(axis=0)
        return NoiseSubtraction((SPEECH, NOISE), audio, np.ldexp(mean, exponent))
    known = Sources.of({SPEECH: speech})
    frames, _ = _frames(examples, known.audio)
    estimator = DictionaryLearner(
        min(N_COMPONENTS, len(frames)),
        beta_loss=known.divergence.beta,
        weighting="equal",
        sparsity=known.sparsity,
        batch_size=32,
        n_passes=N_PASSES,
        random_state=random_state,
        backend=compute.backend,
        device=compute.device,
        n_jobs=compute.n_jobs,
    )
    rows = estimator.fit(frames).components_
    both = known.with_source(rows, NOISE)
    # Without sparsity the noise explains all that it can, and speech only the rest.
    return replace(both, sparsity_weights=(both.source_of == 0).astype(float))


def check_separator(model: Dictionary | TrainedSeparator) -> TrainedSeparator:
    """The model, if it tells speech from noise without an example."""
    if not isinstance(model, TrainedSeparator) or SPEECH not in model.names:
        raise ValueError(
            "Without an example of the noise, the model must be a separator from `ondes train` of "
            "which one source is called 'speech'; give an example with --noise, or leave out the "
            "model."
        )
    return model


def _frames(
    examples: Sequence[tuple[NDArray[Any], int]], audio: AudioSettings
) -> tuple[Samples, int]:
    """The non-silent frames that lie wholly in examples of noise, over two to some power."""
    scaled = [in_range(samples.astype(np.float32)) for samples, _ in examples]
    exponent = max(each for _, each in scaled)
    found = [np.zeros((0, audio.n_bins), np.float32)]
    seconds = 0.0
    for (example, own), (_, sr) in zip(scaled, examples, strict=True):
        if sr != audio.sr:
            example = soxr.resample(example, sr, audio.sr)
        seconds = max(seconds, len(example) / audio.sr)
        n_frames = len(audio.stft.windows(example))
        power = audio.stft.power_within(example, np.empty((n_frames, audio.n_bins), np.float32))
        found.append(np.ldexp(power, 2 * (own - exponent)))
    power = np.concatenate(found)
    if not len(power):
        raise ValueError(
            f"The noise lasts {seconds:.2g} s, which is too short; give at least "
            f"{audio.stft.n_fft / audio.sr:.2g} s, better a few seconds."
        )
    energies = power.sum(axis=1)
    power = power[is_active(energies, 0, loudest_of(energies, 0), TOP_DB)]
    if not len(power):
        raise ValueError("The example of the noise is silent; choose another one.")
    return audio.from_power(power), exponent
