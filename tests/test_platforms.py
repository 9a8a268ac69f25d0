"""Without what macOS and Windows lack, everything works: simulated by taking it away.

The names are removed in a process of its own, before `ondes` is imported. What else differs there,
file systems and how a process starts, is for the machines of the public workflow.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

# What each system has not, of what this one has.
MACOS = {"os": ["sched_getaffinity", "sched_setaffinity", "posix_fadvise", "pidfd_open"]}
WINDOWS = {
    "os": [
        *MACOS["os"], "fork", "register_at_fork", "fchmod", "getuid", "geteuid", "getloadavg",
        "killpg", "mkfifo", "nice", "setsid", "statvfs", "sysconf", "pread", "O_NOFOLLOW",
        "O_NONBLOCK", "O_DIRECTORY", "WNOHANG",
    ],
    "signal": [
        "SIGHUP", "SIGALRM", "SIGCHLD", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "alarm",
        "pthread_sigmask", "pthread_kill", "setitimer", "siginterrupt",
    ],
    "socket": ["AF_UNIX"],
    "modules": ["fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty"],
}  # fmt: skip
SYSTEMS = {"macOS": MACOS, "Windows": WINDOWS}

TAKE_AWAY = """
import json, os, signal, socket, sys
# What others import for themselves: they have versions for each system, `ondes` has one for all.
import av, click.testing, joblib, numpy, rich.progress, scipy.signal, sklearn.decomposition
import soundfile, soxr, tempfile, subprocess, threadpoolctl
missing = json.loads(sys.argv[1])
for module in ("os", "signal", "socket"):
    for name in missing.get(module, ()):
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
for name in missing.get("modules", ()):
    sys.modules[name] = None
if "modules" in missing:
    # CTRL_C_EVENT is an enumeration's member there, and no signal.
    ask = signal.getsignal
    def getsignal(number):
        if number not in signal.valid_signals():
            raise ValueError("signal number out of range")
        return ask(number)
    valid = signal.valid_signals() - {signal.Signals.SIGWINCH}
    signal.valid_signals = lambda: valid
    signal.getsignal = getsignal
    import ondes.atomic_file
    class WindowsOs:  # os.name itself decides which paths pathlib makes
        name = "nt"
        def __getattr__(self, name):
            return getattr(os, name)
    ondes.atomic_file.os = WindowsOs()
from ondes.cli import main
for arguments in json.loads(sys.argv[2]):
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0, arguments
from ondes.nmf.backends import native
from ondes.nmf.divergence import level_frames
from ondes.nmf.problem import Problem, Solver
if native.available():  # -1 is all cores, which each system counts in its own way
    frames = level_frames(numpy.random.default_rng(0).random((300, 20)))
    native.encode(frames, Problem(numpy.full((3, 20), 0.05), 1e-8, Solver()), n_jobs=-1)
"""


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.skipif(os.name == "nt", reason="takes away what Windows lacks anyway")
def test_the_commands_need_nothing_that_the_system_lacks(system, tmp_path):
    pytest.importorskip("av")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        soundfile.write(tmp_path / f"{name}.wav", 0.1 * rng.standard_normal(16000), 8000)
    learn = ("learn", "one.wav", "-k", "4", "--sr", "8000", "--n-fft", "256", "-o", "one.ondes")
    commands = (
        learn,
        (*learn, "--force"),
        ("info", "one.ondes", "--json"),
        ("score", "two.wav", "-d", "one.ondes"),
        ("separate", "two.wav", "-d", "one.ondes", "--free", "2", "-o", "stems"),
        ("denoise", "two.wav", "--noise", "0-0.5", "-o", "clean.wav"),
    )
    missing = json.dumps(SYSTEMS[system])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TAKE_AWAY, missing, json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mixture, _ = soundfile.read(tmp_path / "two.wav")
    stems = [soundfile.read(each)[0] for each in sorted((tmp_path / "stems/two").iterdir())]
    np.testing.assert_allclose(sum(stems), mixture, atol=1e-5)
    # Nothing half written is left, and no lock.
    assert not [each.name for each in tmp_path.rglob("*") if each.suffix in (".part", ".lock")]


def test_the_simulation_takes_away_what_it_says():
    """Or the test above would prove nothing."""
    for names in SYSTEMS.values():
        assert any(hasattr(os, each) for each in names["os"])
    script = (
        TAKE_AWAY.partition("from ondes.cli")[0]
        + """
assert ondes.atomic_file.fcntl is None
assert not hasattr(os, "sched_getaffinity") and not hasattr(signal, "SIGHUP")
"""
    )
    subprocess.run([sys.executable, "-c", script, json.dumps(WINDOWS)], check=True, timeout=60)


def test_no_module_imports_what_only_unix_has():
    """Only where the import may fail: `try:` comes before."""
    package = Path(__import__("ondes").__file__).parent
    modules = [f"import {name}" for name in WINDOWS["modules"]]
    for path in package.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for before, line in itertools.pairwise(lines):
            if line.strip() in modules:
                assert before.strip() in ("try:", *modules), f"{path}: {line}"


def test_a_stop_signal_may_be_any_that_the_system_has():
    from ondes.learning.interruption import StopSignals

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup may ignore it
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.received == "SIGINT"
    finally:
        signal.signal(signal.SIGINT, before)
