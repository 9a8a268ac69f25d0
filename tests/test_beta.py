"""Every divergence of the family β in [0, 2], with and without sparsity."""

from __future__ import annotations

import importlib.util
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from conftest import NEEDS_KERNEL, NEEDS_TORCH, cases, spectrogram
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import NMF
from sklearn.utils.estimator_checks import parametrize_with_checks

import ondes
from ondes.nmf.backends import choose, reference
from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import BetaDivergence, level_frames
from ondes.nmf.problem import Problem
from ondes.nmf.statistics import Statistics

BETAS = [0.0, 0.5, 1.0, 1.5, 2.0]
EPSILON = 1e-12
KL = "kullback-leibler"


def on_backends(betas):
    """Every backend with the divergences that it has."""
    marks = {"reference": (), "native": (NEEDS_KERNEL,), "torch": (NEEDS_TORCH,)}
    pairs = [
        pytest.param(backend, beta, marks=marks[backend])
        for backend in marks
        for beta in betas
        if backend != "native" or beta in (0, 1)
    ]
    return pytest.mark.parametrize(("backend", "beta"), pairs, indirect=["backend"])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """So small a problem waits longer for other threads than it takes."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def safe_exponent(beta):
    """The largest for which descent is proven, as in scikit-learn."""
    return 1 / (2 - beta) if beta < 1 else 1.0


def unit_rows(n_rows, n_bins, seed=7):
    rows = np.random.default_rng(seed).uniform(0.2, 1.5, size=(n_rows, n_bins))
    return rows / rows.sum(axis=1, keepdims=True)


def learned(frames, **options):
    options = {"n_components": 4, "random_state": 0, "batch_size": 50, "n_passes": 2} | options
    return ondes.OnlineNMF(**options).fit(frames)


# ---- The definition, in plain loops ----


def loop_divergence(v, y, beta):
    total = 0.0
    for target, model in zip(v, y, strict=True):
        if beta == 0:
            total += target / model - math.log(target / model) - 1
        elif beta == 1:
            total += target * math.log(target / model) - target + model
        else:
            powers = target**beta + (beta - 1) * model**beta - beta * target * model ** (beta - 1)
            total += powers / (beta * (beta - 1))
    return total


@pytest.mark.parametrize("beta", BETAS)
def test_the_divergence_is_its_definition(beta):
    rng = np.random.default_rng(0)
    target, model = rng.gamma(0.5, size=(2, 20, 9)) + 1e-6
    found = BetaDivergence(beta).value(target, model)
    expected = [loop_divergence(*rows, beta) for rows in zip(target, model, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(BetaDivergence(beta).value(target, target), 0, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_the_terms_of_a_step_are_the_slopes_of_the_divergence(beta):
    rng = np.random.default_rng(1)
    target, model = rng.uniform(0.2, 3, size=(2, 1, 9))
    divergence = BetaDivergence(beta)
    terms = divergence.step_terms(target, model, cost=True)
    np.testing.assert_allclose(terms.data, target * model ** (beta - 2))
    np.testing.assert_allclose(terms.model, model ** (beta - 1))
    np.testing.assert_allclose(terms.cost.sum(axis=1), divergence.value(target, model))
    for f in range(9):
        step = np.zeros_like(model)
        step[0, f] = 1e-6
        rise = divergence.value(target, model + step) - divergence.value(target, model - step)
        assert rise[0] / 2e-6 == pytest.approx((terms.model - terms.data)[0, f], abs=1e-6)


def test_the_family_is_continuous_and_has_scikit_learns_names():
    rng = np.random.default_rng(2)
    target, model = rng.uniform(0.2, 3, size=(2, 4, 9))
    for name, beta in {"itakura-saito": 0, KL: 1, "frobenius": 2}.items():
        assert BetaDivergence.of(name) == BetaDivergence(beta)
        nearby = BetaDivergence(beta + (1e-6 if beta < 2 else -1e-6)).value(target, model)
        np.testing.assert_allclose(nearby, BetaDivergence(beta).value(target, model), rtol=1e-4)
    squared = ((target - model) ** 2).sum(axis=1) / 2
    np.testing.assert_allclose(BetaDivergence(2.0).value(target, model), squared)


def loop_start(v, w, floor, beta):
    """Equal activations at the gain that minimises the divergence, of a frame of mean one."""
    n_components, n_bins = len(w), len(v)
    even = n_bins / n_components
    above = below = 0.0
    for f in range(n_bins):
        y = floor + sum(w[k][f] * even for k in range(n_components))
        above += (v[f] + floor) * y ** (beta - 1)
        below += y**beta
    return [even * above / below] * n_components


def loop_online(frames, w, *, beta, sparsity, batch_size, r, n_steps, theta):
    """One pass with the statistics A and B of any β, entry by entry."""
    n_components, n_bins = len(w), len(w[0])
    ks, fs = range(n_components), range(n_bins)
    w = [list(row) for row in w]
    A = [[0.0] * n_bins for _ in ks]
    B = [[0.0] * n_bins for _ in ks]
    for first in range(0, len(frames), batch_size):
        batch = frames[first : first + batch_size]
        rho = r ** (len(batch) / len(frames))
        a = [[0.0] * n_bins for _ in ks]
        b = [[0.0] * n_bins for _ in ks]
        norms = [math.sqrt(sum(x * x for x in row)) for row in w]
        for v in batch:
            level = sum(v) / n_bins
            v = [x / level for x in v]
            h = loop_start(v, w, EPSILON, beta)
            for _ in range(n_steps):
                y = [EPSILON + sum(h[k] * w[k][f] for k in ks) for f in fs]
                new = []
                for k in ks:
                    above = sum(w[k][f] * (v[f] + EPSILON) * y[f] ** (beta - 2) for f in fs)
                    below = sum(w[k][f] * y[f] ** (beta - 1) for f in fs) + sparsity * norms[k]
                    new.append(h[k] * (above / below) ** theta)
                h = new
            y = [EPSILON + sum(h[k] * w[k][f] for k in ks) for f in fs]
            for k in ks:
                for f in fs:
                    data = h[k] * (v[f] + EPSILON) * y[f] ** (beta - 2)
                    model = h[k] * y[f] ** (beta - 1)
                    a[k][f] += w[k][f] ** (2 - beta) * data
                    b[k][f] += model * (w[k][f] ** (1 - beta) if beta > 1 else 1)
        for k in ks:
            A[k] = [rho * x + y for x, y in zip(A[k], a[k], strict=True)]
            B[k] = [rho * x + y for x, y in zip(B[k], b[k], strict=True)]
            # The two parts of the gradient, as this dictionary would have summed them.
            P = [A[k][f] / w[k][f] ** (2 - beta) for f in fs]
            N = [B[k][f] / (w[k][f] ** (1 - beta) if beta > 1 else 1) for f in fs]
            old = w[k]
            if sparsity:
                # y does not change when w becomes unit = w / norm and h becomes h · norm.
                unit = [x / norms[k] for x in old]
                P, N = ([x * norms[k] for x in part] for part in (P, N))
                along_p = sum(u * x for u, x in zip(unit, P, strict=True))
                along_n = sum(u * x for u, x in zip(unit, N, strict=True))
                moved = [
                    u * ((p + u * along_n) / (n + u * along_p)) ** theta
                    for u, p, n in zip(unit, P, N, strict=True)
                ]
                length = math.sqrt(sum(x * x for x in moved))
                moved = [x / length * norms[k] for x in moved]
            else:
                moved = [x * (p / n) ** theta for x, p, n in zip(old, P, N, strict=True)]
            s = sum(moved)
            w[k] = [x / s for x in moved]
            # The same frames, with w divided and h multiplied by s: y^β keeps its sums.
            A[k] = [x * s ** (beta - 1) for x in A[k]]
            B[k] = [x * (s**beta if beta > 1 else s) for x in B[k]]
    return np.array(w)


@pytest.mark.parametrize("sparsity", [0.0, 3.0])
@pytest.mark.parametrize("r", [0.0, 0.5])
@on_backends(BETAS)
def test_an_online_pass_is_the_one_in_plain_loops(backend, beta, r, sparsity):
    frames, first = spectrogram(n_frames=9, n_bins=6, n_components=2, seed=3), unit_rows(3, 6)
    options = {"beta_loss": beta, "sparsity": sparsity, "init": first, "backend": backend}
    options |= {"solver": ondes.Solver(4, 0.5, (), 0.0), "dictionary_exponent": 0.5}
    options |= {"batch_size": 4, "n_passes": 1, "shuffle": False, "weighting": "equal"}
    model = ondes.OnlineNMF(3, forgetting=ondes.PerPass(r), **options).fit(frames)
    loops = {"batch_size": 4, "r": r, "n_steps": 4, "theta": 0.5, "sparsity": sparsity}
    expected = loop_online(frames.tolist(), first.tolist(), beta=beta, **loops)
    np.testing.assert_allclose(model.components_, expected, rtol=1e-9)


# ---- Independent software ----


@on_backends([0, 0.5, 1, 2])
def test_batch_nmf_equals_scikit_learns(backend, beta):
    """Well-scaled frames of equal level, on which neither floors nor levels have an effect."""
    frames = spectrogram(n_frames=50, n_bins=20, n_components=3) + 0.05
    frames /= frames.mean(axis=1, keepdims=True)
    first = unit_rows(3, 20, seed=1)
    even = 20 / 3 * first.sum(axis=0)
    gain = (frames * even ** (beta - 1)).sum(axis=1) / (even**beta).sum()
    start = np.repeat(20 / 3 * gain[:, None], 3, axis=1)
    # It updates W (our activations) first, then H (our dictionary), as we do.
    theirs = NMF(3, solver="mu", beta_loss=beta, init="custom", max_iter=40, tol=0)
    theirs.fit_transform(frames, W=start.copy(), H=first.copy())
    rows = theirs.components_ / theirs.components_.sum(axis=1, keepdims=True)
    theta = safe_exponent(beta)
    ours = ondes.OnlineNMF.batch(
        3, n_passes=40, init=first, beta_loss=beta, backend=backend,
        solver=ondes.Solver(1, theta, (), 0.0), dictionary_exponent=theta,
    ).fit(frames)  # fmt: skip
    np.testing.assert_allclose(ours.components_, rows, rtol=1e-7)


# ---- Descent ----


def random_problem(seed, beta, sparsity, n_frames=6, exponent=1.0):
    rng = np.random.default_rng(seed)
    n_bins = int(rng.integers(1, 12))
    frames = rng.gamma(0.2, size=(n_frames, n_bins)) ** 2
    frames[rng.uniform(size=frames.shape) < 0.1] = 0
    frames[:, 0] += 1e-3
    dictionary = rng.gamma(0.3, size=(5, n_bins)) + 1e-6
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    variance = rng.gamma(1.0, size=n_bins) if seed % 2 else None
    problem = Problem(
        dictionary, 1e-12, ondes.Solver(1, exponent, (), 0.0), variance,
        divergence=BetaDivergence(beta), sparsity=sparsity,
    )  # fmt: skip
    return level_frames(frames, variance), problem


def objective(frames, activations, problem):
    fit = reference.divergences(frames, activations, problem)
    return fit + reference.penalty_value(activations, problem)


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 30.0])
@pytest.mark.parametrize("exponent", ["safe", "one"])
@on_backends(BETAS)
def test_no_step_of_the_activations_raises_the_objective(backend, beta, exponent, sparsity):
    """On 25 problems of 6 frames, 8 steps each."""
    theta = safe_exponent(beta) if exponent == "safe" else 1.0
    for seed in range(25):
        frames, problem = random_problem(seed, beta, sparsity, exponent=theta)
        activations = np.random.default_rng(seed).gamma(0.5, size=(len(frames), 5)) + 1e-9
        cost = objective(frames, activations, problem)
        for _ in range(8):
            activations = choose(backend, problem).encode(frames, problem, activations)
            after = objective(frames, activations, problem)
            assert np.all(after <= cost + 1e-9 * (1 + np.abs(cost))), seed
            cost = after


@pytest.mark.parametrize("exponent", ["safe", "one"])
@pytest.mark.parametrize("beta", BETAS)
def test_no_step_of_the_dictionary_raises_the_objective(beta, exponent):
    theta = safe_exponent(beta) if exponent == "safe" else 1.0
    for seed in range(60):
        frames, problem = random_problem(seed, beta, 0.0, n_frames=20)
        activations, statistics = reference.summarise(frames, problem)
        before = objective(frames, activations, problem).sum()
        nothing = Statistics.zeros(*problem.dictionary.shape, beta=beta)
        rows, _, scale = update(problem.dictionary, nothing, statistics, 1.0, exponent=theta)
        after = objective(frames, activations * scale, replace(problem, dictionary=rows)).sum()
        assert after <= before + 1e-9 * (1 + abs(before)), seed


@pytest.mark.parametrize("sparsity", [0.5, 30.0])
@pytest.mark.parametrize("beta", BETAS)
def test_with_sparsity_the_objective_of_unit_rows_falls(beta, sparsity):
    """λ Σ ‖w_k‖₂ h_k is that of rows of unit norm: which scale the rows have is no matter."""
    frames = level_frames(spectrogram(n_frames=60, n_bins=12))
    rows = unit_rows(5, 12)
    problem = Problem(
        rows, 1e-12, ondes.Solver(1, safe_exponent(beta), (), 0.0),
        divergence=BetaDivergence(beta), sparsity=sparsity,
    )  # fmt: skip
    activations, costs = None, []
    for _ in range(60):
        activations, statistics = reference.summarise(frames, problem, activations)
        costs.append(objective(frames, activations, problem).sum())
        nothing = Statistics.zeros(*rows.shape, beta=beta)
        rows, _, scale = update(
            problem.dictionary, nothing, statistics, 1.0, exponent=safe_exponent(beta),
            is_sparse=True,
        )  # fmt: skip
        activations = activations * scale
        problem = replace(problem, dictionary=rows)
        costs.append(objective(frames, activations, problem).sum())
    assert np.all(np.diff(costs) <= 1e-9 * np.abs(costs[1:]))
    assert costs[-1] < 0.99 * costs[0]


# ---- Statistics ----


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("beta", BETAS)
def test_rescaling_changes_no_model(beta, is_sparse):
    """The rescaled statistics are those of the rescaled dictionary and activations."""
    frames, problem = random_problem(4, beta, 2.0 * is_sparse, n_frames=20)
    activations, statistics = reference.summarise(frames, problem)
    scale = np.random.default_rng(0).uniform(0.1, 10, size=5)
    there = replace(problem, dictionary=problem.dictionary / scale[:, None])
    expected = reference._accumulate(frames, activations * scale, there)
    found = statistics.rescale(scale)
    np.testing.assert_allclose(found.numerator, expected.numerator, rtol=1e-9)
    np.testing.assert_allclose(found.denominator, expected.denominator, rtol=1e-9)
    assert objective(frames, activations * scale, there) == pytest.approx(
        objective(frames, activations, problem)
    )
    # An update returns what its rows were divided by, so that models can follow.
    nothing = Statistics.zeros(*problem.dictionary.shape, beta=beta)
    options = {"exponent": 0.5, "is_sparse": is_sparse}
    rows, kept, scale = update(problem.dictionary, nothing, statistics, 1.0, **options)
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    expected = statistics.rescale(scale)
    np.testing.assert_allclose(kept.numerator, expected.numerator)
    np.testing.assert_allclose(kept.denominator, expected.denominator)


@pytest.mark.parametrize("beta", BETAS)
def test_an_update_does_not_depend_on_the_scale_of_the_rows(beta):
    """Scale is shared between rows and activations in any way, with sparsity as well."""
    for is_sparse in (False, True):
        frames, problem = random_problem(6, beta, 2.0 * is_sparse, n_frames=20)
        statistics = reference.summarise(frames, problem)[1]
        scale = np.random.default_rng(1).uniform(0.1, 10, size=5)
        nothing = Statistics.zeros(*problem.dictionary.shape, beta=beta)
        options = {"exponent": 0.7, "is_sparse": is_sparse}
        one = update(problem.dictionary, nothing, statistics, 1.0, **options)[0]
        scaled = problem.dictionary / scale[:, None], nothing, statistics.rescale(scale)
        other = update(*scaled, 1.0, **options)[0]
        np.testing.assert_allclose(other, one, rtol=1e-9)


@pytest.mark.parametrize("beta", BETAS)
def test_the_prior_gives_the_dictionary_back(beta):
    rows = unit_rows(3, 20)
    nothing = Statistics.zeros(3, 20, beta=beta)
    prior = Statistics.prior(rows, 10.0, beta)
    np.testing.assert_allclose(update(rows, nothing, prior, 1.0, exponent=1.0)[0], rows)


def test_statistics_of_different_divergences_do_not_add():
    one, other = Statistics.zeros(2, 3, beta=0.0), Statistics.zeros(2, 3, beta=1.0)
    assert (other + other).decay(0.5).rescale(np.ones(2)).beta == 1.0
    with pytest.raises(ValueError, match=r"β = 0 and 1 cannot be added"):
        one + other
    frames = spectrogram()
    model = learned(frames)
    with pytest.raises(ValueError, match="cannot be added"):
        model.absorb(learned(frames, beta_loss=KL).summarise(frames))


# ---- Sparsity ----


def chords(n_frames=400, n_bins=24, seed=0):
    """Frames of four broad spectra; the rows also have the eight narrow ones they consist of."""
    rng = np.random.default_rng(seed)
    narrow = np.kron(np.eye(8), np.ones(n_bins // 8)) + 1e-3
    rows = np.concatenate([narrow, (narrow[0::2] + narrow[1::2]) / 2])
    rows /= rows.sum(axis=1, keepdims=True)
    frames = (rng.gamma(0.5, size=(n_frames, 4)) + 1e-3) @ rows[8:]
    return frames * rng.gamma(50, 1 / 50, size=frames.shape), rows


def n_active(activations):
    """Components with more than 1 % of a frame's energy, on average over frames."""
    return np.mean((activations > 0.01 * activations.sum(axis=1, keepdims=True)).sum(axis=1))


