"""Separation with PyTorch, all of it on the device, is separation on the host up to rounding.

Everything runs on the CPU, and on a CUDA device too where there is one.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from ondes import AudioSettings, Separator, Stft
from ondes.models.masks import DictionaryMasks, NoiseSubtraction, source_masks
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.encoding import Compute
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.separation import Sources, separate

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch

from ondes.separation import separator as separator_module

SR = 8000
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
each_device = pytest.mark.parametrize("device", DEVICES)
# Of 99 % of the samples, and of all: where rounding decides when a frame is solved, its masks
# differ by the solver's own tol. Separation computes in float32's digits on every device.
MOST, ALL = 1e-5, 2e-3


def mixture(seconds=3.0, channels=None, seed=0, sr=SR):
    """A tone that changes, noise, a silence, and a very quiet end."""
    rng = np.random.default_rng(seed)
    n = round(seconds * sr)
    shape = (n,) if channels is None else (n, channels)
    tone = np.sin(np.cumsum(np.repeat(rng.uniform(0.05, 1.0, 1 + n // 2000), 2000)[:n]))
    sound = 0.1 * rng.standard_normal(shape)
    sound += 0.3 * (tone if channels is None else tone[:, None] * rng.uniform(0.2, 1, channels))
    sound[n // 3 : n // 3 + n // 10] = 0
    sound[-n // 5 :] *= 1e-6
    return sound.astype(np.float32)


def sources(n_fft=128, hop_length=64, spectrum="power", beta=0.0, sparsity=0.0, names=("a", "b")):
    rng = np.random.default_rng(1)
    audio = AudioSettings(SR, Stft(n_fft, hop_length), spectrum=spectrum)
    rows = rng.gamma(0.3, size=(4 * len(names), audio.n_bins)) + 1e-6
    rows /= rows.sum(axis=1, keepdims=True)
    return Sources(
        rows, np.repeat(np.arange(len(names)), 4), names, audio, BetaDivergence(beta), sparsity
    )


def trained():
    rng = np.random.default_rng(2)
    audio = AudioSettings(SR, Stft(128, 32), spectrum="magnitude")
    n_bins, n_sources, n_components = audio.n_bins, 2, 5
    dictionaries = rng.gamma(0.5, size=(3, n_sources * n_components, n_bins)).astype(np.float32)
    weights = UnfoldedWeights(
        dictionaries,
        dictionaries.sum(axis=-1) + np.float32(2),
        rng.gamma(0.5, size=(n_sources, 5, n_components, n_bins)).astype(np.float32),
        rng.uniform(-0.3, 0.6, size=(3, n_sources * n_components)).astype(np.float32),
        contexts=(3, 9, 40),
        n_steps=8,
        mask_exponent=1.3,
        floor=1e-3,
    )
    return TrainedSeparator(("speech", "rest"), audio, weights)


CASES = {
    "two sources": (sources, {}),
    "Kullback-Leibler of magnitudes": (
        lambda: sources(spectrum="magnitude", beta=1.0, sparsity=1.0),
        {},
    ),
    "one source": (lambda: sources(names=("a",)), {}),
    "three sources": (lambda: sources(names=("a", "b", "c")), {}),
    "a hop that does not divide": (lambda: sources(hop_length=50), {}),
    "dictionaries that adapt": (lambda: sources(spectrum="magnitude", beta=1.0), {"adapt": "b"}),
    "free components": (sources, {"n_free": 3}),
    "a higher rate": (sources, {"sr": 11025}),
    "a lower rate": (sources, {"sr": 6000}),
    "a trained separator": (trained, {}),
    "a trained separator at a higher rate": (trained, {"sr": 12000}),
    "subtraction": (
        lambda: NoiseSubtraction(
            ("speech", "noise"), AudioSettings(SR, Stft(128)), np.full(65, 2.0)
        ),
        {},
    ),
}


def check_agreement(samples, expected, mixed):
    difference = np.abs(samples - expected) / np.abs(mixed).max()
    assert difference.max() <= ALL
    assert np.quantile(difference, 0.99) <= MOST


@each_device
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels", [None, 2])
def test_sources_are_those_of_the_host(device, name, channels):
    make, options = CASES[name]
    sr = options.get("sr", SR)
    mixed = mixture(channels=channels, sr=sr)
    expected = separate(mixed, make(), **{"sr": sr, "backend": "reference", **options})
    compute = {"backend": "torch", "device": device}
    found = separate(mixed, make(), **{"sr": sr, **compute, **options})
    assert list(found) == list(expected)
    for stem, samples in found.items():
        assert samples.dtype == np.float32
        assert samples.shape == mixed.shape
        check_agreement(samples, expected[stem], mixed)
    total = sum(each.astype(np.float64) for each in found.values())
    assert np.abs(total - mixed).max() <= 2e-7 * np.abs(mixed).max()


@each_device
@pytest.mark.parametrize("make", [sources, trained], ids=["dictionaries", "trained"])
@pytest.mark.parametrize("block", [37, 1000, 9000])
def test_the_cut_does_not_matter(device, make, block, monkeypatch):
    monkeypatch.setattr(separator_module, "DEVICE_VALUES_AT_ONCE", 65 * 90)
    mixed = mixture(channels=2)
    compute = {"backend": "torch", "device": device}
    whole = separate(mixed, make(), sr=SR, spatial="none", **compute)
    separator = Separator(make(), batch_size=25, compute=Compute(**compute))
    for _ in range(2):  # after a flush it begins anew
        parts = [separator.push(mixed[at : at + block]) for at in range(0, len(mixed), block)]
        parts.append(separator.flush())
        for stem, samples in whole.items():
            joined = np.concatenate([part[stem] for part in parts])
            np.testing.assert_allclose(joined, samples, atol=1e-6)
    ready = sum(len(part["rest" if make is trained else "b"]) for part in parts[:-1])
    assert ready > len(mixed) / 2  # it waits for the batch that was asked for, not for a minute


@each_device
@pytest.mark.parametrize("n_samples", [0, 1, 63, 64, 65, 127, 128, 129, 200])
@pytest.mark.parametrize("make", [sources, trained], ids=["dictionaries", "trained"])
def test_short_mixtures_keep_their_length(device, n_samples, make):
    mixed = mixture()[:n_samples]
    found = separate(mixed, make(), sr=SR, backend="torch", device=device)
    for samples in found.values():
        assert samples.shape == mixed.shape
    np.testing.assert_allclose(sum(found.values()), mixed, atol=1e-6)


@each_device
def test_loud_and_quiet_are_one_sound(device):
    mixed = mixture()
    compute = {"sr": SR, "backend": "torch", "device": device}
    expected = separate(mixed, sources(), **compute)
    for gain in (1e-12, 1e12):  # rounded otherwise
        found = separate(mixed * np.float32(gain), sources(), **compute)
        for stem, samples in found.items():
            if device == "cpu":
                np.testing.assert_allclose(samples / gain, expected[stem], atol=1e-5)
            check_agreement(samples / gain, expected[stem], mixed)
    for gain in (2.0**-40, 2.0**40):  # rounded in the same way
        found = separate(mixed * np.float32(gain), sources(), **compute)
        for stem, samples in found.items():
            np.testing.assert_array_equal(samples / np.float32(gain), expected[stem])


@each_device
def test_masks_have_the_digits_of_float32(device):
    kept = Compute("torch", device).in_full_precision()
    assert kept.precision == (None if device == "cpu" else "ieee")
    assert Compute("torch", "cuda", "bf16").in_full_precision().precision == "bf16"
    mixed, model = mixture(), sources()
    power = np.abs(np.fft.rfft(mixed[: 128 * 187].reshape(-1, 128))) ** 2
    frames = torch.tensor(power[power.sum(axis=1) > 0], dtype=torch.float32, device=device)
    masks = DictionaryMasks(model, kept)
    found = masks.push(frames, frames.new_ones(len(frames))).cpu().numpy()
    exact = source_masks(
        frames.cpu().numpy().astype(np.float64), model, compute=Compute("reference")
    )
    difference = np.abs(found - exact).max(axis=(0, 2))
    assert np.quantile(difference, 0.9) <= 1e-4  # TF32 misses it by far
