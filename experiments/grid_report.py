"""What small.py and medium.py write: JSON, figures, and their section of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison import (
    NEAR,
    PAPER_BETA,
    PAPER_R,
    UNSTABLE_RISE,
    Grid,
    Spread,
    best_seed,
    fallen,
    level_of,
    plain,
    sooner,
)
from curves import Run
from grid import Settings, excerpt, run
from outputs import Outputs, changed, conditions, parse_options
from pictures import (
    batch_line,
    default_line,
    draw_curves,
    draw_ends,
    draw_sooner,
    shaded_lines,
)
from recordings import Recordings

HEADINGS = {"small": "Thirty seconds", "medium": "Four minutes"}


def main(settings: Settings, quick: Settings, description: str | None) -> None:
    options = parse_options(description, has_jobs=True)
    chosen, outputs = (quick, Outputs.quick()) if options.quick else (settings, Outputs.kept())
    chosen = changed(chosen, options)
    frames, about = excerpt(chosen, Recordings(options.audio))
    journal = outputs.journal(chosen.name, chosen, about)
    results = run(chosen, frames, options.jobs, journal, **about)
    print(outputs.write(chosen.name, results))
    for path in draw(results, outputs.figures):
        print(path)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    grid = Grid(results)
    by_beta = [(f"β = {grid.beta_name(beta)}", grid.cell(beta, PAPER_R)) for beta in grid.betas]
    lines = [*shaded_lines(by_beta), default_line(grid.default), batch_line(grid.batch)]
    shown = grid.batch + grid.default
    return [
        draw_curves(curves_finding(grid), lines, shown, folder / f"{grid.name}.svg", results),
        draw_ends(grid, stability(grid), folder / f"{grid.name}-map.svg"),
        draw_sooner(grid, sooner_cells(grid), folder / f"{grid.name}-sooner.svg"),
    ]


def curves_finding(grid: Grid) -> str:
    (beta, r), factor = fastest(grid)
    default = sooner(grid.times_faster(grid.default))
    paper = sooner(factor)
    seconds = grid.results["settings"]["end_s"] - grid.results["settings"]["start_s"]
    return (
        f"{seconds:g} s of music: the default {default}; "
        f"of the paper's algorithm the fastest, β = {grid.beta_name(beta)}, r = {r:g}, {paper}"
    )


def stability(grid: Grid) -> str:
    unstable = [cell for cell in grid.cells if grid.is_unstable(*cell)]
    if not unstable:
        return "The paper's algorithm is stable at every β and r"
    largest = max(r for _, r in unstable)
    stable = [r for r in grid.rs if r > largest]
    beyond = f"; from r = {min(stable):g} on it is stable at every β" if stable else ""
    return (
        f"The paper's algorithm is unstable at r {'=' if largest == 0 else '≤'} {largest:g} "
        f"with {len(unstable)} of {len(grid.betas)} values of β{beyond}"
    )


def sooner_cells(grid: Grid) -> str:
    """How many settings with β ≤ N/2 are ahead of batch."""
    factors = [grid.times_faster(grid.cell(*cell)) for cell in grid.online_cells]
    (beta, r), best = fastest(grid)
    return (
        f"Of {len(factors)} settings with β ≤ N/2, {sum(factor > 1 for factor in factors)} reach "
        f"batch's level before batch does; the fastest, β = {grid.beta_name(beta)}, r = {r:g}, "
        f"{sooner(best)}"
    )


def fastest(grid: Grid) -> tuple[tuple[int, float], float]:
    """The (β, r) with β ≤ N/2 that is first at batch's level, else the one that ends lowest."""
    chosen = max(
        grid.online_cells, key=lambda cell: (grid.times_faster(grid.cell(*cell)), -grid.end(*cell))
    )
    return chosen, grid.times_faster(grid.cell(*chosen))


def section(results: dict[str, Any]) -> str:
    grid = Grid(results)
    settings = results["settings"]
    start_s, end_s = (results.get(name, settings[name]) for name in ("start_s", "end_s"))
    (beta, r), _ = fastest(grid)
    rows: list[tuple[str, Sequence[Run]]] = [
        ("batch", grid.batch),
        (f"the paper's choice: β = {PAPER_BETA:,}, r = {PAPER_R}", grid.papers_choice),
        (f"the paper's fastest: β = {grid.beta_name(beta)}, r = {r:g}", grid.cell(beta, r)),
        ("the default", grid.default),
    ]
    table = "\n".join(_row(grid, name, runs) for name, runs in rows)
    return f"""## {HEADINGS[grid.name]}

`{results.get("recording", "weight_of_revenge")}`, mono, from {start_s:g} s to {end_s:g} s, of \
which every fifth second \
is held out: {results["n_train"]:,} frames to learn from, and {results["n_held_out"]:,} held out. \
The frames at the edges of these seconds are not used, because their windows overlap. Restarts are \
warm, with one step per visit, as in the paper. Batch and online start from the same random \
frames; the default chooses its own first dictionary. {conditions(settings, results["machine"])}

![Held-out divergence against seconds of learning](../figures/{grid.name}.svg)

*The median of the seeds and their range; of the paper's algorithm, r = {PAPER_R}. Lower and \
further left is better; a curve that leaves through the top has diverged.* \
{curves_finding(grid)}.

![Where each β and r ends](../figures/{grid.name}-map.svg)

*Each cell is one setting of the paper's algorithm, the median of its seeds. In framed cells, the \
divergence of some seed rises by more than {UNSTABLE_RISE:.0%} above its lowest value.* \
{stability(grid)}.

![How much sooner than batch each β and r is at batch's level](../figures/{grid.name}-sooner.svg)

{sooner_cells(grid)}.

| held-out divergence per bin after {settings["seconds"]:g} s | median | lowest to highest | best \
seed | fell in the last half | s to batch's level | × sooner |
|---|---|---|---|---|---|---|
{table}

Batch's level is {level_of(grid.batch):.3f}: {NEAR - 1:.0%} above the lowest value that its \
median reaches. β = N with r = 0 is batch itself, except that it permutes the frames in every \
cycle, which takes time.
"""


def _row(grid: Grid, name: str, runs: Sequence[Run]) -> str:
    spread = Spread.of(runs)
    reached = spread.seconds_to(level_of(grid.batch))
    factor = grid.times_faster(runs)
    ends = [run.end for run in runs]
    best = best_seed(runs)
    return (
        f"| {name} | {spread.end:.3f} | {min(ends):.3f} to {max(ends):.3f} "
        f"| {best.end:.3f} (seed {best.seed}) | {fallen(runs)} "
        f"| {'never' if reached is None else plain(reached)} "
        f"| {'' if factor == 0 else plain(factor)} |"
    )
