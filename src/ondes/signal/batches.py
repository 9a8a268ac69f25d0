"""Mini-batches of power frames, shuffled over many recordings.

A `Schedule` decides what is read in which order, a `FrameReader` reads it, and here the frames of
a round are cut into batches, while a thread reads the next round.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.prefetch import prefetch
from ondes.rebatch import slices
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.finding import canonical_order
from ondes.signal.frame_reader import FrameReader, Frames, HostFrameReader
from ondes.signal.locations import Location, RemotePath, Span, as_location
from ondes.signal.recordings import PathOrStream, RawFormat
from ondes.signal.schedule import Position, Schedule, Segment
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.survey import survey

__all__ = ["MiniBatches", "Round", "Rounds", "frame_batches"]


@dataclass(frozen=True)
class Round:
    """The frames of a round.

    Attributes
    ----------
    start, end : Position
        Where it starts, and where the next one does.
    frames : array or tensor of shape (n, n_bins)
        Non-silent frames, in the order they were read.
    order : array of shape (n,)
        The order in which they are given out; see `Schedule.permutation`.
    """

    start: Position
    end: Position
    frames: Any
    order: NDArray[np.intp]


class Rounds:
    """The rounds of a schedule, from its current position on, read ahead in a thread.

    Iterating does not change the position: whoever uses the rounds advances the schedule.

    Parameters
    ----------
    schedule : Schedule
    open_reader : callable
        Gives the `FrameReader`; called and closed wherever the reading is done.
    prefetch : int
        Rounds to read ahead in a thread; 0 reads them when they are asked for.
    on_error : callable, optional
        Called once for each recording that ended early, or could not be read at all, with its path
        and the `FileError`: the frames before the failure count, and the other recordings follow.
        Without it the error is raised.
    should_stop : callable, optional
        Asked before each round and while waiting for it: iterating ends where it returns True.
    is_wanted : callable, optional
        Asked, wherever the reading is done, with the position of each round: reading ends before
        the first one for which it returns False.
    """

    def __init__(
        self,
        schedule: Schedule,
        open_reader: Callable[[], FrameReader],
        *,
        prefetch: int = 1,
        on_error: Callable[[str, FileError], object] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        is_wanted: Callable[[Position], bool] = lambda _: True,
    ) -> None:
        self.schedule, self._open_reader = schedule, open_reader
        self._prefetch, self._on_error = prefetch, on_error
        self._should_stop, self._is_wanted = should_stop, is_wanted
        self._reported: set[str] = set()

    def __iter__(self) -> Iterator[Round]:
        known = (recording.failure for recording in self.schedule.recordings)
        self._report([failure for failure in known if failure is not None])
        stop = threading.Event()
        rounds = self._read(self.schedule.position, stop)
        if self._prefetch:
            rounds = prefetch(rounds, self._prefetch, should_stop=self._should_stop, stop=stop)
        with contextlib.closing(rounds):
            while not self._should_stop() and (read := next(rounds, None)) is not None:
                each, failures = read
                self._report(failures)
                yield each

    def _read(self, position: Position, stop: threading.Event) -> Generator[_Read]:
        with contextlib.closing(self._open_reader()) as reader:
            while self._is_next(position) and not stop.is_set():
                segments = _Wanted(self.schedule.segments_at(position), stop)
                read = reader.read(segments, position.loudest)
                end = self.schedule.after(position, read.n_read, read.loudest)
                order = self.schedule.permutation(position, len(read.frames))
                yield Round(position, end, read.frames, order), read.failures
                position = end
                del read  # it may be forgotten while the next one is read

    def _is_next(self, position: Position) -> bool:
        return not self.schedule.is_finished(position) and self._is_wanted(position)

    def _report(self, failures: list[FileError]) -> None:
        for failure in failures:
            if self._on_error is None:
                raise failure
            if failure.path not in self._reported:
                self._reported.add(failure.path)
                self._on_error(failure.path, failure)


_Read = tuple[Round, list[FileError]]


class _Wanted(list[Segment]):
    """The segments of a round; iterating ends early once nobody waits for them any more."""

    def __init__(self, segments: list[Segment], stop: threading.Event) -> None:
        super().__init__(segments)
        self._stop = stop

    def __iter__(self) -> Iterator[Segment]:
        return itertools.takewhile(lambda _: not self._stop.is_set(), super().__iter__())


class MiniBatches:
    """Mini-batches of the frames of rounds, float32 arrays of shape (batch_size, n_bins).

    Iterating continues from the current position of the schedule and advances it with each batch.
    All batches but the last of a round are full. A round of silence gives one empty batch, so that
    a caller can stop, save or report meanwhile.

    Parameters
    ----------
    rounds : Rounds
        With a `HostFrameReader`.

    Attributes
    ----------
    schedule : Schedule

    Examples
    --------
    >>> from ondes.signal.segment_reader import MemoryReader
    >>> from ondes.signal.survey import describe
    >>> from ondes.signal.stft import Stft
    >>> audio, arrays = AudioSettings(8000, Stft(64)), [np.ones(8000, np.float32)]
    >>> schedule = Schedule(describe(arrays, audio), audio, batch_size=100, round_size=200)
    >>> reader = lambda: HostFrameReader(MemoryReader(arrays, audio.stft), audio)
    >>> [(len(batch), schedule.position.n_given) for batch in MiniBatches(Rounds(schedule, reader))]
    [(100, 1), (100, 2), (51, 0)]
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds, self.schedule = rounds, rounds.schedule

    def __iter__(self) -> Iterator[Frames]:
        size, schedule = self.schedule.batch_size, self.schedule
        with contextlib.closing(cast(Generator[Round], iter(self._rounds))) as rounds:
            for each in rounds:
                batches = list(slices(len(each.order), size))
                n_read = each.end.n_read - each.start.n_read
                for n_given in range(each.start.n_given + 1, len(batches) + 1):
                    is_last = n_given == len(batches)
                    position = each.end if is_last else replace(each.start, n_given=n_given)
                    schedule.advance(position, each.start.n_read + n_read * n_given / len(batches))
                    yield each.frames[each.order[batches[n_given - 1]]]
                schedule.advance(each.end)
                if not batches:
                    yield each.frames


