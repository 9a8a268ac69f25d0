"""What there is to hear, cut into segments, and the order in which a pass hears them.

The dictionary remembers its last frames best, so these must be a fair sample of all there are. A
pass therefore goes through short segments of all recordings in one random order, and not through
one recording after the other.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio import AudioError, RawFormat, probe
from ondes.signal.stft import Stft

__all__ = ["FrameSettings", "PassOrder", "Recording", "Segment", "is_stream", "survey"]

Source = str | Path | BinaryIO

MARKED_BYTES = 4096


@dataclass(frozen=True)
class FrameSettings:
    """How recordings become frames."""

    stft: Stft
    sr: int
    raw: RawFormat | None = None


class Segment(NamedTuple):
    """Frames `first` to `first + n_frames` of the recording number `file`."""

    file: int
    first: int
    n_frames: int


@dataclass(frozen=True)
class Recording:
    """What is known of a recording before it is read.

    Attributes
    ----------
    name : str
    sr : int
        Its own sampling rate; 0 where unknown.
    n_samples : int or None
        At its own rate; None where unknown, as of a stream.
    n_frames : int or None
        At the rate and with the STFT asked for.
    can_jump : bool
        Whether reading may begin anywhere. Elsewhere the segments keep their order.
    failure : AudioError or None
        Why it cannot be read at all.
    mark : str
        Of its bytes: another recording in its place has another one.
    """

    name: str
    sr: int = 0
    n_samples: int | None = None
    n_frames: int | None = None
    can_jump: bool = False
    failure: AudioError | None = None
    mark: str = ""

    @property
    def seconds(self) -> float | None:
        """Duration; None where unknown."""
        return None if self.n_samples is None else self.n_samples / self.sr


def is_stream(source: Source) -> bool:
    """Whether a source can be heard only once, from its beginning."""
    return not isinstance(source, (str, Path)) or str(source) == "-"


def survey(sources: Iterable[Source], how: FrameSettings) -> list[Recording]:
    """Look at every source once, without reading its sound."""
    return [_look_at(source, how) for source in sources]


def _look_at(source: Source, how: FrameSettings) -> Recording:
    if is_stream(source):
        return Recording("stream")
    path = Path(cast(str | Path, source))
    try:
        info = probe(path, how.raw)
    except AudioError as error:
        return Recording(path.name, n_samples=0, sr=1, n_frames=0, failure=error)
    n_frames = None
    if info.n_samples is not None:
        n_frames = how.stft.n_frames(round(info.n_samples * how.sr / info.sr))
    facts = (info.sr, info.n_samples, n_frames, info.can_jump)
    return Recording(path.name, *facts, mark=_mark(path))


def _mark(path: Path) -> str:
    """A checksum of a file's length and of some of its bytes; all of it would take too long."""
    if not path.is_file():  # a pipe's bytes can be read only once
        return ""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        checksum = zlib.crc32(str(length).encode())
        for place in (0, length // 2, length - MARKED_BYTES):
            file.seek(max(0, place))
            checksum = zlib.crc32(file.read(MARKED_BYTES), checksum)
    return f"{checksum:08x}"


class PassOrder:
    """The segments of one pass in the order they are heard, and the rounds they make.

    Recordings that can be read from anywhere are cut and mixed freely. The others are opened in
    `n_open` lanes, one after the other in each, and each lane's segments keep their order at random
    places among all. Recordings of unknown length are no part of the order: they come after it.

    Parameters
    ----------
    recordings : list of Recording
    generator : numpy.random.Generator
        Decides the order.
    segment_size : int
        Frames in a segment, about.
    round_size : int
        Frames in a round, about: it ends with the segment that fills it.
    n_open : int
        Lanes.

    Attributes
    ----------
    unmeasured : list of int
        The recordings of unknown length, in the order they are heard.
    """

    def __init__(
        self,
        recordings: list[Recording],
        generator: np.random.Generator,
        *,
        segment_size: int,
        round_size: int,
        n_open: int,
    ) -> None:
        heard = [int(file) for file in generator.permutation(len(recordings))]
        self.unmeasured = [file for file in heard if recordings[file].n_frames is None]
        measured = [file for file in heard if recordings[file].n_frames]
        jumping = [file for file in measured if recordings[file].can_jump]
        others = [file for file in measured if not recordings[file].can_jump]
        lanes = [others[lane::n_open] for lane in range(min(n_open, len(others)))]

        cuts = [_cut(file, recordings[file].n_frames or 0, segment_size) for file in jumping]
        n_free = sum(map(len, cuts))
        lengths = []
        for lane in lanes:
            parts = [_cut(file, recordings[file].n_frames or 0, segment_size) for file in lane]
            cuts += parts
            lengths.append(sum(map(len, parts)))
        segments = np.concatenate(cuts) if cuts else np.empty((0, 3), np.int64)

        places = generator.permutation(len(segments))
        for start, length in zip(np.cumsum([n_free, *lengths]), lengths, strict=False):
            places[start : start + length].sort()
        self._segments = segments[np.argsort(places)]
        self._ends = np.cumsum(self._segments[:, 2])
        rounds = (self._ends - self._segments[:, 2]) // round_size
        self._starts = np.append(np.flatnonzero(np.diff(rounds, prepend=-1)), len(segments))

    @property
    def n_rounds(self) -> int:
        """Rounds that the measured recordings make."""
        return len(self._starts) - 1

    def segments(self, n_round: int) -> list[Segment]:
        """The segments of a round, in the order of the recordings."""
        rows = self._segments[self._starts[n_round] : self._starts[n_round + 1]]
        return sorted(Segment(*map(int, row)) for row in rows)

    def n_frames_before(self, n_round: int) -> int:
        """Frames in all rounds before one."""
        start = self._starts[n_round]
        return int(self._ends[start - 1]) if start else 0


def _cut(file: int, n_frames: int, segment_size: int) -> NDArray[np.int64]:
    """Segments of nearly equal length, as rows of file, first frame and number of frames."""
    n_segments = max(1, round(n_frames / segment_size))
    bounds = np.arange(n_segments + 1) * n_frames // n_segments
    return np.stack([np.full(n_segments, file), bounds[:-1], np.diff(bounds)], axis=1)
