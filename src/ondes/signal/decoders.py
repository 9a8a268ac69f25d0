"""Decoders: bytes in, float32 samples out, in reads of a fixed length.

Reads always end at the same places, so that what a decoder gives, and where it fails, depends on
the file alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import soundfile
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal import integrity
from ondes.signal.pcm import PcmDecoder, RawFormat, read_length, standard_input, to_float

__all__ = ["Decoder", "open_decoder"]

Samples = NDArray[np.float32]

# Encoders pad and players trim up to a few MP3 frames at both ends.
MP3_TRIM = 4 * 1152
# A container's duration is rounded, and counts the encoder's padding.
DURATION_SLACK_S = 0.5
# FFmpeg also reads playlists, scripts and network descriptions, which name other files to open, and
# formats that it recognises in noise: a recording must be one of these.
CONTAINERS = (
    *("aac", "ac3", "aiff", "amr", "ape", "asf", "au", "avi", "caf", "dsf", "dts", "eac3", "flac"),
    *("flv", "matroska", "mov", "mp3", "mpc", "mpc8", "mpeg", "mpegts", "ogg", "rm", "tak", "tta"),
    *("w64", "wav", "wv"),
)
UNRECOGNISED, UNSUPPORTED_ENCODING = 1, 4  # libsndfile's error codes
FFMPEG_LIMIT = 2**31 - 1  # its default for one allocation, in bytes
INSTALL_FORMATS = "install PyAV with: pip install 'ondes[formats]'"


class Decoder(Protocol):
    """What every decoder has."""

    sr: int
    channels: int
    n_samples: int | None
    format: str
    is_seek_exact: bool

    def read(self) -> Samples:
        """Next samples, (n, channels), valid until the next read; empty at the end."""

    def seek(self, sample: int) -> None:
        """Go to a sample; allowed where `is_seek_exact`."""

    def close(self) -> None:
        """Release the file."""


def open_decoder(recording: str | Path | BinaryIO, raw: RawFormat | None = None) -> Decoder:
    """Open a file, ``-`` for standard input, or a binary stream, with the decoder it needs."""
    if not isinstance(recording, (str, Path)):
        return PcmDecoder(recording, str(getattr(recording, "name", "stream")), raw)
    if str(recording) == "-":
        return PcmDecoder(standard_input(), "-", raw)
    path = Path(recording)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise FileError(path, "is a folder, not a recording")
        if raw is not None or not stat.S_ISREG(mode):
            return PcmDecoder(path.open("rb", buffering=0), str(path), raw, owned=True)
        with path.open("rb") as file:
            if not file.read(1):
                raise FileError(path, "is empty (0 bytes)")
        return _open_file(path)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error


def _open_file(path: Path) -> Decoder:
    if integrity.is_mpeg(path) and _has_pyav():  # libmpg123 prints about whatever is damaged
        return AvDecoder(path)
    try:
        decoder = SoundFileDecoder(path)
    except soundfile.LibsndfileError as error:
        if error.code not in (UNRECOGNISED, UNSUPPORTED_ENCODING):
            raise FileError(path, f"is damaged ({_plain(error.error_string)})") from error
        if _has_pyav():
            return AvDecoder(path)
        raise FileError(
            path, f"is not a format of libsndfile; if it is MP4 or video, {INSTALL_FORMATS}"
        ) from error
    except TypeError as error:  # soundfile wants a format for names that end in .raw
        raise FileError(path, "has no header; give its raw format") from error
    try:
        integrity.check_header(path, decoder.sr, decoder.channels)
        is_mp3, is_chained = decoder.format == "MP3", integrity.is_chained_ogg(path)
        if (is_mp3 or is_chained) and _has_pyav():
            decoder.close()
            return AvDecoder(path)
        if is_chained:
            raise FileError(path, f"consists of several Ogg streams; to read it, {INSTALL_FORMATS}")
        if is_mp3:
            _check_mp3_length(path, decoder)
        elif integrity.is_truncated(path):
            raise FileError(path, "is truncated: it ends before its header says; copy it again")
        integrity.check_length(path, decoder.n_samples)
        if decoder.n_samples == 0:
            raise FileError(path, "holds no samples")
    except BaseException:
        decoder.close()
        raise
    return decoder


def _check_mp3_length(path: Path, decoder: SoundFileDecoder) -> None:
    """Refuse an MP3 whose length libsndfile misjudges: it would stop early."""
    found, expected = integrity.mp3_n_samples(path), decoder.n_samples or 0
    if found < expected - MP3_TRIM:
        raise FileError(path, "is truncated: it ends before its header says; copy it again")
    if found > expected + MP3_TRIM:
        raise FileError(path, f"has no length in its header; to read all of it, {INSTALL_FORMATS}")


class _SequentialSoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """Without soundfile's seek after every read, which garbles Opus and fails on some FLAC."""

    def seekable(self) -> bool:
        return False


