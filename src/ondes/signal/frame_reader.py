"""Segments or blocks of samples to frames, on the host."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.errors import FileError
from ondes.rebatch import slices
from ondes.signal.audio_settings import AudioSettings, Loudest, is_active, loudest_of, merge
from ondes.signal.pcm import MAX_PEAK, MIN_PEAK, in_range, to_float
from ondes.signal.schedule import Segment
from ondes.signal.stft import Frames as Spectra
from ondes.signal.stft import mean_power

__all__ = [
    "FrameBuffer",
    "FrameReader",
    "Frames",
    "FramesRead",
    "HostFrameReader",
    "SampleReader",
    "active_frames",
    "add_frames",
    "spectral_frames",
]

Frames = NDArray[np.float32]

FRAMES_MOVED_AT_ONCE = 256
FRAMES_AT_ONCE = 4096


class SampleReader(Protocol):
    """Gives the samples under segments: `SegmentReader`, `MemoryReader`."""

    def read(self, segments: Iterable[Segment]) -> Iterator[tuple[int, NDArray[Any]]]:
        """The number of a recording and samples of it, (n,) or (n, n_channels), in turn."""

    def rate(self, file: int) -> float:
        """The own sampling rate of a recording that was read."""

    def failures(self) -> list[FileError]:
        """The recordings that ended early since the last call."""

    def close(self) -> None:
        """Release every recording."""


@dataclass(frozen=True)
class FramesRead:
    """The frames of some segments.

    Attributes
    ----------
    frames : array or tensor of shape (n, n_bins)
        Without the silent ones. NaN where a recording's own sampling rate has nothing.
    loudest : dict of int to float
        By recording, the energy of its loudest frame so far.
    n_read : int
        Frames that were read, silent ones included.
    failures : list of FileError
        The recordings that ended early.
    """

    frames: Any
    loudest: Loudest
    n_read: int
    failures: list[FileError]


class FrameReader(Protocol):
    """Gives the frames of segments, as arrays of the host or tensors of a device."""

    def read(self, segments: Sequence[Segment], loudest: Loudest) -> FramesRead:
        """Read segments; `loudest` is what is known of their recordings so far."""

    def close(self) -> None:
        """Release every recording."""


class HostFrameReader:
    """Reads frames as float32 arrays: power or magnitude, as `audio` has it.

    Parameters
    ----------
    segment_reader : SampleReader
    audio : AudioSettings

    Examples
    --------
    >>> from ondes.signal.segment_reader import MemoryReader
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(64))
    >>> sound = np.r_[np.zeros(4000), np.ones(4000)].astype(np.float32)
    >>> reader = HostFrameReader(MemoryReader([sound], audio.stft), audio)
    >>> read = reader.read([Segment(0, 0, 251)], {})
    >>> read.n_read, len(read.frames)
    (251, 126)
    """

    def __init__(self, segment_reader: SampleReader, audio: AudioSettings) -> None:
        self._reader, self._audio = segment_reader, audio

    def read(self, segments: Sequence[Segment], loudest: Loudest) -> FramesRead:
        """Read segments; `loudest` is what is known of their recordings so far."""
        top_db = self._audio.top_db
        buffer = FrameBuffer(self._audio, sum(each.n_frames for each in segments))
        loudest, n_read = dict(loudest), 0
        samples = self._reader.read(segments)
        for file, of_file in itertools.groupby(samples, key=lambda pair: pair[0]):
            first = len(buffer)
            energies = np.concatenate([add_frames(buffer, block) for _, block in of_file])
            n_read += len(energies)
            if top_db is not None:
                loudest |= merge({file: loudest.get(file, 0.0)}, loudest_of(energies, file))
                buffer.keep(first, is_active(energies, file, loudest, top_db))
            added = buffer.frames[first:]
            self._audio.from_power(added, out=added)
            self._audio.mark_missing(added, self._reader.rate(file))
        return FramesRead(buffer.trimmed(), loudest, n_read, self._reader.failures())

    def close(self) -> None:
        """Release every recording."""
        self._reader.close()


def add_frames(buffer: FrameBuffer, samples: NDArray[Any]) -> NDArray[Any]:
    """Add the frames of samples and return their energies, in float64 where float32 is too narrow.

    The frames are then on another scale, which no divergence from a dictionary depends on.
    """
    scaled, exponent = in_range(samples)
    energies: NDArray[Any] = buffer.add(scaled).sum(axis=1)
    return np.ldexp(energies.astype(np.float64), 2 * exponent) if exponent else energies


class FrameBuffer:
    """Power frames in one array, made where they stay; it grows where it must.

    Parameters
    ----------
    audio : AudioSettings
    n_expected : int
        Frames to make room for.
    """

    def __init__(self, audio: AudioSettings, n_expected: int) -> None:
        self._stft, self._n = audio.stft, 0
        self._room: Frames = np.empty((n_expected, audio.n_bins), np.float32)

    def __len__(self) -> int:
        return self._n

    @property
    def frames(self) -> Frames:
        """All frames, (n, n_bins): a view."""
        return self._room[: self._n]

    def trimmed(self) -> Frames:
        """All frames, (n, n_bins), in an array of at most twice their size.

        A view of few would keep the room of all that were expected: silence, or a false length.
        """
        return self.frames if 2 * self._n >= len(self._room) else self.frames.copy()

    def add(self, samples: NDArray[Any]) -> Frames:
        """Add the frames that lie wholly in samples, (n,) or (n, n_channels), int16 or float32.

        Returns
        -------
        float32 array of shape (n_added, n_bins)
            A view, valid until the next call.
        """
        end = self._n + len(self._stft.windows(samples))
        if end > len(self._room):
            n_rows, n_bins = self._room.shape
            room = np.empty((max(end, 3 * n_rows // 2), n_bins), np.float32)
            room[: self._n] = self.frames
            self._room = room
        added = self._stft.power_within(to_float(samples), self._room[self._n : end])
        self._n = end
        return added

    def keep(self, first: int, is_kept: NDArray[np.bool_]) -> None:
        """Of the frames from the number `first` on, leave out those that are not kept."""
        if is_kept.all():
            return
        n, self._n = self._n, first
        for rows in slices(n - first, FRAMES_MOVED_AT_ONCE):  # a copy of all would be large
            kept = self._room[first:n][rows][is_kept[rows]]
            self._room[self._n : self._n + len(kept)] = kept
            self._n += len(kept)


def spectral_frames(
    blocks: Iterable[ArrayLike], audio: AudioSettings, own_sr: float = math.inf
) -> Iterator[NDArray[np.float32]]:
    """Power or magnitude of a recording, frame by frame, at constant memory.

    Parameters
    ----------
    blocks : iterable of arrays of shape (n,) or (n, n_channels)
        At the sampling rate of `audio`, for example from `ondes.signal.recordings.open_blocks`.
    audio : AudioSettings
    own_sr : float, optional
        The recording's own sampling rate: bins that it does not have are NaN.

    Yields
    ------
    float32 array of shape (n_frames, n_bins), silent frames included
        float64 where float32 is too narrow: samples of 1e25, say.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(8))
    >>> [frames.shape for frames in spectral_frames([np.ones(6), np.ones(6)], audio)]
    [(1, 5), (2, 5), (1, 5)]
    """
    for power, exponents in _power_frames(blocks, audio):
        frames = audio.from_power(power, out=power)
        if exponents.any():
            scale = exponents if audio.spectrum == "magnitude" else 2 * exponents
            frames = np.ldexp(frames.astype(np.float64), scale[:, None])
        yield audio.mark_missing(frames, own_sr)


def active_frames(
    blocks: Iterable[ArrayLike], audio: AudioSettings, own_sr: float = math.inf
) -> Iterator[NDArray[np.float32]]:
    """The same without silent frames, where the loudest frame so far decides.

    Yields
    ------
    float32 array of shape (n_frames, n_bins), at least one frame
        Where float32 is too narrow, a frame is on another scale, which no divergence from a
        dictionary depends on.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> samples = np.r_[np.ones(8), np.zeros(80)]
    >>> sum(map(len, active_frames([samples], AudioSettings(8000, Stft(8)))))
    3
    """
    loudest: Loudest = {}
    for power, exponents in _power_frames(blocks, audio):
        energies = power.sum(axis=1)
        if exponents.any():
            energies = np.ldexp(energies.astype(np.float64), 2 * exponents)
        loudest = merge(loudest, loudest_of(energies, 0))
        active = power[energies > 0]
        if audio.top_db is not None and len(power):
            active = power[is_active(energies, 0, loudest, audio.top_db)]
        if len(active):
            yield audio.mark_missing(audio.from_power(active, out=active), own_sr)


def _power_frames(blocks: Iterable[ArrayLike], audio: AudioSettings) -> Iterator[_PowerFrames]:
    stft, stream = audio.stft, None
    for block in map(np.asarray, blocks):
        if stream is None:
            stream = stft.stream(block.shape[1] if block.ndim == 2 else None)
        for rows in slices(len(block), FRAMES_AT_ONCE * stft.hop_length):
            yield _power_in_range(stream.push(block[rows])[..., : audio.n_bins])
    if stream is not None:
        yield _power_in_range(stream.flush()[..., : audio.n_bins])


_PowerFrames = tuple[NDArray[np.float32], NDArray[np.intc]]


def _power_in_range(spectra: Spectra) -> _PowerFrames:
    """Mean power, where each frame was divided by two to some power so that float32 can hold it."""
    parts = np.ascontiguousarray(spectra).view(np.float32)
    axes = tuple(range(1, parts.ndim))
    peaks = np.maximum(parts.max(axis=axes, initial=0), -parts.min(axis=axes, initial=0))
    is_far = (peaks > 0) & ~((peaks >= MIN_PEAK) & (peaks <= MAX_PEAK))
    exponents = np.where(is_far, np.frexp(peaks)[1], 0).astype(np.intc)
    if exponents.any():
        scaled = np.ldexp(parts, -exponents.reshape(-1, *(1 for _ in axes)))
        spectra = scaled.view(np.complex64)
    return mean_power(spectra), exponents
