"""A synthetic scene of four instruments, with every stem known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scene", "make_scene"]

Samples = NDArray[np.float32]
Signal = NDArray[np.float64]

BEAT = 0.75  # seconds: 80 beats a minute
PEAK = 0.9
DAMPING = 0.1  # ½ is the first Karplus-Strong, whose bright notes are gone at once
# Chords of A minor as MIDI pitches (root, third, fifth): Am F C G, Dm Em for variety.
CHORDS = {
    "Am": (57, 60, 64),
    "F": (53, 57, 60),
    "C": (48, 52, 55),
    "G": (55, 59, 62),
    "Dm": (50, 53, 57),
    "Em": (52, 55, 59),
}
TUNES = (
    ("Am", "F", "C", "G"),
    ("C", "G", "Am", "F"),
    ("Am", "Dm", "F", "Em"),
    ("F", "G", "Em", "Am"),
)
# Which bars each instrument plays, repeated: all begin, and each rests at times.
PARTS = {"strings": "10111111", "bass": "11100011", "drums": "11100001"}
# Power of each stem in the mixture, in decibels.
LEVELS = {"strings": 0.0, "bass": -1.0, "drums": -1.0, "wind": -7.0}


@dataclass(frozen=True)
class Scene:
    """A mixture whose sources are known.

    Attributes
    ----------
    stems : dict of str to float32 array of shape (n,)
    sr : int
        Sampling rate in Hz.
    """

    stems: dict[str, Samples]
    sr: int

    @cached_property
    def mixture(self) -> Samples:
        """The sum of the stems, float32 of shape (n,), added in their order."""
        total = np.zeros_like(next(iter(self.stems.values())))
        for stem in self.stems.values():
            total += stem
        return total


def make_scene(seconds: float = 24.0, sr: int = 22050, random_state: int = 0) -> Scene:
    """Synthesise a short piece: plucked strings, bass, drums, and wind noise.

    Parameters
    ----------
    seconds : float
    sr : int
        Sampling rate in Hz.
    random_state : int
        Each value gives another tune of the same instruments; the same value gives the same bits.

    Examples
    --------
    >>> scene = make_scene(seconds=2.0)
    >>> sorted(scene.stems)
    ['bass', 'drums', 'strings', 'wind']
    >>> scene.mixture.shape
    (44100,)
    """
    n = round(seconds * sr)
    if n < 1:
        raise ValueError(
            f"seconds={seconds} at sr={sr} is less than one sample; give a longer duration."
        )
    rng = np.random.default_rng(random_state)
    n_bars = int(seconds / (4 * BEAT)) + 1
    tune = [chord for _ in range(n_bars // 4 + 1) for chord in TUNES[rng.integers(len(TUNES))]]
    played = {
        "strings": _strings(tune[:n_bars], n, sr, rng),
        "bass": _bass(tune[:n_bars], n, sr, rng),
        "drums": _drums(tune[:n_bars], n, sr, rng),
        "wind": _wind(n, sr, rng),
    }
    for name, level in LEVELS.items():
        played[name] *= 10 ** (level / 20) / max(np.sqrt(np.mean(played[name] ** 2)), 1e-12)
    gain = PEAK / np.abs(sum(played.values())).max()
    return Scene({name: (gain * stem).astype(np.float32) for name, stem in played.items()}, sr)


def _bars(tune: list[str], part: str) -> list[tuple[int, str]]:
    """The bars that an instrument plays, and their chords."""
    plays = PARTS[part]
    return [(bar, chord) for bar, chord in enumerate(tune) if plays[bar % len(plays)] == "1"]


def _strings(tune: list[str], n: int, sr: int, rng: np.random.Generator) -> Signal:
    """Broken chords in eighths, and a melody of chord tones an octave above."""
    stem = np.zeros(n)
    for bar, chord in _bars(tune, "strings"):
        low, middle, high = (pitch + 12 for pitch in CHORDS[chord])
        for eighth, pitch in enumerate((low, middle, high, middle, low + 12, high, middle, high)):
            at = (4 * bar + eighth / 2) * BEAT + 0.006 * rng.standard_normal()
            _add(stem, at, _pluck(pitch, 1.6, sr, rng) * rng.uniform(0.6, 0.9), sr)
        for beat in rng.choice(4, size=2, replace=False):
            pitch = rng.choice((low, middle, high)) + 12
            _add(stem, (4 * bar + beat) * BEAT, _pluck(pitch, 2.2, sr, rng), sr)
    return stem


def _pluck(pitch: float, seconds: float, sr: int, rng: np.random.Generator) -> Signal:
    """Karplus and Strong (1983): a burst of noise circulates in a delay line that averages."""
    from scipy.signal import lfilter  # 2 s to import, so only where it is needed

    delay = sr / _hertz(pitch) - DAMPING  # the average of two neighbours delays, too
    whole = int(delay)
    fraction = delay - whole
    noise = rng.uniform(-1, 1, size=whole)
    noise = 0.5 * (noise + np.roll(noise, 1))  # a softer finger
    noise -= noise.mean()  # the loop would ring at zero hertz as well
    burst = np.zeros(round(seconds * sr))
    burst[:whole] = noise / np.sqrt(np.mean(noise**2))
    # The gain of the loop makes every pitch decay by 60 dB in about three seconds.
    kept = 10 ** (-delay / sr)
    loop = np.zeros(whole + 3)
    loop[0] = 1
    loop[whole : whole + 3] = -kept * np.convolve([1 - DAMPING, DAMPING], [1 - fraction, fraction])
    rung: Signal = lfilter([1.0], loop, burst)
    return rung * _fade(len(rung), sr)


def _bass(tune: list[str], n: int, sr: int, rng: np.random.Generator) -> Signal:
    """Roots and fifths, round: few harmonics, a soft attack."""
    stem = np.zeros(n)
    for bar, chord in _bars(tune, "bass"):
        root = CHORDS[chord][0] - 24 + 12 * (CHORDS[chord][0] < 50)
        for beat, length, pitch in ((0, 1.5, root), (1.5, 0.5, root), (2, 1.5, root + 7)):
            time = np.arange(round(length * BEAT * sr)) / sr
            phase = 2 * np.pi * _hertz(pitch) * time + rng.uniform(0, 2 * np.pi)
            tone = sum(np.sin(k * phase) / k**1.7 for k in range(1, 6))
            envelope = (1 - np.exp(-time / 0.012)) * np.exp(-time / 0.9)
            _add(stem, (4 * bar + beat) * BEAT, tone * envelope * _fade(len(time), sr), sr)
    return stem


def _drums(tune: list[str], n: int, sr: int, rng: np.random.Generator) -> Signal:
    """Kick on one and three, snare on two and four, hat in eighths."""
    from scipy.signal import butter, lfilter

    stem = np.zeros(n)
    time = np.arange(round(0.35 * sr)) / sr
    bright = butter(4, min(6500 / (sr / 2), 0.9), "high")
    snare_band = butter(2, [min(900 / (sr / 2), 0.5), min(5000 / (sr / 2), 0.9)], "band")
    for eighth in (8 * bar + i for bar, _ in _bars(tune, "drums") for i in range(8)):
        at = eighth * BEAT / 2
        loudness = rng.uniform(0.8, 1.0)
        hiss = rng.standard_normal(len(time))
        hat = lfilter(*bright, hiss) * np.exp(-time / (0.06 if eighth % 8 == 7 else 0.025))
        _add(stem, at, 0.35 * loudness * hat, sr)
        if eighth % 8 in (0, 5):
            sweep = 2 * np.pi * (48 * time + 3.2 * (1 - np.exp(-time / 0.03)))
            _add(stem, at, 1.5 * loudness * np.sin(sweep) * np.exp(-time / 0.09), sr)
        if eighth % 4 == 2:
            rattle = lfilter(*snare_band, rng.standard_normal(len(time))) * np.exp(-time / 0.07)
            skin = 0.5 * np.sin(2 * np.pi * 190 * time) * np.exp(-time / 0.05)
            _add(stem, at, loudness * (1.3 * rattle + skin), sr)
    return stem


def _wind(n: int, sr: int, rng: np.random.Generator) -> Signal:
    """Noise in the mid range that swells slowly."""
    from scipy.signal import butter, lfilter

    band = butter(2, [min(500 / (sr / 2), 0.5), min(2500 / (sr / 2), 0.9)], "band")
    time = np.arange(n) / sr
    swell = 0.55 + 0.3 * np.sin(2 * np.pi * time / 7.3 + rng.uniform(0, 2 * np.pi))
    swell += 0.15 * np.sin(2 * np.pi * time / 2.9 + rng.uniform(0, 2 * np.pi))
    blown: Signal = lfilter(*band, rng.standard_normal(n)) * swell
    return blown


def _hertz(pitch: float) -> float:
    return float(440 * 2 ** ((pitch - 69) / 12))


def _fade(n: int, sr: int) -> Signal:
    """Ones that fall to zero over the last 20 ms, so that no note ends with a click."""
    return np.clip((n - np.arange(n)) / (0.02 * sr), 0, 1)


def _add(stem: Signal, seconds: float, note: Signal, sr: int) -> None:
    first = max(round(seconds * sr), 0)
    room = stem[first : first + len(note)]
    room += note[: len(room)]
