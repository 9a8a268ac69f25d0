"""Power frames in one array: made where they stay."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.signal.stft import Stft, power

__all__ = ["FrameBuffer"]

Frames = NDArray[np.float32]


class FrameBuffer:
    """An array of frames that is filled from its beginning, and grows where it must.

    Parameters
    ----------
    stft : Stft
    n_expected : int
        Frames to make room for.
    """

    def __init__(self, stft: Stft, n_expected: int) -> None:
        self._stft, self._n = stft, 0
        self._room: Frames = np.empty((n_expected, stft.n_bins), np.float32)

    def __len__(self) -> int:
        return self._n

    @property
    def frames(self) -> Frames:
        """All frames, (n, n_bins): a view."""
        return self._room[: self._n]

    def add(self, span: NDArray[np.float32]) -> Frames:
        """Transform samples to the frames that lie wholly in them; a view, valid until the next."""
        windows = self._stft.windows(span)
        end = self._n + len(windows)
        if end > len(self._room):
            room = np.empty((max(end, 3 * len(self._room) // 2), self._stft.n_bins), np.float32)
            room[: self._n] = self.frames
            self._room = room
        added = self._room[self._n : end]
        for rows, spectra in self._stft.spectra(windows):
            power(spectra, out=added[rows])
        self._n = end
        return added

    def keep(self, first: int, is_kept: NDArray[np.bool_]) -> None:
        """Of the frames from the number `first` on, leave out those that are not kept."""
        if is_kept.all():
            return
        kept = self.frames[first:][is_kept]
        self._n = first + len(kept)
        self._room[first : self._n] = kept
