"""The algorithm in PyTorch: what `ondes.nmf.backends.reference` does, on a CPU or a GPU.

On a CUDA device float32 frames go to the fused kernel of `ondes.nmf.backends.fused`. All else is
`solve_plainly`: tensor code that reads like the reference. Penalties are evaluated by NumPy, so
that a user's own works here too. A frame's activations depend on that frame alone except for the
rounding of matrix products, whose order of summation may depend on the number of frames.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ondes.nmf.backends.devices import Tensor, constants, memory_errors, ready, torch, widest
from ondes.nmf.backends.objectives import LEAST_SHARE
from ondes.nmf.divergence import Array, LevelledFrames
from ondes.nmf.problem import (
    ACTIVATION_CEILING,
    ACTIVATION_FLOOR,
    LEAST_DENOMINATOR,
    TOLERATED_RISE,
    Problem,
    power,
)
from ondes.nmf.statistics import Statistics
from ondes.rebatch import slices

BLOCK = 1024  # frames at a time on a CPU: temporaries stay in its caches
GPU_BLOCK = 2**24  # entries at a time on a GPU: temporaries stay under a gigabyte


class Sums(NamedTuple):
    """What the dictionary's update needs of some frames, as float64 tensors on their device."""

    weighted: Tensor  # (n_components, n_bins): Σ h · (v + ε) / y²
    inverse: Tensor  # (n_components, n_bins): Σ h / y
    penalty_gradient: Tensor  # (n_components,): Σ h · the penalty's slope
    divergence: Tensor  # ()


class TorchBackend:
    """The interface of a backend, bound to a device."""

    def __init__(self, device: str = "cpu", precision: str = "tf32") -> None:
        self.device, self.precision = torch.device(device), precision
        self.NAME = f"torch ({ready(device)})"

    def unsupported(self, problem: Problem) -> str | None:
        """What this backend cannot solve of `problem`: nothing."""
        return None

    def encode(
        self, frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
    ) -> Array:
        """Solve for the activations of each frame on its own; see `reference.encode`."""
        return self._solve(frames, problem, start, with_sums=False)[0]

    def summarise(
        self, frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
    ) -> tuple[Array, Statistics]:
        """Solve for the activations and sum the statistics; see `reference.summarise`."""
        activations, sums = self._solve(frames, problem, start, with_sums=True)
        assert sums is not None
        weighted, inverse, gradient, divergence = (each.cpu().double().numpy() for each in sums)
        return activations, Statistics.from_sums(
            problem.dictionary,
            weighted,
            inverse,
            gradient,
            float(divergence),
            frames.n_frames,
            problem.divergence.beta,
        )

    def _solve(
        self, frames: LevelledFrames, problem: Problem, start: Array | None, with_sums: bool
    ) -> tuple[Array, Sums | None]:
        given: Any = frames.values
        is_tensor = isinstance(given, Tensor)
        dtype: torch.dtype = given.dtype if is_tensor else getattr(torch, given.dtype.name)
        if dtype == torch.float64 and self.device.type == "mps":
            raise ValueError("device='mps' has no float64: give float32 frames.")

        def here(array: Array | Tensor, dtype: torch.dtype = dtype) -> Tensor:
            if isinstance(array, Tensor):
                return array.to(self.device, dtype)
            return torch.tensor(np.asarray(array), dtype=dtype, device=self.device)

        background = {}
        if problem.background is not None:
            row, mean = background_row(problem)
            background = {"background": row, "background_activation": mean / frames.level}
        with memory_errors(self.device):
            activations, sums = solve(
                here(frames.values),
                here(problem.dictionary, widest(self.device)),
                problem,
                **{name: here(array) for name, array in background.items()},
                start=None if start is None else here(start),
                weights=None if frames.weights is None else here(frames.weights),
                frame_weights=(
                    None
                    if frames.frame_weights is None
                    else here(frames.frame_weights, widest(self.device))
                ),
                precision=self.precision,
                with_sums=with_sums,
            )
            found: Any = activations if is_tensor else activations.cpu().numpy()
            return found, sums


def divergences(frames: LevelledFrames, activations: Any, problem: Problem) -> Any:
    """What `reference.divergences` does, of tensors."""
    values: Any = frames.values
    level: Any = frames.level
    dictionary = torch.tensor(problem.dictionary, dtype=values.dtype, device=values.device)
    known = values.new_full((1, 1), problem.floor)
    if problem.background is not None:
        row, mean = background_row(problem)
        spectrum = torch.tensor(row, dtype=values.dtype, device=values.device)
        known = torch.outer((mean / level).to(values.dtype), spectrum) + problem.floor
    model = activations @ dictionary + known
    terms = problem.divergence.step_terms(values + problem.floor, model, torch, cost=True)
    if frames.weights is not None:
        terms = terms.times(frames.weights)
    return terms.cost.sum(dim=1, dtype=widest(values.device))


def background_row(problem: Problem) -> tuple[Array, float]:
    """The background as a row of mean one, and that mean: over a frame's level, its activation."""
    assert problem.background is not None
    mean = float(np.mean(problem.background))
    return problem.background / (mean or 1.0), mean


