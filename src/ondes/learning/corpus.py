"""The recordings of a run: found and surveyed once, then read from wherever they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ondes.nmf.divergence import Array
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.frame_reader import SampleReader
from ondes.signal.locations import Location, is_location
from ondes.signal.recordings import RawFormat, find_recordings
from ondes.signal.segment_reader import MemoryReader, SegmentReader
from ondes.signal.survey import Recording, describe, digest, is_stream, survey

__all__ = ["Corpus", "RecordingInputs", "found"]

RecordingInputs = str | Location | BinaryIO | Array | Iterable[str | Location | Array]
"""Paths, folders, globs, URLs and spans; a binary stream; or samples in memory."""


def found(given: RecordingInputs) -> list[Any]:
    """The recordings that are meant: locations, or one stream, or arrays of samples."""
    if hasattr(given, "read"):
        return [given]
    is_one = is_location(given) or isinstance(given, np.ndarray)
    several: Any = [given] if is_one else given  # `find_recordings` knows its own result
    if not isinstance(several, list):
        several = list(several)
    if any(isinstance(each, np.ndarray) for each in several):
        return [_as_samples(each) for each in several]
    return list(find_recordings(several))


def _as_samples(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array


@dataclass(frozen=True)
class Corpus:
    """Recordings and what is known of each; see `found` and `surveyed`.

    Attributes
    ----------
    items : list
        Locations, or one stream, or arrays of samples at the rate of `audio`.
    known : list of Recording
    audio : AudioSettings
    raw : RawFormat or None
        The format of samples that have no header.
    """

    items: list[Any]
    known: list[Recording]
    audio: AudioSettings
    raw: RawFormat | None = None

    @classmethod
    def surveyed(cls, items: list[Any], audio: AudioSettings, raw: RawFormat | None) -> Corpus:
        """Look at every recording once, without reading its samples."""
        if _are_arrays(items):
            if raw is not None:
                raise ValueError("raw= is for samples in files and streams; leave it out.")
            return cls(items, describe(items, audio), audio)
        return cls(items, survey(items, audio, raw), audio, raw)

    @property
    def is_in_memory(self) -> bool:
        """Whether the recordings are arrays of samples."""
        return _are_arrays(self.items)

    @property
    def is_stream(self) -> bool:
        """Whether it can be read only once."""
        return not self.is_in_memory and any(map(is_stream, self.items))

    @property
    def names(self) -> list[str]:
        """What the history calls the recordings."""
        if self.is_in_memory:
            return [each.name for each in self.known]
        return ["stream" if hasattr(each, "read") else str(each) for each in self.items]

    @property
    def n_frames(self) -> int | None:
        """Frames of one pass, silent ones included; None where that is not known."""
        each = [recording.n_frames for recording in self.known]
        known = [n for n in each if n is not None]
        return sum(known) if len(known) == len(each) else None

    def digest(self) -> str:
        """Equal for the same recordings, whatever their folders and tags."""
        return digest(self.known)

    def open(self, n_threads: int = 1) -> SampleReader:
        """Give the samples of the recordings, read by so many threads."""
        if self.is_in_memory:
            return MemoryReader(self.items, self.audio.stft)
        return SegmentReader(self.items, self.known, self.audio, self.raw, n_threads)


def _are_arrays(items: list[Any]) -> bool:
    return any(isinstance(each, np.ndarray) for each in items)
