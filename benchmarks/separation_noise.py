"""Noise reduction: speech under real noises, of which four seconds are heard alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from separation_methods import oracle
from separation_scenes import EXAMPLE_LEVEL, NOISE_EXAMPLE_S, SR, Condition

import ondes
from ondes.scores import si_sdr
from ondes.separation.denoising import denoise
from ondes.signal.stft import Stft

SNRS = (0, 10)

Denoise = Callable[[np.ndarray], np.ndarray]  # the example and the noisy speech in one recording


def with_speech(condition: Condition, seed: int) -> Denoise:
    speech = ondes.learn(str(condition.training["speech"]), random_state=seed)
    span = (0.0, float(NOISE_EXAMPLE_S))
    return lambda noisy: denoise(noisy, SR, noise=span, speech=speech, random_state=seed)


def without_speech(condition: Condition, seed: int) -> Denoise:
    return lambda noisy: denoise(noisy, SR, noise=(0.0, float(NOISE_EXAMPLE_S)))


def stationary(condition: Condition, seed: int) -> Denoise:
    return _noisereduce(stationary=True)


def changing(condition: Condition, seed: int) -> Denoise:
    return _noisereduce(stationary=False)


def _noisereduce(**how: Any) -> Denoise:
    import noisereduce

    def reduce(noisy: np.ndarray) -> np.ndarray:
        example = noisy[: NOISE_EXAMPLE_S * SR]
        return noisereduce.reduce_noise(y=noisy, sr=SR, y_noise=example, **how)

    return reduce


def subtraction(condition: Condition, seed: int) -> Denoise:
    """The mean magnitude of the noise, taken from every frame (Boll 1979)."""
    stft = Stft(1024, 256)

    def reduce(noisy: np.ndarray) -> np.ndarray:
        noise = np.abs(stft.forward(noisy[: NOISE_EXAMPLE_S * SR])).mean(axis=0)
        spectra = stft.forward(noisy)
        magnitude = np.abs(spectra)
        gain = np.maximum(magnitude - noise, 0.0) / np.maximum(magnitude, 1e-20)
        return stft.inverse(gain * spectra, len(noisy))

    return reduce


METHODS: dict[str, tuple[str, Callable[[Condition, int], Denoise]]] = {
    "denoise with speech": ("`ondes denoise -d speech.ondes`", with_speech),
    "denoise": ("`ondes denoise`", without_speech),
    "noisereduce": ("noisereduce, stationary", stationary),
    "noisereduce changing": ("noisereduce, non-stationary", changing),
    "subtraction": ("mean-spectrum subtraction", subtraction),
    "oracle": ("oracle Wiener mask", lambda *_: None),
}


def scenes(condition: Condition, snr: float) -> Iterator[tuple[np.ndarray, ...]]:
    """True speech, true noise, and the whole recording, for each case."""
    for truth in condition.excerpts("example"):
        speech, noise = truth["speech"], truth["noise"] * 10 ** (-snr / 20)
        example = truth["example"] * np.sqrt(np.mean(noise**2)) / EXAMPLE_LEVEL
        yield speech, noise, np.concatenate([example, speech + noise]).astype(np.float32)


def gains(condition: Condition, how: str, seed: int, snr: float, every: int) -> list[list[float]]:
    """SI-SDR of the speech after and before, for each case."""
    reduce = METHODS[how][1](condition, seed)
    found = []
    for speech, noise, whole in list(scenes(condition, snr))[::every]:
        noisy = whole[-len(speech) :]
        if how == "oracle":
            clean = oracle({"speech": speech, "noise": noise.astype(np.float32)})["speech"]
        else:
            clean = reduce(whole)[-len(speech) :]
        found.append([round(si_sdr(speech, clean), 3), round(si_sdr(speech, noisy), 3)])
    return found
