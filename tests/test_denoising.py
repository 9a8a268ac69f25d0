"""Noise reduction: the noise falls, speech stays, and the file keeps its rate and channels."""

import io
import re

import numpy as np
import pytest
import soundfile
from test_cli import run
from test_separation import ONE_SENTENCE, machine, speech_like

import ondes
from ondes.errors import FileError
from ondes.models.masks import source_masks
from ondes.scores import si_sdr
from ondes.separation.denoising import _model, denoise, denoise_file
from ondes.signal.recordings import RawFormat

SR = 16000
ALONE = (0.0, 2.0)  # seconds of noise before the speech begins


@pytest.fixture(scope="module")
def speech():
    return ondes.learn(speech_like(20, 1), 24, sr=SR, n_passes=3)


@pytest.fixture(scope="module")
def talk():
    """Speech from the third second on, a noise that varies, and both together."""
    clean = np.r_[np.zeros(2 * SR, np.float32), speech_like(8, 2)]
    return clean, machine(10, 3)


def gain(clean, noise, db, **how):
    noise = noise * np.float32(10 ** (-db / 20))
    mixture = clean + noise
    found = denoise(mixture, SR, noise=ALONE, **how)[2 * SR :]
    return si_sdr(clean[2 * SR :], found) - si_sdr(clean[2 * SR :], mixture[2 * SR :])


@pytest.mark.parametrize(("db", "least"), [(0, 5.0), (10, 4.0)])
def test_a_speech_dictionary_and_a_selection_of_noise_gain_decibels(talk, speech, db, least):
    assert gain(*talk, db, speech=speech) > least


def test_sparsity_holds_for_speech_and_not_for_the_noise(talk, speech):
    noise = talk[1][: 2 * SR]
    sources = _model([(noise, SR)], SR, speech, random_state=0, compute=ondes.Compute())
    assert sources.names == ("speech", "noise")
    assert sources.sparsity == speech.estimator.sparsity > 0
    slopes = sources.problem().sparsity_slope
    norms = np.linalg.norm(sources.dictionary, axis=1)
    np.testing.assert_allclose(slopes, sources.sparsity * norms * (sources.source_of == 0))


def masks_in_plain_loops(frames, sources, weights):
    """Extrapolated Kullback-Leibler steps with each component's own sparsity, and squared masks."""
    rows, floor = sources.dictionary, sources.floor
    slopes = sources.sparsity * np.sqrt((rows**2).sum(axis=1)) * weights
    masks = []
    for frame in frames.astype(np.float64):
        frame = frame / frame.mean() + floor
        even = rows.shape[1] / len(rows)
        h = np.full(len(rows), even * frame.sum() / (even * rows.sum() + floor * rows.shape[1]))
        point, lowest, age = h, np.inf, 0
        for _ in range(10):
            model = point @ rows + floor
            cost = np.sum(model - frame * np.log(model)) + slopes @ point
            step = point * (rows @ (frame / model)) / (rows.sum(axis=1) + slopes)
            if cost > lowest + 1e-4 * rows.shape[1]:  # too far ahead: back to the last good step
                point, age = h, 0
            else:
                age += 1
                point, h = step * (step / h) ** (age / (age + 2)), step
            lowest = min(lowest, cost)
        modelled = [(h * (sources.source_of == source)) @ rows for source in (0, 1)]
        powers = [each**2 + 1e-12 / 2 for each in modelled]
        masks.append([each / sum(powers) for each in powers])
    return np.array(masks).swapaxes(0, 1)


def test_the_noise_is_encoded_without_sparsity_and_speech_with_it(talk, speech):
    sources = _model([(talk[1][: 2 * SR], SR)], SR, speech, random_state=0, compute=ondes.Compute())
    frames = sources.audio.frames(sum(talk)[3 * SR : 4 * SR])[3:9]
    found = source_masks(frames, sources)
    expected = masks_in_plain_loops(frames, sources, sources.source_of == 0)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    alike = masks_in_plain_loops(frames, sources, np.ones(sources.n_components))
    assert np.abs(expected - alike).max() > 0.1


def test_a_selection_of_noise_alone_gains_decibels(talk):
    hiss = 0.1 * np.random.default_rng(0).standard_normal(10 * SR).astype(np.float32)
    assert gain(talk[0], hiss, 0) > 5
    assert gain(talk[0], hiss, 10) > 2


