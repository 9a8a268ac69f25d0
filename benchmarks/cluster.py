"""What a cluster costs: its rate against one process with as many threads, and where time goes.

    python benchmarks/cluster.py [--hours 5] [--workers 1 2 4]

The recordings are synthetic scenes in FLAC at 22.05 kHz. All clusters are local, of processes with
one thread each; starting them is not counted, nor are the first imports. Writes
benchmarks/results/cluster.json.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from kept import KEPT, ROOT

from ondes import GrowingMemory, Solver

RESULTS = ROOT / KEPT["cluster"].path
SR, N_COMPONENTS, N_BINS = 22050, 32, 257
SETTINGS = {"sr": SR, "n_fft": 512, "hop_length": 256, "spectrum": "power"}
SETTINGS |= {"beta_loss": "itakura-saito", "sparsity": 0.0}
SETTINGS |= {"forgetting": GrowingMemory(), "solver": Solver()}
N_SHARDS = 8  # the default
REPEATS = 5
N_SIMULATED = 100
BANDWIDTH = 1e9 / 8  # bytes per second of the simulated network
TASKS_PER_SHARD = 3  # read, info, summarise


class Clock:
    """When each update ended, and how much audio was done by then."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.ends: list[tuple[float, float, int]] = []

    def __call__(self, progress: Any) -> None:
        now = time.perf_counter() - self.start
        self.ends.append((now, progress.seconds_done, progress.n_frames))

    @property
    def seconds(self) -> float:
        return self.ends[-1][0]

    def rounds(self, first_frames: int) -> list[float]:
        """Seconds of each round computed by the workers: those of so many frames or more."""
        pairs = zip(self.ends, self.ends[1:], strict=False)
        return [b[0] - a[0] for a, b in pairs if b[2] - a[2] > first_frames // 2]


def learn_here(files: list[Path], threads: int) -> Clock:
    import ondes

    clock = Clock()
    ondes.learn(files, N_COMPONENTS, n_jobs=threads, progress=clock, **SETTINGS)
    return clock


def learn_there(client: Any, files: list[Path], threads: int, disturb: Any = None) -> Clock:
    import ondes

    clock = Clock()

    def progress(now: Any) -> None:
        clock(now)
        if disturb is not None:
            disturb(now)

    ondes.learn(files, N_COMPONENTS, n_jobs=threads, cluster=client, progress=progress, **SETTINGS)
    return clock


def shares(client: Any, files: list[Path], n_workers: int, first_frames: int) -> dict[str, float]:
    """Where the workers' time goes while they compute rounds."""
    client.get_task_stream()  # from now on the scheduler keeps it
    clock = learn_there(client, files, n_workers)
    spent: Counter[str] = Counter()
    for task in client.get_task_stream():
        for part in task["startstops"]:
            kind = task["key"].split("-")[1] if part["action"] == "compute" else "transfer"
            spent[kind] += part["stop"] - part["start"]
    rounds = clock.rounds(first_frames)
    total = n_workers * sum(rounds)
    small = spent["info"] + spent["given"] + spent["add"] + spent["transfer"]
    return {
        "n_workers": n_workers,
        "seconds": clock.seconds,
        "seconds_alone": clock.seconds - sum(rounds),
        "n_rounds": len(rounds),
        "read": spent["read"] / total,
        "summarise": spent["summarise"] / total,
        "communication": small / total,
        "rest": 1 - (spent["read"] + spent["summarise"] + small) / total,
    }


def lost_workers(client: Any, files: list[Path], undisturbed: float) -> dict[str, float]:
    """Seconds that a worker killed in the middle of a round costs."""
    marks = [0.5, 0.65, 0.8]
    n_lost = len(marks)

    def kill() -> None:
        pids = [nanny.pid for nanny in client.cluster.workers.values() if nanny.pid]
        os.kill(pids[len(marks) % len(pids)], signal.SIGKILL)

    def disturb(now: Any) -> None:
        if marks and now.seconds_done > marks[0] * now.seconds_total:
            marks.pop(0)
            threading.Timer(0.1, kill).start()

    clock = learn_there(client, files, 2, disturb)
    rounds = clock.rounds(8192)
    return {
        "n_lost": n_lost,
        "seconds_each": (clock.seconds - undisturbed) / n_lost,
        "longest_round": max(rounds),
        "usual_round": statistics.median(rounds[len(rounds) // 2 :]),
    }


def costs(client: Any, files: list[Path]) -> dict[str, float]:
    """Seconds of each part by itself, in one thread of an otherwise idle machine."""
    from ondes import AudioSettings, OnlineNMF, Stft
    from ondes.learning.cluster import shards
    from ondes.learning.cluster.plan import shard_size
    from ondes.signal.schedule import Segment
    from ondes.signal.survey import survey

    size = shard_size(N_COMPONENTS, N_BINS, N_SHARDS)
    audio = AudioSettings(SR, Stft())
    recordings = shards.SharedCorpus(files[:1], survey(files[:1], audio), audio)
    segments = [Segment(0, first, 1024) for first in range(0, size, 1024)]
    shard = shards.read(recordings, segments)
    estimator = OnlineNMF(N_COMPONENTS, random_state=0).initialise(shard.frames)
    settings = estimator.settings
    problem = settings.problem(estimator.components_)
    how = problem, settings.compute, shard.info.loudest, audio
    statistics_ = shards.summarise(shard, *how)
    n_tasks = 500

    def many() -> None:
        client.gather([client.submit(shards.given, n, pure=False) for n in range(n_tasks)])

    return {
        "shard_frames": size,
        "read": median_of(lambda: shards.read(recordings, segments)),
        "summarise": median_of(lambda: shards.summarise(shard, *how)),
        "add": median_of(lambda: shards.add(statistics_, statistics_)),
        "absorb": median_of(lambda: estimator.absorb(statistics_)),
        "a_task": median_of(many) / n_tasks,
        "there_and_back": median_of(lambda: client.submit(shards.given, 0, pure=False).result()),
    }


def median_of(function: Any, repeats: int = 9) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def simulate(cost: dict[str, float], n_workers: int) -> dict[str, float]:
    """A full round on many workers, from the cost of its parts; see `MODEL`."""
    from ondes.learning.cluster.plan import shard_size
    from ondes.learning.cluster.rounds import FAN_IN

    n_shards = 2 * n_workers
    shard_frames = shard_size(N_COMPONENTS, N_BINS, n_shards)
    a_shard = (cost["read"] + cost["summarise"]) * shard_frames / cost["shard_frames"]
    n_sums, level, depth = 0, n_shards, 1
    while level > FAN_IN:  # the last sum is the driver's
        level, depth = math.ceil(level / FAN_IN), depth + 1
        n_sums += level
    work = math.ceil(n_shards / n_workers) * a_shard
    scheduling = (TASKS_PER_SHARD * n_shards + n_sums + 1) * cost["a_task"]
    statistics_bytes = 2 * 8 * N_COMPONENTS * N_BINS
    a_sum = FAN_IN * (cost["add"] + statistics_bytes / BANDWIDTH)
    sums = depth * (a_sum + cost["there_and_back"])
    dictionary = math.ceil(math.log2(n_workers)) * (
        cost["there_and_back"] + statistics_bytes / 2 / BANDWIDTH
    )
    gap = cost["absorb"] + dictionary + sums
    seconds = max(work, scheduling) + gap
    return {
        "n_workers": n_workers,
        "n_shards": n_shards,
        "shard_frames": shard_frames,
        "seconds": seconds,
        "work": work,
        "scheduling": scheduling,
        "gap": gap,
        "share_of_work": work / seconds,
        "x_real_time": n_shards * shard_frames * 256 / SR / seconds,
    }


MODEL = """\
The simulated round is a full one, with two shards per worker. Workers and scheduler \
work at the same time, so the slower of the two counts; the scheduler handles one task after the \
other. Then there is a gap in which all workers wait: for the sums, eight at a time, for the \
driver's update, and for the transfer of the dictionary over a network of 1 Gbit/s, in which every \
worker that has the dictionary passes it on."""


PICTURE = ("cluster.svg", "How the workers of a cluster spend their time")


def answer(results: dict[str, Any]) -> str:
    """Two workers against two threads, and a hundred workers."""
    many = results["simulated"]
    return (
        f"Two workers learn at {results['ratio']:.2f} × the rate of two threads of one process. "
        f"A hundred workers would learn at {many['x_real_time']:,.0f} × real time and spend "
        f"{many['share_of_work']:.0%} of their time on the work itself, by a simulation from the "
        "measured cost of every part."
    )


def draw(results: dict[str, Any], folder: Path) -> None:
    """The bars of `PICTURE`."""
    import figures

    parts = {"read": "#083d56", "summarise": "#5f9cb8", "communication": "#c44601", "rest": "#ddd"}
    names = {"rest": "waiting"}
    rows = results["workers"]
    figure = figures.new(0.5 * len(rows) + 1.2)
    axes = figure.add_subplot()
    left = [0.0] * len(rows)
    for part, colour in parts.items():
        values = [100 * row[part] for row in rows]
        axes.barh(range(len(rows)), values, left=left, color=colour, label=names.get(part, part))
        left = [before + value for before, value in zip(left, values, strict=True)]
    labels = [f"{row['n_workers']} worker{'s' if row['n_workers'] > 1 else ''}" for row in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlabel("share of the time, %")
    figures.legend_above(axes, 4)
    figures.save(figure, folder / PICTURE[0], results)


def section(results: dict[str, Any]) -> str:
    """The tables of the page."""
    hours, ratio = results["hours"], results["ratio"]
    lost, many = results["lost"], results["simulated"]
    lines = [
        "## On a cluster",
        "",
        f"`ondes.learn` with `cluster=` on {hours:g} hours of FLAC at {SR} Hz, K = {N_COMPONENTS}, "
        f"one pass, {results['n_cores']} cores, decoding included, against `ondes.learn` with as "
        f"many threads, {REPEATS} times each in turn. Two workers with one thread each learn, in "
        f"the median, at **{ratio:.2f} ×** the rate of the native backend on two threads "
        f"({speed(results, results['two_workers']):.0f} and "
        f"{speed(results, results['native']):.0f} × real time; the goal was 0.9). A killed worker "
        f"cost {lost['seconds_each']:.1f} s, while a round took {lost['usual_round']:.1f} s.",
        "",
        "The table shows how the workers spend their time once they compute rounds. Communication "
        "is the transfer of frames, statistics and dictionaries, and the small tasks that pass "
        "them on. What is left is waiting: for the driver, which needs a core too, and for the "
        "last shard of a round.",
        "",
        "| workers | × real time | read | summarise | communication | waiting | driver alone |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['n_workers']} | {speed(results, row['seconds']):.0f} | {row['read']:.1%} "
        f"| {row['summarise']:.1%} | {row['communication']:.1%} | {row['rest']:.1%} "
        f"| {row['seconds_alone']:.1f} s |"
        for row in results["workers"]
    ]
    lines += [
        f"| {many['n_workers']}, simulated | {many['x_real_time']:.0f} | | "
        f"{many['share_of_work']:.1%} with reading | | {1 - many['share_of_work']:.1%} | |",
        "",
        f"{MODEL} The simulation assumes {1e3 * results['costs']['a_task']:.2f} ms per task, "
        f"{1e3 * results['costs']['there_and_back']:.1f} ms per round trip, "
        f"{1e3 * results['costs']['absorb']:.1f} ms per update, and "
        f"{1e3 * results['costs']['read']:.0f} + {1e3 * results['costs']['summarise']:.0f} ms to "
        f"read and summarise {results['costs']['shard_frames']} frames, as measured on this "
        f"machine; the simulated shards have {many['shard_frames']} frames.",
    ]
    return "\n".join(lines) + "\n"


def speed(results: dict[str, Any], seconds: float) -> float:
    return float(results["hours"] * 3600 / seconds)


def measure(files: list[Path], hours: float, workers: list[int]) -> dict[str, Any]:
    from ondes.learning.cluster.dask_engine import connected
    from ondes.learning.cluster.plan import first_round, shard_size

    round_size = N_SHARDS * shard_size(N_COMPONENTS, N_BINS, N_SHARDS)
    first_frames = first_round(round_size)
    rows, native, two = [], [], []
    with connected("local", 2) as client:
        learn_there(client, files[:1], 2)
        cost = costs(client, files)
        for _ in range(REPEATS):
            native.append(learn_here(files, 2).seconds)
            two.append(learn_there(client, files, 2).seconds)
        lost = lost_workers(client, files, float(np.median(two)))
    for n_workers in workers:
        with connected("local", n_workers) as client:
            learn_there(client, files[:1], 1)
            rows.append(shares(client, files, n_workers, first_frames))
    return {
        "hours": hours,
        "n_cores": os.cpu_count(),
        "round_size": round_size,
        "n_shards": N_SHARDS,
        "native": float(np.median(native)),
        "two_workers": float(np.median(two)),
        "ratio": float(np.median(native) / np.median(two)),
        "workers": rows,
        "costs": cost,
        "simulated": simulate(cost, N_SIMULATED),
        "lost": lost,
    }


def main() -> None:
    from command_runs import write_recordings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=5.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write_recordings(Path(folder), SR, options.hours)
        results = measure(files, options.hours, options.workers)
    KEPT["cluster"].write(results, path=options.output)
    draw(results, ROOT / "docs" / "figures")
    print(section(results))


if __name__ == "__main__":
    main()
