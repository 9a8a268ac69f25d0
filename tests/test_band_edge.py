"""Learning and encoding see the same bins at every sampling rate."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

import ondes
from ondes import AudioSettings, Stft
from ondes.models.model import known_power
from ondes.models.sources import Sources
from ondes.nmf.encoding import Compute, encode
from ondes.signal.audio_settings import passband

MUSIC = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"), "music", "wesnoth")
SONGS = ("battle.ogg", "casualties_of_war.ogg")
RATES = (8000, 16000, 22050, 44100, 48000, 96000)


def whole_frames(sr):
    """240 ms and 60 ms: whole numbers of samples at all of these rates."""
    return {"n_fft": 24 * sr // 100, "hop_length": 6 * sr // 100}


@pytest.mark.parametrize("rate", [44100, 48000, 96000, 22050, 8000])
@pytest.mark.parametrize("sr", [16000, 22050])
def test_the_resampler_leaves_what_counts_as_it_is(rate, sr):
    impulse = np.zeros(4 * rate, np.float32)
    impulse[2 * rate] = 1
    gain = np.abs(np.fft.rfft(soxr.resample(impulse, rate, sr))) * rate / sr
    hertz = np.fft.rfftfreq(2 * len(gain) - 2, 1 / sr)
    counted = gain[hertz <= passband(min(sr, rate))]
    assert np.abs(20 * np.log10(counted)).max() < 0.01


def test_a_frame_ends_with_the_last_bin_up_to_fmax():
    for sr, n_fft, fmax in (
        (16000, 3840, 7200),
        (22050, 512, 9922.5),
        (8000, 100, 3210),
        (8, 9, 1),
    ):
        audio = AudioSettings(max(sr, 100), Stft(n_fft), fmax=fmax)
        hertz = np.fft.rfftfreq(n_fft, 1 / audio.sr)
        assert audio.n_bins == np.count_nonzero(hertz <= fmax + 1e-6)
        samples = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
        whole = AudioSettings(audio.sr, Stft(n_fft)).frames(samples)
        assert np.array_equal(audio.frames(samples), whole[:, : audio.n_bins])
    assert AudioSettings(8000, Stft(64), fmax=4000) == AudioSettings(8000, Stft(64))


@pytest.mark.parametrize("fmax", [0, -1, 4001, float("nan"), "4000", True])
def test_an_fmax_beyond_the_band_is_refused(fmax):
    with pytest.raises(ValueError, match=r"^fmax=.* must be a positive frequency .*\.$"):
        AudioSettings(8000, Stft(), fmax=fmax)


@pytest.fixture(scope="module", params=SONGS)
def song(request):
    if not (MUSIC / request.param).exists():
        pytest.skip(f"{request.param} is not here: set ONDES_RECORDINGS")
    samples, sr = soundfile.read(
        MUSIC / request.param, dtype="float32", start=30 * 44100, frames=25 * 44100
    )
    assert sr == 44100
    return samples.mean(axis=1)


def activations(samples, sr, sources):
    """Mean activations, relative to their sum."""
    frames = sources.stft.at_rate(sr / sources.sr).forward(samples)
    power = known_power(frames, sources.audio.n_bins)
    found = encode(sources.audio.from_power(power), sources.problem(), Compute()).activations
    return found.mean(axis=0) / found.mean(axis=0).sum()


@pytest.mark.parametrize("beta_loss", ["itakura-saito", "kullback-leibler"])
@pytest.mark.parametrize("sr", [8000, 16000, 22050])
def test_a_recording_has_the_same_activations_at_its_own_rate_as_resampled(song, sr, beta_loss):
    training = soxr.resample(song[: 15 * 44100], 44100, sr)
    how = {"spectrum": "power", "n_passes": 5, **whole_frames(sr)}
    learned = ondes.learn(training, 12, sr=sr, beta_loss=beta_loss, **how)
    sources = Sources.of({"song": learned})
    for rate in RATES:
        if rate < sr:
            continue
        samples = soxr.resample(song[-10 * 44100 :], 44100, rate)
        own = activations(samples, rate, sources)
        resampled = activations(soxr.resample(samples, rate, sr), sr, sources)
        assert np.abs(own - resampled).sum() < 0.02, rate
        assert own.max() < 0.9, rate
