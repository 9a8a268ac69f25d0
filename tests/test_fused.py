"""The fused kernel keeps its guarantees, in Triton's interpreter where there is no GPU.

The interpreter must be requested before Triton is first imported, so they run in a process of their
own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("torch", "triton"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed here", allow_module_level=True)


def test_the_guarantees_of_the_kernel():
    import torch

    setting = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    suite = Path(__file__).with_name("fused_guarantees.py")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(suite)]
    done = subprocess.run(
        command, env=os.environ | setting, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
