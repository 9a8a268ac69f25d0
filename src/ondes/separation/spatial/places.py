"""Where sources stand: delays between microphones, angles, and places in a stereo image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.signal.stft import Stft

__all__ = ["IN_PHASE", "arrival_angle", "arrival_delays", "in_phase_share", "resembles_room"]

SPEED_OF_SOUND = 343.0  # m/s at 20 °C
LONGEST_DELAY = 3e-3  # seconds: one metre
OVERSAMPLING = 16
BAND = (300.0, 4000.0)  # Hz
COHERENT, IN_PHASE = 0.84, 0.6  # a room's channels are more alike than the one, less than the other


def arrival_delays(
    samples: ArrayLike, sr: int, longest: float = LONGEST_DELAY
) -> NDArray[np.float64]:
    """How much later one source's sound arrives at each microphone than at the first.

    By the generalised cross-correlation with phase transform (GCC-PHAT).

    Parameters
    ----------
    samples : array of shape (n, n_channels)
        The image of one source at the microphones, such as a stem of `ondes.separate`.
    sr : int
    longest : float
        In seconds: no delay beyond is looked for. The largest distance divided by 343 m/s is best.

    Returns
    -------
    array of shape (n_channels,)
        In seconds, to about a sixteenth of a sample; the first is zero.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal(4000)
    >>> bool(np.isclose(arrival_delays(np.stack([noise[3:], noise[:-3]], 1), 8000)[1], 3 / 8000))
    True
    """
    image = np.asarray(samples, np.float64)
    n_fft = 2 * len(image)
    spectra = np.fft.rfft(image, n_fft, axis=0)
    most = max(1, round(longest * sr * OVERSAMPLING))
    delays = np.zeros(image.shape[1])
    for channel in range(1, image.shape[1]):
        cross = spectra[:, channel] * spectra[:, 0].conj()
        weight = np.abs(cross)
        cross = np.divide(
            cross, weight, out=np.zeros_like(cross), where=weight > 1e-12 * weight.max()
        )
        correlation = np.fft.irfft(cross, n_fft * OVERSAMPLING)
        around = np.concatenate([correlation[-most:], correlation[: most + 1]])
        delays[channel] = (int(around.argmax()) - most) / (sr * OVERSAMPLING)
    return delays


def arrival_angle(delay: float, spacing: float) -> float:
    """The angle in degrees between a far source and straight ahead of two microphones.

    Parameters
    ----------
    delay : float
        In seconds; positive where the sound reaches the second microphone later.
    spacing : float
        Distance between the microphones in metres.

    Returns
    -------
    float
        -90 to 90, negative on the side of the first microphone. One pair cannot tell front from
        back.

    Examples
    --------
    >>> round(arrival_angle(0.08 / 343 / 2, 0.08))
    -30
    """
    if not spacing > 0:
        raise ValueError(f"spacing={spacing!r} must be a positive distance in metres.")
    return -float(np.degrees(np.arcsin(np.clip(delay * SPEED_OF_SOUND / spacing, -1, 1))))


def resembles_room(samples: ArrayLike, sr: int) -> bool:
    """Whether two channels are like those of two microphones close to each other.

    Their phases differ, but by much the same in every frame: produced stereo is either in phase,
    or hardly coherent. Right for every simulated room with microphones 8 cm apart that was tried,
    and wrong for 3 of 100 stereo tracks. Further apart, microphones are rarely recognised.

    Parameters
    ----------
    samples : array of shape (n, n_channels)
        Some seconds; the first two channels are looked at. Less than one tells nothing.
    sr : int

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal(40000)
    >>> resembles_room(np.stack([noise, noise], axis=1), 8000)
    False
    >>> resembles_room(np.stack([noise[4:], noise[:-4]], axis=1), 8000)
    True
    """
    pair = np.asarray(samples, np.float32)[:, :2]
    if len(pair) < sr:
        return False
    stft = Stft(1920, 960).at_rate(sr / 16000)
    frequency = np.arange(stft.n_bins) * sr / stft.n_fft
    frames = stft.forward(pair)[..., (frequency > BAND[0]) & (frequency < BAND[1])]
    peak = np.abs(frames).max(initial=0)
    if not peak > 0 or pair.shape[1] < 2:
        return False
    left, right = np.moveaxis((frames / peak).astype(np.complex128), 1, 0)
    cross = left * right.conj()
    in_phase = in_phase_share(left, right)
    powers = [np.square(np.abs(each)).sum(axis=0) for each in (left, right)]
    coherence = np.abs(cross.sum(axis=0)).sum() / (np.sqrt(powers[0] * powers[1]).sum() + 1e-300)
    return bool(coherence > COHERENT and in_phase < IN_PHASE)


def in_phase_share(left: NDArray[Any], right: NDArray[Any]) -> float:
    """How much of the sound has the same phase in both channels, bin by bin, by its amplitude.

    Examples
    --------
    >>> round(in_phase_share(np.array([1, 1j]), np.array([4, -1j])), 2)
    0.67
    """
    cross = left.astype(np.complex128) * right.conj()
    size = np.abs(cross)
    weight = np.sqrt(size)
    return float(weight[cross.real > 0.95 * size].sum() / (weight.sum() + 1e-300))
