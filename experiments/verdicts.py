"""The verdict on each claim of the paper, and its reason, from the numbers that were measured.

The docstring of each function is its rule, as the page prints it.
"""

from __future__ import annotations

import numpy as np
from comparison import (
    NEAR,
    PAPER_BETA,
    PAPER_R,
    Grid,
    Large,
    Spread,
    amount,
    fallen,
    plain,
    setting_name,
)
from curves import Run
from grid import IDENTITY_PASSES
from grid_report import fastest

VERDICTS = HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
CLOSE = 1.05  # within five per cent: competes
NOISE = 1.5  # times sooner: below that, timing may have decided
CLEARLY = 2  # times sooner
ORDERS = 100  # times: several orders of magnitude, at the least
ONE_ORDER = 10
EQUAL_PASSES = 5


def counted(n_holding: int, n_all: int) -> str:
    """In part where at least half do."""
    return HOLDS if n_holding == n_all else IN_PART if 2 * n_holding >= n_all else FAILS


# ---- thirty seconds and four minutes ----


def online_becomes_batch(grid: Grid) -> tuple[str, str]:
    """Holds if, with warm restarts of one step, dictionaries differ by less than 0.1%."""
    difference = grid.results["batch_identity"]
    verdict = HOLDS if difference < 1e-3 else FAILS
    return verdict, f"dictionaries differ by {difference:.0e} after {IDENTITY_PASSES} passes"


def smallest_beta_is_unstable(grid: Grid) -> tuple[str, str]:
    """Holds if β = 1 is unstable at every r < 1; in part: at half of them."""
    rs = [r for r in grid.rs if r < 1]
    unstable = [r for r in rs if grid.is_unstable(min(grid.betas), r)]
    return counted(len(unstable), len(rs)), f"β = 1 is unstable at {_list_r(unstable)}"


def large_beta_is_stable(*grids: Grid) -> tuple[str, str]:
    """Holds if for every r < 1 all β from some β ≤ N/2 on are stable; in part: for half."""
    needed = {}
    for grid in grids:
        for r in (r for r in grid.rs if r < 1):
            unstable = [beta for beta in grid.betas if grid.is_unstable(beta, r)]
            above = [beta for beta in grid.online_betas if beta > max(unstable, default=0)]
            needed[grid.name, r] = min(above, default=None)
    said = "; ".join(
        f"{name} set, r = {r:g}: "
        + ("no β ≤ N/2 is large enough" if beta is None else f"stable from β = {beta:,} on")
        for (name, r), beta in needed.items()
        if beta is None or beta > 1
    )
    cured = sum(beta is not None for beta in needed.values())
    return counted(cured, len(needed)), said or "stable at every β"


def high_r_is_stable(grid: Grid) -> tuple[str, str]:
    """Holds if all cells with r > 0.5 are stable; in part: half of them."""
    cells = [(beta, r) for beta, r in grid.cells if r > 0.5]
    stable = [cell for cell in cells if not grid.is_unstable(*cell)]
    return counted(len(stable), len(cells)), f"{len(stable)} of {len(cells)} cells are stable"


def no_forgetting_is_stable(*grids: Grid) -> tuple[str, str]:
    """Holds if all β are stable at r = 1; in part: half of them."""
    cells = [(grid, beta) for grid in grids for beta in grid.betas]
    n_stable = sum(not grid.is_unstable(beta, 1.0) for grid, beta in cells)
    return counted(n_stable, len(cells)), f"{n_stable} of {len(cells)} cells with r = 1 are stable"


def forgetting_is_crucial(grid: Grid) -> tuple[str, str]:
    """Holds if the best r < 1 ends within 5% of batch, and r = 1 does not; in part: lower."""
    batch = Spread.of(grid.batch).end
    keeping = min(grid.end(beta, 1.0) for beta in grid.betas)
    forgetting = min(grid.end(beta, r) for beta, r in grid.online_cells if r < 1)
    if forgetting <= CLOSE * batch < keeping:
        verdict = HOLDS
    else:
        verdict = IN_PART if forgetting < keeping else FAILS
    return verdict, (
        f"the best ends at {keeping:.3f} with r = 1, at {forgetting:.3f} with r < 1, and batch at "
        f"{batch:.3f}"
    )


