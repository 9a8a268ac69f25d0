"""One thread for NumPy's own matrix products."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Compute the products of small matrices with one thread of BLAS each.

    More threads take longer, and wait for the next product on the cores that the compiled kernel
    needs: separation then takes twice as long. The bits of a product would depend on their number.

    Examples
    --------
    >>> import numpy as np
    >>> with one_blas_thread():
    ...     float(np.ones(3) @ np.ones(3))
    3.0
    """
    with _blas().limit(limits=1):
        yield


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
