"""A mixture in, its sources out, with everything between on a device: see `Separator`.

Samples cross once each way, in blocks of a minute. Transform, masks and inverse are those of the
host, in float32 and never in TF32 (`Compute.in_full_precision`): 99 % of the samples agree with the
host's to 1e-5 of the mixture's peak, and the others to 2e-3, where rounding decides when a frame is
solved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends import tensors
from ondes.nmf.backends.devices import Tensor, memory_errors, ready, torch
from ondes.nmf.encoding import Compute
from ondes.nmf.penalties import ActivationPenalty
from ondes.rebatch import slices
from ondes.separation.device_masks import (
    DeviceDictionaryMasks,
    DeviceMasks,
    DeviceUnfoldedMasks,
    HostMasks,
)
from ondes.separation.masked_frames import LOUDEST_SAMPLE, MaskStream
from ondes.separation.sources import Models, Sources
from ondes.separation.unfolded_masks import TrainedModel
from ondes.signal.stft import Stft

__all__ = ["DeviceSeparation", "on_device"]

Samples = NDArray[np.float32]

SECONDS_AT_ONCE = 60.0
ENTRIES_AT_ONCE = 2**24  # complex, of one channel: what is made of them stays under a few gigabytes


def on_device(
    models: Models | TrainedModel | MaskStream,
    masks: MaskStream,
    stft: Stft,
    sr: int,
    learns: bool,
    compute: Compute,
    batch_size: int | None = None,
    *,
    residual: str | None = None,
    penalty: ActivationPenalty | None = None,
) -> DeviceSeparation:
    """The stream of a separator on its device.

    Parameters
    ----------
    models, residual, penalty, batch_size
        As in `Separator`.
    masks : MaskStream
        The same masks on the host, which computes them where dictionaries follow the mixture.
    stft : Stft
        Of the mixture.
    sr : int
    learns : bool
        Whether dictionaries follow the mixture.
    compute : Compute
    """
    device = torch.device(compute.device or "cpu")
    ready(str(device))
    there: DeviceMasks
    if isinstance(models, TrainedModel):
        there = DeviceUnfoldedMasks(models.weights, device)
    elif (
        learns or isinstance(models, MaskStream) or Sources.of(models).sparsity_weights is not None
    ):
        there = HostMasks(masks, device)
    else:
        there = DeviceDictionaryMasks(
            Sources.of(models), residual=residual is not None, penalty=penalty, compute=compute
        )
    n_at_once = round(SECONDS_AT_ONCE * sr) if batch_size is None else batch_size * stft.hop_length
    sizes = len(masks.names), stft, masks.stft.n_bins, n_at_once
    return DeviceSeparation(there, *sizes, device)


class DeviceSeparation:
    """Samples in, samples of each source out; the last source is the rest of the mixture.

    Parameters
    ----------
    masks : DeviceMasks
    n_sources : int
    stft : Stft
        Of the mixture.
    n_known : int
        Bins of the masks.
    n_at_once : int
        Samples that are waited for.
    device : torch.device
    """

    def __init__(
        self,
        masks: DeviceMasks,
        n_sources: int,
        stft: Stft,
        n_known: int,
        n_at_once: int,
        device: torch.device,
    ) -> None:
        self._masks, self._n_sources, self._stft, self._n_known = masks, n_sources, stft, n_known
        self._n_at_once, self._device = n_at_once, device
        self._window = torch.tensor(stft.window_array, device=device)
        self._dual = torch.tensor(stft.dual_window_array, dtype=torch.float32, device=device)
        self._n_hops = -(-stft.n_fft // stft.hop_length)
        self.start(())

    def start(self, shape: tuple[int, ...]) -> None:
        """Forget everything; the next samples are of shape (n, *shape)."""
        self._shape, n_channels = shape, shape[0] if shape else 1
        self._masks.reset()
        self._pending: list[Samples] = []
        self._n_samples = self._n_transformed = self._n_out = 0
        zeros, hop = self._zeros, self._stft.hop_length
        self._held = zeros(n_channels, self._stft.n_padding)
        self._mixture = zeros(n_channels, 0)
        self._waiting = zeros(n_channels, 0, self._stft.n_bins, dtype=torch.complex64)
        self._tail = zeros(self._n_sources - 1, n_channels, self._n_hops - 1, hop)
        self._n_unwanted = self._stft.n_padding

    def push(self, block: Samples) -> list[Samples]:
        """Take the next samples; return those of each source that are ready."""
        self._pending.append(block)
        self._n_samples += len(block)
        if sum(map(len, self._pending)) < self._n_at_once:
            return [np.zeros((0, *self._shape), np.float32)] * self._n_sources
        return self._separate(is_end=False)

    def flush(self) -> list[Samples]:
        """Return the last samples of each source; `start` is to follow."""
        return self._separate(is_end=True)

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _separate(self, is_end: bool) -> list[Samples]:
        with memory_errors(self._device), torch.no_grad():
            found = self._advance(self._taken(), is_end)
            # (n_sources, n_channels, n) to (n, n_channels) of each source.
            stems = tensors.download(found.transpose(1, 2).contiguous())
        return [each.reshape(-1, *self._shape) for each in stems]

    def _taken(self) -> Tensor:
        """The samples pushed since the last time, (n_channels, n)."""
        empty = np.zeros((0, *self._shape), np.float32)
        block = np.concatenate([empty, *self._pending])
        self._pending = []
        there = tensors.upload(np.ascontiguousarray(block), self._device)
        return there.reshape(len(block), *(self._shape or (1,))).T

    def _advance(self, samples: Tensor, is_end: bool) -> Tensor:
        stft, hop = self._stft, self._stft.hop_length
        self._mixture = torch.cat([self._mixture, samples], dim=1)
        signal = torch.cat([self._held, samples], dim=1)
        n_frames = max(0, (signal.shape[1] - stft.n_fft) // hop + 1)
        if is_end:
            n_frames = stft.n_frames(self._n_samples) - self._n_transformed
            missing = stft.span(n_frames) - signal.shape[1]
            signal = torch.nn.functional.pad(signal, (0, max(0, missing)))
        self._n_transformed += n_frames
        self._held = signal[:, n_frames * hop :].clone()
        parts = []
        size = max(1, ENTRIES_AT_ONCE // stft.n_bins // len(signal))
        for rows in slices(n_frames, size):
            part = signal[:, rows.start * hop : (rows.stop - 1) * hop + stft.n_fft]
            windows = part.unfold(1, stft.n_fft, hop)
            parts.append(self._masked(torch.fft.rfft(windows * self._window)))
        if is_end:
            parts.append(self._inverted(self._masks.flush().to(self._device)))
        others = torch.cat([self._tail[:, :, :0].flatten(2), *parts], dim=2)
        return self._with_last(others, is_end)

    def _masked(self, frames: Tensor) -> Tensor:
        """Samples that these frames complete, of all sources but the last."""
        self._waiting = torch.cat([self._waiting, frames], dim=1)
        peak = torch.view_as_real(frames).abs().amax(dim=(0, 2, 3))
        gain = 1 / peak.clamp(min=1 / LOUDEST_SAMPLE)
        power = torch.view_as_real(frames * gain[:, None]).square().sum(dim=-1).mean(dim=0)
        missing = self._n_known - power.shape[1]
        known = torch.nn.functional.pad(power, (0, max(0, missing)))[:, : self._n_known]
        return self._inverted(self._masks.push(known.contiguous(), peak))

    def _inverted(self, masks: Tensor) -> Tensor:
        """The next masks on their frames: samples of shape (n_sources - 1, n_channels, n)."""
        n, stft = masks.shape[1], self._stft
        frames, self._waiting = self._waiting[:, :n], self._waiting[:, n:].clone()
        images = _all_bins(masks[:-1], stft.n_bins)[:, None] * frames
        segments = images.real  # of no source or no frame
        if images.numel():
            segments = torch.fft.irfft(images, n=stft.n_fft) * self._dual
        length = self._n_hops * stft.hop_length
        segments = torch.nn.functional.pad(segments, (0, length - segments.shape[-1]))
        segments = segments.reshape(*segments.shape[:-1], self._n_hops, stft.hop_length)
        summed = torch.nn.functional.pad(self._tail, (0, 0, 0, n))
        for age in reversed(range(self._n_hops)):
            summed[:, :, age : age + n] += segments[..., age, :]
        self._tail = summed[:, :, n:].clone()
        ready = summed[:, :, :n].flatten(2)
        n_skipped = min(self._n_unwanted, ready.shape[2])
        self._n_unwanted -= n_skipped
        return ready[:, :, n_skipped:]

    def _with_last(self, others: Tensor, is_end: bool) -> Tensor:
        """All sources: the last is the mixture minus the others, with their rounding."""
        n = self._mixture.shape[1] if is_end else others.shape[2]
        others, mixture = others[:, :, :n], self._mixture[:, :n]
        self._mixture = self._mixture[:, n:].clone()
        for other in others:
            mixture = mixture - other
        return torch.cat([others, mixture[None]])


def _all_bins(known: Tensor, n_bins: int) -> Tensor:
    """What `ondes.separation.masked_frames.all_bins` does, of a tensor."""
    n_known = known.shape[-1]
    missing = n_bins - n_known
    if missing <= 0:
        return known[..., :n_bins]
    above = known[..., n_known // 2 :].mean(dim=-1, keepdim=True)
    return torch.cat([known, above.expand(*known.shape[:-1], missing)], dim=-1)