class SoundFileDecoder:
    """WAV, FLAC, Ogg, Opus, AIFF and whatever else libsndfile reads, into one reused buffer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # As bytes, a name need not be UTF-8; on Windows it always is.
        name = os.fspath(path) if os.name == "nt" else os.fsencode(path)
        self._file = _SequentialSoundFile(name)
        self.sr = int(self._file.samplerate)
        self.channels = int(self._file.channels)
        self.n_samples = int(self._file.frames) if self._file.frames < 2**62 else None
        self.format = str(self._file.format)
        subtype = str(self._file.subtype)
        lossless = subtype.startswith("PCM_") or subtype in ("FLOAT", "DOUBLE", "ULAW", "ALAW")
        self.is_seek_exact = lossless and self.n_samples is not None
        self._position = 0
        n_read = read_length(self.channels)
        if self.n_samples is not None:  # a header may declare a thousand channels without samples
            n_read = max(1, min(n_read, self.n_samples))
        self._buffer = np.empty((n_read, self.channels), np.float32)

    def read(self) -> Samples:
        """Next samples, (n, channels)."""
        try:
            n = self._file.buffer_read_into(self._buffer, "float32")
        except soundfile.LibsndfileError as error:
            raise FileError(
                self._path,
                f"is damaged {self._position / self.sr:.1f} s in ({_plain(error.error_string)})",
            ) from error
        self._position += n
        if n == 0 and self._is_truncated():
            raise FileError(
                self._path,
                f"is truncated: {self._position / self.sr:.1f} s of the "
                f"{(self.n_samples or 0) / self.sr:.1f} s in its header",
            )
        return self._buffer[:n]

    def _is_truncated(self) -> bool:
        # Some Ogg encoders declare slightly more samples than they write.
        slack = 0.0 if self.is_seek_exact else DURATION_SLACK_S * self.sr
        return self._position < (self.n_samples or 0) - slack

    def seek(self, sample: int) -> None:
        """Go to a sample."""
        try:
            self._position = int(self._file.seek(min(sample, self.n_samples or 0)))
        except soundfile.LibsndfileError as error:
            reason = f"is damaged {sample / self.sr:.1f} s in ({_plain(error.error_string)})"
            raise FileError(self._path, reason) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class AvDecoder:
    """MP3, M4A and video, by PyAV."""

    is_seek_exact = False

    def __init__(self, path: Path) -> None:
        import av

        self._path = path
        self._failure = av.FFmpegError
        try:
            allowed = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"}
            with _bounded_memory(path):
                # Titles in an old encoding are no reason to refuse the recording.
                # Without `file:`, FFmpeg takes some names for addresses.
                self._container: Any = av.open(
                    f"file:{path}", options=allowed, metadata_errors="replace"
                )
        except (av.FFmpegError, UnicodeError) as error:
            raise FileError(path, "is not audio, or is damaged at its start") from error
        try:
            if not self._container.streams.audio:
                raise FileError(path, "has no audio in it")
            stream = self._container.streams.audio[0]
            if stream.codec_context is None:
                raise FileError(path, "has an encoding that FFmpeg does not support")
            self.sr, self.channels = int(stream.rate or 0), int(stream.codec_context.channels or 0)
            if not self.sr or not self.channels:
                raise FileError(path, "is not audio, or is damaged at its start")
            integrity.check_header(path, self.sr, self.channels)
            self.format = str(stream.codec_context.name).upper()
            duration = _duration(self._container, stream)
            self.n_samples = None if duration is None else round(duration * self.sr)
            integrity.check_length(path, self.n_samples)
            self._is_length_exact = "mp3" not in self._container.format.name or (
                integrity.mp3_has_length(path)
            )
        except BaseException:
            self._container.close()
            raise
        self._position = 0
        self._frames: Iterator[Any] = self._container.decode(stream)
        self._held: list[Samples] = []

    def read(self) -> Samples:
        """Next samples, (n, channels)."""
        wanted = read_length(self.channels)
        while sum(map(len, self._held)) < wanted and (block := self._decode()) is not None:
            self._held.append(block)
        joined = np.concatenate(self._held) if self._held else self._empty()
        self._held = [joined[wanted:]] if len(joined) > wanted else []
        self._position += len(joined[:wanted])
        if not len(joined):
            self._check_end()
        return joined[:wanted]

    def _empty(self) -> Samples:
        return np.empty((0, self.channels), np.float32)

    def _decode(self) -> Samples | None:
        try:
            frame = next(self._frames, None)
        except (self._failure, IndexError) as error:  # PyAV's for a stream that begins midway
            raise FileError(
                self._path, f"is damaged {self._position / self.sr:.1f} s in"
            ) from error
        if frame is None:
            return None
        if (frame.sample_rate, frame.layout.nb_channels) != (self.sr, self.channels):
            raise FileError(self._path, "changes its sampling rate or channels midway")
        array = frame.to_ndarray()
        planar = array.T if frame.format.is_planar else array.reshape(-1, self.channels)
        return to_float(planar)

    def _check_end(self) -> None:
        if self._position == 0:
            raise FileError(self._path, "holds no samples")
        missing = (self.n_samples or 0) - self._position
        if self._is_length_exact and missing > DURATION_SLACK_S * self.sr:
            raise FileError(
                self._path,
                f"is truncated: {self._position / self.sr:.1f} s of the "
                f"{(self.n_samples or 0) / self.sr:.1f} s in its header",
            )

    def seek(self, sample: int) -> None:
        """Not supported: it would not be exact."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._container.close()


