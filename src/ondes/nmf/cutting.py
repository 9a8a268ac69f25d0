"""Frames given as arrays or iterables of arrays, cut into mini-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ondes.nmf.divergence import Array


def is_iterable_of_arrays(X: Any) -> bool:
    """Tell an iterable of two-dimensional arrays from anything that is one array itself."""
    if isinstance(X, (str, bytes)) or hasattr(X, "shape") or hasattr(X, "__array__"):
        return False
    if isinstance(X, (list, tuple)):
        return len(X) > 0 and getattr(X[0], "ndim", 0) == 2
    return isinstance(X, Iterable)


def cut(rows: Array, batch_size: int | None) -> Iterator[Array]:
    """Pieces of `batch_size` rows, the last one perhaps shorter; None is one piece."""
    size = batch_size or len(rows)
    return (rows[first : first + size] for first in range(0, len(rows), size))


def rebatch(arrays: Iterable[Array], batch_size: int) -> Iterator[Array]:
    """Batches of `batch_size` frames across the arrays' edges; the last one may be shorter."""
    waiting: list[Array] = []
    n_waiting = 0
    for array in arrays:
        waiting.append(array)
        n_waiting += len(array)
        if n_waiting >= batch_size:
            frames = np.concatenate(waiting)
            whole = n_waiting - n_waiting % batch_size
            yield from cut(frames[:whole], batch_size)
            waiting, n_waiting = [frames[whole:]], n_waiting - whole
    if n_waiting:
        yield np.concatenate(waiting)
