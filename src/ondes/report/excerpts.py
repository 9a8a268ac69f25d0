"""The part of a recording that a report shows, which can be read more than once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.errors import FileError
from ondes.signal.recordings import RawFormat, open_span

__all__ = ["ShownExcerpt"]

Samples = NDArray[np.float32]


class ShownExcerpt:
    """Samples of shape (n, channels) in blocks, as often as needed, at constant memory.

    A stream, which can be read only once, is held in memory; an array needs `sr`. `peak` is the
    largest amplitude, and `total` the seconds of the whole recording, None where unknown.

    >>> excerpt = ShownExcerpt(np.ones((10, 2)), sr=8000)
    >>> excerpt.n_samples, excerpt.channels, excerpt.peak
    (10, 2, 1.0)
    >>> excerpt.part(2, 5).shape
    (3, 2)
    """

    def __init__(
        self,
        recording: Any,
        *,
        sr: int | None = None,
        start: float = 0.0,
        end: float | None = None,
        raw: RawFormat | None = None,
    ) -> None:
        self._recording, self._start, self._end, self._raw = recording, start, end, raw
        self._samples: Samples | None = None
        self.total: float | None = None
        if not isinstance(recording, str | Path) and not hasattr(recording, "read"):
            if sr is None:
                raise ValueError("Samples in memory need a sampling rate; give sr.")
            self.sr = sr
            self._hold(recording)
        else:
            self._look(recording)

    def blocks(self) -> Iterator[Samples]:
        """The samples from the first to the last."""
        if self._samples is not None:
            for first in range(0, self.n_samples, 65536):
                yield self._samples[first : first + 65536]
            return
        with self._opened() as blocks:
            yield from blocks

    def part(self, first: int, last: int) -> Samples:
        """Some of the samples."""
        if self._samples is not None:
            return self._samples[first:last]
        start = self._start + first / self.sr
        with open_span(
            self._recording, start=start, end=self._start + last / self.sr, raw=self._raw
        ) as blocks:
            return np.concatenate([np.zeros((0, self.channels), np.float32), *blocks])

    def _opened(self) -> Any:
        return open_span(self._recording, start=self._start, end=self._end, raw=self._raw)

    def _hold(self, samples: ArrayLike) -> None:
        held = np.asarray(samples, dtype=np.float32)
        self._samples = held[:, None] if held.ndim == 1 else held
        self.n_samples, self.channels = self._samples.shape
        self.peak = float(np.abs(self._samples).max(initial=0))

    def _look(self, recording: Any) -> None:
        is_file = isinstance(recording, str | Path) and Path(recording).is_file()
        self.n_samples, self.peak = 0, 0.0
        held = []
        with self._opened() as blocks:
            self.sr, self.channels = blocks.sr, blocks.channels
            if blocks.n_samples_total is not None:
                self.total = blocks.n_samples_total / blocks.sr
            for block in blocks:
                self.n_samples += len(block)
                self.peak = max(self.peak, float(np.abs(block).max()))
                if not is_file:
                    held.append(block)
        if not self.n_samples:
            raise FileError(recording, "has no samples")
        if held:
            self._hold(np.concatenate(held))
