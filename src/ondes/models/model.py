"""What a model is to everything that separates: sources with names, which make their own masks.

A model sees frames relative to their largest amplitude, as mean power of the channels, in the bins
that it knows; what it returns is spread over the bins of the mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Frames, Stft, mean_power

__all__ = [
    "LOUDEST_SAMPLE",
    "Images",
    "MaskStream",
    "Model",
    "SourceVariances",
    "known_bins",
    "known_power",
    "levelled",
    "mixture_stft",
    "rate_of_bins",
    "scaled",
    "with_above",
]

Real = NDArray[np.float32]

LONGEST_FRAME = 2**18  # samples: a small file must not need much memory
LOUDEST_SAMPLE = 1e30  # beyond, the Fourier sums of float32 may overflow


class MaskStream(Protocol):
    """Masks of a stream of frames; what comes out does not depend on how the frames are cut.

    Attributes
    ----------
    delay : int
        Frames that the masks are late by, at most.
    """

    delay: int

    def reset(self) -> None:
        """Forget everything pushed so far."""

    def push(self, spectra: Any, amplitude: Any) -> Any:
        """Take the next frames; return the masks that are ready, which sum to one.

        Where the `Compute` is of PyTorch, these are tensors on its device.

        Parameters
        ----------
        spectra : float32 array of shape (n, n_bins)
            Power, relative to the square of each frame's amplitude.
        amplitude : float32 array of shape (n,)

        Returns
        -------
        float32 array of shape (n_sources, m, n_bins)
        """

    def flush(self) -> Any:
        """Return the last masks, and reset."""


class SourceVariances(Protocol):
    """What a model makes of the power of sources that are told apart by their places, too.

    Arrays are bins by frames, at any volume.
    """

    def follow(self, spectra: Real, amplitude: Real) -> None:
        """Learn from the next frames of the mixture, where the model does; as in `MaskStream`."""

    def reset(self) -> None:
        """Forget what was learned from the mixture."""

    def start(self, power: Real) -> Real:
        """From the mixture's power, (n_bins, n_frames): (n_sources, n_bins, n_frames)."""

    def restart(self, powers: Real) -> Real:
        """From the power of each demixed source, (n_sources, n_bins, n_frames), from scratch."""

    def step(self, powers: Real) -> Real:
        """One step from the variances of the last call towards the power of each source."""

    def settle(self, powers: Real) -> Real:
        """From the power of each source, which is now taken to be of this source alone."""

    def settled_step(self, powers: Real) -> Real:
        """One step after `settle`."""


@runtime_checkable
class Model(Protocol):
    """Sources that can be separated.

    `Sources`, which may adapt or have free components beside them, `NoiseSubtraction`,
    `TrainedSeparator`.

    Attributes
    ----------
    names : tuple of str
        The sources, in the order of the masks.
    audio : AudioSettings
        Of the frames that the model knows.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, in the order of the masks."""

    @property
    def audio(self) -> AudioSettings:
        """Of the frames that the model knows."""

    def masks(self, compute: Compute) -> MaskStream:
        """Begin a stream of masks."""

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """The same for spatial separation of frames with `n_bins` bins."""


class Images(NamedTuple):
    """What the sources contribute to the next frames, of any rows and in any thread.

    Attributes
    ----------
    n_frames : int
    of : callable
        From rows to images of all sources but the last, which is the rest of the mixture:
        (n_sources - 1, m, n_bins) or (n_sources - 1, m, n_channels, n_bins).
    """

    n_frames: int
    of: Callable[[slice], Any]


def mixture_stft(audio: AudioSettings, sr: int | None) -> Stft:
    """The transform of a mixture at another rate than the model's, which can be inverted.

    Examples
    --------
    >>> mixture_stft(AudioSettings(8000, Stft(512, 128)), 16000).n_fft
    1024
    """
    stft = audio.stft.at_rate((sr or audio.sr) / audio.sr)
    if stft.n_fft > LONGEST_FRAME:
        raise ValueError(
            f"The model's frames have {stft.n_fft} samples at {sr or audio.sr} Hz, more than "
            f"{LONGEST_FRAME}; use a model of shorter ones."
        )
    stft.check_invertible()
    return stft