def best_beta_lies_between(grid: Grid) -> tuple[str, str]:
    """Holds if at all r < 1 some 1 < β ≤ N/2 is 1.5 × sooner than 1 and N; in part: at half."""
    inner = [beta for beta in grid.online_betas if beta > min(grid.betas)]
    won = {}
    for r in (r for r in grid.rs if r < 1):
        level = grid.end(grid.n_train, r)

        def seconds(beta: int, r: float = r, level: float = level) -> float:
            reached = Spread.of(grid.cell(beta, r)).seconds_to(level)
            return np.inf if reached is None else reached

        best = min(inner, key=seconds)
        if NOISE * seconds(best) < min(seconds(min(grid.betas)), seconds(grid.n_train)):
            factor = seconds(grid.n_train) / seconds(best)
            won[r] = f"r = {r:g}: β = {best:,} is {plain(factor)} × sooner than β = N"
    said = "; ".join(won.values()) or "no 1 < β ≤ N/2 reaches the end of β = N clearly sooner"
    return counted(len(won), sum(r < 1 for r in grid.rs)), said


def small_beta_costs(grid: Grid) -> tuple[str, str]:
    """Holds if a pass with β = 1 takes 1.5 times one with β = N."""
    cells = {beta: grid.cell(beta, PAPER_R) for beta in grid.betas}
    cost = {beta: np.median([run.seconds_per_pass for run in runs]) for beta, runs in cells.items()}
    ratio = cost[min(grid.betas)] / cost[grid.n_train]
    listed = ", ".join(
        f"{plain(1e3 * seconds)} ms with β = {grid.beta_name(beta)}"
        for beta, seconds in cost.items()
    )
    return HOLDS if ratio > NOISE else FAILS, f"a pass takes {listed}"


def small_beta_uses_redundancy(grid: Grid) -> tuple[str, str]:
    """Holds if at all r < 1 some β ≤ N/2 is 2% below β = N after 5 passes; in part: at half."""

    def after(run: Run) -> float:
        there = np.flatnonzero(np.array(run.visited) >= EQUAL_PASSES * run.n_frames)
        return float(run.curve[there[0]]) if len(there) else np.inf

    rs = [r for r in grid.rs if r < 1]
    better, said = [], []
    for r in rs:
        betas = [*grid.online_betas, grid.n_train]
        reached = {beta: np.median([after(run) for run in grid.cell(beta, r)]) for beta in betas}
        best = min(reached, key=lambda beta: reached[beta])
        whole = reached[grid.n_train]
        if NEAR * reached[best] <= whole:
            better.append(r)
        said.append(
            f"r = {r:g}: {reached[best]:.3f} with β = {grid.beta_name(best)}, {whole:.3f} with N"
        )
    return counted(len(better), len(rs)), f"lowest after {EQUAL_PASSES} passes: {'; '.join(said)}"


def orders_of_magnitude(grid: Grid) -> tuple[str, str]:
    """Holds if half of the cells with β ≤ N/2 are 100 × sooner; in part: one is 10 ×."""
    cells = grid.online_cells
    factors = [grid.times_faster(grid.cell(*cell)) for cell in cells]
    (beta, r), best = fastest(grid)
    wide = sum(factor >= ORDERS for factor in factors) >= len(cells) / 2
    verdict = HOLDS if wide else IN_PART if best >= ONE_ORDER else FAILS
    default = grid.times_faster(grid.default)
    return verdict, (
        f"{sum(factor > NOISE for factor in factors)} of {len(cells)} cells are clearly sooner at "
        f"batch's level; the fastest, β = {grid.beta_name(beta)}, r = {r:g}: {times(best)}; "
        f"the default {times(default)}"
    )


def faster_on_short_signals(grid: Grid) -> tuple[str, str]:
    """Holds if the fastest cell with β ≤ N/2 is 2 × sooner at batch's level; in part: 1.5 ×."""
    (beta, r), best = fastest(grid)
    verdict = HOLDS if best >= CLEARLY else IN_PART if best > NOISE else FAILS
    return verdict, (
        f"the fastest, β = {grid.beta_name(beta)}, r = {r:g}: {times(best)}; "
        f"the default {times(grid.times_faster(grid.default))}"
    )


def competes_on_short_signals(grid: Grid) -> tuple[str, str]:
    """Holds if a cell with β ≤ N/2 needs at most 2 × batch's time; in part: ends within 5%."""
    batch = Spread.of(grid.batch).end
    inner = grid.online_cells
    close = [cell for cell in inner if grid.end(*cell) <= CLOSE * batch]
    (beta, r), best = fastest(grid)
    verdict = HOLDS if CLEARLY * best >= 1 else IN_PART if close else FAILS
    return verdict, (
        f"{len(close)} of {len(inner)} cells end within {CLOSE - 1:.0%} of batch in equal time; "
        f"at batch's level the fastest, β = {grid.beta_name(beta)}, r = {r:g}, is {times(best)} "
        "as fast"
    )


