"""An estimator on a device is the estimator on the host: for arrays, tensors and streams.

Everything runs with PyTorch on the CPU, and on a CUDA device too where there is one.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import pickle

import numpy as np
import pytest
from conftest import spectrogram

from ondes import OnlineNMF
from ondes.nmf.forgetting import GrowingMemory, PerPass
from ondes.nmf.penalties import GroupLog, LogSparsity
from ondes.nmf.problem import Solver

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch

from ondes.nmf import device_trainer
from ondes.nmf.backends import tensors

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
each_device = pytest.mark.parametrize("device", DEVICES)
SILENT = spectrogram(n_frames=700)
SILENT[[0, 5, 6, 7, 130, 690]] = 0
SILENT[200:260] = 0

SETTINGS = {
    "the default": {},
    "Kullback-Leibler": {"beta_loss": "kullback-leibler"},
    "sparse": {"beta_loss": "kullback-leibler", "sparsity": 2.0, "solver": Solver(momentum=())},
    "squares": {"beta_loss": "frobenius", "forgetting": GrowingMemory(5.0)},  # few frames are loud
    "the paper's": {"solver": Solver.paper(20), "dictionary_exponent": 0.5, "init": "random"},
    "a stop per frame": {"solver": Solver(max_steps=30, tol=1e-2)},
    "a penalty": {"penalty": GroupLog(0.5), "groups": [0, 0, 1, 1]},
    "a background": {"background": np.full(33, 0.02)},
    "fixed components": {"fixed_components": np.random.default_rng(0).gamma(1.0, size=(2, 33))},
    "a prior": {"forgetting": PerPass(0.5, 700), "prior": 30.0},
    "all at once": {"batch_size": None},
}


def estimator(device, dtype=np.float64, **settings):
    # Rounding grows while the memory is short, so the default's is too short for these few frames.
    options = {"batch_size": 50, "n_passes": 2, "forgetting": GrowingMemory(20.0)} | settings
    if device == "cuda" and dtype == np.float32:
        options["precision"] = "ieee"
    return OnlineNMF(4, backend="torch", device=device, random_state=0, **options)


def reference(**settings):
    options = {"batch_size": 50, "n_passes": 2, "forgetting": GrowingMemory(20.0)} | settings
    return OnlineNMF(4, backend="reference", random_state=0, **options)


def assert_same(found, expected, tolerance):
    np.testing.assert_allclose(found.components_, expected.components_, atol=tolerance)
    for name in ("numerator", "denominator"):
        one, other = (getattr(each.statistics_, name) for each in (found, expected))
        np.testing.assert_allclose(one, other, rtol=100 * tolerance, atol=tolerance * other.max())
    assert found.statistics_.n_frames == pytest.approx(expected.statistics_.n_frames, rel=1e-12)
    assert found.statistics_.divergence == pytest.approx(
        expected.statistics_.divergence, rel=max(tolerance, 1e-10)
    )
    assert found.n_frames_seen_ == expected.n_frames_seen_


# ---- the same dictionary and statistics ----


@each_device
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["array", "tensor"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 2e-4)])
def test_fit_and_partial_fit_are_those_of_the_host(device, name, kind, dtype, tolerance):
    frames = SILENT.astype(dtype)
    given = torch.from_numpy(frames).to(device) if kind == "tensor" else frames
    fitted = estimator(device, dtype, **SETTINGS[name]).fit(given)
    assert_same(fitted, reference(**SETTINGS[name]).fit(frames), tolerance)
    assert fitted.backend_.startswith(f"torch ({device}")
    found, expected = estimator(device, dtype, **SETTINGS[name]), reference(**SETTINGS[name])
    for rows in (np.s_[:333], np.s_[333:360], np.s_[360:]):  # tails are smaller batches
        found.partial_fit(given[rows])
        expected.partial_fit(frames[rows])
    assert_same(found, expected, tolerance)


@each_device
def test_an_array_too_large_for_a_device_is_trained_on_in_spans(device, monkeypatch):
    monkeypatch.setattr(device_trainer, "SPAN", 100 * 33)
    monkeypatch.setattr(tensors, "fits", lambda n_bytes, device: False)
    monkeypatch.setattr(device_trainer, "CHUNK", 200 * 33)
    assert_same(estimator(device).fit(SILENT), reference().fit(SILENT), 1e-9)


@each_device
def test_an_iterable_is_cut_into_the_same_batches(device):
    arrays = [SILENT[:77], SILENT[77:80], SILENT[80:400], SILENT[400:]]
    on_device = [torch.from_numpy(each).to(device) for each in arrays]
    for given, expected in ((arrays, arrays), (on_device, arrays)):
        assert_same(estimator(device).fit(given), reference().fit(expected), 1e-9)
        assert_same(
            estimator(device).fit(dict(enumerate(given)).values()),
            reference().fit(dict(enumerate(expected)).values()),
            1e-9,
        )


@each_device
def test_a_watched_run_is_the_unwatched_one_to_the_bit(device):
    seen = []
    watched = estimator(device, callback=lambda model: seen.append(model.components_.copy()))
    watched.fit(SILENT)
    plain = estimator(device).fit(SILENT)
    np.testing.assert_array_equal(watched.components_, plain.components_)
    np.testing.assert_array_equal(watched.statistics_.numerator, plain.statistics_.numerator)
    assert len(seen) == 2 * 700 / 50
    moves = [np.linalg.norm(b - a) for a, b in itertools.pairwise(seen)]
    tol = sorted(moves)[3]
    stopped = estimator(device, tol=tol).fit(SILENT)
    first_below = 1 + next(n for n, move in enumerate(moves) if move < tol)
    np.testing.assert_array_equal(stopped.components_, seen[first_below])


@each_device
@pytest.mark.parametrize(
    "settings",
    [{"restarts": "warm"}, {"dictionary_penalty": LogSparsity(0.01)}],
    ids=["warm restarts", "a penalty on the dictionary"],
)
def test_what_the_host_trains_takes_tensors_too(device, settings):
    given = torch.from_numpy(SILENT).to(device)
    assert_same(estimator(device, **settings).fit(given), reference(**settings).fit(SILENT), 1e-9)


@each_device
def test_learning_goes_on_anywhere(device, tmp_path):
    halves = SILENT[:350], SILENT[350:]
    expected = reference().partial_fit(halves[0]).partial_fit(halves[1])
    begun = estimator(device).partial_fit(halves[0])
    copies = pickle.loads(pickle.dumps(begun)), copy.deepcopy(begun)
    assert not any("_trainer" in vars(each) for each in copies)  # a graph cannot be stored
    for moved in (*copies, begun):
        moved.set_params(backend="reference", device=None).partial_fit(halves[1])
        assert_same(moved, expected, 1e-9)
    restored = estimator(device).restore(reference().partial_fit(halves[0]).state())
    assert_same(restored.partial_fit(torch.from_numpy(halves[1])), expected, 1e-9)


@each_device
def test_changed_parameters_and_attributes_count_from_the_next_call(device):
    one, other = estimator(device), reference()
    for model in (one, other):
        model.partial_fit(SILENT[:300])
        model.set_params(dictionary_exponent=0.5, solver=Solver.paper(7)).partial_fit(SILENT[:300])
        model.components_[:2] = model.components_[1::-1]
        model.partial_fit(SILENT[300:])
    assert_same(one, other, 1e-9)


# ---- activations and scores ----


@each_device
@pytest.mark.parametrize("beta_loss", ["itakura-saito", "kullback-leibler"])
@pytest.mark.parametrize("background", [None, np.full(33, 0.02)])
def test_tensors_give_tensors_with_the_numbers_of_arrays(device, beta_loss, background):
    options = {"beta_loss": beta_loss, "background": background}
    model = estimator(device, **options).fit(SILENT)
    given = torch.from_numpy(SILENT).to(device)
    activations, scores = model.transform(given), model.score_samples(given)
    assert activations.device == scores.device == given.device
    assert activations.dtype == torch.float64
    from_arrays = model.transform(SILENT)
    assert isinstance(from_arrays, np.ndarray)
    assert isinstance(model.score_samples(SILENT), np.ndarray)
    host = reference(**options).restore(model.state())
    expected = host.transform(SILENT)
    largest = expected.max()
    np.testing.assert_allclose(activations.cpu(), expected, atol=1e-6 * largest)
    np.testing.assert_allclose(from_arrays, expected, atol=1e-6 * largest)
    np.testing.assert_allclose(scores.cpu(), host.score_samples(SILENT), rtol=1e-6, atol=1e-9)
    assert model.score(given) == pytest.approx(host.score(SILENT), rel=1e-6)
    modelled = model.inverse_transform(activations)
    assert modelled.device == given.device
    np.testing.assert_allclose(modelled.cpu(), host.inverse_transform(activations.cpu()))


class Foreign:
    """An array of a library that is not known here."""

    def __init__(self, tensor):
        self._tensor, self.shape, self.ndim = tensor, tuple(tensor.shape), tensor.ndim

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


@each_device
def test_any_array_with_dlpack_is_taken_without_a_copy(device):
    tensor = torch.from_numpy(SILENT).to(device)
    adopted = tensors.adopt(Foreign(tensor), torch.device(device))
    assert adopted.data_ptr() == tensor.data_ptr()
    model = estimator(device).fit(Foreign(tensor))
    np.testing.assert_array_equal(model.components_, estimator(device).fit(tensor).components_)
    assert torch.equal(model.transform(Foreign(tensor)), model.transform(tensor))


@each_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_other_types_are_widened(device, dtype):
    frames = torch.from_numpy(1 + 9 * np.random.default_rng(0).random((60, 12))).to(dtype)
    found = estimator(device).fit(frames.to(device)).transform(frames.to(device))
    wide = torch.float64 if dtype == torch.int32 else torch.float32
    assert found.dtype == wide
    assert torch.equal(
        found, estimator(device).fit(frames.to(device)).transform(frames.to(wide).to(device))
    )


@each_device
def test_inputs_are_not_written_to(device):
    given = torch.from_numpy(SILENT).to(device)
    before = given.clone()
    estimator(device).fit(given).score(given)
    assert torch.equal(given, before)


# ---- the edge ----


@each_device
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x.index_fill(0, torch.tensor([3], device=x.device), torch.inf), "infinity"),
        (lambda x: -x, "Negative values"),
        (lambda x: x[0], "Expected 2D array, got 1D array"),
        (lambda x: x[:0], "Found array with 0 sample"),
        (lambda x: x + 1j, "Complex data not supported"),
    ],
)
def test_tensors_are_checked_as_arrays_are(device, change, sentence):
    wrong = change(torch.from_numpy(SILENT).to(device))
    with pytest.raises(ValueError, match=sentence):
        estimator(device).fit(wrong)
    if not torch.is_complex(wrong):
        with pytest.raises(ValueError, match=sentence):
            estimator(device).fit(wrong.cpu().numpy())
    model = estimator(device).fit(SILENT)
    with pytest.raises(ValueError, match=sentence):
        model.transform(wrong)


@each_device
def test_the_wrong_number_of_bins_is_named(device):
    model = estimator(device).fit(torch.from_numpy(SILENT).to(device))
    with pytest.raises(ValueError, match="X has 20 features, but OnlineNMF is expecting 33"):
        model.transform(torch.ones(5, 20, device=device))
    with pytest.raises(ValueError, match=r"give X\.T"):
        model.transform(torch.ones(33, 20, device=device))


@pytest.mark.skipif(DEVICES == ["cpu"], reason="there is no GPU here")
def test_other_backends_say_that_they_cannot_reach_a_gpu():
    with pytest.raises(ValueError, match="X is on a GPU, where backend='auto' cannot work"):
        OnlineNMF(2).fit(torch.ones(9, 5, device="cuda"))


@each_device
def test_copies_cross_whole(device, monkeypatch):
    monkeypatch.setattr(tensors, "STAGED_BYTES", 1000)
    for array in (SILENT, SILENT.astype(np.float32), np.arange(7.0)):
        there = tensors.upload(array, torch.device(device))
        assert there.device.type == device
        back = tensors.download(there)
        np.testing.assert_array_equal(back, array)
        assert back.dtype == array.dtype
        assert back.flags.owndata
