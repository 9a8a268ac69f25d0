"""Sounds for a page, small enough to be embedded, and playable in any browser."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import ArrayLike, NDArray

from ondes.cores import each, one_blas_thread
from ondes.models.component_masks import ComponentMasks
from ondes.models.model import scaled
from ondes.models.sources import Sources
from ondes.nmf.encoding import Compute
from ondes.report.content import Sound
from ondes.report.excerpts import ShownExcerpt
from ondes.signal.stft import Frames

__all__ = ["Budget", "EncodedSound", "budget_for", "component_sounds", "without_serial_number"]

Samples = NDArray[np.float32]
Array = NDArray[np.floating]

OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
BIT_RATE = 48_000  # per second and channel
# libsndfile's Opus has from 6 to 256 kbit/s per channel, for compression levels from 1 to 0.
LEAST_BIT_RATE, BIT_RATE_RANGE = 6_000, 250_000
AT_ONCE = 2**16
PAGE_SERIAL, PAGE_CHECKSUM = 14, 22  # places in the header of an Ogg page

PAGE_BYTES = 7_500_000
BASE64 = 4 / 3
PICTURE_BYTES, COMPONENT_PICTURES_BYTES, PAGE_ITSELF_BYTES = 60_000, 6_000, 40_000
STEMS_SHARE = 0.8  # of the bytes left for sounds
STEM_BIT_RATES = (12_000, 48_000)  # per channel, least and most
COMPONENT_BIT_RATE = 24_000  # they are mono
LEAST_SECONDS = 3.0  # of a component that plays at all
LONGEST_SECONDS = 30.0  # of a component: what is computed at a time
MOST_SECONDS = 120.0  # of all components together, which take as long to encode as to separate


@dataclass(frozen=True)
class Budget:
    """Bit rates and lengths of the sounds of a page."""

    stem_bit_rate: int  # per second and channel
    component_bit_rate: int
    component_seconds: float  # how much of a component plays
    n_players: int  # how many components, the loudest ones, have a sound


def budget_for(seconds: float, n_channels: int, n_stems: int, n_components: int) -> Budget:
    """The budget of an excerpt; where it is long, bit rates fall first.

    Examples
    --------
    >>> budget_for(30, 2, 5, 32)
    Budget(stem_bit_rate=48000, component_bit_rate=24000, component_seconds=3.75, n_players=32)
    >>> budget_for(180, 2, 5, 32).component_seconds > 3
    True
    """
    n_channels = n_channels if n_channels <= 2 else 1
    pictures = PICTURE_BYTES * n_stems + COMPONENT_PICTURES_BYTES * n_components
    n_bytes = (PAGE_BYTES - PAGE_ITSELF_BYTES - pictures) / BASE64
    least, most = STEM_BIT_RATES
    share = STEMS_SHARE if n_components else 1.0
    rate = 8 * share * n_bytes / (seconds * n_stems * n_channels)
    stem_rate = round(min(most, max(least, rate)))
    left = max(0.0, n_bytes - stem_rate * seconds * n_stems * n_channels / 8)
    seconds_left = min(MOST_SECONDS, 8 * left / COMPONENT_BIT_RATE)
    n_players = min(n_components, int(seconds_left / min(LEAST_SECONDS, seconds)))
    length = min(seconds, LONGEST_SECONDS, seconds_left / n_players) if n_players else 0.0
    return Budget(stem_rate, COMPONENT_BIT_RATE, length, n_players)


class EncodedSound:
    """A sound that is encoded as it comes: Ogg Opus, or FLAC where libsndfile is older than 1.1.

    More than two channels become one, and samples beyond full scale are clipped. The bit rate is
    per second and channel.

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
    return (checksum << 8) & 0xFFFFFFFF ^ _checksums()[checksum >> 24 ^ byte]


@functools.cache
def _checksums() -> list[int]:
    """That of each byte alone."""
    found = [byte << 24 for byte in range(256)]
    for _ in range(8):
        found = [(one << 1) ^ (0x104C11DB7 if one & 0x80000000 else 0) for one in found]
    return found


def component_sounds(
    excerpt: ShownExcerpt,
    sources: Sources,
    powers: Array,
    budget: Budget,
    *,
    gain: float,
    compute: Compute | None = None,
) -> dict[int, Sound]:
    """The sounds of the loudest components by their index, as many as the budget allows.

    `powers` of shape (n_columns, n_components) are those over equal spans of time.
    """
    players = np.argsort(-powers.sum(axis=0), kind="stable")[: budget.n_players].tolist()
    masks = ComponentMasks(sources, sr=excerpt.sr, compute=compute)
    seconds = excerpt.n_samples / excerpt.sr
    n_windows = max(1, int(np.ceil(seconds / budget.component_seconds - 1e-9))) if players else 0
    edges = np.linspace(0, excerpt.n_samples, n_windows + 1).round().astype(int)
    sounds: dict[int, Sound] = {}
    for window, players_there in enumerate(_loudest_windows(powers, players, n_windows)):
        if players_there:
            first, last = int(edges[window]), int(edges[window + 1])
            with one_blas_thread():
                found = _sounds(
                    excerpt, masks, players_there, first, last, budget, gain,
                    1 if compute is None else compute.n_threads,
                )  # fmt: skip
            sounds |= dict(zip(players_there, found, strict=True))
    return sounds


def _loudest_windows(powers: Array, players: Sequence[int], n_windows: int) -> list[list[int]]:
    """The components that are loudest in each window of time."""
    windows = np.minimum(np.arange(len(powers)) * n_windows // max(1, len(powers)), n_windows - 1)
    loudest: list[list[int]] = [[] for _ in range(n_windows)]
    for player in players:
        sums = np.bincount(windows, weights=powers[:, player], minlength=n_windows)
        loudest[int(sums.argmax())].append(player)
    return loudest


def _sounds(
    excerpt: ShownExcerpt,
    masks: ComponentMasks,
    players: Sequence[int],
    first: int,
    last: int,
    budget: Budget,
    gain: float,
    n_threads: int,
) -> list[Sound]:
    """In mono, which is half as much to encode."""
    stft, sr = masks.stft, excerpt.sr
    begin = max(0, first - stft.n_fft)
    samples = excerpt.part(begin, min(excerpt.n_samples, last + stft.n_fft))
    frames = stft.forward(samples)
    encoded, mono = masks.encode(frames), _in_mono(frames)
    inverse = masks.inverse_model(encoded.gains)

    def sound_of(player: int) -> Sound:
        heard = stft.inverse(scaled(mono, masks.mask(encoded, player, inverse)), len(samples))
        sound = EncodedSound(sr, 1, bit_rate=budget.component_bit_rate, gain=gain)
        sound.write(heard[first - begin : last - begin])
        return Sound(sound.finish(), sound.media_type, first / sr, (last - first) / sr)

    return list(each(sound_of, players, n_threads))


def _in_mono(frames: Frames) -> Frames:
    """The mean of the channels, or the first one where they would cancel each other."""
    mono: Frames = frames.mean(axis=1)
    is_lost = (
        np.square(np.abs(mono)).sum() < 0.1 * np.square(np.abs(frames)).sum(axis=(0, 2)).mean()
    )
    return frames[:, 0] if is_lost else mono
