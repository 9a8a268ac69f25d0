"""Laws of the algorithm that hold on any problem."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import spectrogram
from hypothesis import given
from hypothesis import strategies as st

import ondes
from ondes.nmf.backends import choose, reference
from ondes.nmf.dictionary_update import penalised_move, update
from ondes.nmf.divergence import itakura_saito, level_frames
from ondes.nmf.problem import Problem
from ondes.nmf.statistics import Statistics

PENALTIES = [None, ondes.L1(3.0), ondes.GroupLog(20.0), ondes.GroupLog(5.0, offset=1e-4)]
EXPONENTS = [0.25, 0.5, 0.75, 0.9, 1.0]
GROUPS = np.array([0, 0, 1, 1, 2])


def updated(dictionary, statistics, exponent=0.5, **options):
    """One update from these statistics alone."""
    nothing = Statistics.zeros(*dictionary.shape)
    return update(dictionary, nothing, statistics, 1.0, exponent=exponent, **options)


def random_problem(seed, solver=None, penalty=None, background=False, n_frames=6):
    rng = np.random.default_rng(seed)
    n_bins = int(rng.integers(1, 12))
    frames = rng.gamma(0.2, size=(n_frames, n_bins)) ** 2
    frames[rng.uniform(size=frames.shape) < 0.1] = 0
    frames[:, 0] += 1e-3
    dictionary = rng.gamma(0.3, size=(5, n_bins)) + 1e-6
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    variance = rng.gamma(1.0, size=n_bins) if background else None
    problem = Problem(dictionary, 1e-12, solver, variance, penalty, GROUPS)
    return level_frames(frames, variance), problem


def objective(frames, activations, problem):
    return reference.divergences(frames, activations, problem) + reference.penalty_value(
        activations, problem
    )


def with_steps(problem, **solver):
    return Problem(
        problem.dictionary, problem.floor, ondes.Solver(**solver), problem.background,
        problem.penalty, problem.groups,
    )  # fmt: skip


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_no_inner_step_raises_its_objective(backend, exponent, penalty):
    """10⁴ steps in all over exponents and penalties: 25 problems × 6 frames × 4 steps each."""
    for seed in range(25):
        frames, problem = random_problem(seed, penalty=penalty, background=seed % 2 == 1)
        problem = with_steps(problem, max_steps=1, exponent=exponent, momentum=(), tol=0.0)
        rng = np.random.default_rng(seed)
        activations = rng.gamma(0.5, size=(len(frames), 5)) + 1e-9
        cost = objective(frames, activations, problem)
        for _ in range(4):
            activations = choose(backend, problem).encode(frames, problem, activations)
            after = objective(frames, activations, problem)
            assert np.all(after <= cost + 1e-9 * (1 + np.abs(cost))), seed
            cost = after


@pytest.mark.parametrize(
    "momentum", [ondes.Solver().momentum, (0.0, *[0.99] * 9)], ids=["default", "reckless"]
)
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@given(seed=st.integers(0, 10**6))
def test_the_extrapolated_solve_ends_no_higher_than_it_began(penalty, momentum, seed):
    """Except for the rise of 1e-4 per bin that causes no restart."""
    frames, problem = random_problem(seed, penalty=penalty, background=seed % 2 == 1)
    start = np.random.default_rng(seed).gamma(0.5, size=(len(frames), 5)) + 1e-9
    for name in ("reference", "auto"):
        for max_steps in (1, 2, 5, 13):
            problem = with_steps(problem, max_steps=max_steps, momentum=momentum, tol=0.0)
            solved = choose(name, problem).encode(frames, problem, start)
            before, after = objective(frames, start, problem), objective(frames, solved, problem)
            assert np.all(after <= before + 1e-4 * problem.dictionary.shape[1])


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_no_dictionary_step_raises_the_objective(backend, exponent, penalty):
    for seed in range(10):
        frames, problem = random_problem(seed, penalty=penalty, n_frames=20)
        problem = with_steps(problem, max_steps=1, exponent=0.5, momentum=(), tol=0.0)
        activations, statistics = choose(backend, problem).summarise(frames, problem)
        before = objective(frames, activations, problem).sum()
        # The penalty is on ‖w_k‖₁ h_k: rescaling moves the rows' sums into the activations.
        unit, _, scale = updated(problem.dictionary, statistics, exponent)
        rescaled = Problem(unit, problem.floor, problem.solver, None, penalty, problem.groups)
        after = objective(frames, activations * scale, rescaled).sum()
        assert after <= before + 1e-9 * (1 + abs(before)), seed


@pytest.mark.parametrize(
    "penalty",
    [ondes.LogSparsity(1.0), ondes.LogSparsity(0.1, offset=1e-4), ondes.Smoothness(0.5)],
    ids=repr,
)
def test_no_penalised_dictionary_step_raises_the_objective(penalty):
    for seed in range(30):
        frames, problem = random_problem(seed, n_frames=20)
        problem = with_steps(problem, max_steps=3, tol=0.0)
        activations, statistics = reference.summarise(frames, problem)

        def whole(dictionary, frames=frames, problem=problem, activations=activations):
            moved = Problem(dictionary, problem.floor, problem.solver)
            fit = reference.divergences(frames, activations, moved).sum()
            return fit + len(frames) * penalty.value(dictionary)

        moved = penalised_move(problem.dictionary, statistics, penalty)
        np.testing.assert_allclose(moved.sum(axis=1), 1)
        in_full = updated(problem.dictionary, statistics, penalty=penalty)[0]
        np.testing.assert_allclose(in_full, moved)
        before = whole(problem.dictionary)
        assert whole(moved) <= before + 1e-9 * (1 + abs(before)), seed


@pytest.mark.parametrize("penalty", [ondes.LogSparsity(0.7), ondes.Smoothness(0.7)], ids=repr)
@given(seed=st.integers(0, 10**6))
def test_dictionary_penalties_lie_under_their_majorisers(penalty, seed):
    rng = np.random.default_rng(seed)
    here, there = rng.dirichlet(np.full(8, 0.5), size=(2, 3)) + 1e-6
    linear, quadratic = penalty.majoriser(here)
    for scale in (1e-4, 0.1, 1.0):
        moved = here + scale * (there - here)
        bound = penalty.value(here) + np.sum(
            linear * (moved - here) + quadratic * (moved**2 - here**2)
        )
        assert penalty.value(moved) <= bound + 1e-9 * (1 + abs(bound))
    ahead, behind = here * 1, here * 1
    ahead[:, 2] += 1e-7
    behind[:, 2] -= 1e-7
    numeric = (penalty.value(ahead) - penalty.value(behind)) / 2e-7
    exact = (linear + 2 * quadratic * here)[:, 2].sum()
    assert numeric == pytest.approx(exact, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize(
    ("penalty", "measure"),
    [
        (ondes.LogSparsity(1.0), lambda w: np.mean(np.sort(w, axis=1)[:, -5:].sum(axis=1))),
        (ondes.Smoothness(1.0), lambda w: -np.abs(np.diff(w, axis=1)).sum()),
    ],
    ids=["sparse", "smooth"],
)
def test_dictionary_penalties_do_what_they_are_for(penalty, measure):
    frames = spectrogram()
    plain = ondes.OnlineNMF(4, random_state=0).fit(frames)
    penalised = ondes.OnlineNMF(4, random_state=0, dictionary_penalty=penalty).fit(frames)
    assert measure(penalised.components_) > measure(plain.components_)


def test_activation_penalties_do_what_they_are_for():
    """Fewer groups are active at a time, and less energy is used."""
    frames = spectrogram(n_components=6)
    groups = [0, 0, 1, 1, 2, 2]
    settings = {"random_state": 0, "groups": groups}
    plain = ondes.OnlineNMF(6, **settings).fit(frames).transform(frames)
    grouped = ondes.OnlineNMF(6, penalty=ondes.GroupLog(10.0), **settings).fit(frames)
    shrunk = ondes.OnlineNMF(6, penalty=ondes.L1(10.0), **settings).fit(frames)

    def loudest_share(activations):
        energies = activations.reshape(len(frames), 3, 2).sum(axis=2)
        return np.mean(energies.max(axis=1) / energies.sum(axis=1))

    assert loudest_share(grouped.transform(frames)) > loudest_share(plain) + 0.05
    assert shrunk.transform(frames).sum() < 0.9 * plain.sum()


def test_a_users_own_penalty_descends_too():
    class SquareRoot:
        def value(self, share):
            return 5 * np.sqrt(share + 1e-3)

        def slope(self, share):
            return 2.5 / np.sqrt(share + 1e-3)

    frames, problem = random_problem(3, penalty=SquareRoot())
    problem = with_steps(problem, max_steps=1, exponent=1.0, momentum=(), tol=0.0)
    activations = np.ones((len(frames), 5))
    cost = objective(frames, activations, problem)
    for _ in range(50):
        activations = choose("auto", problem).encode(frames, problem, activations)
        after = objective(frames, activations, problem)
        assert np.all(after <= cost + 1e-9 * (1 + np.abs(cost)))
        cost = after


@given(seed=st.integers(0, 10**6))
def test_the_surrogate_is_tight_and_majorises_with_the_corrected_constant(seed):
    """A/w + B·w + c with c = −Σ log(v/y) − 2FN, ε being one more component that never moves."""
    frames, problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    w, floor = problem.dictionary, problem.floor
    h = rng.gamma(0.5, size=(len(frames), 5)) + 1e-9
    v = frames.values + floor
    y = h @ w + floor
    problem = with_steps(problem, max_steps=1, exponent=0.5, momentum=(), tol=0.0)
    A = w**2 * (h.T @ (v / y**2))
    B = h.T @ (1 / y)
    constant = -np.log(v / y).sum() - 2 * v.size + (v * floor / y**2).sum() + (floor / y).sum()

    def surrogate(moved):
        return (A / moved + B * moved).sum() + constant

    divergence = itakura_saito(v, y).sum()
    assert surrogate(w) == pytest.approx(divergence, rel=1e-9, abs=1e-7)
    for _ in range(5):
        moved = w * np.exp(rng.normal(size=w.shape))
        majorised = itakura_saito(v, h @ moved + floor).sum()
        assert surrogate(moved) >= majorised * (1 - 1e-9) - 1e-7


def test_the_statistics_are_the_surrogates_coefficients(backend):
    frames, problem = random_problem(5, n_frames=40)
    problem = with_steps(problem, max_steps=7)
    h, statistics = choose(backend, problem).summarise(frames, problem)
    v, w = frames.values + problem.floor, problem.dictionary
    y = h @ w + problem.floor
    np.testing.assert_allclose(statistics.numerator, w**2 * (h.T @ (v / y**2)), rtol=1e-10)
    np.testing.assert_allclose(statistics.denominator, h.T @ (1 / y), rtol=1e-10)
    assert statistics.divergence == pytest.approx(itakura_saito(v, y).sum(), rel=1e-10)
    assert statistics.n_frames == 40


def test_forgetting_scales_the_past_since_scaling_the_new_would_do_nothing(backend):
    """The paper prints ρ on the new statistics, where it cancels in √(A/B)."""
    frames, first = spectrogram(n_frames=200), spectrogram(n_frames=4, seed=7)

    def dictionary_after(r, factor_on_new):
        model = ondes.OnlineNMF.paper(4, r=r, init=first, backend=backend).initialise(frames)
        for rows in (np.s_[:50], np.s_[50:100], np.s_[100:150], np.s_[150:]):
            statistics = model.summarise(frames[rows]).decay(factor_on_new)
            model.absorb(statistics, n_frames_in_set=200)
        return model.components_

    nothing_forgotten = dictionary_after(r=1.0, factor_on_new=1.0)
    as_printed = dictionary_after(r=1.0, factor_on_new=0.3**0.25)
    forgetting = dictionary_after(r=0.3, factor_on_new=1.0)
    np.testing.assert_allclose(as_printed, nothing_forgotten, rtol=1e-9)
    assert np.abs(forgetting - nothing_forgotten).max() > 1e-3


def test_an_update_is_the_root_of_the_decayed_past_plus_the_new(backend):
    frames = spectrogram(n_frames=100)
    model = ondes.OnlineNMF.paper(4, r=0.3, random_state=0, backend=backend).initialise(frames)
    model.absorb(model.summarise(frames[:50]), n_frames_in_set=100)
    past, new = model.statistics_, model.summarise(frames[50:])
    model.absorb(new, n_frames_in_set=100)
    rho = 0.3**0.5
    expected = np.sqrt(
        (rho * past.numerator + new.numerator) / (rho * past.denominator + new.denominator)
    )
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.components_, expected, rtol=1e-12)
    assert model.statistics_.n_frames == pytest.approx(rho * 50 + 50)


def statistics_from(seed):
    rng = np.random.default_rng(seed)
    return Statistics(rng.gamma(1, size=(2, 3)), rng.gamma(1, size=(2, 3)), 3.0 * seed, 1.0 + seed)


def assert_same(one, other):
    np.testing.assert_allclose(one.numerator, other.numerator, rtol=1e-12)
    np.testing.assert_allclose(one.denominator, other.denominator, rtol=1e-12)
    assert one.divergence == pytest.approx(other.divergence)
    assert one.n_frames == pytest.approx(other.n_frames)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.floats(0, 1), st.floats(0, 1))
def test_statistics_add_and_decay_like_a_monoid(i, j, k, x, y):
    a, b, c = statistics_from(i), statistics_from(j), statistics_from(k)
    assert_same((a + b) + c, a + (b + c))
    assert_same(a + b, b + a)
    assert_same(a + Statistics.zeros(2, 3), a)
    assert_same((a + b).decay(x), a.decay(x) + b.decay(x))
    assert_same(a.decay(x).decay(y), a.decay(x * y))
    assert_same(a.decay(1.0), a)


@pytest.mark.parametrize("rule", [ondes.GrowingMemory(3.0), ondes.HalfLife(50.0), ondes.PerPass()])
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 100))
def test_forgetting_does_not_depend_on_the_cut(rule, pieces, seen):
    whole = rule.factor(seen, sum(pieces), 500)
    product, so_far = 1.0, seen
    for piece in pieces:
        product *= rule.factor(so_far, piece, 500)
        so_far += piece
    assert product == pytest.approx(whole, rel=1e-12)


def test_growing_memory_weighs_frame_s_at_time_t_by_s_over_t_to_the_power():
    rule, weights = ondes.GrowingMemory(3.0), []
    for t in range(1, 11):
        weights = [w * rule.factor(t - 1, 1, None) for w in weights] + [1.0]
    np.testing.assert_allclose(weights, [(s / 10) ** 3 for s in range(1, 11)])


def test_the_prior_gives_the_dictionary_back():
    dictionary = spectrogram(n_frames=3)
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    prior = Statistics.prior(dictionary, 10)
    np.testing.assert_allclose(updated(dictionary, prior)[0], dictionary)


def test_a_heavy_prior_keeps_the_dictionary():
    frames, first = spectrogram(), spectrogram(n_frames=3, seed=8)
    first /= first.sum(axis=1, keepdims=True)

    def moved(prior):
        model = ondes.OnlineNMF(3, init=first, prior=prior, forgetting=ondes.GrowingMemory(0.0))
        return np.abs(model.partial_fit(frames[:100]).components_ - first).sum()

    assert moved(1e6) < 1e-3 < 1e-1 < moved(0.0)


@pytest.mark.parametrize("cuts", [[40], [10, 30], [1, 2, 3, 34]])
def test_the_prior_fades_like_as_many_frames_of_data(backend, cuts):
    """Frame s weighs (s / t)^p at time t, the prior being the first κ frames."""
    frames, first, kappa, p = spectrogram(n_frames=40), spectrogram(n_frames=3, seed=8), 25.0, 3.0
    settings = {"prior": kappa, "forgetting": ondes.GrowingMemory(p), "init": first}
    model = ondes.OnlineNMF(3, batch_size=None, backend=backend, **settings).initialise(frames)
    edges = np.cumsum([0, *cuts])
    for start, end in itertools.pairwise(edges):
        model.partial_fit(frames[start:end])
    expected = kappa * (kappa / (kappa + 40)) ** p
    for start, end in itertools.pairwise(edges):
        expected += (end - start) * ((kappa + end) / (kappa + 40)) ** p
    assert model.statistics_.n_frames == pytest.approx(expected)


@pytest.mark.parametrize("n_fixed", [0, 2])
def test_rescaling_changes_no_model(n_fixed):
    frames, problem = random_problem(1)
    activations, statistics = reference.summarise(frames, with_steps(problem, max_steps=3))
    moved = np.sqrt(statistics.numerator / statistics.denominator)
    moved[:n_fixed] = problem.dictionary[:n_fixed]
    unit, rescaled, scale = updated(problem.dictionary, statistics, n_fixed=n_fixed)
    np.testing.assert_allclose(unit.sum(axis=1), 1)
    np.testing.assert_array_equal(unit[:n_fixed], problem.dictionary[:n_fixed])
    np.testing.assert_allclose((activations * scale) @ unit, activations @ moved)
    np.testing.assert_allclose(
        rescaled.numerator / unit + rescaled.denominator * unit,
        statistics.numerator / moved + statistics.denominator * moved,
    )


def test_entries_without_statistics_stay_and_inputs_are_not_written_to():
    frames, problem = random_problem(1)
    statistics = reference.summarise(frames, with_steps(problem, max_steps=3))[1]
    statistics.numerator[3] = statistics.denominator[3] = 0
    for array in (problem.dictionary, statistics.numerator, statistics.denominator):
        array.flags.writeable = False
    found, _, scale = updated(problem.dictionary, statistics, exponent=0.9)
    np.testing.assert_allclose(found[3], problem.dictionary[3])
    assert scale[3] == pytest.approx(1)
    assert not np.allclose(found[0], problem.dictionary[0])


def test_the_stop_per_frame_leaves_stationary_frames(backend):
    frames = spectrogram(n_frames=200)
    model = ondes.OnlineNMF(5, random_state=0, backend=backend).fit(frames)
    levelled, w = level_frames(frames), model.components_
    problem = Problem(w, 1e-12, ondes.Solver(max_steps=3000, tol=1e-6))
    h = choose(backend, problem).encode(levelled, problem)
    y = h @ w + 1e-12
    numerator, denominator = ((levelled.values + 1e-12) / y**2) @ w.T, (1 / y) @ w.T
    residual = (h * np.abs(numerator - denominator)).sum(axis=1) / w.shape[1]
    assert residual.max() < 2e-6


def test_warm_restarts_without_memory_stay_finite():
    # With r = 0 and one frame per batch most rows fade out, and their stored activations grow.
    frames = spectrogram(600, 20).astype(np.float32)
    settings = {"r": 0.0, "restarts": "warm", "n_passes": 20, "random_state": 0}
    model = ondes.OnlineNMF.paper(8, batch_size=1, **settings).fit(frames)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.transform(frames)).all()
