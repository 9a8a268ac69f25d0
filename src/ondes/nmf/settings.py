"""The estimator's parameters, typed and checked once, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from ondes.nmf.divergence import Array, BetaDivergence
from ondes.nmf.encoding import Compute
from ondes.nmf.forgetting import Forgetting, GrowingMemory
from ondes.nmf.penalties import ActivationPenalty, DictionaryPenalty
from ondes.nmf.problem import (
    LARGEST_BACKGROUND,
    TRANSFORM_SOLVER,
    AbsoluteFloor,
    Problem,
    Solver,
)
from ondes.nmf.statistics import Statistics

__all__ = ["Settings"]

INITS = ("auto", "k-means++", "parts", "random")
WEIGHTINGS = ("level", "equal")
RESTARTS = ("fresh", "warm")
STARTS = ("even", "random")
REMAINDERS = ("update", "carry")
LARGEST_SPARSE_FLOOR = 1e-9  # more than rounding: it would have to be computed with everywhere
LOWEST_FLOOR = 1e-15  # v / y² stays within float32's range
# The steps of a pass: see `Settings.in_pass`.
SMALL_SET, EARLY_FRAMES, MOST_STEPS_IN_PASS = 16_384, 2000, 40
LARGEST_WEIGHT = 1e12
LARGEST_COUNT = 2**53  # of frames: a float64 holds it
PASSES, UPDATES = 10, 60  # by default, and at least
DEFAULTS = {
    "forgetting": GrowingMemory(),
    "solver": Solver(),
    "transform_solver": TRANSFORM_SOLVER,
}


@dataclass(frozen=True)
class Settings:
    """The parameters of `OnlineNMF`, with their defaults filled in.

    Raises a ValueError or TypeError of one sentence for the first parameter that is invalid.

    Examples
    --------
    >>> from ondes.nmf.estimator import OnlineNMF
    >>> OnlineNMF(n_components=8).settings.transform_solver.max_steps
    200
    """

    n_components: int
    beta_loss: str | float
    weighting: str
    feature_weights: Any
    sparsity: float
    batch_size: int | None
    n_passes: int | None
    n_init: int
    init: Any
    forgetting: Forgetting
    solver: Solver
    solver_is_default: bool
    transform_solver: Solver
    dictionary_exponent: float
    restarts: str
    start: Any
    remainder: str
    shuffle: bool
    penalty: ActivationPenalty | None
    dictionary_penalty: DictionaryPenalty | None
    groups: Any
    fixed_components: Any
    background_spectrum: Any
    noise_floor: float | AbsoluteFloor
    prior: float | Statistics
    tol: float
    compute: Compute

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Settings:
        """Settings from an estimator's parameters by name; other names are left out."""
        computing = ("backend", "device", "precision", "n_jobs")
        filled_in = {
            "background_spectrum": parameters["background"],
            "feature_weights": parameters["feature_weight"],
            "solver_is_default": parameters["solver"] is None,
            "compute": Compute(**{name: parameters[name] for name in computing}),
        }
        for name, default in DEFAULTS.items():
            filled_in[name] = default if parameters[name] is None else parameters[name]
        same = {
            each.name: parameters[each.name] for each in fields(cls) if each.name not in filled_in
        }
        return cls(**same, **filled_in)

    def __post_init__(self) -> None:
        for name in ("n_components", "batch_size", "n_passes", "n_init"):
            value = getattr(self, name)
            if value is not None or name in ("n_components", "n_init"):
                _check_whole(name, value)
                object.__setattr__(self, name, int(value))  # an int8 would overflow in products
        _check_real("dictionary_exponent", self.dictionary_exponent, 1)
        if not isinstance(self.noise_floor, AbsoluteFloor):
            _check_range("noise_floor", self.noise_floor, LOWEST_FLOOR, 1)
        if not isinstance(self.prior, Statistics):
            _check_range("prior", self.prior, 0, 1e12)
        _check_real("tol", self.tol)
        _check_range("sparsity", self.sparsity, 0, 1e6)
        if self.sparsity and self.dictionary_penalty is not None:
            raise ValueError("sparsity and dictionary_penalty exclude each other; give one.")
        is_itakura_saito = self.divergence.beta == 0  # which checks beta_loss
        if self.dictionary_penalty is not None and not is_itakura_saito:
            raise ValueError("A dictionary_penalty needs beta_loss='itakura-saito'.")
        _check_one_of("weighting", self.weighting, WEIGHTINGS)
        _check_one_of("restarts", self.restarts, RESTARTS)
        _check_one_of("remainder", self.remainder, REMAINDERS)
        if isinstance(self.start, str):
            _check_one_of("start", self.start, STARTS)
        if isinstance(self.init, str):
            _check_one_of("init", self.init, INITS)
        _check_instance("forgetting", self.forgetting, Forgetting)
        _check_instance("solver", self.solver, Solver)
        _check_instance("transform_solver", self.transform_solver, Solver)
        _check_instance("penalty", self.penalty, ActivationPenalty)
        _check_instance("dictionary_penalty", self.dictionary_penalty, DictionaryPenalty)
        if self.groups is not None and np.shape(self.groups) != (self.n_components,):
            raise ValueError(
                f"groups of shape {np.shape(self.groups)} must hold one label for each of the "
                f"{self.n_components} components."
            )

    @property
    def divergence(self) -> BetaDivergence:
        """The divergence that `beta_loss` names."""
        return BetaDivergence.of(self.beta_loss)

    @property
    def trains_on_device(self) -> bool:
        """Whether dictionary and statistics stay on a device from update to update."""
        is_plain = self.dictionary_penalty is None and not self.added and not self.keeps_visits
        return self.compute.backend == "torch" and is_plain

    def check_sparse(self) -> None:
        """Raise an error where these settings cannot be used with sparse frames.

        Of a divergence that has no use for them it is a TypeError, as scikit-learn's own.
        """
        beta = self.divergence.beta
        if beta < 1:
            raise TypeError(
                f"With beta_loss={self.beta_loss!r} the zeros of sparse input decide everything, "
                "since the divergence of zero from any model is infinite: give "
                "beta_loss='kullback-leibler' or 'frobenius'."
            )
        if self.compute.backend == "torch":
            raise ValueError("Sparse input needs another backend than 'torch': give 'auto'.")
        if self.feature_weights is not None:
            raise ValueError("feature_weight needs a dense array: give X.toarray().")
        if self.added or (beta < 2 and self.floor > LARGEST_SPARSE_FLOOR):
            raise ValueError(
                f"noise_floor={self.noise_floor!r} would make every zero of sparse input a number; "
                f"give {LARGEST_SPARSE_FLOOR:g} or less, or a dense array."
            )
        if isinstance(self.init, str) and self.init in ("k-means++", "parts"):
            raise ValueError(
                f"init={self.init!r} compares logarithms, which zeros of sparse input do not have; "
                "give 'random' or an array."
            )

    @property
    def keeps_visits(self) -> bool:
        """Whether something is kept from one visit of a frame to the next."""
        is_fresh = self.restarts == "fresh" and isinstance(self.start, str) and self.start == "even"
        return not is_fresh or self.remainder == "carry"

    @property
    def floor(self) -> float:
        """ε relative to a frame's level; 0 where it is absolute."""
        return 0.0 if isinstance(self.noise_floor, AbsoluteFloor) else self.noise_floor

    @property
    def added(self) -> float:
        """ε in the data's units; 0 where it is relative."""
        return self.noise_floor.epsilon if isinstance(self.noise_floor, AbsoluteFloor) else 0.0

    @property
    def prior_frames(self) -> float:
        """The weight of the first statistics, in frames."""
        return self.prior.n_frames if isinstance(self.prior, Statistics) else self.prior

    def first_statistics(self, dictionary: Array, frame_weight: float = 1.0) -> Statistics:
        """A⁰ and B⁰; a frame of the prior counts by the given weight, that of a common frame."""
        if not isinstance(self.prior, Statistics):
            first = Statistics.prior(dictionary, self.prior, self.divergence.beta)
            return replace(first.decay(frame_weight), n_frames=first.n_frames)
        prior = self.prior
        for name in ("numerator", "denominator"):
            given = np.asarray(getattr(prior, name))
            if given.shape != dictionary.shape or not (np.isfinite(given) & (given >= 0)).all():
                raise ValueError(
                    f"prior has a {name} of shape {given.shape}, which must be {dictionary.shape}, "
                    "finite and nowhere negative."
                )
        if prior.beta != self.divergence.beta:
            raise ValueError(
                f"prior has statistics of β = {prior.beta:g}, but beta_loss={self.beta_loss!r}."
            )
        return prior.decay(1.0)

    def passes_over(self, n_frames: int) -> int:
        """How many passes `fit` makes over an array: small sets get as many updates as they need.

        Examples
        --------
        >>> from ondes.nmf.estimator import OnlineNMF
        >>> [OnlineNMF().settings.passes_over(n) for n in (100, 300, 3000)]
        [60, 20, 10]
        """
        if self.n_passes is not None:
            return self.n_passes
        n_updates = -(-n_frames // (self.batch_size or n_frames or 1)) or 1
        return PASSES if n_frames > EARLY_FRAMES else max(PASSES, -(-UPDATES // n_updates))

    def in_pass(self, number: int, n_frames: int) -> Settings:
        """The settings of one pass of `fit` over an array, with the number of steps that suits it.

        What too few steps leave of the way to the minimum biases the dictionary. In a small set,
        which is visited often, that matters more and more: steps double when the number of passes
        has become eight times as large. Where more passes follow, half as many steps are enough
        for the first frames, except with Itakura-Saito or sparsity. A solver that was given is
        kept, and warm restarts continue from the pass before.

        Examples
        --------
        >>> from ondes.nmf.estimator import OnlineNMF
        >>> [OnlineNMF().settings.in_pass(n, 3000).solver.max_steps for n in (1, 2, 4, 8, 1000)]
        [10, 13, 16, 20, 40]
        """
        if not self.solver_is_default or self.restarts == "warm" or n_frames > SMALL_SET:
            return self
        doublings = number.bit_length() - 1  # few changes: a GPU records its graphs again for each
        n_steps = min(round(self.solver.max_steps * 2 ** (doublings / 3)), MOST_STEPS_IN_PASS)
        is_early = self.n_passes != 1 and (number - 0.5) * n_frames < EARLY_FRAMES
        if is_early and self.divergence.beta > 0 and not self.sparsity:
            n_steps = self.solver.max_steps // 2
        return replace(self, solver=replace(self.solver, max_steps=n_steps))

    def problem(self, dictionary: Array, solver: Solver | None = None) -> Problem:
        """What a backend solves with this dictionary; by default with the solver for learning."""
        groups = None if self.groups is None else np.unique(self.groups, return_inverse=True)[1]
        return Problem(
            dictionary,
            self.floor,
            solver or self.solver,
            self.background(dictionary.shape[1]),
            self.penalty,
            groups,
            self.divergence,
            self.sparsity,
            self.added,
            self.feature_weight(dictionary.shape[1]),
            self.level_exponent,
        )

    @property
    def level_exponent(self) -> float:
        """A frame's terms count by its level to this power: β, so that levelling it is undone."""
        return self.divergence.beta if self.weighting == "level" else 0.0

    @property
    def n_fixed(self) -> int:
        """How many rows of the dictionary never change."""
        return 0 if self.fixed_components is None else len(np.atleast_2d(self.fixed_components))

    @property
    def n_bins(self) -> int | None:
        """The number of bins, where a parameter has one."""
        parameters = (self.background_spectrum, self.feature_weights, self.fixed_components)
        for given in (*parameters, self.init):
            if given is not None and not isinstance(given, str) and np.ndim(given):
                return int(np.shape(given)[-1])
        return None

    def feature_weight(self, n_bins: int) -> Array | None:
        """What each bin counts, as float64 of shape (n_bins,); or None."""
        if self.feature_weights is None:
            return None
        weights = np.asarray(self.feature_weights, dtype=np.float64)
        if weights.shape != (n_bins,):
            raise ValueError(
                f"feature_weight of shape {weights.shape} must have one value for each of "
                f"{n_bins} bins."
            )
        if not (np.isfinite(weights) & (weights >= 0)).all() or weights.max() > LARGEST_WEIGHT:
            raise ValueError(
                f"feature_weight must be finite, nowhere negative, and at most {LARGEST_WEIGHT:g}."
            )
        if not weights.any():
            raise ValueError("feature_weight is zero in all bins, so nothing is left to learn.")
        return weights

    def background(self, n_bins: int) -> Array | None:
        """The known variance as float64 of shape (n_bins,), with an absolute floor; or None."""
        if self.background_spectrum is None:
            return np.full(n_bins, self.added) if self.added else None
        background = np.asarray(self.background_spectrum, dtype=np.float64)
        if background.shape != (n_bins,):
            raise ValueError(
                f"background of shape {background.shape} must have one value for each of "
                f"{n_bins} bins."
            )
        if not (np.isfinite(background) & (background >= 0)).all():
            raise ValueError("background must be finite and nowhere negative.")
        if background.max() > LARGEST_BACKGROUND:
            raise ValueError(
                f"The largest of background={background.max():g} must lie between 0 and "
                f"{LARGEST_BACKGROUND:g}."
            )
        return background + self.added

    def known_rows(self, n_bins: int) -> tuple[Array, Array | None]:
        """The fixed rows, and those that `init` gives, None where they are to be drawn."""
        fixed = np.empty((0, n_bins))
        if self.fixed_components is not None:
            fixed = _unit_rows("fixed_components", self.fixed_components, n_bins)
        if len(fixed) > self.n_components:
            raise ValueError(
                f"n_components={self.n_components} includes the {len(fixed)} fixed_components; "
                "give more."
            )
        if isinstance(self.init, str):
            return fixed, None
        given = _unit_rows("init", self.init, n_bins)
        if len(given) == self.n_components:
            given = given[len(fixed) :]
        if len(fixed) + len(given) != self.n_components:
            raise ValueError(
                f"init has {len(given)} rows, but n_components={self.n_components} with "
                f"{len(fixed)} of them fixed."
            )
        return fixed, given


def _unit_rows(name: str, given: Any, n_bins: int) -> Array:
    rows = np.array(given, dtype=np.float64, ndmin=2)
    if rows.ndim != 2 or rows.shape[1] != n_bins:
        raise ValueError(f"{name} of shape {rows.shape} must have {n_bins} bins in each row.")
    if not (np.isfinite(rows) & (rows >= 0)).all():
        raise ValueError(f"{name} must be finite and nowhere negative.")
    if not rows.any(axis=1).all():
        raise ValueError(f"{name} has a row of zeros, which could never be active; leave it out.")
    if rows.max() > 1e300:  # so that their sum is finite
        rows = rows / rows.max(axis=1, keepdims=True)
    unit: Array = rows / rows.sum(axis=1, keepdims=True)
    return unit


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a whole number.")
    if int(value) < 1:
        raise ValueError(f"{name}={value!r} must be 1 or more.")
    if int(value) > LARGEST_COUNT:
        raise ValueError(f"{name}={value!r} must be at most {LARGEST_COUNT}.")


def _check_real(name: str, value: object, high: float = np.inf) -> None:
    """In [0, ∞), or in (0, high]."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a number.")
    is_bounded = bool(np.isfinite(high))
    if not (0 < float(value) <= high if is_bounded else 0 <= float(value) < high):
        raise ValueError(
            f"{name}={value!r} must lie in {f'(0, {high:g}]' if is_bounded else '[0, ∞)'}."
        )


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a number.")
    if not low <= float(value) <= high:
        raise ValueError(f"{name}={value!r} must lie in [{low:g}, {high:g}].")


def _check_one_of(name: str, value: object, names: tuple[str, ...]) -> None:
    if value not in names:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, names))}.")


def _check_instance(name: str, value: object, kind: Any) -> None:
    if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
        raise TypeError(f"{name}={value!r} must be of type {kind.__name__}, or None.")
