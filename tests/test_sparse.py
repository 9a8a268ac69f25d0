"""Sparse frames give what the same frames give as an array, and are never made into one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.utils import estimator_checks

from ondes import OnlineNMF
from ondes.nmf.backends import native, reference
from ondes.nmf.divergence import BetaDivergence, level_frames
from ondes.nmf.penalties import L1, GroupLog
from ondes.nmf.problem import Problem, Solver
from ondes.nmf.sparse import SparseFrames

BACKENDS = [reference, *([native] if native.available() else [])]
KERNELS = native._kernel().instruction_sets() if native.available() else []


def counts(n_frames, n_bins, n_components, seed=0, spread=0.3):
    """Counts of a mixture of topics; every row has one."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(n_bins, spread), size=n_components)
    shares = rng.dirichlet(np.full(n_components, 0.3), size=n_frames)
    frames = rng.poisson(0.5 * n_bins * shares @ topics).astype(float)
    frames[:, 0] += 1
    return frames


def problem_of(n_components, n_bins, beta, seed=1, **options):
    rng = np.random.default_rng(seed)
    dictionary = rng.gamma(0.5, size=(n_components, n_bins)) + 1e-9
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    solver = Solver(20, tol=1e-3)
    return Problem(dictionary, 1e-12, solver, divergence=BetaDivergence(beta), **options)


OPTIONS = [
    {},
    {"penalty": L1(0.3), "sparsity": 0.2},
    {"penalty": GroupLog(0.3), "groups": np.array([0, 0, 1, 1, 2]), "background": np.arange(40.0)},
]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.NAME)
@pytest.mark.parametrize("beta", [1, 1.5, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "sparsity", "groups"])
def test_activations_and_statistics_are_those_of_the_array(backend, beta, options):
    problem = problem_of(5, 40, beta, **options)
    if backend.unsupported(problem):
        backend = reference
    array = counts(70, 40, 5)
    dense = level_frames(array, problem.background)
    frames = level_frames(SparseFrames.of(sparse.csr_array(array)), problem.background)
    expected, sums = reference.summarise(dense, problem)
    found, found_sums = backend.summarise(frames, problem)
    exact = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(found, expected, **exact)
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, **exact)
    np.testing.assert_allclose(found_sums.denominator, sums.denominator, **exact)
    np.testing.assert_allclose(found_sums.divergence, sums.divergence, rtol=1e-10)
    np.testing.assert_array_equal(backend.encode(frames, problem), found)
    np.testing.assert_allclose(
        reference.divergences(frames, found, problem),
        reference.divergences(dense, expected, problem),
        rtol=1e-10,
        atol=1e-9,
    )


@pytest.mark.parametrize("isa", KERNELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 30, 3), (90, 70, 17), (60, 300, 66)])
def test_every_instruction_set_is_the_reference(isa, dtype, shape, monkeypatch):
    monkeypatch.setenv("ONDES_ISA", isa)
    array = counts(*shape).astype(dtype)
    problem = problem_of(shape[2], shape[1], 1.0)
    frames = level_frames(SparseFrames.of(sparse.csr_matrix(array)))
    start = np.random.default_rng(2).random((len(frames), shape[2])).astype(dtype)
    expected, sums = reference.summarise(frames, problem, start)
    found, found_sums = native.summarise(frames, problem, start)
    assert found.dtype == dtype
    rounding = 1e-9 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding)
    scale = sums.numerator.max()
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, rtol=0, atol=rounding * scale)


@pytest.mark.parametrize("isa", KERNELS)
def test_neither_threads_nor_other_frames_change_a_bit(isa, monkeypatch):
    monkeypatch.setenv("ONDES_ISA", isa)
    problem = problem_of(20, 500, 1.0)
    frames = level_frames(SparseFrames.of(sparse.csr_array(counts(200, 500, 20))))
    found, sums = native.summarise(frames, problem)
    for n_jobs in (2, 7, 16):
        again, again_sums = native.summarise(frames, problem, n_jobs=n_jobs)
        np.testing.assert_array_equal(again, found)
        np.testing.assert_array_equal(again_sums.numerator, sums.numerator)
        assert again_sums.divergence == sums.divergence
    np.testing.assert_array_equal(native.encode(frames[30:33], problem), found[30:33])


def learn(X, beta, **settings):
    init = np.random.default_rng(3).random((4, 30)) + 0.5
    how = {"init": init, "n_passes": 2, "random_state": 0, "batch_size": 50, "solver": Solver()}
    return OnlineNMF(4, beta_loss=beta, **(how | settings)).fit(X)


@pytest.mark.parametrize("beta", [1, 1.5, 2])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_learning_is_that_of_the_array(beta, dtype):
    array = (counts(300, 30, 4, spread=30.0) + 0.0).astype(dtype)  # no topic lacks a word
    rows = sparse.coo_array(array)
    expected, found = learn(array, beta), learn(rows, beta)
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-8)
    np.testing.assert_allclose(found.transform(rows), expected.transform(array), rtol=1e-5)
    np.testing.assert_allclose(found.score(rows), expected.score(array), rtol=1e-7)
    np.testing.assert_allclose(found.score_samples(rows), expected.score_samples(array), rtol=1e-5)


