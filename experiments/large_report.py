"""What large.py writes beside its JSON: the figure, and the section of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from comparison import (
    NEAR,
    Large,
    Spread,
    amount,
    best_seed,
    fallen,
    plain,
    sooner,
)
from curves import Run
from outputs import conditions
from pictures import Line, default_line, draw_curves, shaded_lines


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    compared = Large(results)
    lines = shaded_lines(
        [(f"batch, {amount(compared, size)}", runs) for size, runs in compared.batches.items()]
    )
    for (beta, r), style in zip(compared.settings_of_online, ("-", ":"), strict=False):
        look = {"color": "black", "linewidth": 2.0, "linestyle": style}
        lines.append(Line(f"β = {beta:,}, r = {r:g}", compared.online(beta, r), look))
    lines.append(default_line(compared.default))
    every = [run for line in lines for run in line.runs]
    return [draw_curves(finding(compared), lines, every, folder / "large.svg", results)]


def finding(compared: Large) -> str:
    size = compared.best_batch
    beta, r = compared.settings_of_online[0]
    return (
        f"{compared.minutes} minutes of music, against batch on {amount(compared, size)}, its "
        f"best: the default {sooner(compared.times_faster(compared.default, size))}; "
        f"the paper's online algorithm, β = {beta:,}, r = {r:g}, "
        f"{sooner(compared.times_faster(compared.online(beta, r), size))}"
    )


def section(results: dict[str, Any]) -> str:
    compared = Large(results)
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
    n_others = results["n_other_tracks"]
    others = f"{n_others} other tracks" if n_others else "every fifth second"
    sizes = " | ".join(amount(compared, size) for size in compared.batches)
    return f"""## {compared.minutes} minutes

{results["n_train"]:,} frames of {results["n_tracks"]} tracks in random order to learn from; \
{results["n_held_out"]:,} random frames of {others} are held out. \
Restarts are fresh, with 100 steps, so no activations are stored. Frames come in buffers of \
{settings["buffer"]:,} and are permuted within each. Batch keeps its activations and learns from a \
subset; the whole set fits into memory today, so batch on all frames is included. \
{conditions(settings, results["machine"])}

![Held-out divergence against seconds of learning](../figures/large.svg)

*Lower and further left is better.* {finding(compared)}.

| held-out divergence per bin after {settings["seconds"]:g} s | median | lowest to highest | best \
seed | fell in the last half | passes | × sooner than batch on: {sizes} |
|---|---|---|---|---|---|{"---|" * len(compared.batches)}
{table}

“Sooner” compares the times to batch's level, which is {NEAR - 1:.0%} above the lowest value that \
the median of batch reaches.
"""


def _row(compared: Large, name: str, runs: Sequence[Run]) -> str:
    ends = [run.end for run in runs]
    best = best_seed(runs)
    passes = np.median([run.visited[-1] / run.n_frames for run in runs])
    factors = [compared.times_faster(runs, size) for size in compared.batches]
    return (
        f"| {name} | {Spread.of(runs).end:.3f} | {min(ends):.3f} to {max(ends):.3f} "
        f"| {best.end:.3f} (seed {best.seed}) | {fallen(runs)} | {plain(passes)} | "
        + " | ".join("never" if factor == 0 else plain(factor) for factor in factors)
        + " |"
    )