@pytest.mark.parametrize("beta_loss", ["itakura-saito", KL])
def test_more_sparsity_leaves_fewer_components_active(backend, beta_loss):
    frames, _ = chords()
    options = {"n_components": 12, "n_passes": 5, "beta_loss": beta_loss, "backend": backend}
    counts = [
        n_active(learned(frames, sparsity=sparsity, **options).transform(frames))
        for sparsity in (0.0, 1.0, 4.0, 16.0)
    ]
    assert all(np.diff(counts) < 0), counts
    assert counts[-1] < 0.5 * counts[0], counts


def test_a_plain_l1_penalty_makes_nothing_sparser_under_kullback_leibler(backend):
    """Rows sum to one, so Σ h is known: every activation only shrinks by the same factor."""
    frames, rows = chords()
    options = {"init": rows, "beta_loss": KL, "backend": backend}
    options |= {"transform_solver": ondes.Solver(max_steps=1000, tol=1e-6)}

    def activations(**penalties):
        return ondes.OnlineNMF(12, **penalties, **options).initialise(frames).transform(frames)

    plain, sparse = activations(), activations(sparsity=1.0)
    shrunk = activations(penalty=ondes.L1(24.0))
    assert np.abs(2 * shrunk @ rows - plain @ rows).max() < 1e-3 * (plain @ rows).max()
    assert n_active(shrunk) > 0.95 * n_active(plain)
    assert n_active(sparse) < 0.5 * n_active(plain)