@contextlib.contextmanager
def _bounded_memory(path: Path) -> Iterator[None]:
    """Limit FFmpeg, which allocates whatever a header declares, to what the file could fill."""
    import av

    try:
        set_limit = ctypes.CDLL(av._core.__file__).av_max_alloc
    except (AttributeError, OSError):  # FFmpeg is linked in another way
        yield
        return
    with _one_at_a_time:  # the limit applies to the whole process
        set_limit(ctypes.c_size_t(2**25 + 10 * path.stat().st_size))
        try:
            yield
        finally:
            set_limit(ctypes.c_size_t(FFMPEG_LIMIT))


_one_at_a_time = threading.Lock()


def _duration(container: Any, stream: Any) -> float | None:
    """Seconds of the audio as its container declares; an estimate for MP3 without a length."""
    seconds = _declared_seconds(container, stream)
    return seconds if seconds is not None and 0 <= seconds < math.inf else None


def _declared_seconds(container: Any, stream: Any) -> float | None:
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    with contextlib.suppress(KeyError, ValueError):
        hours, minutes, seconds = stream.metadata["DURATION"].split(":")  # matroska
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    if container.duration is not None and len(container.streams) == 1:
        return float(container.duration) / 1e6
    return None


def _has_pyav() -> bool:
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True


def _plain(message: str) -> str:
    return message.removeprefix("Error : ").strip().rstrip(".")
