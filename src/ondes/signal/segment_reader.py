"""Segments of recordings, read from wherever they begin, as the samples under their frames."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.recordings import AudioBlocks, PathOrStream, RawFormat, open_blocks
from ondes.signal.schedule import Segment
from ondes.signal.stft import Stft
from ondes.signal.survey import Recording

__all__ = ["MemoryReader", "RecordingReader", "SegmentReader"]

Samples = NDArray[np.float32]

# Read at a time, of up to this many channels: a usual segment in one go.
FRAMES_AT_ONCE, CHANNELS_AT_ONCE = 2048, 8


class RecordingReader:
    """Reads one recording from its frame number `first` on.

    Parameters
    ----------
    recording : str, Path or binary stream
    audio : AudioSettings
    raw : RawFormat, optional
        The format of samples that have no header.
    first : int
    is_known : bool
        Whether the recording was found seekable.

    Attributes
    ----------
    place : int
        The next frame's number.
    failure : FileError or None
        Why the recording ended early.
    own_sr : int
        The recording's own sampling rate.
    """

    def __init__(
        self,
        recording: PathOrStream,
        audio: AudioSettings,
        raw: RawFormat | None = None,
        first: int = 0,
        is_known: bool = False,
    ) -> None:
        self.place = first
        self.failure: FileError | None = None
        self.own_sr = audio.sr
        self._stft, self._is_over, self._channels = audio.stft, False, 1
        start = first * audio.stft.hop_length - audio.stft.n_padding
        self._n_samples = max(0, start)  # of the recording, up to where we are
        self._blocks: AudioBlocks | None = None
        try:
            self._blocks = open_blocks(
                recording,
                sr=audio.sr,
                block_size=None,
                start=self._n_samples,
                raw=raw,
                is_start_exact=False,
                is_known=is_known,
            )
            self._channels, self.own_sr = self._blocks.channels, self._blocks.own_sr
        except FileError as error:
            self.failure = _alone(error)
        self._held = self._zeros(max(0, -start))  # from the next frame's start on

    @property
    def frames_at_once(self) -> int:
        """Frames to take at a time, so that many channels need no more memory than a few."""
        return max(1, FRAMES_AT_ONCE * CHANNELS_AT_ONCE // max(CHANNELS_AT_ONCE, self._channels))

    def take(self, n: int) -> Samples:
        """Samples under the next `n` frames; fewer only at the end, or at a `failure`.

        The frames lie wholly in them: beyond both ends of the recording there are zeros.

        Returns
        -------
        float32 array of shape (n_samples,) for one channel, (n_samples, n_channels) for more
        """
        parts, n_held, n_wanted = [self._held], len(self._held), self._stft.span(n)
        while n_held < n_wanted and (block := self._next_block()) is not None:
            parts.append(block)
            n_held += len(block)
        if n_held < n_wanted and not self._is_over:
            self._is_over = True
            n_left = self._stft.n_frames(self._n_samples) - self.place
            if n_left > 0 and self.failure is None:
                parts.append(self._zeros(self._stft.span(n_left) - n_held))
        joined = np.concatenate(parts)
        n_whole = len(self._stft.windows(joined[:n_wanted]))
        self._held = joined[n_whole * self._stft.hop_length :].copy()
        self.place += n_whole
        return joined[: self._stft.span(n_whole)]

    def close(self) -> None:
        """Release the recording."""
        if self._blocks is not None:
            self._blocks.close()

    def _zeros(self, n: int) -> Samples:
        return np.zeros(n if self._channels == 1 else (n, self._channels), np.float32)

    def _next_block(self) -> Samples | None:
        if self._blocks is None:
            return None
        try:
            block = next(self._blocks, None)
        except FileError as error:
            self.failure = _alone(error)
            return None
        if block is None:
            return None
        self._n_samples += len(block)
        return block[:, 0] if self._channels == 1 else block


def _alone(error: FileError) -> FileError:
    """Without its traceback and causes, which would keep the decoder's memory."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


Read = tuple[Iterable[tuple[int, Samples]], list[FileError]]


