"""Recordings, read in blocks of samples at constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Self

import numpy as np
import soxr
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.rebatch import rebatch
from ondes.signal.decoders import Decoder, open_decoder
from ondes.signal.finding import canonical_order, find_recordings
from ondes.signal.locations import (
    Location,
    RemotePath,
    Span,
    as_location,
    check_times,
    is_location,
)
from ondes.signal.pcm import RawFormat

__all__ = [
    "AudioBlocks",
    "AudioInfo",
    "Location",
    "PathOrStream",
    "RawFormat",
    "RemotePath",
    "Span",
    "canonical_order",
    "find_recordings",
    "open_blocks",
    "open_span",
    "probe",
    "read",
]

Samples = NDArray[np.float32]
PathOrStream = str | Location | BinaryIO

RESAMPLER_WARM_UP = 4096  # samples after which soxr's output no longer depends on where it began


@dataclass(frozen=True)
class AudioInfo:
    """What the header of a recording declares.

    Attributes
    ----------
    path : Path, RemotePath or Span
    sr : int
        Samples per second.
    channels : int
    n_samples : int or None
        Samples in each channel. Exact where libsndfile reads the file, as its container declares
        otherwise, None where unknown.
    format : str
    seekable : bool
        Whether reading can begin at any sample.
    """

    path: Location
    sr: int
    channels: int
    n_samples: int | None
    format: str
    seekable: bool = False

    @property
    def seconds(self) -> float | None:
        """Duration, None where unknown."""
        return None if self.n_samples is None else self.n_samples / self.sr


def probe(path: str | Location, raw: RawFormat | None = None) -> AudioInfo:
    """Read the header of a recording.

    Parameters
    ----------
    path : str, Path, RemotePath or Span
    raw : RawFormat, optional
        The format of samples that have no header.

    Raises
    ------
    FileError
        Where it cannot be read, or is found to be truncated.

    Examples
    --------
    >>> import tempfile, soundfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(f"{folder}/a.flac", np.zeros((4000, 2)), 8000)
    ...     info = probe(f"{folder}/a.flac")
    >>> info.sr, info.channels, info.seconds
    (8000, 2, 0.5)
    """
    decoder = open_decoder(path, raw)
    try:
        facts = (decoder.sr, decoder.channels, decoder.n_samples, decoder.format)
        return AudioInfo(as_location(path), *facts, seekable=decoder.is_seek_exact)
    finally:
        decoder.close()


class AudioBlocks:
    """Iterator and context manager over the blocks of a recording; made by `open_blocks`.

    Attributes
    ----------
    sr : int
        Sampling rate of the blocks.
    own_sr : int
        That of the recording.
    channels : int
    n_samples : int or None
        Samples of each channel at `sr` that the blocks have, None where unknown.
    n_samples_total : int or None
        The same of the whole recording.
    """

    def __init__(
        self,
        decoder: Decoder,
        name: str,
        *,
        sr: int | None,
        block_size: int | None,
        start: int,
        is_start_exact: bool,
    ) -> None:
        self._decoder, self._name, self._block_size = decoder, name, block_size
        self._blocks: Iterator[Samples]
        self._is_start_exact = is_start_exact
        self._n_read = 0
        self.sr = decoder.sr if sr is None else sr
        self.own_sr = int(decoder.sr)
        self.channels = decoder.channels
        n = decoder.n_samples
        self.n_samples_total = None if n is None else round(n * self.sr / decoder.sr)
        self._set_span(start, None)

    def __iter__(self) -> Iterator[Samples]:
        return self

    def __next__(self) -> Samples:
        return next(self._blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self, first: int, last: int | None) -> None:
        """Give the samples from `first` to before `last` alone; call it before anything is read."""
        self._set_span(first, last)
        if first:
            self._blocks = self._not_empty(self._blocks, first)

    def close(self) -> None:
        """Release the recording; no block comes after."""
        self._blocks = iter(())
        self._decoder.close()

    def _set_span(self, first: int, last: int | None) -> None:
        ends = [each for each in (last, self.n_samples_total) if each is not None]
        is_known = self.n_samples_total is not None
        self.n_samples = max(0, min(ends) - first) if is_known else None
        self._blocks = self._between(first, math.inf if last is None else last)
        if self._block_size is not None:
            self._blocks = _in_blocks_of(self._block_size, self._blocks)

    def _not_empty(self, blocks: Iterator[Samples], first: int) -> Iterator[Samples]:
        is_empty = True
        for block in blocks:
            is_empty = False
            yield block
        if is_empty:
            raise FileError(self._name, f"ends before {first / self.sr:g} s")

    def _between(self, start: int, stop: float) -> Iterator[Samples]:
        """Samples of a span at the output rate, as they are decoded."""
        to_skip, n_left, is_native = start, stop - start, self.sr == self._decoder.sr
        if start and self._decoder.is_seek_exact and (is_native or not self._is_start_exact):
            to_skip -= self._seek(start)
        for block in self._decoded() if is_native else self._resampled():
            wanted = block[to_skip : None if n_left >= len(block) else to_skip + int(n_left)]
            to_skip, n_left = max(0, to_skip - len(block)), n_left - len(wanted)
            if len(wanted):  # a decoder's buffer is written to again
                yield wanted.copy() if is_native else wanted
            if not n_left:
                return

    def _seek(self, start: int) -> int:
        """Go near a sample, where the resampler's phase is zero again; returns where that is."""
        shared = math.gcd(self.sr, self._decoder.sr)
        ours, theirs = self.sr // shared, self._decoder.sr // shared
        warm_up = 0 if ours == theirs else RESAMPLER_WARM_UP
        reached = max(0, start - warm_up) // ours * ours
        self._n_read = reached // ours * theirs
        self._decoder.seek(self._n_read)
        return reached

    def _resampled(self) -> Iterator[Samples]:
        resampler = soxr.ResampleStream(self._decoder.sr, self.sr, self.channels, dtype="float32")
        for block in self._decoded():
            yield resampler.resample_chunk(np.ascontiguousarray(block))
        yield resampler.resample_chunk(np.zeros((0, self.channels), np.float32), last=True)

    def _decoded(self) -> Iterator[Samples]:
        """Samples at the recording's own rate, each block valid until the next."""
        while len(samples := self._decoder.read()):
            with np.errstate(over="ignore", invalid="ignore"):
                is_finite = np.isfinite(samples.sum()) or np.isfinite(samples).all()
            if not is_finite:
                where = f"{self._n_read / self._decoder.sr:.1f} s"
                raise FileError(self._name, f"has NaN or infinite samples at {where} or soon after")
            self._n_read += len(samples)
            yield samples