def solve(
    values: Tensor,
    dictionary: Tensor,
    problem: Problem,
    *,
    background: Tensor | None = None,
    background_activation: Tensor | None = None,
    start: Tensor | None = None,
    weights: Tensor | None = None,
    frame_weights: Tensor | None = None,
    precision: str = "tf32",
    with_sums: bool,
) -> tuple[Tensor, Sums | None]:
    """Find the activations of levelled frames, by the fused kernel where it applies.

    Dictionary and background (of mean one) are tensors beside them; of `problem` count the solver,
    the floor, the penalty and its groups. Weights are those of entries and of frames: the fused
    kernel knows neither, so with weights of frames the sums are made without it.
    """
    known: dict[str, Any] = {
        "background": background,
        "background_activation": background_activation,
    }
    activations = None
    if weights is None and is_fused(problem, values):
        from ondes.nmf.backends import fused

        is_all = frame_weights is None or not with_sums
        activations, sums = fused.solve(
            values,
            dictionary,
            problem,
            precision=precision,
            start=start,
            with_sums=with_sums and is_all,
            **known,
        )
        if is_all:
            return activations, sums
    known |= {"weights": weights, "frame_weights": frame_weights, "found": activations}
    with _products(precision, values):
        return solve_plainly(values, dictionary, problem, start=start, with_sums=with_sums, **known)


@contextlib.contextmanager
def _products(precision: str, values: Tensor) -> Iterator[None]:
    """Let PyTorch's products of float32 have this precision on a CUDA device."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = values.is_cuda and precision != "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def is_fused(problem: Problem, values: Tensor) -> bool:
    """Whether `solve` has a fused kernel for these frames."""
    if not values.is_cuda or not _has_triton():
        return False
    from ondes.nmf.backends import fused

    return fused.unsupported(problem, values.dtype) is None


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def solve_plainly(
    values: Tensor,
    dictionary: Tensor,
    problem: Problem,
    *,
    background: Tensor | None = None,
    background_activation: Tensor | None = None,
    start: Tensor | None = None,
    weights: Tensor | None = None,
    frame_weights: Tensor | None = None,
    found: Tensor | None = None,
    with_sums: bool,
) -> tuple[Tensor, Sums | None]:
    """What `solve` does, in plain tensor code, block by block; activations may be found already."""
    n_bins = values.shape[1]
    first = _even_start(dictionary, problem).to(values.dtype)
    dictionary = dictionary.to(values.dtype)
    is_found = found is not None
    if found is None:
        found = values.new_empty((len(values), len(dictionary)))
    unit, relative = None, None
    if frame_weights is not None:
        unit = frame_weights.amax() if len(values) else frame_weights.new_ones(())
        relative = (frame_weights / unit).to(values.dtype)
    total = _no_sums(dictionary) if with_sums else None
    size = BLOCK if values.device.type == "cpu" else max(BLOCK, GPU_BLOCK // n_bins)
    for rows in slices(len(values), size):
        target = values[rows] + problem.floor
        known = target.new_full((1, 1), problem.floor)
        if background is not None and background_activation is not None:
            known = torch.outer(background_activation[rows], background) + problem.floor
        each = None if weights is None else weights[rows]
        if start is None:
            if each is None:
                gain = _best_gain(target, first, problem.divergence.beta)
                here = (n_bins / len(dictionary) * gain).expand(-1, len(dictionary))
            else:
                here = _start_of_known(target, each, dictionary, problem)
        else:
            here = start[rows]
        if not is_found:
            found[rows] = _descend(target, known, dictionary, problem, here, each)
        if total is not None:
            counts = None if relative is None else relative[rows]
            part = _accumulate(target, known, dictionary, problem, found[rows], each, counts)
            total = Sums(*(one + other for one, other in zip(total, part, strict=True)))
    if total is not None and unit is not None:
        total = Sums(*(sums * unit for sums in total))
    return found, total


# ---- The inner loop, as in `reference` ----


def _even_start(dictionary: Tensor, problem: Problem) -> Tensor:
    """The model of equal activations that share a frame's energy."""
    n_components, n_bins = dictionary.shape
    return n_bins / n_components * dictionary.sum(dim=0) + problem.floor


def _start_of_known(
    target: Tensor, weights: Tensor, dictionary: Tensor, problem: Problem
) -> Tensor:
    n_components, n_bins = dictionary.shape
    beta = problem.divergence.beta
    shares = (weights @ dictionary.T) / weights.mean(dim=1, keepdim=True)
    first = n_bins / n_components / shares.clamp(min=LEAST_SHARE)
    model = first @ dictionary + problem.floor
    above = (weights * target * model ** (beta - 1)).sum(dim=1, keepdim=True)
    return first * (above / (weights * model**beta).sum(dim=1, keepdim=True))


