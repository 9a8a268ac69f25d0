"""Recordings to write: each appears under its name complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np
import soundfile
from numpy.typing import ArrayLike

from ondes.atomic_file import atomic_path
from ondes.errors import FileError, printable

__all__ = ["AudioWriter", "deferred_signals", "write_audio"]

WRITABLE = {".wav": "WAV", ".flac": "FLAC", ".aiff": "AIFF", ".aif": "AIFF", ".rf64": "RF64"}
SUBTYPES = {"FLAC": "PCM_24"}
DATA = {"WAV": b"data", "RF64": b"data", "AIFF": b"SSND", "FLAC": b"fLaC"}  # after the header
MAX_WAV_BYTES = 2**32 - 2**12
HEADER_BYTES = 4096
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
NUMBERS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class AudioWriter:
    """Write a recording block by block; see `ondes.atomic_file.atomic_path`.

    A context manager: leaving it puts the file in place, leaving it by an exception removes what
    was written.

    Parameters
    ----------
    path : str or Path
        ``.wav``, ``.flac``, ``.aiff`` or ``.rf64``.
    sr : int
        Samples per second.
    channels : int
    subtype : str, optional
        As soundfile names it: ``FLOAT`` if not given, ``PCM_24`` for FLAC. Integers cannot hold
        samples beyond ±1: these are clipped, with a warning.
    n_samples : int, optional
        Expected length; a WAV that would exceed 4 GiB is then written as RF64.
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    FileError
        Where the file exists already or cannot be written, here or at any later moment.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with AudioWriter(f"{folder}/a.flac", 8000, channels=2) as writer:
    ...         writer.write(np.zeros((100, 2)))
    ...     soundfile.info(f"{folder}/a.flac").frames
    100
    """

    def __init__(
        self,
        path: str | Path,
        sr: int,
        channels: int = 1,
        *,
        subtype: str | None = None,
        n_samples: int | None = None,
        force: bool = False,
    ) -> None:
        self.path, self.sr, self.channels, self.force = Path(path), sr, channels, force
        suffix = self.path.suffix.lower()
        if suffix not in WRITABLE:
            raise FileError(path, f"cannot be written: choose one of {', '.join(WRITABLE)}")
        self._format = WRITABLE[suffix]
        self.subtype = subtype or SUBTYPES.get(self._format, "FLOAT")
        self._sample_bytes = channels * _bytes_of(self.subtype)
        if self._format == "WAV" and (n_samples or 0) * self._sample_bytes > MAX_WAV_BYTES:
            self._format = "RF64"
        self._n_bytes, self._peak = 0, 0.0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            draft = stack.enter_context(atomic_path(self.path, self.force))
            self._disk = stack.enter_context(_Disk(os.fspath(draft), "r+"))
            stack.enter_context(self._disk_errors())
            stack.callback(self._remove_time)
            self._file = stack.enter_context(self._open())
            self._finish = stack.pop_all().__exit__
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish(kind, error, trace)
        if kind is None and self._peak > 1 and self.subtype not in ("FLOAT", "DOUBLE"):
            said = printable(str(self.path))
            warnings.warn(f"{said}: peaks at {self._peak:.2f}, clipped to 1.", stacklevel=2)

    def write(self, samples: ArrayLike) -> None:
        """Append samples, (n,) or (n, channels)."""
        block = np.asarray(samples, dtype=np.float32).reshape(-1, self.channels)
        self._n_bytes += len(block) * self._sample_bytes
        if self._format == "WAV" and self._n_bytes > MAX_WAV_BYTES:
            raise FileError(self.path, "exceeds the 4 GiB of a WAV file: choose .rf64 or .flac")
        if len(block):
            lowest, highest = float(block.min()), float(block.max())
            if not (lowest > -np.inf and highest < np.inf):  # nor for NaN
                raise FileError(self.path, "is not written: its samples would not be finite")
            self._peak = max(self._peak, highest, -lowest)
            with self._disk_errors(), deferred_signals():
                self._file.write(block)

    def is_abandoned(self) -> bool:
        """Never: a file has no reader that could go; see `StreamWriter`."""
        return False

    def check(self) -> None:
        """Nothing to raise; see `StreamWriter`."""

    def _open(self) -> Any:
        try:
            return soundfile.SoundFile(
                self._disk, "w", self.sr, self.channels, self.subtype, format=self._format
            )
        except (soundfile.SoundFileError, ValueError, TypeError) as error:
            raise FileError(
                self.path, f"cannot hold {self.channels} channels of {self.subtype} at {self.sr} Hz"
            ) from error

    def _remove_time(self) -> None:
        """Set to zero the time that libsndfile writes beside the peak: only samples count."""
        self._disk.seek(0)
        header, is_header, _ = self._disk.read(HEADER_BYTES).partition(DATA[self._format])
        place = header.find(b"PEAK")
        if is_header and place >= 0:
            self._disk.seek(place + 12)  # after name, size and version
            self._disk.write(bytes(4))

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raise what the disk said, whatever libsndfile makes of it; signals wait."""
        try:
            yield
        except (soundfile.SoundFileError, AssertionError, FileError) as error:
            if self._disk.failure is None:
                if isinstance(error, FileError):
                    raise
                raise FileError(self.path, f"cannot be written ({error})") from error
        if self._disk.failure is not None:
            raise self._disk.failure


class _Disk(FileIO):
    """A file that remembers the first error of the disk: libsndfile loses some of them."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """All of the data, or nothing from the first error on."""
        left = memoryview(data)
        n_bytes = len(left)
        try:
            while left and self.failure is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = error
        return n_bytes - len(left)


def write_audio(
    path: str | Path,
    blocks: Iterable[ArrayLike],
    sr: int,
    channels: int = 1,
    subtype: str | None = None,
    *,
    n_samples: int | None = None,
    force: bool = False,
) -> None:
    """Write blocks of samples, (n,) or (n, channels), as one recording; see `AudioWriter`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_audio(f"{folder}/a.wav", [np.zeros(100), np.zeros(50)], 8000)
    ...     soundfile.info(f"{folder}/a.wav").frames
    150
    """
    with AudioWriter(
        path, sr, channels, subtype=subtype, n_samples=n_samples, force=force
    ) as writer:
        for block in blocks:
            writer.write(block)


def _bytes_of(subtype: str) -> int:
    return {"PCM_S8": 1, "PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "DOUBLE": 8}.get(subtype, 4)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Answer signals at the end of the block: libsndfile loses what its callbacks raise.

    Ctrl-C inside such a callback would look like a disk that cannot be written to. In other threads
    than the main one there is nothing to do, since handlers do not run there.

    Examples
    --------
    >>> with contextlib.suppress(KeyboardInterrupt), deferred_signals():
    ...     signal.raise_signal(signal.SIGINT)
    ...     print("finished")
    finished
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    handlers = {number: signal.getsignal(number) for number in NUMBERS}
    handlers = {number: each for number, each in handlers.items() if each is not None}
    for number in handlers:
        signal.signal(number, keep)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)
