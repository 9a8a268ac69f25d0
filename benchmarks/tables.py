"""Speed and memory of `ondes levels`, from hours of sound on disk to a table on disk.

    python benchmarks/tables.py [--hours 10] [--sr 48000] [--channels 1] [-k 128] [--by component]
                                [--recordings FOLDER] [--output .parquet]

Ten-minute recordings: the sound of a folder, repeated, or synthetic scenes. The model is learned
with the default settings. The command runs in a process of its own; peak resident memory is what
the system counts for it. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from kept import KEPT

import ondes
from ondes.demo_scene import make_scene
from ondes.signal.audio_writer import write_audio

MINUTES_PER_FILE = 10
N_DIFFERENT = 3  # the others are further names of these
# The system counts what a process inherits from the one that starts it, so a small one has to.
LAUNCHER = """
import json, os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
cpu = usage.ru_utime + usage.ru_stime
print(json.dumps({"status": status, "peak_mb": usage.ru_maxrss * 1024 / 1e6, "cpu_s": cpu}))
"""


def samples_of(given: argparse.Namespace, number: int) -> list[np.ndarray]:
    """Ten minutes, in blocks."""
    n_samples = 60 * MINUTES_PER_FILE * given.sr
    blocks, n_held = [], 0
    files = sorted(given.recordings.rglob("*.*")) if given.recordings else []
    while n_held < n_samples:
        if files:
            block = ondes.read(files[(number + len(blocks)) % len(files)], sr=given.sr)[0]
            block = block.reshape(len(block), -1)
        else:
            seed = 1000 * number + len(blocks)
            block = make_scene(24.0, given.sr, random_state=seed).mixture[:, None]
        block = np.repeat(block.mean(axis=1, keepdims=True), given.channels, axis=1)
        blocks.append(block[: n_samples - n_held])
        n_held += len(blocks[-1])
    return blocks


def write_recordings(folder: Path, given: argparse.Namespace) -> list[Path]:
    paths: list[Path] = []
    for number in range(max(1, round(given.hours * 60 / MINUTES_PER_FILE))):
        day, minutes = divmod(MINUTES_PER_FILE * number, 24 * 60)
        path = folder / f"2024010{1 + day}_{minutes // 60:02}{minutes % 60:02}00.flac"
        if number < N_DIFFERENT:
            write_audio(path, samples_of(given, number), given.sr, given.channels, "PCM_16")
        else:
            os.link(paths[number % N_DIFFERENT], path)
        paths.append(path)
    return paths


def keep(result: dict[str, object]) -> None:
    """Write the result, in place of an earlier one under the same conditions."""
    conditions = ("hours", "sr", "channels", "n_components", "by")
    rows = [
        row
        for row in KEPT["tables"].read()["rows"]
        if any(row[name] != result[name] for name in conditions)
    ]
    part = f"{result['sr']} Hz, {result['n_components']} components"
    KEPT["tables"].write({"rows": [*rows, result]}, [part])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--sr", type=int, default=48000)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("-k", "--components", type=int, default=128)
    parser.add_argument("--by", choices=("component", "source"), default="component")
    parser.add_argument("--every", default="1")
    parser.add_argument("--output", choices=(".csv", ".parquet", ".npz"), default=".parquet")
    parser.add_argument("--recordings", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "hours").mkdir()
        paths = write_recordings(folder / "hours", given)
        models = []
        for number in range(1 if given.by == "component" else 2):
            model = folder / f"{number}.ondes"
            ondes.learn(paths[number % N_DIFFERENT], given.components, n_jobs=-1).save(model)
            models += ["-d", str(model)]
        table = folder / f"table{given.output}"
        command = [sys.executable, "-m", "ondes", "levels", str(folder / "hours"), *models]
        command += ["-o", str(table), "--every", given.every, "--by", given.by]
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, *command],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        measured = json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
        assert measured["status"] == 0, done.stderr
        hours = len(paths) * MINUTES_PER_FILE / 60
        result = {
            "hours": hours,
            "sr": given.sr,
            "channels": given.channels,
            "n_components": given.components,
            "by": given.by,
            "seconds": round(seconds, 1),
            "times_real_time": round(3600 * hours / seconds),
            "cpu_ms_per_second": round(1e3 * measured["cpu_s"] / (3600 * hours), 2),
            "peak_mb": round(measured["peak_mb"]),
            "table_mb": round(table.stat().st_size / 1e6, 1),
        }
        print(json.dumps(result))
        keep(result)


if __name__ == "__main__":
    main()
