"""Whatever libsndfile reads, into one reused buffer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.audio_writer import deferred_signals
from ondes.signal.decoder import DURATION_SLACK_S
from ondes.signal.ogg import OggFacts, can_enter_vorbis, enter_vorbis
from ondes.signal.pcm import read_length

__all__ = ["SoundFileDecoder", "plain_reason"]

Samples = NDArray[np.float32]

# After this much sound Opus, entered anywhere, decodes to the same bits as from the beginning.
OPUS_RUN_IN_S = 1.0


class _SequentialSoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """Without soundfile's seek after every read, which garbles Opus and fails on some FLAC."""

    def seekable(self) -> bool:
        return False


class _OwnFile(FileIO):
    """Closed with its last user, as soundfile's own."""

    def __del__(self) -> None:
        self.close()


class SoundFileDecoder:
    """WAV, FLAC, Ogg, Opus, AIFF and whatever else libsndfile reads.

    Parameters
    ----------
    name : str
        For messages.
    source : Path or binary file
        What is decoded; a file is not closed with the decoder.
    """

    def __init__(self, name: str, source: Path | BinaryIO) -> None:
        self._name, self._source = name, source
        self._has_callbacks = False
        self._file = self._opened_file(source)
        self.sr = int(self._file.samplerate)
        self.channels = int(self._file.channels)
        self.n_samples = int(self._file.frames) if self._file.frames < 2**62 else None
        self.format, self._subtype = str(self._file.format), str(self._file.subtype)
        lossless = ("FLOAT", "DOUBLE", "ULAW", "ALAW")
        self._is_lossless = self._subtype.startswith("PCM_") or self._subtype in lossless
        self.is_seek_exact = self._is_lossless and self.n_samples is not None
        self._position = 0
        self._opened: _OwnFile | None = None  # to enter Vorbis in the middle
        n_read = read_length(self.channels)
        if self.n_samples is not None:  # a header may declare a thousand channels without samples
            n_read = max(1, min(n_read, self.n_samples))
        self._buffer = np.empty((n_read, self.channels), np.float32)

    def allow_seek_in_ogg(self, file: BinaryIO | None, facts: OggFacts) -> None:
        """Enter Vorbis and Opus in the middle, where the pages of the file allow it."""
        if not facts.is_consecutive or self.n_samples is None:
            return
        if self._subtype == "VORBIS":
            self.is_seek_exact = file is None or can_enter_vorbis(file)
        elif self._subtype == "OPUS":
            self.is_seek_exact = facts.is_celt

    def read(self) -> Samples:
        """Next samples, (n, channels)."""
        n = self._guarded(self._position, self._file.buffer_read_into, self._buffer, "float32")
        self._position += n
        if n == 0 and self._is_truncated():
            raise FileError(
                self._name,
                f"is truncated: {self._position / self.sr:.1f} s of the "
                f"{(self.n_samples or 0) / self.sr:.1f} s in its header",
            )
        return self._buffer[:n]

    def rewind(self) -> None:
        """Start over, where someone else has moved the position in the file."""
        self._reopen(self._source)
        self._position = 0

    def seek(self, sample: int) -> None:
        """Go to a sample."""
        sample = min(sample, self.n_samples or 0)
        if self._is_lossless:
            self._position = int(self._guarded(sample, self._file.seek, sample))
            return
        if self._subtype == "OPUS":
            entered = max(0, sample - round(OPUS_RUN_IN_S * self.sr))
            self._reopen(self._source)
            self._position = int(self._guarded(sample, self._file.seek, entered)) if entered else 0
        else:
            self._guarded(sample, self._enter_vorbis, sample)
        self._skip_to(sample)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._opened is not None:
            self._opened.close()

    def _enter_vorbis(self, sample: int) -> None:
        if isinstance(self._source, Path) and self._opened is None:
            self._opened = _OwnFile(self._source)
        file: Any = self._opened or self._source
        entered = enter_vorbis(file, sample, self.n_samples or 0)
        self._reopen(self._source if entered is None else entered)
        self._position = (self.n_samples or 0) - int(self._file.frames)

    def _reopen(self, source: Any) -> None:
        self._file.close()
        self._file = self._opened_file(source)

    def _opened_file(self, source: Any) -> _SequentialSoundFile:
        self._has_callbacks = not isinstance(source, Path)
        with deferred_signals() if self._has_callbacks else contextlib.nullcontext():
            return _open(source)

    def _skip_to(self, sample: int) -> None:
        while self._position < sample:
            part = self._buffer[: sample - self._position]
            n = self._guarded(self._position, self._file.buffer_read_into, part, "float32")
            if n == 0:
                return  # the next read says why
            self._position += n

    def _guarded(self, sample: int, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with deferred_signals() if self._has_callbacks else contextlib.nullcontext():
                return call(*arguments)
        except soundfile.LibsndfileError as error:
            reason = f"is damaged at {sample / self.sr:.1f} s ({plain_reason(error)})"
            raise FileError(self._name, reason) from error

    def _is_truncated(self) -> bool:
        # Some Ogg encoders declare slightly more samples than they write.
        slack = 0.0 if self._is_lossless else DURATION_SLACK_S * self.sr
        return self._position < (self.n_samples or 0) - slack


def _open(source: Any) -> _SequentialSoundFile:
    if not isinstance(source, Path):
        source.seek(0)
        return _SequentialSoundFile(source)
    # As bytes, a name need not be UTF-8; on Windows it always is.
    return _SequentialSoundFile(os.fspath(source) if os.name == "nt" else os.fsencode(source))


def plain_reason(error: soundfile.LibsndfileError) -> str:
    """What libsndfile says, without its own prefix."""
    return str(error.error_string).removeprefix("Error : ").strip().rstrip(".")
