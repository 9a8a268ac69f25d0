"""The figures: curves of held-out divergence, and maps over the grid of (β, r).

Each is an SVG with one message. Lines are named at their ends, where no legend can cover them, and
differ in lightness and dashes, so that they can be told apart in grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from curves import FIRST_MARK_S, Run, Spread
from grid import Grid
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

SIZE = (7.2, 4.4)
ROOM = 0.25  # above the start
NAME_APART = 0.052  # of the axis, between the names of two lines
SHADES = mpl.colormaps["viridis"]
DASHES = ("-", (0, (6, 1.5)), (0, (3, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 3)))
DEFAULT_COLOUR, UNSTABLE_COLOUR = "#c44601", "#c44601"
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


def draw_curves(title: str, lines: Sequence[Line], range_of: Sequence[Run], path: Path) -> Path:
    """The median of each line's seeds, with their range."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    draw_median(axes, lines)
    lowest = min(float(run.curve.min()) for run in range_of)
    start = max(float(run.curve[0]) for run in range_of)
    axes.set_xscale("log")
    axes.set_xlim(FIRST_MARK_S, max(run.seconds[-1] for line in lines for run in line.runs))
    axes.set_ylim(lowest - 0.06 * (start - lowest), start + ROOM * (start - lowest))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(SECONDS)
    axes.set_ylabel(DIVERGENCE)
    _name_lines(axes, lines)
    figure.suptitle(_wrapped(title), fontsize=11)
    return _save(figure, path)


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


def draw_maps(grid: Grid, title: str, path: Path) -> Path:
    """Where every (β, r) ends, and how much sooner than batch it reaches batch's level."""
    figure = Figure(figsize=(7.2, 7.6), layout="constrained")
    left, right = figure.subplots(2, 1)
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
    figure.suptitle(_wrapped(title), fontsize=11)
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
    axes.set_xlabel("β, frames per update")
    axes.set_ylabel("r, what is left of the past after a pass")
    axes.spines[:].set_visible(False)


def _wrapped(title: str) -> str:
    return textwrap.fill(title, 86)


def _short(value: float) -> str:
    return "no number" if not np.isfinite(value) else f"{value:.3f}" if value < 1e4 else "> 10⁴"


def _times(value: float) -> str:
    return "never" if value == 0 else f"{value:.2g} ×"


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})
    return path
