"""A track of the page from samples that come in blocks: its sound, picture and power."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.report.content import Sound, Track
from ondes.report.places import PlaceMeter
from ondes.report.sounds import EncodedSound
from ondes.separation.cells import Cells
from ondes.signal.stft import Stft, mean_power

__all__ = ["MAX_COLUMNS", "N_ROWS", "TrackBuilder", "hertz_of", "mel_of"]

Samples = NDArray[np.float32]
Array = NDArray[np.floating]

MAX_COLUMNS = 1000
N_ROWS = 160


class TrackBuilder:
    """Samples in, a `Track` out, at constant memory.

    Parameters
    ----------
    sr : int
    channels : int
    n_samples : int
        How many will come.
    stft : Stft
        Of the picture.
    bit_rate : int
        Of the sound, per second and channel.
    gain : float
        Of the sound; the same for all tracks, so that levels stay comparable.
    place : PlaceMeter, optional
        Says where the track comes from.

    Examples
    --------
    >>> track = TrackBuilder(8000, 1, 8000, Stft(256), bit_rate=32000)
    >>> for _ in range(2):
    ...     track.write(np.ones((4000, 1)))
    >>> made = track.finish("constant")
    >>> made.power, made.spectrogram.shape
    (1.0, (63, 160))
    """

    def __init__(
        self,
        sr: int,
        channels: int,
        n_samples: int,
        stft: Stft,
        bit_rate: int,
        gain: float = 1.0,
        place: PlaceMeter | None = None,
    ) -> None:
        self._place = place
        self._sound = EncodedSound(sr, channels, bit_rate=bit_rate, gain=gain)
        self._n_samples, self._sr = n_samples, sr
        self._frames = stft.stream(channels)
        self._rows = _row_weights(stft, sr)
        n_columns = max(1, min(MAX_COLUMNS, math.ceil(n_samples / stft.hop_length)))
        self._length = n_samples / n_columns
        self._hop = stft.hop_length
        self._cells = Cells(self._length, -stft.n_padding / 2, stft.hop_length)
        self._columns: list[Array] = []
        self._energy = 0.0

    def write(self, samples: Samples) -> None:
        """Append samples of shape (n, channels)."""
        self._sound.write(samples)
        self._energy += float(np.square(samples, dtype=np.float64).sum()) / samples.shape[1]
        frames = self._frames.push(samples)
        if self._place is not None:
            self._place.add(frames)
        self._columns.append(self._cells.push(self._powers(frames)))

    def finish(self, name: str, **facts: Any) -> Track:
        """The track, with its name and further parameters of `Track`."""
        frames = self._frames.flush()
        if self._place is not None:
            self._place.add(frames)
        self._columns.append(self._cells.finish(self._powers(frames), self._n_samples))
        spectrogram = np.concatenate(self._columns) * (self._hop / self._length)
        sound = Sound(self._sound.finish(), self._sound.media_type, 0.0, self._n_samples / self._sr)
        place = None if self._place is None else self._place.describe()
        power = self._energy / self._n_samples
        return Track(name, sound, spectrogram, power, place=place, **facts)

    def _powers(self, frames: NDArray[np.complex64]) -> Array:
        powers: Array = mean_power(frames) @ self._rows
        return powers


def _row_weights(stft: Stft, sr: int) -> NDArray[np.float32]:
    """Weights of the bins in each row of the picture, (n_bins, N_ROWS): rows are equal in mel."""
    edges = hertz_of(np.linspace(0, mel_of(sr / 2), N_ROWS + 1)) * stft.n_fft / sr + 0.5
    bins = np.arange(stft.n_bins)[:, None]
    low, high = np.maximum(edges[:-1], bins), np.minimum(edges[1:], bins + 1)
    weights = np.maximum(high - low, 0) / np.diff(edges)
    rows: NDArray[np.float32] = weights.astype(np.float32)
    return rows


def mel_of(hertz: float) -> float:
    """The mel scale: equal steps sound about equally far apart."""
    return 2595 * math.log10(1 + hertz / 700)


def hertz_of(mel: Array) -> Array:
    """The inverse of `mel_of`."""
    hertz: Array = 700 * (10 ** (mel / 2595) - 1)
    return hertz
