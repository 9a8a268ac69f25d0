"""Default frames are whole numbers of samples at all common rates, and quick to transform."""

from __future__ import annotations

import numpy as np
import pytest

import ondes
from ondes.learning.dictionary_learning import untrained
from ondes.learning.separator_training.training import FRAMES, RATE_OF_FRAMES
from ondes.separation.denoising import STFT, STFT_RATE
from ondes.signal.stft import Stft
from ondes.studio.components import FRAME_SECONDS

RATES = (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000)
DEFAULTS = {
    "learning": (untrained().audio.stft, untrained().audio.sr),
    "training": (FRAMES, RATE_OF_FRAMES),
    "denoising": (STFT, STFT_RATE),
    "studio": (Stft(round(FRAME_SECONDS * 22050)), 22050),
}


def largest_prime(number):
    prime, largest = 2, 1
    while number > 1:
        while number % prime == 0:
            number, largest = number // prime, prime
        prime += 1
    return largest


@pytest.mark.parametrize("sr", RATES)
@pytest.mark.parametrize("name", DEFAULTS)
def test_no_default_has_a_large_prime_at_any_common_rate(name, sr):
    stft, own = DEFAULTS[name]
    there = stft.at_rate(sr / own)
    assert there.n_fft * own == stft.n_fft * sr
    assert largest_prime(there.n_fft) <= 7


@pytest.mark.parametrize("sr", RATES)
def test_frames_and_hops_last_the_same_at_every_rate_that_one_learns_at(sr):
    stft = untrained(sr=sr).audio.stft
    assert stft.n_fft == pytest.approx(0.24 * sr)
    assert abs(stft.hop_length - 0.06 * sr) < 1  # half a sample at 11,025 Hz


@pytest.mark.parametrize("n_fft", [4096, 2048, 512, 1129])
@pytest.mark.parametrize("own", [16000, 22050])
def test_other_frames_are_rounded_to_lengths_that_are_quick_and_keep_their_bins(n_fft, own):
    for sr in RATES:
        there = Stft(n_fft, n_fft // 4).at_rate(sr / own)
        exact = n_fft * sr / own
        is_whole = round(exact) * own == n_fft * sr
        highest_bin = 0.45 * min(n_fft, there.n_fft)
        assert abs(there.n_fft / exact - 1) * highest_bin < 0.5
        if is_whole:
            assert there.n_fft == exact
        elif own == 16000 and n_fft in (4096, 2048):  # the defaults of version 0.1
            assert largest_prime(there.n_fft) < 100


def test_a_dictionary_of_other_frames_separates_at_another_rate():
    rng = np.random.default_rng(0)
    low, high = (np.sin(2 * np.pi * f * np.arange(88200) / 44100) for f in (400, 3000))
    noisy = [each + 0.01 * rng.standard_normal(len(each)) for each in (low, high)]
    models = {
        name: ondes.learn(each[::2].astype(np.float32), 2, sr=22050, n_fft=2048, batch_size=16)
        for name, each in zip(("low", "high"), noisy, strict=True)
    }
    stems = ondes.separate(low + high, models, sr=44100)
    for name, truth in (("low", low), ("high", high)):
        error = stems[name][4410:-4410] - truth[4410:-4410]
        assert np.mean(error**2) < 1e-3 * np.mean(truth**2)
