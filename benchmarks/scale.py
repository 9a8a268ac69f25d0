"""One pass over all the music there is: frames per second and memory against hours.

    python benchmarks/scale.py [--audio FOLDER] [--quick]

Each length is learned from the files themselves, decoding included, in a process of its own, which
reports its own peak of resident memory. Writes benchmarks/results/scale.json and
docs/figures/scale.png; with --quick, into out/quick.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "experiments")]

from outputs import Outputs, facts, parse_options  # noqa: E402
from recordings import Recordings, probe  # noqa: E402

import ondes  # noqa: E402

RESULTS = HERE / "results" / "scale.json"
HOURS_PER_YEAR = 8766
LEARN = "--learn"  # the option of this script for the process that is measured


@dataclass(frozen=True)
class Settings:
    hours: tuple[float, ...] = (0.1, 0.5, 1.5, 100.0)  # the last: all there are
    n_components: int = 32
    sr: int = 22050


QUICK = Settings(hours=(0.05, 0.2, 0.5))


def first_hours(paths: list[Path], hours: float) -> list[Path]:
    """As many complete recordings as it takes, by the names of their files."""
    chosen: list[Path] = []
    seconds = 0.0
    for path in sorted(paths, key=lambda path: path.stem):
        if seconds >= 3600 * hours:
            break
        chosen.append(path)
        seconds += probe(path).seconds or 0
    return chosen


def learn_here(settings: dict[str, Any], paths: list[str]) -> dict[str, float]:
    """Learn in this process; time and memory, and the memory that was in use before."""
    before_mb = peak_mb()
    failures: list[str] = []
    start = time.perf_counter()
    dictionary = ondes.learn(
        paths,
        settings["n_components"],
        sr=settings["sr"],
        n_fft=512,
        hop_length=256,
        spectrum="power",
        beta_loss="itakura-saito",
        sparsity=0.0,
        forgetting=ondes.GrowingMemory(),
        solver=ondes.Solver(),
        n_jobs=-1,
        on_error=lambda path, _: failures.append(path),
    )
    seconds = time.perf_counter() - start
    return {
        "files": len(paths),
        "failed": len(failures),
        "hours": dictionary.history.seconds / 3600,
        "frames": dictionary.history.n_frames,
        "seconds": seconds,
        "imports_mb": before_mb,
        "peak_mb": peak_mb(),
        "divergence": dictionary.history.divergence,
    }


def peak_mb() -> float:
    """Of this program alone: unlike ru_maxrss, it does not include what was inherited."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def scale(recordings: Recordings, settings: Settings) -> dict[str, Any]:
    paths = recordings.hours()
    runs = []
    for hours in settings.hours:
        order = {"settings": asdict(settings), "paths": [*map(str, first_hours(paths, hours))]}
        command = [sys.executable, __file__, LEARN]
        done = subprocess.run(command, input=json.dumps(order), check=True, text=True,
                              stdout=subprocess.PIPE)  # fmt: skip
        runs.append(json.loads(done.stdout))
        print(f"{runs[-1]['hours']:.2f} h in {runs[-1]['seconds']:.1f} s", flush=True)
    return {"settings": asdict(settings), "machine": facts(), "runs": runs}


# ---- the page ----


PICTURE = ("scale.png", "Frames per second and memory against hours of music")


def answer(results: dict[str, Any]) -> str:
    """What the longest run took."""
    longest = results["runs"][-1]
    return (
        f"One pass over {longest['hours']:.1f} hours of music takes {longest['seconds']:.0f} s on "
        f"{results['machine']['cores']} cores, {speed(longest):.0f} × real time. Memory is "
        f"{longest['peak_mb']:.0f} MB, {longest['peak_mb'] / results['runs'][0]['peak_mb']:.1f} "
        f"times that of {60 * results['runs'][0]['hours']:.0f} minutes."
    )