def test_every_way_to_give_the_rows_learns_the_same():
    rows = sparse.csr_matrix(counts(300, 30, 4))
    parts = [rows[:120], rows[120:121], rows[121:]]
    whole = learn(rows, 1, shuffle=False)
    in_parts = learn(parts, 1, shuffle=False)
    np.testing.assert_array_equal(in_parts.components_, whole.components_)

    class Stream:
        def __iter__(self):
            return iter(parts)

    streamed = learn(Stream(), 1, shuffle=False)
    np.testing.assert_array_equal(streamed.components_, whole.components_)
    once = learn(rows, 1, shuffle=False, n_passes=1)
    partial = OnlineNMF(**once.get_params()).partial_fit(rows)
    np.testing.assert_array_equal(partial.components_, once.components_)


def test_explicit_zeros_and_entries_given_twice_are_what_they_add_up_to():
    array = counts(100, 30, 4)
    values, (rows, bins) = array[array > 0], np.nonzero(array)
    doubled = np.concatenate([values / 2, values / 2, np.zeros(2)])
    where = np.r_[rows, rows, 0, 99], np.r_[bins, bins, 3, 4]
    scattered = sparse.coo_array((doubled, where), shape=array.shape)
    given = sparse.csr_array((doubled, where[1], np.r_[0, len(doubled)]), shape=(1, 30))
    before = given.data.copy(), given.indices.copy()
    expected = learn(sparse.csr_array(array), 1)
    np.testing.assert_allclose(learn(scattered, 1).components_, expected.components_, atol=1e-9)
    expected.transform(given)
    np.testing.assert_array_equal(given.data, before[0])
    np.testing.assert_array_equal(given.indices, before[1])


def test_a_topic_without_a_word_may_get_it_later():
    early, late = counts(200, 30, 1), counts(200, 30, 1, seed=5)
    early[:, 7] = 0
    late[:, 7] += 20
    model = OnlineNMF(2, beta_loss=1, random_state=0, n_passes=1)
    for _ in range(10):
        model.partial_fit(sparse.csr_array(early))
    assert model.components_[:, 7].max() < 1e-6
    for _ in range(3):
        model.partial_fit(sparse.csr_array(late))
    assert model.components_[:, 7].max() > 0.1


def test_empty_rows_are_silent():
    array = counts(60, 30, 4)
    array[[0, 7, 59]] = 0
    model = learn(sparse.csr_array(array), 1)
    activations = model.transform(sparse.csr_array(array))
    np.testing.assert_array_equal(activations[[0, 7, 59]], 0)
    assert model.n_frames_seen_ == 2 * 57


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        ({"beta_loss": "itakura-saito"}, TypeError, "zeros of sparse input decide everything"),
        ({"backend": "torch"}, ValueError, "Sparse input needs another backend"),
        ({"noise_floor": 1e-3}, ValueError, "noise_floor=0.001 would make every zero"),
        ({"init": "parts"}, ValueError, "compares logarithms"),
    ],
)
def test_what_needs_every_entry_is_refused(settings, kind, said):
    rows = sparse.csr_array(counts(20, 30, 4))
    with pytest.raises(kind, match=said):
        OnlineNMF(4, **({"beta_loss": 1} | settings)).fit(rows)


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "NaN"), (np.inf, "infinity"), (-1, "Negative")]
)
def test_numbers_that_are_none_are_refused(value, said):
    rows = sparse.csr_array(counts(20, 30, 4))
    rows.data[5] = value
    with pytest.raises(ValueError, match=said):
        OnlineNMF(4, beta_loss=1).fit(rows)


@pytest.mark.parametrize("name", ["array", "matrix"])
def test_scikit_learn_checks_of_sparse_input(name):
    check = getattr(estimator_checks, f"check_estimator_sparse_{name}")
    for beta_loss in ("itakura-saito", "kullback-leibler", "frobenius"):
        check("OnlineNMF", OnlineNMF(3, beta_loss=beta_loss, n_passes=1))


def test_rows_of_thirty_thousand_bins_are_never_dense():
    script = """
import resource
import numpy as np
from scipy.sparse import random_array
import ondes
rng = np.random.default_rng(0)
shape = 20_000, 30_000
rows = random_array(shape, density=1e-3, rng=rng, format="csr", dtype=np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = ondes.OnlineNMF(4, beta_loss=1, n_passes=1, batch_size=2000).fit(rows)
model.transform(rows), model.score(rows)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 100_000  # kB; one batch as an array has 240,000


@pytest.mark.skipif(not KERNELS, reason="the native backend is not built here")
@pytest.mark.parametrize(
    ("starts", "bins"),
    [([0, 3], [0, 1]), ([0, 2], [0, 5]), ([0, 2], [1, 0]), ([0, 2], [-1, 0]), ([1, 2], [0, 1])],
)
def test_the_kernel_reads_nothing_outside_of_its_arrays(starts, bins):
    problem = problem_of(2, 5, 1.0)
    settings = native._settings(problem, np.empty((1, 2)), None, 1)
    given = {"starts": np.array(starts), "bins": np.array(bins, dtype=np.int32)}
    nothing = dict.fromkeys(("spectrum", "background", "ratios", "logs", "weighted", "weights"))
    with pytest.raises(ValueError, match=r"starts|bins"):
        native._kernel().solve_sparse(values=np.ones(2), **given, **settings, **nothing)
