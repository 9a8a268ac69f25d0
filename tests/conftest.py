"""What many tests share: backends, spectrograms of a known model, problems for a backend."""

from __future__ import annotations

import importlib.util
import os
import signal
from dataclasses import dataclass, replace

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # or scikit-learn skips one of its checks
# Threads of BLAS and PyTorch spin while they wait: for the small arrays of tests, a waste.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A shell lets its background jobs ignore Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from ondes.nmf import backends
from ondes.nmf.backends import reference
from ondes.nmf.divergence import LevelledFrames, level_frames
from ondes.nmf.penalties import L1, GroupLog
from ondes.nmf.problem import Problem, Solver

settings.register_profile("ondes", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("ondes")

NEEDS_KERNEL = pytest.mark.skipif(
    not backends.kernel_is_built(), reason="the compiled kernel was not built here"
)
NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed here"
)


@pytest.fixture(
    params=[
        "reference",
        pytest.param("native", marks=NEEDS_KERNEL),
        pytest.param("torch", marks=NEEDS_TORCH),
    ]
)
def backend(request):
    return request.param


def spectrogram(n_frames=400, n_bins=33, n_components=5, seed=0, noise=True):
    """Frames of a sparse nonnegative model, with the exponential noise of power spectra."""
    rng = np.random.default_rng(seed)
    dictionary = rng.gamma(0.5, size=(n_components, n_bins)) + 1e-3
    activations = rng.gamma(0.3, size=(n_frames, n_components)) + 1e-3
    frames = activations @ dictionary
    return frames * rng.exponential(size=frames.shape) if noise else frames


# ---- Problems for a backend: any shape, any option ----


@dataclass(frozen=True)
class Case:
    frames: LevelledFrames
    problem: Problem
    start: np.ndarray | None

    def objective(self, activations):
        """Divergence and penalty per bin, one float64 value per frame."""
        activations = activations.astype(np.float64)
        fit = reference.divergences(self.in_float64, activations, self.problem)
        total = fit + reference.penalty_value(activations, self.problem)
        return total / self.frames.values.shape[1]

    @property
    def in_float64(self):
        return replace(self.frames, values=self.frames.values.astype(np.float64))


def make_case(
    n_frames,
    n_bins,
    n_components,
    dtype,
    *,
    seed=0,
    solver=None,
    extreme=False,
    silences=False,
    with_start=False,
    with_background=False,
    floor=1e-8,
    **options,
):
    rng = np.random.default_rng(seed)
    dictionary = rng.gamma(0.5, size=(n_components, n_bins)) + 1e-9
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    spectra = rng.gamma(0.5, size=(n_frames, n_components)) @ dictionary
    spectra *= rng.exponential(size=spectra.shape)
    if extreme:
        spectra = 10.0 ** rng.uniform(-12, 12, size=spectra.shape)
        spectra[rng.random(spectra.shape) < 0.2] = 0
        spectra[:, 0] = np.maximum(spectra[:, 0], 1e-12)
    background = rng.random(n_bins) * spectra.mean() if with_background else None
    if silences:
        spectra[rng.random(n_frames) < 0.2] = 0
    start = None
    if with_start:
        start = (10.0 ** rng.uniform(-25, 3, size=(n_frames, n_components))).astype(dtype)
        start[rng.random(start.shape) < 0.1] = 0
    frames = level_frames(spectra.astype(dtype), background)
    solver = solver or Solver()
    problem = Problem(dictionary, floor, solver, background=background, **options)
    return Case(frames, problem, None if start is None else start[frames.active])


def solvers(max_steps):
    return st.builds(
        Solver,
        max_steps=st.integers(1, max_steps),
        exponent=st.sampled_from([1.0, 0.5, 0.7]),
        momentum=st.sampled_from([(), (0.0,), (0.0, 0.5), Solver().momentum]),
        tol=st.sampled_from([0.0, 1e-3, 3e-2]),
    )


@st.composite
def cases(draw, dtype, max_steps=6):
    n_components = draw(st.integers(1, 14))
    penalty = draw(
        st.sampled_from([None, None, L1(0.3), GroupLog(1.0), GroupLog(5.0, offset=1e-3)])
    )
    groups = draw(st.none() | st.just(np.arange(n_components) // 3))
    return make_case(
        draw(st.integers(1, 140)),
        draw(st.integers(1, 100)),
        n_components,
        dtype,
        seed=draw(st.integers(0, 2**32 - 1)),
        solver=draw(solvers(max_steps)),
        extreme=draw(st.booleans()),
        silences=draw(st.booleans()),
        with_start=draw(st.booleans()),
        with_background=draw(st.booleans()),
        floor=draw(st.sampled_from([1e-10, 1e-6, 1e-2])),
        penalty=penalty,
        groups=groups,
    )
