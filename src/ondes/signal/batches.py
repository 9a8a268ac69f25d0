"""Mini-batches of power frames, shuffled over many recordings.

Work goes in rounds. A round is the frames of some segments (see `ondes.signal.segments`), without
the silent ones, mixed by a generator seeded with (seed, pass, round) and cut into batches. Where a
round starts is a few numbers, so a stopped run goes on by drawing that round again: no frame is
ever stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio import AudioError, RawFormat, canonical_order
from ondes.signal.frame_buffer import FrameBuffer
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.segments import (
    FrameSettings,
    PassOrder,
    Recording,
    Segment,
    Source,
    is_stream,
    survey,
)
from ondes.signal.silence import Loudest, threshold
from ondes.signal.stft import Stft

__all__ = ["Batches"]

Frames = NDArray[np.float32]

STOP_WAIT_S = 2.0


@dataclass(frozen=True)
class _Position:
    """Where a round starts, and how many of its batches were given out."""

    n_pass: int = 0
    n_round: int = 0
    n_unmeasured: int = 0  # recordings of unknown length that are done
    frame: int = 0  # of the next one
    n_read: int = 0
    n_given: int = 0
    loudest: Loudest = field(default_factory=dict)


@dataclass
class _Round:
    start: _Position
    end: _Position
    frames: Frames
    order: NDArray[np.intp]
    failures: list[AudioError]


class Batches:
    """Mini-batches of power frames from recordings, as an iterable that knows its position.

    The sequence is a function of the set of recordings, the settings and the seed: not of the
    order the recordings are named in, or by how many threads and how far ahead they are read.
    Iterating goes on from the current position; all batches but the last of a round are full.

    Parameters
    ----------
    sources : str, Path, binary stream, or iterable of str or Path
        Recordings; ``-`` or a stream for an endless one. Channels are mixed.
    stft : Stft
    sr : int
        Sampling rate that all recordings are brought to.
    batch_size : int
        Frames in a batch.
    seed : int
    n_passes : int
        How often to go through all recordings, each time in another order.
    silence : float or None
        Frames this many decibels below the loudest so far of their recording are left out, and
        so are frames of zeros; None keeps all.
    n_open : int
        Recordings to draw from at a time, of those that cannot be read from the middle.
    buffer_size : int
        Frames in a round, about: they are shuffled among each other.
    segment_size : int
        Frames of a recording in a row, about, before the next segment is drawn from anywhere.
    prefetch : int
        Rounds to draw ahead in a thread; 0 reads in line.
    n_readers : int
        Segments to read at a time, each in a thread.
    raw : RawFormat, optional
        What the samples are where no header says.
    on_error : callable, optional
        Called once for each bad recording with its path and the `AudioError`; the recording
        counts as far as it could be read, and the rest go on. Without it the error is raised.

    Examples
    --------
    >>> import io, numpy as np
    >>> from ondes.signal.audio import RawFormat
    >>> noise = np.random.default_rng(0).standard_normal(4096).astype("<f4")
    >>> pipe = io.BytesIO(noise.tobytes())
    >>> batches = Batches(pipe, Stft(512), 8000, batch_size=8, raw=RawFormat(8000, 1, "f32le"))
    >>> [batch.shape for batch in batches]
    [(8, 257), (8, 257), (1, 257)]
    """

    def __init__(
        self,
        sources: Source | Iterable[str | Path],
        stft: Stft,
        sr: int,
        batch_size: int = 1000,
        *,
        seed: int = 0,
        n_passes: int = 1,
        silence: float | None = -60.0,
        n_open: int = 32,
        buffer_size: int = 8192,
        segment_size: int = 1024,
        prefetch: int = 1,
        n_readers: int = 1,
        raw: RawFormat | None = None,
        on_error: Callable[[str, AudioError], object] | None = None,
    ) -> None:
        counts = {"batch_size": batch_size, "n_open": n_open, "segment_size": segment_size}
        for name, value in {**counts, "n_readers": n_readers, "sr": sr}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")
        self.sources: list[Source] = _as_list(sources)
        if n_passes > 1 and any(map(is_stream, self.sources)):
            raise ValueError("A stream can be heard only once: n_passes must be 1.")
        self.batch_size, self.seed, self.n_passes = batch_size, seed, n_passes
        self.silence, self.n_open = silence, n_open
        self.prefetch, self.n_readers, self.on_error = prefetch, n_readers, on_error
        self.round_size = max(batch_size, buffer_size)
        self.segment_size = min(segment_size, self.round_size)
        self.how = FrameSettings(stft, sr, raw)
        self._position = _Position()
        self._n_done = 0.0
        self._reported: set[str] = set()

    def __iter__(self) -> Iterator[Frames]:
        self._report([bad.failure for bad in self.recordings if bad.failure is not None])
        stop = threading.Event()
        rounds = self._rounds(self._position, stop)
        if self.prefetch:
            rounds = _ahead(rounds, self.prefetch, stop)
        with contextlib.closing(rounds):
            for drawn in rounds:
                self._report(drawn.failures)
                yield from self._cut(drawn)
                self._position, self._n_done = drawn.end, drawn.end.n_read

    @cached_property
    def recordings(self) -> list[Recording]:
        """What is known of each source; found at first use."""
        return survey(self.sources, self.how)

    def state(self) -> dict[str, Any]:
        """Position after the last batch given, ready for JSON: a few numbers a recording."""
        *position, loudest = astuple(self._position)
        return {
            "settings": self._fingerprint,
            "recordings": self._inventory,
            "position": position,
            "loudest": [list(pair) for pair in loudest.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the position of a `state` of the same recordings and settings.

        Raises
        ------
        ValueError
            Where a recording came, went or changed, or a setting is another. One that has other
            bytes is a RuntimeWarning.
        """
        self._check_same(state["recordings"])
        if state["settings"] != self._fingerprint:
            raise ValueError("The saved position is of other settings: start again without it.")
        loudest = {int(file): float(energy) for file, energy in state["loudest"]}
        n_pass, n_round, n_unmeasured, frame, n_read, n_given = map(int, state["position"])
        self._position = _Position(
            n_pass, n_round, n_unmeasured, frame, n_read, n_given, loudest=loudest
        )
        self._n_done = self._position.n_read

    @cached_property
    def _inventory(self) -> str:
        """What must be the same at resume, of a hundred thousand recordings in one short text."""
        facts = ((each.name, each.sr, each.n_samples, each.mark) for each in self.recordings)
        return "/".join(map(str, itertools.chain.from_iterable(facts)))

    def _check_same(self, inventory: str) -> None:
        if inventory == self._inventory:
            return
        fields = iter(inventory.split("/"))
        before = list(zip(fields, fields, fields, fields, strict=False))
        names = Counter(each.name for each in self.recordings)
        names_before = Counter(name for name, *_ in before)
        for name in sorted(names_before - names):
            raise ValueError(f"{name} is gone since the position was saved: bring it back.")
        for name in sorted(names - names_before):
            raise ValueError(f"{name} is new since the position was saved: leave it out for now.")
        for each, (_, sr, n_samples, mark) in zip(self.recordings, before, strict=True):
            if (str(each.sr), str(each.n_samples)) != (sr, n_samples):
                raise ValueError(
                    f"{each.name} has {each.n_samples} samples at {each.sr} Hz, and had "
                    f"{n_samples} at {sr} Hz when the position was saved: bring it back as it was."
                )
            if each.mark != mark:  # perhaps its tags alone: no reason to lose a run
                warnings.warn(
                    f"{each.name} has other bytes than when the position was saved: if its sound "
                    "is another, too, so is what is learned.",
                    RuntimeWarning,
                    stacklevel=3,
                )

    @property
    def seconds_done(self) -> float:
        """Seconds of sound that the batches given so far come from, over all passes."""
        seconds = self._n_done * self.how.stft.hop_length / self.how.sr
        return seconds if self.seconds_total is None else min(seconds, self.seconds_total)

    @cached_property
    def seconds_total(self) -> float | None:
        """Seconds of sound in all passes, without the bad recordings; None where unknown."""
        each = [recording.seconds for recording in self.recordings]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * self.n_passes if len(known) == len(each) else None

    @cached_property
    def _fingerprint(self) -> str:
        stft, how = self.how.stft, self.how
        settings = [stft.n_fft, stft.hop_length, stft.window, how.sr, self.silence, self.batch_size]
        settings += [self.round_size, self.segment_size, self.n_open, self.seed]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]

    def _report(self, failures: list[AudioError]) -> None:
        for failure in failures:
            if self.on_error is None:
                raise failure
            if failure.path not in self._reported:
                self._reported.add(failure.path)
                self.on_error(failure.path, failure)

    def _cut(self, drawn: _Round) -> Iterator[Frames]:
        n_batches = -(-len(drawn.order) // self.batch_size)
        for n_given in range(drawn.start.n_given + 1, n_batches + 1):
            rows = drawn.order[(n_given - 1) * self.batch_size : n_given * self.batch_size]
            is_last = n_given == n_batches
            self._position = drawn.end if is_last else replace(drawn.start, n_given=n_given)
            n_read = drawn.end.n_read - drawn.start.n_read
            self._n_done = drawn.start.n_read + n_read * n_given / n_batches
            yield drawn.frames[rows]

    def _rounds(self, position: _Position, stop: threading.Event) -> Generator[_Round]:
        with contextlib.closing(self._open_reader()) as reader:
            while position.n_pass < self.n_passes:
                order = self.order_of_pass(position.n_pass)
                n_pass = position.n_pass
                while position.n_pass == n_pass and not stop.is_set():
                    drawn = self._draw(position, order, reader, stop)
                    position = drawn.end
                    yield drawn
                if stop.is_set():
                    return

    def order_of_pass(self, n_pass: int) -> PassOrder:
        """The segments of a pass, in rounds."""
        return PassOrder(
            self.recordings,
            self._generator(n_pass, 0),
            segment_size=self.segment_size,
            round_size=self.round_size,
            n_open=self.n_open,
        )

    def _open_reader(self) -> SegmentReader:
        return SegmentReader(self.sources, self.recordings, self.how, self.n_readers)

    def _draw(
        self, start: _Position, order: PassOrder, reader: SegmentReader, stop: threading.Event
    ) -> _Round:
        end = replace(start, n_round=start.n_round + 1, n_given=0)
        segments: list[Segment] = []
        is_measured = start.n_round < order.n_rounds
        if is_measured:
            segments = order.segments(start.n_round)
        elif start.n_unmeasured < len(order.unmeasured):
            file = order.unmeasured[start.n_unmeasured]
            segments = [Segment(file, start.frame, self.round_size)]
        spans = reader.read(itertools.takewhile(lambda _: not stop.is_set(), segments))
        n_expected = sum(each.n_frames for each in segments)
        frames, loudest, n_read = self._sounding(spans, n_expected, start.loudest)
        if segments and not is_measured:
            is_over = n_read < self.round_size
            end = replace(end, frame=0 if is_over else start.frame + n_read)
            end = replace(end, n_unmeasured=start.n_unmeasured + is_over)
        end = replace(end, n_read=start.n_read + n_read, loudest=loudest)
        if end.n_round >= order.n_rounds and end.n_unmeasured == len(order.unmeasured):
            end = _Position(start.n_pass + 1, n_read=end.n_read, loudest=loudest)
        mixed = self._generator(start.n_pass, start.n_round + 1).permutation(len(frames))
        return _Round(start, end, frames, mixed, reader.failures())

    def _sounding(
        self, spans: Iterator[tuple[int, Frames]], n_expected: int, before: Loudest
    ) -> tuple[Frames, Loudest, int]:
        """The frames with sound, the loudest of each recording so far, and how many were read."""
        buffer = FrameBuffer(self.how.stft, n_expected)
        loudest, n_read = dict(before), 0
        for file, of_file in itertools.groupby(spans, key=lambda pair: pair[0]):
            first = len(buffer)
            energies = np.concatenate([buffer.add(span).sum(axis=1) for _, span in of_file])
            n_read += len(energies)
            if self.silence is not None:
                loudest[file] = max(loudest.get(file, 0.0), float(energies.max()))
                buffer.keep(first, energies > threshold(self.silence, loudest[file]))
        return buffer.frames, loudest, n_read

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])


def _as_list(sources: Source | Iterable[str | Path]) -> list[Source]:
    if isinstance(sources, (str, Path)):
        return [Path(sources)]
    if hasattr(sources, "read"):
        return [cast(BinaryIO, sources)]
    return list(canonical_order(sources))


def _ahead(rounds: Generator[_Round], n: int, stop: threading.Event) -> Generator[_Round]:
    """The same rounds, drawn in a thread, up to `n` of them before they are asked for."""
    ready: SimpleQueue[_Round | BaseException | None] = SimpleQueue()
    room = threading.Semaphore(n)

    def work() -> None:
        drawn: _Round | None
        try:
            while True:
                drawn = None  # whoever took it may forget it while the next one is drawn
                room.acquire()
                drawn = next(rounds, None)
                ready.put(drawn)
                if drawn is None:
                    return
        except BaseException as error:
            ready.put(error)

    worker = threading.Thread(target=work, name="ondes-decode", daemon=True)
    worker.start()
    try:
        while (made := ready.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            room.release()
            yield made
    finally:
        stop.set()
        room.release()
        # A pipe with nothing to say may hold the worker for ever: leave it behind then.
        worker.join(STOP_WAIT_S)
