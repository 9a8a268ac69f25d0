"""Reads segments of recordings, each from wherever it begins, as the samples under its frames."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

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
        parts, n_held, n_wanted = [self._held], len(self._held), self._stft.span(n)
        while n_held < n_wanted and (piece := self._next_piece()) is not None:
            parts.append(piece)
            n_held += len(piece)
        if n_held < n_wanted and not self._is_over:
            self._is_over = True
            n_left = self._stft.n_frames(self._n_samples) - self.place
            if n_left > 0 and self.failure is None:
                parts.append(np.zeros(self._stft.span(n_left) - n_held, np.float32))
        joined = np.concatenate(parts)
        n_whole = len(self._stft.windows(joined[:n_wanted]))
        self._held = joined[n_whole * self._stft.hop_length :].copy()
        self.place += n_whole
        return joined[: self._stft.span(n_whole)]

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


_Spans = tuple[Iterable[tuple[int, Samples]], list[AudioError]]


class SegmentReader:
    """Opens recordings where they are to be read, and keeps open what must be read in a row.

    What a segment gives does not depend on what was read before it: a recording that cannot be
    entered in the middle is read from its beginning then.

    Parameters
    ----------
    sources : list of str, Path or binary stream
    recordings : list of Recording
        What is known of each.
    how : FrameSettings
    n_threads : int
        Segments to read at a time.
    """

    def __init__(
        self,
        sources: list[Source],
        recordings: list[Recording],
        how: FrameSettings,
        n_threads: int = 1,
    ) -> None:
        self._sources, self._recordings, self._how = sources, recordings, how
        self._open: dict[int, SpanReader] = {}
        self._broken: set[int] = set()
        self._failures: list[AudioError] = []
        self._n_threads = n_threads
        self._pool = ThreadPoolExecutor(n_threads, "ondes-read") if n_threads > 1 else None

    def read(self, segments: Iterable[Segment]) -> Iterator[tuple[int, Samples]]:
        """The samples under each segment's frames in turn, with the number of the recording.

        A segment is one or more spans, see `SpanReader.take`. The last one of a recording has all
        that is left.
        """
        for spans, failures in self._ahead(segments):
            yield from spans
            self._failures += failures

    def failures(self) -> list[AudioError]:
        """What went wrong since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        """Release every recording."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for reader in self._open.values():
            reader.close()

    def _ahead(self, segments: Iterable[Segment]) -> Iterator[_Spans]:
        """The spans of some segments after the other; threads read those that come next."""
        reading: deque[Future[_Spans]] = deque()
        for _, in_a_row in itertools.groupby(segments, key=self._one_thread):
            part = list(in_a_row)
            # One of unknown length may be a pipe that never ends, or has nothing to say for ever.
            if self._pool is None or self._recordings[part[0].file].n_frames is None:
                yield from (each.result() for each in reading)
                reading.clear()
                yield self._read(part)
            else:
                reading.append(self._pool.submit(self._read_whole, part))
            if len(reading) > self._n_threads:
                yield reading.popleft().result()
        yield from (each.result() for each in reading)

    def _one_thread(self, segment: Segment) -> tuple[int, ...]:
        """Alike for what one thread must read: segments of a recording that is read in a row."""
        return segment[: 2 if self._recordings[segment.file].can_jump else 1]

    def _read(self, segments: list[Segment]) -> _Spans:
        """Spans as they are asked for, and what has gone wrong once they are all there."""
        failures: list[AudioError] = []
        return (span for each in segments for span in self._spans(each, failures)), failures

    def _read_whole(self, segments: list[Segment]) -> _Spans:
        spans, failures = self._read(segments)
        return list(spans), failures

    def _spans(self, segment: Segment, failures: list[AudioError]) -> Iterator[tuple[int, Samples]]:
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
                yield file, span
            if reader.failure is not None:
                failures.append(reader.failure)
                if not recording.can_jump:
                    self._broken.add(file)
            if not recording.can_jump and reader.place == end and not is_last:
                closed_unless_kept.pop_all()
                self._open[file] = reader
