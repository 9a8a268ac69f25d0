"""Recordings: find them, and read them in blocks at constant memory."""

from __future__ import annotations

import contextlib
import glob
import math
import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import soxr
from numpy.typing import NDArray

from ondes.signal.audio_writer import AudioWriter, write_audio
from ondes.signal.decoders import Decoder, open_decoder
from ondes.signal.integrity import AudioError
from ondes.signal.pcm import RawFormat

__all__ = [
    "AudioBlocks",
    "AudioError",
    "AudioInfo",
    "AudioWriter",
    "RawFormat",
    "canonical_order",
    "find_recordings",
    "open_blocks",
    "probe",
    "write_audio",
]

Samples = NDArray[np.float32]

RESAMPLER_WARM_UP = 4096  # samples after which soxr has forgotten that there was a start

SUFFIXES = tuple(
    f".{suffix}"
    for suffix in (
        *("wav", "wave", "flac", "ogg", "oga", "opus", "aif", "aiff", "aifc", "au", "caf"),
        *("w64", "rf64", "mp3", "mp2", "m4a", "m4b", "aac", "wma"),
        *("mp4", "m4v", "mov", "mkv", "mka", "webm", "avi"),
    )
)


def find_recordings(inputs: Iterable[str | Path]) -> list[Path]:
    """List the recordings that files, folders and globs name, each once, in a canonical order.

    Parameters
    ----------
    inputs : iterable of str or Path
        Files, folders (searched through, by suffix) and globs (``**`` goes through folders).
        ``-``, standard input, stays as it is.

    Returns
    -------
    list of Path
        Sorted by absolute path, whatever the order of `inputs`.

    Raises
    ------
    AudioError
        Where a file is missing, or a folder or glob has no recording.
    """
    if isinstance(inputs, (str, Path)):
        inputs = [inputs]
    return canonical_order(path for given in inputs for path in _expand(given))


def canonical_order(paths: Iterable[str | Path]) -> list[Path]:
    """Each path once, sorted by absolute path; of several spellings, always the same one."""
    spellings: dict[Path, Path] = {}
    for path in map(Path, paths):
        key = path.resolve()
        spellings[key] = min(path, spellings.get(key, path))
    return [spellings[key] for key in sorted(spellings)]


