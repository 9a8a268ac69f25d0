"""Encoding: the activations of frames under a dictionary that stays as it is.

Level the frames, choose a backend, solve, and put the silent frames back: learning, `transform`,
`score` and separation all do it here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, cast

import numpy as np

from ondes.cores import n_threads
from ondes.nmf import backends
from ondes.nmf.backends import NAMES, PRECISIONS, Backend, reference, tensors
from ondes.nmf.divergence import Array, LevelledFrames, level_frames
from ondes.nmf.problem import Problem
from ondes.nmf.statistics import Statistics
from ondes.rebatch import slices

__all__ = ["Compute", "Encoding", "encode", "encode_blocks", "summarise"]

TENSOR_BLOCK = 2**25  # entries of a tensor at a time


@dataclass(frozen=True)
class Compute:
    """Which backend computes, on which device, at which precision, with how many threads.

    Parameters
    ----------
    backend : {"auto", "native", "reference", "torch"}
        "auto" is the compiled kernel, or NumPy where that was not built.
    device : {"cpu", "cuda", "cuda:1", "mps"}, optional
        Of backend="torch"; None is "cpu". A GPU is only used on request.
    precision : {"tf32", "ieee", "bf16"}, optional
        Of the matrix products of float32 frames on a CUDA device; None is "tf32".
    n_jobs : int, optional
        Threads of the compiled kernel; None is one, -1 all.

    Examples
    --------
    >>> Compute("reference", n_jobs=2).n_threads
    2
    """

    backend: str = "auto"
    device: str | None = None
    precision: str | None = None
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        if self.n_jobs is not None and not isinstance(self.n_jobs, Integral):
            raise TypeError(f"n_jobs={self.n_jobs!r} must be a whole number, or None.")
        if self.backend not in NAMES:
            names = ", ".join(map(repr, NAMES))
            raise ValueError(f"backend={self.backend!r} must be one of {names}.")
        for name, value in {"device": self.device, "precision": self.precision}.items():
            if value is not None and self.backend != "torch":
                raise ValueError(
                    f"{name}={value!r} needs backend='torch', not {self.backend!r}: give that, or "
                    "leave it out."
                )
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?|mps", str(self.device)):
            raise ValueError(
                f"device={self.device!r} must be 'cpu', 'cuda', 'cuda:1' and so on, or 'mps'."
            )
        if self.precision is not None and self.precision not in PRECISIONS:
            names = ", ".join(map(repr, PRECISIONS))
            raise ValueError(f"precision={self.precision!r} must be one of {names}.")
        if self.precision is not None and not str(self.device).startswith("cuda"):
            raise ValueError(
                f"precision={self.precision!r} needs a CUDA device: give device='cuda', or leave "
                "it out."
            )

    @property
    def n_threads(self) -> int:
        """Threads of the compiled kernel; their number does not change the result."""
        return n_threads(self.n_jobs)

    def in_full_precision(self) -> Compute:
        """The same with float32's digits on a CUDA device, unless a precision was chosen.

        Examples
        --------
        >>> Compute("torch", "cuda").in_full_precision().precision
        'ieee'
        """
        if self.precision is not None or not str(self.device).startswith("cuda"):
            return self
        return replace(self, precision="ieee")

    def backend_for(self, problem: Problem, n_frames: int = 0) -> Backend:
        """The backend that solves `problem`: see `ondes.nmf.backends.choose`."""
        return backends.choose(self.backend, problem, n_frames, self.device, self.precision)


@dataclass(frozen=True)
class Encoding:
    """Frames and their activations: tensors where the frames were given as one.

    Attributes
    ----------
    levelled : LevelledFrames
        The n_active non-silent ones of n_frames frames.
    activations : array of shape (n_active, n_components), in units of each frame's level
    problem : Problem
    backend : str
        The name of the backend that computed them.
    """

    levelled: LevelledFrames
    activations: Array
    problem: Problem
    backend: str

    def full(self) -> Array:
        """Activations in the data's units, shape (n_frames, n_components), zero in silence."""
        scaled: Any = self.activations * self.levelled.level[:, None]
        dtype: Any = self.activations.dtype
        is_tensor = tensors.is_tensor(scaled)
        return self.levelled.spread(scaled.to(dtype) if is_tensor else scaled.astype(dtype))

    def divergences(self) -> Array:
        """The divergence of each frame from its model, shape (n_frames,), zero in silence."""
        if tensors.is_tensor(self.activations):
            from ondes.nmf.backends.torch import divergences
        else:
            divergences = reference.divergences
        each = divergences(self.levelled, self.activations, self.problem)
        return self.levelled.spread(each)

    def scores(self) -> Array:
        """Minus the divergence per bin that is not missing, weighed by the frame's level.

        Shape (n_frames,), zero in silence.
        """
        if tensors.is_tensor(self.activations):
            from ondes.nmf.backends.torch import divergences
        else:
            divergences = reference.divergences
        levelled = self.levelled
        each: Any = divergences(levelled, self.activations, self.problem) / levelled.totals
        if levelled.frame_weights is not None:
            each = each * levelled.frame_weights
        return levelled.spread(-each)


