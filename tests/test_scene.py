"""The scene is repeatable and plausible; the score is the published one."""

import numpy as np
import pytest

from ondes.demo_scene import make_scene
from ondes.scores import si_sdr


def test_mixture_is_the_sum_of_the_stems_bit_for_bit():
    scene = make_scene(seconds=4.0)
    total = np.zeros_like(scene.mixture)
    for stem in scene.stems.values():
        total += stem
    np.testing.assert_array_equal(scene.mixture, total)


def test_the_same_seed_repeats_and_another_differs():
    first, again, other = (make_scene(seconds=4.0, random_state=seed).stems for seed in (3, 3, 4))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert any(not np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("seed", range(3))
def test_stems_are_all_audible_and_nothing_clips(seed):
    scene = make_scene(random_state=seed)
    assert scene.mixture.shape == (24 * 22050,)
    assert 0.8 < np.abs(scene.mixture).max() < 1
    for stem in scene.stems.values():
        assert stem.dtype == np.float32
        assert si_sdr(stem, scene.mixture) > -15
        assert abs(stem.mean()) < 1e-2 * np.abs(stem).max()


@pytest.mark.parametrize(("seconds", "sr"), [(0.001, 8000), (0.2, 44100), (30.5, 11025)])
def test_any_length_and_rate(seconds, sr):
    scene = make_scene(seconds, sr)
    assert len(scene.mixture) == round(seconds * sr)
    assert np.isfinite(scene.mixture).all()


def test_plucked_strings_are_in_tune():
    from ondes.demo_scene import _pluck

    for pitch in (60, 69, 84):
        note = _pluck(pitch, 1.0, 22050, np.random.default_rng(0))
        spectrum = np.abs(np.fft.rfft(note * np.hanning(len(note)), 2**18))
        hertz = 440 * 2 ** ((pitch - 69) / 12)
        near = slice(*(round(hertz * factor * 2**18 / 22050) for factor in (0.9, 1.1)))
        found = (near.start + np.argmax(spectrum[near])) * 22050 / 2**18
        assert abs(1200 * np.log2(found / hertz)) < 10  # cents


def test_an_empty_scene_is_refused():
    with pytest.raises(ValueError, match="less than one sample"):
        make_scene(seconds=0)


def test_si_sdr_does_not_depend_on_scale_and_has_its_limits():
    rng = np.random.default_rng(0)
    reference, noise = rng.standard_normal((2, 4000))
    noise -= reference * (noise @ reference) / (reference @ reference)
    noise *= np.linalg.norm(reference) / np.linalg.norm(noise)
    assert si_sdr(reference, reference + 0.1 * noise) == pytest.approx(20)
    assert si_sdr(reference, -7 * (reference + 0.1 * noise)) == pytest.approx(20)
    assert si_sdr([1.0, 0.0], [2.0, 0.0]) == np.inf
    assert si_sdr(reference, np.zeros(4000)) == -np.inf
    assert si_sdr(reference, reference + noise) == pytest.approx(0, abs=1e-9)


def test_si_sdr_refuses_what_is_not_defined():
    with pytest.raises(ValueError, match="silent"):
        si_sdr(np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match="samples"):
        si_sdr(np.ones(3), np.ones(4))
