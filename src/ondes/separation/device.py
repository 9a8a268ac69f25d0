"""The transforms of a separation on a device: what `Stft` and `ondes.models.model` do, of tensors.

Samples cross once each way. Everything is in float32 and never in TF32
(`Compute.in_full_precision`): 99 % of the samples agree with the host's to 1e-5 of the mixture's
peak, and the others to 2e-3, where rounding decides when a frame is solved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.models.model import LOUDEST_SAMPLE, rate_of_bins
from ondes.nmf.backends import tensors
from ondes.nmf.backends.devices import Tensor, memory_errors, torch
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

__all__ = ["TensorInverse", "TensorTransform", "concatenate", "known_power", "levelled"]

Samples = NDArray[np.float32]


class TensorTransform:
    """Samples in, frames on the device out; see `ondes.signal.stft.StftStream`."""

    def __init__(self, stft: Stft, channels: tuple[int, ...], device: str) -> None:
        self._stft, self._channels, self._device = stft, channels, torch.device(device)
        self._window = torch.tensor(stft.window_array, device=device)
        self.n_samples = self._n_frames = 0
        self._held = torch.zeros((stft.n_padding, *channels), device=device)

    def windows(self, samples: Samples) -> Tensor:
        """Take the next samples; return those under each frame they complete."""
        self.n_samples += len(samples)
        there = tensors.upload(np.ascontiguousarray(samples), self._device)
        signal = torch.cat([self._held, there])
        n_frames = max(0, (len(signal) - self._stft.n_fft) // self._stft.hop_length + 1)
        return self._windows(signal, n_frames)

    def last_windows(self) -> Tensor:
        """Return the samples under the last frames, with zeros after the end."""
        n_left = self._stft.n_frames(self.n_samples) - self._n_frames
        missing = self._stft.span(n_left) - len(self._held)
        padding = self._held.new_zeros((max(0, missing), *self._channels))
        return self._windows(torch.cat([self._held, padding]), n_left)

    def transform(self, windows: Tensor) -> Tensor:
        """The frames of windows."""
        with memory_errors(self._device), torch.no_grad():
            if not len(windows):
                shape = (*windows.shape[:-1], self._stft.n_bins)
                return torch.zeros(shape, dtype=torch.complex64, device=self._device)
            frames: Tensor = torch.fft.rfft(windows * self._window)
            return frames

    def _windows(self, signal: Tensor, n_frames: int) -> Tensor:
        stft = self._stft
        self._n_frames += n_frames
        self._held = signal[n_frames * stft.hop_length :].clone()
        if not n_frames:
            return signal.new_zeros((0, *self._channels, stft.n_fft))
        return signal[: stft.span(n_frames)].unfold(0, stft.n_fft, stft.hop_length)


class TensorInverse:
    """Frames on the device in, samples out; see `ondes.signal.stft.InverseStftStream`."""

    def __init__(self, stft: Stft, channels: tuple[int, ...], device: str) -> None:
        self._stft = stft
        window = stft.dual_window_array[-stft.delay :].astype(np.float32)
        self._window = torch.from_numpy(window).to(device)
        self._n_hops = -(-stft.delay // stft.hop_length)
        self._tail = torch.zeros((self._n_hops - 1, *channels, stft.hop_length), device=device)
        self._n_unwanted, self.n_samples = stft.delay - stft.hop_length, 0
        self._ready = np.zeros((0, *channels), np.float32)

    def segments(self, frames: Tensor) -> Tensor:
        """What each frame contributes to the signal, in whole hops."""
        stft, length = self._stft, self._n_hops * self._stft.hop_length
        with memory_errors(self._tail.device), torch.no_grad():
            if not len(frames):
                return self._tail.new_zeros((*frames.shape[:-1], length))
            segments = torch.fft.irfft(frames, n=stft.n_fft)[..., -stft.delay :] * self._window
            return torch.nn.functional.pad(segments, (0, length - stft.delay))

    def add(self, segments: Tensor, n_samples: int | None = None) -> Samples:
        """Take the segments of the next frames; return the samples that no later frame changes."""
        hop, n = self._stft.hop_length, len(segments)
        with memory_errors(self._tail.device), torch.no_grad():
            summed = torch.nn.functional.pad(self._tail, (0, 0) * (self._tail.ndim - 1) + (0, n))
            for age in reversed(range(self._n_hops)):
                summed[age : age + n] += segments[..., age * hop : (age + 1) * hop]
            self._tail = summed[n:].clone()
            ready = summed[:n].movedim(1, -1) if summed.ndim == 3 else summed[:n]
            ready = ready.reshape(n * hop, *summed.shape[1:-1])
            n_skipped = min(self._n_unwanted, len(ready))
            self._n_unwanted -= n_skipped
            found = np.concatenate([self._ready, tensors.download(ready[n_skipped:].contiguous())])
        end = max(0, len(found) - hop)
        if n_samples is not None:
            end = max(0, min(len(found), n_samples - self.n_samples))
        self._ready = found[end:].copy()
        self.n_samples += end
        return found[:end]

    def flush(self, n_samples: int) -> Samples:
        """Return the last samples, so that the total is `n_samples`."""
        return self._ready[: n_samples - self.n_samples]


def levelled(frames: Tensor) -> tuple[Tensor, Tensor]:
    """What `ondes.models.model.levelled` does."""
    peak = torch.view_as_real(frames).abs().flatten(1).amax(dim=1) if len(frames) else None
    if peak is None:
        return frames, torch.zeros(0, device=frames.device)
    gain = 1 / peak.clamp(min=1 / LOUDEST_SAMPLE)
    return frames * gain.reshape(-1, *(1 for _ in frames.shape[1:])), peak


def known_power(frames: Tensor, audio: AudioSettings) -> Tensor:
    """What `ondes.models.model.known_power` does."""
    n_known = audio.n_bins
    power = torch.view_as_real(frames[..., :n_known]).square().sum(dim=-1)
    power = power.mean(dim=1) if power.ndim == 3 else power
    padded = torch.nn.functional.pad(power, (0, n_known - power.shape[-1])).contiguous()
    marked: Tensor = audio.mark_missing(padded, rate_of_bins(frames.shape[-1], audio))
    return marked


def with_above(known: Tensor, n_bins: int) -> Tensor:
    """What `ondes.models.model.with_above` does, but one value for each bin above."""
    n_known = known.shape[-1]
    missing = n_bins - n_known
    if missing <= 0:
        return known[..., :n_bins]
    above = known[..., n_known // 2 :].mean(dim=-1, keepdim=True)
    return torch.cat([known, above.expand(*known.shape[:-1], missing)], dim=-1)


def scaled(frames: Tensor, values: Tensor) -> Tensor:
    """What `ondes.models.model.scaled` does, of values for every bin."""
    return frames * values


def concatenate(parts: Any, axis: int = 0) -> Tensor:
    """What NumPy's does."""
    return torch.cat(parts, axis)
