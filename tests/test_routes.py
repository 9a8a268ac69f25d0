"""A parameter is used or refused, on every route by which `OnlineNMF` learns.

The table has a cell for each parameter and route. In a cell the route either learns what `fit` does
of one array, to rounding, or raises one sentence that names the parameter and where it belongs.
Other routes are added to `ROUTES`; a parameter without a value in `VALUES` fails.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import NEEDS_TORCH
from test_cli import run

import ondes
from ondes import AudioSettings, Stft
from ondes.nmf.estimator import OnlineNMF
from ondes.nmf.problem import AbsoluteFloor
from ondes.nmf.statistics import Statistics
from ondes.signal.batches import MiniBatches, Rounds
from ondes.signal.frame_reader import HostFrameReader
from ondes.signal.schedule import Schedule
from ondes.signal.segment_reader import MemoryReader
from ondes.signal.survey import describe

rng = np.random.default_rng(7)
SR, AUDIO = 8000, AudioSettings(8000, Stft(16, 8), top_db=None)
SAMPLES = (rng.standard_normal(69 * 8) * rng.uniform(0.01, 1, 69).repeat(8)).astype(np.float32)
FRAMES = rng.exponential(size=(70, 9)) * rng.exponential(size=(70, 1)) + 1e-3
FRAMES[[5, 40]] = 0  # silence, which does not count in N
ROWS = rng.exponential(size=(3, 9))
PRIOR = Statistics(rng.exponential(size=(3, 9)), rng.exponential(size=(3, 9)), 0.0, 20.0)
FLAT = {"verbose", "callback", "n_jobs", "backend", "device", "precision"}  # change no result

BASE: dict[str, Any] = {
    "n_components": 3,
    "batch_size": 16,
    "n_passes": 3,
    "random_state": 1,
    "solver": ondes.Solver(max_steps=4),
    "backend": "reference",
}
VALUES: dict[str, list[dict[str, Any]]] = {
    "n_components": [{"n_components": 2}, {"n_components": "auto"}],
    "beta_loss": [{"beta_loss": "kullback-leibler"}, {"beta_loss": 1.5}],
    "weighting": [{"weighting": "equal", "beta_loss": 1}, {"weighting": "level", "beta_loss": 1}],
    "feature_weight": [{"feature_weight": np.linspace(0, 2, 9)}],
    "sparsity": [{"sparsity": 0.5}],
    "batch_size": [{"batch_size": 30}, {"batch_size": None}],
    "n_passes": [{"n_passes": 2}, {"n_passes": None}],
    "n_init": [{"n_init": 3}],
    "init": [{"init": "random"}, {"init": "parts"}, {"init": ROWS}],
    "forgetting": [
        {"forgetting": ondes.GrowingMemory(2.0)},
        {"forgetting": ondes.HalfLife(50)},
        {"forgetting": ondes.PerPass(0.5, n_frames=60)},
        {"forgetting": ondes.PerPass(0.5)},
    ],
    "solver": [{"solver": ondes.Solver.paper(7)}, {"solver": None}],
    "transform_solver": [{"transform_solver": ondes.Solver(max_steps=3)}],
    "dictionary_exponent": [{"dictionary_exponent": 0.5}],
    "restarts": [{"restarts": "warm"}],
    "start": [{"start": "random"}, {"start": rng.exponential(size=(70, 3))}],
    "remainder": [{"remainder": "carry"}],
    "shuffle": [{"shuffle": False}],
    "penalty": [{"penalty": ondes.GroupLog(0.3)}],
    "dictionary_penalty": [{"dictionary_penalty": ondes.Smoothness(1e-3)}],
    "groups": [{"groups": ["a", "a", "b"], "penalty": ondes.GroupLog(0.3)}],
    "fixed_components": [{"fixed_components": ROWS[:1]}],
    "background": [{"background": np.linspace(0.1, 0.5, 9)}],
    "noise_floor": [{"noise_floor": 0.1}, {"noise_floor": AbsoluteFloor(0.1)}],
    "prior": [{"prior": 30.0}, {"prior": PRIOR}],
    "tol": [{"tol": 0.1}],
    "random_state": [{"random_state": 2}],
    "callback": [{"callback": "counts"}],
    "n_jobs": [{"n_jobs": 2, "backend": "auto"}],
    "backend": [{"backend": "reference"}, {"backend": "auto"}],
    "device": [{"device": "cuda:x"}],
    "precision": [{"precision": "tf32"}],
    "verbose": [{"verbose": 1}],
}


@dataclass(frozen=True)
class Learned:
    """What there is to compare after learning."""

    components: Any
    activations: Any
    n_frames: float
    n_called: int
    has_printed: bool


@dataclass(frozen=True)
class Route:
    """A way to learn from the same frames.

    `learn` takes parameters and frames. `refused` has the sentence that a cell raises, and `warned`
    that of a warning. `as_if` has what the documentation says that a parameter stands for here.
    `oracle` learns the same from the same frames; without it, it is `fit` of one array. Cells are
    parameters, or a parameter and the number of its value.
    """

    learn: Callable[[dict[str, Any], Any], OnlineNMF]
    refused: dict[Any, str] = field(default_factory=dict)
    warned: dict[Any, str] = field(default_factory=dict)
    as_if: dict[Any, dict[str, Any]] = field(default_factory=dict)
    oracle: Callable[[dict[str, Any], Any], OnlineNMF] | None = None
    tolerance: float = 1e-12

    def of(self, cells: dict[Any, Any], name: str, number: int) -> Any:
        return cells.get((name, number), cells.get(name))


def fit(settings: dict[str, Any], frames: Any) -> OnlineNMF:
    return OnlineNMF(**settings).fit(frames)


def partial_fit(settings: dict[str, Any], frames: Any) -> OnlineNMF:
    return OnlineNMF(**settings).partial_fit(frames)


def partial_fits(settings: dict[str, Any], frames: Any) -> OnlineNMF:
    """Frames as they come: the first dictionary from all of them, then batch by batch."""
    model = OnlineNMF(**settings).initialise(frames)
    size = settings["batch_size"] or len(frames)
    for first in range(0, len(frames), size):
        model.partial_fit(frames[first : first + size])
    return model


def torch_fit(settings: dict[str, Any], frames: Any) -> OnlineNMF:
    return fit(settings | {"backend": "torch"}, frames)


def learn(settings: dict[str, Any], recordings: Any, **how: Any) -> OnlineNMF:
    plain = {"forgetting": None, "beta_loss": "itakura-saito", "sparsity": 0.0, "init": "auto"}
    plain |= {"forgetting": ondes.GrowingMemory(), "weighting": "level"}
    frames = {"sr": SR, "n_fft": 16, "hop_length": 8, "fmax": SR / 2, "top_db": None}
    model = {"spectrum": "power", **plain, **settings}
    dictionary = ondes.learn(recordings, **frames, **model, **how)
    estimator = dictionary.estimator
    estimator.divergence_of_run = dictionary.history.divergence
    return estimator


def learn_samples(settings: dict[str, Any], _: Any) -> OnlineNMF:
    return learn(settings, SAMPLES)


def learn_stream(settings: dict[str, Any], _: Any) -> OnlineNMF:
    stream, raw = io.BytesIO(SAMPLES.tobytes()), ondes.RawFormat(SR, 1, "f32le")
    n_passes = 1 if settings["n_passes"] == BASE["n_passes"] else settings["n_passes"]
    return learn(settings | {"n_passes": n_passes}, stream, raw=raw)


def learn_on_cluster(settings: dict[str, Any], _: Any) -> OnlineNMF:
    with tempfile.TemporaryDirectory() as folder:
        soundfile.write(f"{folder}/a.wav", SAMPLES, SR, subtype="FLOAT")
        return learn(settings, folder, cluster="in-process", n_shards=2, round_size=1024)


def learn_by_hand(
    settings: dict[str, Any], is_cluster: bool = False, n_in_set: int | None = 70
) -> OnlineNMF:
    """The frames of the recording in the order of its schedule, one batch after the other."""
    if settings["n_components"] == "auto":  # is what its number is
        given = {name: value for name, value in settings.items() if name != "callback"}
        chosen = (learn_on_cluster if is_cluster else learn_samples)(given, None).components_
        settings = settings | {"n_components": len(chosen)}
    n_init, first = settings.get("n_init", 1), settings["random_state"]
    if n_init > 1:
        seeds = [settings | {"n_init": 1, "random_state": first + n} for n in range(n_init)]
        runs = [(learn_on_cluster if is_cluster else learn_samples)(each, None) for each in seeds]
        best = min(range(n_init), key=lambda n: runs[n].divergence_of_run)
        return learn_by_hand(seeds[best], is_cluster, n_in_set)
    sizes = {"batch_size": settings["batch_size"], "round_size": 2**20, "segment_size": 1024}
    if is_cluster:
        sizes |= {"round_size": 128, "segment_size": 16}
    order = {"random_state": settings["random_state"], "n_passes": settings["n_passes"]}
    schedule = Schedule(describe([SAMPLES], AUDIO), AUDIO, **sizes, **order)
    rounds = Rounds(schedule, lambda: HostFrameReader(MemoryReader([SAMPLES], AUDIO.stft), AUDIO))
    batches = list(MiniBatches(rounds))
    n_batches = len(batches) // settings["n_passes"]
    first = AUDIO.frames(SAMPLES) if is_cluster else np.concatenate(batches[:n_batches])
    model = OnlineNMF(**settings).initialise(first)
    for batch in batches:
        if settings.get("start") == "random":  # drawn by the learner, so `summarise` has none
            model.learn_batches(batch, n_in_set)
        else:
            model.absorb(model.summarise(batch), n_in_set)
    return model


LEARN_REFUSES = {
    "restarts": "restarts='warm' is for `OnlineNMF.fit` of an array",
    "shuffle": "shuffle=False is for `OnlineNMF.fit` of an array",
    "tol": "tol=0.1 is for `OnlineNMF.fit` of an array",
    "verbose": "verbose=1 is for `OnlineNMF.fit` of an array",
    "remainder": "remainder='carry' is for `OnlineNMF.fit` of an array",
    ("start", 1): "start of each frame is for `OnlineNMF.fit` of an array",
    ("n_passes", 1): "n_passes=None must be a whole number",
}
LEARN_DEFAULTS = {  # None is the value of the preset
    ("batch_size", 1): {"batch_size": 128},
    ("solver", 1): {"solver": ondes.Solver(max_steps=10, momentum=())},
}
NO_DEVICE = {
    "device": "device='cuda:x' needs backend='torch'",
    "precision": "precision='tf32' need",
}
SIZE_UNKNOWN = {("forgetting", 3): "PerPass.*not known.*HalfLife"}
NOT_CHOSEN = {("n_components", 1): "n_components='auto' is chosen by `fit` of an array"}
ONE_PASS = {"n_passes": 1, "shuffle": False}
NO_PASSES = (
    NO_DEVICE
    | NOT_CHOSEN
    | {
        "restarts": "restarts='warm' is of `fit`",
        "tol": "tol=0.1 ends `fit`",
        "n_init": "n_init=3 is of `fit`",
        ("start", 1): "start of each frame needs `fit`",
        "remainder": "remainder='carry' needs `fit`",
    }
)
ROUTES = {
    "fit of an array": Route(fit, NO_DEVICE),
    "fit of a list": Route(lambda settings, X: fit(settings, [X[:20], X[20:]]), NO_DEVICE),
    "fit of an iterable": Route(
        lambda settings, X: fit(settings, {0: X}.values()),
        NO_DEVICE
        | NOT_CHOSEN
        | {
            "restarts": "restarts='warm' needs an array or a list of arrays",
            ("batch_size", 1): "batch_size=None needs an array or a list of arrays",
            ("start", 1): "start of each frame needs `fit` of an array or a list",
            "remainder": "remainder='carry' needs `fit` of an array or a list",
        },
        warned=SIZE_UNKNOWN,
        as_if={("forgetting", 3): {"forgetting": ondes.PerPass(1)}}
        | {("solver", 1): {"solver": ondes.Solver()}, ("n_passes", 1): {"n_passes": 10}},
    ),
    "partial_fit": Route(
        partial_fit,
        NO_PASSES,
        warned=SIZE_UNKNOWN,
        as_if={("forgetting", 3): {"forgetting": ondes.PerPass(1)} | ONE_PASS}
        | dict.fromkeys(VALUES, ONE_PASS),
    ),
    "partial_fit, batch by batch": Route(
        partial_fits,
        NO_PASSES,
        warned=SIZE_UNKNOWN,
        as_if={("forgetting", 3): {"forgetting": ondes.PerPass(1)} | ONE_PASS}
        | dict.fromkeys(VALUES, ONE_PASS),
    ),
    "fit with PyTorch": Route(
        torch_fit,
        {"device": "device='cuda:x' must be", "precision": "precision='tf32' needs a CUDA device"},
        tolerance=1e-9,
    ),
    "learn": Route(
        learn_samples,
        NO_DEVICE | LEARN_REFUSES,
        as_if=LEARN_DEFAULTS,
        oracle=lambda settings, _: learn_by_hand(settings),
    ),
    "learn in one pass": Route(
        lambda settings, X: learn_samples(settings | {"n_passes": 1}, X),
        NO_DEVICE | {cell: LEARN_REFUSES[cell] for cell in LEARN_REFUSES if cell[0] != "n_passes"},
        as_if=LEARN_DEFAULTS,
        oracle=lambda settings, _: learn_by_hand(settings | {"n_passes": 1}),
    ),
    "learn from a stream": Route(
        learn_stream,
        NO_DEVICE
        | LEARN_REFUSES
        | {("n_passes", 0): "n_passes must be 1", "n_init": "n_init=3 must be 1"}
        | {("n_components", 1): "stream can be read only once, and n_components='auto'"},
        warned=SIZE_UNKNOWN,
        as_if=LEARN_DEFAULTS,
        oracle=lambda settings, _: learn_by_hand(settings | {"n_passes": 1}, n_in_set=None),
    ),
    "learn with PyTorch": Route(
        lambda settings, X: learn_samples(settings | {"backend": "torch"}, X),
        LEARN_REFUSES
        | {
            "device": "device='cuda:x' must be",
            "precision": "precision='tf32' needs a CUDA device",
        },
        as_if=LEARN_DEFAULTS,
        oracle=lambda settings, _: learn_by_hand(settings),
        tolerance=1e-4,
    ),
    "learn on a cluster": Route(
        learn_on_cluster,
        NO_DEVICE | LEARN_REFUSES | {("start", 0): "start='random' is for one machine"},
        as_if=LEARN_DEFAULTS,
        oracle=lambda settings, _: learn_by_hand(settings, is_cluster=True),
    ),
}
CELLS = [
    pytest.param(
        route, name, number, id=f"{route}-{name}-{number}", marks=[NEEDS_TORCH] * ("Torch" in route)
    )
    for route in ROUTES
    for name, values in VALUES.items()
    for number in range(len(values))
]


# ---- the command line ----

# Each parameter of `ondes.learn`: its option, and the value that both get; None has no option.
OPTIONS: dict[str, tuple[list[str], dict[str, Any]] | None] = {
    **dict.fromkeys((set(VALUES) | {"window", "n_workers", "round_size"}) - {"start"}),
    "preset": (["--preset", "paper", "--batch-size", "16"], {"preset": "paper", "batch_size": 16}),
    "n_components": (["-k", "3"], {"n_components": 3}),
    "sr": (["--sr", "4000"], {"sr": 4000}),
    "n_fft": (["--n-fft", "64"], {"n_fft": 64}),
    "hop_length": (["--hop-length", "8"], {"hop_length": 8}),
    "delay": (["--delay", "30ms"], {"delay": 0.03}),
    "fmax": (["--fmax", "2000"], {"fmax": 2000.0}),
    "spectrum": (["--spectrum", "power"], {"spectrum": "power"}),
    "beta_loss": (["--beta-loss", "1.5"], {"beta_loss": 1.5}),
    "sparsity": (["--sparsity", "0.5"], {"sparsity": 0.5}),
    "n_passes": (["--passes", "2"], {"n_passes": 2}),
    "random_state": (["--seed", "3"], {"random_state": 3}),
    "top_db": (["--top-db", "10"], {"top_db": 10.0}),
    "batch_size": (["--batch-size", "16"], {"batch_size": 16}),
    "raw": (["--raw", "4000:1:f32le"], {"raw": ondes.RawFormat(4000, 1, "f32le")}),
    "cluster": (["--cluster", "in-process"], {"cluster": "in-process"}),
    "n_shards": (
        ["--cluster", "in-process", "--shards", "1"],
        {"cluster": "in-process", "n_shards": 1},
    ),
    "n_jobs": (["-j", "2"], {"n_jobs": 2}),
    "backend": (["--backend", "reference"], {"backend": "reference"}),
    "device": (
        ["--backend", "torch", "--device", "cpu"],
        {"backend": "torch", "device": "cpu"},
    ),
}
# What is no setting of the result, and what other tests hold of the same name.
BESIDE = {"recordings", "dictionary", "checkpoint", "checkpoint_every", "resume", "settings"}
BESIDE |= {"progress", "on_error", "return_on_interrupt", "start"}  # --start is a time
SMALL: dict[str, Any] = {"n_components": 4, "sr": SR, "n_fft": 128}


def learn_by_command(folder: Path, *options: str) -> Any:
    """The dictionary that `ondes learn` writes, or where it refuses an option, what it says."""
    base = ["-k", 4, "--sr", SR, *([] if "--delay" in options else ["--n-fft", 128])]
    output = folder / "m.ondes"
    done = run("learn", folder / "a.f32", "-o", output, "--force", *base, *options)
    if done.returncode:
        return done.returncode, done.stderr.decode()
    return ondes.load(output)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    time = np.arange(2 * SR) / SR
    tones = np.sin(900 * time * (1 + np.floor(3 * time))) * (0.02 + np.cos(7 * time) ** 2)
    samples = 0.3 * tones + 0.01 * np.random.default_rng(0).standard_normal(len(time))
    soundfile.write(folder / "a.wav", samples, SR, subtype="FLOAT")
    (folder / "a.wav").rename(folder / "a.f32")
    return folder


def test_every_parameter_of_learn_has_an_option_or_none():
    of_learn = set(signature(ondes.learn).parameters) | set(OnlineNMF().get_params())
    assert set(OPTIONS) == of_learn - BESIDE


@pytest.mark.filterwarnings("ignore:4 components were learned")
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_an_option_is_what_its_parameter_is(name, sound):
    if OPTIONS[name] is None:
        option = f"--{name.replace('_', '-')}"
        status, said = learn_by_command(sound, option, "1")
        assert status == 2
        assert re.search(f"No such option:? '?{option}", said)
        return
    if name == "device":
        pytest.importorskip("torch", reason="PyTorch is not installed here")
    options, values = OPTIONS[name]
    settings = SMALL | values
    if name == "delay":
        settings.pop("n_fft")
    found, expected = learn_by_command(sound, *options), ondes.learn(sound / "a.f32", **settings)
    assert found.components.tobytes() == expected.components.tobytes()
    assert found.audio == expected.audio
    assert found.history.divergence == expected.history.divergence
    if name not in FLAT:
        other = ondes.learn(sound / "a.f32", **SMALL).components
        assert not np.array_equal(found.components, other)


@pytest.mark.parametrize("dictionary", [False, True])
def test_what_learning_does_not_know_is_named(dictionary):
    given = {"dictionary": ondes.learn(SAMPLES, 2, sr=SR)} if dictionary else {}
    with pytest.raises(TypeError, match=r"'sample_weight': .*`OnlineNMF\.fit` of an array"):
        ondes.learn(SAMPLES, sample_weight=np.ones(3), **given)
    with pytest.raises(TypeError, match=r"no parameter 'n_jobz': see .*`ondes\.learn`"):
        ondes.learn(SAMPLES, n_jobz=2, **given)


def learned(route: Route, settings: dict[str, Any], capsys: Any) -> Learned:
    called = []
    if settings.get("callback") is not None:
        settings = settings | {"callback": called.append}
    capsys.readouterr()
    model = route.learn(settings, FRAMES.copy())
    return Learned(
        model.components_,
        model.transform(FRAMES),
        model.statistics_.n_frames,
        len(called),
        "divergence" in capsys.readouterr().err,
    )


def test_every_parameter_is_in_the_table():
    assert set(VALUES) == set(OnlineNMF().get_params())


@pytest.mark.parametrize(("route", "name", "number"), CELLS)
def test_a_parameter_is_used_or_refused(route, name, number, capsys):
    route, settings = ROUTES[route], BASE | VALUES[name][number]
    refusal = route.of(route.refused, name, number)
    if refusal is not None:
        with pytest.raises((ValueError, AttributeError)) as error:
            route.learn(settings, FRAMES.copy())
        sentence = str(error.value.__cause__ or error.value)
        assert re.search(refusal, sentence)
        assert name in sentence
        return
    oracle = ROUTES["fit of an array"] if route.oracle is None else Route(route.oracle)
    expected = learned(oracle, settings | (route.of(route.as_if, name, number) or {}), capsys)
    warning = route.of(route.warned, name, number)
    with pytest.warns(match=warning) if warning else contextlib.nullcontext():
        found = learned(route, settings, capsys)
    for one, other in [
        (found.components, expected.components),
        (found.activations, expected.activations),
        (found.n_frames, expected.n_frames),
    ]:
        np.testing.assert_allclose(one, other, rtol=route.tolerance, atol=route.tolerance)
    assert (found.n_called, found.has_printed) == (expected.n_called, expected.has_printed)


@pytest.mark.parametrize("name", sorted(set(VALUES) - FLAT))
def test_a_value_in_the_table_changes_something(name, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = learned(ROUTES["fit of an array"], BASE, capsys)
        for values in VALUES[name]:
            other = learned(ROUTES["fit of an array"], BASE | values, capsys)
            assert not (
                plain.activations.shape == other.activations.shape
                and np.allclose(plain.activations, other.activations, rtol=1e-6, atol=1e-12)
            )
