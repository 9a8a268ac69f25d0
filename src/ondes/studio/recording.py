"""Recordings that are open in the studio: any part of them can be read at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.models.loading import from_shelf
from ondes.separation import separate
from ondes.signal.audio_writer import AudioWriter
from ondes.signal.recordings import open_blocks, probe
from ondes.tables import clock_time

__all__ = ["Recording", "digest_of", "is_of_the_field", "kind_of", "open_recording"]

Samples = NDArray[np.float32]

LONGEST_WAV_COPY = 1800.0  # seconds; longer ones are compressed
DIGEST_BYTES = 2**20
N_EXCERPTS, EXCERPT = 5, 3.0  # seconds
SPEECH = 0.3  # of the power: talks under noise of the same power have 0.43 and more, songs none


@dataclass(frozen=True)
class Recording:
    """A recording that can be read from any sample on.

    Parameters
    ----------
    id : str
        What the page calls it; it never sees a path.
    name : str
    path : Path
        The file itself: what is learned from and exported.
    readable : Path
        The same sound in a file with exact seeking: itself, or a decoded copy.
    sr, channels, n_samples : int
    digest : str
        Recognises the file when saved work is opened again.
    """

    id: str
    name: str
    path: Path
    readable: Path
    sr: int
    channels: int
    n_samples: int
    digest: str

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.n_samples / self.sr

    def samples(self, start: int, stop: int, sr: int | None = None) -> Samples:
        """Samples from `start` to `stop`, both counted at `sr`, as far as there are any.

        Returns
        -------
        float32 array of shape (n, channels)
        """
        start = max(start, 0)
        parts = [np.zeros((0, self.channels), np.float32)]
        n_left = stop - start
        if start * self.sr < self.n_samples * (sr or self.sr):
            with open_blocks(
                self.readable,
                sr=None if sr == self.sr else sr,
                start=start,
                block_size=None,
                is_start_exact=False,
            ) as blocks:
                for block in blocks:
                    parts.append(block[:n_left])
                    n_left -= len(parts[-1])
                    if n_left <= 0:
                        break
        return np.concatenate(parts)

    def blocks(self, sr: int) -> Iterator[Samples]:
        """All samples in order, resampled to `sr`, at constant memory."""
        with open_blocks(self.readable, sr=sr) as blocks:
            yield from blocks


def open_recording(
    path: Path,
    id: str,  # noqa: A002
    name: str,
    folder: Path,
    progress: Callable[[float | None], object] = lambda _: None,
) -> Recording:
    """Open a recording; one without exact seeking is decoded once into `folder`.

    Raises
    ------
    FileError
        Where it cannot be read to its end, or is empty. It names the recording by `name`.
    """
    try:
        info = probe(path)
        readable, n_samples = path, info.n_samples
        if not info.seekable or n_samples is None:
            readable, n_samples = _decoded(path, id, info.seconds, folder, progress)
    except FileError as error:
        raise FileError(name, error.reason) from error
    if not n_samples:
        raise FileError(name, "has no samples")
    return Recording(id, name, path, readable, info.sr, info.channels, n_samples, digest_of(path))


def is_of_the_field(recordings: Sequence[Recording]) -> bool:
    """Whether they come from a recorder: there are several, or a name has the time."""
    return len(recordings) > 1 or any(clock_time(each.name) for each in recordings)


def kind_of(recordings: Sequence[Recording]) -> str:
    """Which page they open in: "field", "speech" or "music".

    One recording is speech if a separator finds much of it in a few excerpts, and less music.
    """
    if is_of_the_field(recordings):
        return "field"
    (recording,) = recordings
    talk = from_shelf("talk")
    sr = talk.audio.sr
    shares = []
    for start in np.linspace(0, max(0, recording.seconds - EXCERPT), N_EXCERPTS):
        first = round(start * sr)
        samples = recording.samples(first, first + round(EXCERPT * sr), sr).mean(axis=1)
        if samples.any():
            stems = separate(samples, talk, sr=sr, n_jobs=-1)
            energies = np.array([np.square(stems[name]).sum() for name in talk.names])
            shares.append(energies / energies.sum())
    medians = np.median(shares, axis=0) if shares else np.zeros(len(talk.names))
    share = dict(zip(talk.names, medians, strict=True))
    return "speech" if share["speech"] > max(SPEECH, share["music"]) else "music"


def digest_of(path: Path) -> str:
    """Recognises a file by its size and both of its ends."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(str(size).encode() + file.read(DIGEST_BYTES))
        file.seek(max(0, size - DIGEST_BYTES))
        digest.update(file.read())
    return digest.hexdigest()


def _decoded(
    path: Path,
    id: str,  # noqa: A002
    seconds: float | None,
    folder: Path,
    progress: Callable[[float | None], object],
) -> tuple[Path, int]:
    """A copy that can be read from any sample on, and its length."""
    n_samples = 0
    with open_blocks(path) as blocks:
        is_long = seconds is None or seconds > LONGEST_WAV_COPY
        is_flac = is_long and blocks.channels <= 8
        copy = folder / f"{id}-decoded.{'flac' if is_flac else 'rf64'}"
        with AudioWriter(copy, blocks.sr, blocks.channels, subtype="PCM_16") as writer:
            for block in blocks:
                writer.write(np.clip(block, -1, 1))
                n_samples += len(block)
                progress(None if not seconds else min(1.0, n_samples / blocks.sr / seconds))
    return copy, n_samples
