"""The estimator's parameters, checked once, before anything is changed."""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import Any

import numpy as np

from ondes.nmf.backends import NAMES, PRECISIONS
from ondes.nmf.divergence import Array
from ondes.nmf.forgetting import Forgetting
from ondes.nmf.penalties import ActivationPenalty, DictionaryPenalty
from ondes.nmf.problem import Problem, Solver

INITS = ("k-means++", "random")
RESTARTS = ("fresh", "warm")


def check(estimator: Any) -> None:
    """Raise a ValueError or TypeError of one sentence for the first parameter that is wrong."""
    _whole(estimator, "n_components")
    if estimator.batch_size is not None:
        _whole(estimator, "batch_size")
    _whole(estimator, "n_passes")
    _real(estimator, "dictionary_exponent", 0, 1, open_low=True)
    _real(estimator, "noise_floor", 0, 1, open_low=True)
    _real(estimator, "prior_frames", 0)
    _real(estimator, "tol", 0)
    _one_of("restarts", estimator.restarts, RESTARTS)
    _one_of("backend", estimator.backend, NAMES)
    _device(estimator)
    if isinstance(estimator.init, str):
        _one_of("init", estimator.init, INITS)
    _instance(estimator, "forgetting", Forgetting)
    _instance(estimator, "solver", Solver)
    _instance(estimator, "transform_solver", Solver)
    _instance(estimator, "penalty", ActivationPenalty)
    _instance(estimator, "dictionary_penalty", DictionaryPenalty)
    if estimator.groups is not None and np.shape(estimator.groups) != (estimator.n_components,):
        raise ValueError(
            f"groups of shape {np.shape(estimator.groups)} must hold one label for each of the "
            f"{estimator.n_components} components."
        )


def problem_of(estimator: Any, solver: Solver) -> Problem:
    """What a fitted estimator asks of its backend."""
    dictionary, groups = estimator.components_, estimator.groups
    return Problem(
        dictionary,
        estimator.noise_floor,
        solver,
        background_of(estimator, dictionary.shape[1]),
        estimator.penalty,
        None if groups is None else np.unique(groups, return_inverse=True)[1],
    )


def n_frozen(estimator: Any) -> int:
    """How many rows of the dictionary never move."""
    return 0 if estimator.frozen is None else len(np.atleast_2d(estimator.frozen))


def background_of(estimator: Any, n_bins: int) -> Array | None:
    """The known variance as float64 of shape (n_bins,), or None."""
    if estimator.background is None:
        return None
    background = np.asarray(estimator.background, dtype=np.float64)
    if background.shape != (n_bins,):
        raise ValueError(
            f"background of shape {background.shape} must have one value for each of {n_bins} bins."
        )
    if not (np.isfinite(background) & (background >= 0)).all():
        raise ValueError("background must be finite and nowhere negative.")
    return background


def known_rows(estimator: Any, n_bins: int) -> tuple[Array, Array | None]:
    """The frozen rows and those that `init` gives, None where it is to draw them.

    Returns
    -------
    arrays of shape (n_frozen, n_bins) and (n_components - n_frozen, n_bins), rows sum to one
    """
    frozen = np.empty((0, n_bins))
    if estimator.frozen is not None:
        frozen = _rows("frozen", estimator.frozen, n_bins)
    if len(frozen) > estimator.n_components:
        raise ValueError(
            f"n_components={estimator.n_components} counts the {len(frozen)} frozen rows too; "
            "give more."
        )
    if isinstance(estimator.init, str):
        return frozen, None
    given = _rows("init", estimator.init, n_bins)
    if len(given) == estimator.n_components:
        given = given[len(frozen) :]
    if len(frozen) + len(given) != estimator.n_components:
        raise ValueError(
            f"init has {len(given)} rows, but n_components={estimator.n_components} with "
            f"{len(frozen)} of them frozen."
        )
    return frozen, given


def _rows(name: str, given: Any, n_bins: int) -> Array:
    rows = np.array(given, dtype=np.float64, ndmin=2)
    if rows.ndim != 2 or rows.shape[1] != n_bins:
        raise ValueError(f"{name} of shape {rows.shape} must have {n_bins} bins in each row.")
    if not (np.isfinite(rows) & (rows >= 0)).all():
        raise ValueError(f"{name} must be finite and nowhere negative.")
    if not rows.any(axis=1).all():
        raise ValueError(f"{name} has a row of zeros, which could never sound; leave it out.")
    unit: Array = rows / rows.sum(axis=1, keepdims=True)
    return unit


def _whole(estimator: Any, name: str) -> None:
    value = getattr(estimator, name)
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a whole number.")
    if value < 1:
        raise ValueError(f"{name}={value!r} must be 1 or more.")


def _real(
    estimator: Any, name: str, low: float, high: float = np.inf, open_low: bool = False
) -> None:
    value = getattr(estimator, name)
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a number.")
    number = float(value)
    above = number > low if open_low else number >= low
    if not (above and number <= high and number < np.inf):
        bounds = f"{'(' if open_low else '['}{low:g}, {high:g}{']' if np.isfinite(high) else ')'}"
        raise ValueError(f"{name}={value!r} must lie in {bounds}.")


def _one_of(name: str, value: Any, names: tuple[str, ...]) -> None:
    if value not in names:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, names))}.")


def _device(estimator: Any) -> None:
    """`device` and `precision` are of backend="torch" alone, and nobody else may ignore them."""
    device, precision = estimator.device, estimator.precision
    for name, value in {"device": device, "precision": precision}.items():
        if value is not None and estimator.backend != "torch":
            raise ValueError(
                f"{name}={value!r} needs backend='torch', not {estimator.backend!r}: give that, "
                "or leave it out."
            )
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?|mps", str(device)):
        raise ValueError(f"device={device!r} must be 'cpu', 'cuda', 'cuda:1' and so on, or 'mps'.")
    if precision is not None:
        _one_of("precision", precision, PRECISIONS)
        if not str(device).startswith("cuda"):
            raise ValueError(
                f"precision={precision!r} is of a CUDA card: give device='cuda', or leave it out."
            )


def _instance(estimator: Any, name: str, kind: Any) -> None:
    value = getattr(estimator, name)
    if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
        raise TypeError(f"{name}={value!r} is no {kind.__name__}; give one, or None.")
