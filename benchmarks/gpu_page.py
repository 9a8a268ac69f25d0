"""What a GPU gains: the page of benchmarks/results/gpu.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CONTESTANTS = {
    "torch, float32": "torch",
    "torch.compile, TF32": "torch.compile",
    "torchnmf's update, TF32": "torchnmf's update",
    "fused, tf32": "**fused, TF32**",
    "fused, ieee": "fused, float32",
    "fused, bf16": "fused, bfloat16",
}


PICTURE = ("gpu.svg", "Nanoseconds per frame and inner step against the number of components")


def answer(results: dict[str, Any]) -> str:
    """Hours per second, and the fused kernel against the compiler's."""
    longest = max(results["end_to_end"]["rows"], key=lambda row: row["hours"])
    times = [row["fused_over_compiled"] for row in results["rows"]]
    return (
        f"From samples in memory, {longest['hours']} hours of audio become a dictionary of "
        f"{longest['n_components']} components in {longest['seconds']:.1f} s on one "
        f"{results['gpu']['name']}; from files, decoding on the CPU takes most of the time. The "
        f"fused kernel takes {min(times):.1f} to {max(times):.0f} times less time than "
        "torch.compile's."
    )


def draw(results: dict[str, Any], folder: Path) -> None:
    """The curves of `PICTURE`, at 513 bins."""
    import figures

    rows = [row for row in results["rows"] if row["n_bins"] == 513]
    figure = figures.new(3.8)
    axes = figure.add_subplot()
    shown = ("torch, float32", "torch.compile, TF32", "fused, tf32")
    for name, colour, style in zip(
        shown, reversed(figures.BLUES[:3]), (":", "--", "-"), strict=True
    ):
        values = [row["nanoseconds"][name] for row in rows]
        axes.plot([row["n_components"] for row in rows], values, style, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes, times = [row["n_components"] for row in rows], (1, 3, 10, 30)
    axes.set_xticks(sizes, map(str, sizes))
    axes.set_yticks(times, map(str, times))
    axes.minorticks_off()
    axes.set_xlabel("components, 513 bins")
    axes.set_ylabel("ns per frame and step")
    figures.legend_above(axes, 3)
    figures.save(figure, folder / PICTURE[0], results)


def section(results: dict[str, Any]) -> str:
    gpu = results["gpu"]
    lines = [
        "## On a GPU",
        "",
        f"{gpu['name']}, {gpu['date']}, torch {gpu['torch']}, Triton {gpu['triton']}. It "
        f"multiplies large square matrices in TF32 at {gpu['TF32 product, TFLOP/s']:.0f} TFLOP/s, "
        f"and copies at {gpu['copy, GB/s'] / 1000:.1f} TB/s. Times are medians of device events.",
        "",
        *end_to_end(results.get("end_to_end")),
        *from_files(results.get("from_files")),
        "The first columns are nanoseconds per frame and inner step of the default solver, many "
        "frames at a time, launches included. Then come the fused kernel's share of the GPU's TF32 "
        "rate, how many times faster it is than torch.compile, and microseconds for one mini-batch "
        "of 128 frames with ten steps and its statistics, replayed as a graph:",
        "",
        "| bins | K | " + " | ".join(CONTESTANTS.values()) + " | share | × | batch |",
        "|---" * (len(CONTESTANTS) + 5) + "|",
        *(line(row) for row in results["rows"]),
        "",
        "The largest error of each precision over 1,000 frames of four shapes, against the "
        "reference in float64: of the activations, relative to the largest activation of their "
        "frame, and of the divergence that they reach.",
        "",
        "| precision | frames | activations | divergence |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['precision']} | {row['frames']} | {row['activations']:.0e} "
        f"| {row['divergence']:.0e} |"
        for row in results["errors"]
    ]
    return "\n".join(lines)


def end_to_end(measured: dict[str, Any] | None) -> list[str]:
    if measured is None:
        return []
    lines = [
        f"From int16 samples at {measured['sr']} Hz in the host's memory to a dictionary, one pass "
        "of the default, all updates in sequence; the first time, kernels are compiled:",
        "",
        "| audio | K | seconds | hours per second | the first time | GPU memory |",
        "|---|---|---|---|---|---|",
    ]
    rows = [
        f"| {row['hours']} h | {row['n_components']} | {row['seconds']:.2f} "
        f"| {row['hours'] / row['seconds']:.1f} | {row['seconds_the_first_time']:.1f} s "
        f"| {row['peak_mib']} MiB |"
        for row in measured["rows"]
    ]
    return [*lines, *rows, ""]


def from_files(measured: dict[str, Any] | None) -> list[str]:
    if measured is None:
        return []
    speeds = [
        f"{measured['hours'] * 3600 / row['seconds']:.0f} × with {row['n_threads']}"
        for row in measured["rows"]
    ]
    return [
        f"From {measured['hours']:g} h of FLAC in files, K = 32, {measured['n_cores']} cores, most "
        "of the time is spent on decoding. Multiples of real time by the number of reading "
        f"threads: {', '.join(speeds)}. Four threads read unless `-j` is less.",
        "",
    ]


def line(row: dict[str, Any]) -> str:
    times = [f"{row['nanoseconds'][name]:.2f}" for name in CONTESTANTS]
    return (
        f"| {row['n_bins']} | {row['n_components']} | {' | '.join(times)} "
        f"| {row['share_of_peak']:.0%} | {row['fused_over_compiled']:.1f} "
        f"| {row['small_call']['device']:.0f} µs |"
    )
