"""What `make` would run, where a clone was copied with its environment."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["test", "docs", "peers", "oldest", "wheels"])
def test_a_copied_clone_leaves_the_environment_of_the_original_alone(target, tmp_path):
    """Programs in a copied .venv begin with the path of the original's Python."""
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").write_text("/where/the/original/lies\n")
    command = ["make", "--dry-run", target]
    planned = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    programs = re.findall(r"(?:\.venv|build/\w+)/bin/([\w.-]+)", planned.stdout)
    assert set(programs) == {"python"}
    if target in ("test", "docs", "peers"):
        assert "--editable ." in planned.stdout