def test_a_large_row_is_no_cheaper_than_a_small_one(backend):
    """Fixed rows are given at any scale; sparsity sees the spectrum alone."""
    frames, rows = chords()
    options = {"beta_loss": KL, "sparsity": 5.0, "backend": backend}
    one, other = (
        ondes.OnlineNMF(12, init=scale * rows, **options).initialise(frames).transform(frames)
        for scale in (1.0, 64.0)
    )
    np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9)


# ---- The estimator ----


@parametrize_with_checks(
    [
        ondes.OnlineNMF(beta_loss=KL, sparsity=0.5),
        ondes.OnlineNMF(beta_loss=KL, sparsity=0.5, restarts="warm", backend="reference"),
        ondes.OnlineNMF(beta_loss=1.5, sparsity=0.1),
    ]
)
def test_every_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize("options", [{}, {"sparsity": 2.0}], ids=["plain", "sparse"])
def test_fit_equals_partial_fit_equals_an_iterable(backend, options):
    frames, first = spectrogram(n_frames=230), unit_rows(4, 33)
    options = options | {"n_components": 4, "init": first, "batch_size": 50, "backend": backend}
    options |= {"beta_loss": KL}
    whole = ondes.OnlineNMF(n_passes=1, shuffle=False, **options).fit(frames)
    in_parts = ondes.OnlineNMF(**options)
    for start in range(0, 230, 50):
        in_parts.partial_fit(frames[start : start + 50].copy())
    iterated = ondes.OnlineNMF(n_passes=1, shuffle=False, **options).fit(
        iter([frames[:17].copy(), frames[17:120].copy(), frames[120:].copy()])
    )
    for other in (in_parts, iterated):
        np.testing.assert_array_equal(other.components_, whole.components_)
        np.testing.assert_array_equal(other.statistics_.numerator, whole.statistics_.numerator)


