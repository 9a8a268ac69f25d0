"""Recordings that are held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.rebatch import slices
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.segments import Recording, Segment
from ondes.signal.stft import Stft

__all__ = ["MemoryReader", "describe"]

Array = NDArray[Any]

CHECKED_AT_ONCE = 2**20


def describe(arrays: Sequence[Array], audio: AudioSettings) -> list[Recording]:
    """What `ondes.signal.segments.survey` is for files, for recordings held in memory.

    Parameters
    ----------
    arrays : sequence of arrays of shape (n_samples,) or (n_samples, n_channels)
        int16 or float32, at the sampling rate of `audio`.
    audio : AudioSettings

    Raises
    ------
    ValueError
        Where an array is of another shape or type, or not finite.

    Examples
    --------
    >>> describe([np.zeros(8000, np.float32)], AudioSettings(8000, Stft(64)))[0].n_frames
    251
    """
    for number, array in enumerate(arrays):
        is_signal = array.ndim == 1 or (array.ndim == 2 and array.shape[1] > 0)
        if not is_signal or array.dtype not in (np.int16, np.float32):
            raise ValueError(
                f"Samples of shape {array.shape} and type {array.dtype} must be (n_samples,) or "
                "(n_samples, n_channels) of int16 or float32."
            )
        if not all(np.isfinite(array[rows]).all() for rows in slices(len(array), CHECKED_AT_ONCE)):
            raise ValueError(f"Recording {number} has NaN or infinite samples.")
    return [
        Recording(
            f"recording {number}", audio.sr, len(array), audio.stft.n_frames(len(array)), True
        )
        for number, array in enumerate(arrays)
    ]


class MemoryReader:
    """What `ondes.signal.segment_reader.SegmentReader` is for files; int16 samples stay int16.

    Parameters
    ----------
    arrays : sequence of arrays of shape (n_samples,) or (n_samples, n_channels), int16 or float32
    stft : Stft

    Examples
    --------
    >>> reader = MemoryReader([np.ones(8000, np.float32)], Stft(64))
    >>> [(file, samples.shape) for file, samples in reader.read([Segment(0, 50, 10)])]
    [(0, (352,))]
    """

    def __init__(self, arrays: Sequence[Array], stft: Stft) -> None:
        self._arrays, self._stft = arrays, stft

    def read(self, segments: Iterable[Segment]) -> Iterator[tuple[int, Array]]:
        """The samples under each segment's frames in turn; zeros beyond the recording's ends."""
        stft = self._stft
        for file, first, n_frames in segments:
            start = first * stft.hop_length - stft.n_padding
            stop = start + stft.span(n_frames)
            array = self._arrays[file]
            if array.shape[1:] == (1,):
                array = array[:, 0]
            inside, before = array[max(start, 0) : stop], max(-start, 0)
            if len(inside) < stop - start:
                after = stop - start - before - len(inside)
                inside = np.pad(inside, ((before, after), *((0, 0) for _ in array.shape[1:])))
            yield file, inside

    def failures(self) -> list[FileError]:
        """None: the samples are there."""
        return []

    def close(self) -> None:
        """Nothing to release."""
