"""The Python interpreters of this machine, one of each version that the package supports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["SUPPORTED", "find_interpreters"]

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")


def find_interpreters() -> dict[str, str]:
    """Version -> executable, from PATH and from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in SUPPORTED:
        candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)]
        candidates += [Path(each) for each in [shutil.which(f"python{version}")] if each]
        for candidate in candidates:
            if _runs(candidate, version):
                found[version] = str(candidate)
                break
    return found


def _runs(python: Path, version: str) -> bool:
    """Whether it starts and has the version of its name: a shim may have neither."""
    script = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == version


if __name__ == "__main__":
    for version, python in find_interpreters().items():
        print(version, python)