@pytest.mark.parametrize("amount", [6.0, 12.0])
@pytest.mark.parametrize("is_known", [False, True])
def test_the_amount_is_the_greatest_reduction(talk, speech, amount, is_known):
    mixture = sum(talk)
    options = {"noise": ALONE, "speech": speech if is_known else None}
    found = denoise(mixture, SR, amount=amount, **options)
    everything = denoise(mixture, SR, amount=200.0, **options)
    share = 10 ** (-amount / 20)
    np.testing.assert_allclose(found, everything + share * (mixture - everything), atol=1e-5)


def test_an_array_of_noise_is_the_same_as_its_selection(talk):
    mixture = sum(talk)
    np.testing.assert_array_equal(
        denoise(mixture, SR, noise=ALONE), denoise(mixture, SR, noise=mixture[: 2 * SR])
    )


def test_several_spans_are_one_example(talk, tmp_path):
    mixture = sum(talk)
    once = denoise(mixture, SR, noise=(0.0, 0.5))
    twice = denoise(mixture, SR, noise=[(0.0, 0.5), (0.0, 0.5)])
    np.testing.assert_allclose(twice, once, atol=1e-5)
    both = denoise(mixture, SR, noise=[(0.0, 0.5), (1.0, 1.5)])
    assert np.abs(both - once).max() > 1e-3
    soundfile.write(tmp_path / "talk.wav", mixture, SR, subtype="FLOAT")
    soundfile.write(tmp_path / "more.wav", mixture[SR : 3 * SR // 2], SR, subtype="FLOAT")
    options = ["--noise", "0-0.5", "--noise", "more.wav", "-j", "2", "-o", "clean.wav"]
    run("denoise", "talk.wav", *options, cwd=tmp_path)
    found = soundfile.read(tmp_path / "clean.wav", dtype="float32")[0]
    np.testing.assert_allclose(found, both, atol=1e-5)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_keeps_its_rate_and_channels_and_is_treated_like_its_samples(
    tmp_path, talk, speech, is_known
):
    mixture = np.stack([sum(talk), 0.5 * talk[1]], axis=1)
    soundfile.write(tmp_path / "talk.wav", mixture, 44100, subtype="FLOAT")
    options = {"noise": (0.0, 0.7), "speech": speech if is_known else None}
    blocks = denoise_file(tmp_path / "talk.wav", **options)
    assert (blocks.sr, blocks.channels) == (44100, 2)
    found = np.concatenate(list(blocks))
    np.testing.assert_array_equal(found, denoise(mixture, 44100, **options))
    soundfile.write(tmp_path / "noise.wav", mixture[: round(0.7 * 44100)], 44100, subtype="FLOAT")
    other = denoise_file(tmp_path / "talk.wav", **options | {"noise": tmp_path / "noise.wav"})
    np.testing.assert_array_equal(found, np.concatenate(list(other)))


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("volume", [0.0, 2.0**-40])
def test_any_volume_and_silence_after_the_noise(talk, speech, is_known, volume):
    options = {"noise": ALONE, "speech": speech if is_known else None}
    mixture = sum(talk)
    if volume:
        found = denoise(np.float32(volume) * mixture, SR, **options) / volume
        np.testing.assert_allclose(found, denoise(mixture, SR, **options), atol=1e-3)
    else:
        mixture[2 * SR :] = 0
        found = denoise(mixture, SR, **options)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[3 * SR :], 0, atol=1e-6)


def test_what_cannot_be_denoised_is_refused_in_one_sentence(tmp_path, talk):
    mixture, silence = sum(talk), np.zeros(5 * SR)
    soundfile.write(tmp_path / "talk.wav", mixture, SR)
    stream = io.BytesIO(bytes(2000))
    cases = [
        ("amount=0 must be", lambda: denoise(mixture, SR, noise=ALONE, amount=0)),
        ("two times", lambda: denoise(mixture, SR, noise=(2.0, 1.0))),
        ("too short", lambda: denoise(mixture, SR, noise=(0.0, 0.1))),
        ("ends after .* before its noise", lambda: denoise(mixture, SR, noise=(1.0, 70.0))),
        (
            "ends after .* before its noise",
            lambda: denoise_file(tmp_path / "talk.wav", noise=(1.0, 70.0)),
        ),
        ("is silent", lambda: denoise(mixture, SR, noise=silence)),
        ("only once", lambda: denoise_file(stream, noise=(0.0, 1.0), raw=RawFormat(SR))),
    ]
    for sentence, act in cases:
        with pytest.raises(ValueError, match=sentence) as caught:
            act()
        assert ONE_SENTENCE.fullmatch(str(caught.value)), str(caught.value)
    with pytest.raises(FileError, match=re.escape("ends before 60 s")):
        denoise_file(tmp_path / "talk.wav", noise=(60.0, 70.0))
