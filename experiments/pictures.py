"""The figures: curves of held-out divergence, and maps over the grid of (β, r).

Each has one message. Lines are named at their ends, where no legend can cover them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import matplotlib as mpl
import numpy as np
from comparison import Grid, Spread
from curves import FIRST_MARK_S, Run
from figures import ACCENT, DASHES
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

ROOM = 0.25  # above the start
NAME_APART = 0.062  # of the axis, between the names of two lines
SHADES = mpl.colormaps["viridis"]
SECONDS = "seconds of learning"
DIVERGENCE = "held-out divergence per bin"
SAYING = "brighter is better"


@dataclass(frozen=True)
class Line:
    label: str
    runs: Sequence[Run]
    style: dict[str, Any]


def batch_line(runs: Sequence[Run], label: str = "batch") -> Line:
    return Line(label, runs, {"color": "black", "linestyle": "--", "linewidth": 1.8})


def default_line(runs: Sequence[Run]) -> Line:
    return Line("the default", runs, {"color": ACCENT, "linewidth": 2.4})


def shaded_lines(labelled: Sequence[tuple[str, Sequence[Run]]], **style: Any) -> list[Line]:
    """One shade per line, from dark to light, for series that have an order."""
    shades = SHADES(np.linspace(0, 0.65, max(len(labelled), 2)))
    return [
        Line(label, runs, {"color": tuple(shade), "linewidth": 1.5, "linestyle": dashes} | style)
        for (label, runs), shade, dashes in zip(labelled, shades, DASHES, strict=False)
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


def _drawable(values: np.ndarray) -> np.ndarray:
    return np.minimum(values, 1e6)  # far above every axis: the line leaves through the top


def draw_curves(
    title: str, lines: Sequence[Line], range_of: Sequence[Run], path: Path, results: dict[str, Any]
) -> Path:
    """The median of each line's seeds, with their range."""
    figure = figures.new(4.3)
    axes = figure.add_subplot()
    draw_median(axes, lines)
    lowest = min(float(run.curve.min()) for run in range_of)
    start = max(float(run.curve[0]) for run in range_of)
    axes.set_xscale("log")
    axes.set_xlim(FIRST_MARK_S, max(run.seconds[-1] for line in lines for run in line.runs))
    axes.set_ylim(lowest - 0.06 * (start - lowest), start + ROOM * (start - lowest))
    axes.grid(alpha=0.25)
    axes.set_xlabel(SECONDS)
    axes.set_ylabel(DIVERGENCE)
    _name_lines(axes, lines)
    figures.title(figure, title)
    return figures.save(figure, path, results)


def _name_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """The name of each line at its right end, those that end close to each other moved apart."""
    low, high = axes.get_ylim()
    ends = [np.clip((Spread.of(line.runs).end - low) / (high - low), 0, 1) for line in lines]
    order = np.argsort(ends)
    places = np.array(ends)[order]
    for upper in range(1, len(places)):
        places[upper] = max(places[upper], places[upper - 1] + NAME_APART)
    places -= max(0.0, places[-1] - 1)
    for which, place in zip(order, places, strict=True):
        line = lines[which]
        axes.annotate(
            line.label, (1, ends[which]), (1.06, place), xycoords="axes fraction",
            color=line.style["color"], fontsize=9, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.style["color"], "linewidth": 0.7,
                        "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )  # fmt: skip


def draw_ends(grid: Grid, title: str, path: Path) -> Path:
    """Where every (β, r) ends; unstable ones are framed."""
    ends = np.array([[grid.end(beta, r) for beta in grid.betas] for r in grid.rs])
    batch, default = Spread.of(grid.batch).end, Spread.of(grid.default).end
    shown = [[_short(value) for value in row] for row in ends]
    lowest = min(float(ends.min()), batch)
    seconds = grid.results["settings"]["seconds"]
    below = f"{DIVERGENCE} after {seconds:g} s; batch {batch:.3f}, the default {default:.3f}"
    clipped = np.minimum(ends, 2 * lowest)
    return _draw_map(grid, clipped, shown, "cividis_r", (title, below), path, frames_unstable=True)


def draw_sooner(grid: Grid, title: str, path: Path) -> Path:
    """How many times sooner than batch every (β, r) is at batch's level."""
    faster = np.array(
        [[grid.times_faster(grid.cell(beta, r)) for beta in grid.betas] for r in grid.rs]
    )
    shown = [["never" if value == 0 else _times(value) for value in row] for row in faster]
    below = f"batch 1 ×, the default {_times(grid.times_faster(grid.default))}"
    clipped = np.log10(np.clip(faster, 0.1, 10))
    return _draw_map(grid, clipped, shown, "cividis", (title, below), path)


def _draw_map(
    grid: Grid,
    values: np.ndarray,
    shown: Sequence[Sequence[str]],
    colours: str,
    titles: tuple[str, str],
    path: Path,
    *,
    frames_unstable: bool = False,
) -> Path:
    figure = figures.new(4.3)
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap=colours, aspect="auto")
    for row, r in enumerate(grid.rs):
        for column, beta in enumerate(grid.betas):
            shade = image.cmap(image.norm(values[row, column]))
            ink = "black" if sum(shade[:3]) > 1.4 else "white"
            framed = frames_unstable and grid.is_unstable(beta, r)
            text = shown[row][column] + ("\nunstable" if framed else "")
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=9)
            if framed:
                corner = (column - 0.47, row - 0.47)
                axes.add_patch(
                    Rectangle(corner, 0.94, 0.94, fill=False, color=ACCENT, linewidth=2.5)
                )
    axes.set_xticks(range(len(grid.betas)), [grid.beta_name(beta) for beta in grid.betas])
    axes.set_yticks(range(len(grid.rs)), [f"{r:g}" for r in grid.rs])
    axes.set_xlabel("β, frames per update")
    axes.set_ylabel("r, left of the past after a pass")
    axes.spines[:].set_visible(False)
    title, below = titles
    axes.set_title(f"{below}\n{SAYING}", fontsize=9, loc="left")
    figures.title(figure, title)
    return figures.save(figure, path, grid.results)


def _short(value: float) -> str:
    return "no number" if not np.isfinite(value) else f"{value:.3f}" if value < 1e4 else "> 10⁴"


def _times(value: float) -> str:
    return "never" if value == 0 else f"{value:.2g} ×"
