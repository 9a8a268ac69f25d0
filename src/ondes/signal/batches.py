"""Mini-batches of power frames, shuffled over many recordings.

Work goes in rounds. A round draws frames in turn from a few open recordings, mixes them with a
generator seeded by (seed, pass, round), and cuts them into whole batches. Where a round starts is a
few numbers, so a stopped run goes on by drawing that round again: no frame is ever stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from queue import Empty, Queue
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio import AudioError, RawFormat, canonical_order, probe
from ondes.signal.frame_reader import FrameReader, FrameSettings, Place
from ondes.signal.stft import Stft

__all__ = ["Batches"]

Frames = NDArray[np.float32]
Source = str | Path | BinaryIO

FRAMES_A_TURN = 64
STOP_WAIT_S = 2.0


@dataclass(frozen=True)
class _Position:
    """Where a round starts, and how many of its batches were given out."""

    n_pass: int = 0
    n_round: int = 0
    next_file: int = 0
    places: tuple[Place, ...] = ()
    n_read: int = 0
    n_given: int = 0


@dataclass
class _Round:
    start: _Position
    end: _Position
    frames: Frames
    order: NDArray[np.intp]
    failures: list[AudioError] = field(default_factory=list)


class Batches:
    """Mini-batches of power frames from recordings, as an iterable that knows its position.

    The sequence is a function of the set of recordings, the settings and the seed: not of the
    order the recordings are named in, the block size, or whether they are decoded ahead.
    Iterating goes on from the current position; all batches but the last of a pass are full.

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
        Recordings to draw from at a time.
    buffer_size : int
        Frames to shuffle among: rounded down to whole batches, at least one.
    prefetch : int
        Buffers to fill ahead in a thread; 0 reads in line.
    block_size : int
        Samples to transform at a time.
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
        n_open: int = 8,
        buffer_size: int = 8192,
        prefetch: int = 1,
        block_size: int = 65536,
        raw: RawFormat | None = None,
        on_error: Callable[[str, AudioError], object] | None = None,
    ) -> None:
        for name, value in {"batch_size": batch_size, "n_open": n_open, "sr": sr}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")
        self.sources: list[Source] = _as_list(sources)
        if n_passes > 1 and any(_is_stream(source) for source in self.sources):
            raise ValueError("A stream can be heard only once: n_passes must be 1.")
        self.batch_size, self.seed, self.n_passes = batch_size, seed, n_passes
        self.n_open, self.prefetch, self.on_error = n_open, prefetch, on_error
        self.n_buffered = max(1, buffer_size // batch_size) * batch_size
        self.how = FrameSettings(stft, sr, silence, block_size, raw)
        self._position = _Position()
        self._n_done = 0.0
        self._reported: set[str] = set()

    def __iter__(self) -> Iterator[Frames]:
        stop = threading.Event()
        rounds = self._rounds(self._position, stop)
        if self.prefetch:
            rounds = _ahead(rounds, self.prefetch, stop)
        with contextlib.closing(rounds):
            for drawn in rounds:
                self._report(drawn.failures)
                yield from self._cut(drawn)
                self._position, self._n_done = drawn.end, drawn.end.n_read

    def state(self) -> dict[str, Any]:
        """Position after the last batch given, small and ready for JSON."""
        return {"settings": self._fingerprint, "position": astuple(self._position)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the position of a `state` of the same recordings and settings."""
        if state["settings"] != self._fingerprint:
            raise ValueError(
                "The saved position is of other recordings or settings: start again without it."
            )
        n_pass, n_round, next_file, places, n_read, n_given = state["position"]
        opened = tuple(Place(*place) for place in places)
        self._position = _Position(n_pass, n_round, next_file, opened, n_read, n_given)
        self._n_done = n_read

    @property
    def seconds_done(self) -> float:
        """Seconds of sound that the batches given so far come from, over all passes."""
        seconds = self._n_done * self.how.stft.hop_length / self.how.sr
        return seconds if self.seconds_total is None else min(seconds, self.seconds_total)

    @cached_property
    def seconds_total(self) -> float | None:
        """Seconds of sound in all passes, without the bad recordings; None where unknown."""
        total = 0.0
        for source in self.sources:
            if _is_stream(source) or self.how.raw is not None:
                return None
            with contextlib.suppress(AudioError):
                seconds = probe(cast(Path, source)).seconds
                if seconds is None:
                    return None
                total += seconds
        return total * self.n_passes

    @cached_property
    def _fingerprint(self) -> str:
        names = [Path(source).name for source in self.sources if isinstance(source, (str, Path))]
        stft, how = self.how.stft, self.how
        settings = [names, stft.n_fft, stft.hop_length, stft.window, how.sr, how.silence]
        settings += [self.batch_size, self.n_buffered, self.n_open, self.seed]
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
        readers = deque(self._open(place) for place in position.places)
        try:
            while position.n_pass < self.n_passes and not stop.is_set():
                drawn = self._draw(position, readers, stop)
                position = drawn.end
                yield drawn
        finally:
            for reader in readers:
                reader.close()

    def _draw(self, start: _Position, readers: deque[FrameReader], stop: threading.Event) -> _Round:
        """Fill a buffer from the open recordings in turn, opening the next where one ends."""
        frames = np.empty((self.n_buffered, self.how.stft.n_bins), np.float32)
        files = self._generator(start.n_pass, 0).permutation(len(self.sources))
        n, n_read, next_file = 0, start.n_read, start.next_file
        failures = []
        while n < self.n_buffered and not stop.is_set():
            while len(readers) < self.n_open and next_file < len(files):
                readers.append(self._open(Place(int(files[next_file]))))
                next_file += 1
            if not readers:
                break
            reader = readers.popleft()
            wanted, before = min(FRAMES_A_TURN, self.n_buffered - n), reader.place.frame
            taken = reader.take(wanted)
            frames[n : n + len(taken)] = taken
            n += len(taken)
            n_read += reader.place.frame - before
            if len(taken) == wanted:
                readers.append(reader)
                continue
            reader.close()
            if reader.failure is not None:
                failures.append(reader.failure)
        places = tuple(reader.place for reader in readers)
        end = _Position(start.n_pass, start.n_round + 1, next_file, places, n_read)
        if n < self.n_buffered:
            end = _Position(start.n_pass + 1, n_read=n_read)
        order = self._generator(start.n_pass, start.n_round + 1).permutation(n)
        return _Round(start, end, frames, order, failures)

    def _open(self, place: Place) -> FrameReader:
        return FrameReader(self.sources[place.file], place, self.how)

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])


def _as_list(sources: Source | Iterable[str | Path]) -> list[Source]:
    if isinstance(sources, (str, Path)):
        return [Path(sources)]
    if hasattr(sources, "read"):
        return [cast(BinaryIO, sources)]
    return list(canonical_order(sources))


def _is_stream(source: Source) -> bool:
    return not isinstance(source, (str, Path)) or str(source) == "-"


def _ahead(rounds: Generator[_Round], n: int, stop: threading.Event) -> Generator[_Round]:
    """The same rounds, drawn in a thread, up to `n` of them before they are asked for."""
    ready: Queue[_Round | BaseException | None] = Queue(n)

    def work() -> None:
        try:
            for drawn in rounds:
                ready.put(drawn)
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    worker = threading.Thread(target=work, name="ondes-decode", daemon=True)
    worker.start()
    try:
        while (made := ready.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            yield made
    finally:
        stop.set()
        # A pipe with nothing to say may hold the worker for ever: leave it behind then.
        deadline = time.monotonic() + STOP_WAIT_S
        while worker.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(Empty):
                ready.get(timeout=0.02)
