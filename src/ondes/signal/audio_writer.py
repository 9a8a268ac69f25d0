"""Write a recording whole or not at all."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import soundfile
from numpy.typing import ArrayLike

from ondes.signal.integrity import AudioError

__all__ = ["AudioWriter", "write_audio"]

WRITABLE = {".wav": "WAV", ".flac": "FLAC", ".aiff": "AIFF", ".aif": "AIFF", ".rf64": "RF64"}
SUBTYPES = {"FLAC": "PCM_24"}
MAX_WAV_BYTES = 2**32 - 2**12


class AudioWriter:
    """Write a recording block by block; it appears under its name once whole, or never.

    A context manager: leaving it puts the file in place, leaving it by an exception removes
    what was written.

    Parameters
    ----------
    path : str or Path
        ``.wav``, ``.flac``, ``.aiff`` or ``.rf64``.
    sr : int
        Samples a second.
    channels : int
    subtype : str, optional
        soundfile's word: ``FLOAT`` if not given, ``PCM_24`` for flac. Integers cannot hold
        samples beyond ±1: these are clipped, with a warning.
    n_samples : int, optional
        Expected length; a WAV that would pass 4 GiB is then written as RF64.
    force : bool
        Whether an existing file may be replaced.
    """

    def __init__(
        self,
        path: str | Path,
        sr: int,
        channels: int = 1,
        *,
        subtype: str | None = None,
        n_samples: int | None = None,
        force: bool = False,
    ) -> None:
        self.path, self.sr, self.channels, self.force = Path(path), sr, channels, force
        suffix = self.path.suffix.lower()
        if suffix not in WRITABLE:
            raise AudioError(path, f"cannot be written: choose one of {', '.join(WRITABLE)}")
        self._format = WRITABLE[suffix]
        self.subtype = subtype or SUBTYPES.get(self._format, "FLOAT")
        self._sample_bytes = channels * _bytes_of(self.subtype)
        if self._format == "WAV" and (n_samples or 0) * self._sample_bytes > MAX_WAV_BYTES:
            self._format = "RF64"
        self._refuse_overwriting()
        self._n_bytes, self._peak = 0, 0.0
        self._draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        try:
            self._draft.touch(exist_ok=False)
            self._file = soundfile.SoundFile(
                os.fspath(self._draft), "w", sr, channels, self.subtype, format=self._format
            )
        except OSError as error:
            raise AudioError(path, f"cannot be written ({error.strerror or error})") from error
        except (soundfile.SoundFileError, ValueError, TypeError) as error:
            self._draft.unlink()
            raise AudioError(
                path, f"cannot hold {channels} channels of {self.subtype} at {sr} Hz"
            ) from error

    def write(self, samples: ArrayLike) -> None:
        """Append samples, (n,) or (n, channels)."""
        block = np.asarray(samples, dtype=np.float32).reshape(-1, self.channels)
        self._n_bytes += len(block) * self._sample_bytes
        if self._format == "WAV" and self._n_bytes > MAX_WAV_BYTES:
            raise AudioError(self.path, "passes the 4 GiB of a WAV file: choose .rf64 or .flac")
        if len(block):
            self._peak = max(self._peak, float(np.abs(block).max()))
            try:
                self._file.write(block)
            except soundfile.SoundFileError as error:
                raise AudioError(self.path, f"cannot be written ({error})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            if kind is None:
                self._put_in_place()
        finally:
            self._draft.unlink(missing_ok=True)

    def _put_in_place(self) -> None:
        self._refuse_overwriting()
        try:
            _sync(self._draft)
            self._draft.replace(self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise AudioError(self.path, f"cannot be written ({error.strerror})") from error
        if self._peak > 1 and self.subtype not in ("FLOAT", "DOUBLE"):
            warnings.warn(f"{self.path}: peaks at {self._peak:.2f}, clipped to 1.", stacklevel=3)

    def _refuse_overwriting(self) -> None:
        if self.path.exists() and not self.force:
            raise AudioError(self.path, "exists already: choose another name, or force")


def write_audio(
    path: str | Path,
    blocks: Iterable[ArrayLike],
    sr: int,
    channels: int = 1,
    subtype: str | None = None,
    *,
    n_samples: int | None = None,
    force: bool = False,
) -> None:
    """Write blocks of samples, (n,) or (n, channels), as one recording, whole or not at all.

    See `AudioWriter` for the parameters.
    """
    with AudioWriter(
        path, sr, channels, subtype=subtype, n_samples=n_samples, force=force
    ) as writer:
        for block in blocks:
            writer.write(block)


def _bytes_of(subtype: str) -> int:
    return {"PCM_S8": 1, "PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "DOUBLE": 8}.get(subtype, 4)


def _sync(path: Path) -> None:
    """Have the disk hold a file or a folder's entries; Windows cannot open folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
