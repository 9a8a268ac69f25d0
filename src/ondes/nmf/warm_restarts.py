"""Activations kept from one visit of a frame to the next: warm restarts on finite sets."""

from __future__ import annotations

import numpy as np

from ondes.nmf.divergence import Array

__all__ = ["StoredActivations"]

_WIDEST = 1e6
# In units of a frame's level: a row that fades and comes back would start far off, and overflow.
_LARGEST = 1e6


class StoredActivations:
    """One row of activations per frame, rescaled lazily along with the dictionary's rows.

    Rescaling every row after every update would cost more than the update. Instead the product of
    all scales so far is kept, and a row is stored divided by the product of its time.

    Examples
    --------
    >>> import numpy as np
    >>> stored = StoredActivations(n_frames=3, n_components=1, dtype=np.float64)
    >>> stored.keep(np.array([1]), np.array([[2.0]]))
    >>> stored.rescale(np.array([10.0]))
    >>> stored.recall(np.array([1]))
    array([[20.]])
    """

    def __init__(self, n_frames: int, n_components: int, dtype: np.typing.DTypeLike) -> None:
        self._rows = np.zeros((n_frames, n_components), dtype=dtype)
        self._scale = np.ones(n_components)
        self._is_visited = np.zeros(n_frames, dtype=bool)

    def keep(self, frames: Array, activations: Array) -> None:
        """Store the activations of the frames with these indices."""
        self._rows[frames] = activations / self._scale
        self._is_visited[frames] = True

    def recall(self, frames: Array) -> Array | None:
        """The stored activations, as they are under the present dictionary.

        None at the first visit of any of the frames.
        """
        is_known = bool(self._is_visited[frames].all())
        self._is_visited[frames] = True
        return self._scaled(self._rows[frames]) if is_known else None

    def rescale(self, scale: Array) -> None:
        """Follow dictionary rows divided by `scale`."""
        self._scale = self._scale * scale
        if self._scale.max() > _WIDEST or self._scale.min() < 1 / _WIDEST:
            self._rows = self._scaled(self._rows)
            self._scale = np.ones_like(self._scale)

    def _scaled(self, rows: Array) -> Array:
        scaled: Array = np.minimum(rows * self._scale, _LARGEST).astype(rows.dtype)
        return scaled
