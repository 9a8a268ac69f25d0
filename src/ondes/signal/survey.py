"""What is known of each recording before it is read, and whether it is still the same later."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError, printable
from ondes.rebatch import slices
from ondes.signal import remote
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.locations import Location, RemotePath, Span, as_location, is_location
from ondes.signal.recordings import PathOrStream, RawFormat, probe

__all__ = [
    "INVALID",
    "Recording",
    "SavedFacts",
    "check_same",
    "digest",
    "facts_of",
    "is_stream",
    "survey",
    "vector",
]

Array = NDArray[Any]

MARKED_BYTES = 4096
CHECKED_AT_ONCE = 2**20  # samples in memory
N_LOOKING, N_LOOKING_AFAR = 4, 32  # recordings at a time, on disks and at URLs
LOOKED_AT_ONCE = 4096
DTYPES: dict[str, type[np.generic]] = {
    "names": np.uint8,
    "marks": np.uint8,
    "sr": np.int64,
    "n_samples": np.int64,
}
UNKNOWN = -1  # number of samples
INVALID = "The saved position is invalid: start again without it."


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
    if isinstance(location, Span):
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
    if len(given) < (2 if is_remote else 2 * n_threads):
        return [_look_at(each, audio, raw) for each in given]
    pool = ThreadPoolExecutor(n_threads, "ondes-survey")
    known: list[Recording] = []
    try:
        for rows in slices(len(given), LOOKED_AT_ONCE):  # all at once would fill the memory
            known += pool.map(lambda each: _look_at(each, audio, raw), given[rows])
    finally:  # after Ctrl-C, a server that is silent is not waited for
        pool.shutdown(wait=False, cancel_futures=True)
    return known


def describe(arrays: Sequence[Array], audio: AudioSettings) -> list[Recording]:
    """What `ondes.signal.survey.survey` is for files, for recordings held in memory.

    Parameters
    ----------
    arrays : sequence of arrays of shape (n_samples,) or (n_samples, n_channels)
        int16 or float32, at the sampling rate of `audio`.
    audio : AudioSettings

    Raises
    ------
    ValueError
        Where an array is of another shape or type, or not finite.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> describe([np.zeros(8000, np.float32)], AudioSettings(8000, Stft(64)))[0].n_frames
    251
    """
    for number, array in enumerate(arrays):
        is_signal = array.ndim == 1 or (array.ndim == 2 and array.shape[1] > 0)
        if not is_signal or array.dtype not in (np.int16, np.float32):
            raise ValueError(
                f"Samples of shape {array.shape} and type {array.dtype} must be (n_samples,) or "
                "(n_samples, n_channels) of int16 or float32."
            )
        if not all(np.isfinite(array[rows]).all() for rows in slices(len(array), CHECKED_AT_ONCE)):
            raise ValueError(f"Recording {number} has NaN or infinite samples.")
    return [
        Recording(
            f"recording {number}", audio.sr, len(array), audio.stft.n_frames(len(array)), True
        )
        for number, array in enumerate(arrays)
    ]


def _place_of(recording: PathOrStream) -> object:
    return recording.path if isinstance(recording, Span) else recording


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
    if isinstance(path, Span):
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


SavedFacts = dict[str, NDArray[Any]]


def facts_of(recordings: Sequence[Recording]) -> SavedFacts:
    r"""What must be the same when a run continues, as arrays that a file can hold.

    Examples
    --------
    >>> facts = facts_of([Recording("a.wav", 8000, 16000), Recording("stream")])
    >>> bytes(facts["names"]), facts["n_samples"].tolist()
    (b'a.wav\x00stream\x00', [16000, -1])
    """
    lengths = (UNKNOWN if each.n_samples is None else each.n_samples for each in recordings)
    return {
        "names": _joined([each.name for each in recordings]),
        "marks": _joined([each.mark for each in recordings]),
        "sr": np.array([each.sr for each in recordings], np.int64),
        "n_samples": np.fromiter(lengths, np.int64, len(recordings)),
    }


def digest(recordings: Sequence[Recording]) -> str:
    """Equal for the same recordings in the same order, whatever their folders and tags.

    Examples
    --------
    >>> digest([Recording("a.wav", 8000, 16000)]) == digest([Recording("b.wav", 8000, 16000)])
    False
    """
    facts = facts_of(recordings)
    hashed = hashlib.sha256()
    for name in ("names", "sr", "n_samples"):
        hashed.update(facts[name].tobytes())
    return hashed.hexdigest()[:32]


def check_same(saved: Mapping[str, NDArray[Any]], recordings: Sequence[Recording]) -> None:
    """Compare saved facts with the recordings that are there.

    Parameters
    ----------
    saved : mapping of str to array
        As of `facts_of`.
    recordings : sequence of Recording

    Raises
    ------
    ValueError
        Where a recording is gone, new or changed, or the facts are invalid. A recording with
        other bytes is a RuntimeWarning.
    """
    try:
        before = {name: vector(saved[name], dtype) for name, dtype in DTYPES.items()}
        names, marks = _parted(before["names"]), _parted(before["marks"])
        rates, lengths = before["sr"].tolist(), before["n_samples"].tolist()
        facts = list(zip(names, rates, lengths, marks, strict=True))
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(INVALID) from error
    now = facts_of(recordings)
    if all(np.array_equal(now[name], before[name]) for name in now):
        return
    counted, counted_before = Counter(each.name for each in recordings), Counter(names)
    for name in sorted(counted_before - counted):
        raise ValueError(f"{printable(name)} is missing since the position was saved: restore it.")
    for name in sorted(counted - counted_before):
        raise ValueError(
            f"{printable(name)} is new since the position was saved: leave it out for now."
        )
    for each, fact in zip(recordings, facts, strict=True):
        _check_one(each, *fact)


def _check_one(recording: Recording, name: str, sr: int, n_samples: int, mark: str) -> None:
    said, known = printable(recording.name), None if n_samples == UNKNOWN else n_samples
    if recording.name != name:
        raise ValueError(
            f"{said} is at another position among the recordings than when the run was saved; "
            "restore the order."
        )
    if (recording.sr, recording.n_samples) != (sr, known):
        raise ValueError(
            f"{said} has {recording.n_samples} samples at {recording.sr} Hz, and had "
            f"{known} at {sr} Hz when the position was saved: restore it as it was."
        )
    if recording.mark != mark:  # perhaps only its tags, which would be no reason to lose a run
        warnings.warn(
            f"{said} has changed since the position was saved; if its sound has changed, the "
            "result will differ.",
            RuntimeWarning,
            stacklevel=4,
        )


def vector(value: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """A value from a file that must be a one-dimensional array; TypeError where it is not."""
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype != dtype:
        raise TypeError(f"not a vector of {dtype.__name__}")
    return value


def _joined(words: list[str]) -> NDArray[np.uint8]:
    """Words in one array, each ended by a zero, which no file name holds."""
    text = "".join(f"{word}\0" for word in words)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def _parted(joined: NDArray[np.uint8]) -> list[str]:
    return joined.tobytes().decode("utf-8", "surrogatepass").split("\0")[:-1]
