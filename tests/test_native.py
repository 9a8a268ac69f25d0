"""`native` equals `reference` for every shape, option and instruction set of this machine.

Run as a script, it makes a million calls and prints how much memory they kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import cases, make_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ondes import OnlineNMF
from ondes.nmf.backends import native, reference
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.penalties import L1, GroupLog
from ondes.nmf.problem import Solver

if not native.available():
    pytest.skip("the native backend is not built here", allow_module_level=True)

from ondes.nmf.backends import _native

ISAS = _native.instruction_sets()
DTYPES = (np.float32, np.float64)
LOSSES = ("itakura-saito", "kullback-leibler")
many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@st.composite
def all_cases(draw, dtype, **options):
    """Cases of either divergence, with and without sparsity."""
    case = draw(cases(dtype, **options))
    changes = {
        "divergence": BetaDivergence.of(draw(st.sampled_from(LOSSES))),
        "sparsity": draw(st.sampled_from([0.0, 0.0, 0.5, 20.0])),
    }
    return replace(case, problem=replace(case.problem, **changes))


@contextmanager
def instruction_set(isa):
    before = os.environ.get("ONDES_ISA")
    os.environ["ONDES_ISA"] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ["ONDES_ISA"]
        else:
            os.environ["ONDES_ISA"] = before


# ---- native equals reference ----


@pytest.mark.parametrize("isa", ISAS)
@many
@given(case=all_cases(np.float64))
def test_float64_is_reference_to_nine_digits(isa, case):
    expected, sums = reference.summarise(case.frames, case.problem, case.start)
    with instruction_set(isa):
        found, found_sums = native.summarise(case.frames, case.problem, case.start)
        np.testing.assert_array_equal(native.encode(case.frames, case.problem, case.start), found)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, rtol=1e-9)
    np.testing.assert_allclose(found_sums.denominator, sums.denominator, rtol=1e-9)
    noise = 1e-13 * case.frames.values.size
    np.testing.assert_allclose(found_sums.divergence, sums.divergence, rtol=1e-9, atol=noise)
    assert found_sums.n_frames == sums.n_frames
    assert found_sums.beta == sums.beta == case.problem.divergence.beta


@pytest.mark.parametrize("isa", ISAS)
@many
@given(case=all_cases(np.float32))
def test_float32_is_reference_to_rounding(isa, case):
    expected, _ = reference.summarise(case.frames, case.problem, case.start)
    with instruction_set(isa):
        found, found_sums = native.summarise(case.frames, case.problem, case.start)
    assert found.dtype == np.float32
    if not case.problem.solver.momentum and not case.problem.solver.tol:
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(
        case.objective(found), case.objective(expected), rtol=1e-5, atol=1e-5
    )
    # Sums of the activations that it found itself, summed here in float64.
    sums = reference._accumulate(case.in_float64, found.astype(float), case.problem)
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, rtol=1e-4)
    np.testing.assert_allclose(found_sums.denominator, sums.denominator, rtol=1e-4)
    noise = 1e-6 * case.frames.values.size
    np.testing.assert_allclose(found_sums.divergence, sums.divergence, rtol=1e-5, atol=noise)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_long_solve_ends_as_low_as_the_reference(isa, dtype, loss):
    options = {"solver": Solver(max_steps=200, tol=1e-3), "divergence": BetaDivergence.of(loss)}
    case = make_case(300, 65, 9, dtype, **options)
    expected = reference.encode(case.frames, case.problem)
    with instruction_set(isa):
        found = native.encode(case.frames, case.problem)
    np.testing.assert_allclose(case.objective(found), case.objective(expected), rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_cost_holds_over_thousands_of_bins(isa, dtype, loss):
    momentum = (0.0, 0.9, 0.95, 0.99)  # so large that it often has to restart
    solver = Solver(max_steps=12, momentum=momentum, tol=0.0)
    case = make_case(20, 4100, 3, dtype, solver=solver, divergence=BetaDivergence.of(loss))
    expected = reference.encode(case.frames, case.problem)
    with instruction_set(isa):
        found = native.encode(case.frames, case.problem)
    np.testing.assert_allclose(found, expected, rtol=1e-9 if dtype == np.float64 else 1e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("momentum", [(), Solver().momentum])
def test_hundreds_of_components_are_summed_in_parts(isa, dtype, loss, momentum):
    solver = Solver(max_steps=4, momentum=momentum)
    options = {"solver": solver, "divergence": BetaDivergence.of(loss), "with_background": True}
    case = make_case(70, 203, 301, dtype, **options)
    expected, sums = reference.summarise(case.frames, case.problem)
    with instruction_set(isa):
        found, found_sums = native.summarise(case.frames, case.problem)
    rtol = 1e-9 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(found, expected, rtol=rtol)
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, rtol=rtol)
    np.testing.assert_allclose(found_sums.divergence, sums.divergence, rtol=rtol)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("momentum", [(), Solver().momentum])
@pytest.mark.parametrize("n_components", range(1, 13))
def test_every_number_of_few_components(isa, dtype, momentum, n_components):
    solver = Solver(max_steps=4, momentum=momentum)
    for n_bins, with_background in ((1, False), (2, True), (3, False), (203, True), (300, False)):
        options = {"solver": solver, "with_background": with_background}
        case = make_case(70, n_bins, n_components, dtype, **options)
        expected = reference.encode(case.frames, case.problem)
        with instruction_set(isa):
            found = native.encode(case.frames, case.problem)
        np.testing.assert_allclose(found, expected, rtol=1e-9 if dtype == np.float64 else 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_frames(dtype):
    case = make_case(4, 5, 3, dtype)
    found, sums = native.summarise(case.frames[:0], case.problem)
    assert found.shape == (0, 3)
    assert found.dtype == dtype
    assert sums.n_frames == sums.divergence == 0


def test_inputs_are_not_written_to():
    case = make_case(70, 33, 6, np.float32, with_start=True, with_background=True)
    copies = case.frames.values.copy(), case.start.copy(), case.problem.dictionary.copy()
    native.summarise(case.frames, case.problem, case.start)
    for before, after in zip(
        copies, (case.frames.values, case.start, case.problem.dictionary), strict=True
    ):
        np.testing.assert_array_equal(before, after)


# ---- Neither neighbours nor threads matter, bit for bit ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_frame_depends_on_itself_alone(isa, dtype, data):
    case = data.draw(all_cases(dtype, max_steps=25))
    n = len(case.frames)
    rows = data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))]
    rows = np.array(rows)
    part = None if case.start is None else case.start[rows]
    with instruction_set(isa):
        whole = native.encode(case.frames, case.problem, case.start)
        some = native.encode(case.frames[rows], case.problem, part, n_jobs=3)
    np.testing.assert_array_equal(some, whole[rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(100, 19, 5), (128, 600, 120), (5000, 19, 5)])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_number_of_threads_changes_no_bit(isa, dtype, shape, loss):
    options = {"penalty": GroupLog(1.0), "divergence": BetaDivergence.of(loss)}
    case = make_case(*shape, dtype, **options)
    with instruction_set(isa):
        runs = [native.summarise(case.frames, case.problem, n_jobs=jobs) for jobs in (1, 2, 7, 16)]
    for activations, sums in runs[1:]:
        np.testing.assert_array_equal(activations, runs[0][0])
        np.testing.assert_array_equal(sums.numerator, runs[0][1].numerator)
        np.testing.assert_array_equal(sums.denominator, runs[0][1].denominator)
        assert sums.divergence == runs[0][1].divergence


# ---- Threads and processes ----


def test_several_python_threads_at_once():
    some = [make_case(90 + n, 21, 4, np.float32, seed=n) for n in range(4)]
    expected = [native.encode(case.frames, case.problem) for case in some]

    def solve_often(i):
        case = some[i % 4]
        for _ in range(25):
            found = native.encode(case.frames, case.problem, n_jobs=3)
            np.testing.assert_array_equal(found, expected[i % 4])

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(solve_often, range(8)))


def test_fork_then_solve_in_parent_and_child():
    case = make_case(200, 21, 4, np.float32)
    expected = native.encode(case.frames, case.problem, n_jobs=2)
    with ThreadPoolExecutor(2) as executor:  # the pool is in use while the process forks
        busy = [executor.submit(solve_for_a_while, case) for _ in range(2)]
        statuses = [fork_and_solve(case, expected) for _ in range(10)]
        for future in busy:
            future.result()
    assert statuses == [0] * 10
    np.testing.assert_array_equal(native.encode(case.frames, case.problem, n_jobs=2), expected)


def solve_for_a_while(case):
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        native.encode(case.frames, case.problem, n_jobs=2)


def fork_and_solve(case, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on fork with threads
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        found = native.encode(case.frames, case.problem, n_jobs=2)
        os._exit(0 if np.array_equal(found, expected) else 1)
    return os.waitpid(child, 0)[1]


def test_the_process_ends_cleanly_while_its_pool_waits():
    script = """
