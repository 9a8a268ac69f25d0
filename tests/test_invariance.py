"""Neither batch boundaries, nor the level, nor the order of frames changes the result."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from conftest import spectrogram
from hypothesis import given
from hypothesis import strategies as st

import ondes
from ondes.nmf.encoding import Compute, encode, encode_blocks
from ondes.nmf.problem import Problem


def learned(frames, backend, **settings):
    settings = {"n_components": 4, "random_state": 0, "batch_size": 50, "n_passes": 2} | settings
    return ondes.OnlineNMF(backend=backend, **settings).fit(frames)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [1e-15, 1e-8, 3.0, 1e9])
def test_the_same_sound_at_another_level_gives_the_same_dictionary(backend, scale, dtype):
    frames = spectrogram().astype(dtype)
    scaled = (frames * dtype(scale)).astype(dtype)
    one, other = learned(frames, backend), learned(scaled, backend)
    np.testing.assert_allclose(other.components_, one.components_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        other.transform(scaled), one.transform(frames) * dtype(scale), rtol=0,
        atol=1e-3 * scale * one.transform(frames).max(),
    )  # fmt: skip


@pytest.mark.parametrize("scale", [1e-15, 1e9])
def test_sound_and_background_at_another_level_give_the_same_dictionary(backend, scale):
    frames, noise = spectrogram() + 0.3, np.linspace(0.1, 0.5, 33)
    one = learned(frames, backend, background=noise)
    other = learned(frames * scale, backend, background=noise * scale)
    np.testing.assert_allclose(other.components_, one.components_, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_transform_does_not_depend_on_how_frames_are_split(dtype, cuts):
    frames = spectrogram(n_frames=60).astype(dtype)
    for name in ("reference", "auto"):
        model = learned(frames, name)
        whole = model.transform(frames)
        edges = [0, *sorted(cuts), 60]
        pieces = [model.transform(frames[a:b]) for a, b in itertools.pairwise(edges) if a < b]
        together = np.concatenate(pieces)
        if model.backend_ == "native":
            np.testing.assert_array_equal(together, whole)
        elif dtype == np.float64:
            np.testing.assert_allclose(together, whole, rtol=1e-12, atol=1e-12 * whole.max())
        else:
            np.testing.assert_allclose(together, whole, rtol=1e-3, atol=1e-3 * whole.max())


@pytest.mark.parametrize("size", [1, 7, 60, 4096])
def test_encoding_in_blocks_is_encoding_at_once(backend, size):
    frames = spectrogram(n_frames=60)
    frames[::9] = 0
    problem = Problem(learned(frames, backend).components_, 1e-12, ondes.Solver())
    whole = encode(frames, problem, Compute(backend))
    blocks = list(encode_blocks(frames, problem, Compute(backend), size))
    assert [rows.start for rows, _ in blocks] == list(range(0, 60, size))
    activations = np.concatenate([encoded.full() for _, encoded in blocks])
    divergences = np.concatenate([encoded.divergences() for _, encoded in blocks])
    np.testing.assert_allclose(activations, whole.full(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(divergences, whole.divergences(), rtol=1e-9, atol=1e-12)
    assert not activations[::9].any()
    assert not divergences[::9].any()


def test_encode_is_what_transform_and_score_do(backend):
    frames = spectrogram().astype(np.float32)
    frames[::9] = 0
    model = learned(frames, backend, background=np.full(33, 1e-3))
    problem = model.settings.problem(model.components_, model.settings.transform_solver)
    encoded = encode(frames, problem, Compute(backend))
    assert encoded.backend == model.backend_
    assert encoded.full().dtype == np.float32
    np.testing.assert_array_equal(encoded.full(), model.transform(frames))
    np.testing.assert_array_equal(-encoded.divergences() / 33, model.score_samples(frames))


def test_the_order_of_frames_does_not_change_their_activations(backend):
    frames = spectrogram()
    model = learned(frames, backend)
    order = np.random.default_rng(0).permutation(len(frames))
    np.testing.assert_allclose(
        model.transform(frames[order]), model.transform(frames)[order], rtol=1e-9, atol=1e-12
    )


def test_components_permuted_give_activations_permuted(backend):
    frames = spectrogram()
    model = learned(frames, backend)
    order = np.array([2, 0, 3, 1])
    turned = ondes.OnlineNMF(
        4, init=model.components_[order], batch_size=50, n_passes=2, shuffle=False, backend=backend
    ).fit(frames)
    plain = ondes.OnlineNMF(
        4, init=model.components_, batch_size=50, n_passes=2, shuffle=False, backend=backend
    ).fit(frames)
    np.testing.assert_allclose(turned.components_, plain.components_[order], rtol=1e-6)


def test_fit_equals_partial_fit_over_the_same_batches(backend):
    frames, first = spectrogram(n_frames=230), spectrogram(n_frames=4, seed=7)
    settings = {"n_components": 4, "init": first, "batch_size": 50, "backend": backend}
    whole = ondes.OnlineNMF(n_passes=1, shuffle=False, **settings).fit(frames)
    in_parts = ondes.OnlineNMF(**settings)
    for start in range(0, 230, 50):
        in_parts.partial_fit(frames[start : start + 50].copy())
    at_once = ondes.OnlineNMF(**settings).partial_fit(frames.copy())
    iterated = ondes.OnlineNMF(n_passes=1, shuffle=False, **settings).fit(
        iter([frames[:17].copy(), frames[17:120].copy(), frames[120:].copy()])
    )
    for other in (in_parts, at_once, iterated):
        assert not np.shares_memory(other.components_, whole.components_)
        np.testing.assert_array_equal(other.components_, whole.components_)
        np.testing.assert_array_equal(other.statistics_.numerator, whole.statistics_.numerator)
        assert other.n_frames_seen_ == whole.n_frames_seen_ == 230


def test_shards_add_up_to_one_update_on_all_their_frames(backend):
    frames, first = spectrogram(n_frames=90), spectrogram(n_frames=4, seed=7)
    settings = {"n_components": 4, "init": first, "batch_size": None, "backend": backend}
    together = ondes.OnlineNMF(**settings).partial_fit(frames).partial_fit(frames)
    sharded = ondes.OnlineNMF(**settings).partial_fit(frames)
    shards = [sharded.summarise(frames[part]) for part in (np.s_[:20], np.s_[20:31], np.s_[31:])]
    sharded.absorb(shards[0] + shards[1] + shards[2])
    np.testing.assert_allclose(sharded.components_, together.components_, rtol=1e-11)
    assert sharded.n_frames_seen_ == together.n_frames_seen_


def test_summarise_changes_nothing(backend):
    frames = spectrogram()
    model = learned(frames, backend)
    before = pickle.dumps(model)
    model.summarise(frames)
    model.transform(frames)
    model.score(frames)
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("where", ["first", "middle", "last", "everywhere"])
def test_learning_continues_after_silence(backend, where):
    frames = spectrogram(n_frames=300)
    frames[np.random.default_rng(0).uniform(size=frames.shape) < 0.2] = 0
    silence = np.zeros((120, frames.shape[1]))
    parts = {
        "first": [silence, frames],
        "middle": [frames[:150], silence, frames[150:]],
        "last": [frames, silence],
        "everywhere": [silence],
    }[where]
    model = ondes.OnlineNMF(4, random_state=0, backend=backend, batch_size=50)
    for part in parts:
        model.partial_fit(part)
    assert np.isfinite(model.components_).all()
    assert not model.transform(silence).any()
    assert model.score(silence) == 0
    early = -model.score(frames)
    for _ in range(5):
        model.partial_fit(frames)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(early)
    assert -model.score(frames) < early
    assert (model.transform(frames).max(axis=0) > 0).all()


def test_the_first_dictionary_is_not_drawn_from_silence(backend):
    frames, silence = spectrogram(), np.zeros((300, 33))
    settings = {"n_components": 4, "random_state": 0, "backend": backend, "shuffle": False}
    settings |= {"n_passes": 1}
    without_silence = ondes.OnlineNMF(**settings).fit([frames])
    after_silence = ondes.OnlineNMF(**settings, batch_size=100).fit([silence, frames])
    undelayed = ondes.OnlineNMF(**settings, batch_size=100).fit([frames])
    np.testing.assert_array_equal(after_silence.components_, undelayed.components_)
    initialised = ondes.OnlineNMF(**settings).initialise(silence).partial_fit(silence)
    assert not initialised.is_initialised_
    initialised.partial_fit(frames)
    assert initialised.is_initialised_
    np.testing.assert_array_equal(initialised.components_, without_silence.components_)


def test_initialise_learns_nothing(backend):
    frames = spectrogram()
    settings = {"n_components": 4, "random_state": 0, "backend": backend}
    initialised = ondes.OnlineNMF(**settings).initialise(frames)
    assert initialised.n_frames_seen_ == 0
    fitted = ondes.OnlineNMF(**settings).partial_fit(frames)
    initialised.partial_fit(frames)
    np.testing.assert_array_equal(initialised.components_, fitted.components_)


def test_silence_changes_nothing_and_forgets_nothing(backend):
    frames = spectrogram()
    silence = np.zeros((1000, frames.shape[1]))
    model, undisturbed = learned(frames, backend), learned(frames, backend)
    model.partial_fit(silence).partial_fit(frames[:10])
    undisturbed.partial_fit(frames[:10])
    np.testing.assert_array_equal(model.components_, undisturbed.components_)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_extreme_frames_stay_finite(backend, dtype):
    rng = np.random.default_rng(0)
    frames = (10.0 ** rng.uniform(-18, 12, size=(200, 30))).astype(dtype)
    frames[::7, ::3] = 0
    frames[3] = 0
    frames[3, 5] = np.finfo(dtype).tiny
    frames[4] = np.sqrt(np.finfo(np.float32).max)
    model = learned(frames, backend)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.transform(frames)).all()
    assert np.isfinite(model.score_samples(frames)).all()


def test_inputs_are_never_written_to(backend):
    frames = spectrogram()
    frames.flags.writeable = False
    first = spectrogram(n_frames=4, seed=2)
    first.flags.writeable = False
    learned(frames, backend, init=first, restarts="warm").transform(frames)
    learned(frames, backend, init=first).partial_fit(frames).transform(frames)


@pytest.mark.parametrize("restarts", ["fresh", "warm"])
def test_the_same_seed_gives_the_same_bits(backend, restarts):
    frames = spectrogram()
    one = learned(frames, backend, restarts=restarts)
    other = learned(frames.copy(), backend, restarts=restarts)
    np.testing.assert_array_equal(one.components_, other.components_)


def test_memory_of_a_stream_does_not_grow(backend):
    import tracemalloc

    model = ondes.OnlineNMF(4, random_state=0, backend=backend, batch_size=50)
    frames = spectrogram(n_frames=50)
    model.partial_fit(frames)
    tracemalloc.start()
    for _ in range(20):
        model.partial_fit(frames)
    early = tracemalloc.get_traced_memory()[0]
    for _ in range(200):
        model.partial_fit(frames)
    late = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    # PyTorch has caches of its own, which level off; keeping the frames would take 2.6 MB.
    assert late - early < (200_000 if backend == "torch" else 20_000)
