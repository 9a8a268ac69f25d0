"""The dictionaries of mono recordings stay what they are, from one version to the next.

`vectors/learned.npz` was learned by version 0.1.0 on x86-64-v3. On one machine, with the same NumPy
and SciPy, all bits are equal; other instruction sets and versions round differently.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import NEEDS_KERNEL
from plain_settings import PLAIN

import ondes
from ondes.nmf.backends import native

VECTORS = Path(__file__).parent / "vectors" / "learned.npz"
ISA = "v3"
SETTINGS = {
    "native": {"n_jobs": 2},
    "cluster": {"cluster": "in-process", "n_shards": 24, "round_size": 1024},
    "penalty": {
        "penalty": ondes.GroupLog(0.5),
        "groups": [0, 0, 1, 1, 2, 2],
        "dictionary_penalty": ondes.Smoothness(1e-4),
    },
}


def sound(seconds, sr, seed):
    """Noisy tones that come and go."""
    rng = np.random.default_rng(seed)
    n = round(seconds * sr)
    levels = rng.choice([0, 1e-4, 0.02, 0.3], size=n // 1000 + 1, p=[0.2, 0.2, 0.5, 0.1])
    loudness = np.repeat(levels, 1000)[:n]
    carrier = np.sin(np.arange(n) * rng.uniform(0.1, 2.5)) + 0.1 * rng.standard_normal(n)
    return np.round(loudness * carrier * 2**15).clip(-(2**15), 2**15 - 1).astype(np.int16)


def write_recordings(folder):
    for number in range(3):
        soundfile.write(folder / f"{number}.flac", sound(20 + 3 * number, 8000, number), 8000)
    soundfile.write(folder / "resampled.wav", sound(12, 11025, 9), 11025)


def learn(folder, **settings):
    how = {"sr": 8000, "n_fft": 256, "hop_length": 128, "n_passes": 2, "random_state": 3}
    how["fmax"] = 4000  # all bins, as that version had them
    how["init"] = "k-means++"  # its default
    return ondes.learn(folder, 6, **how, **PLAIN, **settings).components


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    write_recordings(folder)
    return folder


@pytest.fixture(scope="module")
def expected():
    with np.load(VECTORS) as vectors:
        return dict(vectors)


@NEEDS_KERNEL
@pytest.mark.parametrize("label", SETTINGS)
def test_the_compiled_kernel_learns_the_same_dictionary(recordings, expected, label, monkeypatch):
    monkeypatch.setenv("ONDES_ISA", ISA)
    if not native.available():
        monkeypatch.delenv("ONDES_ISA")
    found = learn(recordings, backend="native", **SETTINGS[label])
    np.testing.assert_allclose(found, expected[label], rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_other_backends_learn_the_same_dictionary(recordings, expected, backend):
    if importlib.util.find_spec("torch") is None and backend == "torch":
        pytest.skip("PyTorch is not installed here")
    found = learn(recordings, backend=backend)
    np.testing.assert_allclose(found, expected["native"], rtol=0, atol=1e-6)


def test_a_dictionary_of_every_vector_is_tested(expected):
    assert set(expected) == set(SETTINGS)
