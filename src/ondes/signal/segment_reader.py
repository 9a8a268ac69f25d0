"""Reads segments of recordings, each from wherever it begins, as the samples under its frames."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio import AudioError, open_blocks
from ondes.signal.segments import FrameSettings, Recording, Segment, Source

__all__ = ["SegmentReader", "SpanReader"]

Samples = NDArray[np.float32]

SPAN_FRAMES = 2048  # a usual segment is one span


class SpanReader:
    """Reads one recording from its frame number `first` on.

    Attributes
    ----------
    place : int
        The next frame's number.
    failure : AudioError or None
        Why the recording ended early.
    """

    failure: AudioError | None

    def __init__(self, source: Source, how: FrameSettings, first: int = 0) -> None:
        self.place, self.failure = first, None
        self._stft, self._is_over = how.stft, False
        start = first * how.stft.hop_length - how.stft.n_padding
        self._held: Samples = np.zeros(max(0, -start), np.float32)  # from the next frame's start on
        self._n_samples = max(0, start)  # of the recording, up to where we are
        self._pieces = self._read(source, how)

    def take(self, n: int) -> Samples:
        """Samples under the next `n` frames; fewer only at the end, or at a `failure`.

        The frames lie wholly in them: there are zeros beyond both ends of the recording.
        """
        n_fft, hop_length = self._stft.n_fft, self._stft.hop_length
        parts, n_held, n_wanted = [self._held], len(self._held), (n - 1) * hop_length + n_fft
        while n_held < n_wanted and (piece := self._next_piece()) is not None:
            parts.append(piece)
            n_held += len(piece)
        if n_held < n_wanted and not self._is_over:
            self._is_over = True
            n_left = self._stft.n_frames(self._n_samples) - self.place
            if n_left > 0 and self.failure is None:
                parts.append(np.zeros((n_left - 1) * hop_length + n_fft - n_held, np.float32))
        joined = np.concatenate(parts)
        n_whole = len(self._stft.windows(joined[:n_wanted]))
        self._held = joined[n_whole * hop_length :].copy()
        self.place += n_whole
        return joined[: (n_whole - 1) * hop_length + n_fft] if n_whole else joined[:0]

    def close(self) -> None:
        """Release the recording."""
        self._pieces.close()

    def _next_piece(self) -> Samples | None:
        try:
            piece = next(self._pieces, None)
        except AudioError as error:
            self.failure = error
            return None
        self._n_samples += 0 if piece is None else len(piece)
        return piece

    def _read(self, source: Source, how: FrameSettings) -> Generator[Samples]:
        with open_blocks(
            source,
            sr=how.sr,
            block_size=None,
            start=self._n_samples,
            raw=how.raw,
            is_start_exact=False,
        ) as pieces:
            yield from pieces


class SegmentReader:
    """Opens recordings where they are to be read, and keeps open what must be read in a row.

    What a segment gives does not depend on what was read before it: a recording that cannot be
    entered in the middle is read from its beginning then.
    """

    def __init__(
        self, sources: list[Source], recordings: list[Recording], how: FrameSettings
    ) -> None:
        self._sources, self._recordings, self._how = sources, recordings, how
        self._open: dict[int, SpanReader] = {}
        self._broken: set[int] = set()
        self._failures: list[AudioError] = []

    def read(self, segment: Segment) -> Iterator[Samples]:
        """The samples under a segment's frames, in one or more spans; see `SpanReader.take`.

        The last segment of a recording has all that is left.
        """
        file, first, n_frames = segment
        if file in self._broken:
            return
        reader = self._open.pop(file, None)
        if reader is None or reader.place != first:
            reader = SpanReader(self._sources[file], self._how, first)
        recording, end = self._recordings[file], first + n_frames
        is_last = recording.n_frames is not None and end >= recording.n_frames
        with contextlib.ExitStack() as closed_unless_kept:
            closed_unless_kept.callback(reader.close)
            while is_last or reader.place < end:
                n_wanted = SPAN_FRAMES if is_last else min(end - reader.place, SPAN_FRAMES)
                if len(span := reader.take(n_wanted)) == 0:
                    break
                yield span
            if reader.failure is not None:
                self._failures.append(reader.failure)
                if not recording.can_jump:
                    self._broken.add(file)
            if not recording.can_jump and reader.place == end and not is_last:
                closed_unless_kept.pop_all()
                self._open[file] = reader

    def failures(self) -> list[AudioError]:
        """What went wrong since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        """Release every recording."""
        for reader in self._open.values():
            reader.close()
