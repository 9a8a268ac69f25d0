"""The recordings of every experiment and benchmark, and how they become frames.

They come from Debian packages, unpacked under one folder; `experiments/fetch_audio.sh` does that.
Nothing of them is kept in this repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.frame_reader import FrameBuffer
from ondes.signal.recordings import probe, read
from ondes.signal.segment_reader import RecordingReader
from ondes.signal.silence import is_active, loudest_of
from ondes.signal.stft import Stft

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
    """How recordings become frames. The paper says 512 and 256; about 11 kHz fits its counts."""

    sr: int = 11025
    n_fft: int = 512
    top_db: float = 60.0  # frames so far below the loudest of their recording are silent

    @property
    def stft(self) -> Stft:
        return Stft(self.n_fft)

    @property
    def audio(self) -> AudioSettings:
        return AudioSettings(self.sr, self.stft, self.top_db)


@dataclass(frozen=True)
class Recordings:
    root: Path

    def __post_init__(self) -> None:
        if not (self.root / WESNOTH).is_dir():
            raise SystemExit(
                f"There are no recordings under {self.root}: run experiments/fetch_audio.sh, or "
                "give AUDIO=folder, where the packages are unpacked."
            )

    def music(self, held_out: bool) -> list[Path]:
        """99 minutes of orchestral and folk music in 27 tracks; 26 minutes in 7 held out."""
        tracks = sorted((self.root / WESNOTH).glob("*.ogg"))
        return [
            track
            for track in tracks
            if track.stem not in LEFT_OUT_MUSIC
            and (track.stem in HELD_OUT_MUSIC) == held_out
            and (probe(track).seconds or 0) >= SHORTEST_TRACK_S
        ]

    def speech(self, held_out: bool) -> list[Path]:
        """Sentences of one man, 99 minutes in 620 files; the last 60 files are held out."""
        sentences = sorted((self.root / RUSSIAN).glob("*.wav"))
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
        return self.root / WESNOTH / f"{EXCERPT}.ogg"


def shuffled_frames(
    paths: list[Path], frontend: Frontend, n_frames: int | None = None, seed: int = 0
) -> np.ndarray:
    """Frames of all recordings in one random order, float32; the first `n_frames` of them."""
    frames = np.concatenate(list(frame_batches(paths, frontend.audio, 1000)))
    return frames[np.random.default_rng(seed).permutation(len(frames))[:n_frames]]


def frames_between(path: Path, start_s: float, end_s: float, frontend: Frontend) -> np.ndarray:
    """Frames of one recording between two times, in their order, silent ones left out."""
    first, end = (
        round(second * frontend.sr / frontend.stft.hop_length) for second in (start_s, end_s)
    )
    reader = RecordingReader(path, frontend.audio, first=first)
    frames = FrameBuffer(frontend.stft, end - first).add(reader.take(end - first))
    reader.close()
    energies = frames.sum(axis=1)
    return frames[is_active(energies, 0, loudest_of(energies, 0), frontend.top_db)]


def samples(path: Path, sr: int, seconds: float | None = None) -> np.ndarray:
    """A recording as one array of shape (n,), the mean of its channels."""
    whole, _ = read(path, sr)
    whole = whole.mean(axis=1) if whole.ndim == 2 else whole
    return whole if seconds is None else whole[: round(seconds * sr)]
