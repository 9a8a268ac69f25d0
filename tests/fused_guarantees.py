"""What `test_fused.py` runs: on a GPU if there is one, else small, with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_case, solvers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ondes.nmf.backends import PRECISIONS, fused, native, reference
from ondes.nmf.backends.fused import Tile
from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.penalties import L1, GroupLog
from ondes.nmf.problem import Problem, Solver
from ondes.nmf.statistics import Statistics

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter rounds no product")
SHARED_MEMORY = 227 * 1024  # of one multiprocessor of an H200
KULLBACK_LEIBLER = BetaDivergence(1.0)
TILES = [Tile(16, 16, 2, 1), Tile(32, 32, 4, 1, parked=True), Tile(64, 16, 4, 2, stages=2)]
some = settings(  # no shrinking: each example takes the interpreter a while
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)


def solve(case, precision="ieee", tile=None, rows=slice(None)):
    """The kernel's results for some rows of a case, as arrays."""
    frames, problem = case.frames[rows], case.problem
    known = native._background(frames, problem)
    given = {
        "values": frames.values,
        "dictionary": problem.dictionary,
        "start": None if case.start is None else case.start[rows],
        **known,
    }
    tensors = {
        name: None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)
        for name, array in given.items()
    }
    activations, sums = fused.solve(
        problem=problem, precision=precision, tile=tile, with_sums=True, **tensors
    )
    return activations.cpu().numpy(), fused.Sums(*(each.cpu().numpy() for each in sums))


