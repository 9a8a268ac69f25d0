"""Samples of each source in memory: all of a small set, or a part of a large one that changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.pcm import in_range
from ondes.signal.recordings import Location, find_recordings
from ondes.signal.schedule import Schedule
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.survey import Recording, digest, survey

__all__ = ["FULL_SCALE", "SamplePool", "SourceRecordings"]

POOL_S = 1800.0  # seconds of audio of a source held in memory
ROUND_S = 60.0  # of it replaced at a time, where there is more
HELD_OUT = 0.1  # of a source's audio, by whole recordings
MAX_HELD_OUT_S = 300.0
LEAST_S = 10.0  # of a source
SEGMENT_S = 10.0  # read in a row
FULL_SCALE = 32768  # of samples
QUIETEST = 1e-3  # peak of samples that are not scaled up any further

Samples = NDArray[np.int16]
OnError = Callable[[str, FileError], object]


@dataclass(frozen=True)
class SourceRecordings:
    """The recordings of one source, those to train on and those held out, and a digest of all."""

    name: str
    training: list[Location]
    held_out: list[Location]
    mark: str

    @classmethod
    def of(
        cls, name: str, inputs: Any, audio: AudioSettings, seed: int, on_error: OnError
    ) -> SourceRecordings:
        """Find and divide recordings; FileError or ValueError where they are too few."""
        given = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
        paths = find_recordings(given)
        surveyed, known = survey(paths, audio), []
        for path, each in zip(paths, surveyed, strict=True):
            failure = each.failure
            if failure is None and each.n_frames is None:
                failure = FileError(path, "has no known length; give a file, for example FLAC")
            if failure is None:
                known.append((path, each.seconds or 0.0))
            else:
                on_error(failure.path, failure)
        total = sum(seconds for _, seconds in known)
        if len(known) < 2 or total < 2 * LEAST_S:
            files = "file" if len(known) == 1 else "files"
            raise ValueError(
                f"The source {name!r} has {total:.0f} s in {len(known)} readable {files}, too "
                f"little to hold some out: give at least two, of {2 * LEAST_S:.0f} s together."
            )
        wanted = min(HELD_OUT * total, MAX_HELD_OUT_S)
        held_out: list[int] = []
        for number in np.random.default_rng(seed).permutation(len(known)):
            if held_out and sum(known[n][1] for n in held_out) >= wanted:
                break
            if len(held_out) < len(known) - 1:
                held_out.append(int(number))
        return cls(
            name,
            [path for n, (path, _) in enumerate(known) if n not in held_out],
            [path for n, (path, _) in enumerate(known) if n in held_out],
            digest(surveyed),
        )


class SamplePool:
    """Samples of some recordings; `refresh` replaces a part where not all fit.

    Parameters
    ----------
    paths : sequence of Path, RemotePath or Span
    audio : AudioSettings
    seed : int
    seconds : float
        Seconds to hold.
    on_error : callable, optional
        Called with the path of an unreadable recording and its `FileError`, perhaps again.

    Attributes
    ----------
    samples : int16 array of shape (n_samples,)
        Changed in place by `refresh`.
    """

    def __init__(
        self,
        paths: Sequence[Location],
        audio: AudioSettings,
        seed: int,
        seconds: float = POOL_S,
        on_error: OnError = lambda *_: None,
    ) -> None:
        recordings = survey(paths, audio)
        self._pieces = _pieces(list(paths), recordings, audio, seed, on_error)
        n_wanted, pieces, n_samples = int(seconds * audio.sr), [], 0
        total = sum(each.seconds or 0.0 for each in recordings)
        self._is_partial = total > seconds
        n_all = int(total * audio.sr)
        while n_samples < min(n_wanted, n_all - audio.sr) and (
            (piece := next(self._pieces, None)) is not None
        ):
            pieces.append(piece)
            n_samples += len(piece)
        self.samples: Samples = np.concatenate([np.zeros(0, np.int16), *pieces])[:n_wanted]
        self._at = 0
        self._reader = ThreadPoolExecutor(1, "ondes-pool") if self._is_partial else None
        self._next: Future[Samples] | None = None
        if self._reader is not None:
            self._next = self._reader.submit(self._read, int(ROUND_S * audio.sr))

    def refresh(self) -> slice | None:
        """Replace the oldest part by new samples; which samples changed, or None."""
        if self._reader is None or self._next is None:
            return None
        new = self._next.result()[: len(self.samples)]
        self._next = self._reader.submit(self._read, len(new))
        if self._at + len(new) > len(self.samples):
            self._at = 0
        changed = slice(self._at, self._at + len(new))
        self.samples[changed] = new
        self._at += len(new)
        return changed

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)

    def _read(self, n_wanted: int) -> Samples:
        pieces, n_samples = [], 0
        while n_samples < n_wanted and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            n_samples += len(piece)
        return np.concatenate([np.zeros(0, np.int16), *pieces])[:n_wanted]


def _pieces(
    paths: list[Location],
    recordings: list[Recording],
    audio: AudioSettings,
    seed: int,
    on_error: OnError,
) -> Iterator[Samples]:
    """Segments of the recordings in random order, again and again; one channel of each."""
    per_second = audio.sr / audio.stft.hop_length
    schedule = Schedule(
        recordings,
        audio,
        batch_size=1,
        round_size=max(1, int(ROUND_S * per_second)),
        segment_size=max(1, int(SEGMENT_S * per_second)),
        random_state=seed,
    )
    generator = np.random.default_rng(seed)
    reader = SegmentReader(paths, recordings, audio, None)
    for n_pass in itertools.count():
        order, n_pieces = schedule.order_of_pass(n_pass), 0
        for n_round in range(order.n_rounds):
            for _, samples in reader.read(order.segments(n_round)):
                if samples.ndim == 2:
                    samples = samples[:, generator.integers(samples.shape[1])]
                samples, _ = in_range(samples)
                peak = float(np.abs(samples).max(initial=0))
                if 0 < peak < np.inf:
                    n_pieces += 1
                    # Mixtures level their sources; int16 must neither clip nor lose quiet ones.
                    scale = 32767 / max(peak, QUIETEST) if not QUIETEST * 10 < peak <= 1 else 32767
                    yield (samples * np.float32(scale)).astype(np.int16)
            _report(reader.failures(), on_error)
        if n_pieces == 0:
            raise FileError(paths[0], "and the other recordings of its source are silent")


def _report(failures: list[FileError], on_error: OnError) -> None:
    for failure in failures:
        on_error(failure.path, failure)
