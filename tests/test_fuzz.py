"""Whatever is in a file, it is read or refused in one sentence."""

from __future__ import annotations

import ctypes
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORPUS = sorted(path for path in (HERE / "fuzz" / "corpus").glob("*/*") if path.is_file())
CORPUS = [path for path in CORPUS if path.parent.name != "learned"]  # see test_fuzz_commands

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
pytest.importorskip("av", reason="needs the extra `formats` to write the files")

sys.path.insert(0, str(HERE / "fuzz"))

import archives  # noqa: E402
import numpy as np  # noqa: E402
from hostile import forged  # noqa: E402
from reader import Reader  # noqa: E402
from targets import TARGETS, Target, model_seeds, separator_seeds  # noqa: E402

from ondes.errors import FileError  # noqa: E402
from ondes.models.loading import load  # noqa: E402


@pytest.fixture(scope="module")
def reader():
    valid = [(name, data) for name, each in TARGETS.items() for data in each.seeds().values()]
    with Reader(valid) as started:
        yield started


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_once_stays_fixed(reader, path):
    if path.parent.name not in TARGETS:
        pytest.skip(f"a package that {path.parent.name} need is not installed here")
    assert not reader.read((path.parent.name, path.read_bytes())).wrong


def test_new_damage_breaks_nothing():
    command = [sys.executable, HERE / "fuzz" / "run.py", "--files", "240", "--seed", "20110"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("240 files")
    assert done.stdout.rstrip().endswith("0 break the guarantee")


@pytest.mark.parametrize("bomb", dict.fromkeys(archives.BOMBS), ids=lambda bomb: bomb.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_no_small_file_takes_much_memory(reader, bomb, seed):
    members = archives.members_of(model_seeds()["sound"])
    verdict = reader.read(("model", bomb(members, random.Random(seed))))
    assert not verdict.is_accepted
    assert not verdict.wrong


def members_with(change):
    """The members of a model of audio whose tree is changed."""
    (name, text), *arrays = archives.members_of(model_seeds()["sound"])
    tree = json.loads(text)
    change(tree)
    return [(name, json.dumps(tree).encode()), *arrays]


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("history", "files", ["a.wav", 3]),
        ("history", "n_files", "two"),
        ("history", "seconds", None),
        ("history", "stopped_by", 15),
        ("history", "learning_curve", [["a", "b"]]),
        ("audio", "sr", 10**30),
        ("audio", "top_db", "quiet"),
        ("audio", "top_db", -60.0),
        ("fitted", "is_initialised", "yes"),
        ("fitted", "n_frames_seen", 10**400),
    ],
)
def test_the_content_of_a_model_file_is_checked(tmp_path, part, name, value):
    path = tmp_path / "m.ondes"
    path.write_bytes(archives.sealed(members_with(lambda tree: None)))
    load(path)
    path.write_bytes(archives.sealed(members_with(lambda tree: tree[part].update({name: value}))))
    with pytest.raises(FileError):
        load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_steps", "6"),
        ("n_steps", 6.5),
        ("n_steps", 10**15),
        ("contexts", [1.5, 9]),
        ("contexts", ["3", 9]),
        ("contexts", []),
        ("mask_exponent", "2"),
        ("mask_exponent", 1e6),
        ("floor", 0.0),
        ("floor", True),
        ("dictionaries", 3e38),
        ("denominators", 1e-45),
        ("decoder", 3e38),
        ("exponents", 3e38),
    ],
)
def test_the_content_of_a_separator_file_is_checked(tmp_path, name, value):
    (_, text), *arrays = archives.members_of(separator_seeds()["2 sources"])
    tree = json.loads(text)
    if isinstance(value, float) and name not in ("mask_exponent", "floor", "n_steps"):
        arrays = [(n, with_entries(data, value) if name in n else data) for n, data in arrays]
    else:
        tree["separator"]["weights"][name] = value
    path = tmp_path / "s.ondes"
    path.write_bytes(archives.sealed([("ondes.json", json.dumps(tree).encode()), *arrays]))
    with pytest.raises(FileError):
        load(path)


@pytest.mark.parametrize("names", [["a", "a"], ["a", "\ud800"], ["a", 3], ["a"]])
def test_the_names_of_a_separator_are_checked(tmp_path, names):
    path = tmp_path / "s.ondes"
    data = separator_seeds()["2 sources"]
    path.write_bytes(forged(data, lambda tree: tree["separator"].update(names=names)))
    with pytest.raises(FileError, match="is not a valid"):
        load(path)


def with_entries(data, value):
    """An array of the same shape that holds one value everywhere."""
    array = np.load(io.BytesIO(data))
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.full_like(array, value), version=(1, 0))
    return buffer.getvalue()


# ---- the fuzzer itself: it must find what it is there to find ----


def hang(path):
    while True:
        pass


def refuse(sentence):
    def read(path):
        raise FileError(path, sentence)

    return read


FAULTS = {
    "crashed by SIGSEGV": lambda path: ctypes.string_at(0),
    "crashed by SIGABRT": lambda path: os.abort(),
    "exited with 3": lambda path: os._exit(3),
    "hung in": hang,
    "raised KeyError": lambda path: {}[path],
    "took 100 MiB": lambda path: np.empty(100 * 2**20, np.uint8),
    "left a descriptor open": lambda path: os.open(path, os.O_RDONLY),
    "gives no reason": refuse(""),
    "is not one printable line": refuse("is damaged\nfrom its start"),
    "is no short sentence": refuse("is damaged " * 200),
    "had no memory": refuse("is damaged (malloc failed)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(monkeypatch, fault):
    bad = Target(dict, lambda data, rng: data, FAULTS[fault], FileError)
    monkeypatch.setitem(TARGETS, "bad", bad)
    with Reader([]) as reader:
        assert reader.read(("bad", b"anything")).wrong.startswith(fault)
        assert reader.read(("model", model_seeds()["plain"])).is_accepted