def test_shards_add_up_to_one_update_on_all_their_frames(backend):
    frames, first = spectrogram(n_frames=90), unit_rows(4, 33)
    options = {"init": first, "batch_size": None, "beta_loss": KL, "sparsity": 1.0}
    options |= {"backend": backend}
    together = ondes.OnlineNMF(4, **options).partial_fit(frames).partial_fit(frames)
    sharded = ondes.OnlineNMF(4, **options).partial_fit(frames)
    sharded.absorb(sharded.summarise(frames[:20]) + sharded.summarise(frames[20:]))
    np.testing.assert_allclose(sharded.components_, together.components_, rtol=1e-10)


def test_states_pickles_and_clones_carry_the_divergence(backend):
    frames = spectrogram()
    model = learned(frames, beta_loss=KL, sparsity=1.0, backend=backend)
    assert model.statistics_.beta == 1.0
    restored, unpickled = clone(model).restore(model.state()), pickle.loads(pickle.dumps(model))
    for each in (model, restored, unpickled):
        each.partial_fit(frames)
        np.testing.assert_array_equal(each.components_, model.components_)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ValueError, match=r"β = 1 do not fit beta_loss='itakura-saito'"):
        ondes.OnlineNMF(4).restore(model.state())


def test_warm_restarts_fixed_rows_and_background(backend):
    frames, known, noise = spectrogram() + 0.1, np.eye(2, 33), np.full(33, 0.1)
    options = {"fixed_components": known, "restarts": "warm", "background": noise}
    options |= {"beta_loss": KL, "backend": backend}
    for sparsity in (0.0, 2.0):
        model = learned(frames, n_components=5, sparsity=sparsity, **options)
        np.testing.assert_array_equal(model.components_[:2], known)
        np.testing.assert_allclose(model.components_.sum(axis=1), 1)
        alone = ondes.OnlineNMF(2, **options).fit(frames)
        assert model.score(frames) > alone.score(frames)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("weighting", ["equal", "level"])
