"""Separation of speakers and music that were never heard, through the commands a user types.

    python benchmarks/unseen.py --audio FOLDER [--minutes 5] [--only dictionaries free ...]

FOLDER has speech/festvox_ru_wav, speech/asterisk_en, speech/asterisk_ru, music/wesnoth and
music/ufoai, from the packages of the same names. Learns from the first two speakers and the first
music, separates the third speaker and the other music: 24 excerpts of 10 s at 0 dB, 16 kHz. Writes
benchmarks/results/unseen.json and docs/separation.md's table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
import soxr

from ondes.scores import si_sdr

SR, SECONDS, N_EXCERPTS = 16000, 10, 24
HELD_OUT = {
    *("casualties_of_war", "journeys_end", "loyalists", "return_to_wesnoth", "suspense"),
    *("transience", "weight_of_revenge", "frantic-old", "silence"),
}
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "unseen.json"
WAYS = ("dictionaries", "adapted", "free", "trained")


def read(path: Path, start: float = 0.0, seconds: float | None = None) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    first = int(start * rate)
    last = None if seconds is None else first + int(seconds * rate)
    mono = samples[first:last].mean(axis=1)
    return mono if rate == SR else soxr.resample(mono, rate, SR)


def training_folders(audio: Path, work: Path) -> None:
    """Links to the speech, and two minutes of each track."""
    russian = sorted((audio / "speech/festvox_ru_wav").glob("*.wav"))
    russian = [path for path in russian if path.name < "ru_0757"][:300:3]
    english = sorted((audio / "speech/asterisk_en").glob("*.flac"))
    (work / "speech").mkdir()
    for number, path in enumerate([*russian, *english]):
        (work / "speech" / f"{number:04d}{path.suffix}").symlink_to(path.resolve())
    (work / "music").mkdir()
    for path in sorted((audio / "music/wesnoth").glob("*.ogg")):
        if path.stem not in HELD_OUT and soundfile.info(path).duration >= 75:
            soundfile.write(work / "music" / f"{path.stem}.flac", read(path, 15, 120), SR)


def excerpts(audio: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    voice = np.concatenate([read(p) for p in sorted((audio / "speech/asterisk_ru").glob("*.flac"))])
    tracks = sorted((audio / "music/ufoai").rglob("*.ogg"))
    tracks = [path for path in tracks if soundfile.info(path).duration > 60]
    found = []
    n = SECONDS * SR
    for number, path in enumerate(tracks[:: max(1, len(tracks) // N_EXCERPTS)][:N_EXCERPTS]):
        speech, music = voice[number * n :][:n], read(path, 30, SECONDS)[:n]
        if len(speech) == n == len(music) and np.mean(music**2) > 1e-8:
            found.append((speech, music * np.sqrt(np.mean(speech**2) / np.mean(music**2))))
    return found


def measure(way: str, work: Path, truths: list, minutes: float) -> dict[str, object]:
    ondes = str(Path(sys.executable).with_name("ondes"))

    def run(*arguments: str) -> None:
        subprocess.run([ondes, *arguments], cwd=work, check=True, stdout=subprocess.DEVNULL)

    begin = time.perf_counter()
    models = []
    if way == "trained":
        run("train", "speech=speech", "music=music", "-o", "talk.ondes", "--minutes", str(minutes))
        models = ["-d", "talk.ondes"]
    else:
        for name in ("speech",) if way == "free" else ("speech", "music"):
            run("learn", name, "-o", f"{name}.ondes", "--force")
            models += ["-d", f"{name}.ondes"]
    learned = time.perf_counter()
    mixes = [f"mix/{number:02d}.wav" for number in range(len(truths))]
    adapt = {"adapted": ["--adapt", "music"], "free": ["--free", "8"]}.get(way, [])
    name = "{track}_{stem}.{ext}"
    run("separate", *mixes, *models, *adapt, "-o", way, "--filename", name)
    separated = time.perf_counter()
    scores = []
    for number, truth in enumerate(truths):
        for name, samples in zip(("speech", "music"), truth, strict=True):
            file = "rest" if (way, name) == ("free", "music") else name
            stem = soundfile.read(work / way / f"{number:02d}_{file}.wav", dtype="float32")[0]
            scores.append((name, si_sdr(samples, stem)))
    by_name = {name: [s for n, s in scores if n == name] for name in ("speech", "music")}
    return {
        "median": {name: round(float(np.median(each)), 2) for name, each in by_name.items()},
        "quartiles": {
            name: [round(float(q), 2) for q in np.quantile(each, [0.25, 0.75])]
            for name, each in by_name.items()
        },
        "n_excerpts": len(truths),
        "seconds_to_learn": round(learned - begin),
        "times_real_time": round(len(truths) * SECONDS / (separated - learned)),
    }


def table(rows: dict[str, dict]) -> str:
    """The measured rows for docs/separation.md."""
    names = {
        "dictionaries": "two dictionaries (`ondes learn`)",
        "adapted": "… with `--adapt music`",
        "free": "the dictionary of speech alone, with `--free 8`",
        "trained": "a separator trained for five minutes (`ondes train`)",
    }
    first = next(iter(rows.values()))
    lines = [
        "| SI-SDR in dB, mixture 0 dB | speech | music | × real time |",
        "|---|---|---|---|",
    ]
    for way in (way for way in WAYS if way in rows):
        row = rows[way]
        cells = [
            f"{row['median'][name]:.1f} ({row['quartiles'][name][0]:.1f} to "
            f"{row['quartiles'][name][1]:.1f})"
            for name in ("speech", "music")
        ]
        lines.append(f"| {names[way]} | {' | '.join(cells)} | {row['times_real_time']} |")
    lines += [
        "",
        f"Medians and quartiles of {first['n_excerpts']} excerpts of {SECONDS} s: a speaker and "
        "music that were in no training recording, through the commands without options, "
        f"{first['cores']} cores. Measured by `benchmarks/unseen.py`.",
    ]
    return "\n".join(lines)


def write_pages(rows: dict[str, dict]) -> None:
    begin, end = "<!-- unseen: begin -->", "<!-- unseen: end -->"
    page = ROOT / "docs" / "separation.md"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n{table(rows)}\n{end}{rest.split(end)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="*", choices=WAYS, default=WAYS)
    given = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        training_folders(given.audio, work)
        truths = excerpts(given.audio)
        (work / "mix").mkdir()
        for number, (speech, music) in enumerate(truths):
            path = work / "mix" / f"{number:02d}.wav"
            soundfile.write(path, speech + music, SR, subtype="FLOAT")
        for way in given.only:
            rows[way] = measure(way, work, truths, given.minutes) | {"cores": os.cpu_count()}
            print(way, rows[way], flush=True)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    write_pages(rows)


if __name__ == "__main__":
    main()
