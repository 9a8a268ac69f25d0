"""Sounds for a page: small enough to be embedded, and playable in any browser."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import ArrayLike, NDArray

__all__ = ["EncodedSound", "without_serial_number"]

Samples = NDArray[np.float32]

OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
BIT_RATE = 48_000  # per second and channel
# libsndfile's Opus has from 6 to 256 kbit/s per channel, for compression levels from 1 to 0.
LEAST_BIT_RATE, BIT_RATE_RANGE = 6_000, 250_000
AT_ONCE = 2**16
PAGE_SERIAL, PAGE_CHECKSUM = 14, 22  # places in the header of an Ogg page


class EncodedSound:
    """A sound that is encoded as it comes: Ogg Opus, or FLAC where libsndfile is older than 1.1.

    Parameters
    ----------
    sr : int
        Sampling rate of the samples; Opus has its own, and they are resampled.
    channels : int
        More than two become one.
    bit_rate : int
        Per second and channel.
    gain : float
        Of all samples; full scale is 1, and what is beyond is clipped.

    Attributes
    ----------
    media_type : str

    Examples
    --------
    >>> sound = EncodedSound(44100, 2)
    >>> for _ in range(10):
    ...     sound.write(np.zeros((4410, 2)))
    >>> data = sound.finish()
    >>> soundfile.info(io.BytesIO(data)).duration
    1.0
    """

    def __init__(
        self, sr: int, channels: int, *, bit_rate: int = BIT_RATE, gain: float = 1.0
    ) -> None:
        self._channels = channels
        self._n_written = channels if channels <= 2 else 1
        self._gain = np.float32(gain)
        self._file = io.BytesIO()
        is_opus = "OPUS" in soundfile.available_subtypes("OGG")
        self.media_type = "audio/ogg" if is_opus else "audio/flac"
        rate = min((each for each in OPUS_RATES if each >= sr), default=OPUS_RATES[-1])
        self._resampler = None
        if rate != sr:
            self._resampler = soxr.ResampleStream(sr, rate, self._n_written, dtype="float32")
        self._encoder = self._open(rate, bit_rate, is_opus)

    def write(self, samples: ArrayLike) -> None:
        """Append samples, (n,) or (n, channels)."""
        block = np.asarray(samples, dtype=np.float32).reshape(-1, self._channels)
        if self._n_written != self._channels:
            block = block.mean(axis=1, keepdims=True)
        self._encode(block * self._gain, is_last=False)

    def finish(self) -> bytes:
        """The whole file; nothing can be appended any more."""
        self._encode(np.zeros((0, self._n_written), np.float32), is_last=True)
        self._encoder.close()
        data = self._file.getvalue()
        return without_serial_number(data) if self.media_type == "audio/ogg" else data

    def _open(self, rate: int, bit_rate: int, is_opus: bool) -> Any:
        settings: dict[str, Any] = {"format": "FLAC", "subtype": "PCM_16"}
        if is_opus:
            level = 1 - (bit_rate - LEAST_BIT_RATE) / BIT_RATE_RANGE
            settings = {"format": "OGG", "subtype": "OPUS"}
            settings |= {"compression_level": float(np.clip(level, 0, 1))}
        try:
            return soundfile.SoundFile(self._file, "w", rate, self._n_written, **settings)
        except TypeError:  # soundfile before 0.13 cannot choose the bit rate
            del settings["compression_level"]
            return soundfile.SoundFile(self._file, "w", rate, self._n_written, **settings)

    def _encode(self, block: Samples, is_last: bool) -> None:
        if self._resampler is not None:
            block = self._resampler.resample_chunk(block, last=is_last)
        for first in range(0, len(block), AT_ONCE):  # libsndfile's Ogg encoders may crash on more
            self._encoder.write(np.clip(block[first : first + AT_ONCE], -1, 1))


def without_serial_number(ogg: bytes) -> bytes:
    """An Ogg file of one stream with the serial number 0: libsndfile draws one at random.

    Checksums are linear: that of a page changes by the checksum of what changed in it.

    Examples
    --------
    >>> sound = EncodedSound(8000, 1)
    >>> sound.write(np.zeros(800))
    >>> sound.finish()[14:18] == bytes(4)
    True
    """
    pages = bytearray(ogg)
    change = 0
    for byte in pages[PAGE_SERIAL : PAGE_SERIAL + 4]:
        change = _next_checksum(change, byte)
    changes = [change]  # with so many bytes that stay as they are after it
    place = 0
    while place < len(pages):
        n_segments = pages[place + 26]
        segments = place + 27
        n_bytes = 27 + n_segments + sum(pages[segments : segments + n_segments])
        n_after = n_bytes - PAGE_SERIAL - 4
        while len(changes) <= n_after:
            changes.append(_next_checksum(changes[-1], 0))
        (checksum,) = struct.unpack_from("<I", pages, place + PAGE_CHECKSUM)
        struct.pack_into("<I", pages, place + PAGE_SERIAL, 0)
        struct.pack_into("<I", pages, place + PAGE_CHECKSUM, checksum ^ changes[n_after])
        place += n_bytes
    return bytes(pages)


def _next_checksum(checksum: int, byte: int) -> int:
    """The checksum of Ogg pages after one more byte: polynomial 0x04c11db7, highest bit first."""
    checksum ^= byte << 24
    for _ in range(8):
        checksum = (checksum << 1) ^ (0x104C11DB7 if checksum & 0x80000000 else 0)
    return checksum
