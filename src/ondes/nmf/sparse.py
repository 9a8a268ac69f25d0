"""Frames of which most entries are zero: the nonzero ones alone are kept and computed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["SparseFrames", "is_sparse"]

Array = NDArray[Any]


def is_sparse(given: Any) -> bool:
    """Whether this is a sparse array or matrix of SciPy, or `SparseFrames`.

    Examples
    --------
    >>> is_sparse(np.ones((2, 3)))
    False
    """
    return isinstance(given, SparseFrames) or (hasattr(given, "tocsr") and hasattr(given, "nnz"))


@dataclass(frozen=True, eq=False)
class SparseFrames:
    """Rows of a sparse matrix, taken like those of an array; an entry that is not kept is zero.

    Attributes
    ----------
    matrix : csr_array of shape (n_frames, n_bins)
        Of real numbers; the indices of each row rise.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> frames = SparseFrames.of(csr_array([[0, 3], [1, 0], [0, 0]]))
    >>> len(frames), frames[1:].shape, frames.any(axis=1)
    (3, (2, 2), array([ True,  True, False]))
    """

    matrix: csr_array

    @classmethod
    def of(cls, given: Any) -> SparseFrames:
        """Any sparse array or matrix; `given` is copied only where it must change."""
        from scipy.sparse import csr_array

        matrix = csr_array(given)
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        return cls(matrix)

    @classmethod
    def concatenate(cls, parts: Sequence[SparseFrames]) -> SparseFrames:
        """The rows of all, one part after the other."""
        from scipy.sparse import vstack

        return cls(vstack([part.matrix for part in parts], format="csr"))

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """(n_frames, n_bins)."""
        n_frames, n_bins = self.matrix.shape
        return int(n_frames), int(n_bins)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the numbers are computed with; whole numbers stay as they are until then."""
        dtype: np.dtype[Any] = self.matrix.dtype
        return dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)

    @property
    def values(self) -> Array:
        """The entries that are kept, row by row."""
        values: Array = self.matrix.data
        return values

    @property
    def bins(self) -> Array:
        """Their bins."""
        bins: Array = self.matrix.indices
        return bins

    @property
    def rows(self) -> Array:
        """Their frames."""
        return np.repeat(np.arange(len(self)), np.diff(self.matrix.indptr))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> SparseFrames:
        return SparseFrames(self.matrix[rows])

    def with_values(self, values: Array) -> SparseFrames:
        """Other numbers in the same entries."""
        from scipy.sparse import csr_array

        parts = (values, self.matrix.indices, self.matrix.indptr)
        return SparseFrames(csr_array(parts, shape=self.shape))

    def any(self, axis: int | None = None) -> Any:
        """As that of an array, for all numbers or for each row."""
        if axis is None:
            return bool(self.values.any())
        return self.sums(self.values != 0) > 0

    def sums(self, values: Array) -> Array:
        """Σ over the entries of each frame, float64; `values` has one number for each entry."""
        starts = self.matrix.indptr[:-1]
        filled = np.diff(self.matrix.indptr) > 0
        found = np.zeros(len(self))
        if filled.any():
            found[filled] = np.add.reduceat(values, starts[filled], dtype=np.float64)
        return found

    def tobytes(self) -> bytes:
        """Equal bytes for equal frames."""
        return bytes(self.bins.tobytes() + self.values.tobytes())

    def copy(self) -> SparseFrames:
        """The same in memory of its own."""
        return SparseFrames(self.matrix.copy())

    def toarray(self) -> Array:
        """All entries."""
        dense: Array = self.matrix.toarray()
        return dense
