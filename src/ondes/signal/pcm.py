"""Uncompressed samples from a pipe: WAV, also of unknown length, and raw."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.integrity import (
    MAX_CHANNELS,
    MAX_SR,
    MIN_SR,
    check_header,
    is_length_known,
)

__all__ = [
    "PcmDecoder",
    "RawFormat",
    "from_float",
    "in_range",
    "read_length",
    "standard_input",
    "to_float",
]

Samples = NDArray[np.float32]

READ_LENGTH = 16384
MAX_READ_BYTES = 2**20
MIN_PEAK, MAX_PEAK = 2.0**-40, 2.0**40  # of samples whose squares, summed, are far from any limit
FMT_BYTES = 40  # at most, of a WAV's description of its samples


@dataclass(frozen=True)
class RawFormat:
    """Samples without a header, interleaved, little-endian.

    Parameters
    ----------
    sr : int
        Samples per second.
    channels : int
    encoding : str
        As ffmpeg's ``-f``: ``u8``, ``s16le``, ``s24le``, ``s32le``, ``f32le``, ``f64le``.

    Examples
    --------
    >>> RawFormat(44100, channels=2).bytes_per_sample
    4
    """

    sr: int
    channels: int = 1
    encoding: str = "s16le"

    def __post_init__(self) -> None:
        if not MIN_SR <= self.sr <= MAX_SR:
            raise ValueError(f"sr={self.sr} must lie between {MIN_SR} and {MAX_SR}.")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise ValueError(f"channels={self.channels} must lie between 1 and {MAX_CHANNELS}.")
        if self.encoding not in _BYTES:
            raise ValueError(f"No encoding {self.encoding!r}: choose one of {', '.join(_BYTES)}.")

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of a sample of all channels together."""
        return self.channels * _BYTES[self.encoding]


