"""How many threads to use, and one for NumPy's own products."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["each", "n_cores", "n_threads", "one_blas_thread"]

Given = TypeVar("Given")
Made = TypeVar("Made")

MOST_THREADS = 2**16
CGROUP = Path("/sys/fs/cgroup")
QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # of its two versions


def n_threads(n_jobs: int | None) -> int:
    """The number of threads that `n_jobs` means, as in scikit-learn.

    Examples
    --------
    >>> n_threads(None), n_threads(3), n_threads(-1) == n_cores()
    (1, 3, True)
    """
    if n_jobs == 0:
        raise ValueError("n_jobs=0 means no thread at all: give 1 or more, or -1 for every core.")
    if n_jobs is not None and n_jobs > MOST_THREADS:
        raise ValueError(f"n_jobs={n_jobs} must be at most {MOST_THREADS}; -1 is every core.")
    joblib = sys.modules.get("joblib")  # 60 ms to load, and while nobody has, nobody configures it
    if joblib is not None:
        return int(joblib.effective_n_jobs(n_jobs))
    if n_jobs is None:
        return 1
    return n_jobs if n_jobs > 0 else max(1, n_cores() + 1 + n_jobs)


def n_cores() -> int:
    """How many cores this process may use: its affinity, and the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS and Windows have none
    n = len(affinity(0)) if affinity else os.cpu_count() or 1
    return int(min(n, _quota()))


@functools.cache
def _quota() -> float:
    for files in QUOTAS:
        try:
            texts = [(CGROUP / file).read_text() for file in files]
            quota, period = map(int, " ".join(texts).split())
        except (OSError, ValueError):  # not there, or "max"
            continue
        if quota > 0:
            return math.ceil(quota / period)
    return math.inf


def each(act: Callable[[Given], Made], inputs: Iterable[Given], n_threads: int) -> Iterator[Made]:
    """What `act` makes of each input, in their order, with several threads.

    Examples
    --------
    >>> list(each(abs, [-1, 2], 2))
    [1, 2]
    """
    if n_threads == 1:
        return map(act, inputs)
    made: Iterator[Made] = _pool(os.getpid(), n_threads).map(act, inputs)
    return made


@functools.cache
def _pool(_process: int, n_threads: int) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(n_threads, "ondes-cores")


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
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