def the_papers_choice_satisfies(*sets: Grid | Large) -> tuple[str, str]:
    """Holds if it ends within 5% of the best of each set with N ≥ 2β; in part: of half of them."""
    online = [each for each in sets if each.n_train >= 2 * PAPER_BETA]
    good, said = 0, []
    for each in sets:
        ends = each.ends
        best = min(ends, key=lambda name: ends[name])
        chosen = ends[setting_name(PAPER_BETA, PAPER_R)]
        good += each in online and chosen <= CLOSE * ends[best]
        default = Spread.of(each.default).end
        falling = fallen(each.papers_choice)
        said.append(
            f"{each.name} set{'' if each in online else ', not counted'}: {chosen:.3f}, "
            f"{chosen / ends[best] - 1:.0%} above the best, "
            f"{ends[best]:.3f} ({best}); it fell by {falling} in the last half of the time; the "
            f"default {default:.3f}"
        )
    return counted(good, len(online)), ". ".join(said)


# ---- the large set ----


def more_accurate_in_a_fraction(large: Large) -> tuple[str, str]:
    """Holds if the better r ends below batch on each subset, 2 × sooner; in part: below one."""
    sooner, lower, said = 0, 0, []
    subsets = [size for size in large.batches if size < large.n_train]
    best = min(large.settings_of_online, key=lambda each: Spread.of(large.online(*each)).end)
    end = Spread.of(large.online(*best)).end
    for size in subsets:
        factor = large.times_faster(large.online(*best), size)
        batch = Spread.of(large.batches[size]).end
        lower += end < batch
        sooner += factor >= CLEARLY and end < batch
        said.append(f"{amount(large, size)} {batch:.3f} ({times(factor)})")
    verdict = HOLDS if sooner == len(subsets) else IN_PART if lower else FAILS
    ends = ", ".join(
        f"β = {beta:,}, r = {r:g} ends at {Spread.of(large.online(beta, r)).end:.3f}"
        for beta, r in large.settings_of_online
    )
    return verdict, (
        f"{ends}; batch on {', '.join(said)}; "
        f"the default ends at {Spread.of(large.default).end:.3f}"
    )


def orders_on_large(large: Large) -> tuple[str, str]:
    """Holds if the better r is 100 × sooner at the level of the best batch; in part: 10 ×."""
    contestants = {
        f"β = {beta:,}, r = {r:g}": large.online(beta, r) for beta, r in large.settings_of_online
    }
    best, said = {}, []
    for size in sorted({large.best_batch, max(large.batches)}):
        factors = {name: large.times_faster(runs, size) for name, runs in contestants.items()}
        best[size] = max(factors.values())
        factors["the default"] = large.times_faster(large.default, size)
        listed = ", ".join(f"{times(factor)} ({name})" for name, factor in factors.items())
        said.append(f"at the level of batch on {amount(large, size)}: {listed}")
    if best[large.best_batch] >= ORDERS:
        return HOLDS, "; ".join(said)
    return IN_PART if best[large.best_batch] >= ONE_ORDER else FAILS, "; ".join(said)


def constant_cost(large: Large) -> tuple[str, str]:
    """Holds if at all seeds a frame of the second half costs within 25% of one of the first."""
    costs = []
    for run in large.online(*large.settings_of_online[0]):
        seconds, visited = np.array(run.seconds), np.array(run.visited)
        middle = np.interp(visited[-1] / 2, visited, seconds)
        halves = middle - seconds[0], seconds[-1] - middle
        costs.append([2e6 * half / visited[-1] for half in halves])
    verdict = HOLDS if all(0.8 < late / early < 1.25 for early, late in costs) else FAILS
    early, late = np.median(costs, axis=0)
    return verdict, (
        f"{early:.0f} µs per frame in the first half of a run, {late:.0f} in the second (medians)"
    )


def times(factor: float) -> str:
    return "never" if factor == 0 else f"{plain(factor)} ×"


def _list_r(rs: list[float]) -> str:
    return "no r < 1" if not rs else "r = " + ", ".join(f"{r:g}" for r in rs)