class SegmentReader:
    """Opens recordings where they are to be read, and keeps open those that are not seekable.

    What a segment gives does not depend on what was read before it: a recording that is not
    seekable is read from its beginning where necessary.

    Parameters
    ----------
    paths : sequence of str, Path or binary stream
    recordings : sequence of Recording
        What is known of each.
    audio : AudioSettings
    raw : RawFormat, optional
        The format of samples that have no header.
    n_threads : int
        Segments to read at a time. The result does not depend on it.

    Examples
    --------
    >>> import tempfile, soundfile
    >>> from ondes.signal.survey import survey
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(f"{folder}/a.wav", np.zeros(8000), 8000)
    ...     paths = [f"{folder}/a.wav"]
    ...     reader = SegmentReader(paths, survey(paths, audio), audio)
    ...     [(file, samples.shape) for file, samples in reader.read([Segment(0, 50, 10)])]
    [(0, (352,))]
    """

    def __init__(
        self,
        paths: Sequence[PathOrStream],
        recordings: Sequence[Recording],
        audio: AudioSettings,
        raw: RawFormat | None = None,
        n_threads: int = 1,
    ) -> None:
        if n_threads < 1:
            raise ValueError(f"n_threads must be at least 1, not {n_threads}.")
        self._paths, self._recordings, self._audio, self._raw = paths, recordings, audio, raw
        self._open: dict[int, RecordingReader] = {}
        self._broken: set[int] = set()
        self._rates: dict[int, int] = {}  # of streams
        self._ends: dict[int, int] = {}  # frames of those that are shorter than they claim
        self._failures: list[FileError] = []
        self._n_threads = n_threads
        self._pool = ThreadPoolExecutor(n_threads, "ondes-read") if n_threads > 1 else None

    def read(self, segments: Iterable[Segment]) -> Iterator[tuple[int, Samples]]:
        """The samples under each segment's frames in turn, with the number of the recording.

        A segment gives one or more arrays, each as of `RecordingReader.take`. The last segment of
        a recording gives all that is left.
        """
        for samples, failures in self._ahead(segments):
            yield from samples
            self._failures += failures

    def rate(self, file: int) -> float:
        """The recording's own sampling rate; of a stream, once it was read from."""
        return self._recordings[file].sr or self._rates.get(file, self._audio.sr)

    def failures(self) -> list[FileError]:
        """The recordings that ended early since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        """Release every recording."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for reader in self._open.values():
            reader.close()

    def _ahead(self, segments: Iterable[Segment]) -> Iterator[Read]:
        """Segments in their order, while threads read those that come next."""
        reading: deque[Future[Read]] = deque()
        for _, in_a_row in itertools.groupby(segments, key=self._one_thread):
            part = list(in_a_row)
            # One of unknown length may be a pipe that never ends, or falls silent without an end.
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
        """Equal for what one thread must read: all segments of a recording that cannot seek."""
        return segment[: 2 if self._recordings[segment.file].seekable else 1]

    def _read(self, segments: list[Segment]) -> Read:
        """Samples as they are asked for; the failures are complete once all of them are there."""
        failures: list[FileError] = []
        return (each for segment in segments for each in self._blocks(segment, failures)), failures

    def _read_whole(self, segments: list[Segment]) -> Read:
        samples, failures = self._read(segments)
        return list(samples), failures

    def _blocks(self, segment: Segment, failures: list[FileError]) -> Iterator[tuple[int, Samples]]:
        file, first, n_frames = segment
        if file in self._broken or first >= self._ends.get(file, first + 1):
            return
        reader = self._open.pop(file, None)
        recording, end = self._recordings[file], first + n_frames
        if reader is None or reader.place != first:
            path, is_known = self._paths[file], recording.seekable
            reader = RecordingReader(path, self._audio, self._raw, first, is_known)
            self._rates[file] = reader.own_sr
        is_last = recording.n_frames is not None and end >= recording.n_frames
        with contextlib.ExitStack() as closed_unless_kept:
            closed_unless_kept.callback(reader.close)
            while is_last or reader.place < end:
                n_wanted = reader.frames_at_once
                if not is_last:
                    n_wanted = min(end - reader.place, n_wanted)
                if len(samples := reader.take(n_wanted)) == 0:
                    break
                yield file, samples
            if reader.failure is not None:
                failures.append(reader.failure)
                if not recording.seekable:
                    self._broken.add(file)
            elif reader.place < end:
                self._ends[file] = reader.place
            if not recording.seekable and reader.place == end and not is_last:
                closed_unless_kept.pop_all()
                self._open[file] = reader


Array = NDArray[Any]


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

    def rate(self, file: int) -> float:
        """Any: arrays have the sampling rate asked for."""
        return math.inf

    def failures(self) -> list[FileError]:
        """None: the samples are there."""
        return []

    def close(self) -> None:
        """Nothing to release."""
