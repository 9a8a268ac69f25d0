"""Who does the work: modules with the same few functions, each tested against `reference`.

A backend offers `encode` (the activations of frames), `summarise` (the same, with the statistics of
the batch) and `unsupported` (a sentence where a problem is beyond it, else None). `torch` is no
module but an object with the same functions, since it is bound to a device.
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
_LARGE = 1e10  # multiplications in one call: seconds of NumPy, worth a word about the kernel

_warned_of_missing_kernel = False


class DeviceError(RuntimeError):
    """A device that is not there or cannot be used, in one sentence."""


class Backend(Protocol):
    """The contract; `ondes.nmf.backends.reference` spells it out."""

    NAME: str

    def unsupported(self, problem: Problem) -> str | None:
        """One sentence on what of `problem` is beyond this backend, or None."""
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
    """Whether the compiled kernel came with this installation."""
    native = importlib.import_module("ondes.nmf.backends.native")
    return bool(native.available())


def choose(
    name: str,
    problem: Problem,
    n_frames: int = 0,
    device: str | None = None,
    precision: str | None = None,
) -> Backend:
    """The backend called `name`, or `reference` where `problem` is beyond it: then it says so.

    `auto` is `native` where it was built, and takes `reference` without a word. `n_frames` only
    decides whether the kernel's absence is worth a warning. `device` and `precision` are those of
    `torch`: by default the CPU, and TF32 where that is a CUDA card.
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
        warnings.warn(f"{obstacle} NumPy does this instead.", RuntimeWarning, stacklevel=4)
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
            "The compiled kernel of ondes was not built, so NumPy does this large job more slowly; "
            "install a C++ compiler and reinstall ondes.",
            RuntimeWarning,
            stacklevel=4,
        )
