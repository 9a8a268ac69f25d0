"""Commands on damaged files under hostile names; `make fuzz` goes on for longer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("av", reason="needs the extra `formats` to write the files")
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
sys.path.insert(0, str(Path(__file__).parent / "fuzz"))

from commands import Case, Judge, fuzz  # noqa: E402
from hostile import sound_bytes, tones  # noqa: E402


@pytest.fixture(scope="module")
def judge():
    with Judge() as started:
        yield started


@pytest.mark.parametrize(("command", "n_files"), [("learn", 80), ("separate", 40)])
def test_fresh_damage_under_hostile_names_breaks_no_command(judge, command, n_files):
    shown = []
    n_tried, wrong = fuzz(judge, n_files, seed=13, commands=(command,), show=shown.append)
    assert n_tried == n_files
    assert not wrong, "\n".join(shown)


@pytest.mark.parametrize("command", ["learn", "separate"])
def test_a_good_file_breaks_nothing(judge, command):
    assert judge.wrong_with(Case(command, "good.wav", sound_bytes(tones()))) == ""
