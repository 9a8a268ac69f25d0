"""`ondes learn` as real processes: the model depends on the sound, not on threads or channels."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from test_learning import SR, tones

import ondes

SETTINGS = ("-k", "5", "--sr", SR, "--n-fft", "128", "--passes", "2")


def learn(folder, recordings, name, *options):
    """The model file that `ondes learn` writes."""
    output = folder / f"{name}.ondes"
    command = ["-m", "ondes", "learn", recordings, "-o", output, *SETTINGS, *options]
    environment = {name: value for name, value in os.environ.items() if name != "ONDES_DEBUG"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return output


@pytest.fixture
def album(tmp_path):
    folder = tmp_path / "album"
    folder.mkdir()
    for n in range(6):
        soundfile.write(folder / f"{n}.flac", tones(n), SR)
    return folder


def test_the_model_file_is_the_same_for_any_number_of_threads(tmp_path, album):
    files = [learn(tmp_path, album, f"-j {n}", "-j", n) for n in (1, 4, 8)]
    files.append(learn(tmp_path, album, "all cores"))
    assert len({file.read_bytes() for file in files}) == 1


def test_a_stereo_recording_in_opposite_phase_is_learned_as_one_of_its_channels(tmp_path):
    one = tones(0, seconds=8.0)
    soundfile.write(tmp_path / "mono.wav", one, SR)
    soundfile.write(tmp_path / "stereo.wav", np.stack([one, -one], axis=1), SR)
    found, expected = (
        ondes.load(learn(tmp_path, tmp_path / f"{name}.wav", name)) for name in ("stereo", "mono")
    )
    assert found.components.tobytes() == expected.components.tobytes()
    assert found.history.n_frames == expected.history.n_frames


def test_the_model_is_that_of_the_library(tmp_path, album):
    found = ondes.load(learn(tmp_path, album, "command"))
    expected = ondes.learn(album, 5, sr=SR, n_fft=128, n_passes=2)
    assert found.components.tobytes() == expected.components.tobytes()
    assert found.history.divergence == expected.history.divergence


def test_a_part_of_each_recording_is_learned_as_if_it_had_been_cut_out(tmp_path):
    samples = np.random.default_rng(0).standard_normal((12 * SR, 2)) / 9
    for name, part in {"whole": samples, "cut": samples[3 * SR : 8 * SR]}.items():
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "noise.wav", part, SR, subtype="FLOAT")

    def learn(*arguments, status=0):
        command = [sys.executable, "-m", "ondes", "learn", *arguments]
        settings = ["-k", "4", "--sr", str(SR), "--n-fft", "512"]
        done = subprocess.run(
            [*command, *settings], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stderr

    part = ("whole", "-o", "part.ondes", "--start", "3", "--end", "0:08")
    learn(*part)
    learn("cut", "-o", "cut.ondes")
    found, expected = (ondes.load(tmp_path / f"{name}.ondes") for name in ("part", "cut"))
    assert np.array_equal(found.components, expected.components)
    assert found.history.seconds == 5
    assert "is complete" in learn(*part, "--resume")
    shifted = ("whole", "-o", "part.ondes", "--start", "4", "--end", "9", "--resume")
    assert "other recordings" in learn(*shifted, status=1)
    assert "ends before 20 s" in learn("whole", "-o", "x.ondes", "--start", "20", status=1)
    assert "later than --start" in learn(
        "whole", "-o", "x.ondes", "--start", "9", "--end", "8", status=2
    )
    assert "leave out --start" in learn("-", "-o", "x.ondes", "--start", "9", status=2)
