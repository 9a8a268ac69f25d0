"""Weights of frames, of bins and of entries: what they count, on every backend and route."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import ondes
from ondes.nmf.backends import native
from ondes.nmf.encoding import Compute, encode, summarise
from ondes.nmf.forgetting import ConstantFactor
from ondes.nmf.problem import Problem, Solver

KERNELS = native._kernel().instruction_sets() if native.available() else []
BETAS = (0.0, 0.5, 1.0, 2.0)
pytestmark = pytest.mark.filterwarnings("ignore:The native backend supports")
rng = np.random.default_rng(3)
FRAMES = rng.exponential(size=(40, 3)) @ rng.exponential(size=(3, 11)) + rng.exponential(
    0.1, (40, 11)
)
FRAMES *= rng.lognormal(0, 2, size=(40, 1))
COUNTS = rng.integers(0, 4, 40)
HOLES = rng.uniform(size=FRAMES.shape) < 0.3
HOLES[7] = True  # a frame of which nothing is known


def learned(X, beta, backend="reference", **how):
    fit = {name: how.pop(name) for name in ("sample_weight",) if name in how}
    settings = {"n_passes": 3, "random_state": 2, "batch_size": 200} | how
    return ondes.OnlineNMF(3, beta_loss=beta, backend=backend, **settings).fit(X, **fit)


def assert_same(one, other, tolerance=1e-10):
    for name in ("numerator", "denominator", "divergence", "n_frames"):
        np.testing.assert_allclose(
            *(getattr(each.statistics_, name) for each in (one, other)), rtol=tolerance
        )
    np.testing.assert_allclose(one.components_, other.components_, rtol=tolerance)
    assert one.n_frames_seen_ == other.n_frames_seen_


# ---- weights of frames ----


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("weighting", ["level", "equal"])
@pytest.mark.parametrize("init", ["auto", "random", "parts"])
def test_a_weight_of_two_is_a_frame_given_twice_and_zero_none(backend, beta, weighting, init):
    how = {"weighting": weighting, "init": init}
    one = learned(FRAMES, beta, backend, sample_weight=COUNTS, **how)
    other = learned(FRAMES.repeat(COUNTS, axis=0), beta, backend, **how)
    assert_same(one, other)
    assert one.n_frames_seen_ == 3 * COUNTS.sum()
    assert one.score(FRAMES, sample_weight=COUNTS) == pytest.approx(
        other.score(FRAMES.repeat(COUNTS, axis=0)), rel=1e-10
    )


@pytest.mark.parametrize("beta", [1.0, 2.0])
@pytest.mark.parametrize("weighting", ["level", "equal"])
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_so_it_is_with_sparse_frames(beta, weighting, kernel):
    frames = rng.poisson(FRAMES / FRAMES.mean(axis=1, keepdims=True)).astype(float)
    how = {"weighting": weighting, "init": "random", "backend": kernel}
    rows = sparse.csr_array(frames)
    one = learned(rows, beta, sample_weight=COUNTS, **how)
    assert_same(one, learned(sparse.csr_array(frames.repeat(COUNTS, axis=0)), beta, **how))
    dense = how | {"init": one.components_}
    assert_same(
        learned(rows, beta, sample_weight=COUNTS, **dense),
        learned(frames, beta, sample_weight=COUNTS, **dense),
        1e-6,
    )


@pytest.mark.parametrize("beta", BETAS)
def test_statistics_of_weighted_frames_are_those_of_repeated_ones_however_cut(backend, beta):
    model = learned(FRAMES, beta, backend)
    whole = model.summarise(FRAMES.repeat(COUNTS, axis=0))
    parts = [model.summarise(FRAMES[i : i + 7], COUNTS[i : i + 7]) for i in range(0, 40, 7)]
    total = sum(parts[1:], start=parts[0])
    for name in ("numerator", "denominator", "divergence", "n_frames"):
        np.testing.assert_allclose(getattr(total, name), getattr(whole, name), rtol=1e-10)


def test_weights_come_in_parts_too(backend):
    settings = {"n_components": 3, "random_state": 0, "batch_size": 40, "backend": backend}
    whole = ondes.OnlineNMF(**settings).partial_fit(FRAMES, sample_weight=COUNTS)
    assert whole.n_frames_seen_ == COUNTS.sum()
    one = ondes.OnlineNMF(**settings).initialise(FRAMES)
    other = ondes.OnlineNMF(**settings).initialise(FRAMES)
    one.partial_fit(FRAMES[:20], sample_weight=COUNTS[:20])
    other.partial_fit(FRAMES[:20].repeat(COUNTS[:20], axis=0))
    assert_same(one, other)
    half = ondes.OnlineNMF(**settings).partial_fit(FRAMES, sample_weight=COUNTS / 2)
    assert half.n_frames_seen_ == COUNTS.sum() / 2
    np.testing.assert_allclose(half.components_, whole.components_, rtol=1e-10)
    listed = ondes.OnlineNMF(n_passes=2, **settings)
    listed.fit([FRAMES[:9], FRAMES[9:]], sample_weight=COUNTS)
    array = ondes.OnlineNMF(n_passes=2, **settings).fit(FRAMES, sample_weight=COUNTS)
    assert_same(listed, array)


@pytest.mark.parametrize("n_init", [1, 3])
def test_weights_of_an_iterable_are_refused(n_init):
    model = ondes.OnlineNMF(2, n_init=n_init)
    with pytest.raises(ValueError, match="sample_weight needs an array or a list of arrays; for"):
        model.fit(iter([FRAMES]), sample_weight=COUNTS)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (np.ones(39), r"sample_weight of shape \(39,\) must have one value for each of 40 frames"),
        (np.ones((40, 1)), r"sample_weight of shape \(40, 1\)"),
        (-np.ones(40), "sample_weight must be finite, nowhere negative"),
        (np.full(40, np.nan), "sample_weight must be finite"),
        (np.full(40, 1e13), "at most 1e"),
        (np.zeros(40), "sample_weight is zero for all frames"),
    ],
)
def test_weights_that_are_none_are_refused(weights, said):
    with pytest.raises(ValueError, match=said):
        ondes.OnlineNMF(2).fit(FRAMES, sample_weight=weights)


def test_scikit_learn_routes_the_weights():
    from sklearn import config_context
    from sklearn.pipeline import make_pipeline

    with config_context(enable_metadata_routing=True):
        model = ondes.OnlineNMF(3, random_state=0, n_passes=2)
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        model.set_partial_fit_request(sample_weight=True)
        piped = make_pipeline(model).fit(FRAMES, sample_weight=COUNTS)
        scored = piped.score(FRAMES, sample_weight=COUNTS)
    alone = ondes.OnlineNMF(3, random_state=0, n_passes=2).fit(FRAMES, sample_weight=COUNTS)
    np.testing.assert_array_equal(piped[-1].components_, alone.components_)
    assert scored == alone.score(FRAMES, sample_weight=COUNTS)


# ---- missing entries, and weights of bins ----


def loop_step(v, m, w, h, floor, beta):
    ks, fs = range(len(w)), range(len(v))
    y = [floor + sum(h[k] * w[k][f] for k in ks) for f in fs]
    new = []
    for k in ks:
        above = sum(m[f] * w[k][f] * (v[f] + floor) * y[f] ** (beta - 2) for f in fs if m[f])
        below = sum(m[f] * w[k][f] * y[f] ** (beta - 1) for f in fs if m[f])
        new.append(h[k] * above / below)
    return new


def loop_pass(frames, w, *, weights, counts, beta, exponent, n_steps):
    """One update of all frames, entry by entry; the weights are those of entries."""
    n_components, n_bins, floor = len(w), len(w[0]), 1e-12
    ks, fs = range(n_components), range(n_bins)
    A, B = ([[0.0] * n_bins for _ in ks] for _ in range(2))
    for v, m, count in zip(frames, weights, counts, strict=True):
        if not sum(m):
            continue
        level = sum(m[f] * v[f] for f in fs if m[f]) / sum(m)
        v = [v[f] / level if m[f] else 0.0 for f in fs]
        # Components that are equal where entries count.
        h = [sum(m) / n_components / sum(m[f] * w[k][f] for f in fs) for k in ks]
        y = [floor + sum(h[k] * w[k][f] for k in ks) for f in fs]
        above = sum(m[f] * (v[f] + floor) * y[f] ** (beta - 1) for f in fs)
        gain = above / sum(m[f] * y[f] ** beta for f in fs)
        h = [gain * each for each in h]
        for _ in range(n_steps):
            h = loop_step(v, m, w, h, floor, beta)
        y = [floor + sum(h[k] * w[k][f] for k in ks) for f in fs]
        for k in ks:
            for f in fs:
                each = count * level**exponent * m[f] * h[k]
                A[k][f] += each * (v[f] + floor) * y[f] ** (beta - 2)
                B[k][f] += each * y[f] ** (beta - 1)
    moved = [[w[k][f] * ((A[k][f] / B[k][f]) ** 0.5 if B[k][f] else 1.0) for f in fs] for k in ks]
    return np.array([[x / sum(row) for x in row] for row in moved])


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("weighting", ["level", "equal"])
@pytest.mark.parametrize("has_holes", [True, False])
@pytest.mark.parametrize("has_bins", [True, False])
def test_an_update_is_the_one_in_plain_loops(backend, beta, weighting, has_holes, has_bins):
    w = rng.dirichlet(np.ones(11), size=3)
    bins = rng.uniform(0.2, 3, 11) * (np.arange(11) != 4) if has_bins else np.ones(11)
    weights = np.where(HOLES & has_holes, 0, bins)
    found = ondes.OnlineNMF(
        3, beta_loss=beta, weighting=weighting, init=w, batch_size=None, n_passes=1,
        feature_weight=bins if has_bins else None, dictionary_exponent=0.5, backend=backend,
        solver=Solver(max_steps=5, momentum=()),
    ).fit(np.where(HOLES & has_holes, np.nan, FRAMES), sample_weight=COUNTS / 3)  # fmt: skip
    expected = loop_pass(
        FRAMES.tolist(), w.tolist(), weights=weights.tolist(), counts=(COUNTS / 3).tolist(),
        beta=beta, exponent=beta if weighting == "level" else 0, n_steps=5,
    )  # fmt: skip
    np.testing.assert_allclose(found.components_, expected, rtol=1e-10)


@pytest.mark.parametrize("beta", BETAS)
def test_a_bin_of_weight_zero_is_a_bin_that_is_not_there(backend, beta):
    """Dictionaries differ by the scale of their rows, since these sum to one over all bins."""
    there = np.array([0, 1, 2, 4, 5, 7, 8, 9, 10])
    weights = np.zeros(11)
    weights[there] = 1
    rows = rng.exponential(size=(3, 11))
    missing = FRAMES.copy()
    missing[:, weights == 0] = np.nan
    alone = learned(FRAMES[:, there], beta, backend, init=rows[:, there])
    expected = alone.transform(FRAMES[:, there]) @ alone.components_
    for frames, weight in ((FRAMES, weights), (missing, None)):
        model = learned(frames, beta, backend, init=rows, feature_weight=weight)
        found = model.transform(frames) @ model.components_[:, there]
        np.testing.assert_allclose(found, expected, rtol=1e-8)
        assert model.score(frames) == pytest.approx(alone.score(FRAMES[:, there]), rel=1e-8)


def test_k_means_does_not_look_at_bins_of_weight_zero():
    other = FRAMES.copy()
    other[:, 3] *= rng.lognormal(0, 5, 40)
    weights = (np.arange(11) != 3).astype(float)
    found = [
        learned(frames, 0.0, feature_weight=weights).components_[:, weights > 0]
        for frames in (FRAMES, other)
    ]
    ratios = found[0] / found[1]
    np.testing.assert_allclose(ratios / ratios[:, :1], 1, rtol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_no_step_raises_the_objective(backend, beta, exponent):
    """Of the activations, then of the dictionary, with a third of the entries missing."""
    frames = np.where(HOLES, np.nan, FRAMES)
    bins = rng.uniform(0.2, 3, 11)
    rows = rng.dirichlet(np.ones(11), size=3)
    if exponent == 1 and not 1 <= beta <= 2:
        exponent = 0.9  # beyond, one is no descent

    def cost(n_steps):
        solver = Solver(max_steps=n_steps, exponent=exponent, momentum=())
        divergence = ondes.OnlineNMF(beta_loss=beta).settings.divergence
        problem = Problem(rows, 1e-12, solver, divergence=divergence, feature_weight=bins)
        return encode(frames, problem, Compute(backend)).divergences()

    costs = np.array([cost(n) for n in range(1, 9)])
    assert (np.diff(costs, axis=0) <= 1e-9 * costs[:-1] + 1e-12).all()

    model = ondes.OnlineNMF(
        3, beta_loss=beta, feature_weight=bins, restarts="warm", batch_size=None, shuffle=False,
        forgetting=ConstantFactor(0), dictionary_exponent=0.5, init=rows, n_passes=12,
        solver=Solver.paper(1), backend=backend, random_state=0,
        callback=lambda fitted: after.append(fitted.statistics_.divergence),
    )  # fmt: skip
    after = []
    model.fit(frames, sample_weight=COUNTS)
    assert len(after) == 12
    assert (np.diff(after) <= 1e-9 * np.abs(after[:-1])).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_neighbours_with_holes_change_no_bit(beta, dtype):
    frames = FRAMES.astype(dtype)
    model = learned(frames, beta, "auto")
    broken = frames.copy()
    broken[20:][HOLES[20:]] = np.nan
    np.testing.assert_array_equal(model.transform(broken)[:20], model.transform(frames)[:20])
    alone = np.concatenate([model.transform(row[None]) for row in broken])
    np.testing.assert_array_equal(model.transform(broken), alone)
    model.set_params(n_jobs=2)
    np.testing.assert_array_equal(model.transform(broken), alone)


def test_holes_are_nan_or_masked_in_arrays_lists_iterables_and_frames_of_pandas(backend):
    import pandas

    broken = np.where(HOLES, np.nan, FRAMES)
    how = {
        "backend": backend,
        "init": rng.exponential(size=(3, 11)),
        "shuffle": False,
        "solver": Solver(),
    }
    expected = learned(broken, 1.0, **how)
    masked = np.ma.array(np.where(HOLES, -1, FRAMES), mask=HOLES)
    for given in (masked, [masked[:9], broken[9:]], {0: masked}.values()):
        assert_same(learned(given, 1.0, **how), expected)
    table = pandas.DataFrame(broken).convert_dtypes()
    np.testing.assert_array_equal(expected.transform(table), expected.transform(broken))
    np.testing.assert_array_equal(expected.transform(masked), expected.transform(broken))
    assert expected.score(masked) == expected.score(broken)
    whole = np.ma.masked_greater(np.full((4, 11), 3), 2)  # whole numbers have no NaN
    np.testing.assert_array_equal(expected.transform(whole), 0)


def test_a_frame_of_which_nothing_is_known_is_a_silent_one(backend):
    broken = np.where(HOLES, np.nan, FRAMES)
    model = learned(broken, 0.0, backend)
    assert model.n_frames_seen_ == 3 * 39
    assert not model.transform(broken)[7].any()
    assert model.score_samples(broken)[7] == 0
    nothing = ondes.OnlineNMF(2, backend=backend).fit(np.full((5, 4), np.nan))
    assert nothing.n_frames_seen_ == 0
    assert not nothing.is_initialised_


@pytest.mark.parametrize("beta", BETAS)
def test_missing_entries_of_a_model_are_found(backend, beta):
    model = rng.dirichlet(np.ones(3), size=400) @ rng.dirichlet(np.ones(11), size=3)
    holes = rng.uniform(size=model.shape) < 0.2
    fitted = learned(np.where(holes, np.nan, model), beta, backend, n_passes=40, batch_size=64)
    found = fitted.inverse_transform(fitted.transform(np.where(holes, np.nan, model)))
    assert np.median(np.abs(found / model - 1)[holes]) < 0.03


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (np.ones(10), r"feature_weight of shape \(10,\) must have one value for each of 11 bins"),
        (np.zeros(11), "feature_weight is zero in all bins"),
        (-np.ones(11), "feature_weight must be finite, nowhere negative"),
    ],
)
def test_weights_of_bins_that_are_none_are_refused(weights, said):
    with pytest.raises(ValueError, match=said):
        ondes.OnlineNMF(2, feature_weight=weights).fit(FRAMES)


def test_sparse_input_refuses_what_needs_every_entry():
    rows = sparse.csr_array(np.where(HOLES, 0, FRAMES))
    with pytest.raises(ValueError, match="feature_weight needs a dense array"):
        ondes.OnlineNMF(2, beta_loss=1, feature_weight=np.ones(11)).fit(rows)
    rows.data[3] = np.nan
    with pytest.raises(ValueError, match=r"X has missing entries \(NaN\), which sparse"):
        ondes.OnlineNMF(2, beta_loss=1).fit(rows)


@pytest.mark.parametrize("isa", KERNELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["itakura-saito", "kullback-leibler"])
@pytest.mark.parametrize("shape", [(1, 3, 1), (70, 65, 5), (130, 300, 11)])
def test_every_instruction_set_is_the_reference(isa, dtype, loss, shape, monkeypatch):
    """Weights of frames, of entries, and both; penalties, backgrounds, momentum, given starts."""
    monkeypatch.setenv("ONDES_ISA", isa)
    n, n_bins, k = shape
    draw = np.random.default_rng(n)
    frames = (draw.exponential(size=(n, n_bins)) + 0.01).astype(dtype)
    holes = draw.uniform(size=frames.shape) < 0.4
    counts = draw.uniform(0.1, 3, n)
    tolerance = {
        "rtol": 3e-3 if dtype == np.float32 else 1e-9,
        "atol": 1e-6 if dtype == np.float32 else 0,
    }
    for given, bins, weights, options in [
        (frames, None, counts, {}),
        (np.where(holes, np.nan, frames), None, None, {}),
        (np.where(holes, np.nan, frames), draw.uniform(0.1, 2, n_bins), counts, {}),
        (np.where(holes, np.nan, frames), None, counts, {"background": draw.uniform(size=n_bins)}),
        (frames, None, counts, {"penalty": ondes.GroupLog(0.3)}),
        (
            np.where(holes, np.nan, frames),
            None,
            counts,
            {"penalty": ondes.L1(0.3), "sparsity": 0.2},
        ),
    ]:
        for solver in (Solver(max_steps=4), Solver(max_steps=5, momentum=(), exponent=0.5)):
            divergence = ondes.OnlineNMF(beta_loss=loss).settings.divergence
            problem = Problem(
                draw.dirichlet(np.ones(n_bins), size=k), 1e-9, solver, divergence=divergence,
                feature_weight=bins, level_exponent=divergence.beta, **options,
            )  # fmt: skip
            one, other = (
                summarise(given, problem, Compute(name), None, weights)
                for name in ("native", "reference")
            )
            np.testing.assert_allclose(one[0].full(), other[0].full(), **tolerance)
            for name in ("numerator", "denominator", "divergence", "n_frames"):
                mine, theirs = (getattr(each[1], name) for each in (one, other))
                scale = {"rtol": tolerance["rtol"], "atol": tolerance["rtol"] * np.mean(theirs)}
                np.testing.assert_allclose(mine, theirs, **scale)
