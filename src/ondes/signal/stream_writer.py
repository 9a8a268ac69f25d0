"""Sound to a pipe or a device while it is made: WAV without a length, or raw samples."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from ondes.errors import FileError
from ondes.signal.pcm import RawFormat, from_float

__all__ = ["StreamWriter"]

UNKNOWN_LENGTH = 2**32 - 1  # as FFmpeg declares it
FLOAT_TAG, SAMPLE_BYTES = 3, 4
HEADER_BYTES = 46
STDOUT = 1


class StreamWriter:
    """Write sound block by block to standard output, a named pipe or a device.

    A context manager. Nothing is held back: what was written is with the reader. Where standard
    output is a file, its WAV header gets the length at the end.

    Parameters
    ----------
    path : str or Path
        ``-`` for standard output; a named pipe waits for its reader.
    sr : int
        Samples per second.
    channels : int
    raw : RawFormat, optional
        Samples without a header, in this encoding; by default WAV of 32-bit floats.

    Raises
    ------
    FileError
        Where the reader stops reading, or it cannot be written, here or at any later moment.

    Examples
    --------
    >>> import tempfile, threading
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     os.mkfifo(f"{folder}/pipe")
    ...     found = []
    ...     reading = lambda: found.append(Path(f"{folder}/pipe").read_bytes())
    ...     reader = threading.Thread(target=reading)
    ...     reader.start()
    ...     with StreamWriter(f"{folder}/pipe", 8000) as writer:
    ...         writer.write(np.zeros(100))
    ...     reader.join()
    >>> found[0][:4], len(found[0])
    (b'RIFF', 446)
    """

    def __init__(
        self, path: str | Path, sr: int, channels: int = 1, *, raw: RawFormat | None = None
    ) -> None:
        self._is_standard = str(path) == "-"
        self.path = "standard output" if self._is_standard else str(path)
        self.sr, self.channels, self._raw = sr, channels, raw
        self._target = path
        self._n_samples = 0

    def __enter__(self) -> Self:
        with self._errors():
            if self._is_standard:
                sys.stdout.flush()
                self._descriptor = STDOUT
            else:
                self._descriptor = os.open(self._target, os.O_WRONLY)
        self._begin = self._position()
        if self._raw is None:
            self._put(self._header(UNKNOWN_LENGTH))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        n_bytes = self._n_samples * self.channels * SAMPLE_BYTES
        if self._raw is None and self._begin is not None and n_bytes < UNKNOWN_LENGTH - 100:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, self._header(n_bytes), self._begin)
        if not self._is_standard:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def write(self, samples: ArrayLike) -> None:
        """Append samples, (n,) or (n, channels); waits while the reader does not read."""
        block = np.asarray(samples, dtype=np.float32).reshape(-1, self.channels)
        if not np.isfinite(block).all():
            raise FileError(self.path, "is not written: its samples would not be finite")
        self._put(from_float(block, "f32le" if self._raw is None else self._raw.encoding))
        self._n_samples += len(block)

    def is_abandoned(self) -> bool:
        """Whether the reader has gone."""
        if not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return any(found & (select.POLLERR | select.POLLNVAL) for _, found in poll.poll(0))

    def check(self) -> None:
        """Raise FileError where the reader has gone."""
        if self.is_abandoned():
            raise self._closed()

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        with self._errors():
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # whoever shares the pipe has set it so
                    select.select([], [self._descriptor], [])

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise self._closed() from None
        except OSError as error:
            raise FileError(self.path, f"cannot be written ({error.strerror or error})") from error

    def _closed(self) -> FileError:
        seconds = self._n_samples / self.sr
        return FileError(self.path, f"was closed by its reader after {seconds:.1f} s")

    def _position(self) -> int | None:
        """Where a file begins to be written; None for what has no places."""
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode) or self._appends():
                return None
            return os.lseek(self._descriptor, 0, os.SEEK_CUR)
        except OSError:
            return None

    def _appends(self) -> bool:
        """Whether whatever is written comes to the end, wherever it belongs."""
        try:
            import fcntl
        except ImportError:  # Windows
            return not hasattr(os, "pwrite")
        return bool(fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_APPEND)

    def _header(self, n_bytes: int) -> bytes:
        frame_bytes = self.channels * SAMPLE_BYTES
        riff = UNKNOWN_LENGTH if n_bytes == UNKNOWN_LENGTH else n_bytes + HEADER_BYTES - 8
        numbers = [  # the last is the length of an extension that there is not
            *[(18, 4), (FLOAT_TAG, 2), (self.channels, 2), (self.sr, 4)],
            *[(self.sr * frame_bytes, 4), (frame_bytes, 2), (8 * SAMPLE_BYTES, 2), (0, 2)],
        ]
        layout = b"".join(number.to_bytes(width, "little") for number, width in numbers)
        lengths = (each.to_bytes(4, "little") for each in (riff, n_bytes))
        return b"RIFF%sWAVEfmt %sdata%s" % (next(lengths), layout, next(lengths))
