"""Speed and memory of `ondes learn` and `ondes separate`, from files on disk to files on disk.

    python benchmarks/streaming.py [--hours 10] [--sr 22050]

The recordings are synthetic scenes in FLAC. Ten minutes and ten hours are learned from and
separated by the command itself, in processes of their own; peak resident memory is what the system
counts for them. Decoding, STFT and learning are also timed separately. Writes
benchmarks/results/streaming.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ondes import AudioSettings, OnlineNMF, Stft
from ondes.scene import make_scene
from ondes.signal.audio_writer import write_audio
from ondes.signal.batches import frame_batches
from ondes.signal.recordings import open_blocks
from ondes.signal.stft import mean_power

RESULTS = Path(__file__).parent / "results" / "streaming.json"
MINUTES_PER_FILE = 10
N_COMPONENTS = 32
SETTINGS = ("--n-fft", "512", "--hop-length", "256", "--spectrum", "power")
SETTINGS += ("--beta-loss", "itakura-saito", "--sparsity", "0")


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


# The system counts what a process inherits from the one that starts it, so a small one has to.
LAUNCHER = """
import json, os, sys, time
start = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ,
                     file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - start
print(json.dumps({"status": status, "seconds": seconds, "peak_mb": usage.ru_maxrss / 1024}))
"""


def run_command(arguments: list[str]) -> dict[str, float]:
    """Wall seconds and peak resident megabytes of `ondes` in a process of its own."""
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, sys.executable, "-m", "ondes"]
    printed = subprocess.run([*command, *arguments], check=True, capture_output=True).stdout
    found = json.loads(printed)
    if found.pop("status"):
        raise SystemExit(f"ondes {' '.join(arguments)} failed")
    return found


def seconds_of(iterable: Iterable[object]) -> float:
    start = time.perf_counter()
    for _ in iterable:
        pass
    return time.perf_counter() - start


def parts(path: Path, sr: int) -> dict[str, float]:
    """Each stage by itself, in one thread except for learning, as multiples of real time."""
    seconds = MINUTES_PER_FILE * 60
    blocks = [block[:, 0] for block in open_blocks(path, sr=sr)]
    stream = Stft().stream()
    frames = np.concatenate([mean_power(stream.push(block)) for block in blocks])
    stream.reset()
    estimator = OnlineNMF(N_COMPONENTS, random_state=0, n_jobs=-1)
    learning = time.perf_counter()
    estimator.partial_fit(frames)
    learning = time.perf_counter() - learning
    return {
        "decode flac": seconds / seconds_of(open_blocks(path, sr=sr)),
        "decode and resample to half the rate": seconds
        / seconds_of(open_blocks(path, sr=sr // 2)),
        "STFT and power": seconds
        / seconds_of(mean_power(stream.push(block)) for block in blocks),
        "decode, STFT and shuffle": seconds
        / seconds_of(frame_batches([path], AudioSettings(sr, Stft()), 100)),
        "learn": seconds / learning,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--sr", type=int, default=22050)
    parser.add_argument("--folder", type=Path, help="where to put the recordings meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        paths = write_recordings(folder, options.sr, options.hours)
        stages = parts(paths[0], options.sr)
        rows = []
        for files in (paths[:1], paths):
            hours = len(files) * MINUTES_PER_FILE / 60
            model = str(folder / "model.ondes")
            learned = run_command(
                ["learn", *map(str, files), "-k", str(N_COMPONENTS), "--sr", str(options.sr),
                 *SETTINGS, "-j", "-1", "-o", model, "--force"]
            )  # fmt: skip
            rows.append({"command": "learn", "hours": hours, **learned})
        long = folder / "long.wav"
        for files in (paths[:1], paths):
            hours = len(files) * MINUTES_PER_FILE / 60
            blocks = (block for path in files for block in open_blocks(path))
            write_audio(long, blocks, options.sr, subtype="PCM_16", force=True)
            separated = run_command(
                ["separate", str(long), "-d", f"a={model}", "-d", f"b={model}", "--flac",
                 "-j", "-1", "-o", str(folder / "stems"), "--force"]
            )  # fmt: skip
            rows.append({"command": "separate", "hours": hours, **separated})
    for row in rows:
        row["x_real_time"] = row["hours"] * 3600 / row["seconds"]
    results = {"sr": options.sr, "n_components": N_COMPONENTS, "n_cores": os.cpu_count(),
               "stages_x_real_time": stages, "commands": rows}  # fmt: skip
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for stage, speed in stages.items():
        print(f"{stage:40s} {speed:8.0f} × real time")
    for row in rows:
        print(
            f"{row['command']:10s} {row['hours']:6.2f} h  {row['seconds']:8.1f} s "
            f"{row['x_real_time']:8.0f} × real time  peak {row['peak_mb']:.0f} MB"
        )


if __name__ == "__main__":
    main()