def _in_blocks_of(size: int, blocks: Iterator[Samples]) -> Iterator[Samples]:
    """The same samples in blocks of one size; then the error that ended them early, if any."""
    failures: list[FileError] = []

    def until_failure() -> Iterator[Samples]:
        try:
            yield from blocks
        except FileError as error:
            failures.append(error)

    yield from rebatch(until_failure(), size)
    for failure in failures:
        raise failure


def open_blocks(
    recording: PathOrStream,
    *,
    sr: int | None = None,
    block_size: int | None = 65536,
    start: int = 0,
    raw: RawFormat | None = None,
    is_start_exact: bool = True,
    is_known: bool = False,
) -> AudioBlocks:
    """Open a recording and read it in float32 blocks (n, n_channels), at constant memory.

    Parameters
    ----------
    recording : str, Path, RemotePath, Span or binary stream
        A file; ``-`` for standard input; a pipe. Pipes and streams carry WAV or `raw` samples.
    sr : int, optional
        Sampling rate of the blocks, the recording's own if not given.
    block_size : int or None
        Samples in every block but the last; None gives them as they are decoded, or come through a
        pipe. The bits do not depend on it.
    start : int
        First sample to give, counted at `sr`, as if all before it were read and discarded.
    raw : RawFormat, optional
        The format of samples that have no header.
    is_start_exact : bool
        If False, reading a resampled recording may begin shortly before `start` rather than at its
        beginning; the samples are then the same up to rounding.
    is_known : bool
        Whether `probe` found the recording seekable: it is then not looked through again.

    Returns
    -------
    AudioBlocks
        Iterator and context manager.

    Raises
    ------
    FileError
        Here or while reading, after all that could be read.

    Examples
    --------
    >>> import io
    >>> with open_blocks(io.BytesIO(bytes(12)), raw=RawFormat(8000), block_size=4) as blocks:
    ...     [block.shape for block in blocks]
    [(4, 1), (2, 1)]
    """
    if (block_size is not None and block_size < 1) or start < 0 or (sr is not None and sr < 1):
        raise ValueError(
            "block_size and sr must be at least 1 and start at least 0, "
            f"not {block_size}, {sr}, {start}."
        )
    named = recording if is_location(recording) else getattr(recording, "name", "stream")
    return AudioBlocks(
        open_decoder(recording, raw, is_known),
        str(named),
        sr=sr,
        block_size=block_size,
        start=start,
        is_start_exact=is_start_exact,
    )


def open_span(
    recording: PathOrStream,
    *,
    start: float = 0.0,
    end: float | None = None,
    sr: int | None = None,
    block_size: int | None = 65536,
    raw: RawFormat | None = None,
) -> AudioBlocks:
    """Open the span of a recording from one time to another, as `open_blocks` does.

    Parameters
    ----------
    recording, sr, block_size, raw
        As in `open_blocks`; a stream is read from its beginning.
    start, end : float
        In seconds; without `end`, up to the end of the recording.

    Raises
    ------
    FileError
        As in `open_blocks`; also where the recording ends before `start`.

    Examples
    --------
    >>> import io
    >>> stream, raw = io.BytesIO(bytes(32000)), RawFormat(8000)
    >>> with open_span(stream, start=0.5, end=0.75, raw=raw) as blocks:
    ...     sum(map(len, blocks))
    2000
    """
    check_times(start, end)
    blocks = open_blocks(recording, sr=sr, block_size=block_size, raw=raw)
    first = round(start * blocks.sr)
    blocks.cut(first, None if end is None else max(first + 1, round(end * blocks.sr)))
    return blocks


def read(
    recording: PathOrStream, sr: int | None = None, raw: RawFormat | None = None
) -> tuple[Samples, int]:
    """Read a whole recording into memory.

    Parameters
    ----------
    recording : str, Path or binary stream
    sr : int, optional
        Sampling rate of the samples; by default that of the recording.
    raw : RawFormat, optional
        The format of samples that have no header.

    Returns
    -------
    samples : float32 array of shape (n,) for one channel, (n, n_channels) for more
    sr : int

    Raises
    ------
    FileError
        If it cannot be read to its end.

    Examples
    --------
    >>> import io
    >>> samples, sr = read(io.BytesIO(bytes(12)), raw=RawFormat(8000))
    >>> samples.shape, sr
    ((6,), 8000)
    """
    with open_blocks(recording, sr=sr, raw=raw, block_size=None) as blocks:
        empty = np.zeros((0, blocks.channels), np.float32)
        samples = np.concatenate([empty, *blocks])
        return (samples[:, 0] if blocks.channels == 1 else samples), blocks.sr
