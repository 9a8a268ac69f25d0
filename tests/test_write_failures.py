"""Every call that writes fails in turn, and nothing incomplete is ever left under a final name.

As SQLite does: a command runs again and again, the first call to the disk fails, then the second,
until a run meets no failure. After each run every file under a final name is complete, the old one
or the new one, no temporary file is left, and a failed run says why in one sentence.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import ENVIRONMENT, SMALL, Program, everything_under, noise, tones, write_sound

HERE = Path(__file__).parent
PATIENCE_S = 20.0
MAX_CALLS = 400
ERRORS = {
    "full": (errno.ENOSPC, True),  # and it stays full
    "broken": (errno.EIO, False),  # one call fails, the next ones work
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    path = tmp_path_factory.mktemp("preloaded") / "failing_calls.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", path, HERE / "failing_calls.c", "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module")
def program(library):
    loaded = ["ondes.report", "matplotlib.backends.backend_agg"]
    started = Program({**ENVIRONMENT, "LD_PRELOAD": str(library)}, loaded)
    yield started
    started.close()


@pytest.fixture(scope="module")
def material(tmp_path_factory, program):
    folder = tmp_path_factory.mktemp("material")
    for name, samples in {"tones": tones(1), "noise": noise(1), "mix": tones(2)}.items():
        write_sound(folder / f"{name}.wav", samples)
    for name in ("tones", "noise"):
        how = ["-o", folder / f"{name}.ondes", *SMALL]
        assert program("learn", folder / f"{name}.wav", *how).returncode == 0
    return folder


def learn(material, folder):
    return ["learn", material / "tones.wav", "-o", folder / "m.ondes", *SMALL]


def learn_with_checkpoints(material, folder):
    return [*learn(material, folder), "--checkpoint-every", "0", "--passes", "2"]


def separate(material, folder):
    both = ["-d", material / "tones.ondes", "-d", material / "noise.ondes"]
    return ["separate", material / "mix.wav", *both, "-o", folder / "out"]


def separate_flac(material, folder):
    return [*separate(material, folder), "--flac"]


def report(material, folder):
    both = ["-d", material / "tones.ondes", "-d", material / "noise.ondes"]
    return ["report", material / "mix.wav", *both, "--seconds", "0.3", "-o", folder / "r.html"]


def contents(folder):
    """The bytes of the files under a folder, by name."""
    found = {}
    for name in everything_under(folder):
        if (folder / name).is_file():
            data = (folder / name).read_bytes()
            at = data[:200].find(b"PEAK")  # where libsndfile notes when it wrote a float WAV
            found[name] = data if at < 0 else data[: at + 12] + bytes(4) + data[at + 16 :]
    return found


def wrong_with(done, number, whole, old, left):
    """What a run in which a call failed did wrong, in words; nothing if all is right."""
    shown = done.stderr.decode()
    wrong = []
    if done.returncode not in (0, 1):
        wrong.append(f"exit {done.returncode}")
    if "bug" in shown or "Traceback" in shown:
        wrong.append("no sentence")
    for name, data in left.items():
        if name.endswith((".part", ".lock")):
            wrong.append(f"{name} is left")
        elif not name.endswith(".checkpoint") and data not in (whole[name], old.get(name)):
            wrong.append(f"{name} is incomplete")
    if done.returncode == 0 and left != whole:
        wrong.append("exit 0 though something is missing")
    if done.returncode == 1:
        reason = f"cannot be written ({os.strerror(number)})"
        if not 1 <= len(done.lines) <= 2 or reason not in shown:
            wrong.append(f"it says {done.lines}")
    return wrong


@pytest.mark.parametrize(("error", "is_there"), [("full", False), ("broken", True)])
@pytest.mark.parametrize(
    "command",
    [learn, learn_with_checkpoints, separate, separate_flac, report],
    ids=lambda command: command.__name__,
)
def test_whichever_call_fails_every_file_is_complete_or_absent(
    program, library, material, tmp_path, command, error, is_there
):
    number, persists = ERRORS[error]
    whole, wrong, calls = None, [], ["the first"]
    for n in range(MAX_CALLS):
        folder, log, refuge = (tmp_path / f"{name}{n}" for name in ("f", "log", "refuge"))
        for each in (folder, refuge):
            each.mkdir()
        arguments, old = command(material, folder), {}
        if is_there:
            arguments = [*arguments, "--force"]
            old = dict.fromkeys(whole or {}, b"old")
            for name, data in old.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        done = program(
            *arguments,
            patience=PATIENCE_S,
            environment={"TMPDIR": str(refuge)},
            before=["hostile:arm", str(library), str(folder), n, number, persists, str(log)],
        )
        left, calls = contents(folder), log.read_text().splitlines()
        if not calls:  # nothing failed: this is what every run must end with
            assert (done.returncode, done.stderr) == (0, b"")
            whole = whole or left
            assert left == whole
            if n:
                break
            continue
        found = wrong_with(done, number, whole, old, left)
        for name, data in contents(refuge).items():  # a model that found no place
            if data != whole[Path(name).name]:
                found.append(f"{name} was put elsewhere, incomplete")
        wrong += [f"call {calls[0]}: {each}" for each in found]
        for each in (folder, refuge):
            shutil.rmtree(each)
    assert not wrong, "\n".join(wrong)
    assert n > 5
    assert not calls
