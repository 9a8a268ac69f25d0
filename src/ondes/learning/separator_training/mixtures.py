"""Random mixtures of recordings, and how well masks separate them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ondes.learning.separator_training.pools import FULL_SCALE
from ondes.nmf.backends.devices import Tensor, torch
from ondes.signal.audio_settings import AudioSettings

__all__ = ["Mixtures", "TrainingSettings", "negative_si_sdr", "si_sdr_of_masks"]

QUIET = 1e-4  # of full scale; sources are brought to one level above this
SMALL = 1e-3  # of a source's energy, in both parts of a ratio: silence has no logarithm


@dataclass(frozen=True)
class TrainingSettings:
    """How the network is trained; measured on real recordings, see docs/results/separation.md.

    Attributes
    ----------
    n_components : int
        Of each source.
    batch_size : int
        Mixtures per update.
    seconds : float
        Length of a mixture.
    n_without_gradient : int
        First steps of the solver that no gradient goes through: a tie in quality, faster.
    learning_rate : float
        At its peak; it falls along a cosine.
    n_warm_up : int
        Updates in which it rises to the peak.
    largest_gradient : float
        Gradients of a larger norm are scaled down to it.
    level_db : float
        Sources of a mixture differ by at most this.
    equaliser_db : float
        Strength of a smooth random equaliser for each source.
    semitones : int
        Largest change of pitch and speed.
    """

    n_components: int = 128
    batch_size: int = 24
    seconds: float = 4.0
    n_without_gradient: int = 4
    learning_rate: float = 6e-2
    n_warm_up: int = 20
    largest_gradient: float = 5.0
    level_db: float = 5.0
    equaliser_db: float = 3.0
    semitones: int = 4

    @classmethod
    def for_device(cls, device: str) -> TrainingSettings:
        """What is best within minutes on this kind of device."""
        if device.startswith("cuda"):
            return cls()
        return cls(n_components=64, batch_size=8, seconds=2.0, n_without_gradient=8)

    @classmethod
    def for_start(cls, device: str) -> TrainingSettings:
        """For a recurrent network that separates already."""
        if device.startswith("cuda"):
            return cls(batch_size=32, learning_rate=1e-3, largest_gradient=1.0)
        return cls(batch_size=4, learning_rate=1e-3, largest_gradient=1.0)


class Mixtures:
    """Spectra of the sources of random mixtures, made on a device.

    Parameters
    ----------
    pools : sequence of tensors of shape (n_samples,), int16
        Samples of each source; they may be overwritten in place from outside.
    audio : AudioSettings
    settings : TrainingSettings
    generator : torch.Generator
        On the device of the pools.
    """

    def __init__(
        self,
        pools: Sequence[Tensor],
        audio: AudioSettings,
        settings: TrainingSettings,
        generator: torch.Generator,
    ) -> None:
        self._generator = generator
        self._pools, self._settings, self._n_bins = pools, settings, audio.n_bins
        self._stft = stft = audio.stft
        self._device = pools[0].device
        self._window = torch.tensor(stft.window_array, device=self._device)
        shortest = min(map(len, pools)) / 2 ** (settings.semitones / 12) - 16
        n_samples = min(round(settings.seconds * audio.sr), int(shortest))
        n_hops = max(0, n_samples - stft.n_fft) // stft.hop_length
        self._n_samples = stft.n_fft + n_hops * stft.hop_length
        if self._n_samples > shortest:
            raise ValueError("There is too little audio to make mixtures of; give more recordings.")

    def draw(self) -> Tensor:
        """Complex spectra of shape (batch, n_sources, n_frames, n_bins)."""
        settings, device = self._settings, self._device
        drawn: Any = {"generator": self._generator, "device": device}
        samples = torch.stack([self._excerpts(pool) for pool in self._pools], dim=1)
        n_batch, n_sources = samples.shape[:2]
        windows = samples.unfold(-1, self._stft.n_fft, self._stft.hop_length)
        n_bins = self._n_bins
        spectra = torch.fft.rfft(windows * self._window)[..., :n_bins]
        place = torch.log1p(40 * torch.arange(n_bins, device=device) / n_bins) / math.log(41)
        gain = torch.zeros((n_batch, n_sources, n_bins), device=device)
        for waves in (1, 2, 3):
            strength = torch.randn(
                (n_batch, n_sources, 1), generator=self._generator, device=device
            )
            phase = 2 * math.pi * torch.rand((n_batch, n_sources, 1), **drawn)
            curve = torch.cos(math.pi * waves * place + (phase if waves > 1 else 0))
            gain = gain + settings.equaliser_db / waves * strength * curve
        spectra = spectra * (10 ** (gain / 20))[:, :, None]
        energy = spectra.abs().square().mean(dim=(-1, -2), keepdim=True).sqrt() + SMALL
        level = (torch.rand((n_batch, n_sources, 1, 1), **drawn) - 0.5) * settings.level_db
        levelled: Tensor = spectra / energy * 10 ** (level / 20)
        return levelled

    def _excerpts(self, pool: Tensor) -> Tensor:
        """From random places, faster or slower by whole semitones (cubic interpolation)."""
        settings, device, n = self._settings, self._device, self._n_samples
        drawn: Any = {"generator": self._generator, "device": device}
        semitones = torch.randint(
            -settings.semitones,
            settings.semitones + 1,
            (settings.batch_size, 1),
            **drawn,
        )
        rate = 2.0 ** (semitones / 12)
        span = int(n * 2 ** (settings.semitones / 12)) + 8
        start = torch.rand(
            (settings.batch_size, 1), generator=self._generator, device=device
        ) * max(1, len(pool) - span)
        place = 1 + torch.arange(n, device=device) * rate
        whole = place.long()
        part, at = place - whole, (whole + start.long()).clamp(1, len(pool) - 3)
        a, b, c, d = (pool[at + k].float() / FULL_SCALE for k in (-1, 0, 1, 2))
        curve = 3 * (b - c) + d - a
        samples = b + 0.5 * part * (c - a + part * (2 * a - 5 * b + 4 * c - d + part * curve))
        return samples / (samples.square().mean(dim=1, keepdim=True).sqrt() + QUIET)


def negative_si_sdr(masks: Tensor, sources: Tensor) -> Tensor:
    """Minus the mean SI-SDR of masked mixtures, measured on their spectra.

    With real masks the projections need only real products: no inverse transform.

    Parameters
    ----------
    masks : tensor of shape (batch, n_sources, n_frames, n_bins)
    sources : complex tensor of the same shape
        They sum to the mixture.
    """
    mixture = sources.sum(dim=1, keepdim=True)
    power = mixture.real.square() + mixture.imag.square()
    cross = sources.real * mixture.real + sources.imag * mixture.imag
    energy = (sources.real.square() + sources.imag.square()).sum(dim=(-1, -2)).clamp_min(1e-4)
    along = (masks * cross).sum(dim=(-1, -2)).square() / energy
    error = ((masks.square() * power).sum(dim=(-1, -2)) - along).clamp_min(0)
    return -10 * torch.log10((along + SMALL * energy) / (error + SMALL * energy)).mean()


def si_sdr_of_masks(masks: Tensor, sources: Tensor) -> Tensor:
    """SI-SDR of each source of each mixture, (batch, n_sources), measured on their spectra."""
    mixture = sources.sum(dim=1, keepdim=True)
    estimate = masks * mixture
    energy = sources.abs().square().sum(dim=(-1, -2)).clamp_min(1e-9)
    cross = (sources.real * estimate.real + sources.imag * estimate.imag).sum(dim=(-1, -2))
    along = cross.square() / energy
    error = (estimate.abs().square().sum(dim=(-1, -2)) - along).clamp_min(1e-9)
    return 10 * torch.log10(along.clamp_min(1e-9) / error)
