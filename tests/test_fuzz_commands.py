"""Commands on damaged files under hostile names; `make fuzz` goes on for longer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("av", reason="needs the extra `formats` to write the files")
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
sys.path.insert(0, str(Path(__file__).parent / "fuzz"))

from commands import Case, Judge, fuzz  # noqa: E402
from hostile import run, sound_bytes, tones  # noqa: E402

LEARNED = sorted((Path(__file__).parent / "fuzz" / "corpus" / "learned").iterdir())


@pytest.fixture(scope="module")
def judge():
    with Judge() as started:
        yield started


@pytest.mark.parametrize(("command", "n_files"), [("learn", 80), ("separate", 40), ("denoise", 40)])
def test_fresh_damage_under_hostile_names_breaks_no_command(judge, command, n_files):
    shown = []
    together = 10 if command == "learn" else 1
    how = {"seed": 13, "commands": (command,), "together": together}
    n_tried, wrong = fuzz(judge, n_files, **how, show=shown.append)
    assert n_tried == n_files
    assert not wrong, "\n".join(shown)


@pytest.mark.parametrize("path", LEARNED, ids=lambda path: path.stem)
def test_what_was_found_once_stays_fixed(judge, path):
    case = Case("learn", path.name, path.read_bytes())
    assert [judge.wrong_with(case) for _ in range(3)] == [""] * 3  # memory varies with the threads


@pytest.mark.parametrize("command", ["learn", "separate", "denoise"])
def test_a_good_file_breaks_nothing(judge, command):
    assert judge.wrong_with(Case(command, "good.wav", sound_bytes(tones()))) == ""


def test_memory_that_is_asked_for_and_processor_time_are_measured():
    done = run("info", "absent", before=["hostile:waste", 200 * 2**20, 0.3])
    assert done.returncode == 1
    assert 200 * 2**20 <= done.allocated < 300 * 2**20
    assert 0.3 <= done.cpu_seconds < 30
    idle = run("info", "absent")
    assert idle.allocated < 2**25
    assert idle.cpu_seconds < done.cpu_seconds