def levelled(frames: Frames) -> tuple[Frames, Real]:
    """Frames divided by their largest amplitude, and that: squares of float32 overflow otherwise.

    Examples
    --------
    >>> levelled(np.array([[0, 4e20]], np.complex64))[1]
    array([4.e+20], dtype=float32)
    """
    axes = tuple(range(1, frames.ndim))
    numbers = np.ascontiguousarray(frames).view(np.float32)
    peak = np.maximum(numbers.max(axis=axes, initial=0), -numbers.min(axis=axes, initial=0))
    if not (peak < np.inf).all():  # nor for NaN
        raise ValueError(
            f"Some samples are NaN, infinite or larger than {LOUDEST_SAMPLE:g}; repair them first."
        )
    gain = 1 / np.maximum(peak, 1 / LOUDEST_SAMPLE)
    return (numbers * gain.reshape(-1, *(1 for _ in axes))).view(np.complex64), peak


def known_bins(spectra: Real, n_known: int) -> Real:
    """The bins that the model knows; zeros beyond the band of a mixture of a lower rate.

    Examples
    --------
    >>> known_bins(np.ones((1, 2)), 3)
    array([[1., 1., 0.]])
    """
    missing = n_known - spectra.shape[-1]
    return np.pad(spectra, ((0, 0), (0, missing))) if missing > 0 else spectra[:, :n_known]


def known_power(frames: Frames, audio: AudioSettings) -> Real:
    """The mean power over the channels in the bins that the model knows.

    It is NaN, missing, where a mixture of a lower rate has nothing, by the rule that learning has.

    Examples
    --------
    >>> audio = AudioSettings(8000, Stft(4), fmax=2000)
    >>> known_power(np.array([[2j, 3, 4]], np.complex64), audio)
    array([[4., 9.]], dtype=float32)
    >>> known_power(np.array([[2j, 3]], np.complex64), audio)
    array([[ 4., nan]], dtype=float32)
    """
    n_known = audio.n_bins
    power = known_bins(mean_power(frames[..., :n_known]), n_known)
    return audio.mark_missing(power, rate_of_bins(frames.shape[-1], audio))


def rate_of_bins(n_bins: int, audio: AudioSettings) -> float:
    """The sampling rate of frames with so many bins, as far apart as those of `audio`.

    Examples
    --------
    >>> rate_of_bins(201, AudioSettings(16000, Stft(800)))
    8000.0
    """
    n_all = audio.stft.n_bins
    return audio.sr * (n_bins - 1) / (n_all - 1) if n_bins < n_all else float(audio.sr)


def with_above(known: Array, n_bins: int) -> Array:
    """Values of the mixture's own bins as far as they are known, then one for all that are above.

    That is the mean over the octave below.

    Examples
    --------
    >>> with_above(np.array([[1.0, 2.0, 4.0]]), 5)
    array([[1., 2., 4., 3.]])
    >>> with_above(np.array([[1.0, 2.0, 4.0]]), 2)
    array([[1., 2.]])
    """
    n_known = known.shape[-1]
    if n_bins <= n_known:
        return known[..., :n_bins]
    above = known[..., n_known // 2 :].mean(axis=-1, keepdims=True)
    return np.concatenate([known, above], axis=-1)


def scaled(frames: Frames, values: Real) -> Frames:
    """Frames times real values, of which the last is that of all bins above.

    Examples
    --------
    >>> scaled(np.array([[1j, 1j, 2.0]], np.complex64), np.array([[3.0, 4.0]], np.float32)).tolist()
    [[3j, 4j, (8+0j)]]
    """
    n_known = values.shape[-1]
    if n_known == frames.shape[-1]:
        return frames * values
    shape = np.broadcast_shapes(frames.shape, (*values.shape[:-1], 1))
    products = np.empty(shape, np.complex64)
    np.multiply(frames[..., :n_known], values, out=products[..., :n_known])
    # As real numbers: this takes a third of the time.
    above = frames[..., n_known:].view(np.float32)
    np.multiply(above, values[..., -1:], out=products[..., n_known:].view(np.float32))
    return products
