"""What there is to read, cut into segments, and the order in which a pass reads them.

The dictionary remembers its last frames best, so these must be a fair sample of all there are. A
pass therefore goes through short segments of all recordings in one random order, rather than
through one recording after the other.
"""

from __future__ import annotations

import itertools
import os
import stat
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.rebatch import slices
from ondes.signal import remote
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.locations import Location, Part, RemotePath, as_location, is_location
from ondes.signal.recordings import PathOrStream, RawFormat, probe

__all__ = ["PassOrder", "Recording", "Segment", "is_stream", "survey"]

MARKED_BYTES = 4096
N_LOOKING, N_LOOKING_AFAR = 4, 32  # recordings at a time, on disks and at URLs
LOOKED_AT_ONCE = 4096


class Segment(NamedTuple):
    """Frames `first` to `first + n_frames` of the recording number `file`."""

    file: int
    first: int
    n_frames: int


@dataclass(frozen=True, slots=True)
class Recording:
    """What is known of a recording before it is read.

    Attributes
    ----------
    name : str
    sr : int
        Its own sampling rate; 0 for a stream, of which nothing is known.
    n_samples : int or None
        At its own rate; None where unknown.
    n_frames : int or None
        At the sampling rate and with the STFT asked for; None where unknown.
    seekable : bool
        Whether reading can begin anywhere. Otherwise segments are read in their order.
    failure : FileError or None
        Why it cannot be read at all.
    mark : str
        A checksum of some of its bytes: another recording in its place has another one.
    """

    name: str
    sr: int = 0
    n_samples: int | None = None
    n_frames: int | None = None
    seekable: bool = False
    failure: FileError | None = None
    mark: str = ""

    @property
    def seconds(self) -> float | None:
        """Duration; None where unknown."""
        return None if self.n_samples is None else self.n_samples / self.sr


def is_stream(recording: PathOrStream) -> bool:
    """Whether a recording can be read only once, from its beginning: a stream, a pipe, a device."""
    if not is_location(recording) or str(recording) == "-":
        return True
    location = as_location(cast(str | Location, recording))
    if isinstance(location, Part):
        return is_stream(location.path)
    if isinstance(location, RemotePath):
        return False
    try:
        mode = location.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def survey(
    recordings: Iterable[PathOrStream], audio: AudioSettings, raw: RawFormat | None = None
) -> list[Recording]:
    """Look at every recording once, without reading its samples.

    Parameters
    ----------
    recordings : iterable of str, Path or binary stream
    audio : AudioSettings
    raw : RawFormat, optional
        The format of samples that have no header.

    Returns
    -------
    list of Recording
        One that cannot be read has a `failure` and no frames.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> survey(["missing.wav"], AudioSettings(8000, Stft()))[0].failure.path
    'missing.wav'
    """
    given = list(recordings)
    is_remote = any(isinstance(_place_of(each), RemotePath) for each in given[:1] + given[-1:])
    n_threads = N_LOOKING_AFAR if is_remote else N_LOOKING
    if len(given) < 2 * n_threads:
        return [_look_at(each, audio, raw) for each in given]
    with ThreadPoolExecutor(n_threads, "ondes-survey") as pool:
        known: list[Recording] = []
        for rows in slices(len(given), LOOKED_AT_ONCE):  # all at once would fill the memory
            known += pool.map(lambda each: _look_at(each, audio, raw), given[rows])
        return known


def _place_of(recording: PathOrStream) -> object:
    return recording.path if isinstance(recording, Part) else recording


def _look_at(recording: PathOrStream, audio: AudioSettings, raw: RawFormat | None) -> Recording:
    if is_stream(recording):
        return Recording("stream")
    location = as_location(cast(str | Location, recording))
    try:
        info = probe(location, raw)
    except FileError as error:
        return Recording(location.name, n_samples=0, sr=1, n_frames=0, failure=error)
    n_frames = None
    if info.n_samples is not None:
        n_frames = audio.stft.n_frames(round(info.n_samples * audio.sr / info.sr))
    facts = (info.sr, info.n_samples, n_frames, info.seekable)
    return Recording(location.name, *facts, mark=_mark(location))


def _mark(path: Location) -> str:
    """A checksum of a file's length and of some of its bytes; all of it would take too long."""
    if isinstance(path, Part):
        return _mark(path.path)
    if isinstance(path, RemotePath):
        return remote.mark_of(path)
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
    """The segments of one pass in the order they are read, and the rounds they make.

    Seekable recordings are cut and mixed freely. The others are put in `n_open` queues, each of
    which is read from its beginning to its end; their segments stand at random places among all,
    in this order. Recordings of unknown length are not part of the order: they come after it.

    Parameters
    ----------
    recordings : sequence of Recording
    generator : numpy.random.Generator
        Decides the order.
    segment_size : int
        Frames in a segment, about.
    round_size : int
        Frames in a round, about: it ends with the segment that fills it.
    n_open : int
        Queues.

    Attributes
    ----------
    unmeasured : list of int
        The recordings of unknown length, in the order they are read.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        generator: np.random.Generator,
        *,
        segment_size: int,
        round_size: int,
        n_open: int,
    ) -> None:
        files = [int(file) for file in generator.permutation(len(recordings))]
        self.unmeasured = [file for file in files if recordings[file].n_frames is None]
        measured = [file for file in files if recordings[file].n_frames]
        seekable = [file for file in measured if recordings[file].seekable]
        others = [file for file in measured if not recordings[file].seekable]
        queues = [others[n::n_open] for n in range(min(n_open, len(others)))]

        cuts = [_cut(part, recordings, segment_size) for part in (seekable, *queues)]
        segments = np.concatenate(cuts)
        places = generator.permutation(len(segments))
        for start, end in itertools.pairwise(np.cumsum([len(cut) for cut in cuts])):
            places[start:end].sort()
        self._segments = segments[np.argsort(places)]
        ends = np.cumsum(self._segments[:, 2])
        rounds = (ends - self._segments[:, 2]) // round_size
        self._starts = np.append(np.flatnonzero(np.diff(rounds, prepend=-1)), len(segments))

    @property
    def n_rounds(self) -> int:
        """Number of rounds of recordings of known length."""
        return len(self._starts) - 1

    def segments(self, n_round: int) -> list[Segment]:
        """The segments of a round, in the order of the recordings."""
        rows = self._segments[self._starts[n_round] : self._starts[n_round + 1]]
        return sorted(Segment(*map(int, row)) for row in rows)


def _cut(files: list[int], recordings: Sequence[Recording], segment_size: int) -> NDArray[np.int64]:
    """Segments of nearly equal length, as rows of file, first frame and number of frames."""
    n_frames = np.array([recordings[file].n_frames for file in files], np.int64)
    n_segments = np.maximum(1, np.rint(n_frames / segment_size).astype(np.int64))
    of_file = np.repeat(np.arange(len(files)), n_segments)
    number = np.arange(len(of_file)) - np.repeat(np.cumsum(n_segments) - n_segments, n_segments)
    first, end = ((number + n) * n_frames[of_file] // n_segments[of_file] for n in (0, 1))
    return np.stack([np.array(files, np.int64)[of_file], first, end - first], axis=1)
