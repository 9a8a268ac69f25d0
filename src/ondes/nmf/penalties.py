"""Penalties on activations and on dictionaries: one small class per penalty.

A penalty on the activations is a concave increasing ψ of each group's share of a frame's energy,
e = Σ_{k in group} ‖w_k‖₁ h_k / (n_bins · level). In this form it depends neither on the scale
shared between dictionary and activations nor on the volume of the sound. A concave function lies
under its tangents: its slope is added to the denominator of either update, and descent is kept.

A penalty on the dictionary is a function of rows that sum to one. It is majorised around the
present dictionary by linear · w + quadratic · w², and weighted by the number of frames remembered.

A user's own penalty is any object with these methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from ondes.nmf.divergence import Array


@runtime_checkable
class ActivationPenalty(Protocol):
    """A concave increasing ψ; both methods work entry by entry on arrays of shares."""

    def value(self, share: Array) -> Array:
        """ψ(share)."""
        ...

    def slope(self, share: Array) -> Array:
        """ψ'(share), positive and not increasing."""
        ...


@runtime_checkable
class DictionaryPenalty(Protocol):
    """A function of dictionary rows, with a majoriser that is separable over bins."""

    def value(self, dictionary: Array) -> float:
        """The penalty of a dictionary of shape (n_components, n_bins)."""
        ...

    def majoriser(self, dictionary: Array) -> tuple[Array, Array]:
        """(linear, quadratic), of the dictionary's shape, tight at `dictionary`.

        Both together must rise: wherever `linear` is negative, `quadratic` is positive.
        """
        ...


# Beyond these float32 overflows, and nothing but the penalty would count.
_STRONGEST, _OFFSETS = 1e6, (1e-12, 1e12)


def _check_strength(name: str, strength: float) -> None:
    if not 0 <= strength <= _STRONGEST:
        raise ValueError(f"strength={strength!r} of {name} must lie between 0 and {_STRONGEST:g}.")


def _check_offset(name: str, offset: float) -> None:
    low, high = _OFFSETS
    if not low <= offset <= high:
        raise ValueError(f"offset={offset!r} of {name} must lie between {low:g} and {high:g}.")


@dataclass(frozen=True)
class GroupLog:
    """strength · Σ_groups log(offset + share): few groups are active at a time.

    With the components of one source in one group, this separates sources without labels.
    A group whose share is far below `offset` counts as inactive.

    Examples
    --------
    >>> import numpy as np
    >>> float(GroupLog(2.0, offset=1.0).slope(np.array(1.0)))
    1.0
    """

    strength: float
    offset: float = 1e-2

    def __post_init__(self) -> None:
        _check_strength("GroupLog", self.strength)
        _check_offset("GroupLog", self.offset)

    def value(self, share: Array) -> Array:
        """ψ(e) = strength · log(offset + e)."""
        logs: Array = self.strength * np.log(self.offset + share)
        return logs

    def slope(self, share: Array) -> Array:
        """ψ'(e) = strength / (offset + e)."""
        slopes: Array = self.strength / (self.offset + share)
        return slopes


@dataclass(frozen=True)
class L1:
    """strength · Σ share: less energy, hence fewer components at a time.

    Examples
    --------
    >>> import numpy as np
    >>> L1(0.5).value(np.array([4.0]))
    array([2.])
    """

    strength: float

    def __post_init__(self) -> None:
        _check_strength("L1", self.strength)

    def value(self, share: Array) -> Array:
        """ψ(e) = strength · e."""
        values: Array = self.strength * share
        return values

    def slope(self, share: Array) -> Array:
        """ψ'(e) = strength."""
        return np.full_like(share, self.strength)


@dataclass(frozen=True)
class LogSparsity:
    """strength · Σ log(offset + w · n_bins): spectra with few lines.

    Examples
    --------
    >>> import numpy as np
    >>> LogSparsity(1.0, offset=1.0).value(np.array([[0.5, 0.5]])) > 0
    True
    """

    strength: float
    offset: float = 1e-2

    def __post_init__(self) -> None:
        _check_strength("LogSparsity", self.strength)
        _check_offset("LogSparsity", self.offset)

    def value(self, dictionary: Array) -> float:
        """Σ of the logarithms, bins in units of the row's mean."""
        n_bins = dictionary.shape[1]
        return float(self.strength * np.log(self.offset + n_bins * dictionary).sum())

    def majoriser(self, dictionary: Array) -> tuple[Array, Array]:
        """The tangent of a concave function: linear only."""
        n_bins = dictionary.shape[1]
        linear = self.strength * n_bins / (self.offset + n_bins * dictionary)
        return linear, np.zeros_like(dictionary)


@dataclass(frozen=True)
class Smoothness:
    """strength · Σ (n_bins · (w_f − w_{f−1}))²: spectra without jumps between neighbours.

    Examples
    --------
    >>> import numpy as np
    >>> Smoothness(1.0).value(np.array([[0.5, 0.5]]))
    0.0
    """

    strength: float

    def __post_init__(self) -> None:
        _check_strength("Smoothness", self.strength)

    def value(self, dictionary: Array) -> float:
        """Σ of the squared steps between neighbouring bins, in units of the row's mean."""
        steps = dictionary.shape[1] * np.diff(dictionary, axis=1)
        return float(self.strength * np.square(steps).sum())

    def majoriser(self, dictionary: Array) -> tuple[Array, Array]:
        """(x − y)² ≤ ½(2x − m)² + ½(2y − m)², m = x₀ + y₀: each pair of neighbours is separated."""
        scale = self.strength * dictionary.shape[1] ** 2
        pair_sums = dictionary[:, 1:] + dictionary[:, :-1]
        linear, quadratic = np.zeros_like(dictionary), np.zeros_like(dictionary)
        for side in (np.s_[:, 1:], np.s_[:, :-1]):
            linear[side] -= 2 * scale * pair_sums
            quadratic[side] += 2 * scale
        return linear, quadratic
