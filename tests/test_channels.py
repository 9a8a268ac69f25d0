"""Channels: learning sees their mean power, so nothing is lost between them."""

import itertools

import numpy as np
import pytest
import soundfile

from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.stft import Stft

SR = 8000
STFT = Stft(64)


def sound(n=20_000, seed=0):
    """Noise that becomes silent here and there, of samples that 16 bits can hold."""
    rng = np.random.default_rng(seed)
    loudness = np.repeat(rng.choice([0, 0.001, 0.5], n // 500 + 1), 500)[:n]
    return np.round(rng.uniform(-1, 1, n) * loudness * 2**15) / 2**15


def batches_of(path, samples=None, sr=SR, **options):
    if samples is not None:
        soundfile.write(path, samples, SR)
    sizes = {"batch_size": 30, "round_size": 100, "segment_size": 40, "n_passes": 2}
    return frame_batches([path], AudioSettings(sr, STFT), **sizes | options)


def assert_same(some, others):
    some, others = list(some), list(others)
    assert [len(batch) for batch in some] == [len(batch) for batch in others]
    # What a recording's own rate does not have is missing: NaN.
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("suffix", ["wav", "flac"])
@pytest.mark.parametrize("sr", [SR, 11025])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1, -1, 1)], ids=str)
def test_equal_channels_in_any_phase_are_one_channel_bit_for_bit(tmp_path, suffix, sr, signs):
    samples = sound()
    expected = list(batches_of(tmp_path / f"mono.{suffix}", samples, sr))
    assert sum(map(len, expected)) > 200
    channels = np.stack([sign * samples for sign in signs], axis=1)
    assert_same(batches_of(tmp_path / f"channels.{suffix}", channels, sr), expected)


def test_frames_are_the_mean_power_of_the_channels(tmp_path):
    samples = np.stack([sound(seed=n) for n in range(3)], axis=1)
    given = batches_of(tmp_path / "a.wav", samples, round_size=10_000, n_passes=1)
    powers = np.mean([STFT.power(samples[:, n]) for n in range(3)], axis=0, dtype=np.float64)
    energies = powers.sum(axis=1)
    expected = powers[energies > 1e-6 * energies.max()]
    frames = np.concatenate(list(given))
    by_energy = frames[np.argsort(frames.sum(axis=1))]
    expected = expected[np.argsort(expected.sum(axis=1))]
    np.testing.assert_allclose(by_energy, expected, rtol=1e-4, atol=1e-12)


def test_a_frame_is_silent_only_if_all_channels_are(tmp_path):
    tone = 0.5 * np.sin(np.arange(6400))
    left, right = np.zeros((2, 6400 * 3))
    left[:6400], right[6400:12_800] = tone, tone
    frames, *alone = (
        sum(map(len, batches_of(tmp_path / "a.wav", samples, n_passes=1)))
        for samples in (np.stack([left, right], axis=1), left, right)
    )
    assert alone == [201, 201]  # of 601
    assert frames == 401  # one has sound of both


def test_recordings_of_different_numbers_of_channels_are_mixed(tmp_path):
    expected, paths = 0, []
    for n_channels in (1, 2, 5):
        samples = np.stack([sound(seed=n) for n in range(n_channels)], axis=1)
        paths.append(tmp_path / f"{n_channels}.wav")
        soundfile.write(paths[-1], samples, SR)
        expected += STFT.n_frames(len(samples))
    audio = AudioSettings(SR, STFT, None)
    for n_threads in (1, 3):
        assert sum(map(len, frame_batches(paths, audio, n_threads=n_threads))) == expected


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_an_interrupted_run_over_stereo_continues_with_the_same_bits(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, np.stack([sound(seed=1), sound(seed=2)], axis=1), SR)
    expected = list(batches_of(path))
    assert len(expected) > 20
    for n_done in range(0, len(expected), 5):
        first, second = batches_of(path), batches_of(path)
        list(itertools.islice(iter(first), n_done))
        second.schedule.restore(first.schedule.state())
        assert_same(second, expected[n_done:])
