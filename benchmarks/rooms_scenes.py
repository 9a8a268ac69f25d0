"""Scenes for `rooms.py`: which recordings, where they stand, and what the microphones hear."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import soundfile
import soxr

SR = 16000
HELD_OUT = {
    *("casualties_of_war", "journeys_end", "loyalists", "return_to_wesnoth", "suspense"),
    *("transience", "weight_of_revenge"),
}
LEFT_OUT = {"frantic-old", "silence"}


@dataclass(frozen=True)
class Cell:
    name: str
    kinds: tuple[str, ...]
    t60: float = 0.3
    snr: float | None = None  # of the sensors' noise, in decibels
    apart: float | None = None  # degrees between two sources; by default at least 40
    pan: tuple[float, ...] = ()  # degrees in a stereo image instead of a room
    moving: float = 0.0  # degrees that the first source moves by
    seconds: int = 10
    methods: tuple[str, ...] = ("room", "mask", "auxiva", "ilrma", "fastmnmf2")


# ---- recordings ----


def read(path: Path, start: float = 0.0, seconds: float | None = None) -> np.ndarray:
    with soundfile.SoundFile(path) as file:
        rate = file.samplerate
        file.seek(min(int(start * rate), len(file)))
        n = -1 if seconds is None else int(seconds * rate)
        samples = file.read(n, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    return mono if rate == SR else soxr.resample(mono, rate, SR)


def split(audio: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Training recordings by dictionary, and those of the scenes by kind: no recording is both."""
    russian = sorted((audio / "speech/festvox_ru_wav").glob("ru_*"))
    english = sorted((audio / "speech/asterisk_en").rglob("*.flac"))
    other = sorted((audio / "speech/asterisk_ru").rglob("*.flac"))
    tracks = [p for p in sorted((audio / "music/wesnoth").glob("*.*")) if p.stem not in LEFT_OUT]
    ufo = sorted((audio / "music/ufoai").rglob("*.*"))
    new_english = {p for p in english if p.name.startswith(("demo-", "priv-"))}
    new_english |= {p for p in english if zlib.crc32(p.stem.encode()) % 5 == 0}
    man = [p for p in russian if p.name < "ru_0757"]
    woman = [p for p in english if p not in new_english]
    learned = {
        "man": man[::3],
        "woman": woman,
        "music": [p for p in tracks if p.stem not in HELD_OUT],
        "other": [p for p in other if zlib.crc32(p.stem.encode()) % 3],
        "speech": [*man[::6], *woman],
    }
    new_other = [p for p in other if p not in learned["other"]]
    played = {
        "man": [p for p in russian if p.name >= "ru_0757"],
        "woman": sorted(new_english),
        "music": [p for p in tracks if p.stem in HELD_OUT],
        "other": new_other,
        "new_voice": new_other,  # the dictionary `speech` has heard none of this speaker
        "new_music": ufo,
    }
    return learned, played


@cache
def dry_signal(audio: Path, kind: str) -> tuple[np.ndarray, ...]:
    """Speech joined to one signal; of each track, up to a minute."""
    files = split(audio)[1][kind]
    if "music" not in kind:
        return (np.concatenate([read(path) for path in files]),)
    starts = {path: 20 if soundfile.info(path).duration > 90 else 0 for path in files[:24]}
    return tuple(read(path, start, 60) for path, start in starts.items())


def excerpt(audio: Path, kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    signals = [signal for signal in dry_signal(audio, kind) if len(signal) > n]
    for _ in range(100):
        signal = signals[rng.integers(len(signals))]
        first = rng.integers(len(signal) - n)
        found = signal[first : first + n]
        if np.sqrt(np.mean(found**2)) > 0.2 * np.sqrt(np.mean(signal**2)):
            return found
    raise SystemExit(f"{kind}: no excerpt of {n / SR:.0f} s is loud enough.")


# ---- scenes ----


def scene(cell: Cell, audio: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A mixture, (n, n_channels), and the images of its sources, (n_sources, n, n_channels)."""
    rng = np.random.default_rng([zlib.crc32(cell.name.encode()), seed])
    n = cell.seconds * SR
    dry = np.stack([excerpt(audio, kind, n, rng) for kind in cell.kinds])
    if cell.pan:
        places = np.radians(cell.pan)
        dry /= np.sqrt(np.mean(dry**2, axis=1, keepdims=True))
        images = dry[:, :, None] * np.stack([np.cos(places), np.sin(places)], 1)[:, None]
    else:
        images = in_a_room(cell, dry, rng)
        images /= np.sqrt(np.mean(images[:, :, :1] ** 2, axis=(1, 2), keepdims=True))
    mixture = images.sum(axis=0)
    gain = 0.5 / np.abs(mixture).max()
    if cell.snr is not None:
        noise = rng.standard_normal(mixture.shape) * np.sqrt(np.mean(mixture**2))
        mixture = mixture + noise * 10 ** (-cell.snr / 20)
    return (gain * mixture).astype(np.float32), (gain * images).astype(np.float32)


def in_a_room(cell: Cell, dry: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images at a line of microphones 8 cm apart; sources 1 to 1.6 m away, in front."""
    import pyroomacoustics as pra
    from scipy.signal import fftconvolve

    n_sources, n = dry.shape
    size = rng.uniform([5, 4, 2.5], [7, 6, 3.2])
    absorption, order = pra.inverse_sabine(cell.t60, size)
    centre = size / 2 + rng.uniform(-0.5, 0.5, 3) * [1, 1, 0.3]
    turn = rng.uniform(0, np.pi)
    along = (np.arange(n_sources) - (n_sources - 1) / 2) * 0.08
    mics = centre[:, None] + along * np.array([[np.cos(turn)], [np.sin(turn)], [0]])
    if cell.apart is not None:
        middle = rng.uniform(-80 + cell.apart / 2, 80 - cell.apart / 2)
        angles = middle + cell.apart * np.array([-0.5, 0.5]) * rng.choice([-1, 1])
    else:
        angles = rng.uniform(-80, 80, n_sources)
        while np.diff(np.sort(angles)).min() < min(40, 120 / n_sources):
            angles = rng.uniform(-80, 80, n_sources)
    distances = rng.uniform(1.0, 1.6, n_sources)

    def responses(angles: np.ndarray) -> list[list[np.ndarray]]:
        room = pra.ShoeBox(size, fs=SR, materials=pra.Material(absorption), max_order=order)
        for angle, distance in zip(np.radians(angles) + turn + np.pi / 2, distances, strict=True):
            place = centre + distance * np.array([np.cos(angle), np.sin(angle), 0])
            room.add_source(np.clip(place, 0.3, size - 0.3))
        room.add_microphone_array(pra.MicrophoneArray(mics, SR))
        room.compute_rir()
        return room.rir

    def images(rir: list[list[np.ndarray]], source: int) -> np.ndarray:
        at = [fftconvolve(dry[source], mic[source])[:n] for mic in rir]
        return np.stack(at, axis=1)

    first = responses(angles)
    found = [images(first, source) for source in range(n_sources)]
    if cell.moving:  # cross-fades between nine places on the way
        way = np.linspace(0, cell.moving * (-1 if angles[0] > 0 else 1), 9)
        at = np.linspace(0, len(way) - 1, n)
        found[0] = np.zeros_like(found[0])
        for step, degrees in enumerate(way):
            weight = np.maximum(0, 1 - np.abs(at - step))[:, None]
            there = angles + np.eye(n_sources)[0] * degrees
            found[0] += weight * images(responses(there), 0)
    return np.stack(found)
