"""How time and memory grow with the work: what a user has, through the commands a user types.

    python benchmarks/growth.py --music FOLDER [--only case hours recordings components cores]

case        ten minutes of a 44.1 kHz stereo FLAC, default models, every command
hours       learning from half an hour to half a day of one recording, in each format
recordings  learning from many recordings of one second
components  learning and separating with 8 to 1,024 components
cores       learning and separating on 1 to all cores; the bytes of the results are compared

Without --music the sound is synthetic. Each part is kept by itself. On a quiet machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from command_runs import run_command, stereo
from kept import KEPT, ROOT

from ondes.demo_scene import make_scene

SR = 44100
MINUTES = 10
HOURS = {"flac": (0.5, 1.0, 3.0, 12.0), "opus": (0.5, 1.0, 3.0)}  # ffmpeg encodes both anew
HOURS_OF_OTHERS = (0.5, 1.0, 3.0)
FORMATS = ("wav", "flac", "ogg", "opus", "mp3")
RECORDINGS = (1_000, 10_000, 50_000)
COMPONENTS = (8, 32, 128, 512, 1024)
REPEATS = 3
PICTURE = ("growth.svg", "Time and memory against the size of the work, by command")
CASE = {
    "separate": ("separate",),
    "separate, two dictionaries": ("separate", "-d", "speech", "-d", "music"),
    "separate, trained": ("separate", "-d", "trained"),
    "separate, trained with --start none": ("separate", "-d", "unfolded"),
    "separate --adapt": ("separate", "-d", "speech", "-d", "music", "--adapt", "music"),
    "separate --free 16": ("separate", "-d", "speech", "--free", "16"),
    "separate --spatial room": ("separate", "-d", "speech", "-d", "music", "--spatial", "room"),
    "denoise": ("denoise",),
    "denoise --noise, with a model": ("denoise", "--noise", "0-3", "-d", "speech"),
    "denoise --noise": ("denoise", "--noise", "0-3"),
    "levels": ("levels", "-d", "speech", "-d", "music"),
    "report": ("report", "-d", "speech", "-d", "music"),
    "learn": ("learn",),
}


def timed(arguments: list[str], seconds: float, repeats: int = 1) -> dict[str, float]:
    """The fastest of some runs of a command, with its multiple of real time."""
    found = min((run_command(arguments) for _ in range(repeats)), key=lambda run: run["seconds"])
    found["cores_busy"] = found["cpu_seconds"] / found["seconds"]
    return found | {"x_real_time": seconds / found["seconds"]}


def song(folder: Path, music: Path | None, rate: int = SR) -> Path:
    """Ten minutes of stereo: music, with a voice-like scene in the middle."""
    path = folder / f"song_{rate}.flac"
    samples = stereo(music, 60 * MINUTES)
    if rate != SR:
        import soxr

        samples = soxr.resample(samples, SR, rate)
    soundfile.write(path, samples, rate)
    return path


def models(folder: Path) -> dict[str, str]:
    """Default dictionaries of two sources, and a separator that was trained for a moment."""
    made, sources = {}, []
    for seed, name in enumerate(("speech", "music")):
        recordings = folder / f"recordings_{name}"
        recordings.mkdir()
        for half in range(2):
            scene = make_scene(30.0, 16000, random_state=2 * seed + half)
            soundfile.write(recordings / f"{half}.wav", scene.stems["strings"], 16000)
        made[name] = str(folder / f"{name}.ondes")
        sources.append(f"{name}={recordings}")
        run_command(["learn", str(recordings), "-o", made[name], "--force"])
    for name, start in {"trained": [], "unfolded": ["--start", "none"]}.items():
        made[name] = str(folder / f"{name}.ondes")
        run_command(["train", *sources, "-o", made[name], "--updates", "20", "--force", *start])
    return made


def case(folder: Path, music: Path | None, jobs: int) -> list[dict[str, Any]]:
    made, rows = models(folder), []
    paths = {SR: song(folder, music), 48000: song(folder, music, 48000)}
    for name, (command, *rest) in CASE.items():
        options = [made.get(word, word) for word in rest]
        suffix = {"denoise": "clean.wav", "levels": "table.csv", "report": "page.html",
                  "learn": "new.ondes"}.get(command, "stems")  # fmt: skip
        for rate in (SR, 48000) if name == "separate, two dictionaries" else (SR,):
            arguments = [command, str(paths[rate]), *options, "-o", str(folder / suffix)]
            arguments += ["-j", str(jobs), "--force"]
            rows.append({"command": name, "sr": rate, **timed(arguments, 60 * MINUTES, REPEATS)})
            print(rows[-1], flush=True)
    return rows


def encoded(folder: Path, source: Path, suffix: str) -> tuple[Path, list[str]]:
    """A recording in a format, by ffmpeg, and the codec that repeats it: none where it can."""
    path = folder / f"source.{suffix}"
    codec = {"wav": ["pcm_s16le"], "flac": ["flac", "-compression_level", "0"],
             "ogg": ["libvorbis"], "opus": ["libopus"], "mp3": ["libmp3lame"]}[suffix]  # fmt: skip
    _ffmpeg("-i", str(source), "-c:a", *codec, str(path))
    return path, codec if suffix in ("flac", "opus") else ["copy"]


def repeated(source: Path, codec: list[str], hours: float) -> Path:
    """The same recording again and again."""
    path = source.with_stem("long")
    where = ["-rf64", "auto"] if path.suffix == ".wav" else []
    loops = ["-stream_loop", "-1", "-i", str(source), "-t", str(3600 * hours)]
    _ffmpeg(*loops, "-c:a", *codec, *where, str(path))
    return path


def _ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-y", *arguments], check=True)


def by_hours(folder: Path, music: Path | None, jobs: int) -> list[dict[str, Any]]:
    rows, source = [], song(folder, music)
    for suffix in FORMATS:
        once, codec = encoded(folder, source, suffix)
        for hours in HOURS.get(suffix, HOURS_OF_OTHERS):
            path = repeated(once, codec, hours)
            how = ["learn", str(path), "-o", str(folder / "m.ondes"), "-j", str(jobs), "--force"]
            rows.append({"format": suffix, "size": hours, **timed(how, 3600 * hours)})
            print(rows[-1], flush=True)
            path.unlink()
    return rows


def by_recordings(folder: Path, music: Path | None, jobs: int) -> list[dict[str, Any]]:
    rows = []
    sound = soundfile.read(song(folder, music), frames=10 * SR)[0]
    for number in range(10):
        soundfile.write(folder / f"{number}.flac", sound[number * SR :][:SR], SR)
    for n in RECORDINGS:
        many = folder / "many"
        many.mkdir()
        for number in range(n):
            os.link(folder / f"{number % 10}.flac", many / f"{number:07d}.flac")
        how = ["learn", str(many), "-o", str(folder / "m.ondes"), "-j", str(jobs), "--force"]
        rows.append({"size": n, **timed(how, float(n))})
        print(rows[-1], flush=True)
        shutil.rmtree(many)
    return rows


def by_components(folder: Path, music: Path | None, jobs: int) -> list[dict[str, Any]]:
    rows, path = [], song(folder, music)
    for n in COMPONENTS:
        model = str(folder / "m.ondes")
        learn = ["learn", str(path), "-k", str(n), "-o", model, "-j", str(jobs), "--force"]
        rows.append({"command": "learn", "size": n, **timed(learn, 60 * MINUTES)})
        separate = ["separate", str(path), "-d", f"a={model}", "-d", f"b={model}", "-j", str(jobs),
                    "-o", str(folder / "stems"), "--force"]  # fmt: skip
        rows.append({"command": "separate", "size": n, **timed(separate, 60 * MINUTES)})
        print(*rows[-2:], sep="\n", flush=True)
    return rows


def by_cores(folder: Path, music: Path | None, jobs: int) -> list[dict[str, Any]]:
    """Up to `jobs` cores; the digests of what is written must be the same."""
    made, rows, path = models(folder), [], song(folder, music)
    files = [folder / f"copy_{number}.flac" for number in range(8)]
    for each in files:
        os.link(path, each)
    model, stems = folder / "m.ondes", folder / "stems"
    both = ["-d", made["speech"], "-d", made["music"]]
    commands = {
        "learn": (["learn", *map(str, files), "-o", str(model)], len(files), [model]),
        "separate": (["separate", str(path), *both, "-o", str(stems)], 1, stems),
    }
    for n in (n for n in (1, 2, 4, 8, 16) if n <= jobs):
        for command, (arguments, n_files, written) in commands.items():
            found = timed([*arguments, "-j", str(n), "--force"], n_files * 60 * MINUTES, REPEATS)
            paths = written if isinstance(written, list) else sorted(written.rglob("*.wav"))
            rows.append({"command": command, "size": n, "digest": digest_of(paths), **found})
            print(rows[-1], flush=True)
    for command in commands:
        if len({row["digest"] for row in rows if row["command"] == command}) > 1:
            raise SystemExit(f"{command} wrote different bytes with other numbers of cores")
    return rows


def digest_of(paths: list[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


MEASURE = {
    "case": case, "hours": by_hours, "recordings": by_recordings,
    "components": by_components, "cores": by_cores,
}  # fmt: skip


def exponent(rows: list[dict[str, Any]], what: str) -> float:
    """The slope of log `what` against log size, over the larger half of the sizes."""
    half = sorted(rows, key=lambda row: row["size"])[len(rows) // 2 - 1 :]
    return float(np.polyfit(*(np.log([row[key] for row in half]) for key in ("size", what)), 1)[0])


# ---- the page ----


def answer(results: dict[str, Any]) -> str:
    """For the page of results: what a user waits for, and how that grows; what was measured."""
    case = {(row["command"], row["sr"]): row for row in results.get("case", [])}
    hours = [rows for name, rows in series(results) if name.startswith("hours")]
    said = []
    if case:
        separated, learned = case["separate, two dictionaries", SR], case["learn", SR]
        said.append(
            f"Ten minutes of music at 44.1 kHz in stereo are learned from in "
            f"{learned['seconds']:.1f} s and separated with two dictionaries in "
            f"{separated['seconds']:.1f} s, on {results['n_jobs']} cores."
        )
    if hours:
        time, memory = (
            max(exponent(rows, what) for rows in hours) for what in ("seconds", "peak_mb")
        )
        longest = max((row for rows in hours for row in rows), key=lambda row: row["size"])
        said.append(
            f"Up to {longest['size']:g} hours, time grows with the length to the power of "
            f"{time:.2f} at most, and memory to that of {memory:.2f}."
        )
    return " ".join(said)


def section(results: dict[str, Any]) -> str:
    return "\n\n".join(each for each in (case_table(results), growth_table(results)) if each)


def case_table(results: dict[str, Any]) -> str:
    """What a user has: for the beginning of docs/speed.md."""
    if "case" not in results:
        return ""
    lines = [
        f"Ten minutes of music in 44.1 kHz stereo FLAC, default models, on "
        f"{results['n_jobs']} cores:",
        "",
        "| command | time | × real time | cores busy | memory |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `ondes {row['command']}`{'' if row['sr'] == SR else ' at 48 kHz'} "
        f"| {row['seconds']:.1f} s | {row['x_real_time']:.0f} | {row['cores_busy']:.1f} "
        f"| {row['peak_mb']:.0f} MB |"
        for row in results["case"]
    ]
    return "\n".join(lines)


def growth_table(results: dict[str, Any]) -> str:
    """The exponents of time and memory, a row per series."""
    lines = [
        "How time and memory grow: the exponents of a power law over the larger half of the sizes "
        "(1 is in proportion, 0 is constant):",
        "",
        "| what grows | from | to | time | memory | × real time at the end |",
        "|---|---|---|---|---|---|",
    ]
    measured = list(series(results))
    for name, rows in measured:
        sizes = [row["size"] for row in rows]
        last = max(rows, key=lambda row: row["size"])
        lines.append(
            f"| {name} | {min(sizes):g} | {max(sizes):g} | {exponent(rows, 'seconds'):.2f} "
            f"| {exponent(rows, 'peak_mb'):.2f} | {last['x_real_time']:.0f} |"
        )
    lines = lines if measured else []
    if "cores" in results:
        at = {(row["command"], row["size"]): row["x_real_time"] for row in results["cores"]}
        lines += ["", "| cores | learn, × real time | separate, × real time |", "|---|---|---|"]
        lines += [
            f"| {n} | {at['learn', n]:.0f} | {at['separate', n]:.0f} |"
            for n in sorted({size for _, size in at})
        ]
    return "\n".join(lines).strip()


def series(results: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows that differ in size alone, by name: where two sizes or more were measured."""
    every = {
        f"hours of {suffix}": [row for row in results.get("hours", []) if row["format"] == suffix]
        for suffix in FORMATS
    }
    every["recordings of one second"] = results.get("recordings", [])
    for command in ("learn", "separate"):
        every[f"components, {command}"] = [
            row for row in results.get("components", []) if row["command"] == command
        ]
    yield from ((name, rows) for name, rows in every.items() if len(rows) > 1)


