"""A scikit-learn estimator in every respect, and what it offers beyond that."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from conftest import spectrogram
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import ondes


@parametrize_with_checks(
    [
        ondes.OnlineISNMF(),
        ondes.OnlineISNMF(backend="reference"),
        ondes.OnlineISNMF(init="random", restarts="warm", penalty=ondes.GroupLog(0.1)),
        ondes.OnlineISNMF.paper(n_passes=2, batch_size=10),
    ]
)
def test_every_scikit_learn_check(estimator, check):
    check(estimator)


def test_it_works_in_pipelines_searches_and_pickles(backend):
    frames = spectrogram()
    search = GridSearchCV(
        make_pipeline(
            FunctionTransformer(np.square), ondes.OnlineISNMF(random_state=0, backend=backend)
        ),
        {
            "onlineisnmf__n_components": [1, 5],
            "onlineisnmf__forgetting": [ondes.GrowingMemory(), ondes.HalfLife(100)],
        },
        cv=2,
    ).fit(frames)
    assert search.best_params_["onlineisnmf__n_components"] == 5
    model = search.best_estimator_[-1]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(frames), model.transform(frames))
    np.testing.assert_array_equal(
        again.partial_fit(frames).components_, model.partial_fit(frames).components_
    )
    assert clone(model).get_params() == model.get_params()
    assert list(model.get_feature_names_out()[:2]) == ["onlineisnmf0", "onlineisnmf1"]


def test_fit_transform_is_fit_then_transform(backend):
    frames = spectrogram()
    model = ondes.OnlineISNMF(4, random_state=0, backend=backend)
    np.testing.assert_array_equal(
        model.fit_transform(frames), clone(model).fit(frames).transform(frames)
    )


def test_the_model_of_noiseless_data_is_the_data(backend):
    frames = spectrogram(n_frames=300, n_components=3, noise=False)
    model = ondes.OnlineISNMF(3, random_state=0, n_passes=60, backend=backend).fit(frames)
    rebuilt = model.inverse_transform(model.transform(frames))
    assert np.median(np.abs(rebuilt / frames - 1)) < 0.05
    assert -model.score(frames) < 0.02


def test_score_is_minus_the_mean_divergence_per_bin(backend):
    frames = spectrogram()
    model = ondes.OnlineISNMF(4, random_state=0, backend=backend).fit(frames)
    floor = 1e-12 * frames.mean(axis=1, keepdims=True)
    ratio = (frames + floor) / (model.inverse_transform(model.transform(frames)) + floor)
    each = (ratio - np.log(ratio) - 1).mean(axis=1)
    np.testing.assert_allclose(model.score_samples(frames), -each, rtol=1e-8)
    assert model.score(frames) == pytest.approx(-each.mean(), rel=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_frames_keep_their_dtype_and_learning_is_float64(backend, dtype):
    model = ondes.OnlineISNMF(3, random_state=0, backend=backend).fit(spectrogram().astype(dtype))
    assert model.transform(spectrogram().astype(dtype)).dtype == dtype
    assert model.components_.dtype == model.statistics_.numerator.dtype == np.float64
    np.testing.assert_allclose(model.components_.sum(axis=1), 1)


def test_memory_maps_and_iterables_are_read_piece_by_piece(backend, tmp_path):
    frames = spectrogram().astype(np.float32)
    np.save(tmp_path / "frames.npy", frames)
    mapped = np.load(tmp_path / "frames.npy", mmap_mode="r")
    settings = {"n_components": 4, "random_state": 0, "n_passes": 2, "backend": backend}
    from_array = ondes.OnlineISNMF(**settings).fit(frames)
    from_map = ondes.OnlineISNMF(**settings).fit(mapped)
    np.testing.assert_array_equal(from_map.components_, from_array.components_)
    buffers = [frames[:150], frames[150:]]
    one, other = (ondes.OnlineISNMF(**settings).fit(buffers) for _ in range(2))
    np.testing.assert_array_equal(one.components_, other.components_)
    unshuffled = ondes.OnlineISNMF(shuffle=False, **settings).fit(buffers)
    assert not np.array_equal(one.components_, unshuffled.components_)


@pytest.mark.parametrize("restarts", ["fresh", "warm"])
def test_frozen_rows_keep_their_bits_and_the_rest_learns(backend, restarts):
    frames = spectrogram()
    known = spectrogram(n_frames=2, seed=5)
    model = ondes.OnlineISNMF(
        5, frozen=known, random_state=0, restarts=restarts, backend=backend
    ).fit(frames)
    unit = known / known.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(model.components_[:2], unit)
    alone = ondes.OnlineISNMF(2, frozen=known, backend=backend).fit(frames)
    assert model.score(frames) > alone.score(frames) + 0.1


def test_a_known_background_is_not_learned(backend):
    """Frames of three lines in a strong known noise: the lines are found, the noise is not."""
    rng = np.random.default_rng(0)
    lines = np.eye(3, 12) + 1e-6
    noise = np.linspace(1, 3, 12)
    frames = rng.gamma(0.3, size=(600, 3)) * 50 @ lines + noise
    told = ondes.OnlineISNMF(3, background=noise, random_state=0, backend=backend).fit(frames)
    untold = ondes.OnlineISNMF(3, random_state=0, backend=backend).fit(frames)
    assert told.components_[:, 3:].sum() < 0.05 * untold.components_[:, 3:].sum()
    assert -told.score(frames) < 1e-2
    rebuilt = told.inverse_transform(told.transform(frames))
    assert np.median(np.abs(rebuilt / frames - 1)) < 0.02


def test_learning_stops_when_the_dictionary_stands_still(backend):
    frames = spectrogram()
    settings = {"n_passes": 50, "random_state": 0, "backend": backend}
    stopped = ondes.OnlineISNMF.batch(3, tol=1e-2, **settings).fit(frames)
    assert 1 < stopped.n_passes_ < 50
    assert ondes.OnlineISNMF.batch(3, **settings).fit(frames).n_passes_ == 50


def test_verbose_says_who_did_the_work(backend, capsys):
    ondes.OnlineISNMF(2, n_passes=2, verbose=1, backend=backend).fit(spectrogram())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(backend in line for line in lines)


def test_three_passes_of_the_default_beat_sixty_of_the_paper(backend):
    train = spectrogram(n_frames=3000, n_bins=65, n_components=10, seed=1)
    held_out = spectrogram(n_frames=3500, n_bins=65, n_components=10, seed=1)[3000:]
    first = ondes.OnlineISNMF(10, init="random", random_state=0, batch_size=None)
    first = first.partial_fit(train[:300]).components_
    default = ondes.OnlineISNMF(10, init=first, n_passes=3, random_state=0, backend=backend).fit(
        train
    )
    paper = ondes.OnlineISNMF.paper(
        10, init=first, n_passes=60, random_state=0, backend=backend, restarts="warm"
    ).fit(train)
    assert -default.score(held_out) < -paper.score(held_out)


BAD_INPUT = {
    "negative": -np.ones((5, 4)),
    "nan": np.full((5, 4), np.nan),
    "infinite": np.full((5, 4), np.inf),
    "other bins": np.ones((5, 7)),
    "empty": np.empty((0, 4)),
    "one-dimensional": np.ones(4),
    "text": np.array([["a", "b", "c", "d"]]),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_frames_get_one_sentence_and_change_nothing(backend, name):
    model = ondes.OnlineISNMF(2, random_state=0, backend=backend).partial_fit(np.ones((6, 4)))
    before = pickle.dumps(model)
    for method in (model.partial_fit, model.transform, model.score, model.summarise):
        with pytest.raises((ValueError, TypeError)) as error:
            method(BAD_INPUT[name])
        assert len(str(error.value)) > 10
    assert pickle.dumps(model) == before
    if name != "other bins":
        with pytest.raises((ValueError, TypeError)):
            ondes.OnlineISNMF(2).fit(BAD_INPUT[name])


def test_sparse_frames_are_refused():
    from scipy.sparse import csr_array

    with pytest.raises(TypeError, match=r"(?i)sparse"):
        ondes.OnlineISNMF(2).fit(csr_array(np.ones((5, 4))))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_components": 0}, "n_components=0 must be 1 or more"),
        ({"n_components": 2.5}, "n_components=2.5 must be a whole number"),
        ({"batch_size": 0}, "batch_size=0 must be 1 or more"),
        ({"n_passes": 0}, "n_passes=0 must be 1 or more"),
        ({"dictionary_exponent": 0.0}, "dictionary_exponent=0.0 must lie in"),
        ({"dictionary_exponent": 1.5}, "dictionary_exponent=1.5 must lie in"),
        ({"noise_floor": 0.0}, "noise_floor=0.0 must lie in"),
        ({"tol": -1.0}, "tol=-1.0 must lie in"),
        ({"init": "nndsvd"}, "init='nndsvd' must be one of"),
        ({"restarts": "hot"}, "restarts='hot' must be one of"),
        ({"backend": "cobol"}, "backend='cobol' must be one of"),
        ({"forgetting": 0.7}, "forgetting=0.7 is no Forgetting; give one, or None"),
        ({"penalty": ondes.L1}, "penalty=.* is no ActivationPenalty"),
        ({"init": np.ones((2, 9))}, "init of shape .* must have 4 bins"),
        ({"init": np.zeros((2, 4))}, "init has a row of zeros"),
        ({"init": np.ones((3, 4))}, "init has 3 rows"),
        ({"frozen": np.ones((3, 4))}, "counts the 3 frozen rows"),
        ({"groups": [0]}, "one label for each of the 2 components"),
        ({"background": [1.0]}, "one value for each of 4 bins"),
        ({"background": [1.0, 1.0, 1.0, -1.0]}, "background must be finite and nowhere negative"),
    ],
)
def test_bad_parameters_get_one_sentence(settings, words):
    model = ondes.OnlineISNMF(**({"n_components": 2} | settings))
    for method in (model.fit, model.partial_fit):
        with pytest.raises((ValueError, TypeError), match=words):
            method(np.ones((6, 4)))
    assert not hasattr(model, "components_")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ondes.PerPass(1.5), "r=1.5 of PerPass must lie between 0 and 1"),
        (lambda: ondes.PerPass(-0.1), "r=-0.1"),
        (lambda: ondes.OnlineISNMF.paper(2, r=2.0), "r=2.0"),
        (lambda: ondes.GrowingMemory(-1), "power=-1"),
        (lambda: ondes.HalfLife(0), "n_frames=0"),
        (lambda: ondes.Solver(max_steps=0), "max_steps=0"),
        (lambda: ondes.Solver(exponent=0.0), "exponent=0.0"),
        (lambda: ondes.Solver(momentum=(0.5,)), "must begin with 0"),
        (lambda: ondes.L1(-1), "strength=-1"),
        (lambda: ondes.GroupLog(1, offset=0), "offset=0"),
    ],
)
def test_bad_small_objects_cannot_be_made(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_iterables_that_cannot_serve_are_refused():
    frames = spectrogram()
    with pytest.raises(ValueError, match="spent after one"):
        ondes.OnlineISNMF(2, n_passes=2).fit(iter([frames]))
    with pytest.raises(ValueError, match="holds no frames"):
        ondes.OnlineISNMF(2, n_passes=1).fit(iter([]))
    with pytest.raises(ValueError, match="needs all frames in one array"):
        ondes.OnlineISNMF(2, restarts="warm").fit([frames, frames])
