"""The power frames of one recording, a few at a time."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio import AudioError, RawFormat, open_blocks
from ondes.signal.stft import Stft, StftStream, power

__all__ = ["FrameReader", "FrameSettings"]

Frames = NDArray[np.float32]


@dataclass(frozen=True)
class FrameSettings:
    """How samples become frames."""

    stft: Stft
    sr: int
    block_size: int = 65536
    raw: RawFormat | None = None

    @property
    def n_columns(self) -> int:
        """Numbers in a frame."""
        return self.stft.n_bins

    def stream(self) -> StftStream:
        """What samples are pushed into."""
        return self.stft.stream()

    def finish(self, frames: Any) -> Frames:
        """What is left to do with what comes out of it."""
        return power(frames)


class FrameReader:
    """Reads a recording from its frame number `first` on.

    Attributes
    ----------
    place : int
        The next frame's number.
    failure : AudioError or None
        Why the recording ended early.
    """

    def __init__(self, source: str | Path | BinaryIO, how: FrameSettings, first: int = 0) -> None:
        self.place, self.failure = first, None
        self._source, self._how = source, how
        self._chunks = self._read(first)
        self._held: Frames = np.empty((0, how.n_columns), np.float32)

    failure: AudioError | None

    def take(self, n: int) -> Frames:
        """Next `n` frames, (n, n_bins); fewer only at the end, or at a `failure`."""
        parts, n_held = [self._held], len(self._held)
        while n_held < n and (chunk := self._next_chunk()) is not None:
            parts.append(chunk)
            n_held += len(chunk)
        joined = np.concatenate(parts)
        self._held = joined[n:]
        self.place += len(joined[:n])
        return joined[:n]

    def close(self) -> None:
        """Release the recording."""
        self._chunks.close()

    def _next_chunk(self) -> Frames | None:
        try:
            return next(self._chunks, None)
        except AudioError as error:
            self.failure = error
            return None

    def _read(self, place: int) -> Generator[Frames]:
        stft = self._how.stft
        # The first frames of a stream see zeros before its start: begin as many earlier.
        n_early = min(place, -(-stft.n_padding // stft.hop_length))
        stream, first = self._how.stream(), place - n_early
        with open_blocks(
            self._source,
            sr=self._how.sr,
            block_size=self._how.block_size,
            start=first * stft.hop_length,
            raw=self._how.raw,
            is_start_exact=False,
        ) as blocks:
            for block in itertools.chain(blocks, [None]):
                pushed = stream.flush() if block is None else stream.push(block)
                frames = self._how.finish(pushed)
                dropped = min(n_early, len(frames))
                n_early -= dropped
                yield frames[dropped:]
