"""`n_jobs` means as many threads as scikit-learn says, of the cores that this process may use."""

from __future__ import annotations

import os
import subprocess
import sys

import joblib
import pytest

from ondes import cores


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A function that writes the files in which a container finds its quota."""

    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        cores._quota.cache_clear()

    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    yield write
    cores._quota.cache_clear()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_container_has_as_many_cores_as_its_quota(container, files, expected):
    container(files)
    assert cores.n_cores() == expected


@pytest.mark.parametrize("n_jobs", [None, 1, 5, -1, -2, -1000])
def test_threads_are_counted_as_joblib_counts_them(n_jobs):
    script = "import sys\nfrom ondes.cores import n_threads\n"
    script += f"print(n_threads({n_jobs}), 'joblib' in sys.modules)"
    alone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert alone.stdout.split() == [str(joblib.effective_n_jobs(n_jobs)), "False"], alone.stderr


def test_what_joblib_was_told_counts():
    with joblib.parallel_config("threading", n_jobs=3):
        assert cores.n_threads(None) == 3
    assert cores.n_threads(None) == 1


def test_no_thread_at_all_is_refused():
    with pytest.raises(ValueError, match="n_jobs=0"):
        cores.n_threads(0)
