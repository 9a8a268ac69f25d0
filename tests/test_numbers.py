"""The estimator at the edges of its numbers: finite, or refused, alike on all backends."""

from __future__ import annotations

import importlib.util
import re
import warnings

import numpy as np
import pytest

import ondes
from ondes import L1, GroupLog, LogSparsity, OnlineNMF, Smoothness
from ondes.nmf import backends

BACKENDS = ["reference"]
BACKENDS += ["native"] if backends.kernel_is_built() else []
BACKENDS += ["torch"] if importlib.util.find_spec("torch") is not None else []

DTYPES = [np.float32, np.float64]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """So small a problem waits longer for other threads than it takes."""
    if "torch" not in BACKENDS:
        yield
        return
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def frames(n_frames=200, n_bins=20, seed=0, dtype=np.float64, zeros=0.0):
    rng = np.random.default_rng(seed)
    values = rng.gamma(0.3, size=(n_frames, 5)) @ rng.gamma(0.5, size=(5, n_bins))
    values *= rng.exponential(size=values.shape)
    values[rng.random(values.shape) < zeros] = 0
    return values.astype(dtype)


# ---- line by line ----


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, bool])
def test_levels_that_are_integers_are_numbers_like_others(dtype):
    model = OnlineNMF(3, n_passes=1, random_state=0).fit(frames())
    activations = np.array([[1, 0, 1], [0, 1, 1]], dtype=dtype)
    expected = activations.astype(np.float64) @ model.components_
    np.testing.assert_allclose(model.inverse_transform(activations), expected)
    np.testing.assert_allclose(model.inverse_transform(activations.tolist()), expected)


def test_the_background_is_added_to_activations_that_are_integers():
    background = np.full(20, 0.25)
    model = OnlineNMF(3, n_passes=1, background=background, random_state=0).fit(frames())
    silence = model.inverse_transform(np.zeros((1, 3), dtype=int))
    np.testing.assert_allclose(silence, background[None])


@pytest.mark.parametrize("forgetting", [None, ondes.GrowingMemory(2.0), ondes.HalfLife(10**6)])
def test_a_first_dictionary_of_much_weight_stays(forgetting):
    """`prior` is how many frames of data it weighs."""
    init = np.random.default_rng(1).gamma(0.5, size=(3, 20)) + 1e-3
    init /= init.sum(axis=1, keepdims=True)
    moved = {}
    for prior in (0.0, 1e6):
        settings = {"prior": prior, "forgetting": forgetting, "n_passes": 1}
        model = OnlineNMF(3, init=init, random_state=0, **settings).fit(frames())
        moved[prior] = np.abs(model.components_ - init).max()
    assert moved[0.0] > 0.05
    assert moved[1e6] < 0.01 * moved[0.0]


@pytest.mark.parametrize("n_components", [4, 8, 16])
def test_warm_restarts_stay_finite_where_most_is_zero(backend, n_components):
    settings = {"restarts": "warm", "batch_size": 50, "n_passes": 8, "random_state": 0}
    data = frames(400, 33, dtype=np.float32, zeros=0.83)
    model = OnlineNMF(n_components, backend=backend, **settings).fit(data)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.transform(data)).all()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_in_buffer", [30, 128, 300])
def test_a_generator_that_reuses_its_buffer_gives_what_its_arrays_give(shuffle, dtype, n_in_buffer):
    data = frames(900, dtype=dtype)
    pieces = [data[first : first + n_in_buffer] for first in range(0, 900, n_in_buffer)]

    def reusing():
        buffer = np.empty((n_in_buffer, data.shape[1]), dtype)
        for piece in pieces:
            buffer[: len(piece)] = piece
            yield buffer[: len(piece)]
            buffer[:] = 1e6

    settings = {"n_passes": 1, "shuffle": shuffle, "random_state": 0, "backend": "reference"}
    given, reused = (
        OnlineNMF(3, **settings).fit(arrays).components_ for arrays in (iter(pieces), reusing())
    )
    assert reused.tobytes() == given.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_backend_makes_finite_activations_of_an_invalid_dictionary(backend, dtype):
    data = frames(dtype=dtype)
    model = OnlineNMF(3, backend=backend, n_passes=1, random_state=0).fit(data)
    broken = model.components_.copy()
    broken[1, 4] = np.nan
    model.components_ = broken
    try:
        activations = model.transform(data)
    except ValueError:
        return
    assert not np.isfinite(activations[data.any(axis=1)]).all(axis=1).any()


