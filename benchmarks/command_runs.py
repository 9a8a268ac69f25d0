"""Commands in processes of their own, with their time and memory, and the recordings they get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile

from ondes.demo_scene import make_scene
from ondes.signal.audio_writer import write_audio

MINUTES_PER_FILE = 10
STEREO_SR = 44100


def write_recordings(folder: Path, sr: int, hours: float) -> list[Path]:
    """Ten-minute recordings; beyond the second they are further names of the first two."""
    paths = []
    for number in range(round(hours * 60 / MINUTES_PER_FILE)):
        path = folder / f"{number:03d}.flac"
        if number < 2:
            pieces = [
                make_scene(24.0, sr, random_state=1000 * number + piece).mixture
                for piece in range(MINUTES_PER_FILE * 60 // 24)
            ]
            write_audio(path, pieces, sr)
        else:
            os.link(paths[number % 2], path)
        paths.append(path)
    return paths


def stereo(folder: Path | None, seconds: float) -> np.ndarray:
    """Two channels at 44.1 kHz: music of a folder, or two scenes beside each other."""
    n_wanted, pieces, n = round(seconds * STEREO_SR), [], 0
    if folder is not None:
        for path in sorted(folder.rglob("*.ogg")):
            if soundfile.info(path).samplerate == STEREO_SR and soundfile.info(path).channels == 2:
                pieces.append(soundfile.read(path, dtype="float32")[0])
                n += len(pieces[-1])
            if n >= n_wanted:
                return np.concatenate(pieces)[:n_wanted]
    for number in range(10):
        both = [make_scene(24.0, STEREO_SR, random_state=2 * number + side) for side in (0, 1)]
        pieces.append(np.stack([each.mixture for each in both], axis=1).astype(np.float32))
    return np.resize(np.concatenate(pieces), (n_wanted, 2))


# The system counts what a process inherits from the one that starts it, so a small one has to.
LAUNCHER = """
import json, os, sys, time
start = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ,
                     file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - start
print(json.dumps({"status": status, "seconds": seconds, "peak_mb": usage.ru_maxrss / 1024,
                  "cpu_seconds": usage.ru_utime + usage.ru_stime}))
"""


def run_command(arguments: list[str]) -> dict[str, float]:
    """Wall and processor seconds and peak megabytes of `ondes` in a process of its own."""
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, sys.executable, "-m", "ondes"]
    printed = subprocess.run([*command, *arguments], check=True, capture_output=True).stdout
    found = json.loads(printed)
    if found.pop("status"):
        raise SystemExit(f"ondes {' '.join(arguments)} failed")
    return found
