"""Speed and memory of `ondes learn` and `ondes separate`, from files on disk to files on disk.

    python benchmarks/streaming.py [--music FOLDER] [--long 6] [--hours 10] [--sr 22050]

Recordings as people have them come first: half an hour and six hours of 44.1 kHz stereo, one file
of Ogg Vorbis and one of FLAC, learned with the default settings. The sound is the music of a
folder, repeated, or synthetic scenes. Then synthetic scenes in mono FLAC that need no resampling:
ten minutes and ten hours, learned with the settings of the paper's experiments, and separated.

Every command runs in a process of its own; peak resident memory and processor seconds are what the
system counts for it. `--python` is the interpreter of another environment to run them in. Decoding,
STFT and learning are also timed separately. `--only stereo` leaves the rest out, and prints only.
Writes benchmarks/results/streaming.json.
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
from typing import Any

import numpy as np
import soundfile
from kept import KEPT
from threadpoolctl import threadpool_limits

from ondes import AudioSettings, OnlineNMF, Stft
from ondes.demo_scene import make_scene
from ondes.signal.audio_writer import write_audio
from ondes.signal.batches import frame_batches
from ondes.signal.recordings import open_blocks
from ondes.signal.stft import mean_power

MINUTES_PER_FILE = 10
N_COMPONENTS = 32
STEREO_SR = 44100
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


def write_repeated(path: Path, samples: np.ndarray, hours: float) -> Path:
    """One recording of this length; written in blocks, as libsndfile's Vorbis needs it."""
    n_left, at = round(hours * 3600 * STEREO_SR), 0
    with soundfile.SoundFile(path, "w", STEREO_SR, 2) as file:
        while n_left:
            block = samples[at : at + min(65536, n_left)]
            file.write(np.clip(block, -1, 1))
            n_left, at = n_left - len(block), (at + len(block)) % len(samples)
    return path


def stereo_rows(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What people have: 44.1 kHz stereo in one file, learned with the default settings."""
    rows: list[dict[str, Any]] = []
    samples = stereo(options.music, 1800)
    model = str(folder / "model.ondes")
    for suffix in ("ogg", "flac"):
        for hours in (0.5, options.long):
            path = write_repeated(folder / f"{hours:g}.{suffix}", samples, hours)
            for preset in ("separation", "paper") if hours == 0.5 else ("separation",):
                how = ["-k", str(N_COMPONENTS), "--preset", preset, "-j", "-1", "-o", model]
                # Twice: the first run also finds the file in no cache.
                runs = [run_command(["learn", str(path), *how, "--force"], options.python)
                        for _ in range(2 if hours == 0.5 else 1)]  # fmt: skip
                best = min(runs, key=lambda run: run["seconds"])
                audio = f"44.1 kHz stereo {suffix}, preset {preset}"
                rows.append({"command": "learn", "audio": audio, "hours": hours, **best})
            path.unlink()
    return rows


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


def run_command(arguments: list[str], python: str = sys.executable) -> dict[str, float]:
    """Wall and processor seconds and peak megabytes of `ondes` in a process of its own."""
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, python, "-m", "ondes"]
    printed = subprocess.run([*command, *arguments], check=True, capture_output=True).stdout
    found = json.loads(printed)
    if found.pop("status"):
        raise SystemExit(f"ondes {' '.join(arguments)} failed")
    return found


def machine() -> str:
    """How fast one core multiplies matrices, for comparison with others."""
    square = np.random.default_rng(0).random((1536, 1536)).astype(np.float32)
    times = []
    with threadpool_limits(1):
        for _ in range(5):
            begin = time.perf_counter()
            square @ square
            times.append(time.perf_counter() - begin)
    return f" of {2e-9 * 1536**3 / min(times):.0f} GFLOP/s each in float32"


def speed_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"x_real_time": row["hours"] * 3600 / row["seconds"]} for row in rows]


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


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(
            f"{row['command']:10s} {row['audio']:40s} {row['hours']:6.2f} h "
            f"{row['seconds']:8.1f} s {row['x_real_time']:8.0f} × real time  "
            f"{row['cpu_seconds'] / row['hours']:6.1f} CPU s per hour  "
            f"peak {row['peak_mb']:.0f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--sr", type=int, default=22050)
    parser.add_argument("--folder", type=Path, help="where to put the recordings meanwhile")
    parser.add_argument("--music", type=Path, help="a folder of 44.1 kHz stereo Ogg")
    parser.add_argument("--long", type=float, default=6.0, help="hours of the long stereo files")
    parser.add_argument("--python", default=sys.executable, help="of the environment to measure")
    parser.add_argument("--only", choices=["stereo"])
    options = parser.parse_args()
    # As pip installs it: a checkout may have no bytecode, and compile itself at every start.
    compiled = "import compileall, ondes; list(map(compileall.compile_dir, ondes.__path__))"
    subprocess.run([options.python, "-c", compiled], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        rows = stereo_rows(folder, options)
        if options.only:
            show(speed_of(rows))
            return
        paths = write_recordings(folder, options.sr, options.hours)
        stages = parts(paths[0], options.sr)
        scenes = f"{options.sr / 1000:g} kHz mono FLAC"
        for files in (paths[:1], paths):
            hours = len(files) * MINUTES_PER_FILE / 60
            model = str(folder / "model.ondes")
            learned = run_command(
                ["learn", *map(str, files), "-k", str(N_COMPONENTS), "--sr", str(options.sr),
                 *SETTINGS, "-j", "-1", "-o", model, "--force"], options.python
            )  # fmt: skip
            rows.append({"command": "learn", "audio": scenes, "hours": hours, **learned})
        long = folder / "long.wav"
        for files in (paths[:1], paths):
            hours = len(files) * MINUTES_PER_FILE / 60
            blocks = (block for path in files for block in open_blocks(path))
            write_audio(long, blocks, options.sr, subtype="PCM_16", force=True)
            separated = run_command(
                ["separate", str(long), "-d", f"a={model}", "-d", f"b={model}", "--flac",
                 "-j", "-1", "-o", str(folder / "stems"), "--force"], options.python
            )  # fmt: skip
            audio = f"{options.sr / 1000:g} kHz mono WAV"
            rows.append({"command": "separate", "audio": audio, "hours": hours, **separated})
    rows = speed_of(rows)
    results = {"sr": options.sr, "n_components": N_COMPONENTS, "n_cores": os.cpu_count(),
               "machine": machine(), "stages_x_real_time": stages, "commands": rows}  # fmt: skip
    KEPT["streaming"].write(results)
    for stage, speed in stages.items():
        print(f"{stage:40s} {speed:8.0f} × real time")
    show(rows)


if __name__ == "__main__":
    main()