# ---- ranges ----


def outcome(backend, dtype, **settings):
    """ "finite", the sentence of a refusal, or what went wrong."""
    data = frames(100, dtype=dtype, zeros=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "[0-9]+% of the entries of X are exactly zero")
        try:
            settings = {name: each() if callable(each) else each for name, each in settings.items()}
            usual = {"n_passes": 2, "batch_size": 50, "random_state": 0, "backend": backend}
            model = OnlineNMF(4, **usual, **settings).fit(data)
            parts = [model.components_, model.transform(data), model.score_samples(data)]
            parts += [model.statistics_.numerator, model.statistics_.denominator]
        except (ValueError, TypeError) as error:
            return f"refused: {error}"
        except Exception as error:  # the very thing that is looked for
            return f"failed: {error!r}"
    if not all(np.isfinite(part).all() for part in parts):
        return "not finite"
    sums = model.components_.sum(axis=1)
    return "finite" if np.allclose(sums, 1) else f"rows that sum to {sums}"


def is_right(outcomes):
    """Whether all backends answer alike: finite numbers, or one refusal that gives the range."""
    if set(outcomes.values()) == {"finite"}:
        return True
    (refusal,) = set(outcomes.values()) if len(set(outcomes.values())) == 1 else [""]
    return refusal.startswith("refused: ") and bool(re.search(r"\d", refusal.partition("=")[2]))


def outcomes_of(dtype, **settings):
    return {backend: outcome(backend, dtype, **settings) for backend in BACKENDS}


STRENGTHS = [1e4, 1e6, 1e8, 1e20, 1e38, 1e200, 1e308]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("penalty", [L1, GroupLog], ids=lambda kind: kind.__name__)
def test_any_penalty_of_the_activations_is_finite_or_refused(penalty, strength, dtype):
    outcomes = outcomes_of(dtype, penalty=lambda: penalty(strength))
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("penalty", [LogSparsity, Smoothness], ids=lambda kind: kind.__name__)
def test_any_penalty_of_the_dictionary_is_finite_or_refused(penalty, strength, dtype):
    outcomes = outcomes_of(dtype, dictionary_penalty=lambda: penalty(strength))
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sparsity", STRENGTHS)
@pytest.mark.parametrize("beta_loss", ["itakura-saito", "kullback-leibler"])
def test_any_sparsity_is_finite_or_refused(beta_loss, sparsity, dtype):
    outcomes = outcomes_of(dtype, beta_loss=beta_loss, sparsity=sparsity)
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prior", [1e-300, 1e6, 1e12, 1e200])
def test_a_prior_of_any_weight_is_finite_or_refused(prior, dtype):
    outcomes = outcomes_of(dtype, prior=prior)
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1e-8, 1e-30, 1e-300, 5e-324, 1e30, 1e300])
@pytest.mark.parametrize("penalty", [GroupLog, LogSparsity], ids=lambda kind: kind.__name__)
def test_any_offset_of_a_penalty_is_finite_or_refused(penalty, offset, dtype):
    name = "penalty" if penalty is GroupLog else "dictionary_penalty"
    outcomes = outcomes_of(dtype, **{name: lambda: penalty(1.0, offset=offset)})
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("floor", [1e-12, 1e-30, 1e-38, 1e-41, 1e-44, 1e-46, 1e-300, 5e-324])
def test_any_noise_floor_is_finite_or_refused(floor, dtype):
    outcomes = outcomes_of(dtype, noise_floor=floor)
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e308, 1e300, 1e40, 1e-40, 1e-300, 5e-324])
@pytest.mark.parametrize("name", ["init", "fixed_components"])
def test_known_rows_of_any_scale_are_finite_or_refused(name, scale, dtype):
    n_rows = 4 if name == "init" else 2
    rows = np.random.default_rng(2).uniform(0.1, 1, size=(n_rows, 20)) * scale
    outcomes = outcomes_of(dtype, **{name: rows})
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e308, 1e160, 1e40, 1e30, 1e-40, 1e-300])
def test_a_background_of_any_scale_is_finite_or_refused(scale, dtype):
    outcomes = outcomes_of(dtype, background=np.full(20, scale))
    assert is_right(outcomes), outcomes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [1e-300, 1e10, 1e300])
