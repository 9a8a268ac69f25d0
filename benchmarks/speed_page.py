"""The figures of README.md, docs/speed.md, docs/tables.md and docs/studio.md."""

from __future__ import annotations

from typing import Any

import race_page
from kept import KEPT
from unseen import mean as unseen_mean


def kernels(found: dict[str, Any]) -> str:
    """The kernel against the matrix product, scikit-learn and NumPy."""
    threads = max(row["threads"] for row in found["rows"])
    lines = [
        "Speed of the kernel's inner step at 257 bins in float32, Itakura-Saito, on "
        f"{found['machine']['cores']} cores of {found['machine']['processor']}: as a percentage of "
        "the speed of this machine's own matrix product, and as a multiple of the speed of the "
        "same step in scikit-learn and NumPy, with the same number of threads:",
        "",
        "| components | 1 thread | × scikit-learn | × NumPy "
        f"| {threads} threads | × scikit-learn | × NumPy |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = {
        (row["n_components"], row["threads"]): row["share"]
        for row in found["rows"]
        if row["dtype"] == "float32" and row["n_bins"] == 257
        if row.get("loss", "itakura-saito") == "itakura-saito"
    }
    for n_components in sorted({components for components, _ in rows}):
        cells = []
        for n_threads in (1, threads):
            share = rows[n_components, n_threads]
            cells += [f"{share['native']:.0%}"]
            cells += [f"{share['native'] / share[peer]:.1f}" for peer in ("sklearn", "numpy")]
        lines.append(f"| {n_components} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _slower(found["rows"])])


def _slower(rows: list[dict[str, Any]]) -> str:
    """Where other packages make the kernel's step faster."""
    parts = []
    for name, peer in (("scikit-learn", "sklearn"), ("NumPy", "numpy")):
        ratios = {
            row["n_components"]: row["share"][peer] / row["share"]["native"]
            for row in sorted(rows, key=lambda row: row["share"][peer] / row["share"]["native"])
            if row["share"]["native"] < row["share"][peer]
        }
        if not ratios:
            parts.append(f"{name} is faster in none of them")
            continue
        n = sum(row["share"]["native"] < row["share"][peer] for row in rows)
        parts.append(
            f"{name} is faster in {n} of them, by {max(ratios.values()) - 1:.0%} at most, all with "
            f"{min(ratios)} components or more"
        )
    return (
        f"{len(rows)} combinations of bins, components, precision, threads and divergence (Itakura-"
        f"Saito and Kullback-Leibler) were measured: {'; '.join(parts)}."
    )


def three(**found: dict[str, Any]) -> str:
    """For the README: separation, speed of learning, and long recordings; what was measured."""
    rows = {"unseen": separation, "race": speed_of_learning, "growth": long_recordings}
    lines = [
        f"{row}; m{KEPT[name].stated(found[name])[1:-1]} |"
        for name, write in rows.items()
        if name in found and (row := write(found[name]))
    ]
    head = ["| figure | result | conditions |", "|---|---|---|"]
    return "\n".join([*head, *lines]) if lines else ""


def separation(unseen: dict[str, Any]) -> str:
    rows = unseen["rows"]
    said: list[str] = []
    if "shelf" in rows:
        speech, music = (unseen_mean(rows["shelf"], source) for source in ("speech", "music"))
        said.append(
            f"[SI-SDR](docs/glossary.md) {speech:.1f} dB for speech and {music:.1f} dB for music "
            "without learning anything"
        )
    if "adapted" in rows:
        speech = unseen_mean(rows["adapted"], "speech")
        said.append(f"{speech:.1f} dB for speech with two dictionaries and `--adapt music`")
    if not said:
        return ""
    about = next(iter(rows.values()))
    return (
        f"| separation | {'; '.join(said)} | medians of {about['n_excerpts']} excerpts of 10 s "
        "mixed at 0 dB, speaker and music in no training recording, through `ondes separate`, "
        f"{about['cores']} cores"
    )


def speed_of_learning(race: dict[str, Any]) -> str:
    sooner, n_components = race_page.sooner_than(race, "minibatch", "large")
    return (
        "| speed of learning | reaches the final divergence of scikit-learn's `MiniBatchNMF` "
        f"{sooner:.0f} times sooner | 99 min of music, {n_components} components, Itakura-Saito "
        "on power, frames of 512 samples at 11025 Hz, one thread"
    )


def long_recordings(growth: dict[str, Any]) -> str:
    """The longest Ogg; nothing where hours were not measured."""
    of_ogg = [row for row in growth.get("hours", []) if row["format"] == "ogg"]
    if not of_ogg:
        return ""
    longest = max(of_ogg, key=lambda row: row["size"])
    return (
        f"| long recordings | learns from {longest['size']:g} h of audio in "
        f"{longest['seconds']:.0f} s ({longest['x_real_time']:.0f} × real time), with "
        f"{longest['peak_mb']:.0f} MB of memory | one recording in 44.1 kHz stereo Ogg, default "
        f"settings, one pass, {growth['n_jobs']} cores"
    )


def tables(found: dict[str, Any]) -> str:
    """What tables of many hours take."""
    rows = found["rows"]
    lines = [
        "Synthetic scenes in mono FLAC, from files to a Parquet file with one row per second and "
        "component, two cores:",
        "",
        "| audio | components | time | × real time | peak memory |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['hours']:.0f} h at {row['sr'] / 1000:g} kHz | {row['n_components']} "
        f"| {row['seconds']:.0f} s | {row['times_real_time']} | {row['peak_mb']} MB |"
        for row in sorted(rows, key=lambda row: (row["sr"], row["n_components"]))
    ]
    return "\n".join(lines)


def studio(found: dict[str, Any]) -> str:
    """What the studio takes, for a song and for hours."""
    song, field = found["song"], found["hours"]
    return (
        f"Measured on two cores. A stereo song of three minutes, dropped onto the page: the "
        f"spectrogram appears after {song['spectrogram_s']:.1f} s, and the first component can be "
        f"heard after {song['component_heard_s']:.1f} s. The server needs at most "
        f"{song['server_peak_mb']} MB, the page {song['page_mb']} MB. A folder of "
        f"{field['hours']:.0f} hours at 16 kHz: the overview appears after "
        f"{field['picture_s']:.1f} s, and finding the sounds and their levels takes another "
        f"{field['first_pass_s'] / 60:.1f} min. The server needs at most "
        f"{field['server_peak_mb']} MB, the page {field['page_mb']} MB."
    )