def _expand(given: str | Path) -> list[Path]:
    path = Path(given)
    if path.is_dir():
        found = [p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
        if not found:
            raise AudioError(path, "has no recordings in it")
        return found
    if str(given) == "-" or os.path.lexists(path):
        return [path]
    if not glob.has_magic(str(given)):
        raise AudioError(path, "does not exist")
    matches = [Path(name) for name in glob.glob(str(given), recursive=True)]  # noqa: PTH207
    files = [match for match in matches if match.is_file()]
    if not files:
        raise AudioError(path, "matches no files")
    return files


@dataclass(frozen=True)
class AudioInfo:
    """What a recording says of itself.

    Attributes
    ----------
    path : Path
    sr : int
        Samples a second.
    channels : int
    n_samples : int or None
        Samples in each channel. Exact where libsndfile reads the file, as its container declares
        elsewhere, None where nothing says.
    format : str
    can_jump : bool
        Whether reading may begin at any sample without what comes before it.
    """

    path: Path
    sr: int
    channels: int
    n_samples: int | None
    format: str
    can_jump: bool = False

    @property
    def seconds(self) -> float | None:
        """Duration, None where unknown."""
        return None if self.n_samples is None else self.n_samples / self.sr


def probe(path: str | Path, raw: RawFormat | None = None) -> AudioInfo:
    """Open a recording just to see what it is.

    Parameters
    ----------
    path : str or Path
    raw : RawFormat, optional
        What the samples are where no header says.

    Raises
    ------
    AudioError
        Where it cannot be read, or is seen to be cut short.
    """
    decoder = open_decoder(path, raw)
    try:
        n_samples = decoder.n_samples
        if raw is not None and Path(path).is_file():
            n_samples = Path(path).stat().st_size // raw.bytes_a_sample
        facts = (decoder.sr, decoder.channels, n_samples, decoder.format, decoder.is_seek_exact)
        return AudioInfo(Path(path), *facts)
    finally:
        decoder.close()


class AudioBlocks:
    """Iterator and context manager over the blocks of a recording; made by `open_blocks`.

    Attributes
    ----------
    sr : int
        Sampling rate of the blocks.
    channels : int
        Channels of the recording, whether mixed or not.
    n_samples : int or None
        Samples in each channel at `sr` from the beginning, None where unknown.
    """

    def __init__(
        self,
        decoder: Decoder,
        name: str,
        *,
        sr: int | None,
        mono: bool,
        block_size: int | None,
        start: int,
        is_start_exact: bool,
    ) -> None:
        self._decoder, self._name, self._mono = decoder, name, mono
        self._is_start_exact = is_start_exact
        self._n_read = 0
        self.sr = decoder.sr if sr is None else sr
        self.channels = decoder.channels
        n = decoder.n_samples
        self.n_samples = None if n is None else round(n * self.sr / decoder.sr)
        pieces = self._pieces(start)
        self._blocks = pieces if block_size is None else _cut(pieces, block_size)

    def __iter__(self) -> Iterator[Samples]:
        return self

    def __next__(self) -> Samples:
        return next(self._blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the recording; nothing comes after."""
        self._blocks.close()
        self._decoder.close()

    def _pieces(self, start: int) -> Generator[Samples]:
        """Samples from `start` on, at the output rate, as they come."""
        to_skip, is_native = start, self.sr == self._decoder.sr
        if start and self._decoder.is_seek_exact and (is_native or not self._is_start_exact):
            to_skip -= self._jump(start)
        for piece in self._mixed() if is_native else self._resampled():
            if len(piece) > to_skip:
                yield piece[to_skip:]
            to_skip = max(0, to_skip - len(piece))

    def _jump(self, start: int) -> int:
        """Go near a sample, where the resampler's phase is zero again; returns where that is."""
        shared = math.gcd(self.sr, self._decoder.sr)
        ours, theirs = self.sr // shared, self._decoder.sr // shared
        warm_up = 0 if ours == theirs else RESAMPLER_WARM_UP
        jumped = max(0, start - warm_up) // ours * ours
        self._n_read = jumped // ours * theirs
        self._decoder.seek(self._n_read)
        return jumped

    def _resampled(self) -> Iterator[Samples]:
        width = 1 if self._mono else self.channels
        resampler = soxr.ResampleStream(self._decoder.sr, self.sr, width, dtype="float32")
        for piece in self._mixed():
            yield resampler.resample_chunk(piece)
        nothing = np.zeros(0 if self._mono else (0, width), np.float32)
        yield resampler.resample_chunk(nothing, last=True)

    def _mixed(self) -> Iterator[Samples]:
        while len(samples := self._decoder.read()):
            if not np.isfinite(samples).all():
                where = f"{self._n_read / self._decoder.sr:.1f} s in"
                raise AudioError(self._name, f"has NaN or infinite samples, {where} or soon after")
            self._n_read += len(samples)
            if self._mono:
                # Channel by channel: the order of the sum, and so its bits, never varies.
                mix = samples[:, 0].copy()
                for channel in range(1, self.channels):
                    mix += samples[:, channel]
                yield mix if self.channels == 1 else mix / np.float32(self.channels)
            else:
                yield samples.copy()


def _cut(pieces: Generator[Samples], block_size: int) -> Generator[Samples]:
    """The same samples in blocks of one size, but for the last; then the error, if there is one."""
    held: list[Samples] = []
    n_held = 0
    failure = None
    with contextlib.closing(pieces):
        while True:
            try:
                piece = next(pieces, None)
            except AudioError as error:
                piece, failure = None, error
            if piece is None:
                break
            held.append(piece)
            n_held += len(piece)
            if n_held >= block_size:
                joined = np.concatenate(held)
                for first in range(0, n_held - block_size + 1, block_size):
                    yield joined[first : first + block_size]
                n_held %= block_size
                held = [joined[len(joined) - n_held :]]
    if n_held:
        yield np.concatenate(held)
    if failure is not None:
        raise failure


def open_blocks(
    source: str | Path | BinaryIO,
    *,
    sr: int | None = None,
    mono: bool = True,
    block_size: int | None = 65536,
    start: int = 0,
    raw: RawFormat | None = None,
    is_start_exact: bool = True,
) -> AudioBlocks:
    """Open a recording and read it in float32 blocks, at constant memory.

    Parameters
    ----------
    source : str, Path or binary stream
        A file; ``-`` for standard input; a pipe. Pipes and streams carry WAV or `raw` samples.
    sr : int, optional
        Sampling rate of the blocks, the recording's own if not given.
    mono : bool
        Whether to give the mean of the channels, shape (n,), or all, shape (n, n_channels).
    block_size : int or None
        Samples in every block but the last; None gives them as they come. The bits do not depend
        on it.
    start : int
        First sample to give, counted at `sr`, as if all before it were read and discarded.
    raw : RawFormat, optional
        What the samples are where no header says.
    is_start_exact : bool
        False: a recording that is resampled may be entered just before `start`, which spares
        reading all before it, and gives the same samples but for rounding.

    Returns
    -------
    AudioBlocks
        Iterator and context manager.

    Raises
    ------
    AudioError
        Here or while reading, after all that could be read.

    Examples
    --------
    >>> import io
    >>> with open_blocks(io.BytesIO(bytes(12)), raw=RawFormat(8000), block_size=4) as blocks:
    ...     [block.shape for block in blocks]
    [(4,), (2,)]
    """
    if (block_size is not None and block_size < 1) or start < 0 or (sr is not None and sr < 1):
        raise ValueError(
            "block_size and sr must be at least 1 and start at least 0, "
            f"not {block_size}, {sr}, {start}."
        )
    name = str(source if isinstance(source, (str, Path)) else getattr(source, "name", "stream"))
    decoder = open_decoder(source, raw)
    return AudioBlocks(
        decoder,
        name,
        sr=sr,
        mono=mono,
        block_size=block_size,
        start=start,
        is_start_exact=is_start_exact,
    )
