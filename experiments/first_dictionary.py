"""Which first dictionary to learn from, and what else was tried for a lower end at equal time.

    python experiments/first_dictionary.py [--audio FOLDER] [--quick] [--seeds N]

Variants run in turn for every seed, on one thread, in processor seconds that include drawing the
first dictionary; scored as in the race, first for Itakura-Saito, then for Kullback-Leibler. Writes
experiments/results/first_dictionary.json and first_dictionary_kl.json; with --quick, both into
out/quick.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

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
# What moves the dictionary more, from the same frames; on the largest set only.
STEPS: dict[str, dict[str, Any]] = {
    "k-means++, 20 steps": {"init": "k-means++", "solver": ondes.Solver(20)},
    "k-means++, batch 64, p = 600": {
        "init": "k-means++", "batch_size": 64, "forgetting": ondes.GrowingMemory(600.0),
    },
    "k-means++, exponent 1": {"init": "k-means++", "dictionary_exponent": 1.0},
    "auto, batch 64, p = 600": {"batch_size": 64, "forgetting": ondes.GrowingMemory(600.0)},
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    beta_loss: str = race.IS
    sets: tuple[tuple[str, str, int], ...] = (  # size, kind, passes
        ("small", "music", 16), ("small", "speech", 16),
        ("medium", "music", 4), ("medium", "speech", 4),
        ("large", "music", 1), ("large", "speech", 1),
    )  # fmt: skip
    components: tuple[int, ...] = (16, 64)
    n_seeds: int = 5


KULLBACK_LEIBLER = Settings(
    race.KL, (("medium", "music", 10), ("medium", "speech", 10), ("large", "music", 1))
)
QUICK = tuple(Settings(loss, (("small", "music", 2),), (16,), 1) for loss in FILES)


def measure(
    sets: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]], settings: Settings
) -> Iterator[dict[str, Any]]:
    """One run after the other: how it ends, and the seconds it took."""
    for size, kind, n_passes in settings.sets:
        train, held_out = sets[size, kind]
        variants = VARIANTS | (STEPS if (size, kind) == ("large", "music") else {})
        if settings.beta_loss == race.KL:
            train = np.sqrt(train)
            variants = {name: VARIANTS[name] for name in (BEFORE, RANDOM)}
        for n_components in settings.components:
            for seed in range(settings.n_seeds):
                for name, chosen in variants.items():
                    model = ondes.OnlineNMF(
                        n_components, n_passes=n_passes, random_state=seed, n_jobs=1,
                        beta_loss=settings.beta_loss, **chosen,
                    )  # fmt: skip
                    began = time.process_time()
                    model.fit(train)
                    seconds = time.process_time() - began
                    yield {
                        "set": f"{size} {kind}", "n_components": n_components, "seed": seed,
                        "passes": n_passes, "variant": name, "seconds": round(seconds, 4),
                        "divergence": race.held_out_divergence(
                            model.components_, held_out, settings.beta_loss
                        ),
                    }  # fmt: skip


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
    options = parse_options(__doc__)
    outputs = Outputs.quick() if options.quick else Outputs.kept()
    both = QUICK if options.quick else (Settings(), KULLBACK_LEIBLER)
    sizes = {"small", "medium"} | {size for each in both for size, _, _ in each.sets}
    sets = race.frame_sets(Recordings(options.audio), race.Settings(sizes=tuple(sorted(sizes))))
    for settings in both:
        if options.seeds:
            settings = replace(settings, n_seeds=options.seeds)
        results = {"settings": asdict(settings), "machine": facts(), "runs": []}
        for run in measure(sets, settings):
            print(json.dumps(run), flush=True)
            results["runs"].append(run)
        outputs.write(FILES[settings.beta_loss], results)


if __name__ == "__main__":
    main()
