"""Which frames are silent: those far below the loudest frame so far of their own recording."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Loudest", "is_active", "loudest_of", "merge"]

Loudest = dict[int, float]  # by recording: the energy of its loudest frame so far
Files = int | NDArray[np.intp]


def loudest_of(energies: NDArray[Any], files: Files) -> Loudest:
    """The energy of the loudest frame of each recording.

    Parameters
    ----------
    energies : array of shape (n_frames,), float32, or float64 where the range must be wider
    files : int or array of shape (n_frames,)
        The recording of all frames, or of each.

    Examples
    --------
    >>> loudest_of(np.array([1, 4, 2], np.float32), np.array([7, 7, 3]))
    {3: 2.0, 7: 4.0}
    """
    numbers, which = _numbered(energies, files)
    peaks = np.zeros(len(numbers), energies.dtype)
    np.maximum.at(peaks, which, energies)
    return dict(zip(numbers.tolist(), peaks.tolist(), strict=True))


def merge(before: Loudest, new: Loudest) -> Loudest:
    """The loudest so far, with new frames.

    Examples
    --------
    >>> merge({3: 2.0, 7: 4.0}, {3: 1.0, 5: 6.0})
    {3: 2.0, 7: 4.0, 5: 6.0}
    """
    return before | {file: max(before.get(file, 0.0), energy) for file, energy in new.items()}


def is_active(
    energies: NDArray[Any], files: Files, loudest: Loudest, top_db: float | None
) -> NDArray[np.bool_]:
    """Which frames are less than `top_db` decibels below the loudest of their recording.

    Frames of zeros never are. With ``top_db=None`` every frame is active, zeros included.

    Parameters
    ----------
    energies : array of shape (n_frames,), float32, or float64 where the range must be wider
    files : int or array of shape (n_frames,)
        The recording of all frames, or of each.
    loudest : dict of int to float
        By recording; those of `files` must be in it.
    top_db : float or None

    Examples
    --------
    >>> is_active(np.array([3, 0.1, 0.01], np.float32), 0, {0: 3.0}, 20.0).tolist()
    [True, True, False]
    """
    if top_db is None:
        return np.ones(len(energies), np.bool_)
    numbers, which = _numbered(energies, files)
    peaks = np.array([loudest[file] for file in numbers.tolist()], np.float64)
    mantissas, exponents = np.frexp(float(np.float32(10 ** (-top_db / 10))) * peaks)
    # As precise as float32, though its range may be exceeded.
    thresholds = np.ldexp(mantissas.astype(np.float32).astype(np.float64), exponents)
    return np.asarray(energies > thresholds[which])


def _numbered(energies: NDArray[Any], files: Files) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The recordings that occur, and which of these each frame is from."""
    return np.unique(np.broadcast_to(np.asarray(files), len(energies)), return_inverse=True)
