"""The rounds of `ondes.signal.batches`, with their frames made and mixed on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from ondes.card.frames import FrameMaker, MixedFrames, Piece
from ondes.nmf.backends.devices import Tensor
from ondes.nmf.divergence import Array
from ondes.signal.audio import AudioError
from ondes.signal.batches import Batches
from ondes.signal.segments import Recording, Segment
from ondes.signal.silence import Loudest
from ondes.signal.stft import Stft


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
        return cast(Iterator[MixedFrames], super().__iter__())

    def _sounding(  # type: ignore[override]
        self, spans: Iterator[tuple[int, Array]], n_expected: int, before: Loudest
    ) -> tuple[Tensor, Loudest, int]:
        pieces = [Piece(file, span) for file, span in spans]
        power, loudest = self._maker.hear(pieces, before)
        return power, loudest, sum(map(self._maker.n_frames, pieces))

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
        self._samples = recordings

    def _open_reader(self) -> Any:
        return _MemoryReader(self._samples, self.how.stft)


class _MemoryReader:
    """What `SegmentReader` is for recordings in files."""

    def __init__(self, recordings: Sequence[Array], stft: Stft) -> None:
        self._recordings, self._stft = recordings, stft

    def read(self, segments: Iterable[Segment]) -> Iterator[tuple[int, Array]]:
        """The samples under each segment's frames in turn; zeros beyond the recording's ends."""
        stft = self._stft
        for file, first, n_frames in segments:
            start = first * stft.hop_length - stft.n_padding
            stop = start + stft.span(n_frames)
            inside, before = self._recordings[file][max(start, 0) : stop], max(-start, 0)
            if len(inside) < stop - start:
                inside = np.pad(inside, (before, stop - start - before - len(inside)))
            yield file, inside

    def failures(self) -> list[AudioError]:
        return []

    def close(self) -> None:
        pass
