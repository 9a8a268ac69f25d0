"""Analysis windows by name, without SciPy for the usual ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["make_window"]


def make_window(name: str, length: int) -> NDArray[np.float64]:
    """The periodic window of this name, shape (length,); ValueError where there is none.

    Examples
    --------
    >>> make_window("hann", 4)
    array([0. , 0.5, 1. , 0.5])
    """
    turn = 2 * np.pi * np.arange(length) / length
    if length == 1 and name in ("hann", "hamming"):
        return np.ones(1)
    if name == "hann":
        return 0.5 - 0.5 * np.cos(turn)
    if name == "hamming":
        return 0.54 - 0.46 * np.cos(turn)
    if name == "sine":
        return np.sin((turn + np.pi / length) / 2)
    if name == "boxcar":
        return np.ones(length)
    from scipy.signal import get_window  # 2 s to import, so only for rare windows

    try:
        return np.asarray(get_window(name, length), dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"No window is called {name!r}: {error}.") from None