def test_any_forgetting_is_finite_or_refused(power, dtype):
    for forgetting in (lambda: ondes.GrowingMemory(power), lambda: ondes.HalfLife(power)):
        outcomes = outcomes_of(dtype, forgetting=forgetting)
        assert is_right(outcomes), outcomes


@pytest.mark.parametrize("backend_of_all", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "exponents"), [(np.float32, (-35, 35)), (np.float64, (-290, 290))]
)
def test_data_of_any_scale_gives_the_same_dictionary(backend_of_all, dtype, exponents):
    """Powers of two, so that the data is the same but for its scale."""
    data = frames(dtype=dtype)
    settings = {"backend": backend_of_all, "n_passes": 1, "random_state": 0}
    plain = OnlineNMF(3, **settings).fit(data).components_
    for exponent in exponents:
        scaled = np.ldexp(data, int(exponent * np.log2(10)))
        learned = OnlineNMF(3, **settings).fit(scaled).components_
        np.testing.assert_allclose(learned, plain, rtol=1e-3, atol=1e-7)


# ---- Any allowed settings, on any frames ----

LINES = ondes.LogSparsity(0.1)


def at_random(seed, backend):
    """Frames and settings of an estimator, drawn with this seed."""
    rng = np.random.default_rng(seed)
    n_bins, n_frames = (int(rng.choice(each)) for each in ([1, 2, 5, 33], [1, 3, 20, 60]))
    n_components, kind = int(rng.integers(1, 8)), rng.integers(5)
    frames = rng.exponential(size=(n_frames, n_bins))
    if kind == 1:
        frames *= rng.random(frames.shape) < 0.5
    elif kind == 2:
        frames = 10.0 ** rng.uniform(-18, 12, size=frames.shape)
    elif kind == 3:
        frames = rng.exponential(size=(n_frames, 1)) * 10.0 ** rng.uniform(-12, 0, size=n_bins)
    elif kind == 4:
        frames = (rng.random(frames.shape) < 0.05) * 1e3

    def one_of(*values):
        return values[rng.integers(len(values))]

    settings = {
        "beta_loss": one_of(0, 0, 1) if backend == "native" else one_of(0, 0, 0.5, 1, 1.5, 2),
        "sparsity": one_of(0, 0, 1, 1000, 1e6),
        "batch_size": one_of(1, 2, 8, 100),
        "n_passes": one_of(1, 3, 8),
        "init": one_of("auto", "random", "k-means++", "parts"),
        "forgetting": one_of(None, ondes.PerPass(0.0), ondes.PerPass(0.5), ondes.HalfLife(3)),
        "solver": one_of(
            None, ondes.Solver.paper(1), ondes.Solver.paper(30), ondes.Solver(40),
            ondes.Solver(5, exponent=0.7, momentum=()),
        ),
        "dictionary_exponent": one_of(0.5, 0.9, 1),
        "restarts": one_of("fresh", "warm"),
        "noise_floor": one_of(1e-15, 1e-12, 1e-3, 1),
        "prior": one_of(0, 0, 5),
        "penalty": one_of(None, None, None, ondes.GroupLog(1.0), ondes.L1(100.0)),
        "background": one_of(*[None] * 5, rng.exponential(size=n_bins) * one_of(0, 1e-6, 1e6)),
    }  # fmt: skip
    if not (settings["beta_loss"] or settings["sparsity"]):
        settings["dictionary_penalty"] = one_of(*[None] * 4, ondes.Smoothness(1e-3), LINES)
    frames = frames.astype(one_of(np.float32, np.float64))
    return frames, ondes.OnlineNMF(n_components, random_state=seed, backend=backend, **settings)


@pytest.mark.parametrize("seeds", [range(40), range(40, 80)], ids=str)
def test_any_settings_give_finite_numbers_without_a_warning(backend, seeds):
    for seed in seeds:
        frames, model = at_random(seed, backend)
        model.fit(frames)
        for found in (
            model.components_, model.statistics_.numerator, model.statistics_.denominator,
            model.statistics_.divergence, model.transform(frames), model.score_samples(frames),
        ):  # fmt: skip
            assert np.isfinite(found).all(), f"seed {seed}"