import numpy as np
from ondes.nmf.backends import native
from ondes.nmf.divergence import level_frames
from ondes.nmf.problem import Problem, Solver
frames = level_frames(np.random.default_rng(0).random((500, 64)))
native.encode(frames, Problem(np.full((4, 64), 1 / 64), 1e-8, Solver()), n_jobs=3)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20)


@pytest.mark.parametrize("max_steps", [1, 20_000])  # at the end of a call, and in its midst
def test_the_process_ends_cleanly_while_a_daemon_thread_is_in_the_kernel(max_steps):
    script = f"""
import threading, time
import numpy as np
from ondes.nmf.backends import native
from ondes.nmf.divergence import level_frames
from ondes.nmf.problem import Problem, Solver
frames = level_frames(np.random.default_rng(0).random((2000, 257)))
problem = Problem(np.full((16, 257), 1 / 257), 1e-8, Solver({max_steps}))
def solve_for_ever():
    while True:
        native.encode(frames, problem, n_jobs=2)
threading.Thread(target=solve_for_ever, daemon=True).start()
time.sleep(0.1)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20)


def kept_bytes(n_calls):
    """How much the resident memory grows over calls, after as many as it takes to settle."""
    case = make_case(3, 5, 2, np.float32, solver=Solver(max_steps=2), with_background=True)

    def call(times):
        for _ in range(times):
            native.summarise(case.frames, case.problem, n_jobs=2)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = call(2000)
    return call(n_calls) - before


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_nothing_leaks():
    assert kept_bytes(20_000) < 500_000  # 25 bytes per call


# ---- The edge ----


def test_a_users_own_penalty_is_left_to_the_reference():
    class Mine(L1):
        def slope(self, share):
            return 2 * super().slope(share)

    problem = make_case(1, 2, 2, np.float64).problem
    assert native.unsupported(problem) is None
    assert native.unsupported(replace(problem, penalty=GroupLog(1.0))) is None
    assert "Mine" in native.unsupported(replace(problem, penalty=Mine(1.0)))


def test_divergences_that_it_has_not_are_left_to_the_reference():
    problem = make_case(1, 2, 2, np.float64).problem
    for beta in (0, 1):
        problem = replace(problem, divergence=BetaDivergence(beta), sparsity=1.0)
        assert native.unsupported(problem) is None
    for beta in (0.5, 1.5, 2):
        sentence = native.unsupported(replace(problem, divergence=BetaDivergence(beta)))
        assert f"not that of β = {beta}." in sentence


def test_an_estimator_warns_where_numpy_replaces_the_requested_kernel():
    class Mine(L1):
        pass

    frames = np.random.default_rng(0).exponential(size=(20, 4))
    model = OnlineNMF(2, backend="native", penalty=Mine(1.0))
    with pytest.warns(RuntimeWarning, match="not Mine. NumPy is used instead"):
        model.partial_fit(frames)
    assert model.backend_ == "reference"


def pair_sums_by_definition(earlier, later, shapes):
    """Σ over distances q and bins f of Re conj(a(f)) b(f − q), and the other way round."""
    sums = np.zeros((len(earlier), shapes.shape[2]))
    for t, channel, f in np.ndindex(earlier.shape):
        a, b = earlier[t, channel], later[t, channel]
        for q in range(len(shapes)):
            if f < q:  # below the first bin are the conjugates of those above
                value = (a[f].conj() * b[q - f].conj()).real
            elif q:
                value = (a[f].conj() * b[f - q] + a[f - q].conj() * b[f]).real
            else:
                value = (a[f].conj() * b[f]).real
            sums[t] += value * shapes[q, f]
    return sums


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "size",
    [(1, 1, 1, 1, 1), (3, 2, 5, 7, 5), (6, 1, 64, 24, 3), (2, 1, 66, 33, 4), (9, 2, 140, 50, 13)],
)
def test_sums_over_pairs_are_their_definition(isa, size):
    *shape, n_signals, n_distances = size
    n_rows, n_channels, n_bins = shape
    rng = np.random.default_rng(0)
    shape = (n_rows, n_channels, n_bins)
    earlier, later = (
        rng.standard_normal((2, *shape, 2)).astype(np.float32).view(np.complex64)[..., 0]
    )
    turn, turn_later = np.exp(1j * rng.uniform(0, 6, (2, n_bins))).astype(np.complex64)
    shapes = rng.uniform(0, 1, (n_distances, n_bins, n_signals)).astype(np.float32)
    expected = pair_sums_by_definition(earlier * turn, later * turn_later, shapes)
    arrays = (earlier, later, turn, turn_later, shapes)
    with instruction_set(isa):
        found = native.sum_pairs(*arrays)
        rows = [native.sum_pairs(earlier[[i]], later[[i]], *arrays[2:]) for i in range(n_rows)]
    scale = np.sqrt(n_channels * n_bins * n_distances)
    np.testing.assert_allclose(found, expected, rtol=0, atol=6e-6 * scale)
    np.testing.assert_array_equal(found, np.concatenate(rows))


def test_wrong_shapes_of_pairs_are_refused():
    frames, turn = np.ones((2, 1, 4), np.complex64), np.ones(4, np.complex64)
    shapes = np.ones((2, 4, 3), np.float32)
    for wrong in (
        (frames, frames[:1], turn, turn, shapes),
        (frames, frames, turn[:3], turn, shapes),
        (frames, frames, turn, turn, np.ones((5, 4, 3), np.float32)),
    ):
        with pytest.raises(ValueError, match=r"must|differ"):
            native.sum_pairs(*map(np.ascontiguousarray, wrong))


def recurrence_by_definition(gates, bias, along_bands):
    n_frames, n_bands, _, n_states = gates.shape
    out = np.empty((n_frames, n_bands, n_states))
    axis, n_lines = (n_bands, n_frames) if along_bands else (n_frames, n_bands)
    for state in range(n_states):
        steps = range(axis) if state < n_states // 2 else reversed(range(axis))
        state_of_line = np.zeros(n_lines)
        for step in steps:
            for line in range(n_lines):
                at = (line, step) if along_bands else (step, line)
                z, c, g = gates[*at, :, state] + bias[:, state]
                keep = 1 / (1 + np.exp(-z))
                state_of_line[line] = keep * state_of_line[line] + (1 - keep) * c
                out[*at, state] = state_of_line[line] * max(g, 0)
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("along_bands", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 2), (5, 3, 14), (4, 7, 64), (30, 2, 50)])
def test_a_recurrence_is_what_its_definition_says(isa, along_bands, shape):
    rng = np.random.default_rng(0)
    *rows, n_states = shape
    gates = rng.normal(0, 3, (*rows, 3, n_states)).astype(np.float32)
    gates[0, 0, 0, :2] = 200, -200  # a gate that is quite open or quite shut
    bias = rng.normal(0, 1, (3, n_states)).astype(np.float32)
    expected = recurrence_by_definition(gates.astype(float), bias.astype(float), along_bands)
    with instruction_set(isa):
        found = native.recur(gates, bias, along_bands)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_wrong_shapes_of_a_recurrence_are_refused():
    gates, bias = np.ones((2, 3, 3, 4), np.float32), np.ones((3, 4), np.float32)
    for wrong in ((gates[..., :3], bias[:, :3]), (gates, bias[:, :2]), (gates[:, :, :2], bias)):
        with pytest.raises(ValueError, match="must be"):
            native.recur(*map(np.ascontiguousarray, wrong), True)


def test_wrong_shapes_and_types_are_refused():
    case = make_case(4, 5, 3, np.float32)
    with pytest.raises(ValueError, match="start must be"):
        native.encode(case.frames, case.problem, np.ones((4, 2)))
    with pytest.raises(ValueError, match="differ in bins"):
        native.encode(case.frames, replace(case.problem, dictionary=np.ones((3, 6))))
    with pytest.raises(ValueError, match="groups must"):
        native.encode(case.frames, replace(case.problem, groups=np.array([0, 1, 7])))
    with pytest.raises(TypeError):
        native.encode(replace(case.frames, values=np.ones((4, 5), int)), case.problem)


def test_a_missing_instruction_set_is_named(monkeypatch):
    monkeypatch.setenv("ONDES_ISA", "v9")
    assert not native.available()
    with pytest.raises(ImportError, match="'v9'"):
        native.isa()


def test_a_missing_kernel_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ondes.nmf.backends._native", None)
    assert not native.available()
    with pytest.raises(ImportError, match="not built"):
        native.encode(*(lambda case: (case.frames, case.problem))(make_case(1, 2, 2, np.float32)))


if __name__ == "__main__":
    print(f"a million calls kept {kept_bytes(1_000_000)} bytes")