def _best_gain(target: Tensor, model: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return (target / model).sum(dim=1, keepdim=True) / target.shape[1]
    return (target @ model ** (beta - 1) / (model**beta).sum())[:, None]


def _descend(
    target: Tensor,
    known: Tensor,
    dictionary: Tensor,
    problem: Problem,
    start: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    solver = problem.solver
    n_bins: Tensor | int = dictionary.shape[1]
    if weights is not None:
        n_bins = weights.sum(dim=1, dtype=widest(target.device))
    found = start.clamp(min=ACTIVATION_FLOOR)
    known = known.expand_as(target)
    momentum = constants(solver.momentum, found.dtype, found.device)
    active = torch.arange(len(found), device=found.device)
    here, point = found, found
    lowest = torch.full((len(found),), torch.inf, dtype=widest(found.device), device=found.device)
    age = torch.zeros_like(active)
    sparsity: Tensor | float = 0.0
    if problem.sparsity:
        sparsity = problem.sparsity * dictionary.square().sum(dim=1).sqrt()
    for _ in range(solver.max_steps):
        model = torch.addmm(known, point, dictionary)
        terms = problem.divergence.step_terms(target, model, torch, cost=bool(solver.momentum))
        if weights is not None:
            terms = terms.times(weights)
        numerator = terms.data @ dictionary.T
        denominator = terms.model @ dictionary.T + _penalty_slope(point, problem) + sparsity
        if weights is not None:
            denominator = denominator.clamp(min=LEAST_DENOMINATOR)
        step = point * power(numerator / denominator, solver.exponent, torch)
        step = step.clamp(ACTIVATION_FLOOR, ACTIVATION_CEILING)
        residual = (point * (numerator - denominator).abs()).sum(dim=1) / n_bins

        going_down = torch.ones_like(active, dtype=torch.bool)
        if solver.momentum:
            fit = terms.cost.sum(dim=1, dtype=lowest.dtype)
            cost = fit + _penalty_value(point, problem)
            if problem.sparsity:
                cost = cost + point @ sparsity
            going_down = cost <= lowest + TOLERATED_RISE * n_bins
            lowest = torch.minimum(lowest, cost)
            age = torch.where(going_down, age + 1, 0) % len(momentum)
            ahead = step * (step / here) ** momentum[age][:, None]
            down = going_down[:, None]
            ahead = ahead.clamp(ACTIVATION_FLOOR, ACTIVATION_CEILING)
            point = torch.where(down, ahead, here)
            here = torch.where(down, step, here)
        else:
            point = here = step

        if solver.tol == 0:
            found = here
            continue
        found = found.index_copy(0, active, here)
        going = ~(going_down & (residual < solver.tol))
        if not going.all():
            active, here, point, age = active[going], here[going], point[going], age[going]
            target, known, lowest = target[going], known[going], lowest[going]
            if weights is not None and isinstance(n_bins, Tensor):
                weights, n_bins = weights[going], n_bins[going]
            if not len(active):
                break
    return found


# ---- The statistics, as in `reference` ----


def _accumulate(
    target: Tensor,
    known: Tensor,
    dictionary: Tensor,
    problem: Problem,
    activations: Tensor,
    weights: Tensor | None = None,
    frame_weights: Tensor | None = None,
) -> Sums:
    wide = widest(target.device)
    model = torch.addmm(known.expand_as(target), activations, dictionary)
    terms = problem.divergence.step_terms(target, model, torch, cost=True)
    if weights is not None:
        terms = terms.times(weights)
    counted, cost = activations, terms.cost
    if frame_weights is not None:
        counted, cost = (each * frame_weights[:, None] for each in (counted, cost))
    gradient = _penalty_slope(activations, problem) * counted
    return Sums(
        weighted=(counted.T @ terms.data).to(wide),
        inverse=(counted.T @ terms.model).to(wide),
        penalty_gradient=gradient.sum(dim=0, dtype=wide),
        divergence=cost.sum(dtype=wide),
    )


def _no_sums(dictionary: Tensor) -> Sums:
    zeros = torch.zeros_like(dictionary, dtype=widest(dictionary.device))
    return Sums(zeros, zeros, zeros[:, 0], zeros[0, 0])


def _penalty_slope(activations: Tensor, problem: Problem) -> Tensor | float:
    if problem.penalty is None:
        return 0.0
    slopes = _by_numpy(problem.penalty.slope, _group_shares(activations, problem))
    groups = torch.tensor(problem.group_of, device=slopes.device)
    each: Tensor = slopes[:, groups] / problem.dictionary.shape[1]
    return each


def _penalty_value(activations: Tensor, problem: Problem) -> Tensor | float:
    if problem.penalty is None:
        return 0.0
    return _by_numpy(problem.penalty.value, _group_shares(activations, problem)).sum(dim=1)


def _group_shares(activations: Tensor, problem: Problem) -> Tensor:
    groups = problem.group_of
    membership = activations.new_tensor(np.equal.outer(groups, np.arange(groups.max() + 1)))
    shares: Tensor = activations @ membership / problem.dictionary.shape[1]
    return shares


def _by_numpy(function: Callable[[Array], Array], given: Tensor) -> Tensor:
    return given.new_tensor(function(given.cpu().numpy()))
