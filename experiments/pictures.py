"""The figures: curves of held-out divergence, and maps over the grid of (β, r)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from curves import FIRST_MARK_S, Run, Spread, best_seed
from grid import Grid
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

DPI = 100
N_COLOURS = 128
ROOM = 0.6  # above the start, for the legend
LOG_TOP = 30
SHADES = mpl.colormaps["viridis"]
DEFAULT_COLOUR, UNSTABLE_COLOUR = "#d55e00", "#d55e00"
SECONDS = "seconds of learning"
DIVERGENCE = "held-out divergence per bin"


@dataclass(frozen=True)
class Line:
    label: str
    runs: Sequence[Run]
    style: dict[str, Any]


def batch_line(runs: Sequence[Run], label: str = "batch") -> Line:
    return Line(label, runs, {"color": "black", "linestyle": "--", "linewidth": 1.8})


def default_line(runs: Sequence[Run]) -> Line:
    return Line("the default", runs, {"color": DEFAULT_COLOUR, "linewidth": 2.4})


def shaded_lines(labelled: Sequence[tuple[str, Sequence[Run]]], **style: Any) -> list[Line]:
    """One shade per line, from dark to light, for series that have an order."""
    shades = SHADES(np.linspace(0, 0.9, max(len(labelled), 2)))
    return [
        Line(label, runs, {"color": tuple(shade), "linewidth": 1.4} | style)
        for (label, runs), shade in zip(labelled, shades, strict=False)
    ]


def draw_median(axes: Axes, lines: Iterable[Line]) -> None:
    """The median over seeds, and a band from the lowest to the highest."""
    for line in lines:
        spread = Spread.of(line.runs)
        axes.plot(spread.times, _drawable(spread.median), label=line.label, **line.style)
        axes.fill_between(
            spread.times,
            _drawable(spread.low),
            _drawable(spread.high),
            color=line.style["color"],
            alpha=0.1,
            linewidth=0,
        )


def draw_best(axes: Axes, lines: Iterable[Line]) -> None:
    for line in lines:
        best = Spread.of([best_seed(line.runs)])
        axes.plot(best.times, _drawable(best.median), label=line.label, **line.style)


def _drawable(values: np.ndarray) -> np.ndarray:
    return np.minimum(values, 1e6)  # far above every axis: the line leaves through the top


@dataclass(frozen=True)
class Column:
    """One comparison; `log` makes room for curves that diverge."""

    name: str
    lines: Sequence[Line]
    log: bool = False


def draw_curves(title: str, columns: Sequence[Column], range_of: Sequence[Run], path: Path) -> Path:
    """One column per comparison; above the median with its range, below the best seed."""
    alone = len(columns) == 1  # then side by side
    shape, size = ((1, 2), (11.5, 4.8)) if alone else ((2, len(columns)), (13, 7.4))
    figure = Figure(figsize=size, layout="constrained", dpi=DPI)
    every = figure.subplots(*shape, sharex=True, squeeze=False)
    for (above, below), column in zip(every if alone else every.T, columns, strict=True):
        n_seeds = len(column.lines[0].runs)
        draw_median(above, column.lines)
        draw_best(below, column.lines)
        above.set_title(f"{column.name}\nmedian and range, seeds: {n_seeds}", fontsize=10)
        below.set_title("the best seed alone, as the paper shows it", fontsize=10)
        above.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)
        for axes in (above, below):
            _set_axes(axes, column, range_of)
    for axes in every[-1]:
        axes.set_xlabel(SECONDS)
    for axes in every[:, 0]:
        axes.set_ylabel(DIVERGENCE)
    figure.suptitle(title, fontsize=12)
    return _save(figure, path)


def _set_axes(axes: Axes, column: Column, range_of: Sequence[Run]) -> None:
    lowest = min(float(run.curve.min()) for run in range_of)
    start = max(float(run.curve[0]) for run in range_of)
    axes.set_xscale("log")
    axes.set_xlim(left=FIRST_MARK_S)
    if column.log:
        axes.set_yscale("log")
        axes.set_ylim(0.9 * lowest, LOG_TOP)
    else:
        axes.set_ylim(lowest - 0.06 * (start - lowest), start + ROOM * (start - lowest))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_maps(grid: Grid, title: str, path: Path) -> Path:
    """Where every (β, r) ends, and how much sooner than batch it reaches batch's level."""
    figure = Figure(figsize=(11.5, 4.4), layout="constrained", dpi=DPI)
    left, right = figure.subplots(1, 2)
    ends = np.array([[grid.end(beta, r) for beta in grid.betas] for r in grid.rs])
    faster = np.array(
        [[grid.times_faster(grid.cell(beta, r)) for beta in grid.betas] for r in grid.rs]
    )
    batch, default = Spread.of(grid.batch).end, Spread.of(grid.default).end
    seconds = grid.results["settings"]["seconds"]
    shown = [[_short(value) for value in row] for row in ends]
    lowest = min(float(ends.min()), batch)
    _draw_map(left, grid, np.minimum(ends, 2 * lowest), shown, "cividis_r")
    left.set_title(
        f"{DIVERGENCE} after {seconds:g} s; brighter is better\n"
        f"batch {batch:.3f}, the default {default:.3f}",
        fontsize=10,
    )
    shown = [["never" if value == 0 else f"{value:.2g} ×" for value in row] for row in faster]
    _draw_map(right, grid, np.log10(np.clip(faster, 0.1, 10)), shown, "cividis")
    right.set_title(
        "how many times sooner than batch at batch's level; brighter is better\n"
        f"batch 1 ×, the default {_times(grid.times_faster(grid.default))}",
        fontsize=10,
    )
    figure.suptitle(title, fontsize=12)
    return _save(figure, path)


def _draw_map(
    axes: Axes, grid: Grid, values: np.ndarray, shown: Sequence[Sequence[str]], colours: str
) -> None:
    image = axes.imshow(values, cmap=colours, aspect="auto")
    for row, r in enumerate(grid.rs):
        for column, beta in enumerate(grid.betas):
            shade = image.cmap(image.norm(values[row, column]))
            ink = "black" if sum(shade[:3]) > 1.4 else "white"
            unstable = grid.is_unstable(beta, r)
            text = shown[row][column] + ("\nunstable" if unstable else "")
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8.5)
            if unstable:
                corner = (column - 0.47, row - 0.47)
                axes.add_patch(
                    Rectangle(corner, 0.94, 0.94, fill=False, color=UNSTABLE_COLOUR, linewidth=2.5)
                )
    axes.set_xticks(range(len(grid.betas)), [grid.beta_name(beta) for beta in grid.betas])
    axes.set_yticks(range(len(grid.rs)), [f"{r:g}" for r in grid.rs])
    axes.set_xlabel("β, frames a mini-batch")
    axes.set_ylabel("r, what is left of the past after a pass")
    axes.spines[:].set_visible(False)


def _short(value: float) -> str:
    return "no number" if not np.isfinite(value) else f"{value:.3f}" if value < 1e4 else "> 10⁴"


def _times(value: float) -> str:
    return "never" if value == 0 else f"{value:.2g} ×"


def _save(figure: Figure, path: Path) -> Path:
    """As a palette picture, which is a third of the size: these have few colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = io.BytesIO()
    figure.savefig(whole, format="png")
    picture = Image.open(whole).convert("RGB")
    picture.quantize(N_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path
