"""How many threads to use."""

from __future__ import annotations

import functools
import math
import os
import sys
from pathlib import Path

__all__ = ["n_cores", "n_threads"]

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
