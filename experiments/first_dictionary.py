"""Which first dictionary to learn from.

    python experiments/first_dictionary.py [--audio FOLDER] [--quick] [--seeds N] [--jobs N]

Every start with every seed, on one thread, in processor seconds that include drawing the
first dictionary; scored as in the race, first for Itakura-Saito, then for Kullback-Leibler. Writes
experiments/results/first_dictionary.json and first_dictionary_kl.json; with --quick, both into
out/quick.
"""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

import race  # noqa: E402
from outputs import Outputs, facts, parse_options  # noqa: E402
from recordings import Recordings  # noqa: E402

import ondes  # noqa: E402

FILES = {race.IS: "first_dictionary", race.KL: "first_dictionary_kl"}
BEFORE, RANDOM = "frames, k-means++", "random frames"
VARIANTS: dict[str, dict[str, Any]] = {
    BEFORE: {"init": "k-means++"},
    RANDOM: {"init": "random"},
    "bins, parts: the default": {},
}


@dataclass(frozen=True)
class Settings:
    beta_loss: str = race.IS
    sets: tuple[tuple[str, str, int], ...] = (("large", "music", 1),)  # size, kind, passes
    components: tuple[int, ...] = (16, 64)
    n_seeds: int = 5


KULLBACK_LEIBLER = Settings(
    race.KL, (("medium", "music", 10), ("medium", "speech", 10), ("large", "music", 1))
)
QUICK = tuple(Settings(loss, (("small", "music", 2),), (16,), 1) for loss in FILES)


Frames = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
_sets: Frames = {}  # for the processes that are forked


def measure(sets: Frames, settings: Settings, n_jobs: int = 1) -> list[dict[str, Any]]:
    """How each run ends, and the seconds it took; `n_jobs` at a time."""
    _sets.update(sets)
    variants = VARIANTS if settings.beta_loss == race.IS else (BEFORE, RANDOM)
    runs = itertools.product(settings.sets, settings.components, range(settings.n_seeds), variants)
    one = functools.partial(_run, settings.beta_loss)
    if n_jobs == 1:
        return list(map(one, runs))
    with ProcessPoolExecutor(n_jobs, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(one, runs))


def _run(beta_loss: str, each: tuple[tuple[str, str, int], int, int, str]) -> dict[str, Any]:
    (size, kind, n_passes), n_components, seed, name = each
    train, held_out = _sets[size, kind]
    if beta_loss == race.KL:
        train = np.sqrt(train)
    model = ondes.OnlineNMF(
        n_components, n_passes=n_passes, random_state=seed, n_jobs=1, beta_loss=beta_loss,
        **VARIANTS[name],
    )  # fmt: skip
    with threadpool_limits(1):
        began = time.process_time()
        model.fit(train)
        seconds = time.process_time() - began
    found = {
        "set": f"{size} {kind}", "n_components": n_components, "seed": seed, "passes": n_passes,
        "variant": name, "seconds": round(seconds, 4),
        "divergence": race.held_out_divergence(model.components_, held_out, beta_loss),
    }  # fmt: skip
    print(json.dumps(found), flush=True)
    return found


def table(results: dict[str, Any]) -> str:
    """A row per variant, a column per set and K: mean divergence, spread of seeds, seconds."""
    runs = results["runs"]
    columns = list(dict.fromkeys((run["set"], run["n_components"]) for run in runs))
    heading = [
        f"{race.race_page.SIZES[name.split()[0]]} of {name.split()[1]}, K = {k}"
        for name, k in columns
    ]
    lines = ["| start | " + " | ".join(heading) + " |", "|---" * (len(columns) + 1) + "|"]
    for variant in dict.fromkeys(run["variant"] for run in runs):
        cells = [_cell(runs, variant, *column) for column in columns]
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    n_seeds = len({run["seed"] for run in runs})
    lines += ["", f"Held-out divergence per bin: mean of {n_seeds} seeds ± half their range in "
              "percent, and processor seconds as a multiple of the first row's."]  # fmt: skip
    return "\n".join(lines)


def _cell(runs: list[dict[str, Any]], variant: str, name: str, n_components: int) -> str:
    def of(wanted: str, what: str) -> np.ndarray:
        return np.array([
            run[what] for run in runs
            if (run["variant"], run["set"], run["n_components"]) == (wanted, name, n_components)
        ])  # fmt: skip

    ends = of(variant, "divergence")
    if not len(ends):
        return ""
    slower = np.median(of(variant, "seconds") / of(BEFORE, "seconds"))
    return f"{ends.mean():.3f} ± {50 * np.ptp(ends) / ends.mean():.1f}%, {slower:.2f} ×"


def main() -> None:
    options = parse_options(__doc__, has_jobs=True)
    outputs = Outputs.quick() if options.quick else Outputs.kept()
    both = QUICK if options.quick else (Settings(), KULLBACK_LEIBLER)
    sizes = {"small", "medium"} | {size for each in both for size, _, _ in each.sets}
    sets = race.frame_sets(Recordings(options.audio), race.Settings(sizes=tuple(sorted(sizes))))
    for settings in both:
        if options.seeds:
            settings = replace(settings, n_seeds=options.seeds)
        runs = measure(sets, settings, options.jobs)
        results = {"settings": asdict(settings), "machine": facts(options.jobs), "runs": runs}
        outputs.write(FILES[settings.beta_loss], results)


if __name__ == "__main__":
    main()
