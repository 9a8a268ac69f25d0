"""Backends: modules with the same few functions, each tested against `reference`.

A backend has `encode` (the activations of frames), `summarise` (the same, with the statistics of
the batch) and `unsupported` (a sentence on what it cannot solve, or None). `torch` is not a module
but an object with the same functions, since it is bound to a device.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Protocol

from ondes.nmf.divergence import Array, LevelledFrames
from ondes.nmf.problem import Problem
from ondes.nmf.statistics import Statistics

NAMES = ("auto", "native", "reference", "torch")
PRECISIONS = ("tf32", "ieee", "bf16")
_LARGE = 1e10  # multiplications in one call: seconds of NumPy, worth a warning

_warned_of_missing_kernel = False


class Backend(Protocol):
    """The interface of a backend; `ondes.nmf.backends.reference` documents it."""

    NAME: str

    def unsupported(self, problem: Problem) -> str | None:
        """One sentence on what this backend cannot solve of `problem`, or None."""
        ...

    def encode(
        self, frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
    ) -> Array:
        """The activations of each frame on its own."""
        ...

    def summarise(
        self, frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
    ) -> tuple[Array, Statistics]:
        """The activations and the statistics of these frames."""
        ...


def kernel_is_built() -> bool:
    """Whether this installation has the compiled kernel."""
    native = importlib.import_module("ondes.nmf.backends.native")
    return bool(native.available())


def choose(
    name: str,
    problem: Problem,
    n_frames: int = 0,
    device: str | None = None,
    precision: str | None = None,
) -> Backend:
    """The backend called `name`, or `reference`, with a warning, if that cannot solve `problem`.

    `auto` is `native` where it was built, and changes to `reference` without a warning. `n_frames`
    only decides whether the kernel's absence is worth one. `device` and `precision` are those of
    `torch`: by default the CPU, and TF32 on a CUDA device.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.nmf.problem import Solver
    >>> choose("reference", Problem(np.ones((1, 4)) / 4, 1e-12, Solver())).NAME
    'reference'
    """
    if name not in NAMES:
        raise ValueError(f"backend={name!r} is not one of {', '.join(NAMES)}.")
    chosen = name
    if name == "auto":
        chosen = "native" if kernel_is_built() else "reference"
        if chosen == "reference":
            _warn_of_missing_kernel(problem, n_frames)
    backend = _load(chosen, device, precision)
    obstacle = backend.unsupported(problem)
    if obstacle is None:
        return backend
    if name != "auto":
        warnings.warn(f"{obstacle} NumPy is used instead.", RuntimeWarning, stacklevel=4)
    return _load("reference")


def _load(name: str, device: str | None = None, precision: str | None = None) -> Backend:
    if name != "torch":
        return importlib.import_module(f"ondes.nmf.backends.{name}")
    from ondes.nmf.backends.torch import TorchBackend

    return TorchBackend(device or "cpu", precision or "tf32")


def _warn_of_missing_kernel(problem: Problem, n_frames: int) -> None:
    global _warned_of_missing_kernel
    work = 6.0 * n_frames * problem.dictionary.size * problem.solver.max_steps
    if work > _LARGE and not _warned_of_missing_kernel:
        _warned_of_missing_kernel = True
        warnings.warn(
            "The compiled kernel of ondes was not built, and NumPy is slower on so many frames; "
            "install a C++ compiler and reinstall ondes.",
            RuntimeWarning,
            stacklevel=4,
        )
