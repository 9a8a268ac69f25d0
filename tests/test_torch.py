"""`torch` equals `reference` for every shape and option, and reports what is missing.

It runs on the CPU here, and on a GPU in `benchmarks/gpu.py`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import cases, make_case, spectrogram
from hypothesis import HealthCheck, given, settings
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from ondes import DeviceError, OnlineNMF, Statistics
from ondes.nmf.backends import reference
from ondes.nmf.dictionary_update import update
from ondes.nmf.problem import Solver

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch

from ondes.nmf.backends.devices import memory_errors
from ondes.nmf.backends.torch import BLOCK, TorchBackend

DTYPES = (np.float32, np.float64)
many = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
cpu = TorchBackend("cpu")


# ---- torch equals reference ----


@many
@given(case=cases(np.float64))
def test_float64_is_reference_to_ten_digits(case):
    expected, sums = reference.summarise(case.frames, case.problem, case.start)
    found, found_sums = cpu.summarise(case.frames, case.problem, case.start)
    np.testing.assert_array_equal(cpu.encode(case.frames, case.problem, case.start), found)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, rtol=1e-10)
    np.testing.assert_allclose(found_sums.denominator, sums.denominator, rtol=1e-10)
    noise = 1e-13 * case.frames.values.size
    np.testing.assert_allclose(found_sums.divergence, sums.divergence, rtol=1e-10, atol=noise)
    assert found_sums.n_frames == sums.n_frames


@many
@given(case=cases(np.float32))
def test_float32_is_reference_to_rounding(case):
    expected, _ = reference.summarise(case.frames, case.problem, case.start)
    found, found_sums = cpu.summarise(case.frames, case.problem, case.start)
    assert found.dtype == np.float32
    largest = expected.max(axis=1, keepdims=True, initial=0)
    assert (np.abs(found - expected) <= 1e-4 * largest).all()
    np.testing.assert_allclose(
        case.objective(found), case.objective(expected), rtol=1e-5, atol=1e-5
    )
    # Sums of the activations that it found itself, summed here in float64.
    sums = reference._accumulate(case.in_float64, found.astype(float), case.problem)
    np.testing.assert_allclose(found_sums.numerator, sums.numerator, rtol=1e-4)
    np.testing.assert_allclose(found_sums.denominator, sums.denominator, rtol=1e-4)
    noise = 1e-6 * case.frames.values.size
    np.testing.assert_allclose(found_sums.divergence, sums.divergence, rtol=1e-5, atol=noise)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_solve_ends_as_low_as_the_reference(dtype):
    case = make_case(300, 65, 9, dtype, solver=Solver(max_steps=200, tol=1e-3))
    expected = reference.encode(case.frames, case.problem)
    found = cpu.encode(case.frames, case.problem)
    np.testing.assert_allclose(case.objective(found), case.objective(expected), rtol=1e-4)


def test_no_frame_stops_at_a_step_that_rose():
    momentum = (0.0, 0.99, 0.99, 0.99, 0.99)  # so large that it often has to restart
    solver = Solver(max_steps=40, momentum=momentum, tol=0.2)
    case = make_case(400, 40, 6, np.float64, solver=solver, seed=1, with_start=True)
    expected = reference.encode(case.frames, case.problem, case.start)
    found = cpu.encode(case.frames, case.problem, case.start)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_blocks_of_frames_do_not_change_the_result():
    solver = Solver(max_steps=30, tol=1e-2)
    case = make_case(2 * BLOCK + 7, 11, 3, np.float64, solver=solver, with_background=True)
    whole, sums = cpu.summarise(case.frames, case.problem)
    cut = [case.frames[first : first + 300] for first in range(0, len(case.frames), 300)]
    parts = [cpu.summarise(part, case.problem) for part in cut]
    np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), whole, rtol=1e-10)
    np.testing.assert_allclose(sum(p[1].numerator for p in parts), sums.numerator, rtol=1e-10)


def test_the_same_frames_give_the_same_bits():
    case = make_case(500, 65, 9, np.float32, solver=Solver(max_steps=60, tol=1e-3))
    one, sums = cpu.summarise(case.frames, case.problem)
    again, sums_again = cpu.summarise(case.frames, case.problem)
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(sums.numerator, sums_again.numerator)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_frames(dtype):
    case = make_case(4, 5, 3, dtype)
    found, sums = cpu.summarise(case.frames[:0], case.problem)
    assert found.shape == (0, 3)
    assert found.dtype == dtype
    assert sums.n_frames == sums.divergence == 0


def test_inputs_are_not_written_to_and_may_be_read_only():
    case = make_case(70, 33, 6, np.float32, with_start=True, with_background=True)
    arrays = (case.frames.values, case.start, case.problem.dictionary, case.problem.background)
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    cpu.summarise(case.frames, case.problem, case.start)
    for before, after in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_users_own_penalty_is_supported():
    class Root:
        def value(self, share):
            return np.sqrt(share)

        def slope(self, share):
            return 0.5 / np.sqrt(share)

    case = make_case(30, 12, 4, np.float64, penalty=Root())
    assert cpu.unsupported(case.problem) is None
    expected = reference.encode(case.frames, case.problem)
    np.testing.assert_allclose(cpu.encode(case.frames, case.problem), expected, rtol=1e-10)
    model = OnlineNMF(4, backend="torch", penalty=Root()).partial_fit(spectrogram())
    assert model.backend_ == "torch (cpu)"


# ---- The dictionary's update ----


def tensors(statistics):
    fields = (statistics.numerator, statistics.denominator, statistics.divergence)
    return Statistics(
        *(torch.tensor(each, dtype=torch.float64) for each in (*fields, statistics.n_frames))
    )


@pytest.mark.parametrize("exponent", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("n_fixed", [0, 2])
def test_the_update_of_tensors_is_that_of_arrays(exponent, n_fixed):
    case = make_case(60, 33, 6, np.float64)
    halves = [
        reference.summarise(case.frames[part], case.problem)[1] for part in (np.s_[:30], np.s_[30:])
    ]
    for half in halves:
        half.numerator[4] = half.denominator[4] = 0  # a row without statistics stays
    options = {"exponent": exponent, "n_fixed": n_fixed}
    expected = update(case.problem.dictionary, *halves, 0.7, **options)
    dictionary, past, new = torch.tensor(case.problem.dictionary), *map(tensors, halves)
    inputs = [dictionary, past.numerator, past.denominator, new.numerator, new.denominator]
    copies = [each.clone() for each in inputs]
    for factor in (
        torch.tensor(0.7, dtype=torch.float64),
        torch.tensor([0.7], dtype=torch.float64),
    ):
        rows, kept, scale = update(dictionary, past, new, factor, xp=torch, **options)
        assert rows.dtype == kept.numerator.dtype == torch.float64
        assert kept.divergence.shape == kept.n_frames.shape == ()
        np.testing.assert_allclose(rows, expected[0], rtol=1e-12)
        np.testing.assert_allclose(kept.numerator, expected[1].numerator, rtol=1e-12)
        np.testing.assert_allclose(kept.denominator, expected[1].denominator, rtol=1e-12)
        assert float(kept.divergence) == pytest.approx(expected[1].divergence)
        assert float(kept.n_frames) == pytest.approx(expected[1].n_frames)
        np.testing.assert_allclose(scale, expected[2], rtol=1e-12)
    for before, after in zip(copies, inputs, strict=True):
        assert torch.equal(before, after)


def test_statistics_of_tensors_are_those_of_arrays():
    rng = np.random.default_rng(0)
    dictionary, weighted, inverse = rng.exponential(size=(3, 4, 9))
    sums = (weighted, inverse, rng.exponential(size=4), 3.0, 7.0)
    expected = Statistics.from_sums(dictionary, *sums)
    np.testing.assert_allclose(expected.numerator, dictionary**2 * weighted)
    np.testing.assert_allclose(expected.denominator, inverse + sums[2][:, None])
    found = Statistics.from_sums(*(torch.tensor(each) for each in (dictionary, *sums)))
    np.testing.assert_allclose(found.numerator, expected.numerator)
    np.testing.assert_allclose(found.denominator, expected.denominator)


# ---- The estimator ----


def test_scikit_learns_checks_pass():
    check_estimator(OnlineNMF(4, n_passes=2, backend="torch", device="cpu"))


def test_learning_agrees_with_the_reference_and_names_the_backend():
    frames = spectrogram()
    models = [
        OnlineNMF(4, random_state=0, n_passes=2, batch_size=50, backend=name).fit(frames)
        for name in ("reference", "torch")
    ]
    np.testing.assert_allclose(models[1].components_, models[0].components_, rtol=1e-8)
    assert models[1].backend_ == "torch (cpu)"


def test_device_and_precision_are_parameters_like_others():
    model = OnlineNMF(3, backend="torch", device="cuda", precision="bf16", random_state=0)
    copy = clone(model)
    assert (copy.device, copy.precision) == ("cuda", "bf16")
    model.set_params(device="cpu", precision=None).fit(spectrogram())
    again = OnlineNMF(3, backend="reference").restore(model.state())
    frames = spectrogram(seed=1)
    np.testing.assert_allclose(again.transform(frames), model.transform(frames), rtol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"device": "cuda"}, "device='cuda' needs backend='torch', not 'auto'"),
        ({"backend": "native", "precision": "ieee"}, "precision='ieee' needs backend='torch'"),
        ({"backend": "torch", "device": "gpu"}, "device='gpu' must be 'cpu', 'cuda'"),
        ({"backend": "torch", "device": 0}, "device=0 must be 'cpu', 'cuda'"),
        ({"backend": "torch", "device": "cpu", "precision": "tf32"}, "needs a CUDA device"),
        ({"backend": "torch", "precision": "tf32"}, "needs a CUDA device"),
        ({"backend": "torch", "device": "cuda", "precision": "fp8"}, "must be one of 'tf32'"),
    ],
)
def test_wrong_devices_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        OnlineNMF(2, **wrong).fit(spectrogram())


# ---- Without PyTorch, without a GPU, without memory ----


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_torch_is_not_imported_with_ondes():
    imports = "import sys, ondes.nmf.estimator, ondes.learning.dictionary_learning"
    code = f"{imports}; print('torch' in sys.modules)"
    assert run(code).stdout.strip() == "False"


def test_without_torch_the_error_says_so_and_other_backends_work(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    code = """
import numpy as np, ondes
frames = np.random.default_rng(0).exponential(size=(50, 8))
print(ondes.OnlineNMF(2, n_passes=1).fit(frames).backend_)
"""
    requested = 'ondes.OnlineNMF(2, n_passes=1, backend="torch").fit(frames)'
    for last_line in (requested, "import ondes.learning.gpu"):
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        ended = run(code + last_line, PYTHONPATH=path)
        assert ended.stdout.strip() in ("native", "reference")
        last = ended.stderr.strip().splitlines()[-1]
        assert last.startswith(
            "ImportError: This needs PyTorch, which is not installed: pip install"
        )
        assert "on the CPU do not need it" in last


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_without_a_gpu_the_error_says_so_and_nothing_is_changed(device):
    if getattr(torch, device).is_available():
        pytest.skip(f"there is a device {device!r} here")
    model = OnlineNMF(2, backend="torch", device=device)
    sentence = f"device='{device}' was requested, but PyTorch finds no such device: use"
    with pytest.raises(DeviceError, match=sentence):
        model.fit(spectrogram())
    assert not hasattr(model, "components_")
    model.set_params(backend="reference", device=None).fit(spectrogram())


def test_a_lack_of_memory_is_reported_in_one_sentence():
    with (
        pytest.raises(MemoryError, match="device='cpu' has too little free memory"),
        memory_errors(torch.device("cpu")),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a page of advice.")