def encode(frames: Array, problem: Problem, compute: Compute | None = None) -> Encoding:
    """Solve for the activations of each frame on its own.

    Parameters
    ----------
    frames : array of shape (n_frames, n_bins), nonnegative, float32 or float64
        Or a tensor, where the backend is PyTorch.
    problem : Problem
    compute : Compute, optional

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.nmf.problem import Solver
    >>> problem = Problem(np.array([[0.5, 0.5]]), 1e-12, Solver())
    >>> encode(np.array([[3.0, 3.0], [0.0, 0.0]]), problem).full().round(6)
    array([[6.],
           [0.]])
    """
    compute = compute or Compute()
    _check_dictionary(problem)
    return _encode(frames, problem, compute.backend_for(problem, len(frames)), compute.n_threads)


def encode_blocks(
    frames: Array, problem: Problem, compute: Compute | None = None, size: int | None = None
) -> Iterator[tuple[slice, Encoding]]:
    """Encode long inputs, `size` frames at a time: memory beyond the input stays constant.

    Yields the rows of each block and its `Encoding`; parameters are those of `encode`. By default
    blocks of an array have 4096 frames, and those of a tensor as many as occupy a GPU.
    """
    compute = compute or Compute()
    _check_dictionary(problem)
    backend = compute.backend_for(problem, len(frames))
    if size is None:
        is_tensor = tensors.is_tensor(frames)
        size = max(4096, TENSOR_BLOCK // frames.shape[1]) if is_tensor else 4096
    for rows in slices(len(frames), size):
        yield rows, _encode(frames[rows], problem, backend, compute.n_threads)


def summarise(
    frames: Array,
    problem: Problem,
    compute: Compute,
    start: Array | None = None,
    sample_weight: Array | None = None,
) -> tuple[Encoding, Statistics]:
    """Encode frames, and sum what the dictionary's update needs of them."""
    _check_dictionary(problem)
    levelled = _level(frames, problem, sample_weight)
    backend = compute.backend_for(problem, len(frames))
    if start is not None:
        start = start[levelled.active]
    activations: Any = None
    statistics: Statistics | None = None
    for rows, part in _alike(levelled):
        begin = None if start is None else start[rows]
        found, sums = backend.summarise(part, problem, begin, compute.n_threads)
        activations = _put(activations, rows, found, len(levelled))
        statistics = sums if statistics is None else statistics + sums
    assert statistics is not None
    return Encoding(levelled, activations, problem, backend.NAME), statistics


def _check_dictionary(problem: Problem) -> None:
    if not np.isfinite(problem.dictionary).all():
        raise ValueError("The dictionary holds numbers that are not finite; learn it again.")


def _encode(frames: Array, problem: Problem, backend: Backend, n_threads: int) -> Encoding:
    levelled = _level(frames, problem)
    activations: Any = None
    for rows, part in _alike(levelled):
        found = backend.encode(part, problem, None, n_threads)
        activations = _put(activations, rows, found, len(levelled))
    return Encoding(levelled, activations, problem, backend.NAME)


def _alike(levelled: LevelledFrames) -> Iterator[tuple[Any, LevelledFrames]]:
    """Frames without missing entries, and those with some: each is solved as it is alone."""
    if levelled.weights is None or not len(levelled):
        yield slice(None), levelled
        return
    whole = (levelled.weights == 1).all(axis=1)
    if not whole.any():
        yield slice(None), levelled
        return
    yield whole, replace(levelled[whole], weights=None)
    if not whole.all():
        yield ~whole, levelled[~whole]


def _put(before: Any, rows: Any, found: Any, n_frames: int) -> Any:
    if len(found) == n_frames:
        return found
    if before is None:
        before = _zeros(found, (n_frames, found.shape[1]))
    before[rows] = found
    return before


def _zeros(like: Any, shape: tuple[int, int]) -> Any:
    return like.new_zeros(shape) if tensors.is_tensor(like) else np.zeros(shape, like.dtype)


def _level(frames: Array, problem: Problem, sample_weight: Array | None = None) -> LevelledFrames:
    if problem.added:
        frames = frames + problem.added
    if tensors.is_tensor(frames):
        options = problem.background, problem.feature_weight, problem.level_exponent
        return tensors.level(cast(Any, frames), *options)
    return level_frames(
        frames, problem.background, problem.feature_weight, sample_weight, problem.level_exponent
    )
