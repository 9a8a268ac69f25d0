"""Several microphones: named sources out of simulated rooms and panned stereo, against blind ones.

    python benchmarks/rooms.py --audio FOLDER [--models FOLDER] [--jobs 16] [--scenes 12]
    python benchmarks/rooms.py --audio FOLDER --speed [--hours 10]

FOLDER has speech/festvox_ru_wav, speech/asterisk_en, speech/asterisk_ru, music/wesnoth and
music/ufoai, from the packages of the same names. Dictionaries are learned as `ondes learn` does
without options, from recordings that are in no scene, and kept in --models. Rooms are simulated by
pyroomacoustics' image-source model; its AuxIVA, ILRMA and FastMNMF2 are given the best permutation.
Writes benchmarks/results/rooms.json, where methods and cells of earlier calls are kept if these
measure others; `--page` writes the table and the picture for docs/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from kept import KEPT

if "--speed" not in sys.argv:  # scenes run side by side instead
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np
from rooms_page import draw, table
from rooms_scenes import SR, Cell, scene, split

import ondes
from ondes.scores import si_sdr
from ondes.signal.stft import Stft

SECONDS = 10
STFT = Stft(4096, 1024)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / KEPT["rooms"].path
BLIND = ("auxiva", "ilrma", "fastmnmf2")
# The dictionary of every kind of recording; "new" ones are in no dictionary.
KINDS = {
    "man": "man", "woman": "woman", "music": "music", "other": "other",
    "new_voice": "speech", "new_music": "music",
}  # fmt: skip
TALK, TWO, BAND = ("man", "music"), ("man", "woman"), ("man", "music", "woman")
NEW = ("new_voice", "new_music")
LIVE = ("room", "stream", "mask")
ROOMS = [(0.15, 25), (0.15, 5), (0.3, 25), (0.3, 5)]
CELLS = [
    *[Cell(f"speech and music, {t60} s", TALK, t60) for t60 in (0.15, 0.3, 0.6)],
    *[Cell(f"speech and speech, {t60} s", TWO, t60) for t60 in (0.15, 0.3, 0.6)],
    *[Cell(f"unseen speech and music, {t60} s", NEW, t60) for t60 in (0.15, 0.3)],
    *[Cell(f"speech and music, {t60} s, noise {snr} dB", TALK, t60, snr) for t60, snr in ROOMS],
    *[Cell(f"speech and speech, {t60} s, noise {snr} dB", TWO, t60, snr) for t60, snr in ROOMS],
    *[Cell(f"speech and speech, {apart}° apart", TWO, apart=apart) for apart in (20, 45, 90)],
    Cell("three microphones", BAND),
    Cell("four microphones", (*BAND, "other")),
    Cell("40 s of speech and music", TALK, seconds=40, methods=LIVE),
    Cell("40 s of speech and speech", TWO, seconds=40, methods=LIVE),
    Cell("speech moves by 60° in 40 s", TALK, moving=60, seconds=40, methods=(*LIVE, "auxiva")),
    Cell("panned to 20° and 65°", TALK, pan=(20, 65), methods=("pan", "mask")),
    Cell("panned to 35° and 50°", TALK, pan=(35, 50), methods=("pan", "mask")),
    Cell("panned to 15°, 45° and 75°", BAND, pan=(15, 45, 75), methods=("pan", "mask")),
]


def models(audio: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, files in split(audio)[0].items():
        if not (folder / f"{name}.ondes").exists():
            print(f"learning {name} from {len(files)} recordings", flush=True)
            ondes.learn(files, n_jobs=-1).save(folder / f"{name}.ondes")


# ---- methods ----


def blind(method: str, mixture: np.ndarray) -> np.ndarray:
    """The outputs of a blind method at the first microphone, (n_sources, n)."""
    from pyroomacoustics import bss

    np.random.seed(0)
    frames = STFT.forward(mixture).transpose(0, 2, 1).astype(np.complex128)
    if method == "auxiva":
        outputs = bss.auxiva(frames, n_iter=30)
    elif method == "ilrma":
        outputs = bss.ilrma(frames, n_iter=50, n_components=2)
    else:
        outputs = bss.fastmnmf2(frames, n_iter=50, n_components=8)
    return np.stack([STFT.inverse(each, len(mixture)) for each in np.moveaxis(outputs, 2, 0)])


def named(method: str, mixture: np.ndarray, kinds: tuple[str, ...], given: Path) -> np.ndarray:
    """The stems of a method with dictionaries, (n_sources, n, n_channels)."""
    dictionaries = {kind: ondes.load(given / f"{KINDS[kind]}.ondes") for kind in kinds}
    options = {"mask": {"spatial": "none"}, "stream": {"spatial": "room", "batch_size": 32}}
    chosen = options.get(method, {"spatial": method})
    if method == "trained":
        talk = ondes.load(given / "talk.ondes")
        stems = ondes.separate(mixture, talk, sr=SR, spatial="room")
        return np.stack([stems["speech"], stems["music"]])
    stems = ondes.separate(mixture, dictionaries, sr=SR, **chosen)
    return np.stack([stems[kind] for kind in kinds])


def improvements(images: np.ndarray, estimates: np.ndarray, mixture: np.ndarray, pan: bool) -> list:
    """SI-SDR improvement of each source at the first microphone, or in both panned channels."""
    if pan:
        images, estimates, mixture = (
            each.reshape(*each.shape[:-2], -1) for each in (images, estimates, mixture)
        )
    elif images.ndim == 3:
        images, mixture = images[:, :, 0], mixture[:, 0]
        estimates = estimates[:, :, 0] if estimates.ndim == 3 else estimates
    pairs = zip(images, estimates, strict=True)
    return [si_sdr(truth, found) - si_sdr(truth, mixture) for truth, found in pairs]


def measure(job: tuple[Cell, Path, Path, int]) -> dict[str, object]:
    cell, audio, given, seed = job
    mixture, images = scene(cell, audio, seed)
    found: dict[str, object] = {"cell": cell.name, "seed": seed}
    after = slice(SECONDS * SR, None) if cell.seconds > SECONDS else slice(None)
    for method in cell.methods:
        begin = time.process_time()
        if method in BLIND:
            outputs = blind(method, mixture)
            orders = itertools.permutations(range(len(outputs)))
            every = [
                improvements(images[:, after], outputs[list(o)][:, after], mixture[after], False)
                for o in orders
            ]
            gains = max(every, key=np.mean)
        else:
            stems = named(method, mixture, cell.kinds, given)
            gains = improvements(images[:, after], stems[:, after], mixture[after], bool(cell.pan))
        seconds = time.process_time() - begin
        found[method] = {"db": [round(float(g), 2) for g in gains], "cpu_s": round(seconds, 2)}
    return found


def merged(before: list[dict], found: list[dict]) -> list[dict]:
    """What was measured before and is not measured again, and all that was found now."""
    scenes = {(each["cell"], each["seed"]): each for each in before}
    for each in found:
        scenes[each["cell"], each["seed"]] = scenes.get((each["cell"], each["seed"]), {}) | each
    return list(scenes.values())


def summary(found: list[dict]) -> dict[str, object]:
    rows = {}
    for cell in CELLS:
        own = [each for each in found if each["cell"] == cell.name]
        if not own:
            continue
        methods = {}
        for method in dict.fromkeys(key for each in own for key in each):
            if method in ("cell", "seed"):
                continue
            means = [float(np.mean(each[method]["db"])) for each in own if method in each]
            quartiles = np.quantile(means, [0.25, 0.5, 0.75])
            cpu = float(np.median([each[method]["cpu_s"] for each in own if method in each]))
            methods[method] = {
                "median": round(float(quartiles[1]), 1),
                "quartiles": [round(float(quartiles[0]), 1), round(float(quartiles[2]), 1)],
                "worst": round(min(means), 1),
                "cpu_s": cpu,
            }
        rows[cell.name] = {"n_scenes": len(own), "methods": methods}
    return rows


# ---- speed ----


def speed(audio: Path, given: Path, hours: float) -> dict[str, object]:
    """How many times faster than real time, batch of ten seconds and an endless stream.

    With `hours`, also the megabytes after each tenth of so long a stream.
    """
    cell = Cell("speed", TALK, seconds=30)
    mixture, _ = scene(cell, audio, 0)
    dictionaries = {kind: ondes.load(given / f"{KINDS[kind]}.ondes") for kind in TALK}
    short = mixture[: SECONDS * SR]
    ondes.separate(short[:SR], dictionaries, sr=SR, spatial="room")
    begin = time.perf_counter()
    ondes.separate(short, dictionaries, sr=SR, spatial="room")
    batch = SECONDS / (time.perf_counter() - begin)
    rates = {}
    for name, batch_size in {"stream": 32, "file": None}.items():
        separator = ondes.Separator(dictionaries, sr=SR, spatial="room", batch_size=batch_size)
        for _ in range(2):
            separator.push(mixture)
        begin = time.perf_counter()
        for _ in range(2):
            separator.push(mixture)
        rates[name] = 2 * cell.seconds / (time.perf_counter() - begin)
    separator = ondes.Separator(dictionaries, sr=SR, spatial="room", batch_size=32)
    megabytes = []
    for _ in range(10 if hours else 0):
        for _ in range(round(hours * 360 / cell.seconds)):
            separator.push(mixture)
        megabytes.append(round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    return {
        "batch_x_real_time": round(batch, 1),
        "stream_x_real_time": round(rates["stream"], 1),
        "file_x_real_time": round(rates["file"], 1),
        "n_cores": len(os.sched_getaffinity(0)),
        **({"peak_mb_by_tenths": megabytes, "hours": hours} if hours else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audio", type=Path, help="the folder of recordings")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "rooms_models")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--scenes", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="number of the first scene")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--methods", nargs="*", help="only these")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--speed", action="store_true", help="print the speed, and nothing else")
    parser.add_argument("--hours", type=float, default=0.0, help="of a stream, with --speed")
    given = parser.parse_args()
    models(given.audio, given.models)
    if given.speed:
        print(json.dumps(speed(given.audio, given.models, given.hours)))
        return
    cells = [cell for cell in CELLS if given.only in cell.name]
    if (given.models / "talk.ondes").exists():
        talks = [cell.kinds in (TALK, NEW) and not cell.pan for cell in cells]
        cells = [
            replace(cell, methods=(*cell.methods, "trained")) if is_talk else cell
            for cell, is_talk in zip(cells, talks, strict=True)
        ]
    if given.methods:
        kept = {cell: tuple(m for m in cell.methods if m in given.methods) for cell in cells}
        cells = [replace(cell, methods=each) for cell, each in kept.items() if each]
    seeds = range(given.first, given.first + given.scenes)
    jobs = [(cell, given.audio, given.models, seed) for cell in cells for seed in seeds]
    jobs.sort(key=lambda job: -job[0].seconds * len(job[0].kinds))  # the longest first
    found = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for number, each in enumerate(pool.map(measure, jobs), 1):
            found.append(each)
            print(f"{number}/{len(jobs)} {each['cell']} {each['seed']}", flush=True)
    before = json.loads(given.output.read_text())["scenes"] if given.output.exists() else []
    scenes = merged(before, found)
    result = {"cells": summary(scenes), "scenes": scenes}
    KEPT["rooms"].write(result, sorted({each["cell"] for each in found}), given.output)
    draw(result, ROOT / "docs" / "figures")
    print(table(result))


if __name__ == "__main__":
    main()
