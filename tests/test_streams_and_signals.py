"""Pipes under any name are read once and whole, and a signal is answered while nothing comes."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import soundfile
from hostile import (
    ENVIRONMENT,
    SMALL,
    SR,
    as_strings,
    ending,
    everything_under,
    is_over,
    noise,
    run,
    sound_bytes,
    start,
    tones,
    wait_until,
    wait_until_idle,
    write_sound,
)

import ondes

SIGNALS = [signal.SIGINT, signal.SIGTERM]
PATIENCE_S = 15.0
INTERRUPTED = b"ondes: interrupted; no unfinished files were left behind.\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, samples in {"tones": tones(1), "noise": noise(1)}.items():
        write_sound(folder / f"{name}.wav", samples)
        done = run("learn", folder / f"{name}.wav", "-o", folder / f"{name}.ondes", *SMALL)
        assert done.returncode == 0
    return folder


def both(models):
    return ["-d", models / "tones.ondes", "-d", models / "noise.ondes"]


@pytest.fixture(scope="module")
def piped(tmp_path_factory):
    """The bytes of a WAV of four seconds, and the dictionary that they give through `-`."""
    data = sound_bytes(tones(0, 4))
    output = tmp_path_factory.mktemp("piped") / "m.ondes"
    assert run("learn", "-", "-o", output, *SMALL, piped=data).returncode == 0
    return data, ondes.load(output).components.tobytes()


# ---- pipes under other names ----


@contextlib.contextmanager
def written(path, data):
    """A named pipe that somebody writes to, once."""
    os.mkfifo(path)

    def write():
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(data)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield path
    with contextlib.suppress(OSError):  # a writer that nobody read from is let go
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    writer.join(5)


@contextlib.contextmanager
def filled_pipe(data):
    """The reading end of a pipe that is written to."""
    ours, theirs = os.pipe()

    def write():
        with contextlib.suppress(BrokenPipeError), os.fdopen(theirs, "wb") as file:
            file.write(data)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield ours
    os.close(ours)
    writer.join(5)


def test_a_named_pipe_is_learned_like_standard_input(tmp_path, piped):
    data, expected = piped
    with written(tmp_path / "pipe", data) as pipe:
        done = run("learn", pipe, "-o", tmp_path / "m.ondes", *SMALL, patience=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    assert ondes.load(tmp_path / "m.ondes").components.tobytes() == expected


@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_other_names_of_standard_input_are_learned_like_it(tmp_path, piped, name):
    data, expected = piped
    with filled_pipe(data) as pipe:
        how = {"stdin": pipe, "patience": PATIENCE_S}
        done = run("learn", name, "-o", tmp_path / "m.ondes", *SMALL, **how)
    assert (done.returncode, done.stderr) == (0, b"")
    assert ondes.load(tmp_path / "m.ondes").components.tobytes() == expected


def test_the_output_of_another_command_is_learned_like_standard_input(tmp_path, piped):
    data, expected = piped
    (tmp_path / "a.wav").write_bytes(data)
    words = [
        sys.executable,
        "-m",
        "ondes",
        *as_strings(["learn", "-o", tmp_path / "m.ondes", *SMALL]),
    ]
    command = f"{shlex.join(words)} <(cat {shlex.quote(str(tmp_path / 'a.wav'))})"
    done = subprocess.run(
        ["bash", "-c", command], env=ENVIRONMENT, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert ondes.load(tmp_path / "m.ondes").components.tobytes() == expected


def test_a_raw_pipe_is_learned_like_standard_input(tmp_path):
    data, raw = tones(0, 4).tobytes(), ["--raw", f"{SR}:1:s16le"]
    assert run("learn", "-", "-o", tmp_path / "a.ondes", *SMALL, *raw, piped=data).returncode == 0
    with written(tmp_path / "pipe", data) as pipe:
        done = run("learn", pipe, "-o", tmp_path / "b.ondes", *SMALL, *raw, patience=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    a, b = (ondes.load(tmp_path / f"{name}.ondes").components.tobytes() for name in "ab")
    assert a == b


def test_a_named_pipe_beside_a_file_is_learned_too(tmp_path, piped):
    data, _ = piped
    good = write_sound(tmp_path / "good.wav")
    with written(tmp_path / "pipe", data) as pipe:
        how = ["-o", tmp_path / "m.ondes", *SMALL, "--json"]
        done = run("learn", good, pipe, *how, patience=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.result["seconds"] == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize("command", ["score", "separate"])
@pytest.mark.parametrize("kind", ["named", "/dev/stdin"])
def test_a_pipe_is_used_like_the_file(tmp_path, models, command, kind):
    data = sound_bytes(tones(0))
    (tmp_path / "a.wav").write_bytes(data)
    how = [*both(models), "-o", tmp_path / "out", "--filename", "{stem}.{ext}", "--force"]
    how = how if command == "separate" else [*both(models)[:2], "--json"]

    def outcome(done):
        assert (done.returncode, done.stderr) == (0, b"")
        if command == "score":
            return done.result["divergence"]
        files = sorted((tmp_path / "out").iterdir())
        return [soundfile.read(path, dtype="float32")[0].tobytes() for path in files]

    expected = outcome(run(command, tmp_path / "a.wav", *how))
    if kind == "named":
        with written(tmp_path / "pipe", data) as pipe:
            assert outcome(run(command, pipe, *how, patience=PATIENCE_S)) == expected
    else:
        with filled_pipe(data) as pipe:
            done = run(command, kind, *how, stdin=pipe, patience=PATIENCE_S)
            assert outcome(done) == expected


# ---- signals while nothing comes ----


def has_open(process, path):
    """Whether a process has this file open."""
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.readlink() == path:
                    return True
    return False


def silence(path, n_bytes=2**32 - 2**14):
    """Days of silence, in a file that takes no room."""
    header = bytearray(sound_bytes(tones(0, 0.1))[:44])
    header[4:8] = (n_bytes + 36).to_bytes(4, "little")
    header[40:44] = n_bytes.to_bytes(4, "little")
    with path.open("wb") as file:
        file.write(header)
        file.truncate(44 + n_bytes)
    return path


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_answered_in_hours_of_silence(tmp_path, number):
    path = silence(tmp_path / "silence.wav")
    with ending(start("learn", path, "-o", tmp_path / "m.ondes", *SMALL)) as process:
        wait_until(lambda: has_open(process, path))
        time.sleep(0.5)
        process.send_signal(number)
        assert is_over(process, PATIENCE_S)
        assert process.returncode == 130
        assert process.stderr.read() == INTERRUPTED
    assert everything_under(tmp_path) == ["silence.wav"]


def test_what_was_learned_before_hours_of_silence_is_saved_by_a_signal(tmp_path, models):
    path, output = silence(tmp_path / "silence.wav"), tmp_path / "m.ondes"
    checkpoint = tmp_path / "m.ondes.checkpoint"
    command = ["learn", path, "-o", output, "--continue", models / "tones.ondes", "-j", "1"]
    with ending(start(*command, "--checkpoint-every", "0.2")) as process:
        wait_until(checkpoint.exists, 2 * PATIENCE_S)  # though no batch has come
        process.send_signal(signal.SIGTERM)
        assert is_over(process, PATIENCE_S)
        assert process.returncode == 130
        (line,) = process.stderr.read().decode().splitlines()
        assert "--resume" in line
    saved = ondes.load(output)
    assert saved.history.stopped_by == "SIGTERM"
    learned = ondes.load(models / "tones.ondes")
    assert saved.components.tobytes() == learned.components.tobytes()
    with ending(start(*command, "--resume", "--checkpoint-every", "0.2")) as process:
        before = checkpoint.stat().st_mtime_ns
        wait_until(lambda: checkpoint.stat().st_mtime_ns > before, 2 * PATIENCE_S)
        assert process.poll() is None


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_answered_while_a_pipe_has_no_writer(tmp_path, number):
    pipe, output = tmp_path / "pipe", tmp_path / "m.ondes"
    os.mkfifo(pipe)
    with ending(start("learn", pipe, "-o", output, *SMALL)) as process:
        wait_until_idle(process)
        process.send_signal(number)
        assert is_over(process, PATIENCE_S)
        assert process.returncode == 130
        assert process.stderr.read() == INTERRUPTED
    assert everything_under(tmp_path) == ["pipe"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_answered_while_a_pipe_pauses_and_what_came_is_saved(tmp_path, number):
    pipe, output = tmp_path / "pipe", tmp_path / "m.ondes"
    os.mkfifo(pipe)
    command = ["learn", pipe, "-o", output, *SMALL, "--raw", f"{SR}:1:s16le"]
    with ending(start(*command)) as process, pipe.open("r+b", buffering=0) as writer:
        # A pipe holds 64 KiB: once it took all of this, the program is reading.
        write = threading.Thread(target=writer.write, args=(noise(0, 60).tobytes(),), daemon=True)
        write.start()
        write.join(PATIENCE_S)
        is_read = not write.is_alive()
        time.sleep(0.5)
        process.send_signal(number)
        assert is_over(process, PATIENCE_S)
        assert is_read
        assert process.returncode == 130
    saved = ondes.load(output)
    assert saved.history.stopped_by == number.name
    assert saved.history.n_frames > 1000
    assert everything_under(tmp_path) == ["m.ondes", "pipe"]


@pytest.mark.parametrize("command", ["score", "separate"])
def test_other_commands_answer_a_signal_while_a_pipe_has_no_writer(tmp_path, models, command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    how = [*both(models), "-o", tmp_path / "out"] if command == "separate" else both(models)[:2]
    with ending(start(command, pipe, *how)) as process:
        wait_until_idle(process)
        process.send_signal(signal.SIGTERM)
        assert is_over(process, PATIENCE_S)
        assert process.returncode == 130
        assert process.stderr.read() == INTERRUPTED
    assert everything_under(tmp_path) == ["pipe"]


@pytest.mark.parametrize("command", ["score", "separate"])
def test_other_commands_answer_a_signal_in_hours_of_silence(tmp_path, models, command):
    path = silence(tmp_path / "silence.wav")
    how = [*both(models), "-o", tmp_path / "out"] if command == "separate" else both(models)[:2]
    with ending(start(command, path, *how)) as process:
        wait_until(lambda: has_open(process, path))
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert is_over(process, PATIENCE_S)
        assert process.returncode == 130
    assert everything_under(tmp_path) == ["silence.wav"]
