"""Which first dictionary to learn from, and what else was tried for a lower end at equal time.

    python experiments/first_dictionary.py [--audio FOLDER] [--quick] [--seeds N]

Variants run in turn for every seed, on one thread, in processor seconds that include drawing the
first dictionary; scored as in the race. Writes experiments/results/first_dictionary.json, and the
table in docs/algorithm.md from it; with --quick, the former into out/quick.
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

PAGE = HERE.parent / "docs" / "algorithm.md"
BEGIN, END = "<!-- first-dictionary: begin -->", "<!-- first-dictionary: end -->"
BEFORE, DEFAULT = "frames, k-means++", "auto: the default"
VARIANTS: dict[str, dict[str, Any]] = {
    BEFORE: {"init": "k-means++"},
    "random frames": {"init": "random"},
    "bins, parts": {"init": "parts"},
    DEFAULT: {},
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
    sets: tuple[tuple[str, str, int], ...] = (  # size, kind, passes
        ("small", "music", 16), ("small", "speech", 16),
        ("medium", "music", 4), ("medium", "speech", 4),
        ("large", "music", 1), ("large", "speech", 1),
    )  # fmt: skip
    components: tuple[int, ...] = (16, 64)
    n_seeds: int = 5


QUICK = Settings((("small", "music", 2),), (16,), 1)


def measure(
    sets: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]], settings: Settings
) -> Iterator[dict[str, Any]]:
    """One run after the other: how it ends, and the seconds it took."""
    for size, kind, n_passes in settings.sets:
        train, held_out = sets[size, kind]
        variants = VARIANTS | (STEPS if (size, kind) == ("large", "music") else {})
        for n_components in settings.components:
            for seed in range(settings.n_seeds):
                for name, chosen in variants.items():
                    model = ondes.OnlineNMF(
                        n_components, n_passes=n_passes, random_state=seed, n_jobs=1, **chosen
                    )
                    began = time.process_time()
                    model.fit(train)
                    seconds = time.process_time() - began
                    yield {
                        "set": f"{size} {kind}", "n_components": n_components, "seed": seed,
                        "passes": n_passes, "variant": name, "seconds": round(seconds, 4),
                        "divergence": race.held_out_divergence(model.components_, held_out),
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
    settings = QUICK if options.quick else Settings()
    if options.seeds:
        settings = replace(settings, n_seeds=options.seeds)
    outputs = Outputs.quick() if options.quick else Outputs.kept()
    sizes = {"small", "medium"} | {size for size, _, _ in settings.sets}
    sets = race.frame_sets(Recordings(options.audio), race.Settings(sizes=tuple(sorted(sizes))))
    runs = []
    for run in measure(sets, settings):
        print(json.dumps(run), flush=True)
        runs.append(run)
    results = {"settings": asdict(settings), "machine": facts(), "runs": runs}
    outputs.write("first_dictionary", results)
    if not options.quick:
        write_table(results)


def write_table(results: dict[str, Any]) -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
