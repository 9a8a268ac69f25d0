"""Quality of separation on recordings that were not learned from, against other methods.

    python benchmarks/separation.py --audio FOLDER [--quick] [--jobs N] [--device cuda]
    python benchmarks/separation.py --speed [--hours 10]

FOLDER has the recordings that benchmarks/separation_scenes.py lists, or is what that script wrote.
Conditions: A (a known speaker's held-out sentences over held-out tracks), unseen (a speaker and
music that were never heard), small (A, from two minutes of speech and five of music), G1 to G4 (the
guitar of a song, learned from three others) and noise (real noises). Every method learns from the
same recordings. Writes benchmarks/results/separation.json, where runs of earlier calls are kept;
with --quick, into out/quick. --only and --conditions choose what is run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process per method, each with one thread
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "experiments")]

import separation_methods as methods  # noqa: E402
import separation_noise as noise  # noqa: E402
from outputs import Outputs, facts  # noqa: E402
from separation_scenes import SR, Condition, conditions, write  # noqa: E402

from ondes.scores import si_sdr  # noqa: E402

RESULTS = HERE / "results" / "separation.json"
KEY = ("condition", "how", "seed", "snr")
SONGS, UNSEEN = "G", "unseen"
OWN = ("dictionaries", "adapted", "free", "trained")
TITLES = {
    "A": "Known speaker, held-out sentences and tracks",
    "unseen": "A speaker and music that are not in the training recordings",
    "small": "Known speaker, learned from two minutes of speech and five of music",
    SONGS: "The guitar of a song, learned from three other songs",
}


# ---- running ----


def run(
    scenes: Path, name: str, how: str, seed: int, budget: methods.Budget, every: int
) -> dict[str, Any]:
    """One method on every excerpt of a condition, or on every so manieth."""
    condition = conditions(scenes)[name]
    about = {"condition": name, "how": how, "seed": seed, "snr": None}
    truths = list(condition.excerpts())[::every]
    learning_s = separating_s = 0.0
    if how == "oracle":
        found = [methods.oracle(truth) for truth in truths]
    else:
        make = methods.METHODS[how][1]
        separate, learning_s = methods.timed(lambda: make(condition, seed, budget))
        mixtures = [sum(truth.values()) for truth in truths]
        separate(mixtures[0])  # what is loaded at the first call is not counted
        found, separating_s = methods.timed(lambda: [separate(each) for each in mixtures])
    if how == "blind":
        found = [methods.best_assignment(*pair) for pair in zip(truths, found, strict=True)]
    pairs = list(zip(truths, found, strict=True))
    seconds = sum(len(next(iter(truth.values()))) for truth in truths) / SR
    return about | {
        "n_excerpts": len(truths),
        "learning_s": round(learning_s, 1),
        "times_real_time": round(seconds / separating_s, 1) if separating_s else None,
        "si_sdr": [_scores(condition, truth, stems) for truth, stems in pairs],
        "sdr": [_museval(condition, *pair) for pair in pairs] if seed == 0 else None,
    }


def _scores(condition: Condition, truth: methods.Stems, stems: methods.Stems) -> list[float]:
    return [round(si_sdr(truth[name], stems[name]), 3) for name in condition.names]


def _museval(condition: Condition, truth: methods.Stems, stems: methods.Stems) -> list[float]:
    """SDR of BSS eval v4. Only museval's formulas are loaded: the package needs ffmpeg."""
    spec = importlib.util.find_spec("museval")
    if spec is None or spec.submodule_search_locations is None:
        return []
    place = Path(spec.submodule_search_locations[0]) / "metrics.py"
    spec = importlib.util.spec_from_file_location("museval_metrics", place)
    metrics = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(metrics)
    shaped = [
        np.stack([each[name] for name in condition.names]).astype(np.float64)[..., None]
        for each in (truth, stems)
    ]
    found = metrics.bss_eval(*shaped, window=np.inf, hop=np.inf)[0][:, 0]
    return [round(float(value), 3) for value in found]


def run_noise(scenes: Path, how: str, seed: int, snr: float, every: int) -> dict[str, Any]:
    found = noise.gains(conditions(scenes)["noise"], how, seed, snr, every)
    return {"condition": "noise", "how": how, "seed": seed, "snr": snr, "si_sdr": found}


def tasks(given: argparse.Namespace, scenes: Path) -> list[tuple[Any, ...]]:
    """Calls of `run` and `run_noise`; the longest first."""
    budget = methods.Budget(given.minutes, given.device, 5 if given.quick else None)
    every = 8 if given.quick else 1
    found: list[tuple[Any, ...]] = []
    for name in conditions(scenes):
        if given.conditions and name not in given.conditions:
            continue
        if name == "noise":
            found += [
                (run_noise, scenes, how, seed, snr, every)
                for how in noise.METHODS
                for snr in noise.SNRS
                for seed in range(given.seeds if how == "denoise with speech" else 1)
                if not given.only or how in given.only
            ]
            continue
        for how in (*methods.METHODS, "oracle"):
            if (given.only and how not in given.only) or (name == "small" and how not in OWN):
                continue
            seeds = 1 if how in (*methods.SEEDLESS, "oracle") else given.seeds
            own = (
                budget
                if not name.startswith(SONGS)
                else replace(budget, minutes=budget.minutes / 2)
            )
            found += [(run, scenes, name, how, seed, own, every) for seed in range(seeds)]
    return found


