"""Where a source stands, from the differences between the channels of its stem."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ondes.separation.spatial.places import SPEED_OF_SOUND, arrival_angle

__all__ = ["ASSUMED_DISTANCE", "PlaceMeter"]

ASSUMED_DISTANCE = 0.08  # metres
LONGEST_DELAY = 3e-3  # seconds: one metre
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

    Parameters
    ----------
    spatial : {"room", "pan"}
    sr : int
        Of the stem.
    n_fft : int
        Of its frames.
    mic_distance : float, optional
        Between the first two microphones, in metres; longer delays are not looked for.

    Examples
    --------
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
