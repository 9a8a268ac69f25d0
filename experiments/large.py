"""The paper's third comparison: an hour and a half of music, online on all of it, batch on subsets.

    python experiments/large.py [--audio FOLDER] [--quick] [--seeds N] [--jobs N]

Fresh restarts with 100 steps, nothing stored. Writes experiments/results/large.json and
docs/figures/large.png.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from curves import (
    ENDLESS,
    NEAR,
    Run,
    Spread,
    best_seed,
    first_dictionary,
    plain,
    record_all,
    sooner,
    times_faster,
)
from grid import setting_name
from outputs import Outputs, conditions, facts, parse_options
from pictures import Line, default_line, draw_curves, shaded_lines
from recordings import Frontend, Recordings, shuffled_frames

import ondes
from ondes.signal.recordings import probe


@dataclass(frozen=True)
class Settings:
    n_components: int = 32
    online: tuple[tuple[int, float], ...] = ((1000, 0.7), (1000, 0.0))  # (β, r), the paper's first
    subsets: tuple[int | None, ...] = (1_000, 10_000, 100_000, None)  # None: all, where it fits
    n_held_out: int = 2_000
    seconds: float = 60.0  # of learning, for each run
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    buffer: int = 10_000  # frames given to `fit` at a time
    frontend: Frontend = field(default_factory=Frontend)


SETTINGS = Settings()
QUICK = replace(SETTINGS, subsets=(1_000, 10_000), seconds=4.0, seeds=(0,), n_held_out=1_000)
NAME = "large"


def run(
    settings: Settings, train: np.ndarray, held_out: np.ndarray, n_jobs: int = 1, **about: Any
) -> dict[str, Any]:
    """All runs on these frames, which are in random order."""
    together = [
        (model, frames, names | {"seed": seed})
        for seed in settings.seeds
        for model, frames, names in contestants(settings, train, seed)
    ]
    runs = record_all(together, held_out, settings.seconds, n_jobs)
    return {
        "settings": asdict(settings),
        "machine": facts(n_jobs) | {"backend": runs[-1].backend},
        **about,
        "n_train": len(train),
        "n_held_out": len(held_out),
        "n_bins": train.shape[1],
        "runs": [asdict(each) for each in runs],
    }


def contestants(
    settings: Settings, train: np.ndarray, seed: int
) -> Iterator[tuple[ondes.OnlineNMF, Any, dict[str, Any]]]:
    """The online algorithms read one buffer after the other; batch has its subset in one array."""
    buffers = np.array_split(train, -(-len(train) // settings.buffer))
    common: dict[str, Any] = {"random_state": seed, "n_jobs": 1, "n_passes": ENDLESS}
    shared = common | {"init": first_dictionary(buffers[0], settings.n_components, seed)}
    names: dict[str, Any] = {"n_frames": len(train)}
    model = ondes.OnlineNMF(settings.n_components, **common)
    yield model, buffers, names | {"algorithm": "default"}
    for beta, r in settings.online:
        forgetting = ondes.PerPass(r, n_frames=len(train))
        model = ondes.OnlineNMF.paper(
            settings.n_components, batch_size=beta, forgetting=forgetting, **shared
        )
        yield model, buffers, names | {"algorithm": "online", "beta": beta, "r": r}
    for size in settings.subsets:
        subset = train[:size]
        model = ondes.OnlineNMF.batch(settings.n_components, **shared)
        yield model, subset, {"algorithm": "batch", "n_frames": len(subset)}


class Comparison:
    """The results, as the figure and the claims need them."""

    name = NAME

    def __init__(self, results: dict[str, Any]) -> None:
        self.n_train: int = results["n_train"]
        self.minutes: int = results["minutes"]
        self.settings_of_online: list[tuple[int, float]] = [
            (beta, r) for beta, r in results["settings"]["online"]
        ]
        self._runs = [Run(**stored) for stored in results["runs"]]

    @property
    def ends(self) -> dict[str, float]:
        """Where batch on each subset and the paper's settings end, by name."""
        batches = {f"batch on {amount(self, n)}": runs for n, runs in self.batches.items()}
        online = {setting_name(*each): self.online(*each) for each in self.settings_of_online}
        return {name: Spread.of(runs).end for name, runs in (batches | online).items()}

    @property
    def default(self) -> list[Run]:
        return [run for run in self._runs if run.algorithm == "default"]

    def online(self, beta: int, r: float) -> list[Run]:
        return [run for run in self._runs if (run.beta, run.r) == (beta, r)]

    @property
    def batches(self) -> dict[int, list[Run]]:
        """Runs of batch by the size of their subset, the smallest first."""
        found = [run for run in self._runs if run.algorithm == "batch"]
        sizes = sorted({run.n_frames for run in found})
        return {size: [run for run in found if run.n_frames == size] for size in sizes}

    @property
    def best_batch(self) -> int:
        """The size of the subset on which batch ends lowest."""
        ends = {size: Spread.of(runs).end for size, runs in self.batches.items()}
        return min(ends, key=lambda size: ends[size])

    def times_faster(self, runs: Sequence[Run], n_frames: int) -> float:
        """How much sooner `runs` reach the level of batch on a subset of `n_frames`."""
        return times_faster(self.batches[n_frames], runs)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    compared = Comparison(results)
    lines = shaded_lines(
        [(f"batch on {amount(compared, size)}", runs) for size, runs in compared.batches.items()]
    )
    for (beta, r), style in zip(compared.settings_of_online, ("-", ":"), strict=False):
        look = {"color": "black", "linewidth": 2.0, "linestyle": style}
        lines.append(Line(f"the paper's β = {beta:,}, r = {r:g}", compared.online(beta, r), look))
    lines.append(default_line(compared.default))
    every = [run for line in lines for run in line.runs]
    return [draw_curves(finding(compared), lines, every, folder / f"{NAME}.svg")]