def measure(given: argparse.Namespace, scenes: Path) -> list[dict[str, Any]]:
    every = tasks(given, scenes)
    on_gpu = [t for t in every if t[0] is run and t[3] in methods.NEED_TRAINING]
    on_gpu = on_gpu if given.device != "cpu" else []
    others = [task for task in every if task not in on_gpu]
    context = multiprocessing.get_context("spawn")
    runs = []
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        futures = [pool.submit(task[0], *task[1:]) for task in others]
        # One after the other, so that each has the whole device.
        runs += [_told(lambda task=task: task[0](*task[1:])) for task in on_gpu]
        runs += [_told(future.result) for future in futures]
    return [each for each in runs if each is not None]


def _told(act: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        found = act()
    except ImportError as error:
        print(f"A method does not run: {error}.", flush=True)
        return None
    middle = np.round(np.median(found["si_sdr"], axis=0), 1).tolist()
    shown = {name: found.get(name) for name in (*KEY, "learning_s", "times_real_time")}
    print(*shown.values(), "median", middle, flush=True)
    return found


# ---- the page ----


def _runs(results: dict[str, Any], condition: str, how: str, snr: Any = None) -> list[dict]:
    return [
        each
        for each in results["runs"]
        if each["how"] == how
        and each["snr"] == snr
        and (each["condition"] == condition or (condition == SONGS and each["condition"][0] == "G"))
    ]


def _row(runs: list[dict[str, Any]], title: str) -> str:
    """Medians over all excerpts and seeds; the range of the seeds' medians; museval in brackets."""
    cells = []
    for source in (0, 1):
        every = [row[source] for each in runs for row in each["si_sdr"]]
        by_seed: dict[int, list[float]] = {}
        for each in runs:
            by_seed.setdefault(each["seed"], []).extend(row[source] for row in each["si_sdr"])
        medians = [float(np.median(values)) for values in by_seed.values()]
        spread = f" ± {(max(medians) - min(medians)) / 2:.1f}" if len(medians) > 1 else ""
        sdr = [row[source] for each in runs for row in (each["sdr"] or []) if row]
        beside = f" ({np.median(sdr):.1f})" if sdr else ""
        cells.append(f"{np.median(every):.1f}{spread}{beside}")
    return f"| {title} | " + " | ".join(cells) + " |"


def _training(results: dict[str, Any]) -> str:
    """How long and where separators and recurrent networks were trained, in a sentence."""
    where = {"cpu": "a CPU", "cuda": "a GPU"}
    budgets = {
        f"{each['minutes']:g} minutes on {where[each['device']]}"
        for each in results["runs"]
        if each["how"] in methods.NEED_TRAINING
    }
    if not budgets:
        return ""
    return f"Separators and recurrent networks were trained for {' or '.join(sorted(budgets))}."


PICTURE = (
    "separation.svg",
    "SI-SDR of each method on a speaker and music never learned from",
)


def _medians(results: dict[str, Any], condition: str) -> dict[str, tuple[float, float]]:
    """The medians of each method that ran on a condition, over all excerpts and seeds."""
    found = {}
    for how in (*methods.METHODS, "oracle"):
        rows = [row for each in _runs(results, condition, how) for row in each["si_sdr"]]
        if rows:
            found[how] = tuple(np.median(rows, axis=0))
    return found


def answer(results: dict[str, Any]) -> str:
    """What separation gains on recordings that nothing was learned from."""
    middle = _medians(results, UNSEEN)
    told = {how: f"{middle[how][0]:.1f} and {middle[how][1]:.1f} dB" for how in middle}
    return (
        "On a speaker and music that are in no training recording, mixed at 0 dB, speech and music "
        f"come out with {told['dictionaries']} from dictionaries, {told['adapted']} with "
        f"`--adapt`, and {told['trained']} from a trained separator (medians of SI-SDR). The best "
        f"that any mask can give is {told['oracle']}."
    )


def draw(results: dict[str, Any], folder: Path) -> None:
    """The bars of `PICTURE`."""
    import figures

    middle = _medians(results, UNSEEN)
    titles = {how: title for how, (title, _) in methods.METHODS.items()}
    titles |= {"oracle": "oracle Wiener mask"}
    figure = figures.new(0.42 * len(middle) + 1)
    axes = figure.add_subplot()
    names = list(middle)[::-1]
    for number, (source, colour) in enumerate(
        (("music", figures.BLUES[2]), ("speech", figures.BLUES[0]))
    ):
        places = np.arange(len(names)) + 0.38 * (number - 0.5)
        widths = [middle[how][1 - number] for how in names]
        axes.barh(places, widths, 0.38, color=colour, label=source)
    labels = [textwrap.fill(titles[how].replace("`", ""), 30) for how in names]
    axes.set_yticks(range(len(names)), labels, fontsize=8.5)
    axes.axvline(0, color="#444", linewidth=0.8)
    axes.set_xlabel("SI-SDR (dB), the mixture has 0")
    figures.legend_above(axes, 2)
    figures.save(figure, folder / PICTURE[0], results)


def section(results: dict[str, Any]) -> str:
    parts = [
        "## Separation",
        "Medians of SI-SDR in decibels over excerpts of 10 s at 16 kHz; after ±, where there are "
        "several seeds, half their range; in brackets the SDR of museval. No mixture contains a "
        "recording that was learned from. The dictionaries of other packages are used by the "
        "same separator, with the better of two sparsities. The oracle Wiener mask is computed "
        f"from the true sources. {_training(results)} The times in "
        "`benchmarks/results/separation.json` were measured while other programs ran.",
    ]
    for condition, title in TITLES.items():
        names = ("guitar", "rest") if condition == SONGS else ("speech", "music")
        rows = [
            _row(runs, shown)
            for how, shown in [
                *((how, title) for how, (title, _) in methods.METHODS.items()),
                ("oracle", "oracle Wiener mask"),
            ]
            if (runs := _runs(results, condition, how))
        ]
        if rows:
            head = f"| | {names[0]} | {names[1]} |\n|---|---|---|"
            parts.append("\n".join([f"**{title}**", "", head, *rows]))
    if any(each["condition"] == "noise" for each in results["runs"]):
        parts.append(_noise_table(results))
    return "\n\n".join(parts)


def _noise_table(results: dict[str, Any]) -> str:
    lines = [
        "**Noise reduction**: improvement of SI-SDR in decibels, median and quartiles; twelve "
        "recordings of wind, water, fire, saws, looms, stone, a night, a street and an inn, each "
        "mixed with two speakers; the example of each noise alone lasts four seconds.",
        "",
        "| | " + " | ".join(f"{snr} dB SNR before" for snr in noise.SNRS) + " |",
        "|---" * (1 + len(noise.SNRS)) + "|",
    ]
    for how, (title, _) in noise.METHODS.items():
        cells = []
        for snr in noise.SNRS:
            rows = [row for each in _runs(results, "noise", how, snr) for row in each["si_sdr"]]
            if rows:
                gains = [after - before for after, before in rows]
                low, middle, high = np.quantile(gains, [0.25, 0.5, 0.75])
                cells.append(f"{middle:.1f} ({low:.1f} to {high:.1f})")
        if cells:
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audio", type=Path, default=Path("audio"))
    parser.add_argument("--quick", action="store_true", help="a short run into out/quick")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="of training")
    parser.add_argument("--device", default="cpu", help="of training: cpu, cuda")
    parser.add_argument("--only", nargs="*", help="methods")
    parser.add_argument("--conditions", nargs="*")
    parser.add_argument("--results", type=Path, help="another file for the results")
    parser.add_argument("--speed", action="store_true", help="only how fast, and how much memory")
    parser.add_argument("--hours", type=float, default=0.0, help="of sound, for peak memory")
    given = parser.parse_args()
    if given.speed:
        import separation_speed

        print(json.dumps(separation_speed.measure(given.hours)))
        return
    if given.quick:
        given.seeds = 1
    with tempfile.TemporaryDirectory() as folder:
        scenes = given.audio
        if not (scenes / "conditions.json").exists():
            scenes = Path(folder)
            write(given.audio, scenes, minutes=2 if given.quick else 40)
        runs = measure(given, scenes)
    conditions_of_run = {
        "jobs": given.jobs, "minutes": given.minutes, "device": given.device, "machine": facts()
    }  # fmt: skip
    runs = measured = [each | conditions_of_run for each in runs]
    outputs = Outputs.quick() if given.quick else replace(Outputs.kept(), results=RESULTS.parent)
    if given.results is not None:
        outputs = replace(outputs, results=given.results.parent)
    kept = outputs.results / "separation.json"
    if kept.exists() and not given.quick:
        before = json.loads(kept.read_text())["runs"]
        new = {tuple(each[name] for name in KEY) for each in runs}
        runs = [e for e in before if tuple(e.get(name) for name in KEY) not in new] + runs
    results = {"runs": runs}
    print(outputs.write("separation", results, sorted({each["how"] for each in measured})))
    draw(results, outputs.figures)
    print(section(results))


if __name__ == "__main__":
    main()
