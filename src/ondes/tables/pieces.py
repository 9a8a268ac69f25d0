"""A recording, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.stft import Frames, Stft

__all__ = ["Piece", "pieces_of"]

Samples = NDArray[np.float32]


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
