"""Which frames are silent: those far below the loudest so far of their own recording."""

from __future__ import annotations

import numpy as np

__all__ = ["Loudest", "threshold"]

Loudest = dict[int, float]  # by recording: the energy of its loudest frame so far


def threshold(silence: float, loudest: float) -> np.float32:
    """The energy that a frame must exceed, `silence` decibels from its recording's loudest.

    Examples
    --------
    >>> float(threshold(-20.0, 3.0))
    0.029999999329447746
    """
    return np.float32(10 ** (silence / 10)) * np.float32(loudest)
