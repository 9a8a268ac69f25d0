"""A track of the page from samples that come in blocks: its sound, picture, power and place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.report.content import Sound, Track
from ondes.report.sounds import EncodedSound
from ondes.separation.energies import SpanSums
from ondes.separation.spatial.places import LONGEST_DELAY, SPEED_OF_SOUND, arrival_angle
from ondes.signal.stft import Stft, mean_power

__all__ = ["MAX_COLUMNS", "N_ROWS", "PlaceMeter", "TrackBuilder", "hertz_of", "mel_of"]

Samples = NDArray[np.float32]
Array = NDArray[np.floating]

MAX_COLUMNS = 1000
N_ROWS = 160


class TrackBuilder:
    """Samples in, a `Track` out, at constant memory; `stft` is that of its picture.

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
        self._cells = SpanSums(self._length, -stft.n_padding / 2, stft.hop_length)
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


ASSUMED_DISTANCE = 0.08  # metres
HIGHEST = 8000.0  # Hz: what is above adds noise
STEPS = 16  # per sample at twice that frequency
STRAIGHT = 2.5  # degrees


class PlaceMeter:
    """Frames of a stem in, a description of its place out, at constant memory.

    In a room, the delay between the first two microphones is that at which their cross-correlation
    is highest, each frequency counting as much as the channels are coherent there. A far source
    at the angle θ from straight ahead is heard later by the distance between the microphones times
    sin θ / 343 m/s. The distance is 8 cm, as the page then says, unless it is given. One pair
    cannot tell front from back.

    Panned stereo has the angle whose tangent is the ratio of the channels' amplitudes.

    >>> from ondes.signal.stft import Stft
    >>> noise = np.random.default_rng(0).standard_normal(40000).astype(np.float32)
    >>> meter = PlaceMeter("room", sr=16000, n_fft=1024, mic_distance=0.08)
    >>> meter.add(Stft(1024).forward(np.stack([noise[2:], noise[:-2]], axis=1)))
    >>> meter.describe()
    'arrives 0.12 ms later at microphone 2: 32° towards microphone 1, with microphones 8 cm apart'
    """

    def __init__(self, spatial: str, sr: int, n_fft: int, mic_distance: float | None = None):
        if mic_distance is not None and not 0 < mic_distance < math.inf:
            raise ValueError(f"mic_distance={mic_distance!r} must be a positive number of metres.")
        self._spatial, self._spacing = spatial, sr / n_fft
        self._distance, self._is_given = mic_distance or ASSUMED_DISTANCE, mic_distance is not None
        self._powers = np.zeros((2, n_fft // 2 + 1))
        self._cross = np.zeros(n_fft // 2 + 1, np.complex128)

    def add(self, frames: NDArray[np.complex64]) -> None:
        """Take the next frames, (n, n_channels, n_bins)."""
        first, second = frames[:, 0], frames[:, 1]
        self._powers += np.square(np.abs(frames[:, :2])).sum(axis=0, dtype=np.float64)
        self._cross += (second * first.conj()).sum(axis=0, dtype=np.complex128)

    def describe(self) -> str | None:
        """The place in words; None where there is no sound."""
        if not self._powers.any():
            return None
        if self._spatial == "pan":
            left, right = np.sqrt(self._powers.sum(axis=1))
            angle = math.degrees(math.atan2(right, left))
            return f"panned to {angle:.0f}° (0° is left, 45° the centre, 90° right)"
        delay, distance = self._delay(), self._distance
        apart = f"microphones {100 * distance:.3g} cm apart"
        if abs(delay) < 5e-6:
            return f"arrives at both microphones together: straight ahead, with {apart}"
        later = 2 if delay > 0 else 1
        heard = f"arrives {1e3 * abs(delay):.2f} ms later at microphone {later}"
        if abs(delay) * SPEED_OF_SOUND > 1.2 * distance:
            return f"{heard}: too late for {apart}; give --mic-distance to see the angle"
        angle = abs(arrival_angle(delay, distance))
        side = f"{angle:.0f}° towards microphone {3 - later}"
        return f"{heard}: {side if angle > STRAIGHT else 'straight ahead'}, with {apart}"

    def _delay(self) -> float:
        """Seconds by which the second channel is later."""
        size = np.sqrt(self._powers.prod(axis=0))
        n_used = max(2, int(HIGHEST / self._spacing) + 1)
        coherence = np.divide(self._cross, size, out=np.zeros_like(self._cross), where=size > 0)
        coherence = coherence[:n_used]
        n_steps = 2 * STEPS * max(1, len(coherence) - 1)
        correlation = np.fft.irfft(coherence, n_steps)
        step = 1 / (self._spacing * n_steps)
        longest = 1.1 * self._distance / SPEED_OF_SOUND if self._is_given else LONGEST_DELAY
        most = min(max(1, round(longest / step)), n_steps // 2 - 1)
        around = np.concatenate([correlation[-most:], correlation[: most + 1]])
        return (int(around.argmax()) - most) * step
