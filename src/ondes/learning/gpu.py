"""Frames made on a GPU, so that learning there takes none from the host.

Samples are copied in rounds, as they were decoded; Fourier transform, levels, shuffling and every
update of the dictionary happen on the device. The next round is copied while this one is learned
from, so the recordings may be far larger than the device's memory. The batches are those of the
host in the same order, up to rounding.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends.devices import Tensor, memory_errors, ready, torch
from ondes.nmf.divergence import Array
from ondes.signal.audio_settings import AudioSettings, Loudest, is_active, loudest_of, merge
from ondes.signal.batches import Rounds
from ondes.signal.frame_reader import FramesRead, SampleReader
from ondes.signal.pcm import in_range
from ondes.signal.schedule import Segment

__all__ = ["DeviceRounds", "FrameMaker", "GpuFrameReader"]

INT16_FULL_SCALE = 32768


class Piece(NamedTuple):
    """Consecutive samples of one recording, (n,) or (n, n_channels), int16 or float32."""

    file: int
    samples: Array
    rate: float = math.inf  # of the recording itself


class DeviceRounds:
    """The mini-batches of the host, all of a round in one tensor.

    Parameters
    ----------
    rounds : Rounds
        With a `GpuFrameReader`.
    maker : FrameMaker
    """

    def __init__(self, rounds: Rounds, maker: FrameMaker) -> None:
        self._rounds, self._maker, self.schedule = rounds, maker, rounds.schedule

    def __iter__(self) -> Iterator[Tensor]:
        with contextlib.closing(cast(Generator[Any], iter(self._rounds))) as rounds:
            for drawn in rounds:
                n_done = drawn.start.n_given * self.schedule.batch_size
                shuffled = self._maker.shuffle(drawn.frames, drawn.order[n_done:])
                self.schedule.advance(drawn.end)
                yield shuffled


class GpuFrameReader:
    """Reads segments as the non-silent power frames of a round, on a device."""

    def __init__(self, samples: SampleReader, maker: FrameMaker) -> None:
        self._samples, self._maker = samples, maker

    def read(self, segments: Sequence[Segment], loudest: Loudest) -> FramesRead:
        """The frames of a round; see `ondes.signal.frame_reader.FrameReader`."""
        pieces = [
            Piece(file, samples, self._samples.rate(file))
            for file, samples in self._samples.read(segments)
        ]
        power, loudest = self._maker.active_power(pieces, loudest)
        n_read = sum(map(self._maker.n_frames, pieces))
        return FramesRead(power, loudest, n_read, self._samples.failures())

    def close(self) -> None:
        """Release every recording."""
        self._samples.close()


class FrameMaker:
    """Makes the frames of one round after the other, beside whatever else the device does.

    Parameters
    ----------
    audio : AudioSettings
    device : str
    """

    def __init__(self, audio: AudioSettings, device: str) -> None:
        ready(device)
        self._audio, self._stft = audio, audio.stft
        self._n_bins, self._top_db = audio.n_bins, audio.top_db
        self._is_magnitude = audio.spectrum == "magnitude"
        self._device = torch.device(device)
        self._window = torch.tensor(audio.stft.window_array, device=self._device)
        self._staging = torch.empty(0, dtype=torch.int16)
        self._stream: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def active_power(self, pieces: Sequence[Piece], before: Loudest) -> tuple[Tensor, Loudest]:
        """The non-silent power frames, shape (n, n_bins), and the loudest of each recording.

        The host waits for the device here, and nowhere else.
        """
        if not pieces:
            return torch.empty((0, self._n_bins), device=self._device), before
        n_frames = list(map(self.n_frames, pieces))
        scaled, exponents = zip(*(in_range(piece.samples) for piece in pieces), strict=True)
        pieces = [piece._replace(samples=each) for piece, each in zip(pieces, scaled, strict=True)]
        with memory_errors(self._device), self._own_stream():
            power = self._power(pieces)
            known = [self._audio.bins_of_rate(piece.rate) for piece in pieces]
            energies = power.sum(dim=1).cpu().numpy()  # now all samples have been copied
            missing = np.repeat(known, n_frames) if min(known) < self._n_bins else None
            if self._top_db is None:
                return self._spectrum(power, missing), before
            if any(exponents):
                doubled = np.repeat(2 * np.array(exponents), n_frames)
                energies = np.ldexp(energies.astype(np.float64), doubled)
            files = np.repeat([piece.file for piece in pieces], n_frames)
            loudest = merge(before, loudest_of(energies, files))
            active = is_active(energies, files, loudest, self._top_db)
            missing = None if missing is None else missing[active]
            return self._spectrum(power[self._rows(np.flatnonzero(active))], missing), loudest

    def _spectrum(self, power: Tensor, n_known: Array | None) -> Tensor:
        """Power or magnitude; NaN beyond so many bins of each frame."""
        if n_known is not None:
            bins = torch.arange(self._n_bins, device=self._device)
            power = power.masked_fill(bins >= self._rows(n_known)[:, None], torch.nan)
        return power.sqrt() if self._is_magnitude else power

    def shuffle(self, power: Tensor, order: NDArray[np.intp]) -> Tensor:
        """Frames in a new order, for the stream that trains."""
        with memory_errors(self._device), self._own_stream():
            shuffled = power[self._rows(order)]
        if self._stream is not None:
            training = torch.cuda.current_stream(self._device)
            training.wait_stream(self._stream)
            shuffled.record_stream(training)
        return shuffled

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Use a CUDA stream of its own, so that training meanwhile continues on the default one."""
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
        """Mean power of the channels, as `ondes.signal.stft.mean_power`."""
        channels = [piece.samples.reshape(len(piece.samples), -1).T for piece in pieces]
        signals = [signal for piece in channels for signal in piece]
        parts = torch.split(self._copied(signals), list(map(len, signals)))
        windows = torch.cat(
            [part.unfold(0, self._stft.n_fft, self._stft.hop_length) for part in parts]
        )
        if windows.dtype == torch.int16:
            windows = windows.float() / INT16_FULL_SCALE
        spectra = torch.fft.rfft(windows * self._window)[:, : self._n_bins]
        power = torch.view_as_real(spectra).square().sum(dim=-1)
        counts = list(map(len, channels))
        if max(counts) == 1:
            return power
        n_frames = list(map(self.n_frames, pieces))
        blocks = torch.split(power, [n * count for n, count in zip(n_frames, counts, strict=True)])
        return torch.cat(
            [
                block.view(count, n, -1).mean(dim=0)
                for block, n, count in zip(blocks, n_frames, counts, strict=True)
            ]
        )

    def _copied(self, signals: Sequence[Array]) -> Tensor:
        """All samples on the device, by way of pinned memory that it can read by itself."""
        n_samples = sum(map(len, signals))
        dtypes = {signal.dtype for signal in signals}
        dtype = torch.int16 if dtypes == {np.dtype(np.int16)} else torch.float32
        if len(self._staging) < n_samples or self._staging.dtype != dtype:
            is_pinned = self._device.type == "cuda"
            self._staging = torch.empty(n_samples, dtype=dtype, pin_memory=is_pinned)
        staged = self._staging[:n_samples]
        np.concatenate([_as(dtype, signal) for signal in signals], out=staged.numpy())
        return staged.to(self._device, non_blocking=True, copy=True)


def _as(dtype: torch.dtype, samples: Array) -> Array:
    if dtype == torch.float32 and samples.dtype == np.int16:
        return samples.astype(np.float32) / np.float32(INT16_FULL_SCALE)
    return samples