def picture(results: dict[str, Any]) -> tuple[str, str] | None:
    """The curves of hours, where these were measured."""
    return PICTURE if any(name.startswith("hours") for name, _ in series(results)) else None


def draw(results: dict[str, Any], folder: Path) -> None:
    import figures

    if picture(results) is None:
        return
    figure = figures.new(3.6)
    panels = figure.subplots(1, 2)
    for axes, what, label in zip(panels, ("seconds", "peak_mb"), ("seconds", "MB"), strict=True):
        for number, (name, rows) in enumerate(series(results)):
            if "hours" in name:
                dashes = figures.DASHES[number % len(figures.DASHES)]
                points = [(row["size"], row[what]) for row in rows]
                axes.plot(*zip(*points, strict=True), linestyle=dashes, label=name[9:])
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("hours")
        axes.set_ylabel(label)
    figures.legend_above(panels[0], 2)
    figures.save(figure, folder / PICTURE[0], results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--music", type=Path, help="a folder of 44.1 kHz stereo Ogg")
    parser.add_argument("--only", nargs="*", choices=MEASURE, default=list(MEASURE))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=ROOT / KEPT["growth"].path)
    given = parser.parse_args()
    if "hours" in given.only and shutil.which("ffmpeg") is None:
        sys.exit("hours needs ffmpeg, which writes each format")
    results = KEPT["growth"].read() if given.out.exists() else {}
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = MEASURE[name](Path(folder), given.music, given.jobs)
        results["n_jobs"] = given.jobs
        KEPT["growth"].write(results, [name], given.out)
    draw(results, ROOT / "docs" / "figures")


if __name__ == "__main__":
    main()