def test_score_is_minus_the_mean_divergence_per_bin(beta, weighting):
    """Of levelled frames where all weigh alike, else of the frames as they are."""
    frames = spectrogram()
    model = learned(frames, beta_loss=beta, weighting=weighting)
    level = frames.mean(axis=1, keepdims=True)
    rebuilt = model.inverse_transform(model.transform(frames)) / level + EPSILON
    each = [
        loop_divergence(v, y, beta) / 33
        for v, y in zip(frames / level + EPSILON, rebuilt, strict=True)
    ]
    expected = -np.array(each) * (level[:, 0] ** beta if weighting == "level" else 1)
    np.testing.assert_allclose(model.score_samples(frames), expected, rtol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
def test_the_model_of_noiseless_data_is_the_data(beta):
    frames = spectrogram(n_frames=300, n_components=3, noise=False)
    model = learned(frames, n_components=3, beta_loss=beta, n_passes=60)
    rebuilt = model.inverse_transform(model.transform(frames))
    assert np.abs(rebuilt - frames).sum() < 0.05 * frames.sum()


# In float32 plain steps alone: rounding decides whether an extrapolated one is dropped.
@pytest.mark.parametrize(
    ("dtype", "momentum", "atol"),
    [(np.float32, (), 2e-6), (np.float64, ondes.Solver().momentum, 1e-12)],
)
@pytest.mark.parametrize("scale", [1e-15, 1e9])
@on_backends([0.5, 1.0, 2.0])
def test_any_volume_gives_the_same_dictionary(backend, beta, scale, dtype, momentum, atol):
    frames = spectrogram().astype(dtype)
    options = {"beta_loss": beta, "sparsity": 1.0, "backend": backend}
    options["solver"] = ondes.Solver(momentum=momentum)
    one, other = (learned(each, **options) for each in (frames, frames * dtype(scale)))
    np.testing.assert_allclose(other.components_, one.components_, rtol=0, atol=atol)


@pytest.mark.parametrize("sparsity", [0.0, 2.0])
def test_silence_changes_nothing(backend, sparsity):
    frames, silence = spectrogram(), np.zeros((70, 33))
    options = {"beta_loss": KL, "sparsity": sparsity, "backend": backend}
    model, undisturbed = learned(frames, **options), learned(frames, **options)
    model.partial_fit(silence).partial_fit(frames[:10])
    undisturbed.partial_fit(frames[:10])
    np.testing.assert_array_equal(model.components_, undisturbed.components_)
    assert not model.transform(silence).any()
    assert model.score(silence) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sparsity", [0.0, 2.0])
@on_backends(BETAS)
def test_extreme_frames_stay_finite(backend, beta, sparsity, dtype):
    rng = np.random.default_rng(0)
    frames = (10.0 ** rng.uniform(-18, 12, size=(200, 30))).astype(dtype)
    frames[::7, ::3] = 0
    frames[3] = 0
    frames[3, 5] = np.finfo(dtype).tiny
    model = learned(frames, beta_loss=beta, sparsity=sparsity, backend=backend)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.transform(frames)).all()
    assert np.isfinite(model.score_samples(frames)).all()


