"""MP3, M4A and video, by PyAV."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal import integrity
from ondes.signal.decoder import DURATION_SLACK_S
from ondes.signal.pcm import read_length, to_float

__all__ = ["AvDecoder"]

Samples = NDArray[np.float32]

# FFmpeg also reads playlists, scripts and network descriptions, which name other files to open, and
# formats that it recognises in noise: a recording must be one of these.
CONTAINERS = (
    *("aac", "ac3", "aiff", "amr", "ape", "asf", "au", "avi", "caf", "dsf", "dts", "eac3", "flac"),
    *("flv", "g722", "matroska", "mov", "mp3", "mpc", "mpc8", "mpeg", "mpegts", "ogg", "rm", "tak"),
    *("tta", "w64", "wav", "wv"),
)
# Their length is guessed from the bit rate at their beginning.
WITHOUT_LENGTH = ("aac", "ac3", "dts", "eac3")
MAX_PLANES = 7  # of more, PyAV misjudges the number and reads beyond them
FFMPEG_LIMIT = 2**31 - 1  # its default for one allocation, in bytes


class AvDecoder:
    """Whatever FFmpeg reads of the formats above.

    Parameters
    ----------
    name : str
        For messages.
    source : Path or binary file
        What is decoded; a file is not closed with the decoder.
    file : binary file
        The same, for a look at its bytes.
    """

    is_seek_exact = False

    def __init__(self, name: str, source: Path | BinaryIO, file: BinaryIO) -> None:
        import av

        self._name = name
        self._failure = av.FFmpegError
        n_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        # Without `file:`, FFmpeg takes some names for addresses.
        opened: Any = f"file:{source}" if isinstance(source, Path) else source
        try:
            allowed = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"}
            with _bounded_memory(n_bytes):
                self._container: Any = av.open(opened, options=allowed, **_lenient())
        except (av.FFmpegError, UnicodeError) as error:
            raise FileError(name, "is not audio, or is damaged at its start") from error
        try:
            if not self._container.streams.audio:
                raise FileError(name, "has no audio in it")
            stream = self._container.streams.audio[0]
            if stream.codec_context is None:
                raise FileError(name, "has an encoding that FFmpeg does not support")
            self.sr, self.channels = int(stream.rate or 0), int(stream.codec_context.channels or 0)
            if not self.sr or not self.channels:
                raise FileError(name, "is not audio, or is damaged at its start")
            integrity.check_header(name, self.sr, self.channels)
            self.format = str(stream.codec_context.name).upper()
            duration = _duration(self._container, stream)
            self.n_samples = None if duration is None else round(duration * self.sr)
            integrity.check_length(name, self.n_samples, n_bytes, self.format)
            kind = self._container.format.name
            is_guessed = kind in WITHOUT_LENGTH or ("mp3" in kind and not _has_length(file))
            self._is_length_exact = not is_guessed
        except BaseException:
            self._container.close()
            raise
        self._position = 0
        self._frames: Iterator[Any] = self._container.decode(stream)
        self._held: list[Samples] = []
        self._to_packed: Any = None

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
                self._name, f"is damaged at {self._position / self.sr:.1f} s"
            ) from error
        if frame is None:
            return None
        if (frame.sample_rate, frame.layout.nb_channels) != (self.sr, self.channels):
            raise FileError(self._name, "changes its sampling rate or number of channels")
        if frame.format.is_planar and self.channels <= MAX_PLANES:
            return to_float(frame.to_ndarray().T)
        blocks = self._interleaved(frame) if frame.format.is_planar else [frame]
        arrays = [block.to_ndarray().reshape(-1, self.channels) for block in blocks]
        return to_float(np.concatenate(arrays))

    def _interleaved(self, frame: Any) -> list[Any]:
        """The same samples in one plane."""
        try:
            if self._to_packed is None:
                self._to_packed = _packing(frame)
            self._to_packed.push(frame)
            return [self._to_packed.pull()]
        except (self._failure, ValueError) as error:
            raise FileError(
                self._name, f"has {self.channels} channels, more than FFmpeg can convert"
            ) from error

    def _check_end(self) -> None:
        if self._position == 0:
            raise FileError(self._name, "holds no samples")
        missing = (self.n_samples or 0) - self._position
        if self._is_length_exact and missing > DURATION_SLACK_S * self.sr:
            raise FileError(
                self._name,
                f"is truncated: {self._position / self.sr:.1f} s of the "
                f"{(self.n_samples or 0) / self.sr:.1f} s in its header",
            )

    def seek(self, sample: int) -> None:
        """Not supported: it would not be exact."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._container.close()


def _packing(frame: Any) -> Any:
    """A filter graph that puts the planes of frames like this one into one plane."""
    from av.filter import Graph

    graph = Graph()
    if hasattr(graph, "threads"):  # of later versions of PyAV
        graph.threads = 1  # or one thread per core, with a stack each, for a copy
    source = graph.add(
        "abuffer",
        sample_rate=str(frame.sample_rate),
        sample_fmt=frame.format.name,
        channel_layout=frame.layout.name,
        time_base=str(frame.time_base or f"1/{frame.sample_rate}"),
    )
    packed = graph.add("aformat", sample_fmts=frame.format.packed.name)
    source.link_to(packed)
    packed.link_to(graph.add("abuffersink"))
    graph.configure()
    return graph


def _has_length(file: BinaryIO) -> bool:
    """As `integrity.mp3_has_length`; the position in the file, which FFmpeg counts on, stays."""
    place = file.tell()
    try:
        return integrity.mp3_has_length(file)
    finally:
        file.seek(place)


def _lenient() -> dict[str, Any]:
    """Titles in an old encoding are no reason to refuse a recording; PyAV 19 is lenient itself."""
    import av

    return {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


@contextlib.contextmanager
def _bounded_memory(n_bytes: int) -> Iterator[None]:
    """Limit FFmpeg, which allocates whatever a header declares, to what a file could fill."""
    import av

    try:
        set_limit = ctypes.CDLL(av._core.__file__).av_max_alloc
    except (AttributeError, OSError):  # FFmpeg is linked in another way
        yield
        return
    with _one_at_a_time:  # the limit applies to the whole process
        set_limit(ctypes.c_size_t(min(FFMPEG_LIMIT, 2**23 + 10 * n_bytes)))
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
