"""The number of components, chosen by entries that are held out."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import soundfile
from scipy import sparse
from sklearn.base import clone
from test_cli import run

import ondes
from ondes.nmf.choosing import ComponentChoice, _chosen, held_out_parts

rng = np.random.default_rng(5)
BETAS = {0: "itakura-saito", 1: "kullback-leibler", 2: "frobenius"}
EXACT = ondes.Solver(max_steps=2000, tol=1e-8)


def mixture(n_components, beta, n_frames=400, n_bins=50, seed=0):
    """Frames of so many components, with the noise for which the divergence is right."""
    rng = np.random.default_rng(seed)
    shares = rng.gamma(0.4, size=(n_frames, n_components)) + 1e-3
    model = shares @ rng.gamma(0.4, size=(n_components, n_bins)) + 1e-3
    model /= model.mean(axis=1, keepdims=True)
    if beta == 1:
        return rng.poisson(5 * model).astype(float)
    if beta == 2:
        return np.maximum(0, model + 0.3 * rng.standard_normal(model.shape))
    return model * rng.gamma(8, 1 / 8, size=model.shape)


# ---- what is held out ----


def test_each_entry_of_a_fifth_of_the_frames_is_held_out_once():
    is_tested, fold = held_out_parts((50, 14), seed=3)
    times = np.zeros((50, 14), int)
    for number in range(4):
        for frame in range(50):
            for bin_ in range(14):
                times[frame, bin_] += is_tested[frame] and fold[bin_] == number
    assert times.sum(axis=1).tolist().count(14) == 10
    assert times.sum() == 10 * 14
    assert sorted(np.bincount(fold)) == [3, 3, 4, 4]


def test_it_depends_on_the_shape_and_the_seed_alone():
    first, _, again, other = (held_out_parts((50, 14), seed) for seed in (3, 4, 3, 5))
    for one, same, different in zip(first, again, other, strict=True):
        assert np.array_equal(one, same)
        assert not np.array_equal(one, different)


# ---- the score ----


def divergence(v, y, beta):
    if beta == 0:
        return v / y - np.log(v / y) - 1
    if beta == 1:
        return (v * np.log(v / y) if v > 0 else 0.0) - v + y
    return (v - y) ** 2 / 2


def activations_of(frame, dictionary, weights, background, beta):
    """Multiplicative steps from the formula, for one frame."""
    h = np.full(len(dictionary), frame.sum() / len(dictionary))
    for _ in range(2000):
        y = h @ dictionary + background
        h = h * (
            (dictionary @ (weights * frame * y ** (beta - 2.0)))
            / (dictionary @ (weights * y ** (beta - 1.0)))
        ) ** (0.5 if beta == 0 else 1.0)
    return h


def score_by_loops(X, n_components, seed, counts, options, is_sparse):
    """Minus the mean divergence of the held-out entries, one after the other."""
    is_tested, fold = held_out_parts(X.shape, seed)
    kept = X[~is_tested]
    how = {"n_components": n_components, "random_state": seed, **options}
    given = sparse.csr_array(kept) if is_sparse else kept
    model = ondes.OnlineNMF(**how).fit(given, sample_weight=counts[~is_tested])
    weights = np.ones(X.shape[1]) if model.feature_weight is None else model.feature_weight
    background = np.zeros(X.shape[1]) if model.background is None else model.background
    beta, total, count = options["beta_loss"], 0.0, 0.0
    for n in np.flatnonzero(is_tested):
        for number in range(4):
            known = (fold != number) & ~np.isnan(X[n])
            if not X[n, known].any():
                continue
            w = model.components_[:, known]
            h = activations_of(X[n, known], w, weights[known], background[known], beta)
            level = np.average(X[n, known] + background[known], weights=weights[known])
            for f in np.flatnonzero(fold == number):
                if np.isnan(X[n, f]):
                    continue
                y = h @ model.components_[:, f] + background[f]
                each = divergence(X[n, f], y, beta)
                if options.get("weighting") == "equal":
                    each /= level**beta
                total += counts[n] * weights[f] * each
                count += counts[n] * weights[f]
    return -total / count


CASES = [
    (beta, options, is_sparse)
    for beta in BETAS
    for is_sparse in ([False, True] if beta else [False])
    for options in [{}, {"weighting": "equal"}, {"holes": True, "feature_weight": [1, 2, 1, 3] * 3}]
    if not (is_sparse and "holes" in options)
] + [(beta, {"background": np.linspace(0.1, 0.3, 12)}, False) for beta in BETAS]


@pytest.mark.parametrize(("beta", "options", "is_sparse"), CASES)
def test_the_score_is_that_of_plain_loops(beta, options, is_sparse):
    X = (mixture(3, 0, 20, 12) + 0.05) * rng.lognormal(0, 1, size=(20, 1))
    if is_sparse:
        X[rng.uniform(size=X.shape) < 0.2] = 0
    options = dict(options)
    if options.pop("holes", False):
        X[rng.uniform(size=X.shape) < 0.1] = np.nan
    if "feature_weight" in options:
        options["feature_weight"] = np.asarray(options["feature_weight"], float)
    counts = rng.integers(1, 4, 20).astype(float)
    options |= {"beta_loss": beta, "transform_solver": EXACT}
    given = sparse.csr_matrix(X) if is_sparse else X
    choice = ondes.choose_components(
        given, [1, 3], n_masks=2, sample_weight=counts, random_state=7, **options
    )
    for place, n_components, seed in [((0, 0), 1, 7), ((1, 1), 3, 8)]:
        expected = score_by_loops(X, n_components, seed, counts, options, is_sparse)
        assert choice.mask_scores[place] == pytest.approx(expected, rel=1e-3)


# ---- the choice ----


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("n_components", [3, 7])
def test_the_true_number_is_found(beta, n_components):
    X = mixture(n_components, beta)
    choice = ondes.choose_components(X, beta_loss=beta)
    assert abs(choice.n_components - n_components) <= 1
    # It falls on both sides, but the score of all frames rises on and on.
    more = [*choice.candidates, 4 * n_components]
    of_more = ondes.choose_components(X, more, beta_loss=beta)
    assert of_more.scores[-1] < of_more.scores.max() > of_more.scores[0]


def test_counts_in_a_sparse_matrix_of_whole_numbers():
    X = np.random.default_rng(0).poisson(mixture(4, 0, 800, 80) / 2)
    choice = ondes.choose_components(sparse.csr_matrix(X), beta_loss="kullback-leibler")
    assert abs(choice.n_components - 4) <= 1


def test_the_smallest_within_one_standard_error_of_the_best_is_chosen():
    rng, n_smaller = np.random.default_rng(1), 0
    for _ in range(50):
        scores = rng.standard_normal((6, 4)) + 2 * rng.standard_normal(4)
        best, chosen = max(range(6), key=lambda row: sum(scores[row])), None
        for row in range(6):
            worse = [scores[best][n] - scores[row][n] for n in range(4)]
            mean = sum(worse) / 4
            error = (sum((each - mean) ** 2 for each in worse) / 3) ** 0.5 / 2
            if mean <= error and chosen is None:
                chosen = row
        assert _chosen(np.arange(10, 16), scores) == 10 + chosen
        n_smaller += chosen < best
    assert 10 < n_smaller < 50


def test_the_curve_and_its_spread():
    choice = ondes.choose_components(mixture(3, 1, 100, 15), [3, 1, 2, 3], beta_loss=1)
    scores = choice.mask_scores
    assert choice.candidates.tolist() == [1, 2, 3]
    np.testing.assert_allclose(choice.scores, scores.mean(axis=1))
    np.testing.assert_allclose(choice.spread, scores.std(axis=1, ddof=1) / 2)


def test_it_is_repeatable_and_changes_nothing():
    X = mixture(3, 1, 150, 20)
    X.flags.writeable = False
    np.random.seed(4)
    one, again, other = (
        ondes.choose_components(X, [2, 3], beta_loss=1, random_state=seed) for seed in (1, 1, 9)
    )
    assert np.random.uniform() == np.random.RandomState(4).uniform()
    assert one.mask_scores.tobytes() == again.mask_scores.tobytes()
    assert not np.array_equal(one.mask_scores, other.mask_scores)


def test_threads_do_not_change_it():
    X = mixture(3, 1, 150, 20)
    one, two = (ondes.choose_components(X, [2, 3], beta_loss=1, n_jobs=n) for n in (1, 2))
    assert one.mask_scores.tobytes() == two.mask_scores.tobytes()


def test_frames_of_weight_zero_and_silent_ones_are_no_frames():
    X = mixture(3, 1, 150, 20)
    counts = rng.integers(0, 2, 150)
    X[rng.uniform(size=150) < 0.1] = 0
    there = X[(counts > 0) & X.any(axis=1)]
    ones = np.ones(len(there))
    one = ondes.choose_components(X, [2, 3], beta_loss=1, sample_weight=counts)
    other = ondes.choose_components(there, [2, 3], beta_loss=1, sample_weight=ones)
    np.testing.assert_allclose(one.mask_scores, other.mask_scores, rtol=1e-9)
    assert one.n_frames == len(there)


def test_a_part_of_the_frames_is_used():
    choice = ondes.choose_components(mixture(3, 1, 500, 20), [2], max_frames=100, beta_loss=1)
    assert choice.n_frames == 100


def test_a_sparse_matrix_stays_sparse():
    X = sparse.random(1000, 40_000, density=1e-3, format="csr", random_state=1)
    tracemalloc.start()
    ondes.choose_components(X, [2], n_masks=1, beta_loss=1, n_passes=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1000 * 40_000 * 8 / 2


def test_lists_integers_tables_and_masked_arrays():
    X = mixture(3, 1, 120, 20)
    expected = ondes.choose_components(X, [2, 3], beta_loss=1).mask_scores
    for given in ([X[:50], X[50:]], X.astype(int), X.tolist(), np.ma.masked_invalid(X)):
        found = ondes.choose_components(given, [2, 3], beta_loss=1).mask_scores
        np.testing.assert_allclose(found, expected, rtol=1e-12)


# ---- n_components="auto" ----


def test_auto_is_fit_with_the_number_that_is_chosen():
    X = mixture(4, 1, 300, 30)
    choice = ondes.choose_components(X, beta_loss=1, random_state=2)
    auto = ondes.OnlineNMF("auto", beta_loss=1, random_state=2).fit(X)
    known = ondes.OnlineNMF(choice.n_components, beta_loss=1, random_state=2).fit(X)
    assert auto.choice_.mask_scores.tobytes() == choice.mask_scores.tobytes()
    assert auto.components_.tobytes() == known.components_.tobytes()
    assert auto.get_params()["n_components"] == "auto"
    assert auto.transform(X).tobytes() == known.transform(X).tobytes()
    for same in (pickle.loads(pickle.dumps(auto)), auto.with_parameters(verbose=0)):
        assert same.score(X) == auto.score(X)
        same.partial_fit(X)  # goes on with that number
        assert len(same.components_) == choice.n_components
    with pytest.raises(ValueError, match=r"'auto' is chosen by `fit`"):
        clone(auto).partial_fit(X)


def test_every_fit_chooses_anew():
    auto = ondes.OnlineNMF("auto", beta_loss=1, random_state=0)
    sizes = [len(auto.fit(mixture(k, 1, 300, 30)).components_) for k in (2, 7)]
    assert sizes[0] < sizes[1]
    with pytest.raises(ValueError, match=r"'auto' is chosen by `fit` of an array"):
        auto.fit({0: mixture(2, 1, 300, 30)}.values())
    auto.set_params(n_components=3).fit(mixture(2, 1, 300, 30))
    assert not hasattr(auto, "choice_")


def test_several_seeds_choose_once():
    X = mixture(4, 1, 200, 30)
    auto = ondes.OnlineNMF("auto", beta_loss=1, random_state=2, n_init=3).fit(X)
    known = ondes.OnlineNMF(len(auto.components_), beta_loss=1, random_state=2, n_init=3).fit(X)
    assert auto.components_.tobytes() == known.components_.tobytes()


def test_fixed_components_are_part_of_the_number():
    X = mixture(4, 1, 200, 30)
    auto = ondes.OnlineNMF("auto", beta_loss=1, fixed_components=np.eye(30)[:3] + 0.1).fit(X)
    assert auto.choice_.candidates[0] >= 3


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "a.wav"
    time = np.arange(6 * 8000) / 8000
    tones = np.sin(900 * time * (1 + np.floor(3 * time) % 3)) * (0.02 + np.cos(7 * time) ** 2)
    samples = 0.3 * tones + 0.03 * np.random.default_rng(0).standard_normal(len(time))
    soundfile.write(path, samples, 8000, subtype="FLOAT")
    return path


SETTINGS = {"sr": 8000, "n_fft": 256, "hop_length": 256, "sparsity": 0.0}


def test_learning_from_recordings(sound):
    auto = ondes.learn(sound, "auto", **SETTINGS)
    known = ondes.learn(sound, auto.n_components, **SETTINGS)
    assert auto.components.tobytes() == known.components.tobytes()
    assert 1 < auto.n_components < 40


def test_the_command_says_what_was_chosen(sound):
    output = sound.with_name("m.ondes")
    options = ["--sr", 8000, "--n-fft", 256, "--hop-length", 256, "--sparsity", 0]
    done = run("learn", sound, "-o", output, "-k", "auto", *options)
    expected = ondes.learn(sound, "auto", **SETTINGS)
    assert f"n_components={expected.n_components}" in done.stderr.decode()
    assert ondes.load(output).components.tobytes() == expected.components.tobytes()
    refused = run("learn", "-", "-o", output, "-k", "auto", "--force")
    assert refused.returncode == 2
    assert b"can be read only once; give -k a number" in refused.stderr
    wrong = run("learn", sound, "-o", output, "-k", "some", "--force")
    assert wrong.returncode == 2
    assert b"'some' is not a whole number, or auto" in wrong.stderr


# ---- refusals, and the picture ----

X = mixture(2, 1, 60, 12)


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        (X, {"candidates": []}, "candidates is empty"),
        (X, {"candidates": [2, 0]}, "candidates has 0: give whole numbers from 1"),
        (X, {"candidates": [2.5]}, "candidates has 2.5"),
        (X, {"candidates": "auto"}, "candidates has 'auto'"),
        (X, {"candidates": [2], "fixed_components": X[:3]}, "whole numbers from 3"),
        (X, {"n_masks": 0}, "n_masks=0 must be a whole number from 1"),
        (X, {"max_frames": 0}, "max_frames=0 must be a whole number from 1"),
        (X, {"init": X[:2]}, "init of each component is for a known number"),
        (X, {"groups": [0, 1]}, "groups of each component is for a known number"),
        (X, {"start": np.ones((60, 2))}, "start of each component"),
        (X[:1], {}, r"X of shape \(1, 12\) has nothing to hold out"),
        (X[:, :1], {}, r"X of shape \(60, 1\) has nothing to hold out"),
        (0 * X, {}, "All frames are silent"),
        (X, {"sample_weight": np.zeros(60)}, "sample_weight is zero for all frames"),
        (-X, {}, "Negative values"),
        (X, {"sample_weight": np.ones(3)}, "sample_weight of shape"),
        (sparse.csr_array(X), {"beta_loss": 0}, "Itakura|itakura|zeros of sparse input"),
    ],
)
def test_what_cannot_be_is_one_sentence(given, options, sentence):
    options = {"beta_loss": 1} | options
    with pytest.raises((ValueError, TypeError), match=sentence):
        ondes.choose_components(given, **options)


def test_words_that_are_none():
    with pytest.raises(TypeError, match="finds n_components: give candidates"):
        ondes.choose_components(X, n_components=3)
    with pytest.raises(TypeError, match="'n_comps' is no parameter"):
        ondes.choose_components(X, n_comps=3)


def test_the_picture():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    choice = ComponentChoice(3, np.array([2, 3]), np.array([[-2.0, -2.2], [-1.0, -1.2]]), 100)
    axes = choice.plot()
    assert choice.plot(axes) is axes
    assert axes.get_title() == "3 components"
    matplotlib.pyplot.close(axes.figure)


def test_nothing_is_imported_for_it():
    code = (
        "import ondes.nmf.choosing, sys; print({'matplotlib', 'sklearn', 'scipy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
