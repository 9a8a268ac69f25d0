"""Spectrograms in tiles of every zoom, computed when they are looked at.

A tile is 256 columns wide. At level ℓ a column lasts 2^ℓ / 64 s; rows are frequencies, the lowest
first. A byte is a level in half decibels above −120 dB, where 0 dB is
a sine at full scale. Where a column is long, a few frames of it stand for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ondes.models.model import Model
from ondes.signal.stft import Stft, mean_power
from ondes.studio.playback import power_of_parts
from ondes.studio.recording import Recording

__all__ = ["COLUMNS", "LEVELS", "ROWS", "Scale", "part_tiles", "tile"]

Array = NDArray[np.floating]
Bytes = NDArray[np.uint8]

COLUMNS, ROWS = 256, 160
BASE = 1 / 64  # seconds per column at level 0
LEVELS = range(-3, 16)
LOWEST_HZ = 40.0
FRAME_SECONDS = 0.08
MAX_FRAMES = 4  # per column; where columns are longer, frames between them are not looked at
MAX_PART_FRAMES = 2
COLUMNS_AT_ONCE, FEW_PARTS = 32, 4  # of a model with more parts, for its memory
LONGEST_READ = 120.0  # seconds: longer tiles are read piece by piece
LOWEST_DB, STEPS_PER_DB = -120.0, 2.0


@dataclass(frozen=True)
class Scale:
    """The rows of a tile: frequencies from `lowest` to `highest`.

    Examples
    --------
    >>> Scale(16000.0).edges(3).round()
    array([   40.,   295.,  2172., 16000.])
    >>> Scale(12000.0, 0.0, is_linear=True).edges(3)
    array([    0.,  4000.,  8000., 12000.])
    """

    highest: float
    lowest: float = LOWEST_HZ
    is_linear: bool = False

    def __post_init__(self) -> None:
        if not (0 if self.is_linear else 1) <= self.lowest < self.highest < math.inf:
            raise ValueError("There is no picture of these frequencies; show all of them.")

    def edges(self, n_rows: int = ROWS) -> Array:
        """The frequencies between which rows lie, shape (n_rows + 1,)."""
        spaced = np.linspace if self.is_linear else np.geomspace
        return spaced(self.lowest, self.highest, n_rows + 1)

    def pooled(self, power: Array, hz_per_bin: float) -> Array:
        """The largest power within every row, (..., n_bins) to (..., ROWS)."""
        n_bins = power.shape[-1]
        edges = self.edges() / hz_per_bin
        first = np.clip(np.round(edges[:-1]).astype(int), 0, n_bins - 1)
        # Where rows are narrower than bins, a row shows its nearest bin.
        pooled: Array = np.maximum.reduceat(power, first, axis=-1)
        is_single = np.append(np.diff(first) == 0, False)
        pooled[..., is_single] = power[..., first[is_single]]
        last = max(first[-1] + 1, min(n_bins, round(edges[-1])))
        pooled[..., -1] = power[..., first[-1] : last].max(axis=-1)
        pooled[..., edges[:-1] > n_bins] = 0
        return pooled


def tile(recording: Recording, scale: Scale, level: int, index: int) -> Bytes:
    """The spectrogram of a part of a recording, shape (ROWS, COLUMNS)."""
    stft = _stft(recording.sr)
    column_power = [
        scale.pooled(_power(windows, stft), recording.sr / stft.n_fft).max(axis=0)
        if len(windows)
        else np.zeros(ROWS)
        for windows in _columns(recording, recording.sr, stft.n_fft, level, index, MAX_FRAMES)
    ]
    return _as_bytes(np.stack(column_power, axis=1), stft)


def part_tiles(recording: Recording, scale: Scale, level: int, index: int, model: Model) -> Bytes:
    """The same of each part of a model as it is heard, shape (n_parts, ROWS, COLUMNS)."""
    stft, sr, n_parts = model.audio.stft, model.audio.sr, len(model.names)
    columns = _columns(recording, sr, stft.n_fft, level, index, MAX_PART_FRAMES)
    n_frames = [len(windows) for windows in columns]
    power = np.concatenate([np.zeros((0, stft.n_bins)), *(_power(each, stft) for each in columns)])
    pooled = np.zeros((n_parts, ROWS, COLUMNS))
    ends = np.cumsum(n_frames)
    n_columns = COLUMNS if n_parts <= FEW_PARTS else COLUMNS_AT_ONCE
    for first in range(0, COLUMNS, n_columns):
        rows = slice(ends[first] - n_frames[first], ends[first + n_columns - 1])
        block = power[rows].astype(np.float32)
        if not len(block):
            continue
        heard = power_of_parts(model, block)
        for part in range(n_parts):
            shown = scale.pooled(heard[part], sr / stft.n_fft)
            for column in range(first, first + n_columns):
                own = slice(ends[column] - n_frames[column] - rows.start, ends[column] - rows.start)
                pooled[part, :, column] = shown[own].max(axis=0, initial=0)
    return _as_bytes(pooled, stft)


def _stft(sr: int) -> Stft:
    n_fft = max(64, round(FRAME_SECONDS * sr))
    return Stft(n_fft, n_fft // 4)


def _columns(
    recording: Recording, sr: int, n_fft: int, level: int, index: int, max_frames: int
) -> Sequence[NDArray[np.float32]]:
    """The samples under the frames of every column, each (n_frames, n_fft, channels)."""
    seconds = BASE * 2.0**level
    total = round(recording.n_samples * sr / recording.sr)
    n_each = int(min(max_frames, max(1, np.ceil(seconds * sr / (n_fft / 2)))))
    starts = (index * COLUMNS + (np.arange(COLUMNS * n_each) + 0.5) / n_each) * seconds * sr
    begins = np.round(starts).astype(int)  # of the centres of frames
    n_wanted = int(np.searchsorted(begins, total))
    begins = begins - n_fft // 2
    windows = np.zeros((n_wanted, n_fft, recording.channels), np.float32)
    if n_wanted and seconds * COLUMNS <= LONGEST_READ:
        first = begins[0]
        samples = recording.samples(max(first, 0), begins[n_wanted - 1] + n_fft, sr)
        samples = np.pad(samples, ((max(-first, 0), n_fft + sr), (0, 0)))
        for window, begin in zip(windows, begins, strict=False):
            window[:] = samples[begin - first : begin - first + n_fft]
    else:
        for window, begin in zip(windows, begins, strict=False):
            got = recording.samples(max(begin, 0), begin + n_fft, sr)
            window[max(-begin, 0) :][: len(got)] = got
    at = np.arange(COLUMNS) * n_each
    return [windows[first : first + n_each] for first in at]


def _power(windows: NDArray[np.float32], stft: Stft) -> NDArray[np.float32]:
    """Mean power of the channels, (n, n_fft, channels) to (n, n_bins)."""
    power = np.zeros((len(windows), stft.n_bins), np.float32)
    for rows, spectra in stft.spectra(np.moveaxis(windows, 1, 2)):
        mean_power(spectra, out=power[rows])
    return power


def _as_bytes(power: Array, stft: Stft) -> Bytes:
    full_scale = float(stft.window_array.sum() / 2) ** 2
    decibels = 10 * np.log10(np.maximum(power / full_scale, 1e-13))
    levels: Bytes = np.clip((decibels - LOWEST_DB) * STEPS_PER_DB, 0, 255).astype(np.uint8)
    return levels
