"""The rounds of `ondes.signal.batches`, with their frames made and mixed on a device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ondes.card.frames import FrameMaker, MixedFrames, Piece
from ondes.nmf.backends.devices import Tensor
from ondes.nmf.divergence import Array
from ondes.signal.audio import AudioError
from ondes.signal.batches import Batches
from ondes.signal.frame_reader import FrameSettings
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.segments import Recording, Segment
from ondes.signal.silence import Loudest
from ondes.signal.stft import Stft, StftStream


class DeviceRounds(Batches):
    """The same batches in the same order, but all of a round at a time, and on a device.

    Samples are decoded and cross to the device while it is busy with the round before.

    Parameters
    ----------
    maker : FrameMaker
    *others, **settings
        As of `Batches`.
    """

    def __init__(self, maker: FrameMaker, *others: Any, **settings: Any) -> None:
        super().__init__(*others, **settings)
        self._maker = maker

    def __iter__(self) -> Iterator[MixedFrames]:  # type: ignore[override]
        with contextlib.closing(self._reader):
            yield from cast(Iterator[MixedFrames], super().__iter__())

    @cached_property
    def _reader(self) -> Any:
        return SegmentReader(self.sources, self.recordings, SampleSettings(**vars(self.how)))

    def _draw(self, start: Any, order: Any, readers: Any, stop: threading.Event) -> Any:
        return super()._draw(start, order, self._reader, stop)

    def _sounding(  # type: ignore[override]
        self, parts: Iterator[tuple[int, Array]], before: Loudest
    ) -> tuple[Tensor, Loudest, int]:
        read = [(file, windows) for file, windows in parts if len(windows)]
        pieces = [Piece(file, joined(windows, self.how.stft)) for file, windows in read]
        power, loudest = self._maker.hear(pieces, before)
        return power, loudest, sum(len(windows) for _, windows in read)

    def _cut(self, drawn: Any) -> Iterator[MixedFrames]:  # type: ignore[override]
        order = drawn.order[drawn.start.n_given * self.batch_size :]
        mixed = self._maker.mix(drawn.frames, order)
        self._position, self._n_done = drawn.end, drawn.end.n_read
        if any(mixed.batch_sizes):
            yield mixed


class RoundsInMemory(DeviceRounds):
    """The rounds of recordings that are held in memory.

    Parameters
    ----------
    maker : FrameMaker
    recordings : sequence of arrays of shape (n_samples,), int16 or float32
    stft, sr, batch_size, **settings
        As of `Batches`.
    """

    def __init__(
        self,
        maker: FrameMaker,
        recordings: Sequence[Array],
        stft: Stft,
        sr: int,
        batch_size: int,
        **settings: Any,
    ) -> None:
        super().__init__(maker, [], stft, sr, batch_size, **settings)
        self.recordings = [
            Recording(
                f"recording {n}", sr, len(samples), stft.n_frames(len(samples)), can_jump=True
            )
            for n, samples in enumerate(recordings)
        ]
        self._reader = _MemoryReader(recordings, stft)


class _MemoryReader:
    """What `SegmentReader` is for recordings in files."""

    def __init__(self, recordings: Sequence[Array], stft: Stft) -> None:
        self._recordings, self._stft = recordings, stft

    def read(self, segment: Segment) -> Array:
        """The samples under each frame, (n_frames, n_fft); zeros beyond the recording's ends."""
        stft, samples = self._stft, self._recordings[segment.file]
        start = segment.first * stft.hop_length - stft.n_padding
        stop = start + (segment.n_frames - 1) * stft.hop_length + stft.n_fft
        inside, before = samples[max(start, 0) : stop], max(-start, 0)
        if len(inside) < stop - start:
            inside = np.pad(inside, (before, stop - start - before - len(inside)))
        return windows_of(inside, stft)

    def failures(self) -> list[AudioError]:
        return []

    def close(self) -> None:
        pass


# ---- Frames before their transform ----


class SampleSettings(FrameSettings):
    """Have a `FrameReader` give the samples under each frame instead of its power."""

    @property
    def n_columns(self) -> int:
        """Samples under a frame."""
        return self.stft.n_fft

    def stream(self) -> StftStream:
        """What samples are pushed into."""
        return _WindowStream(self.stft)

    def finish(self, frames: Array) -> Array:
        """What is left to do with what comes out of it: nothing."""
        return frames


class _WindowStream(StftStream):
    def _advance(self, signal: Array) -> Array:
        windows = windows_of(signal, self.stft)
        self._held = signal[len(windows) * self.stft.hop_length :].copy()
        return windows


def windows_of(samples: Array, stft: Stft) -> Array:
    """The samples under each whole frame, (n_frames, n_fft): a view."""
    if len(samples) < stft.n_fft:
        return np.empty((0, stft.n_fft), samples.dtype)
    return sliding_window_view(samples, stft.n_fft)[:: stft.hop_length]


def joined(windows: Array, stft: Stft) -> Array:
    """The samples that `windows_of` parted."""
    new = windows[1:, stft.n_fft - stft.hop_length :]
    return np.concatenate([windows[0], new.ravel()])
