"""Pools of recordings for the separators that come with ondes, mono at 16 kHz, as Ogg Opus.

    python recordings.py PACKAGES RECORDINGS LISTS POOLS [speech music noise rooms]

PACKAGES holds each Debian package of src/ondes/models/shelf/README.md unpacked under its name
(`apt-get download NAME && dpkg-deb -x NAME_*.deb NAME`), and the sdist of `acoustics` in `deb`;
RECORDINGS the development recordings (music/wesnoth, speech/festvox_ru_wav, speech/asterisk_en),
LISTS the lists of those to train on (speech_ru_train.txt, wesnoth_train.txt, wesnoth_heldout.txt).
Needs ffmpeg, soundfile and soxr. What cannot be read is named and left out.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

SR = 16000
FRAME = 320  # samples: 20 ms
LEFT_OUT = {"el", "da", "lt", "nl"}  # languages that separation is judged on
NO_SPEECH = re.compile(r"(\d+|tt-monkeys|tt-weasels|.*beep.*|.*tone.*)\.flac")  # of Asterisk
EXAMPLES = "csoundqt-examples/usr/share/csoundqt/Examples/SourceMaterials"
STAMPS = "tuxpaint-stamps-default/usr/share/tuxpaint/stamps"
GAMES = {
    "openarena-data": r"^sound/(world|items|player/footsteps|weapons|misc|movers)",
    "warzone2100-data": r"^(base/)?audio/sfx",
}


# ---- one recording ----


def read(source: Any, start: float = 0.0, seconds: float | None = None) -> np.ndarray:
    """Mono samples at 16 kHz from a time on."""
    with soundfile.SoundFile(source) as file:
        rate = file.samplerate
        file.seek(min(int(start * rate), max(0, file.frames - rate)))
        n_samples = -1 if seconds is None else int(seconds * rate)
        samples = file.read(n_samples, dtype="float32", always_2d=True).mean(axis=1)
    return samples if rate == SR else soxr.resample(samples, rate, SR)


def read_or_none(source: Any) -> np.ndarray | None:
    """The samples of a file, or of a pair of an archive and a name in it."""
    try:
        if isinstance(source, tuple):
            with zipfile.ZipFile(source[0]) as archive:
                source = io.BytesIO(archive.read(source[1]))
        return read(source)
    except (soundfile.LibsndfileError, zipfile.BadZipFile) as error:
        print(f"  left out: {source}: {error}")
        return None


def frame_levels(samples: np.ndarray) -> np.ndarray:
    """The level of each frame in decibels."""
    n_frames = len(samples) // FRAME
    if n_frames < 3:
        return np.full(1, -120.0)
    frames = np.square(samples[: n_frames * FRAME]).reshape(n_frames, FRAME)
    return 10 * np.log10(frames.mean(axis=1) + 1e-12)


def trimmed(samples: np.ndarray, pause: float = 0.25) -> np.ndarray:
    """Without pauses of more seconds than that, 40 dB below the loudest frame."""
    levels = frame_levels(samples)
    loud = levels > levels.max() - 40
    if not loud.any() or len(samples) < 3 * FRAME:
        return samples[:0]
    keep, n_quiet = np.ones(len(loud), bool), 0
    for number, is_loud in enumerate(loud):
        n_quiet = 0 if is_loud else n_quiet + 1
        keep[number] = n_quiet <= pause * SR / FRAME
    first, last = np.flatnonzero(loud)[[0, -1]]
    keep[: max(0, first - 3)] = False
    keep[last + 6 :] = False
    return samples[: len(keep) * FRAME][np.repeat(keep, FRAME)]


def levelled(samples: np.ndarray) -> np.ndarray:
    """At -23 dB; nothing of silence."""
    rms = np.sqrt(np.mean(samples**2)) if len(samples) else 0.0
    return samples * (10 ** (-23 / 20) / rms) if rms > 1e-5 else samples[:0]


# ---- pools ----


@dataclass
class Pools:
    """Where recordings come from, and the files that are made of them."""

    packages: Path
    recordings: Path
    lists: Path
    out: Path
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def find(self, pattern: str) -> list[Path]:
        """Files of the packages."""
        return sorted(self.packages.glob(pattern))

    def listed(self, name: str) -> list[Path]:
        """The development recordings of a list."""
        lines = (self.lists / name).read_text().splitlines()
        return [self.recordings / line.strip() for line in lines if line.strip()]

    def collect(
        self, paths: Iterable[Path], seconds: float, spread: float = 0.0
    ) -> list[np.ndarray]:
        """Random files until so many seconds; those whose levels spread less are noisy."""
        found, total, paths = [], 0.0, sorted(paths)
        order = [paths[number] for number in self.rng.permutation(len(paths))]
        with ThreadPoolExecutor(2) as pool:
            for samples in pool.map(read_or_none, order):
                if samples is None or len(samples) < SR // 4:
                    continue
                if np.subtract(*np.percentile(frame_levels(samples), [95, 5])) < spread:
                    continue
                samples = levelled(trimmed(samples))
                if len(samples) >= SR // 5:
                    found.append(samples)
                    total += len(samples) / SR
                if total > seconds:
                    break
        return found

    def write(self, name: str, pieces: Sequence[np.ndarray], kbps: int) -> None:
        """One file of all pieces, each faded in and out over 10 ms."""
        faded = []
        for piece in pieces:
            n_faded = min(SR // 100, len(piece) // 4)
            gain = np.ones(len(piece), np.float32)
            gain[:n_faded] = np.linspace(0, 1, n_faded)
            gain[len(piece) - n_faded :] = np.linspace(1, 0, n_faded)
            faded.append(piece * gain)
        samples = np.clip(np.concatenate(faded), -1, 1).astype("<f4")
        path = self.out / f"{name}.opus"
        made = ["-f", "f32le", "-ar", str(SR), "-ac", "1", "-i", "-", "-c:a", "libopus"]
        command = ["ffmpeg", "-v", "error", "-y", *made, "-b:a", f"{kbps}k", str(path)]
        subprocess.run(command, input=samples.tobytes(), check=True)
        print(f"{name}: {len(samples) / SR / 60:.1f} min, {path.stat().st_size / 1e6:.2f} MB")

    def shuffled(self, pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [pieces[number] for number in self.rng.permutation(len(pieces))]


def language(path: Path, pattern: str) -> str:
    found = re.search(pattern, str(path))
    return re.split("[@_]", found[1])[0] if found else ""


def speech(pools: Pools) -> None:
    spoken: dict[str, list[Path]] = {}
    for path in pools.find(f"{STAMPS}/**/*_desc_*.ogg"):
        name = language(path, r"_desc_([A-Za-z_@]+?)(?:\.\w+)?\.ogg$")
        spoken.setdefault(name, []).append(path)
    pieces = []
    for name in ("fr", "ro", "ru", "ca", "bg", "es"):
        pieces += pools.collect(spoken[name], 760, 20 if name == "fr" else 28)
    for pattern, code, seconds in (
        ("ktuberling-data/usr/share/ktuberling/sounds/*/*.*", r"sounds/([^/]+)/", 1400),
        ("klettres-data/**/*.ogg", r"klettres/([^/]+)/", 600),
    ):
        paths = [each for each in pools.find(pattern) if language(each, code) not in LEFT_OUT]
        audio = [each for each in paths if each.suffix in {".ogg", ".wav", ".opus"}]
        pieces += pools.collect(audio, seconds, 28)
    pieces += pools.collect(pools.find("fillets-ng-data-cs/**/cs/*.ogg"), 1000, 25)
    voices = pools.find("hedgewars-data/**/voices/*/*.ogg")
    plain = [path for path in voices if not re.search("Singer|Robot", str(path))]
    pieces += pools.collect(plain, 360, 25)
    pieces += pools.collect(pools.listed("speech_ru_train.txt"), 1200)
    english = (pools.recordings / "speech/asterisk_en").glob("*.flac")
    pieces += pools.collect((path for path in english if not NO_SPEECH.match(path.name)), 1400)
    pools.write("speech", pools.shuffled(pieces), 16)
    pools.write("speech_held", pools.collect(spoken["be"], 170, 25), 24)


def music(pools: Pools) -> None:
    parts: list[tuple[Path, float, float]] = []  # file, start and length in seconds
    parts += [(path, 5, 150) for path in pools.listed("wesnoth_train.txt")]
    albums = pools.find("warzone2100-music/**/*.opus")
    for path in albums[:-3]:
        length = soundfile.info(path).duration
        parts += [(path, length * (part + 0.25) / 4, 38) for part in range(4)]
    for pattern, start, length in (
        ("supertuxkart-data/**/data/music/*.ogg", 4, 40),
        ("hedgewars-data/**/Data/Music/*.ogg", 4, 34),
        ("fretsonfire-songs-sectoid/**/song.ogg", 20, 100),
    ):
        parts += [(path, start, length) for path in pools.find(pattern)]
    with ThreadPoolExecutor(2) as pool:
        pieces = list(pool.map(lambda part: levelled(read(*part)), parts))
    pools.write("music", pools.shuffled([each for each in pieces if len(each) > SR]), 19)
    held = [(path, 40, 14) for path in pools.listed("wesnoth_heldout.txt")]
    held += [(path, 60, 24) for path in albums[-3:]]
    pools.write("music_held", [levelled(read(*part)) for part in held], 28)


def noise(pools: Pools) -> None:
    files: list[Any] = [
        path
        for path in pools.find(f"{STAMPS}/**/*.ogg")
        if "_desc" not in path.name and "/symbols/" not in str(path)
    ]
    files += pools.find("supertuxkart-data/**/data/sfx/*.ogg")
    files += pools.find("hedgewars-data/usr/share/games/hedgewars/Data/Sounds/*.ogg")
    files += pools.find("bucklespring-data/usr/share/buckle/wav/*.wav")[::3]
    names = ("Seashore", "Bounce", "Mug", "Wood", "dish")
    files += [pools.packages / EXAMPLES / f"{name}.wav" for name in names]
    held: list[Any] = []
    for package, pattern in GAMES.items():
        for path in [*pools.find(f"{package}/**/*.pk3"), *pools.find(f"{package}/**/*.wz")]:
            with zipfile.ZipFile(path) as archive:
                inside = archive.namelist()
            for name in inside:
                is_sound = re.search(pattern, name) and name.endswith((".ogg", ".wav"))
                if is_sound and "announce" not in name:
                    (held if "ambient" in name else files).append((path, name))

    def loaded(sources: list[Any]) -> list[np.ndarray]:
        samples = (each for each in map(read_or_none, sources) if each is not None)
        short = (trimmed(each[: 40 * SR], 0.4) for each in samples)
        pieces = [levelled(each) for each in short if len(each) >= SR // 10]
        return [each for each in pieces if len(each)]

    # Short ones a few times.
    repeated = [np.tile(x, max(1, min(4, 3 * SR // len(x)))) for x in loaded(files)]
    pools.write("noise", pools.shuffled(repeated), 28)
    pools.write("noise_held", loaded(held), 28)


def rooms(pools: Pools) -> None:
    names = ("Stairwell", "impulse_big_hall")
    responses: list[Any] = [pools.packages / EXAMPLES / f"{name}.wav" for name in names]
    responses += pools.find("jconvolver-config-files/**/street2-L.wav")
    with tarfile.open(pools.find("deb/acoustics-*.tar.gz")[0]) as archive:
        for member in archive.getmembers():
            if member.name.endswith(".wav") and "ir_" in member.name:
                responses.append(io.BytesIO(archive.extractfile(member).read()))
    kept = []
    for response in responses:
        samples = read(response)
        samples = samples[max(0, int(np.argmax(np.abs(samples))) - 8) :][:SR]
        kept.append(np.pad(samples, (0, SR - len(samples))) / np.sqrt(np.sum(samples**2)))
    np.save(pools.out / "rooms.npy", np.array(kept, np.float16))
    print(f"rooms: {len(kept)} responses")


MAKE: dict[str, Callable[[Pools], None]] = {
    "speech": speech, "music": music, "noise": noise, "rooms": rooms,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("packages", "recordings", "lists", "pools"):
        parser.add_argument(name, type=Path)
    parser.add_argument("what", nargs="*", choices=[[], *MAKE], default=list(MAKE))
    given = parser.parse_args()
    given.pools.mkdir(parents=True, exist_ok=True)
    pools = Pools(given.packages, given.recordings, given.lists, given.pools)
    for name in given.what:
        MAKE[name](pools)


if __name__ == "__main__":
    main()
