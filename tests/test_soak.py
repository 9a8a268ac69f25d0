"""A few minutes of the soak test: nothing leaks while learning and separation run together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_a_short_soak_leaks_nothing(tmp_path):
    command = [sys.executable, Path(__file__).with_name("soak.py")]
    options = ["--hours", "0.05", "--json", tmp_path / "soak.json"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["hours"] == pytest.approx(0.05, rel=0.01)
    assert found["separations"] > 0
    assert found["descriptors_leaked"] <= 0
    assert found["threads_leaked"] <= 0
