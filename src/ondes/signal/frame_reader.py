"""The power frames of one recording, a few at a time, silent ones left out."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio import AudioError, RawFormat, open_blocks
from ondes.signal.stft import Stft, power

__all__ = ["FrameReader", "FrameSettings", "Place"]

Frames = NDArray[np.float32]


@dataclass(frozen=True)
class FrameSettings:
    """How samples become frames."""

    stft: Stft
    sr: int
    silence: float | None
    block_size: int
    raw: RawFormat | None


class Place(NamedTuple):
    """Where a reader stands: all it takes to open another that goes on with the same bits."""

    file: int
    frame: int = 0
    loudest: float = 0.0


class _Chunk(NamedTuple):
    """The frames kept of one block, the place after each, and the place after the block."""

    frames: Frames
    after: list[Place]
    end: Place


class FrameReader:
    """Reads a recording from a place on.

    The loudest frame so far is the recording's own, so that which frames are silent depends on
    that recording alone, at whatever level the others are.
    """

    def __init__(self, source: str | Path | BinaryIO, place: Place, how: FrameSettings) -> None:
        self.source, self.place, self._how = source, place, how
        self.failure: AudioError | None = None
        self._chunks = self._read(place)
        self._chunk = _Chunk(np.empty((0, how.stft.n_bins), np.float32), [], place)
        self._n_used = 0

    def take(self, n: int) -> Frames:
        """Next `n` frames, (n, n_bins); fewer only at the end, or at a `failure`."""
        taken = [self._chunk.frames[:0]]
        while n and self._is_supplied():
            part = self._chunk.frames[self._n_used : self._n_used + n]
            taken.append(part)
            n -= len(part)
            self._n_used += len(part)
            is_used_up = self._n_used == len(self._chunk.frames)
            self.place = self._chunk.end if is_used_up else self._chunk.after[self._n_used - 1]
        return np.concatenate(taken)

    def close(self) -> None:
        """Release the recording."""
        self._chunks.close()

    def _is_supplied(self) -> bool:
        if self._n_used < len(self._chunk.frames):
            return True
        try:
            self._chunk, self._n_used = next(self._chunks), 0
        except StopIteration:
            return False
        except AudioError as error:
            self.failure = error
            return False
        return True

    def _read(self, place: Place) -> Generator[_Chunk]:
        stft = self._how.stft
        # The first frames of a stream see zeros before its start: begin as many earlier.
        n_early = min(place.frame, -(-stft.n_padding // stft.hop_length))
        stream, first = stft.stream(), place.frame - n_early
        with open_blocks(
            self.source,
            sr=self._how.sr,
            block_size=self._how.block_size,
            start=first * stft.hop_length,
            raw=self._how.raw,
        ) as blocks:
            for block in itertools.chain(blocks, [None]):
                frames = power(stream.flush() if block is None else stream.push(block))
                dropped = min(n_early, len(frames))
                n_early -= dropped
                chunk = self._keep(frames[dropped:], place)
                place = chunk.end
                yield chunk

    def _keep(self, frames: Frames, place: Place) -> _Chunk:
        end = place._replace(frame=place.frame + len(frames))
        indices = range(place.frame + 1, end.frame + 1)
        if self._how.silence is None or not len(frames):
            return _Chunk(frames, [place._replace(frame=i) for i in indices], end)
        energy = frames.sum(axis=1)
        loudest = np.maximum.accumulate(np.maximum(energy, np.float32(place.loudest)))
        kept = energy > np.float32(10 ** (self._how.silence / 10)) * loudest
        after = list(map(partial(Place, place.file), indices, loudest.tolist()))
        return _Chunk(frames[kept], list(itertools.compress(after, kept)), after[-1])
