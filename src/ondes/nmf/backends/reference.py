"""The algorithm in plain NumPy, in the order of the paper: the oracle of every other backend.

Notation of the paper in brackets; our arrays are its transposes, rows are time:
`frames` [Vᵀ] (n_frames, n_bins), `dictionary` [Wᵀ] (n_components, n_bins), `activations` [Hᵀ]
(n_frames, n_components), `model` [(WH)ᵀ]. Frames are levelled (see `ondes.nmf.divergence`): ε and
the penalties are relative to a frame's level, and no frame is silent. The dictionary's own update,
which all backends share, is in `ondes.nmf.dictionary_update`.
"""

from __future__ import annotations

import numpy as np

from ondes.cores import one_blas_thread
from ondes.nmf.backends.objectives import Objective, blocks, objective
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

NAME = "reference"


def unsupported(problem: Problem) -> str | None:
    """What this backend cannot solve of `problem`: nothing."""
    return None


# ---- The objective: equation (1) ----


def divergences(frames: LevelledFrames, activations: Array, problem: Problem) -> Array:
    """d(ε + v, ε + h W), one float64 value per frame."""
    found = np.empty(len(frames))
    for rows in blocks(frames):
        found[rows] = objective(frames[rows], problem).divergences(activations[rows])
    return found


def penalty_slope(activations: Array, problem: Problem) -> Array | float:
    """ψ'(share of its group) for each activation: what a penalty adds to the denominator."""
    if problem.penalty is None:
        return 0.0
    shares = _group_shares(activations, problem)
    slopes: Array = problem.penalty.slope(shares)[:, problem.group_of].astype(activations.dtype)
    slopes /= problem.dictionary.shape[1]
    return slopes


def penalty_value(activations: Array, problem: Problem) -> Array | float:
    """Σ_groups ψ(share), and the sparsity λ Σ_k ‖w_k‖₂ h_k: one value per frame."""
    values: Array | float = 0.0
    if problem.penalty is not None:
        values = problem.penalty.value(_group_shares(activations, problem)).sum(axis=1)
    if problem.sparsity:
        values = values + activations @ problem.sparsity_slope
    return values


def _group_shares(activations: Array, problem: Problem) -> Array:
    groups = problem.group_of
    membership = np.equal.outer(groups, np.arange(groups.max() + 1))
    shares: Array = activations @ membership.astype(activations.dtype)
    shares /= problem.dictionary.shape[1]
    return shares


# ---- The inner loop: h ← argmin d(ε + v, ε + h W), Algorithm 1 line 5 ----


def fresh_start(frames: LevelledFrames, problem: Problem) -> Array:
    """Equal activations at the gain that minimises the divergence: Σ v y^(β−1) / Σ y^β."""
    return _fresh_start(objective(frames, problem), frames, problem)


def _fresh_start(terms: Objective, frames: LevelledFrames, problem: Problem) -> Array:
    start = terms.fresh_start().astype(frames.values.dtype)
    return start if start.ndim == 2 else np.repeat(start[:, None], len(problem.dictionary), axis=1)


@one_blas_thread()
def encode(
    frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
) -> Array:
    """Solve for the activations of each frame on its own.

    Parameters
    ----------
    frames : LevelledFrames of n frames
    problem : Problem
    start : array of shape (n, n_components), optional
        Activations to start from; by default each frame's own fresh start.
    n_jobs : int
        Without effect here: the products are small, and more threads of BLAS take longer.

    Returns
    -------
    array of shape (n, n_components), of the frames' dtype, in units of each frame's level
    """
    found = np.empty((len(frames), len(problem.dictionary)), dtype=frames.values.dtype)
    for rows in blocks(frames):
        found[rows] = _solve(frames[rows], problem, None if start is None else start[rows])
    return found


def _solve(frames: LevelledFrames, problem: Problem, start: Array | None) -> Array:
    solver, dtype = problem.solver, frames.values.dtype
    terms = objective(frames, problem)
    n_bins = np.broadcast_to(frames.totals, len(frames))
    sparsity = problem.sparsity_slope.astype(dtype) if problem.sparsity else dtype.type(0)

    begin = _fresh_start(terms, frames, problem) if start is None else start
    found = np.maximum(begin, ACTIVATION_FLOOR).astype(dtype)
    active = np.arange(len(found))  # the frames that are still being solved
    here = found.copy()  # where the last step of each active frame led
    point = found.copy()  # where its next step starts from
    lowest = np.full(len(found), np.inf)
    age = np.zeros(len(found), dtype=int)
    for _ in range(solver.max_steps):
        numerator, below, fit = terms.at(point, active)
        denominator = below + penalty_slope(point, problem) + sparsity
        if frames.weights is not None:  # of a component of which nothing is known
            denominator = np.maximum(denominator, LEAST_DENOMINATOR)
        step = point * power(numerator / denominator, solver.exponent)
        step = np.clip(step, dtype.type(ACTIVATION_FLOOR), dtype.type(ACTIVATION_CEILING))
        residual = np.sum(point * np.abs(numerator - denominator), axis=1) / n_bins[active]

        if solver.momentum:
            cost = fit + penalty_value(point, problem)
            risen = cost > lowest + TOLERATED_RISE * n_bins[active]
            lowest = np.minimum(lowest, cost)
            age = np.where(risen, 0, age + 1) % len(solver.momentum)
            weight = np.asarray(solver.momentum, dtype=dtype)[age][:, None]
            ahead = np.clip(step * (step / here) ** weight, ACTIVATION_FLOOR, ACTIVATION_CEILING)
            point = np.where(risen[:, None], here, ahead.astype(dtype))
            here = np.where(risen[:, None], here, step)
            done = ~risen & (residual < solver.tol)
        else:
            point = here = step
            done = residual < solver.tol

        found[active] = here
        if done.any():
            going = ~done
            active, here, point = active[going], here[going], point[going]
            lowest, age = lowest[going], age[going]
            if not len(active):
                break
    return found


# ---- The statistics of a batch: a and b of Algorithm 1, summed over its frames ----


@one_blas_thread()
def summarise(
    frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
) -> tuple[Array, Statistics]:
    """Solve for the activations, and sum what the dictionary's update needs of them.

    Takes what `encode` takes; returns the activations and the `Statistics` of these frames.
    """
    activations = encode(frames, problem, start, n_jobs)
    total = Statistics.zeros(*problem.dictionary.shape, beta=problem.divergence.beta)
    for rows in blocks(frames):
        total = total + _accumulate(frames[rows], activations[rows], problem)
    return activations, total


def _accumulate(frames: LevelledFrames, activations: Array, problem: Problem) -> Statistics:
    terms = objective(frames, problem)
    weights, unit = frames.relative_weights, frames.largest_weight
    counted = activations if weights is None else activations * weights[:, None]
    gradient = penalty_slope(activations, problem) * counted
    with np.errstate(over="ignore"):  # see `Statistics.from_sums`
        weighted, inverse = terms.sums(activations, counted)
    divergences = terms.divergences(activations)
    if frames.frame_weights is not None:
        divergences = divergences * frames.frame_weights
    return Statistics.from_sums(
        problem.dictionary,
        weighted * unit if unit != 1 else weighted,
        inverse * unit,
        penalty_gradient=gradient.sum(axis=0, dtype=np.float64) * unit,
        divergence=float(divergences.sum()),
        n_frames=frames.n_frames,
        beta=problem.divergence.beta,
    )