@pytest.mark.parametrize("sparsity", [0.0, 2.0])
@on_backends(BETAS)
def test_entries_that_vanish_stay_finite(backend, beta, sparsity):
    """A bin without any sound: its entries fall, update by update, until they underflow."""
    rng = np.random.default_rng(0)
    frames = rng.exponential(size=(20, 9))
    frames[:, 4] = 0
    rows = np.ones((3, 9)) / 8
    rows[:, 4] = 1e-300
    rows[0, 2] = 0
    options = {"n_components": 3, "batch_size": 10, "n_passes": 30, "init": rows}
    model = learned(frames, beta_loss=beta, sparsity=sparsity, backend=backend, **options)
    assert np.isfinite(model.components_).all()
    np.testing.assert_allclose(model.components_.sum(axis=1), 1)
    assert (model.components_[:, 4] < 1e-12).all()
    assert model.components_[0, 2] == 0
    # They spoil no other entry of their row: each has moved.
    assert (np.abs(model.components_ - rows / rows.sum(axis=1)[:, None]).max(axis=1) > 1e-3).all()
    assert np.isfinite(model.transform(frames)).all()
    assert np.isfinite(model.score(frames))


# ---- PyTorch ----


@st.composite
def all_cases(draw, dtype):
    case = draw(cases(dtype))
    changes = {
        "divergence": BetaDivergence(draw(st.sampled_from(BETAS))),
        "sparsity": draw(st.sampled_from([0.0, 0.5, 20.0])),
    }
    return replace(case, problem=replace(case.problem, **changes))


