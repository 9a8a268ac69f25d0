"""Separation of speakers and music that were never heard, through the commands a user types.

    python benchmarks/unseen.py --audio FOLDER [--minutes 5] [--seeds 4] [--only live ...]

FOLDER has speech/festvox_ru_wav, speech/asterisk_en, speech/asterisk_ru, music/wesnoth and
music/ufoai, from the packages of the same names. Learns from the first two speakers and the first
music, separates the third speaker and the other music: 24 excerpts of 10 s at 0 dB, 16 kHz. Writes
benchmarks/results/unseen.json and docs/separation.md's table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
import soxr
from kept import KEPT

from ondes.scores import si_sdr

SR, SECONDS, N_EXCERPTS = 16000, 10, 24
SILENCE = 1e-3  # of full scale: 52 s of hiss among the prompts, which are no speech
HELD_OUT = {
    *("casualties_of_war", "journeys_end", "loyalists", "return_to_wesnoth", "suspense"),
    *("transience", "weight_of_revenge", "frantic-old", "silence"),
}
ROOT = Path(__file__).parents[1]
WAYS = {
    "shelf": "nothing learned: the separator that comes with the package",
    "dictionaries": "two dictionaries (`ondes learn`)",
    "adapted": "… with `--adapt music`",
    "live": "… for live sound (`ondes learn --delay 30ms`)",
    "free": "the dictionary of speech alone, with `--free 8`",
    "trained": "a separator trained for five minutes (`ondes train`)",
}
ONCE = ("shelf",)  # no seed decides anything


def read(path: Path, start: float = 0.0, seconds: float | None = None) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    first = int(start * rate)
    last = None if seconds is None else first + int(seconds * rate)
    mono = samples[first:last].mean(axis=1)
    return mono if rate == SR else soxr.resample(mono, rate, SR)


def voice(audio: Path) -> np.ndarray:
    """The unheard speaker, without the prompts that are recordings of silence."""
    prompts = [read(path) for path in sorted((audio / "speech/asterisk_ru").glob("*.flac"))]
    return np.concatenate([each for each in prompts if np.std(each) > SILENCE])


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
    speaker = voice(audio)
    tracks = sorted((audio / "music/ufoai").rglob("*.ogg"))
    tracks = [path for path in tracks if soundfile.info(path).duration > 60]
    found = []
    n = SECONDS * SR
    for number, path in enumerate(tracks[:: max(1, len(tracks) // N_EXCERPTS)][:N_EXCERPTS]):
        speech, music = speaker[number * n :][:n], read(path, 30, SECONDS)[:n]
        if len(speech) == n == len(music) and np.mean(music**2) > 1e-8:
            found.append((speech, music * np.sqrt(np.mean(speech**2) / np.mean(music**2))))
    return found


def measure(way: str, work: Path, truths: list, minutes: float, seed: int) -> dict[str, object]:
    """One way, learned with one seed: medians and the worst excerpt, and the seconds it took."""
    ondes = str(Path(sys.executable).with_name("ondes"))

    def run(*arguments: str) -> None:
        subprocess.run([ondes, *arguments], cwd=work, check=True, stdout=subprocess.DEVNULL)

    begin = time.perf_counter()
    models = []
    if way == "trained":
        how = ["--minutes", str(minutes), "--seed", str(seed), "--force"]
        run("train", "speech=speech", "music=music", "-o", "talk.ondes", *how)
        models = ["-d", "talk.ondes"]
    elif way != "shelf":
        how = ["--seed", str(seed), "--force", *(["--delay", "30ms"] if way == "live" else [])]
        for name in ("speech",) if way == "free" else ("speech", "music"):
            run("learn", name, "-o", f"{name}.ondes", *how)
            models += ["-d", f"{name}.ondes"]
    learned = time.perf_counter()
    mixes = [f"mix/{number:02d}.wav" for number in range(len(truths))]
    adapt = {"adapted": ["--adapt", "music"], "free": ["--free", "8"]}.get(way, [])
    name = "{track}_{stem}.{ext}"
    run("separate", *mixes, *models, *adapt, "-o", way, "--filename", name, "--force")
    separated = time.perf_counter()
    scores: dict[str, list[float]] = {"speech": [], "music": []}
    for number, truth in enumerate(truths):
        for name, samples in zip(scores, truth, strict=True):
            file = "rest" if (way, name) == ("free", "music") else name
            stem = soundfile.read(work / way / f"{number:02d}_{file}.wav", dtype="float32")[0]
            # Some voices were recorded with an offset, which nobody hears.
            scores[name].append(si_sdr(samples - samples.mean(), stem - stem.mean()))
    return {
        "seed": seed,
        "median": {name: round(float(np.median(each)), 2) for name, each in scores.items()},
        "worst": {name: round(float(min(each)), 2) for name, each in scores.items()},
        "seconds_to_learn": round(learned - begin),
        "times_real_time": round(len(truths) * SECONDS / (separated - learned)),
    }


def mean(row: dict, source: str) -> float:
    """The mean over the seeds of the median over the excerpts."""
    return float(np.mean([seed["median"][source] for seed in row["seeds"]]))


def table(results: dict) -> str:
    """The measured rows for docs/separation.md."""
    rows = results["rows"]
    first = next(iter(rows.values()))
    lines = [
        "| SI-SDR in dB, mixture 0 dB | speech | music | worst excerpt | × real time |",
        "|---|---|---|---|---|",
    ]
    for way, title in WAYS.items():
        if way not in rows:
            continue
        seeds = rows[way]["seeds"]
        cells = []
        for source in ("speech", "music"):
            medians = [seed["median"][source] for seed in seeds]
            spread = f" ± {(max(medians) - min(medians)) / 2:.1f}" if len(seeds) > 1 else ""
            cells.append(f"{mean(rows[way], source):.1f}{spread}")
        worst = min(value for seed in seeds for value in seed["worst"].values())
        speed = np.median([seed["times_real_time"] for seed in seeds])
        lines.append(f"| {title} | {' | '.join(cells)} | {worst:.1f} | {speed:.0f} |")
    lines += [
        "",
        f"Medians of {first['n_excerpts']} excerpts of {SECONDS} s, their mean over seeds and half "
        "the range of the seeds, offsets removed; a speaker and music in no training recording, by "
        f"the commands without other options, {first['cores']} cores. Measured by "
        "`benchmarks/unseen.py`.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    kept = KEPT["unseen"]
    rows = kept.read()["rows"] if (ROOT / kept.path).exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        training_folders(given.audio, work)
        truths = excerpts(given.audio)
        (work / "mix").mkdir()
        for number, (speech, music) in enumerate(truths):
            path = work / "mix" / f"{number:02d}.wav"
            soundfile.write(path, speech + music, SR, subtype="FLOAT")
        for way in given.only:
            seeds = []
            for seed in range(1 if way in ONCE else given.seeds):
                seeds.append(measure(way, work, truths, given.minutes, seed))
                print(way, seeds[-1], flush=True)
            about = {"n_excerpts": len(truths), "cores": os.cpu_count()}
            rows[way] = about | {"seeds": seeds}
            KEPT["unseen"].write({"rows": rows}, [way])


if __name__ == "__main__":
    main()
