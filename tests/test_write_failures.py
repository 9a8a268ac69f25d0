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

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hostile import ENVIRONMENT, SMALL, Program, everything_under, noise, tones, write_sound

from ondes.errors import FileError
from ondes.signal.audio_writer import write_audio

HERE = Path(__file__).parent
PATIENCE_S = 60.0
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


def separate_several(material, folder):
    both = ["-d", material / "tones.ondes", "-d", material / "noise.ondes"]
    mixes = [material / f"{name}.wav" for name in ("mix", "noise", "tones")]
    return ["separate", *mixes, *both, "-o", folder / "out"]


def report(material, folder):
    both = ["-d", material / "tones.ondes", "-d", material / "noise.ondes"]
    return ["report", material / "mix.wav", *both, "--seconds", "0.3", "-o", folder / "r.html"]


def denoise(material, folder):
    return ["denoise", material / "mix.wav", "--noise", "0-1", "-o", folder / "d.wav"]


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
    is_of_several = len(whole) > 2  # recordings: one may fail, and the others be written
    if done.returncode not in ((0, 1, 3) if is_of_several else (0, 1)):
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
    if done.returncode:
        reason = f"cannot be written ({os.strerror(number)})"
        if not 1 <= len(done.lines) <= 2 + is_of_several or reason not in shown:
            wrong.append(f"it says {done.lines}")
    return wrong


@pytest.mark.parametrize(("error", "is_there"), [("full", False), ("broken", True)])
@pytest.mark.parametrize(
    "command",
    [learn, learn_with_checkpoints, separate, separate_flac, separate_several, denoise, report],
    ids=lambda command: command.__name__,
)
def test_whichever_call_fails_every_file_is_complete_or_absent(
    program, library, material, tmp_path, command, error, is_there
):
    """Of commands that do again what shorter ones do, each call fails in one of the two ways."""
    injected = Injection(program, library, tmp_path, error, is_there)
    is_longer = command in (separate_several, learn_with_checkpoints)
    numbers = range(1 + is_longer * is_there, MAX_CALLS, 1 + is_longer)
    assert injected.wrong_ones(lambda folder: command(material, folder), numbers) == []
    assert injected.n_failures > 5


@pytest.fixture(scope="module")
def training_program(library):
    loaded = [
        "torch",
        "ondes.learning.separator_training.training",
        "ondes.learning.separator_training.trainer",
    ]
    started = Program({**ENVIRONMENT, "LD_PRELOAD": str(library)}, loaded)
    yield started
    started.close()


@NEEDS_TORCH
@pytest.mark.parametrize(("error", "first", "is_there"), [("full", 1, False), ("broken", 4, True)])
def test_training_ends_with_a_complete_separator_or_says_why_not(
    training_program, library, tmp_path, error, first, is_there
):
    """As above, but for every seventh call: a run takes seconds."""
    for n in range(6):
        write_sound(tmp_path / "in" / f"{n % 2}" / f"{n}.wav", (tones, noise)[n % 2](n, 7.5))
    both = [f"{name}={tmp_path / 'in' / str(n)}" for n, name in enumerate(("tones", "noise"))]
    small = ["-k", "2", "--sr", "8000", "--n-fft", "512", "--updates", "1"]
    injected = Injection(training_program, library, tmp_path, error, is_there)
    numbers = range(first, MAX_CALLS, 7)
    assert injected.wrong_ones(lambda f: ["train", *both, *small, "-o", f / "s"], numbers) == []
    assert injected.n_failures > 2


class Injection:
    """Runs a command again and again, each time with another call that fails."""

    def __init__(self, program, library, folder, error, is_there):
        self._program, self._library, self._folder = program, library, folder
        self._number, self._persists = ERRORS[error]
        self._is_there = is_there
        self._whole = None
        self.n_failures = 0

    def wrong_ones(self, command, numbers):
        """What went wrong, in words; ends where a run met no failure."""
        wrong = []
        for n in (0, *numbers):
            done, calls, old, left, elsewhere = self._run(command, n)
            if not calls:  # nothing failed: this is what every run must end with
                assert (done.returncode, done.stderr) == (0, b"")
                self._whole = self._whole or left
                assert left == self._whole
                if n:
                    return wrong
                continue
            self.n_failures += 1
            found = wrong_with(done, self._number, self._whole, old, left)
            for name, data in elsewhere.items():  # a model that found no place
                if data != self._whole[Path(name).name]:
                    found.append(f"{name} was put elsewhere, incomplete")
            wrong += [f"call {calls[0]}: {each}" for each in found]
        raise AssertionError("there is always another call that fails")

    def _run(self, command, n):
        folder, log, refuge = (self._folder / f"{name}{n}" for name in ("f", "log", "refuge"))
        for each in (folder, refuge):
            each.mkdir()
        arguments, old = command(folder), {}
        if self._is_there:
            arguments = [*arguments, "--force"]
            old = dict.fromkeys(self._whole or {}, b"old")
            for name, data in old.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        failing = [str(folder), n, self._number, self._persists, str(log)]
        done = self._program(
            *arguments,
            memory=2**31,
            patience=PATIENCE_S,
            environment={"TMPDIR": str(refuge)},
            before=["hostile:arm", str(self._library), *failing],
        )
        left = contents(folder), contents(refuge)
        for each in (folder, refuge):
            shutil.rmtree(each)
        return done, log.read_text().splitlines(), old, *left


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_never_written(tmp_path, bad):
    samples = np.zeros(100, np.float32)
    with pytest.raises(FileError, match="would not be finite"):
        write_audio(tmp_path / "a.wav", [samples, np.append(samples, np.float32(bad))], 8000)
    assert not list(tmp_path.iterdir())
