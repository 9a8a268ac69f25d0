"""A part of a recording, from one time to another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.locations import Location, Part, RemotePath, as_location, is_location
from ondes.signal.recordings import AudioBlocks, PathOrStream, RawFormat, open_blocks

__all__ = ["Excerpt", "open_excerpt"]

Samples = NDArray[np.float32]


def open_excerpt(
    recording: PathOrStream,
    *,
    start: float = 0.0,
    end: float | None = None,
    sr: int | None = None,
    block_size: int = 65536,
    raw: RawFormat | None = None,
) -> Excerpt:
    """Open a part of a recording and read it in float32 blocks, at constant memory.

    Parameters
    ----------
    recording : str, Path or binary stream
        As in `ondes.signal.recordings.open_blocks`; a stream is read from its beginning.
    start, end : float
        In seconds; without `end`, up to the end of the recording.
    sr : int, optional
        Sampling rate of the blocks, the recording's own if not given.
    block_size : int
        Samples in every block but the last.
    raw : RawFormat, optional
        The format of samples that have no header.

    Raises
    ------
    FileError
        Here or while reading, after all that could be read; also where the recording ends before
        `start`.

    Examples
    --------
    >>> import io
    >>> stream, raw = io.BytesIO(bytes(32000)), RawFormat(8000)
    >>> with open_excerpt(stream, start=0.5, end=0.75, raw=raw) as blocks:
    ...     sum(map(len, blocks))
    2000
    """
    if not 0 <= start < float("inf") or not (end is None or start < end < float("inf")):
        raise ValueError(f"start={start!r} must be 0 or more, and end={end!r} after it.")
    blocks = open_blocks(recording, sr=sr, block_size=block_size, raw=raw)
    first = n_to_skip = round(start * blocks.sr)
    if first and _is_file(recording):
        blocks.close()
        blocks = open_blocks(recording, sr=sr, block_size=block_size, start=first, raw=raw)
        n_to_skip = 0
    last = None if end is None else max(first + 1, round(end * blocks.sr))
    return Excerpt(blocks, str(recording), first, last, n_to_skip)


def _is_file(recording: PathOrStream) -> bool:
    if not is_location(recording):
        return False
    location = as_location(cast(str | Location, recording))
    location = location.path if isinstance(location, Part) else location
    return isinstance(location, RemotePath) or location.is_file()


class Excerpt:
    """Iterator and context manager over the blocks of a part; made by `open_excerpt`.

    Attributes
    ----------
    sr : int
        Sampling rate of the blocks.
    channels : int
    n_samples : int or None
        Samples of each channel in the part, None where unknown.
    n_samples_total : int or None
        The same of the whole recording.
    """

    def __init__(
        self, blocks: AudioBlocks, name: str, first: int, last: int | None, n_to_skip: int
    ) -> None:
        self._source = blocks
        self.sr, self.channels = blocks.sr, blocks.channels
        self.n_samples_total = blocks.n_samples
        ends = [each for each in (last, blocks.n_samples) if each is not None]
        is_known = blocks.n_samples is not None
        self.n_samples = max(0, min(ends) - first) if is_known else None
        self._blocks = self._cut(name, n_to_skip, None if last is None else last - first, first)

    def __iter__(self) -> Iterator[Samples]:
        return self

    def __next__(self) -> Samples:
        return next(self._blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def _cut(
        self, name: str, n_to_skip: int, n_wanted: int | None, first: int
    ) -> Iterator[Samples]:
        n_given = 0
        for block in self._source:
            part = block[n_to_skip:]
            n_to_skip -= len(block) - len(part)
            if n_wanted is not None:
                part = part[: n_wanted - n_given]
            n_given += len(part)
            if len(part):
                yield part
            if n_given == n_wanted:
                return
        if first and not n_given:
            raise FileError(name, f"ends before {first / self.sr:g} s")
