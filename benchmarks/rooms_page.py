"""The table and the picture of `rooms.py` for the documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "rooms.svg"
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


def picture(found: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [
        name
        for name in found["cells"]
        if name.endswith(" s") and name.startswith(("speech and", "unseen"))
    ]
    methods = [m for m in PICTURED if all(m in found["cells"][n]["methods"] for n in names)]
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    width = 0.8 / len(methods)
    colours = ["#0b6e99", "#9bbccb", "#c9c9c9", "#a9a9a9", "#898989"]
    for number, method in enumerate(methods):
        rows = [found["cells"][name]["methods"][method] for name in names]
        middle = np.array([row["median"] for row in rows])
        spread = np.abs(np.array([row["quartiles"] for row in rows]).T - middle)
        at = np.arange(len(names)) + (number - (len(methods) - 1) / 2) * width
        label = LABELS[method].replace("`", "")
        axes.bar(at, middle, width, yerr=spread, color=colours[number], label=label, ecolor="#444")
    labels = [name.replace(", ", ",\n").replace(" and ", "\nand ") for name in names]
    axes.set_xticks(range(len(names)), labels, fontsize=8)
    axes.axhline(0, color="#444", linewidth=0.8)
    axes.set_ylabel("SI-SDR improvement (dB)")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path)
