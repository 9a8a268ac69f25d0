"""Power frames of a recording that comes in blocks, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.rebatch import slices
from ondes.signal.stft import Stft, mean_power

__all__ = ["power_frames"]

FRAMES_AT_ONCE = 4096


def power_frames(blocks: Iterable[ArrayLike], stft: Stft) -> Iterator[NDArray[np.float32]]:
    """The mean power of the channels, frame by frame, at constant memory.

    Parameters
    ----------
    blocks : iterable of arrays of shape (n,) or (n, n_channels)
        For example from `ondes.signal.recordings.open_blocks`.
    stft : Stft

    Yields
    ------
    float32 array of shape (n_frames, n_bins)

    Examples
    --------
    >>> import numpy as np
    >>> [frames.shape for frames in power_frames([np.ones(6), np.ones(6)], Stft(8))]
    [(1, 5), (2, 5), (1, 5)]
    """
    stream = None
    for block in map(np.asarray, blocks):
        if stream is None:
            stream = stft.stream(block.shape[1] if block.ndim == 2 else None)
        for rows in slices(len(block), FRAMES_AT_ONCE * stft.hop_length):
            yield mean_power(stream.push(block[rows]))
    if stream is not None:
        yield mean_power(stream.flush())
