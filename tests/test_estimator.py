"""A scikit-learn estimator in every respect, and what it adds to one."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace

import numpy as np
import pytest
from conftest import spectrogram
from sklearn.base import clone
from sklearn.decomposition import NMF
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import ondes


@pytest.mark.filterwarnings("ignore:PerPass")  # of partial_fit
@parametrize_with_checks(
    [
        ondes.OnlineNMF(),
        ondes.OnlineNMF(backend="reference"),
        ondes.OnlineNMF(beta_loss="kullback-leibler"),
        ondes.OnlineNMF(beta_loss="frobenius"),
        ondes.OnlineNMF(beta_loss=0.5),
        ondes.OnlineNMF(init="random", restarts="warm", penalty=ondes.GroupLog(0.1)),
        ondes.OnlineNMF.paper(n_passes=2, batch_size=50),
    ]
)
def test_every_scikit_learn_check(estimator, check):
    check(estimator)


def test_pipelines_searches_and_pickles(backend):
    frames = spectrogram()
    search = GridSearchCV(
        make_pipeline(
            FunctionTransformer(np.square), ondes.OnlineNMF(random_state=0, backend=backend)
        ),
        {
            "onlinenmf__n_components": [1, 5],
            "onlinenmf__forgetting": [ondes.GrowingMemory(), ondes.HalfLife(100)],
        },
        cv=2,
    ).fit(frames)
    assert search.best_params_["onlinenmf__n_components"] == 5
    model = search.best_estimator_[-1]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(frames), model.transform(frames))
    np.testing.assert_array_equal(
        again.partial_fit(frames).components_, model.partial_fit(frames).components_
    )
    assert clone(model).get_params() == model.get_params()
    assert list(model.get_feature_names_out()[:2]) == ["onlinenmf0", "onlinenmf1"]


def test_fit_transform_is_fit_then_transform(backend):
    frames = spectrogram()
    model = ondes.OnlineNMF(4, random_state=0, backend=backend)
    np.testing.assert_array_equal(
        model.fit_transform(frames), clone(model).fit(frames).transform(frames)
    )


def test_the_model_of_noiseless_data_is_the_data(backend):
    frames = spectrogram(n_frames=300, n_components=3, noise=False)
    model = ondes.OnlineNMF(3, random_state=0, n_passes=60, backend=backend).fit(frames)
    rebuilt = model.inverse_transform(model.transform(frames))
    assert np.median(np.abs(rebuilt / frames - 1)) < 0.05
    assert -model.score(frames) < 0.02


def test_score_is_minus_the_mean_divergence_per_bin(backend):
    frames = spectrogram()
    model = ondes.OnlineNMF(4, random_state=0, backend=backend).fit(frames)
    floor = 1e-12 * frames.mean(axis=1, keepdims=True)
    ratio = (frames + floor) / (model.inverse_transform(model.transform(frames)) + floor)
    each = (ratio - np.log(ratio) - 1).mean(axis=1)
    np.testing.assert_allclose(model.score_samples(frames), -each, rtol=1e-8)
    assert model.score(frames) == pytest.approx(-each.mean(), rel=1e-8)


def test_score_is_the_mean_of_score_samples_with_silence_included(backend):
    frames = spectrogram()
    frames[::4] = 0
    model = ondes.OnlineNMF(4, random_state=0, backend=backend).fit(frames)
    each = model.score_samples(frames)
    assert not each[::4].any()
    assert (
        model.score(frames)
        == each.mean()
        == pytest.approx(0.75 * model.score(frames[1::4]), rel=0.2)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_frames_keep_their_dtype_and_learning_is_float64(backend, dtype):
    model = ondes.OnlineNMF(3, random_state=0, backend=backend).fit(spectrogram().astype(dtype))
    assert model.transform(spectrogram().astype(dtype)).dtype == dtype
    assert model.components_.dtype == model.statistics_.numerator.dtype == np.float64
    np.testing.assert_allclose(model.components_.sum(axis=1), 1)


def test_memory_maps_and_iterables_are_read_in_parts(backend, tmp_path):
    frames = spectrogram().astype(np.float32)
    np.save(tmp_path / "frames.npy", frames)
    mapped = np.load(tmp_path / "frames.npy", mmap_mode="r")
    settings = {"n_components": 4, "random_state": 0, "n_passes": 2, "backend": backend}
    from_array = ondes.OnlineNMF(**settings).fit(frames)
    from_map = ondes.OnlineNMF(**settings).fit(mapped)
    np.testing.assert_array_equal(from_map.components_, from_array.components_)
    in_parts = ondes.OnlineNMF(**settings).fit([frames[:150], mapped[150:]])
    np.testing.assert_array_equal(in_parts.components_, from_array.components_)
    unshuffled = ondes.OnlineNMF(shuffle=False, **settings).fit(frames)
    assert not np.array_equal(in_parts.components_, unshuffled.components_)


def test_silent_frames_do_not_count_in_the_number_of_frames(backend):
    frames = spectrogram()
    settings = {"forgetting": ondes.PerPass(0.3), "shuffle": False, "random_state": 0}
    model, other = (ondes.OnlineNMF(4, backend=backend, **settings) for _ in range(2))
    model.fit(frames)
    other.set_params(init=model.components_).fit(np.append(frames, np.zeros_like(frames), axis=0))
    model.set_params(init=model.components_).fit(frames)
    assert other.statistics_.n_frames == pytest.approx(model.statistics_.n_frames)
    np.testing.assert_allclose(other.components_, model.components_, rtol=1e-9)


@pytest.mark.parametrize("restarts", ["fresh", "warm"])
def test_fixed_components_keep_their_bits_and_the_others_learn(backend, restarts):
    frames = spectrogram()
    known = spectrogram(n_frames=2, seed=5)
    model = ondes.OnlineNMF(
        5, fixed_components=known, random_state=0, restarts=restarts, backend=backend
    ).fit(frames)
    unit = known / known.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(model.components_[:2], unit)
    alone = ondes.OnlineNMF(2, fixed_components=known, backend=backend).fit(frames)
    assert model.score(frames) > alone.score(frames) + 0.1


def test_a_known_background_is_not_learned(backend):
    """Frames of three lines in a strong known noise: the lines are found, the noise is not."""
    rng = np.random.default_rng(0)
    lines = np.eye(3, 12) + 1e-6
    noise = np.linspace(1, 3, 12)
    frames = rng.gamma(0.3, size=(600, 3)) * 50 @ lines + noise
    model = ondes.OnlineNMF(3, background=noise, random_state=0, backend=backend).fit(frames)
    without = ondes.OnlineNMF(3, random_state=0, backend=backend).fit(frames)
    assert model.components_[:, 3:].sum() < 0.05 * without.components_[:, 3:].sum()
    assert -model.score(frames) < 1e-2
    rebuilt = model.inverse_transform(model.transform(frames))
    assert np.median(np.abs(rebuilt / frames - 1)) < 0.02


def test_beside_a_known_background_no_frame_is_silent(backend):
    """Frames of zeros are less than the background alone, and the model is that far from them."""
    noise = np.linspace(1, 3, 33)
    model = ondes.OnlineNMF(3, background=noise, random_state=0, backend=backend)
    model.fit(spectrogram() + noise)
    assert (model.score_samples(np.zeros((4, 33))) < -1).all()


def test_learning_stops_when_the_dictionary_converges(backend):
    frames = spectrogram()
    settings = {"n_passes": 50, "random_state": 0, "backend": backend}
    stopped = ondes.OnlineNMF.batch(3, tol=1e-2, **settings).fit(frames)
    assert 1 < stopped.n_passes_ < 50
    assert ondes.OnlineNMF.batch(3, **settings).fit(frames).n_passes_ == 50


def test_verbose_names_the_backend(backend, capsys):
    ondes.OnlineNMF(2, n_passes=2, verbose=1, backend=backend).fit(spectrogram())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(backend in line for line in lines)


def test_three_passes_of_the_default_beat_sixty_of_the_paper(backend):
    train = spectrogram(n_frames=3000, n_bins=65, n_components=10, seed=1)
    held_out = spectrogram(n_frames=3500, n_bins=65, n_components=10, seed=1)[3000:]
    first = ondes.OnlineNMF(10, init="random", random_state=0, batch_size=None)
    first = first.partial_fit(train[:300]).components_
    default = ondes.OnlineNMF(10, init=first, n_passes=3, random_state=0, backend=backend).fit(
        train
    )
    paper = ondes.OnlineNMF.paper(
        10, init=first, n_passes=60, random_state=0, backend=backend, restarts="warm"
    ).fit(train)
    assert -default.score(held_out) < -paper.score(held_out)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [10, 13, 13, 16, 16, 16, 16, 20]),
        ({"beta_loss": "kullback-leibler"}, [5, 5, 5, 5, 5, 16, 16, 20]),
        ({"beta_loss": "kullback-leibler", "sparsity": 1.0}, [10, 13, 13, 16, 16, 16, 16, 20]),
    ],
    ids=["Itakura-Saito", "Kullback-Leibler", "sparse"],
)
def test_later_passes_take_more_steps_unless_a_solver_is_given(backend, settings, steps):
    frames, options = spectrogram(), {"batch_size": 50, "backend": backend, **settings}
    options["init"] = ondes.OnlineNMF(4, random_state=0).initialise(frames).components_
    fitted = ondes.OnlineNMF(4, n_passes=len(steps), shuffle=False, **options).fit(frames)
    by_hand = ondes.OnlineNMF(4, **options)
    for n_steps in steps:
        by_hand.set_params(solver=ondes.Solver(n_steps)).partial_fit(frames)
    np.testing.assert_array_equal(fitted.components_, by_hand.components_)
    always = {"n_passes": 3, "shuffle": False, "solver": ondes.Solver(7), **options}
    fitted = ondes.OnlineNMF(4, **always).fit(frames)
    by_hand = ondes.OnlineNMF(4, **always)
    for _ in range(3):
        by_hand.partial_fit(frames)
    np.testing.assert_array_equal(fitted.components_, by_hand.components_)


def test_presets_may_be_changed():
    for model in (ondes.OnlineNMF.batch(3), ondes.OnlineNMF.batch(3, restarts="fresh")):
        assert (model.batch_size, model.n_passes, model.solver) == (
            None,
            100,
            ondes.Solver.paper(1),
        )
        assert model.forgetting == ondes.PerPass(0.0)
    for restarts, n_steps in {"fresh": 100, "warm": 1}.items():
        model = ondes.OnlineNMF.paper(3, restarts=restarts, batch_size=50, init="k-means++")
        assert (model.batch_size, model.init) == (50, "k-means++")
        assert model.solver == ondes.Solver.paper(n_steps)


# ---- callbacks ----


def test_the_callback_is_called_after_every_update(backend):
    frames, calls = spectrogram(n_frames=230), []

    def record(model):
        calls.append((model.n_frames_seen_, model.n_passes_, model.components_))

    settings = {"n_components": 4, "random_state": 0, "batch_size": 100, "backend": backend}
    model = ondes.OnlineNMF(n_passes=2, callback=record, **settings).fit(frames)
    assert [call[:2] for call in calls] == [
        *((100, 1), (200, 1), (230, 1)),
        *((330, 2), (430, 2), (460, 2)),
    ]
    assert calls[-1][2] is model.components_
    plain = ondes.OnlineNMF(n_passes=2, **settings).fit(frames)
    np.testing.assert_array_equal(model.components_, plain.components_)
    calls.clear()
    model.partial_fit(frames[:130]).absorb(model.summarise(frames[:20]))
    assert [call[0] for call in calls] == [560, 590, 610]
    calls.clear()
    model.fit([frames[:50], frames[50:]])
    assert [call[:2] for call in calls][-1] == (460, 2)


def test_a_callback_may_end_fit_and_what_was_learned_stays():
    class EnoughError(Exception):
        pass

    def stop(model):
        if model.n_frames_seen_ == 200:
            raise EnoughError

    frames = spectrogram()
    settings = {"n_components": 4, "random_state": 0, "batch_size": 100, "shuffle": False}
    model = ondes.OnlineNMF(callback=stop, **settings)
    with pytest.raises(EnoughError):
        model.fit(frames)
    expected = ondes.OnlineNMF(**settings).initialise(frames).partial_fit(frames[:200])
    np.testing.assert_array_equal(model.components_, expected.components_)


def test_passes_are_tasks_of_scikit_learns_callbacks():
    pytest.importorskip("sklearn.callback", reason="scikit-learn is older than 1.9")
    frames, events = spectrogram(), []

    class Recorder:
        def setup(self, estimator, context):
            events.append("setup")

        def teardown(self, estimator, context):
            events.append("teardown")

        def on_fit_task_begin(self, estimator, context):
            events.append(f"{context.task_name} begins")

        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            events.append(f"{context.task_name} ends")
            scores.append(fitted_estimator.score(frames))
            return context.task_name == "pass" and estimator.n_passes_ == 3

    scores = []
    settings = {"n_components": 4, "random_state": 0}
    model = ondes.OnlineNMF(n_passes=5, **settings).set_callbacks(Recorder()).fit(frames)
    passes = ["pass begins", "pass ends"] * 3
    assert events == ["setup", "fit begins", *passes, "fit ends", "teardown"]
    three = ondes.OnlineNMF(n_passes=3, **settings).fit(frames)
    np.testing.assert_array_equal(model.components_, three.components_)
    assert scores[2:] == [three.score(frames)] * 2


# ---- the fitted state ----


@pytest.fixture
def fitted(backend):
    settings = {"n_components": 4, "random_state": 3, "batch_size": 50, "backend": backend}
    return ondes.OnlineNMF(**settings).fit(spectrogram())


def test_a_restored_estimator_continues_with_the_same_bits(fitted):
    frames = spectrogram(seed=1)
    state = fitted.state()
    restored = clone(fitted).restore(state)
    for name in ("n_frames_seen_", "n_features_in_", "n_passes_", "backend_", "is_initialised_"):
        assert getattr(restored, name) == getattr(fitted, name)
    again = clone(fitted).restore(state)
    for model in (fitted, restored, again):  # a state serves several times
        model.partial_fit(model.random_state_.permutation(frames))
        np.testing.assert_array_equal(model.components_, fitted.components_)
        np.testing.assert_array_equal(model.statistics_.numerator, fitted.statistics_.numerator)
    assert restored.transform(frames).shape == (400, 4)


def test_a_state_is_a_snapshot(fitted):
    state = fitted.state()
    components, position = state.components.copy(), state.random_state.get_state()[2]
    fitted.random_state_.permutation(9)
    assert state.random_state.get_state()[2] == position
    fitted.components_[0] = 0
    np.testing.assert_array_equal(state.components, components)
    restored = clone(fitted).restore(state)
    restored.components_[0] = 0
    np.testing.assert_array_equal(state.components, components)


def test_feature_names_are_part_of_the_state():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(spectrogram(n_bins=3), columns=["low", "middle", "high"])
    named = ondes.OnlineNMF(2, random_state=0).fit(table)
    restored = ondes.OnlineNMF(2).restore(named.state())
    assert list(restored.feature_names_in_) == ["low", "middle", "high"]
    unnamed = ondes.OnlineNMF(2, random_state=0).fit(table.to_numpy())
    assert not hasattr(restored.restore(unnamed.state()), "feature_names_in_")


def changed_statistics(state, **changes):
    return replace(state, statistics=replace(state.statistics, **changes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: replace(s, components=s.components[:, 1:]), "components must be a float64"),
        (
            lambda s: replace(s, components=s.components.astype("f4")),
            "components must be a float64",
        ),
        (lambda s: replace(s, components=-s.components), "components must be finite and nowhere"),
        (lambda s: replace(s, components=s.components * np.nan), "components must be finite"),
        (lambda s: replace(s, components=s.components + np.inf), "components must be finite"),
        (lambda s: replace(s, components=None), "components must be a float64"),
        (lambda s: replace(s, statistics=None), "n_frames must be a finite number"),
        (lambda s: replace(s, n_features_in=7), r"components must be .* of shape \(4, 7\)"),
        (lambda s: replace(s, n_features_in="many"), "n_features_in must be a finite number"),
        (lambda s: replace(s, n_frames_seen=-1), "n_frames_seen must not be negative"),
        (lambda s: replace(s, n_passes=-1), "n_passes must not be negative"),
        (lambda s: replace(s, random_state=0), "random_state must be a RandomState"),
        (lambda s: replace(s, is_initialised="yes"), "is_initialised must be true or false"),
        (lambda s: replace(s, backend=3), "backend must be a name"),
        (lambda s: replace(s, feature_names_in=["a"]), "feature_names_in must have 33 names"),
        (lambda s: changed_statistics(s, numerator=np.ones((4, 2))), "numerator must be a float64"),
        (lambda s: changed_statistics(s, denominator=-np.ones((4, 33))), "denominator must be fin"),
        (lambda s: changed_statistics(s, n_frames=-1.0), "n_frames must not be negative"),
        (lambda s: changed_statistics(s, n_frames=np.inf), "n_frames must be a finite number"),
        (lambda s: changed_statistics(s, divergence=None), "divergence must be a finite number"),
    ],
)
def test_inconsistent_states_cannot_be_made(change, words):
    state = ondes.OnlineNMF(4, random_state=0).initialise(spectrogram()).state()
    with pytest.raises(ValueError, match=words):
        change(state)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_components": 5}, "A state of 4 components does not fit n_components=5"),
        ({"n_components": 4, "background": np.ones(7)}, "one value for each of 33 bins"),
        ({"n_components": 4, "fixed_components": np.ones((1, 7))}, "must have 33 bins"),
        ({"n_components": 4, "init": np.ones((4, 7))}, "must have 33 bins"),
        ({"n_components": 4, "tol": -1.0}, "tol=-1.0 must lie in"),
    ],
)
def test_a_state_must_fit_the_parameters(settings, words):
    state = ondes.OnlineNMF(4, random_state=0).initialise(spectrogram()).state()
    model = ondes.OnlineNMF(**settings)
    with pytest.raises(ValueError, match=words):
        model.restore(state)
    assert not hasattr(model, "components_")


# ---- frames and parameters ----


BAD_FRAMES = {
    "negative": (-np.ones((5, 4)), "Negative values in data"),
    "infinite": (np.full((5, 4), np.inf), "contains infinity"),
    "other bins": (np.ones((5, 7)), "X has 7 features, but OnlineNMF is expecting 4 features"),
    "empty": (np.empty((0, 4)), r"0 sample\(s\)"),
    "one-dimensional": (np.ones(4), "Expected 2D array, got 1D array"),
    "text": (np.array([["a", "b", "c", "d"]]), "could not convert string to float"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frames_are_named_in_the_error_and_change_nothing(backend, name):
    frames, words = BAD_FRAMES[name]
    model = ondes.OnlineNMF(2, random_state=0, backend=backend).partial_fit(np.ones((6, 4)))
    before = pickle.dumps(model)
    for method in (model.partial_fit, model.transform, model.score, model.summarise):
        with pytest.raises(ValueError, match=words):
            method(frames)
    assert pickle.dumps(model) == before
    if name != "other bins":
        with pytest.raises(ValueError, match=words):
            ondes.OnlineNMF(2).fit(frames)


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
        ({"beta_loss": "hellinger"}, "beta_loss='hellinger' must be one of .* or a number from 0"),
        ({"beta_loss": 2.5}, "beta_loss=2.5 must be one of"),
        ({"beta_loss": np.nan}, "beta_loss=nan must be one of"),
        ({"sparsity": -1.0}, r"sparsity=-1.0 must lie in \[0, 1e\+06\]"),
        ({"sparsity": "much"}, "sparsity='much' must be a number"),
        (
            {"sparsity": 1.0, "dictionary_penalty": ondes.Smoothness(1.0)},
            "sparsity and dictionary_penalty exclude each other",
        ),
        (
            {"beta_loss": 1, "dictionary_penalty": ondes.Smoothness(1.0)},
            "dictionary_penalty needs beta_loss='itakura-saito'",
        ),
        ({"prior": -1.0}, "prior=-1.0 must lie in"),
        ({"init": "nndsvd"}, "init='nndsvd' must be one of"),
        ({"restarts": "hot"}, "restarts='hot' must be one of"),
        ({"backend": "cobol"}, "backend='cobol' must be one of"),
        ({"forgetting": 0.7}, "forgetting=0.7 must be of type Forgetting, or None"),
        ({"penalty": ondes.L1}, "penalty=.* must be of type ActivationPenalty"),
        ({"init": np.ones((2, 9))}, "init of shape .* must have 4 bins"),
        ({"init": np.zeros((2, 4))}, "init has a row of zeros"),
        ({"init": np.ones((3, 4))}, "init has 3 rows"),
        ({"fixed_components": np.ones((3, 4))}, "includes the 3 fixed_components"),
        ({"groups": [0]}, "one label for each of the 2 components"),
        ({"background": [1.0]}, "one value for each of 4 bins"),
        ({"background": [1.0, 1.0, 1.0, -1.0]}, "background must be finite and nowhere negative"),
    ],
)
def test_bad_parameters_get_one_sentence(settings, words):
    model = ondes.OnlineNMF(**({"n_components": 2} | settings))
    for method in (model.fit, model.partial_fit):
        with pytest.raises((ValueError, TypeError), match=words):
            method(np.ones((6, 4)))
    assert not hasattr(model, "components_")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ondes.PerPass(1.5), "r=1.5 of PerPass must lie between 0 and 1"),
        (lambda: ondes.PerPass(-0.1), "r=-0.1"),
        (lambda: ondes.OnlineNMF.paper(2, r=2.0), "r=2.0"),
        (lambda: ondes.GrowingMemory(-1), "power=-1"),
        (lambda: ondes.HalfLife(0), "n_frames=0"),
        (lambda: ondes.Solver(max_steps=0), "max_steps=0"),
        (lambda: ondes.Solver(max_steps=10**15), "must lie between 1 and 1000000"),
        (lambda: ondes.Solver(exponent=0.0), "exponent=0.0"),
        (lambda: ondes.Solver(momentum=(0.5,)), "must begin with 0"),
        (lambda: ondes.L1(-1), "strength=-1"),
        (lambda: ondes.GroupLog(1, offset=0), "offset=0"),
    ],
)
def test_invalid_rules_solvers_and_penalties_cannot_be_made(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("max_steps", [1.5, True, "many", None])
def test_steps_are_counted_in_whole_numbers(max_steps):
    with pytest.raises(TypeError, match="of Solver must be a whole number"):
        ondes.Solver(max_steps=max_steps)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("alpha_W", "'alpha_W' is no parameter of OnlineNMF: give sparsity, or penalty=ondes.L1"),
        ("max_iter", "'max_iter' is no parameter of OnlineNMF: give n_passes"),
        ("forget_factor", "give forgetting=ondes.HalfLife"),
        ("colour", r"'colour' is no parameter of OnlineNMF: see the parameters in `help"),
    ],
)
def test_words_of_other_packages_are_answered_by_a_sentence(name, words):
    for make in (ondes.OnlineNMF, ondes.OnlineNMF.paper, ondes.OnlineNMF.batch):
        with pytest.raises(TypeError, match=words):
            make(2, **{name: 1})
    names = inspect.signature(ondes.OnlineNMF).parameters
    assert next(iter(names)) == "n_components"


@pytest.mark.filterwarnings("ignore:The native backend supports")
@pytest.mark.parametrize("loss", ["kullback-leibler", "frobenius"])
@pytest.mark.parametrize("is_partial", [False, True])
def test_attributes_have_the_names_that_scikit_learn_users_look_for(backend, loss, is_partial):
    frames = spectrogram(n_frames=600, noise=False)
    frames *= np.random.default_rng(0).gamma(9, size=frames.shape)
    model = ondes.OnlineNMF(5, beta_loss=loss, n_passes=30, random_state=0, backend=backend)
    assert not hasattr(model, "reconstruction_err_")
    model.fit(frames)
    assert model.n_iter_ == model.n_passes_ == 30
    if is_partial:
        model = ondes.OnlineNMF(5, fixed_components=model.components_, beta_loss=loss)
        model.set_params(solver=ondes.Solver(100)).partial_fit(frames)
    fitted = model.inverse_transform(model.transform(frames))
    each = (frames - fitted) ** 2
    if loss == "kullback-leibler":
        each = 2 * (frames * np.log(frames / fitted) - frames + fitted)
    assert model.reconstruction_err_ == pytest.approx(np.sqrt(each.sum()), rel=0.1)


def test_exact_zeros_are_warned_of_where_they_decide_the_result(backend):
    frames = spectrogram()
    frames[:, ::5] = 0
    frames[::3] = 0  # silence is none of them
    model = ondes.OnlineNMF(2, n_passes=1, backend=backend, random_state=0)
    words = "21% of the entries of X are exactly zero, and with the Itakura-Saito"
    with pytest.warns(UserWarning, match=words):
        model.fit(frames)
    with pytest.warns(UserWarning, match=words):
        clone(model).partial_fit(frames)
    for changed in ({"beta_loss": 1}, {"noise_floor": 1e-3}, {"background": np.ones(33)}):
        clone(model).set_params(**changed).fit(frames)
    model.fit(np.where(frames == 0, np.nan, frames))


def test_unsuitable_iterables_are_refused():
    frames = spectrogram()
    with pytest.raises(ValueError, match="can be read again"):
        ondes.OnlineNMF(2, n_passes=2).fit(iter([frames]))
    with pytest.raises(ValueError, match="holds no frames"):
        ondes.OnlineNMF(2, n_passes=1).fit(iter([]))


@pytest.mark.parametrize("method", ["transform", "score", "partial_fit", "summarise"])
def test_frames_given_as_frequency_by_time_get_a_hint(method):
    frames = spectrogram(n_bins=20)
    model = ondes.OnlineNMF(4, random_state=0).fit(frames)
    with pytest.raises(ValueError, match=r"looks like \(frequency, time\); give X.T"):
        getattr(model, method)(frames.T)
    with pytest.raises(ValueError, match=r"give X.T"):
        ondes.OnlineNMF(4, background=np.ones(20)).fit(frames.T)
    with pytest.raises(ValueError, match=r"is expecting 20 features") as error:
        getattr(model, method)(np.ones((30, 21)))
    assert "X.T" not in str(error.value)  # it would not fit either way


def test_several_seeds_keep_the_best_dictionary(backend):
    frames = spectrogram(60, 12, 4)
    settings = {"n_components": 4, "init": "random", "n_passes": 2, "backend": backend}
    settings["solver"] = ondes.Solver(5)
    best = ondes.OnlineNMF(n_init=4, random_state=3, n_jobs=2, **settings).fit(frames)
    seeds = np.random.RandomState(3).randint(np.iinfo(np.int32).max, size=4)
    each = [ondes.OnlineNMF(random_state=int(seed), **settings).fit(frames) for seed in seeds]
    scores = [model.score(frames) for model in each]
    assert min(scores) < max(scores)
    np.testing.assert_array_equal(
        best.components_, each[int(np.argmax(scores))].components_, strict=True
    )
    in_turn = ondes.OnlineNMF(n_init=4, random_state=3, **settings).fit(frames)
    np.testing.assert_array_equal(in_turn.components_, best.components_)
    one_by_one = ondes.OnlineNMF(n_init=4, random_state=3, **settings).fit({0: frames}.values())
    running = [model.statistics_.divergence for model in each]
    np.testing.assert_array_equal(one_by_one.components_, each[int(np.argmin(running))].components_)


@pytest.mark.parametrize("n_frames", [30, 100, 300])
def test_small_sets_end_as_low_as_with_multiplicative_updates_of_all_frames(n_frames):
    ratios = []
    for seed in range(3):
        frames = spectrogram(n_frames, 33, 5, seed=seed) + 1e-9
        frames /= frames.mean(axis=1, keepdims=True)  # each counts the same, as here
        batch = NMF(
            6, solver="mu", beta_loss="kullback-leibler", init="nndsvda", max_iter=200, tol=0
        ).fit(frames)
        model = ondes.OnlineNMF(6, beta_loss="kullback-leibler", random_state=seed).fit(frames)
        known = ondes.OnlineNMF(6, beta_loss="kullback-leibler", init=batch.components_)
        ratios.append(model.score(frames) / known.initialise(frames).score(frames))
    assert np.median(ratios) < 1.02


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [({"n_components": 5}, "but 4 were learned"), ({"beta_loss": 1}, "it was learned with β = 0")],
)
def test_a_fitted_estimator_says_where_parameters_no_longer_fit(changed, sentence):
    frames = spectrogram()
    model = ondes.OnlineNMF(4, random_state=0, n_passes=1).fit(frames).set_params(**changed)
    for use in (model.partial_fit, model.transform, model.score, model.summarise):
        with pytest.raises(ValueError, match=sentence):
            use(frames)
    with pytest.raises(ValueError, match=sentence):
        model.state()
    model.fit(frames).state()


def test_small_integers_are_numbers_like_others():
    frames = spectrogram(300)
    settings = {"n_components": 3, "random_state": 0, "n_passes": 2}
    expected = ondes.OnlineNMF(batch_size=2, **settings).fit(frames)
    found = ondes.OnlineNMF(batch_size=np.int8(2), **settings).fit(frames)
    np.testing.assert_array_equal(found.components_, expected.components_)
    with pytest.raises(ValueError, match="batch_size=9223372036854775808 must be at most"):
        ondes.OnlineNMF(batch_size=2**63).fit(frames)
    with pytest.raises(TypeError, match="n_jobs=inf must be a whole number"):
        ondes.OnlineNMF(n_jobs=np.inf).fit(frames)
