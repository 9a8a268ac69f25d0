"""Arrays and separation on a GPU: the section of benchmarks/results/gpu_arrays.json."""

from __future__ import annotations

from typing import Any


def section(results: dict[str, Any]) -> str:
    gpu = results["gpu"]
    lines = [
        "## Arrays and separation on a GPU",
        "",
        f"{gpu['name']}, {gpu['date']}, torch {gpu['torch']}, Triton {gpu['triton']}. "
        "`OnlineNMF(48)` on 60,000 frames of 257 bins, mini-batches of 128: milliseconds per "
        "update, everything included, from a tensor on the GPU and from an array of the host, and "
        "millions of frames per second of `transform`. Best of three.",
        "",
        "| divergence | `fit`, tensor | array | `partial_fit`, tensor | array "
        "| `transform`, tensor | array |",
        "|---" * 7 + "|",
        *(_updates(row) for row in results["updates"]),
        "",
        "Two sources of 64 components each, 20 minutes of sound at 22050 Hz (trained: 128 each, at "
        "16 kHz), from samples in memory to stems in memory, in multiples of real time: "
        + "; ".join(f"{name}: {rate} ×" for name, rate in results["separation"].items())
        + ".",
    ]
    return "\n".join(lines)


def _updates(row: dict[str, Any]) -> str:
    cells = [
        f"{row[f'{method} of a {kind}, ms']:.3f}"
        for method in ("fit", "partial_fit")
        for kind in ("tensor", "array")
    ]
    cells += [
        f"{row[f'transform of a {kind}, frames/s'] / 1e6:.1f}" for kind in ("tensor", "array")
    ]
    return f"| {row['loss']} | {' | '.join(cells)} |"
