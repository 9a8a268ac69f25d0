"""The recordings of every experiment and benchmark, and how they become frames.

They come from Debian packages, unpacked under one folder; `experiments/fetch_audio.sh` does that.
Nothing of them is kept in this repository. The experiments of the paper take any other folder or
recording as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ondes
from ondes.signal.recordings import find_recordings, probe

WESNOTH = "usr/share/games/wesnoth/1.16/data/core/music"
RUSSIAN = "usr/share/festival/voices/russian/msu_ru_nsh_clunits/wav"
SECTOID = "usr/share/games/fretsonfire/data/songs/sectoid"
HOURS = ("usr/share/games/wesnoth", "usr/share/games/warzone2100")

HELD_OUT_MUSIC = (
    *("casualties_of_war", "journeys_end", "loyalists", "return_to_wesnoth", "suspense"),
    *("transience", "weight_of_revenge"),
)
LEFT_OUT_MUSIC = ("frantic-old", "silence")  # a copy of another track, and silence
SHORTEST_TRACK_S = 30
FIRST_HELD_OUT_SENTENCE = "ru_0757"
EXCERPT = "weight_of_revenge"  # the paper's 30 seconds and 4 minutes


@dataclass(frozen=True)
class Frontend:
    """How recordings become frames: mono, as in the paper.

    The paper says 512 and 256; about 11 kHz fits its counts. Bins that the resampler has touched
    are left out.
    """

    sr: int = 11025
    n_fft: int = 512
    top_db: float = 60.0  # frames so far below the loudest of their recording are silent

    @property
    def hop_length(self) -> int:
        return self.n_fft // 2

    def frames(self, path: Path, start_s: float = 0.0, end_s: float | None = None) -> np.ndarray:
        """Power of a recording between two times, float32, silent frames left out."""
        whole, _ = ondes.read(path, self.sr)
        mono = whole.mean(axis=1) if whole.ndim == 2 else whole
        end = None if end_s is None else round(end_s * self.sr)
        stft = ondes.Stft(self.n_fft, self.hop_length)
        power = stft.power(mono[round(start_s * self.sr) : end])
        power = power[:, : ondes.AudioSettings(self.sr, stft, fmax=0.45 * self.sr).n_bins]
        energies = power.sum(axis=1)
        loudest = energies.max(initial=0)
        return power[(energies > 0) & (energies >= loudest * 10 ** (-self.top_db / 10))]


@dataclass(frozen=True)
class Recordings:
    root: Path

    def __post_init__(self) -> None:
        if not self.root.exists():
            raise SystemExit(
                f"There are no recordings under {self.root}: run experiments/fetch_audio.sh, or "
                "give AUDIO= a recording, a folder of recordings, or where packages are unpacked."
            )

    @property
    def is_known(self) -> bool:
        """Whether these are the packages of `fetch_audio.sh`."""
        return (self.root / WESNOTH).is_dir()

    def music(self, held_out: bool) -> list[Path]:
        """99 minutes of orchestral and folk music in 27 tracks; 26 minutes in 7 held out.

        Of other recordings every fifth is held out.
        """
        if not self.is_known:
            paths = sorted(map(Path, map(str, find_recordings(self.root))))
            return [path for number, path in enumerate(paths) if (number % 5 == 4) == held_out]
        tracks = sorted((self.root / WESNOTH).iterdir())  # a copy may have another format
        return [
            track
            for track in tracks
            if track.stem not in LEFT_OUT_MUSIC
            and (track.stem in HELD_OUT_MUSIC) == held_out
            and (probe(track).seconds or 0) >= SHORTEST_TRACK_S
        ]

    def speech(self, held_out: bool) -> list[Path]:
        """Sentences of one man, 99 minutes in 620 files; the last 60 files are held out."""
        sentences = sorted((self.root / RUSSIAN).iterdir())
        return [path for path in sentences if (path.stem >= FIRST_HELD_OUT_SENTENCE) == held_out]

    def stems(self) -> list[Path]:
        """Folders of four songs, each with guitar.ogg and song.ogg, the rest of the band."""
        return sorted(path.parent for path in (self.root / SECTOID).glob("*/guitar.ogg"))

    def hours(self) -> list[Path]:
        """All the music."""
        found = [path for part in HOURS for path in (self.root / part).rglob("*")]
        return sorted(path for path in found if path.suffix in {".ogg", ".opus"})

    @property
    def excerpt(self) -> Path:
        """The track of the paper's 30 seconds and 4 minutes: of other recordings the longest."""
        if self.is_known:
            return next((self.root / WESNOTH).glob(f"{EXCERPT}.*"))
        return max(self.music(False), key=lambda path: probe(path).seconds or 0)


def shuffled_frames(
    paths: list[Path], frontend: Frontend, n_frames: int | None = None, seed: int = 0
) -> np.ndarray:
    """Frames of all recordings in one random order, float32; the first `n_frames` of them."""
    frames = np.concatenate([frontend.frames(path) for path in paths])
    return frames[np.random.default_rng(seed).permutation(len(frames))[:n_frames]]


def samples(path: Path, sr: int, seconds: float | None = None) -> np.ndarray:
    """A recording as one array of shape (n,), the mean of its channels."""
    whole, _ = ondes.read(path, sr)
    whole = whole.mean(axis=1) if whole.ndim == 2 else whole
    return whole if seconds is None else whole[: round(seconds * sr)]
