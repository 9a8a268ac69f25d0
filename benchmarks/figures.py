"""How figures look, and which results they show.

They are SVGs as wide as a column of text, with letters that can be read on a phone. Lines and bars
differ in lightness and dashes, not in hue alone, so that they can be told apart in grey.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 5.6  # inches
COLUMNS = 68  # characters of a title
DASHES = ("-", (0, (6, 1.5)), (0, (3, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 3)))
BLUES = ("#083d56", "#2f86b0", "#8fc1d9", "#cfe3ec")  # from dark to light
ACCENT = "#c44601"
mpl.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def new(height: float) -> Figure:
    """An empty figure of so many inches."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def title(figure: Figure, text: str) -> None:
    """The one thing that a figure says, above it."""
    figure.suptitle(textwrap.fill(text, COLUMNS), fontsize=10.5, x=0.01, ha="left")


def legend_above(axes: Axes, n_columns: int) -> None:
    """A legend outside the axes, where it crosses nothing."""
    axes.legend(
        frameon=False, ncols=n_columns, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
    )  # fmt: skip


def save(figure: Figure, path: Path, results: dict[str, Any]) -> Path:
    """Write an SVG that names the results it shows; a test compares them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None, "Description": content(results)})
    return path


def content(results: dict[str, Any]) -> str:
    """A digest of kept results, without what says when they were measured."""
    figures = {key: value for key, value in results.items() if key != "measured"}
    text = json.dumps(figures, sort_keys=True)
    return f"results {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def shown(path: Path) -> str:
    """The digest of the results that a figure shows."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(), re.DOTALL)
    return found[1].strip() if found else ""
