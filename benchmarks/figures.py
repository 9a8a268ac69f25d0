"""Write the README's figures from the JSON that the benchmarks keep: no number is typed by hand.

What has not been measured is left out.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def streaming() -> str:
    found = json.loads((RESULTS / "streaming.json").read_text())
    lines = [
        f"From files to files, K = {found['n_components']}, one pass, {found['n_cores']} cores:",
        "",
        "| command | audio | time | × real time | peak memory |",
        "|---|---|---|---|---|",
    ]
    for row in found["commands"]:
        length = f"{row['hours'] * 60:.0f} min" if row["hours"] < 1 else f"{row['hours']:.0f} h"
        length += f" of {row['audio']}" if "audio" in row else ""
        lines.append(
            f"| `ondes {row['command']}` | {length} | {row['seconds']:.1f} s "
            f"| {row['x_real_time']:.0f} | {row['peak_mb']:.0f} MB |"
        )
    return "\n".join(lines)


def kernel() -> str:
    found = json.loads((RESULTS / "kernels.json").read_text())
    threads = max(row["threads"] for row in found["rows"])
    lines = [
        "The kernel's inner step at 257 bins in float32, as a share of this machine's own matrix "
        "product, and against the same step in scikit-learn and NumPy on the same threads:",
        "",
        "| components | 1 thread | × scikit-learn | × NumPy "
        f"| {threads} threads | × scikit-learn | × NumPy |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = {
        (row["n_components"], row["threads"]): row["share"]
        for row in found["rows"]
        if row["dtype"] == "float32" and row["n_bins"] == 257
    }
    for n_components in sorted({components for components, _ in rows}):
        cells = []
        for n_threads in (1, threads):
            share = rows[n_components, n_threads]
            cells += [f"{share['native']:.0%}"]
            cells += [f"{share['native'] / share[peer]:.1f}" for peer in ("sklearn", "numpy")]
        lines.append(f"| {n_components} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def race() -> str:
    import race_page

    return race_page.readme_table(json.loads((RESULTS / "race.json").read_text()))


def main() -> None:
    parts = {"streaming.json": streaming, "kernels.json": kernel, "race.json": race}
    written = [part() for name, part in parts.items() if (RESULTS / name).exists()]
    page = ROOT / "README.md"
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    figures = "\n\n".join(written)
    page.write_text(f"{before}{BEGIN}\n{figures}\n{END}{after}")


if __name__ == "__main__":
    main()
