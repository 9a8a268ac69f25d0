"""`ondes denoise` from pipes, to devices, with silence, damage and hostile names."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hostile import SR, everything_under, noise, run, sound_bytes, tones, write_sound

PATIENCE_S = 15.0


@pytest.fixture
def sounds(tmp_path):
    """A recording, an example of its noise, and the folder they are in."""
    write_sound(tmp_path / "in" / "talk.wav", tones(0) + noise(1))
    write_sound(tmp_path / "in" / "hiss.wav", noise(2))
    return tmp_path / "in"


def denoise(sounds, recording, *more, noise="hiss.wav", **how):
    example = sounds / noise if not isinstance(noise, str) or "wav" in noise else noise
    return run("denoise", recording, "--noise", example, *more, patience=PATIENCE_S, **how)


def pipe(path, data):
    """A named pipe that somebody writes to, once."""
    os.mkfifo(path)

    def write():
        with path.open("wb") as file:
            file.write(data)

    threading.Thread(target=write, daemon=True).start()
    return path


# ---- pipes ----


@pytest.mark.parametrize("kind", ["-", "/dev/stdin", "pipe"])
def test_a_recording_may_come_from_a_pipe(sounds, tmp_path, kind):
    talk = (sounds / "talk.wav").read_bytes()
    assert denoise(sounds, sounds / "talk.wav", "-o", tmp_path / "a.wav").returncode == 0
    reading, writing = os.pipe()
    threading.Thread(target=lambda: (os.write(writing, talk), os.close(writing))).start()
    recording = pipe(tmp_path / "pipe", talk) if kind == "pipe" else kind
    done = denoise(sounds, recording, "-o", tmp_path / "b.wav", stdin=reading)
    os.close(reading)
    assert (done.returncode, done.stderr) == (0, b"")
    one, other = (soundfile.read(tmp_path / f"{name}.wav")[0] for name in "ab")
    np.testing.assert_array_equal(one, other)


def test_so_may_the_noise(sounds, tmp_path):
    reading = pipe(tmp_path / "pipe", sound_bytes(noise(2)))
    how = ["--noise", reading, "-o", tmp_path / "b.wav"]
    done = run("denoise", sounds / "talk.wav", *how, patience=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("kind", ["-", "pipe"])
def test_what_can_be_read_only_once_has_its_noise_elsewhere(sounds, tmp_path, kind):
    recording = kind
    if kind == "pipe":
        recording = tmp_path / "pipe"
        os.mkfifo(recording)
    for example in ("0.5-1", "-" if kind == "-" else "0:00-0:01"):
        how = ["--noise", example, "-o", tmp_path / "b.wav"]
        done = run("denoise", recording, *how, patience=PATIENCE_S)
        assert done.returncode == 2
        assert "can be read only once" in done.lines[-1]
    assert not (tmp_path / "b.wav").exists()


def test_standard_input_needs_a_name_for_its_result(sounds, tmp_path):
    done = denoise(sounds, "-", piped=(sounds / "talk.wav").read_bytes(), cwd=tmp_path)
    assert done.returncode == 2
    assert everything_under(tmp_path) == ["in", "in/hiss.wav", "in/talk.wav"]


@pytest.mark.parametrize("what", ["recording", "noise"])
def test_a_pipe_that_nobody_writes_to_can_be_interrupted(sounds, tmp_path, what):
    silent = tmp_path / "pipe"
    os.mkfifo(silent)
    given = (silent, sounds / "hiss.wav") if what == "recording" else (sounds / "talk.wav", silent)
    how = ["--noise", given[1], "-o", tmp_path / "b.wav"]
    done = run("denoise", given[0], *how, interrupt_after=0.5, patience=PATIENCE_S)
    assert done.returncode == 130
    assert len(done.lines) == 1
    assert not (tmp_path / "b.wav").exists()


# ---- where the result goes ----


@pytest.mark.parametrize("kind", ["device", "socket", "-"])
def test_the_result_replaces_files_alone(sounds, tmp_path, kind):
    special = {"socket": tmp_path / "socket", "device": "/dev/null", "-": "-"}[kind]
    listener = socket.socket(socket.AF_UNIX)
    if kind == "socket":
        listener.bind(str(special))
    done = denoise(sounds, sounds / "talk.wav", "-o", special, "--force", cwd=tmp_path)
    listener.close()
    assert done.returncode == (1 if kind == "socket" else 0)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert kind != "socket" or stat.S_ISSOCK(special.stat().st_mode)
    assert (done.stdout[:4] == b"RIFF") == (kind == "-")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("letter", ["x", "é", "声"])
def test_the_result_may_have_any_name_that_the_disk_takes(sounds, tmp_path, letter):
    name = letter * (251 // len(letter.encode())) + ".wav"
    done = denoise(sounds, sounds / "talk.wav", "-o", tmp_path / name)
    assert (done.returncode, done.stderr) == (0, b"")
    assert name in everything_under(tmp_path)


def test_a_recording_may_replace_itself(sounds):
    talk = sounds / "talk.wav"
    assert denoise(sounds, talk, "-o", talk).returncode == 1
    done = denoise(sounds, talk, "-o", talk, "--force")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(soundfile.read(talk)[0]) == 2 * SR
    assert everything_under(sounds) == ["hiss.wav", "talk.wav"]


@pytest.mark.parametrize(
    "name", ["...wav", "mk[bold].wav", "\x1b[31m\x07.wav", "concat:a|b.wav", "-i.wav", "a\nb.wav"]
)
def test_any_name_is_a_name(sounds, tmp_path, name):
    work = tmp_path / "deep" / "work"
    write_sound(work / name)
    done = run("denoise", f"./{name}", "--noise", sounds / "hiss.wav", cwd=work)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().rstrip("\n").isprintable()
    assert len(everything_under(work)) == 2
    assert len(everything_under(tmp_path / "deep")) == 3


# ---- what cannot be used ----


def test_a_silent_recording_is_named_and_nothing_is_written(sounds, tmp_path):
    silent = write_sound(tmp_path / "silent.wav", np.zeros(SR, np.int16))
    done = denoise(sounds, silent, "-o", tmp_path / "b.wav")
    assert done.returncode == 1
    (line,) = done.lines
    assert "silent.wav: is silent" in line
    assert not (tmp_path / "b.wav").exists()


def bad_noise(folder, kind):
    path = folder / f"{kind}.wav"
    samples = noise(3).astype(np.float32) / 2**15
    if kind == "text":
        path.write_text("no recording")
        return path
    if kind == "nan":
        samples[5000] = np.nan
    elif kind == "silent":
        samples[:] = 0
    elif kind == "short":
        samples = samples[:100]
    return path if kind == "absent" else write_sound(path, samples, subtype="FLOAT")


@pytest.mark.parametrize("kind", ["text", "absent", "nan", "silent", "short"])
@pytest.mark.parametrize("output", ["new", "there"])
def test_noise_that_cannot_be_used_is_one_sentence_and_no_file(sounds, tmp_path, kind, output):
    example = bad_noise(tmp_path, kind)
    result = tmp_path / "b.wav"
    if output == "there":
        result.write_text("old")
    how = ["--noise", example, "-o", result, "--force"]
    done = run("denoise", sounds / "talk.wav", *how, patience=PATIENCE_S)
    assert done.returncode == 1
    (line,) = done.lines
    assert "bug" not in line
    assert result.read_text() == "old" if output == "there" else not result.exists()


def test_damage_in_the_middle_leaves_no_half_result(sounds, tmp_path):
    samples = tones(1, 20).astype(np.float32)
    samples[19 * SR] = np.nan
    damaged = write_sound(tmp_path / "nan.wav", samples, subtype="FLOAT")
    done = denoise(sounds, damaged, "-o", tmp_path / "b.wav")
    assert done.returncode == 1
    assert "nan.wav: has NaN or infinite samples" in done.lines[0]
    assert not (tmp_path / "b.wav").exists()


def test_hours_of_noise_take_no_more_memory_than_minutes(sounds, tmp_path):
    hours = write_sound(tmp_path / "hours.wav", np.tile(noise(3, 60), 90))
    how = ["--noise", hours, "-o", tmp_path / "b.wav"]
    done = run("denoise", sounds / "talk.wav", *how, patience=60.0)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.peak < 2**27