def finding(compared: Comparison) -> str:
    size = compared.best_batch
    beta, r = compared.settings_of_online[0]
    return (
        f"{compared.minutes} minutes of music, against batch on {amount(compared, size)}, its "
        f"best: the default {sooner(compared.times_faster(compared.default, size))};\n"
        f"the paper's online algorithm, β = {beta:,}, r = {r:g}, "
        f"{sooner(compared.times_faster(compared.online(beta, r), size))}"
    )


def amount(compared: Comparison, size: int) -> str:
    return f"all {size:,} frames" if size == compared.n_train else f"{size:,} frames"


def section(results: dict[str, Any]) -> str:
    compared = Comparison(results)
    settings = results["settings"]
    online = [
        (f"the paper's online: β = {beta:,}, r = {r:g}", compared.online(beta, r))
        for beta, r in compared.settings_of_online
    ]
    batches = [
        (f"batch on {amount(compared, size)}", runs) for size, runs in compared.batches.items()
    ]
    contestants = [*batches, *online, ("the default", compared.default)]
    table = "\n".join(_row(compared, name, runs) for name, runs in contestants)
    sizes = " | ".join(amount(compared, size) for size in compared.batches)
    return f"""## {compared.minutes} minutes

{results["n_train"]:,} frames of {results["n_tracks"]} tracks in random order to learn from; \
{results["n_held_out"]:,} random frames of {results["n_other_tracks"]} other tracks are held out. \
Restarts are fresh, with 100 steps, so no activations are stored. Frames come in buffers of \
{settings["buffer"]:,} and are permuted within each. Batch keeps its activations and learns from a \
subset; the whole set fits into memory today, so batch on all frames is included. \
{conditions(settings, results["machine"])}

![Held-out divergence against seconds of learning](../figures/{NAME}.svg)

*Lower and further left is better.* {finding(compared).replace(chr(10), " ")}.

| held-out divergence per bin after {settings["seconds"]:g} s | median | lowest to highest | best \
seed | passes | × sooner than batch on: {sizes} |
|---|---|---|---|---|{"---|" * len(compared.batches)}
{table}

“Sooner” compares the times to batch's level, which is {NEAR - 1:.0%} above the lowest value that \
the median of batch reaches.
"""


def _row(compared: Comparison, name: str, runs: Sequence[Run]) -> str:
    ends = [run.end for run in runs]
    best = best_seed(runs)
    passes = np.median([run.visited[-1] / run.n_frames for run in runs])
    factors = [compared.times_faster(runs, size) for size in compared.batches]
    return (
        f"| {name} | {Spread.of(runs).end:.3f} | {min(ends):.3f} to {max(ends):.3f} "
        f"| {best.end:.3f} (seed {best.seed}) | {plain(passes)} | "
        + " | ".join("never" if factor == 0 else plain(factor) for factor in factors)
        + " |"
    )


def main() -> None:
    options = parse_options(__doc__, has_jobs=True)
    settings, outputs = (QUICK, Outputs.quick()) if options.quick else (SETTINGS, Outputs.kept())
    if options.seeds:
        settings = replace(settings, seeds=tuple(range(options.seeds)))
    recordings = Recordings(options.audio)
    tracks, other_tracks = (recordings.music(held_out) for held_out in (False, True))
    train = shuffled_frames(tracks, settings.frontend)
    held_out = shuffled_frames(other_tracks, settings.frontend, settings.n_held_out)
    about = {
        "minutes": round(sum(probe(track).seconds or 0 for track in tracks) / 60),
        "n_tracks": len(tracks),
        "n_other_tracks": len(other_tracks),
    }
    results = run(settings, train, held_out, options.jobs, **about)
    print(outputs.write(NAME, results))
    for path in draw(results, outputs.figures):
        print(path)


if __name__ == "__main__":
    main()
