"""What every decoder is, and one that gives a span of another."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError

__all__ = ["DURATION_SLACK_S", "Decoder", "SpanDecoder"]

# A container's duration is rounded, and counts the encoder's padding.
DURATION_SLACK_S = 0.5


class Decoder(Protocol):
    """What every decoder has."""

    sr: int
    channels: int
    n_samples: int | None
    format: str
    is_seek_exact: bool

    def read(self) -> NDArray[np.float32]:
        """Next samples, (n, channels), valid until the next read; empty at the end."""

    def seek(self, sample: int) -> None:
        """Go to a sample; allowed where `is_seek_exact`."""

    def close(self) -> None:
        """Release the file."""


class SpanDecoder:
    """The samples of another decoder from one time to another.

    Parameters
    ----------
    decoder : Decoder
        At its beginning.
    name : str
        Of the recording.
    start, end : float
        In seconds; without `end`, up to the end of the recording.
    """

    def __init__(self, decoder: Decoder, name: str, start: float, end: float | None) -> None:
        self._decoder, self._name, self._start = decoder, name, start
        self.sr, self.channels, self.format = decoder.sr, decoder.channels, decoder.format
        self.is_seek_exact = decoder.is_seek_exact
        self._first = round(start * self.sr)
        last = None if end is None else max(self._first + 1, round(end * self.sr))
        self.n_samples: int | None = None
        if decoder.n_samples is not None:
            if decoder.n_samples <= self._first:
                raise self._too_short()
            total = decoder.n_samples
            self.n_samples = (total if last is None else min(last, total)) - self._first
        self._n_wanted = None if last is None else last - self._first
        self._position: int | None = None  # in the part; None before the first read

    def read(self) -> NDArray[np.float32]:
        """Next samples, (n, channels)."""
        if self._position is None:
            self._enter()
        assert self._position is not None
        block = self._next_block()
        if self._n_wanted is not None:
            block = block[: max(0, self._n_wanted - self._position)]
        self._position += len(block)
        if not self._position:
            raise self._too_short()
        return block

    def seek(self, sample: int) -> None:
        """Go to a sample of the part."""
        self._decoder.seek(self._first + sample)
        self._position, self._rest = sample, None

    def close(self) -> None:
        """Close the recording."""
        self._decoder.close()

    _rest: NDArray[np.float32] | None = None  # of a read that went beyond the beginning

    def _enter(self) -> None:
        if self._decoder.is_seek_exact and self._first:
            self.seek(0)
            return
        to_skip = self._first
        while to_skip and len(block := self._decoder.read()):
            self._rest = block[to_skip:].copy() if len(block) > to_skip else None
            to_skip = max(0, to_skip - len(block))
        self._position = 0

    def _next_block(self) -> NDArray[np.float32]:
        if self._n_wanted is not None and (self._position or 0) >= self._n_wanted:
            return np.empty((0, self.channels), np.float32)
        rest, self._rest = self._rest, None
        return self._decoder.read() if rest is None else rest

    def _too_short(self) -> FileError:
        return FileError(self._name, f"ends before {self._start:g} s")
