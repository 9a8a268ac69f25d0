"""What each step from the paper's algorithm to the default gains.

    python experiments/why_the_default.py [--audio FOLDER] [--seeds N]

Processor seconds of one thread. Writes experiments/results/why_the_default.json.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from outputs import KEPT, changed, facts, parse_options
from recordings import Recordings
from threadpoolctl import threadpool_limits

import ondes
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.stft import Stft


@dataclass(frozen=True)
class Settings:
    sr: int = 11025
    n_fft: int = 512
    n_components: int = 32
    marks: tuple[int, ...] = (2_000, 20_000, 100_000)
    n_held_out: int = 2_000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    n_jobs: int = 1


def variants(settings: Settings) -> dict[str, ondes.OnlineNMF]:
    """From the paper's algorithm to the default, one change at a time."""
    growing = ondes.GrowingMemory()
    fixed = {"n_components": settings.n_components, "n_jobs": settings.n_jobs}
    n_stream = settings.marks[-1]
    no_memory_rule = {"forgetting": ondes.PerPass(0.7, n_frames=n_stream)}
    plain = ondes.Solver(max_steps=10, momentum=())
    return {
        "the paper: r = 0.7, β = 1000, 100 steps": ondes.OnlineNMF.paper(**fixed | no_memory_rule),
        "… with β = 100": ondes.OnlineNMF.paper(**fixed | no_memory_rule, batch_size=100),
        "… and growing memory": ondes.OnlineNMF.paper(**fixed, batch_size=100, forgetting=growing),
        "… and exponents 1 and 0.9, 10 steps": ondes.OnlineNMF(
            **fixed, init="random", solver=plain
        ),
        "… and extrapolation": ondes.OnlineNMF(**fixed, init="random"),
        "… and k-means++": ondes.OnlineNMF(init="k-means++", **fixed),
        "… and parts, the default": ondes.OnlineNMF(**fixed),
    }


def frames_of(paths: list[Path], n_frames: int, settings: Settings, seed: int) -> np.ndarray:
    audio = AudioSettings(settings.sr, Stft(settings.n_fft))
    collected: list[np.ndarray] = []
    for batch in frame_batches(paths, audio, 1000, random_state=seed, n_open=32):
        collected.append(batch)
        if sum(map(len, collected)) >= n_frames:
            break
    return np.concatenate(collected)[:n_frames]


def race(recordings: Recordings, settings: Settings) -> dict[str, object]:
    train_paths, other_paths = recordings.music(False), recordings.music(True)
    held_out = frames_of(other_paths, settings.n_held_out, settings, seed=0)
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in settings.seeds:
        train = frames_of(train_paths, settings.marks[-1], settings, seed)
        for name, model in variants(settings).items():
            model.set_params(random_state=seed)
            seen, seconds = 0, 0.0
            for mark in settings.marks:
                with threadpool_limits(1):
                    start = time.process_time()
                    model.partial_fit(train[seen:mark])
                    seconds += time.process_time() - start
                seen = mark
                rows.setdefault(name, []).append(
                    {"seed": seed, "frames": mark, "seconds": seconds,
                     "divergence": -model.score(held_out)}
                )  # fmt: skip
            print(f"{name}, seed {seed}: {rows[name][-1]['divergence']:.4f} in {seconds:.2f} s")
    return {
        "settings": asdict(settings),
        "recordings": {"train": len(train_paths), "held out": len(other_paths)},
        "backend": model.backend_,
        "machine": facts(),
        "rows": rows,
    }


def table(results: dict[str, object]) -> str:
    settings = results["settings"]
    marks = settings["marks"]
    lines = [
        "| held-out divergence per bin (seconds) after | "
        + " | ".join(f"{mark:,} frames" for mark in marks) + " |",
        "|---" * (len(marks) + 1) + "|",
    ]  # fmt: skip
    for name, runs in results["rows"].items():
        cells = []
        for mark in marks:
            at = [run for run in runs if run["frames"] == mark]
            divergence = np.median([run["divergence"] for run in at])
            seconds = np.median([run["seconds"] for run in at])
            cells.append(f"{divergence:.3f} ({seconds:.2f} s)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(
        f"Medians of {len(settings['seeds'])} seeds, one pass over a stream of music, "
        f"K = {settings['n_components']}, F = {settings['n_fft'] // 2 + 1}, "
        f"{settings['sr']} Hz, float32, backend {results['backend']}, "
        f"{settings['n_jobs']} thread, processor seconds; "
        f"{results['recordings']['train']} recordings to learn from, "
        f"{results['recordings']['held out']} others held out."
    )
    return "\n".join(lines)


def main() -> None:
    options = parse_options(__doc__)
    results = race(Recordings(options.audio), changed(Settings(), options))
    KEPT["why_the_default"].write(results)
    print(table(results))


if __name__ == "__main__":
    main()
