"""A few minutes of the soak: nothing is lost while learning and separation go on side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
def test_a_short_soak_loses_nothing(tmp_path):
    command = [sys.executable, Path(__file__).with_name("soak.py")]
    options = ["--hours", "0.05", "--json", tmp_path / "soak.json"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "soak.json").read_text())
    assert told["hours"] == pytest.approx(0.05, rel=0.01)
    assert told["separations"] > 0
    assert told["descriptors_lost"] <= 0
    assert told["threads_lost"] <= 0
