"""Samples to mixed, levelled frames, all on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends.devices import Tensor, out_of_memory_said, torch, widest
from ondes.nmf.divergence import Array
from ondes.signal.silence import Loudest, threshold
from ondes.signal.stft import Stft

INT16_FULL_SCALE = 32768


class Piece(NamedTuple):
    """Samples of one recording in a row, int16 or float32: all that some frames span."""

    file: int
    samples: Array


@dataclass(frozen=True)
class MixedFrames:
    """The frames of a round in the order they are learned from; silent ones left out.

    Attributes
    ----------
    power : tensor of shape (n, n_bins), float32
    values : tensor of shape (n, n_bins), float32
        The same, each divided by its level.
    level : tensor of shape (n,), float64
    batch_sizes : list of int
    """

    power: Tensor
    values: Tensor
    level: Tensor
    batch_sizes: list[int]


class FrameMaker:
    """Makes the frames of one round after the other, beside whatever else the device does.

    Parameters
    ----------
    stft : Stft
    silence : float or None
        As of `ondes.signal.batches.Batches`.
    batch_size : int
    background : array of shape (n_bins,) or None
        A known variance, part of every frame's level.
    device : torch.device
    """

    def __init__(
        self,
        stft: Stft,
        silence: float | None,
        batch_size: int,
        background: Array | None,
        device: torch.device,
    ) -> None:
        self._stft, self._silence, self._batch_size = stft, silence, batch_size
        self._background_mean = 0.0 if background is None else float(background.mean())
        self._device = device
        self._window = torch.tensor(stft.window_array, device=device)
        self._crossing = torch.empty(0, dtype=torch.int16)
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def hear(self, pieces: Sequence[Piece], before: Loudest) -> tuple[Tensor, Loudest]:
        """The power frames with sound, shape (n, n_bins), and the loudest of each recording so far.

        The host waits for the device here, and nowhere else.
        """
        if not pieces:
            return torch.empty((0, self._stft.n_bins), device=self._device), before
        with out_of_memory_said(self._device), self._beside():
            power = self._power(pieces)
            energies = power.sum(dim=1).cpu().numpy()  # with them, all samples have crossed
            if self._silence is None:
                return power, before
            files = np.repeat([piece.file for piece in pieces], list(map(self.n_frames, pieces)))
            loudest = dict(before)
            is_kept = np.zeros(len(files), dtype=bool)
            for file in np.unique(files):
                energy = energies[files == file]
                loudest[int(file)] = max(loudest.get(int(file), 0.0), float(energy.max()))
                is_kept[files == file] = energy > threshold(self._silence, loudest[int(file)])
            return power[self._rows(np.flatnonzero(is_kept))], loudest

    def mix(self, power: Tensor, order: NDArray[np.intp]) -> MixedFrames:
        """Frames in a new order, levelled as `ondes.nmf.divergence.level_frames` does."""
        with out_of_memory_said(self._device), self._beside():
            power = power[self._rows(order)]
            level = power.sum(dim=1, dtype=widest(self._device)) / power.shape[1]
            level += self._background_mean
            sizes = [len(part) for part in torch.split(level, self._batch_size)]
            if self._silence is None:  # then frames of zeros are left, and shorten their batches
                sounding = level > 0
                sizes = [int(part.sum()) for part in torch.split(sounding.cpu(), self._batch_size)]
                power, level = power[sounding], level[sounding]
            values = (power / level[:, None]).float()
        if self._stream is not None:
            learning = torch.cuda.current_stream(self._device)
            learning.wait_stream(self._stream)
            for each in (power, values, level):
                each.record_stream(learning)
        return MixedFrames(power, values, level, sizes)

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """On a stream of its own, where there are streams: what was begun before goes on."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.stream(self._stream):
                yield

    def _rows(self, numbers: NDArray[np.intp]) -> Tensor:
        return torch.tensor(numbers, device=self._device)

    def n_frames(self, piece: Piece) -> int:
        """Frames that lie wholly in the samples."""
        return len(self._stft.windows(piece.samples))

    def _power(self, pieces: Sequence[Piece]) -> Tensor:
        lengths = [len(piece.samples) for piece in pieces]
        parts = torch.split(self._cross(pieces, sum(lengths)), lengths)
        windows = torch.cat(
            [part.unfold(0, self._stft.n_fft, self._stft.hop_length) for part in parts]
        )
        if windows.dtype == torch.int16:
            windows = windows.float() / INT16_FULL_SCALE
        spectra = torch.view_as_real(torch.fft.rfft(windows * self._window))
        return spectra.square().sum(dim=-1)

    def _cross(self, pieces: Sequence[Piece], n_samples: int) -> Tensor:
        """All samples on the device, by way of memory that it may fetch from by itself."""
        kinds = {piece.samples.dtype for piece in pieces}
        dtype = torch.int16 if kinds == {np.dtype(np.int16)} else torch.float32
        if len(self._crossing) < n_samples or self._crossing.dtype != dtype:
            is_pinned = self._device.type == "cuda"
            self._crossing = torch.empty(n_samples, dtype=dtype, pin_memory=is_pinned)
        whole = self._crossing[:n_samples]
        np.concatenate([_as(dtype, piece.samples) for piece in pieces], out=whole.numpy())
        return whole.to(self._device, non_blocking=True, copy=True)


def _as(dtype: torch.dtype, samples: Array) -> Array:
    if dtype == torch.float32 and samples.dtype == np.int16:
        return samples.astype(np.float32) / np.float32(INT16_FULL_SCALE)
    return samples