class PcmDecoder:
    """WAV with or without a length, or raw samples, from anything with a `read`."""

    is_seek_exact = False

    def __init__(
        self, stream: BinaryIO, name: str, raw: RawFormat | None, *, owned: bool = False
    ) -> None:
        self._stream, self._name, self._owned = stream, name, owned
        self._bytes_left: int | None = None
        self.n_samples: int | None = None
        try:
            layout = self._read_wav_header() if raw is None else raw
        except BaseException:
            self.close()
            raise
        self.format = "WAV" if raw is None else "RAW"
        self.sr, self.channels, self._encoding = layout.sr, layout.channels, layout.encoding
        self._frame_bytes = self.channels * _BYTES[self._encoding]
        if self._bytes_left is not None:
            self.n_samples = self._bytes_left // self._frame_bytes
        self._is_begun = self._is_over = False
        self._n_read, self._tail = 0, b""

    def read(self) -> Samples:
        """Next samples, (n, channels): of a pipe, those that have come."""
        if self._is_over:
            return np.zeros((0, self.channels), np.float32)
        wanted = read_length(self.channels) * self._frame_bytes
        if self._bytes_left is not None:
            wanted = min(wanted, self._bytes_left // self._frame_bytes * self._frame_bytes)
        data = self._stream.read(wanted) or b""
        data += self._read_bytes(-len(data) % self._frame_bytes)
        if self._bytes_left is None and self.format == "WAV":
            data = self._before_another(data)
        whole = len(data) // self._frame_bytes * self._frame_bytes
        if self._bytes_left is not None:
            self._bytes_left -= len(data)
            if wanted and not whole:
                raise FileError(self._name, "is truncated: it is shorter than its header says")
        if not whole and not self._is_begun:
            raise FileError(self._name, "holds no samples")
        self._is_begun = True
        self._n_read += whole // self._frame_bytes
        return to_float(_unpack(data[:whole], self._encoding).reshape(-1, self.channels))

    def _before_another(self, data: bytes) -> bytes:
        """What comes before the header of another WAV, perhaps of another rate: there it ends."""
        joined = self._tail + data
        place = joined.find(b"WAVEfmt ") - 8
        if place < 0 or joined[place : place + 4] not in (b"RIFF", b"RF64"):
            self._tail = joined[-15:]
            return data
        data = data[: max(0, place - len(self._tail))]
        self._is_over = True
        seconds = (self._n_read + len(data) // self._frame_bytes) / self.sr
        reason = f"has another WAV after {seconds:.1f} s, which is left out; give each alone"
        warnings.warn(str(FileError(self._name, reason)), RuntimeWarning, stacklevel=2)
        return data

    def seek(self, sample: int) -> None:
        """Not supported: a pipe cannot go back."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the stream if this decoder opened it."""
        if self._owned:
            self._stream.close()

    def _read_bytes(self, n: int) -> bytes:
        return b"".join(self._parts(n))

    def _parts(self, n: int) -> Iterator[bytes]:
        """The next `n` bytes as they come; one large read would allocate all it asks for."""
        while n and (part := self._stream.read(min(n, MAX_READ_BYTES))):
            yield part
            n -= len(part)

    def _read_wav_header(self) -> RawFormat:
        head = self._read_bytes(12)
        if not head:
            raise FileError(self._name, "is empty (0 bytes)")
        if head[:4] not in (b"RIFF", b"RF64") or head[8:] != b"WAVE":
            raise FileError(self._name, "is not WAV; pipe WAV, or give its raw format")
        layout = None
        while len(header := self._read_bytes(8)) == 8:
            name, length = header[:4], int.from_bytes(header[4:], "little")
            if name == b"data" and layout is not None:
                self._bytes_left = length if is_length_known(length) else None
                return layout
            n_read = 0
            if name == b"fmt ":
                body = self._read_bytes(min(length, FMT_BYTES))
                layout, n_read = self._parse_fmt(body), len(body)
            for _ in self._parts(length + length % 2 - n_read):
                pass
        raise FileError(self._name, "is WAV without any samples")

    def _parse_fmt(self, body: bytes) -> RawFormat:
        tag, channels = (int.from_bytes(body[i : i + 2], "little") for i in (0, 2))
        sr, bits = int.from_bytes(body[4:8], "little"), int.from_bytes(body[14:16], "little")
        if tag == 0xFFFE:  # extensible: the sub-format begins with the actual tag
            tag = int.from_bytes(body[24:26], "little")
        kind = {1: "s" if bits > 8 else "u", 3: "f"}.get(tag, "?")
        encoding = f"{kind}{bits}" + ("le" if bits > 8 else "")
        if encoding not in _BYTES or not sr or not channels:
            raise FileError(self._name, "is WAV of a kind that cannot be piped; pipe pcm_s16le")
        check_header(self._name, sr, channels)
        return RawFormat(sr, channels, encoding)


_BYTES = {"u8": 1, "s16le": 2, "s24le": 3, "s32le": 4, "f32le": 4, "f64le": 8}


def _unpack(data: bytes, encoding: str) -> NDArray[Any]:
    if encoding == "s24le":
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0]
    kind, size = encoding[0].replace("s", "i"), _BYTES[encoding]
    return np.frombuffer(data, np.dtype(f"<{kind}{size}"))


def read_length(channels: int) -> int:
    """Samples of each channel to read at a time: fewer where there are very many channels."""
    return max(1, READ_LENGTH >> max(0, (channels - 1).bit_length() - 3))


def to_float(samples: NDArray[Any]) -> Samples:
    """Scale integers to [-1, 1) as libsndfile does; contiguous float32."""
    kind, bits = samples.dtype.kind, 8 * samples.dtype.itemsize
    if kind == "f":
        return np.ascontiguousarray(samples, dtype=np.float32)
    centred = samples.astype(np.float32) - (128 if kind == "u" else 0)
    return np.ascontiguousarray(centred * np.float32(0.5 ** (bits - 1)))


def from_float(samples: NDArray[np.floating], encoding: str) -> bytes:
    """Samples as the bytes of an encoding, interleaved; integers cannot hold any beyond ±1.

    Examples
    --------
    >>> np.frombuffer(from_float(np.array([0.5, -1.0, 2.0]), "s16le"), "<i2").tolist()
    [16384, -32768, 32767]
    """
    kind, bits = encoding[0], 8 * _BYTES[encoding]
    if kind == "f":
        return samples.astype(f"<f{bits // 8}").tobytes()
    full = 2.0 ** (bits - 1)
    whole = np.clip(np.rint(samples.astype(np.float64) * full), -full, full - 1)
    if kind == "u":
        return (whole + full).astype(np.uint8).tobytes()
    if bits == 24:
        return whole.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


def in_range(samples: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Samples divided by two to some power, and that power, where squares would leave float32.

    Examples
    --------
    >>> in_range(np.array([0.0, 2.0**90], np.float32))
    (array([0. , 0.5], dtype=float32), 91)
    >>> in_range(np.array([0.0, 0.1], np.float32))[1]
    0
    """
    if samples.dtype.kind != "f" or samples.size == 0:
        return samples, 0
    peak = max(float(samples.max()), -float(samples.min()))
    if peak == 0 or MIN_PEAK <= peak <= MAX_PEAK:
        return samples, 0
    exponent = math.frexp(peak)[1]
    return np.ldexp(samples, -exponent), exponent


def standard_input() -> BinaryIO:
    """Standard input as a binary stream."""
    # Unbuffered: the interpreter aborts at exit if a thread still waits in a buffered read.
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except (OSError, ValueError):
        return sys.stdin.buffer
