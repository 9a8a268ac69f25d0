"""What separation is measured on: recordings to learn from and mixtures of others, as files.

    python benchmarks/separation_scenes.py --audio FOLDER SCENES [--minutes 40]

writes the training recordings and the true sources of every mixture as Ogg Vorbis, 16 kHz, one
channel, under SCENES, small enough to carry to another machine; what is decoded is the truth.
FOLDER has, from the Debian packages in brackets:

- speech/festvox_ru_wav (festvox-ru), speech/asterisk_en and speech/asterisk_ru
  (asterisk-core-sounds-en-g722 and -ru-g722, as FLAC);
- music/wesnoth (wesnoth-1.16-music), music/ufoai (ufoai-music);
- stems/SONG/guitar.ogg and song.ogg (fretsonfire-songs-sectoid);
- noise: arcticwind, waterfontain, fire, smallfire, sand-city and ufo_night_atm (ufoai-sound,
  base/sound/ambience), benchsaw_00, benchsaw_01, weaving, weaver, inn_01 and stonecutter_01
  (widelands-data). All are recordings made for games; nothing in them is synthesised here.

A condition whose recordings are missing is left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

SR, SECONDS, N_EXCERPTS = 16000, 10, 24
N = SECONDS * SR
HELD_OUT = {
    *("casualties_of_war", "journeys_end", "loyalists", "return_to_wesnoth", "suspense"),
    *("transience", "weight_of_revenge", "frantic-old", "silence"),
}
FIRST_HELD_OUT_SENTENCE = "ru_0757"
NOISE_EXAMPLE_S, NOISE_S = 4, 6
EXAMPLE_LEVEL = 0.02  # root mean square of the noise that an example is written at
GUITAR_S = 60  # of each of the other songs
SMALL_SPEECH_S, SMALL_MUSIC_S = 120, 300


@dataclass(frozen=True)
class Condition:
    """Two sources, the folders to learn them from, and mixtures of other recordings."""

    name: str
    names: tuple[str, str]
    training: dict[str, Path]
    test: Path

    def excerpts(self, *beside: str) -> Iterator[dict[str, np.ndarray]]:
        """The true sources of each mixture, at equal power unless they are stems of one song."""
        for path in sorted(self.test.glob(f"*_{self.names[0]}.ogg")):
            number = path.name.split("_")[0]
            yield {
                name: soundfile.read(path.with_name(f"{number}_{name}.ogg"), dtype="float32")[0]
                for name in (*self.names, *beside)
            }


def conditions(scenes: Path) -> dict[str, Condition]:
    """Those that were written, by name; a song of the band is a condition of its own."""
    found = json.loads((scenes / "conditions.json").read_text())
    return {
        name: Condition(
            name,
            tuple(each["names"]),
            {source: scenes / folder for source, folder in each["training"].items()},
            scenes / each["test"],
        )
        for name, each in found.items()
    }


# ---- writing them ----


def read(path: Path, start: float = 0.0, seconds: float | None = None) -> np.ndarray:
    with soundfile.SoundFile(path) as file:
        file.seek(min(len(file), int(start * file.samplerate)))
        n = -1 if seconds is None else int(seconds * file.samplerate)
        mono = file.read(n, dtype="float32", always_2d=True).mean(axis=1)
        return mono if file.samplerate == SR else soxr.resample(mono, file.samplerate, SR)


def duration(path: Path) -> float:
    return float(soundfile.info(path).duration)


def spoken(paths: list[Path]) -> np.ndarray:
    """Sentences in a row; some prompts of a telephone exchange are seconds of silence."""
    sentences = map(read, paths)
    return np.concatenate([each for each in sentences if np.mean(each**2) > 1e-6])


def write_vorbis(path: Path, samples: np.ndarray) -> None:
    with soundfile.SoundFile(path, "w", SR, 1, format="OGG", subtype="VORBIS") as file:
        for block in np.array_split(samples, max(1, len(samples) // SR)):
            file.write(block)  # libsndfile's Vorbis encoder needs short blocks


class Writer:
    """Writes training recordings and mixtures of one condition."""

    def __init__(self, folder: Path, names: tuple[str, str]) -> None:
        self._folder, self.names, self.n_mixtures = folder, names, 0

    def train(self, source: str, name: str, samples: np.ndarray) -> None:
        path = self._folder / "train" / source / f"{name}.ogg"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_vorbis(path, samples / max(1.0, float(np.abs(samples).max(initial=0))))

    def test(self, first: np.ndarray, second: np.ndarray, equal: bool = True, **beside) -> None:
        powers = np.mean(first**2), np.mean(second**2)
        if len(first) != len(second) or min(powers) < 1e-8:
            return
        if equal:
            second = second * np.sqrt(powers[0] / powers[1])
        self.n_mixtures += 1
        peak = max(np.abs(first).max(), np.abs(second).max())
        folder = self._folder / "test"
        folder.mkdir(parents=True, exist_ok=True)
        both = (0.99 * each / peak for each in (first, second))
        for name, samples in (dict(zip(self.names, both, strict=True)) | beside).items():
            write_vorbis(folder / f"{self.n_mixtures:02d}_{name}.ogg", samples)


def write(audio: Path, scenes: Path, minutes: float) -> None:
    """Write every condition whose recordings are there; at most so many minutes of each source."""
    written: dict[str, dict[str, Any]] = {}
    russian = sorted((audio / "speech/festvox_ru_wav").glob("*.wav"))
    known = [path for path in russian if path.stem < FIRST_HELD_OUT_SENTENCE]
    held_out = [path for path in russian if path.stem >= FIRST_HELD_OUT_SENTENCE]
    english = sorted((audio / "speech/asterisk_en").glob("*.flac"))
    unseen = sorted((audio / "speech/asterisk_ru").glob("*.flac"))
    tracks = sorted((audio / "music/wesnoth").glob("*.ogg"))
    music = [path for path in tracks if path.stem not in HELD_OUT and duration(path) >= 75]
    own = [path for path in tracks if path.stem in HELD_OUT - {"frantic-old", "silence"}]
    other = [p for p in sorted((audio / "music/ufoai").rglob("*.ogg")) if duration(p) > 60]
    noises = sorted((audio / "noise").glob("*.ogg"))
    songs = sorted(path.parent for path in (audio / "stems").glob("*/guitar.ogg"))
    both = ("speech", "music")
    per_track = 60 * minutes / max(1, len(music))

    def begin(name: str, names: tuple[str, str] = both) -> Writer:
        training = {source: f"{name}/train/{source}" for source in names}
        written[name] = {"names": names, "training": training, "test": f"{name}/test"}
        return Writer(scenes / name, names)

    def some(paths: list[Path], seconds: float) -> list[Path]:
        """Evenly spaced ones that last about so long."""
        total = sum(map(duration, paths))
        step = max(1, round(total / seconds))
        return paths[::step]

    if known and held_out and music and own:
        writer = begin("A")
        for path in some(known, 60 * minutes):
            writer.train("speech", path.stem, read(path))
        for path in music:
            writer.train("music", path.stem, read(path, 15, per_track))
        voice = spoken(held_out)
        for number in range(N_EXCERPTS):
            path = own[number % len(own)]
            start = 10 + (number // len(own)) * 0.22 * (duration(path) - 25)
            at = number * N % (len(voice) - N)
            writer.test(voice[at : at + N], read(path, start, SECONDS)[:N])
        small = begin("small")
        for path in some(known, SMALL_SPEECH_S):
            small.train("speech", path.stem, read(path))
        for path in music[:: max(1, len(music) // 6)][:6]:
            small.train("music", path.stem, read(path, 15, SMALL_MUSIC_S / 6))
        written["small"]["test"] = "A/test"
    if "A" in written and english and unseen and other:
        writer = begin("unseen")
        for path in [*known[:300:3], *some(english, 60 * minutes / 2)]:
            writer.train("speech", path.stem, read(path))
        written["unseen"]["training"]["music"] = "A/train/music"
        voice = spoken(unseen)
        for number, path in enumerate(other[:: max(1, len(other) // N_EXCERPTS)][:N_EXCERPTS]):
            writer.test(voice[number * N :][:N], read(path, 30, SECONDS)[:N])
    for number, song in enumerate(songs):
        writer = begin(f"G{number + 1}", ("guitar", "rest"))
        for each in songs:
            if each != song:
                writer.train("guitar", each.name, read(each / "guitar.ogg", 10, GUITAR_S))
                writer.train("rest", each.name, read(each / "song.ogg", 10, GUITAR_S))
        stems = [read(song / name) for name in ("guitar.ogg", "song.ogg")]
        pieces = [each[: min(map(len, stems)) // N * N].reshape(-1, N) for each in stems]
        for piece in np.argsort(-np.mean(pieces[0] ** 2, axis=1))[:4]:
            writer.test(pieces[0][piece], pieces[1][piece], equal=False)
    if noises and "unseen" in written:
        writer = begin("noise", ("speech", "noise"))
        written["noise"]["training"] = {"speech": "unseen/train/speech"}
        voices = [spoken(paths[:80]) for paths in (unseen, held_out)]
        n = NOISE_S * SR
        for number, path in enumerate(noises):
            sound = read(path)
            example, rest = sound[: NOISE_EXAMPLE_S * SR], sound[NOISE_EXAMPLE_S * SR :][:n]
            for voice in voices:
                # The example is the same recording, so it keeps its level to the noise.
                power = np.sqrt(np.mean(rest**2))
                words = voice[number * n :][:n]
                writer.test(words, rest, example=example / power * EXAMPLE_LEVEL)
    scenes.mkdir(parents=True, exist_ok=True)
    (scenes / "conditions.json").write_text(json.dumps(written))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--minutes", type=float, default=40.0, help="of each source, at most")
    given = parser.parse_args()
    write(given.audio, given.scenes, given.minutes)


if __name__ == "__main__":
    main()
