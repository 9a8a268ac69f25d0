"""Reads segments of recordings, each from wherever it begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio import AudioError
from ondes.signal.frame_reader import FrameReader, FrameSettings
from ondes.signal.segments import Recording, Segment, Source

__all__ = ["SegmentReader"]

Frames = NDArray[np.float32]


class SegmentReader:
    """Opens recordings where they are to be read, and keeps open what must be read in a row.

    What a segment gives does not depend on what was read before it: a recording that cannot be
    entered in the middle is read from its beginning then.
    """

    def __init__(
        self, sources: list[Source], recordings: list[Recording], how: FrameSettings
    ) -> None:
        self._sources, self._recordings, self._how = sources, recordings, how
        self._open: dict[int, FrameReader] = {}
        self._broken: set[int] = set()
        self._failures: list[AudioError] = []

    def read(self, segment: Segment) -> Frames:
        """The frames of a segment; the last one of a recording has all that is left."""
        file, first, n_frames = segment
        if file in self._broken:
            return np.empty((0, self._how.n_columns), np.float32)
        reader = self._open.pop(file, None)
        if reader is None or reader.place != first:
            reader = FrameReader(self._sources[file], self._how, first)
        taken = [reader.take(n_frames)]
        recording = self._recordings[file]
        is_last = recording.n_frames is not None and first + n_frames >= recording.n_frames
        while is_last and len(taken[-1]):
            taken.append(reader.take(n_frames))
        if reader.failure is not None:
            self._failures.append(reader.failure)
            if not recording.can_jump:
                self._broken.add(file)
        if recording.can_jump or is_last or len(taken[0]) < n_frames:
            reader.close()
        else:
            self._open[file] = reader
        return np.concatenate(taken)

    def failures(self) -> list[AudioError]:
        """What went wrong since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        """Release every recording."""
        for reader in self._open.values():
            reader.close()
