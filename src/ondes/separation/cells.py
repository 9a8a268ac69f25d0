"""Values of a stream, summed over cells of equal length."""

from __future__ import annotations

import numpy as np

from ondes.nmf.divergence import Array

__all__ = ["Cells"]


class Cells:
    """Sums over the cells from 0 to `length`, from there to twice that, and so on.

    A value is spread evenly over its span; what lies before 0 belongs to the first cell.

    Parameters
    ----------
    length : float
        Of a cell.
    first, step : float
        Value i spans from ``first + i * step`` to ``first + (i + 1) * step``.

    Examples
    --------
    >>> cells = Cells(length=2.5, first=0.0, step=1.0)
    >>> cells.push(np.ones((4, 1)))
    array([[2.5]])
    >>> cells.finish(np.ones((2, 1)), end=5.5)
    array([[2.5],
           [1. ]])
    """

    def __init__(self, length: float, first: float, step: float) -> None:
        self._length, self._position, self._step = length, first, step
        self._n_cells = 0  # that are full
        self._open: Array | float = 0.0  # the sum of the next one

    def push(self, values: Array) -> Array:
        """Take the next values, (n,) or (n, m); return the sums of the cells that are full."""
        end = self._position + len(values) * self._step
        n_cells = max(self._n_cells, int(np.floor(end / self._length)))
        *full, self._open = self._sums(values, n_cells)
        self._n_cells = n_cells
        return np.array(full).reshape(-1, *values.shape[1:])

    def finish(self, values: Array, end: float) -> Array:
        """Take the last values; return the sums of all cells left, the last of which ends there."""
        n_cells = max(1, int(np.ceil(round(end / self._length, 9))))
        return np.array(self._sums(values, max(self._n_cells, n_cells - 1)))

    def _sums(self, values: Array, n_cells: int) -> list[Array]:
        """The sums up to the end of cell `n_cells`, and that of everything after it."""
        start, self._position = self._position, self._position + len(values) * self._step
        total = np.zeros((len(values) + 1, *values.shape[1:]))
        np.cumsum(values, axis=0, dtype=np.float64, out=total[1:])
        edges = self._length * np.arange(self._n_cells + 1, n_cells + 1)
        places = np.clip((edges - start) / self._step, 0, len(values))
        below = np.clip(places.astype(int), 0, max(0, len(values) - 1))
        share = (places - below).reshape(-1, *(1 for _ in values.shape[1:]))
        above = np.minimum(below + 1, len(values))
        at_edges = total[below] * (1 - share) + total[above] * share
        sums = np.diff(np.concatenate([total[:1], at_edges, total[-1:]]), axis=0)
        sums[0] += self._open
        return list(sums)
