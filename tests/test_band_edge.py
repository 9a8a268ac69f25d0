"""Learning and encoding see the same bins at every sampling rate."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from conftest import NEEDS_TORCH

import ondes
from ondes import AudioSettings, Stft
from ondes.models.model import known_power
from ondes.models.sources import Sources
from ondes.nmf.encoding import Compute, encode
from ondes.signal.audio_settings import passband
from ondes.signal.batches import frame_batches

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


def activations(samples, sr, sources, own_sr=np.inf):
    """Mean activations, relative to their sum."""
    frames = sources.stft.at_rate(sr / sources.sr).forward(samples)
    power = sources.audio.mark_missing(known_power(frames, sources.audio), own_sr)
    found = encode(sources.audio.from_power(power), sources.problem(), Compute()).activations
    return found.mean(axis=0) / found.mean(axis=0).sum()


@pytest.mark.parametrize("beta_loss", ["itakura-saito", "kullback-leibler"])
@pytest.mark.parametrize("sr", [8000, 16000, 22050, 48000])
def test_a_recording_has_the_same_activations_at_its_own_rate_as_resampled(song, sr, beta_loss):
    training = soxr.resample(song[: 15 * 44100], 44100, sr)
    how = {"spectrum": "power", "n_passes": 5, **whole_frames(sr)}
    learned = ondes.learn(training, 12, sr=sr, beta_loss=beta_loss, **how)
    sources = Sources.of({"song": learned})
    for rate in RATES:
        samples = soxr.resample(song[-10 * 44100 :], 44100, rate)
        own = activations(samples, rate, sources)
        resampled = activations(soxr.resample(samples, rate, sr), sr, sources, rate)
        assert np.abs(own - resampled).sum() < 0.02, rate
        assert own.max() < 0.9, rate


# ---- recordings of a lower rate than the dictionary's ----


def sweeps(sr, seed, n_seconds=6):
    """Notes whose partials reach beyond four kilohertz, in noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(n_seconds * 48000)) / 48000
    found = 1e-3 * rng.standard_normal(len(time))
    for note in (440.0, 660.0, 990.0, 1320.0):
        gate = np.repeat(rng.uniform(size=n_seconds * 4) < 0.5, 12000)
        found += gate * sum(np.sin(2 * np.pi * note * n * time) / n for n in range(1, 6))
    return soxr.resample(found.astype(np.float32), 48000, sr) / 8


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The same kind of recordings at 16 and at 8 kHz."""
    folder = tmp_path_factory.mktemp("archive")
    for sr, seeds in {16000: (0, 1), 8000: (2, 3)}.items():
        for seed in seeds:
            soundfile.write(folder / f"{sr}-{seed}.wav", sweeps(sr, seed), sr)
    return folder


FEW = {"n_components": 6, "sr": 16000, "n_passes": 4, "sparsity": 0.0, **whole_frames(16000)}


def test_what_a_lower_rate_does_not_have_is_missing_in_learning(archive):
    audio = ondes.learn(archive, **FEW).audio
    there = audio.bins_of_rate(8000)
    assert audio.frames(np.zeros(16000)).shape[1] == audio.n_bins == 2 * there - 1
    for batch in frame_batches(sorted(archive.iterdir()), audio, batch_size=10**6):
        is_missing = np.isnan(batch)
        assert 0 < is_missing.any(axis=1).mean() < 1
        assert not is_missing[:, :there].any()
        assert (is_missing[:, there:].all(axis=1) == is_missing.any(axis=1)).all()


def test_an_archive_at_eight_kilohertz_takes_nothing_from_the_band_above(archive):
    """The shape above four kilohertz is learned from the recordings that have it."""
    wide = [archive / "16000-0.wav", archive / "16000-1.wav"]
    both, alone = (ondes.learn(given, **FEW) for given in (archive, wide))
    above = alone.audio.bins_of_rate(8000)
    shares = [each.components[:, above:].sum() / 6 for each in (both, alone)]
    assert shares[0] == pytest.approx(shares[1], rel=0.3)
    divergence = [each.divergence(wide[0])[1] for each in (both, alone)]
    assert divergence[0] < 1.1 * divergence[1]


def test_masks_of_a_telephone_line_are_those_of_its_known_band(archive):
    model = Sources.of({"notes": ondes.learn(archive, **FEW)})
    samples, sr = soundfile.read(archive / "8000-2.wav", dtype="float32")
    own = activations(samples, sr, model)
    wide = sweeps(16000, 2)
    full = activations(wide, 16000, model)
    assert np.abs(own - full).sum() < 0.15


@pytest.mark.parametrize(
    "backend", ["native", "reference", pytest.param("torch", marks=NEEDS_TORCH)]
)
def test_every_backend_learns_the_same_of_both_rates(archive, backend):
    how = FEW | {"n_passes": 1, "solver": ondes.Solver(max_steps=5)}
    found = ondes.learn(archive, backend=backend, **how)
    expected = ondes.learn(archive, backend="reference", **how)
    np.testing.assert_allclose(found.components, expected.components, rtol=2e-3, atol=1e-7)
