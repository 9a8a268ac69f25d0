"""Cutting rows into pieces of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["rebatch", "slices", "taken"]

Array = NDArray[Any]


def slices(n_rows: int, size: int, first: int | None = None) -> Iterator[slice]:
    """Slices of `size` rows that cover `n_rows`, the first of `first`; the last may be shorter.

    Examples
    --------
    >>> list(slices(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    >>> list(slices(3, 2, first=1))
    [slice(0, 1, None), slice(1, 3, None)]
    """
    begin = 0
    while begin < n_rows:
        end = min(begin + (first or size), n_rows)
        yield slice(begin, end)
        begin, first = end, None


def taken(arrays: Sequence[Any], rows: slice, join: Callable[..., Any] = np.concatenate) -> Any:
    """Rows of arrays that follow each other, which are copied only across an edge.

    Examples
    --------
    >>> import numpy as np
    >>> taken([np.arange(3), np.arange(3, 5)], slice(2, 4))
    array([2, 3])
    """
    found, first = [], 0
    for array in arrays:
        own = array[max(0, rows.start - first) : max(0, rows.stop - first)]
        if len(own):
            found.append(own)
        first += len(array)
    if not found:
        return arrays[0][:0]
    return found[0] if len(found) == 1 else join(found)


def rebatch(arrays: Iterable[Array], size: int) -> Iterator[Array]:
    """The rows of `arrays` in pieces of `size` rows, across their edges; the last may be shorter.

    Examples
    --------
    >>> import numpy as np
    >>> [piece.tolist() for piece in rebatch([np.arange(3), np.arange(3, 5)], 2)]
    [[0, 1], [2, 3], [4]]
    """
    held: list[Array] = []
    n_held = 0
    for array in arrays:
        held.append(array)
        n_held += len(array)
        if n_held >= size:
            joined = _joined(held)
            n_whole = n_held - n_held % size
            for rows in slices(n_whole, size):
                yield joined[rows]
            held, n_held = [joined[n_whole:]], n_held - n_whole
    if n_held:
        yield _joined(held)


def _joined(arrays: list[Array]) -> Array:
    concatenate = getattr(type(arrays[0]), "concatenate", np.concatenate)  # of sparse frames
    joined: Array = concatenate(arrays)
    return joined