@NEEDS_TORCH
@settings(max_examples=100)
@given(case=all_cases(np.float64))
def test_torch_is_reference_to_nine_digits(case):
    from ondes.nmf.backends.torch import TorchBackend

    expected, sums = reference.summarise(case.frames, case.problem, case.start)
    found, found_sums = TorchBackend("cpu").summarise(case.frames, case.problem, case.start)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, rtol=1e-9)
    np.testing.assert_allclose(found_sums.denominator, sums.denominator, rtol=1e-9)
    noise = 1e-13 * case.frames.values.size
    np.testing.assert_allclose(found_sums.divergence, sums.divergence, rtol=1e-8, atol=noise)
    assert found_sums.beta == sums.beta


@NEEDS_TORCH
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("n_fixed", [0, 2])
@pytest.mark.parametrize("beta", BETAS)
def test_the_update_of_tensors_is_that_of_arrays(beta, n_fixed, is_sparse):
    import torch

    frames, problem = random_problem(8, beta, 2.0 * is_sparse, n_frames=20)
    statistics = reference.summarise(frames, problem)[1]
    options = {"exponent": 0.9, "n_fixed": n_fixed, "is_sparse": is_sparse}
    past = statistics.decay(0.1)
    expected = update(problem.dictionary, past, statistics, 0.7, **options)

    def tensors(each):
        parts = (each.numerator, each.denominator, each.divergence, each.n_frames)
        return Statistics(*(torch.tensor(part) for part in parts), each.beta)

    rows = torch.tensor(problem.dictionary)
    factor = torch.tensor([0.7], dtype=torch.float64)
    found = update(rows, tensors(past), tensors(statistics), factor, xp=torch, **options)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
    np.testing.assert_allclose(found[1].numerator, expected[1].numerator, rtol=1e-10)
    np.testing.assert_allclose(found[1].denominator, expected[1].denominator, rtol=1e-10)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-10)
    assert torch.equal(rows, torch.tensor(problem.dictionary))
