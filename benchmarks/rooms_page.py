"""The table and the picture of `rooms.py` for the documentation."""

from __future__ import annotations

from pathlib import Path

import figures
import numpy as np

PICTURE = "rooms.svg"
PICTURED = ("room", "mask", "auxiva", "ilrma", "fastmnmf2")
LABELS = {
    "room": "`--spatial room`", "stream": "the same, live", "pan": "`--spatial pan`",
    "mask": "`--spatial none`", "auxiva": "AuxIVA", "ilrma": "ILRMA", "fastmnmf2": "FastMNMF2",
    "trained": "room, trained separator",
}  # fmt: skip


def table(found: dict) -> str:
    """All cells as a Markdown table: medians, and quartiles in brackets."""
    columns = [m for m in LABELS if any(m in row["methods"] for row in found["cells"].values())]
    lines = [
        "| SI-SDR improvement in dB | " + " | ".join(LABELS[each] for each in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, row in found["cells"].items():
        texts = []
        for method in columns:
            value = row["methods"].get(method)
            low, high = value["quartiles"] if value else (0, 0)
            texts.append(f"{value['median']:.1f} ({low:.1f} to {high:.1f})" if value else "")
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    n_scenes = min(row["n_scenes"] for row in found["cells"].values())
    lines += [
        "",
        f"Medians and quartiles of {n_scenes} scenes each, mean over the sources, at the first "
        "microphone. The microphones are 8 cm apart. The sources have equal levels, are 1 to 1.6 m "
        "away and, unless stated, at least 40° apart. Times below one second are reverberation "
        "times; where none is given, it is 0.3 s. Live results are measured after the first ten "
        "seconds. For the blind methods, the best permutation of the outputs was chosen. Measured "
        "by `benchmarks/rooms.py`.",
    ]
    return "\n".join(lines)


def draw(found: dict, folder: Path) -> None:
    names = [
        name
        for name in found["cells"]
        if name.endswith(" s") and name.startswith(("speech and", "unseen"))
    ]
    methods = [m for m in PICTURED if all(m in found["cells"][n]["methods"] for n in names)]
    figure = figures.new(0.2 * len(names) * (len(methods) + 1) + 1.2)
    axes = figure.add_subplot()
    height = 0.8 / len(methods)
    shades = ("#083d56", "#c44601", "#2f86b0", "#8fc1d9", "#d5d5d5")
    for number, method in enumerate(methods):
        rows = [found["cells"][name]["methods"][method] for name in names]
        middle = np.array([row["median"] for row in rows])
        spread = np.abs(np.array([row["quartiles"] for row in rows]).T - middle)
        at = np.arange(len(names)) + (number - (len(methods) - 1) / 2) * height
        label = LABELS[method].replace("`", "")
        axes.barh(at, middle, height, xerr=spread, color=shades[number], label=label, ecolor="#444")
    labels = [name.replace(", ", ",\n").replace(" and ", "\nand ") for name in names]
    axes.set_yticks(range(len(names)), labels, fontsize=9)
    axes.invert_yaxis()
    axes.axvline(0, color="#444", linewidth=0.8)
    axes.set_xlabel("SI-SDR improvement (dB)")
    figures.legend_above(axes, 2)
    figures.save(figure, folder / PICTURE, found)
