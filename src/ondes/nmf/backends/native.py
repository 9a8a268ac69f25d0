"""The fused C++ kernel: what `ondes.nmf.backends.reference` does, frames in the SIMD lanes.

Built for several instruction sets; the best that the machine runs is used, or the one that the
environment variable ONDES_ISA names. Neither activations nor statistics depend on `n_jobs`, and a
frame's activations depend on that frame alone, bit for bit.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import numpy as np

from ondes.cores import n_cores
from ondes.nmf.backends import reference
from ondes.nmf.backends.objectives import sparse_sums
from ondes.nmf.divergence import Array, LevelledFrames
from ondes.nmf.penalties import L1, GroupLog
from ondes.nmf.problem import ACTIVATION_CEILING, ACTIVATION_FLOOR, TOLERATED_RISE, Problem
from ondes.nmf.sparse import SparseFrames
from ondes.nmf.statistics import Statistics

NAME = "native"
SUMS = ("weighted", "inverse", "penalty_gradient", "divergence")


def available() -> bool:
    """Whether the kernel was built and this machine runs it."""
    try:
        isa()
    except ImportError:
        return False
    return True


def isa() -> str:
    """The instruction set in use: v2, v3 or v4 of x86-64, or the baseline of another machine."""
    runnable: list[str] = _kernel().instruction_sets()
    wanted = os.environ.get("ONDES_ISA") or (runnable[-1] if runnable else "v2")
    if wanted not in runnable:
        raise ImportError(
            f"The native backend cannot use the instruction set {wanted!r}: "
            f"this machine runs {', '.join(runnable) or 'none that it is built for'}."
        )
    return wanted


def unsupported(problem: Problem) -> str | None:
    """What this backend cannot solve of `problem`, as a sentence, or None."""
    if problem.divergence.beta not in (0, 1):
        return (
            "The native backend supports the divergences of Itakura-Saito and Kullback-Leibler, "
            f"not that of β = {problem.divergence.beta:g}."
        )
    kind = type(problem.penalty)
    if problem.penalty is None or kind in (L1, GroupLog):
        return None
    return f"The native backend supports the penalties L1 and GroupLog, not {kind.__name__}."


def encode(
    frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
) -> Array:
    """Solve for the activations of each frame on its own; see `reference.encode`."""
    if isinstance(frames.values, SparseFrames):
        return _solve_sparse(frames, problem, start, n_jobs, {})
    return _solve(frames, problem, start, n_jobs, {})


def summarise(
    frames: LevelledFrames, problem: Problem, start: Array | None = None, n_jobs: int = 1
) -> tuple[Array, Statistics]:
    """Solve for the activations and sum the statistics; see `reference.summarise`."""
    if isinstance(frames.values, SparseFrames):
        return _summarise_sparse(frames, problem, start, n_jobs)
    n_components, n_bins = problem.dictionary.shape
    same_in_all_bins = problem.divergence.beta == 1 and frames.weights is None
    unit = frames.largest_weight
    sums = {
        "weighted": np.zeros((n_components, n_bins)),
        "inverse": np.zeros((n_components, 1 if same_in_all_bins else n_bins)),
        "penalty_gradient": np.zeros(n_components),
        "divergence": np.zeros(1),
    }
    activations = _solve(frames, problem, start, n_jobs, sums)
    divergence = float(sums.pop("divergence")[0])
    return activations, Statistics.from_sums(
        problem.dictionary,
        sums["weighted"] * unit,
        np.broadcast_to(sums["inverse"] * unit, problem.dictionary.shape),
        sums["penalty_gradient"] * unit,
        divergence * unit,
        frames.n_frames,
        problem.divergence.beta,
    )


def sum_pairs(earlier: Array, later: Array, turn: Array, turn_later: Array, shapes: Array) -> Array:
    """Sums over pairs of neighbouring bins; see `ondes.separation.overlap_energy`.

    Parameters
    ----------
    earlier, later : complex64 arrays of shape (n_rows, n_channels, n_bins)
    turn, turn_later : complex64 arrays of shape (n_bins,)
        Factors of both.
    shapes : float32 array of shape (n_distances, n_bins, n_signals)

    Returns
    -------
    float32 array of shape (n_rows, n_signals)
    """
    sums = np.empty((len(earlier), shapes.shape[2]), dtype=np.float32)
    _kernel().sum_pairs(isa(), earlier, later, turn, turn_later, shapes, sums)
    return sums


def recur(gates: Array, bias: Array, along_bands: bool) -> Array:
    """A gated recurrence over frames or bands; see `ondes.models.band_network`.

    Parameters
    ----------
    gates : float32 array of shape (n_frames, n_bands, 3, n_states)
        Of z, c and g.
    bias : float32 array of shape (3, n_states)
    along_bands : bool

    Returns
    -------
    float32 array of shape (n_frames, n_bands, n_states)
    """
    out = np.empty((*gates.shape[:2], gates.shape[3]), dtype=np.float32)
    _kernel().recur(isa(), gates, bias, along_bands, out)
    return out


def _summarise_sparse(
    frames: LevelledFrames, problem: Problem, start: Array | None, n_jobs: int
) -> tuple[Array, Statistics]:
    values: SparseFrames = frames.values
    sums = {
        "ratios": np.empty_like(values.values),
        "logs": np.empty(len(frames)),
        "weighted": np.zeros(problem.dictionary.shape),
        "weights": frames.relative_weights,
    }
    activations = _solve_sparse(frames, problem, start, n_jobs, sums)
    weights, unit = frames.relative_weights, frames.largest_weight
    counted = activations if weights is None else activations * weights[:, None]
    slopes = reference.penalty_slope(activations, problem) * counted
    weighted, inverse = sparse_sums(sums["weighted"], activations, problem, weights)
    # Σ v log v / y over the entries that are not zero, and Σ y − v over all.
    row_sums = problem.dictionary.sum(axis=1)
    if weights is None:
        divergence = sums["logs"].sum() + activations.sum(axis=0, dtype=np.float64) @ row_sums
        divergence -= values.values.sum(dtype=np.float64)
        if problem.background is not None:
            divergence += np.sum(1 / frames.level) * problem.background.sum()
    else:
        each = sums["logs"] + activations.astype(np.float64) @ row_sums
        each -= values.sums(values.values)
        if problem.background is not None:
            each += problem.background.sum() / frames.level
        divergence = each @ frames.frame_weights
    return activations, Statistics.from_sums(
        problem.dictionary,
        weighted * unit,
        inverse * unit,
        penalty_gradient=slopes.sum(axis=0, dtype=np.float64) * unit,
        divergence=float(divergence),
        n_frames=frames.n_frames,
        beta=problem.divergence.beta,
    )


def _solve_sparse(
    frames: LevelledFrames,
    problem: Problem,
    start: Array | None,
    n_jobs: int,
    sums: dict[str, Any],
) -> Array:
    values: SparseFrames = frames.values
    dtype = values.dtype
    activations = np.empty((len(frames), len(problem.dictionary)), dtype=dtype)
    background = _background(frames, problem)
    spectrum = background["background"]
    _kernel().solve_sparse(
        starts=values.matrix.indptr.astype(np.int64),
        bins=values.bins.astype(np.int32, copy=False),
        values=values.values,
        spectrum=None if spectrum is None else spectrum.astype(dtype),
        background=background["background_activation"],
        **_settings(problem, activations, start, n_jobs),
        **(dict.fromkeys(("ratios", "logs", "weighted", "weights")) | sums),
    )
    return activations


def _solve(
    frames: LevelledFrames,
    problem: Problem,
    start: Array | None,
    n_jobs: int,
    sums: dict[str, Array],
) -> Array:
    activations = np.empty((len(frames), len(problem.dictionary)), dtype=frames.values.dtype)
    _kernel().solve(
        values=np.ascontiguousarray(frames.values),
        weights=None if frames.weights is None else np.ascontiguousarray(frames.weights),
        frame_weights=frames.relative_weights,
        beta=problem.divergence.beta,
        **_background(frames, problem),
        **_settings(problem, activations, start, n_jobs),
        **(dict.fromkeys(SUMS) | sums),
    )
    return activations


def _settings(
    problem: Problem, activations: Array, start: Array | None, n_jobs: int
) -> dict[str, Any]:
    """What both kinds of frames need."""
    solver = problem.solver
    return {
        "isa": isa(),
        "dictionary": np.ascontiguousarray(problem.dictionary, dtype=np.float64),
        "floor": problem.floor,
        "activation_floor": ACTIVATION_FLOOR,
        "activation_ceiling": ACTIVATION_CEILING,
        "tolerated_rise": TOLERATED_RISE,
        "activations": activations,
        "start": None if start is None else np.ascontiguousarray(start, dtype=activations.dtype),
        "max_steps": solver.max_steps,
        "exponent": solver.exponent,
        "momentum": solver.momentum,
        "tol": solver.tol,
        "groups": np.ascontiguousarray(problem.group_of, dtype=np.int32),
        "sparsity": problem.sparsity,
        "n_threads": n_jobs if n_jobs > 0 else n_cores(),
        **_penalty(problem),
    }


def _background(frames: LevelledFrames, problem: Problem) -> dict[str, Any]:
    """The background as one more row of the dictionary, of mean one, whose activation is known."""
    mean = 0.0 if problem.background is None else float(np.mean(problem.background))
    if problem.background is None or mean == 0:
        return {"background": None, "background_activation": None}
    activation = (mean / frames.level).astype(frames.values.dtype)
    row = np.ascontiguousarray(problem.background, dtype=np.float64) / mean
    return {"background": row, "background_activation": activation}


def _penalty(problem: Problem) -> dict[str, Any]:
    match problem.penalty:
        case L1(strength):
            return {"penalty": "l1", "strength": strength, "offset": 0.0}
        case GroupLog(strength, offset):
            return {"penalty": "group_log", "strength": strength, "offset": offset}
    return {"penalty": "none", "strength": 0.0, "offset": 0.0}


def _kernel() -> ModuleType:
    try:
        return importlib.import_module("ondes.nmf.backends._native")
    except ImportError as error:
        raise ImportError(
            "The native backend was not built here: reinstall ondes where there is a C++ compiler, "
            "or use backend='reference'."
        ) from error