@st.composite
def small_cases(draw):
    n_components = draw(st.sampled_from([1, 2, 7, 16, 20]))
    return make_case(
        draw(st.sampled_from([1, 5, 40])),
        draw(st.sampled_from([1, 16, 17, 33, 40])),
        n_components,
        np.float32,
        seed=draw(st.integers(0, 2**32 - 1)),
        solver=draw(solvers(4)),
        extreme=draw(st.booleans()),
        with_start=draw(st.booleans()),
        with_background=draw(st.booleans()),
        floor=draw(st.sampled_from([1e-10, 1e-6, 1e-2])),
        penalty=draw(st.sampled_from([None, None, L1(0.3), GroupLog(1.0), GroupLog(5.0, 1e-3)])),
        groups=draw(st.none() | st.just(np.arange(n_components) // 3)),
        divergence=draw(st.sampled_from([BetaDivergence(0.0), KULLBACK_LEIBLER])),
        sparsity=draw(st.sampled_from([0.0, 0.0, 0.5, 20.0])),
    )


# ---- The kernel equals the reference ----


@some
@given(case=small_cases(), tile=st.sampled_from(TILES))
def test_every_option_is_as_in_the_reference(case, tile):
    expected = reference.encode(case.in_float64, case.problem, case.start)
    found, sums = solve(case, tile=tile)
    assert found.dtype == np.float32
    if not case.problem.solver.momentum and not case.problem.solver.tol:
        largest = expected.max(axis=1, keepdims=True)
        np.testing.assert_allclose(found / largest, expected / largest, atol=1e-4)
    np.testing.assert_allclose(
        case.objective(found), case.objective(expected), rtol=1e-5, atol=1e-5
    )
    own = reference._accumulate(case.in_float64, found.astype(float), case.problem)
    beta = case.problem.divergence.beta
    statistics = Statistics.from_sums(
        case.problem.dictionary, **sums._asdict(), n_frames=0.0, beta=beta
    )
    np.testing.assert_allclose(statistics.numerator, own.numerator, rtol=1e-4)
    np.testing.assert_allclose(statistics.denominator, own.denominator, rtol=1e-4)
    noise = 1e-6 * case.frames.values.size
    np.testing.assert_allclose(sums.divergence, own.divergence, rtol=1e-5, atol=noise)


@pytest.mark.parametrize("penalty", [None, GroupLog(2.0)])
@pytest.mark.parametrize("divergence", [BetaDivergence(0.0), KULLBACK_LEIBLER])
def test_a_long_solve_ends_where_the_reference_does(penalty, divergence):
    solver = Solver(max_steps=25, momentum=(0.0, 0.9, 0.95, 0.99), tol=1e-3)  # large: it restarts
    groups = np.arange(20) // 2
    options = {"penalty": penalty, "groups": groups, "divergence": divergence}
    case = make_case(70, 33, 20, np.float32, solver=solver, **options)
    expected = reference.encode(case.in_float64, case.problem)
    found, _ = solve(case, tile=TILES[1])
    np.testing.assert_allclose(case.objective(found), case.objective(expected), rtol=1e-4)


def test_a_dropped_step_does_not_end_the_solve():
    solver = Solver(max_steps=12, momentum=(0.0, 0.9, 0.95, 0.99), tol=0.1)
    case = make_case(60, 17, 3, np.float32, seed=3, solver=solver)  # one frame would end there
    expected = reference.encode(case.in_float64, case.problem)
    found, _ = solve(case, tile=TILES[1])
    np.testing.assert_allclose(case.objective(found), case.objective(expected), rtol=1e-4)


def test_no_frames_have_no_sums():
    case = make_case(3, 17, 5, np.float32)
    found, sums = solve(case, rows=slice(0))
    assert found.shape == (0, 5)
    assert all(np.all(each == 0) for each in sums)


# ---- The dictionary moves as on the host ----


@pytest.mark.parametrize("divergence", [BetaDivergence(0.0), KULLBACK_LEIBLER])
@pytest.mark.parametrize("sparsity", [0.0, 2.0])
@pytest.mark.parametrize(
    ("exponent", "n_fixed", "penalty", "n_frames", "n_bins"),
    [(0.5, 0, None, 3, 1040), (0.9, 2, None, 150, 17), (1.0, 1, GroupLog(0.5), 20, 33)],
)
def test_the_dictionary_moves_as_on_the_host(
    divergence, sparsity, exponent, n_fixed, penalty, n_frames, n_bins
):
    case = make_case(n_frames, n_bins, 5, np.float32)
    dictionary = case.problem.dictionary.copy()
    dictionary[1, 3] = 0  # an entry without statistics stays
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    problem = replace(
        case.problem,
        dictionary=dictionary,
        divergence=divergence,
        penalty=penalty,
        groups=None,
        sparsity=sparsity,
        solver=Solver(max_steps=2),
    )
    rng = np.random.default_rng(0)
    past = rng.gamma(1.0, size=(2, *dictionary.shape))
    past[:, 0, 5] = 0
    _, new = reference.summarise(case.frames, problem)
    before = Statistics(*past, 0.0, 0.0, divergence.beta)
    moved, statistics, _ = update(
        dictionary, before, new, 0.7, exponent=exponent, n_fixed=n_fixed, is_sparse=sparsity > 0
    )
    state = torch.from_numpy(np.stack([dictionary, *past])).to(DEVICE)
    cost = fused.learn(
        torch.from_numpy(case.frames.values).to(DEVICE),
        state,
        torch.tensor([0.7], dtype=torch.float64, device=DEVICE),
        problem,
        exponent=exponent,
        n_fixed=n_fixed,
        precision="ieee",
    )
    expected = moved, statistics.numerator, statistics.denominator
    for found, wanted in zip(state.cpu().numpy(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(state[0].sum(dim=1).cpu(), 1.0, rtol=1e-12)
    assert float(cost) == pytest.approx(new.divergence, rel=1e-5)


# ---- A frame depends on itself alone, and a call repeats bit for bit ----


@pytest.fixture
def products_row_by_row(monkeypatch):
    """The interpreter multiplies by BLAS, which may round rows differently by their position."""

    def product(left, right, dtype=None):
        return np.einsum("...ij,...jk->...ik", left, right, dtype=dtype)

    if DEVICE == "cpu":
        monkeypatch.setattr(np, "matmul", product)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tol", [0.0, 3e-2])
def test_neither_neighbours_nor_position_matter(precision, tol, products_row_by_row):
    case = make_case(50, 33, 5, np.float32, solver=Solver(max_steps=6, tol=tol))
    tile = Tile(16, 16, 2, 1)
    together, _ = solve(case, precision, tile)
    order = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(solve(case, precision, tile, order)[0], together[order])
    np.testing.assert_array_equal(solve(case, precision, tile, [37])[0], together[[37]])


def test_a_call_repeats_bit_for_bit():
    case = make_case(90, 40, 7, np.float32, solver=Solver(max_steps=3), penalty=L1(0.1))
    first, second = (solve(case, "tf32", TILES[0]) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    for one, other in zip(first[1], second[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_inputs_are_not_written_to():
    case = make_case(20, 17, 3, np.float32, with_start=True, with_background=True)
    before = [each.copy() for each in (case.frames.values, case.problem.dictionary, case.start)]
    solve(case)
    after = case.frames.values, case.problem.dictionary, case.start
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


# ---- The edge ----


def test_what_is_unsupported_is_named():
    class Mine(L1):
        pass

    problem = Problem(np.full((2, 4), 0.25), 1e-8, Solver())
    assert fused.unsupported(problem, torch.float32) is None
    assert fused.unsupported(replace(problem, penalty=GroupLog(1.0)), torch.float32) is None
    assert "Mine" in fused.unsupported(replace(problem, penalty=Mine(1.0)), torch.float32)
    assert "float64" in fused.unsupported(problem, torch.float64)
    many = replace(problem, dictionary=np.full((257, 4), 0.25))
    assert "257" in fused.unsupported(many, torch.float32)
    assert "1e-20" in fused.unsupported(replace(problem, floor=1e-20), torch.float32)
    squares = replace(problem, divergence=BetaDivergence(2.0))
    assert "β = 2" in fused.unsupported(squares, torch.float32)


def test_there_is_a_tile_for_every_precision_and_size():
    for n_components in range(1, fused.MAX_COMPONENTS + 1):
        for precision in PRECISIONS:
            for n_frames, n_bins in ((1, 1), (128, 257), (10**6, 257), (10**6, 4097)):
                tile = fused.choose(n_frames, n_bins, n_components, precision, 132)
                assert tile.frames >= 16
                assert 32 * tile.warps * tile.per_processor * tile.registers <= fused.REGISTERS
                assert tile.tail(n_bins) <= tile.bins
                blocks = 2 * 4 * tile.bins * fused.padded(n_components) * max(1, tile.stages - 1)
                assert tile.per_processor * blocks <= SHARED_MEMORY


# ---- The bounds that the module states, on a GPU ----

BOUNDS = {  # activations of spectra and of extremes, their divergence, the divergence returned
    "ieee": ((1e-5, 1e-4), 1e-6, 1e-6),
    "tf32": ((1e-2, 5e-2), 1e-5, 1e-5),
    "bf16": ((1e-1, 5e-1), 1e-4, 1e-4),
}


@on_a_gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("n_frames", [300, 10_000])
@pytest.mark.parametrize(("n_bins", "n_components"), [(257, 8), (513, 32), (200, 50), (64, 256)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_each_precision_keeps_its_bounds(precision, extreme, n_frames, n_bins, n_components, beta):
    case = make_case(
        n_frames, n_bins, n_components, np.float32, extreme=extreme, floor=1e-12, seed=n_bins,
        divergence=BetaDivergence(beta),
    )  # fmt: skip
    expected = reference.encode(case.in_float64, case.problem)
    found, sums = solve(case, precision)
    activations, divergence, returned = BOUNDS[precision]
    largest = expected.max(axis=1, keepdims=True)
    furthest = np.max(np.abs(found - expected) / largest, axis=1)
    assert np.quantile(furthest, 0.999) < activations[extreme]
    own, best = case.objective(found).sum(), case.objective(expected).sum()
    assert own / best == pytest.approx(1, abs=divergence)
    assert sums.divergence / (own * n_bins) == pytest.approx(1, abs=returned)
