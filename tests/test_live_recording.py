"""What live sound keeps: recordings of hours, of a disk that is full, and after a second Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import soundfile
from hostile import ENVIRONMENT, run
from sound_server import RATE, SoundServer, missing
from test_live import BETWEEN, PATIENCE_S, live

import ondes
from ondes.errors import FileError
from ondes.live.listeners import MOST_WAITING, StemRecorder, _Listener

SR = 8000


def stems_of(samples):
    return {"speech": 0.75 * samples, "noise": 0.25 * samples}


def recorder_in(folder, **how):
    files = {name: folder / f"{name}.wav" for name in ("input", "speech", "noise")}
    return StemRecorder(files, SR, 1, **how)


def test_recordings_go_on_in_further_files_where_one_is_full(tmp_path):
    blocks = np.random.default_rng(0).standard_normal((10, 300, 1)).astype(np.float32)
    with recorder_in(tmp_path, n_most=1000) as recorder:
        for block in blocks:
            recorder(stems_of(block))
    recorder.check()
    names = [f"input{part}.wav" for part in ("", "-2", "-3", "-4")]
    parts = [soundfile.read(tmp_path / name, dtype="float32")[0] for name in names]
    assert [len(part) for part in parts] == [900, 900, 900, 300]
    np.testing.assert_allclose(np.concatenate(parts), blocks.ravel(), rtol=1e-6)
    assert sorted(recorder.files.values()) == sorted(tmp_path.iterdir())
    assert len(recorder.files) == 12


def test_a_disk_that_is_nearly_full_ends_a_recording_which_is_complete(tmp_path):
    with recorder_in(tmp_path, least_free=2**62) as recorder:
        for _ in range(3):
            recorder(stems_of(np.ones((100, 1), np.float32)))
    with pytest.raises(FileError, match="nearly full"):
        recorder.check()
    assert soundfile.info(tmp_path / "speech.wav").frames == 100


def test_a_second_signal_waits_until_everything_is_kept():
    class Slow(_Listener):
        is_complete = False

        def _work(self):
            assert self._blocks.get() is None
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)
            self.is_complete = True

    slow = Slow()
    with pytest.raises(KeyboardInterrupt), slow:
        pass
    assert slow.is_complete


def test_what_a_listener_cannot_keep_up_with_is_counted_in_samples(tmp_path):
    recorder = recorder_in(tmp_path)  # whose thread has not begun
    for _ in range(MOST_WAITING + 2):
        recorder(stems_of(np.ones((50, 1), np.float32)))
    assert recorder.n_left_out == 100


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--learn", "room.ondes", "--half-life", "5"], "with the half-life that it was begun"),
        (["--half-life", "5"], "--half-life is of --learn"),
    ],
)
def test_a_half_life_that_would_change_nothing_is_refused(tmp_path, how, expected):
    (tmp_path / "room.ondes").touch()
    done = run("live", *how, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.decode().split())


@contextlib.contextmanager
def hanging(server):
    """A sound server that answers nothing meanwhile."""
    server.stop()
    try:
        yield
    finally:
        server.go_on()


def test_where_the_sound_server_hangs_recordings_are_whole_and_nothing_else_hangs(tmp_path):
    if absent := missing():
        pytest.skip(f"{', '.join(absent)} not installed here")
    server, folder = SoundServer(tmp_path), tmp_path / "recorded"
    words = [sys.executable, "-m", "ondes", "live", "--list-devices"]
    how = {"env": ENVIRONMENT | server.environment, "capture_output": True, "text": True}
    with contextlib.closing(server):
        room = tmp_path / "room.ondes"
        with live(server, *BETWEEN, "--record", folder, "--learn", room) as process:
            server.play(0.1 * np.random.default_rng(0).standard_normal(2 * RATE))
            with hanging(server):
                _, complaints = process.communicate(timeout=PATIENCE_S)
        with hanging(server):
            listed = subprocess.run(words, timeout=PATIENCE_S, **how)
    assert process.returncode == 1
    assert "has gone, or has stopped" in complaints.decode().splitlines()[-1]
    assert soundfile.info(folder / "input.wav").duration > 0.1
    assert ondes.load(room).history.seconds > 0.1
    assert listed.returncode == 1
    assert listed.stderr == "ondes: The sound server does not answer: start it again.\n"