def section(results: dict[str, Any]) -> str:
    settings, machine, runs = results["settings"], results["machine"], results["runs"]
    lines = [
        "## Scale",
        "",
        f"One pass of `ondes.learn` over game music in Vorbis and Opus, {settings['sr']} Hz, "
        f"K = {settings['n_components']}, decoding included, on {machine['cores']} cores "
        f"({machine['cpu']}). Memory is the peak of the process.",
        "",
        "| hours | recordings | frames | seconds | frames per second | × real time | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {run['hours']:.2f} | {run['files']} | {run['frames']:,} | {run['seconds']:.1f} "
        f"| {run['frames'] / run['seconds']:,.0f} | {speed(run):.0f} | {run['peak_mb']:.0f} MB |"
        for run in runs
    ]
    failed = runs[-1]["failed"]
    if failed:
        lines += ["", f"{failed} of the recordings are truncated, and used up to that point."]
    lines += [
        "",
        "### What a year of audio costs",
        "",
        "| where | time for a year of audio | based on |",
        "|---|---|---|",
    ]
    lines += [f"| {where} | {took} | {how} |" for where, took, how in year(results)]
    return "\n".join(lines)


def year(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    longest = results["runs"][-1]
    rows = [
        (
            f"this machine, {results['machine']['cores']} cores",
            duration(HOURS_PER_YEAR / speed(longest)),
            f"{longest['hours']:.1f} hours measured, from files, at constant memory",
        )
    ]
    streaming, cluster, gpu = (kept(name) for name in ("streaming", "cluster", "gpu"))
    if streaming:
        row = max(
            (row for row in streaming["commands"] if _is_flac(row)),
            key=lambda row: row["hours"],
        )
        how = f"{row['hours']:.0f} hours of FLAC, which is faster to decode"
        rows.append(("the same from FLAC", duration(HOURS_PER_YEAR / row["x_real_time"]), how))
    if cluster:
        many = cluster["simulated"]
        how = "simulated from the measured cost of every part"
        where = f"a cluster of {many['n_workers']} workers with one thread each"
        rows.append((where, duration(HOURS_PER_YEAR / many["x_real_time"]), how))
    on_gpu = gpu and gpu_row(gpu, results)
    if on_gpu:
        rows.append(on_gpu)
    return rows


def _is_flac(row: dict[str, Any]) -> bool:
    return row["command"] == "learn" and "flac" in row.get("audio", "FLAC").lower()


def gpu_row(gpu: dict[str, Any], results: dict[str, Any]) -> tuple[str, str, str] | None:
    wanted = results["settings"]["n_components"]
    measured = gpu.get("end_to_end", {}).get("rows", [])
    rows = [row for row in measured if row["n_components"] == wanted]
    if not rows:
        return None
    row = max(rows, key=lambda row: row["hours"])
    hours = HOURS_PER_YEAR * row["seconds"] / row["hours"] / 3600
    how = f"{row['hours']} hours measured, from samples in memory; decoding must be as fast"
    return f"one {gpu['gpu']['name']}", duration(hours), how


def kept(name: str) -> dict[str, Any] | None:
    path = RESULTS.parent / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def speed(run: dict[str, float]) -> float:
    return run["hours"] * 3600 / run["seconds"]


def duration(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def draw(results: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    runs = results["runs"]
    hours = [run["hours"] for run in runs]
    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=100)
    left, right = figure.subplots(1, 2)
    left.plot(hours, [run["frames"] / run["seconds"] for run in runs], "o-", color="#d55e00")
    left.set_ylabel("frames per second, decoding included")
    right.plot(hours, [run["peak_mb"] for run in runs], "o-", color="#d55e00",
               label="peak of the whole process")  # fmt: skip
    right.plot(hours, [run["imports_mb"] for run in runs], "o:", color="#777777",
               label="before the first file is opened")  # fmt: skip
    right.set_ylabel("resident memory in MB")
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(hours, [f"{each:.2g}" for each in hours])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("hours of music learned in one pass")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Learning from files in one pass: speed and memory", fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    if LEARN in sys.argv:
        order = json.load(sys.stdin)
        print(json.dumps(learn_here(order["settings"], order["paths"])))
        return
    options = parse_options(__doc__)
    outputs = Outputs.quick() if options.quick else replace(Outputs.kept(), results=RESULTS.parent)
    results = scale(Recordings(options.audio), QUICK if options.quick else Settings())
    print(outputs.write("scale", results))
    draw(results, outputs.figures / "scale.png")
    print(section(results))


if __name__ == "__main__":
    main()