def frame_batches(
    recordings: PathOrStream | Iterable[str | Location],
    audio: AudioSettings,
    batch_size: int = 1000,
    *,
    round_size: int = 8192,
    raw: RawFormat | None = None,
    n_threads: int = 1,
    prefetch: int = 1,
    on_error: Callable[[str, FileError], object] | None = None,
    **settings: Any,
) -> MiniBatches:
    """Mini-batches of the frames of recordings.

    The sequence is a function of the set of recordings, the settings and the random state: not of
    the order in which the recordings are named, nor of how many threads read them and how far
    ahead.

    Parameters
    ----------
    recordings : str, Path, binary stream, or iterable of str or Path
        Files; ``-`` or a stream for one that may never end.
    audio : AudioSettings
    batch_size, round_size : int
        As in `Schedule`.
    raw : RawFormat, optional
        The format of samples that have no header.
    n_threads : int
        Segments to read at a time.
    prefetch, on_error
        As in `Rounds`.
    **settings
        Of `Schedule`: `segment_size`, `n_open`, `random_state`, `n_passes`.

    Returns
    -------
    MiniBatches

    Examples
    --------
    >>> import io
    >>> from ondes.signal.stft import Stft
    >>> noise = np.random.default_rng(0).standard_normal(4096).astype("<f4")
    >>> audio, raw = AudioSettings(8000, Stft(512)), RawFormat(8000, 1, "f32le")
    >>> batches = frame_batches(io.BytesIO(noise.tobytes()), audio, batch_size=8, raw=raw)
    >>> [batch.shape for batch in batches]
    [(8, 257), (8, 257), (1, 257)]
    """
    paths: list[PathOrStream]
    if isinstance(recordings, (str, Path, RemotePath, Span)):
        paths = [as_location(recordings)]
    elif hasattr(recordings, "read"):
        paths = [cast(BinaryIO, recordings)]
    else:
        paths = list(canonical_order(recordings))
    known = survey(paths, audio, raw)
    schedule = Schedule(known, audio, batch_size=batch_size, round_size=round_size, **settings)

    def open_reader() -> HostFrameReader:
        files = SegmentReader(paths, schedule.recordings, audio, raw, n_threads)
        return HostFrameReader(files, audio)

    return MiniBatches(Rounds(schedule, open_reader, prefetch=prefetch, on_error=on_error))
