"""`ondes learn` needs no more memory for long recordings than for short ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile

SR, HOP_LENGTH = 8000, 8  # frames so dense that even the short recording fills every buffer
MINUTES = {"short": 2, "long": 20}
MAX_GROWTH = 1.15
# What is held, without what the C library keeps of freed memory, which depends on the threads.
HELD = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
SETTINGS = ("-k", "2", "--sr", SR, "--n-fft", "512", "--hop-length", HOP_LENGTH, "-j", "1")

# The system counts what a process inherits from the one that starts it, so a small one has to.
LAUNCHER = """
import json, os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(json.dumps({"status": status, "peak_kib": usage.ru_maxrss}))
"""


def write_recording(path, minutes):
    """Noise through a resonance that moves, minute by minute: it is never all in memory."""
    rng = np.random.default_rng(0)
    with soundfile.SoundFile(path, "w", SR, 1, subtype="PCM_16") as file:
        for _ in range(minutes):
            time = np.arange(60 * SR) / SR
            tone = np.sin(2 * np.pi * rng.uniform(100, 3000) * time)
            file.write(0.1 * tone + 0.02 * rng.standard_normal(len(time)))


def peak_of_learning(recording, model):
    """Peak resident memory in MiB, and the frames learned from."""
    command = [sys.executable, "-m", "ondes", "learn", recording, "-o", model, *SETTINGS, "--json"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, *map(str, command)],
        env={name: value for name, value in os.environ.items() if name != "ONDES_DEBUG"} | HELD,
        capture_output=True,
        check=True,
        text=True,
        timeout=600,
    )
    printed, launcher = done.stdout.strip().rsplit("\n", 1)
    result, measured = json.loads(printed), json.loads(launcher)
    assert measured["status"] == 0, done.stderr
    return measured["peak_kib"] / 1024, result["n_frames"]


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs a system that counts memory")
def test_ten_times_the_audio_needs_the_same_memory(tmp_path):
    peaks = {}
    for name, minutes in MINUTES.items():
        recording, model = tmp_path / f"{name}.wav", tmp_path / f"{name}.ondes"
        write_recording(recording, minutes)
        peaks[name], n_frames = peak_of_learning(recording, model)
        assert n_frames >= minutes * 60 * SR // HOP_LENGTH
    assert peaks["long"] < MAX_GROWTH * peaks["short"], peaks
