"""A recording, piece by piece, read and transformed by a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from queue import Full, Queue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.stft import Frames, Stft

__all__ = ["Piece", "pieces_of", "read_ahead"]

Samples = NDArray[np.float32]

PIECES_AHEAD = 4


class Piece(NamedTuple):
    """The next samples of a recording, or the frames that they complete."""

    n_samples: int
    samples: Samples | None = None
    frames: Frames | None = None


def pieces_of(blocks: Iterable[Samples], stft: Stft | None) -> Iterator[Piece]:
    """A recording as samples or, where all streams need the same ones, as frames."""
    if stft is None:
        yield from (Piece(len(block), samples=block) for block in blocks)
        return
    stream, damage = None, None
    try:
        for block in blocks:
            stream = stream or stft.stream(block.shape[1])
            yield Piece(len(block), frames=stream.push(block))
    except FileError as error:
        damage = error
    if stream is not None:
        yield Piece(0, frames=stream.flush())
    if damage is not None:
        raise damage


def read_ahead(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same, of which another thread reads the next ones."""
    queue: Queue[Piece | BaseException | None] = Queue(PIECES_AHEAD)
    stopped = threading.Event()

    def put(each: Piece | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(Full):
                queue.put(each, timeout=0.1)
                return

    def read() -> None:
        try:
            for piece in pieces:
                put(piece)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while (each := queue.get()) is not None:
            if isinstance(each, BaseException):
                raise each
            yield each
    finally:
        stopped.set()
        reader.join()
