"""How loud the stems of a mixture are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["StemLevels"]


class StemLevels:
    """Levels of stems relative to their mixture, from one block after the other.

    Examples
    --------
    >>> levels = StemLevels()
    >>> levels.add({"a": np.ones(5), "b": np.full(5, -0.9)})
    >>> {name: round(level) for name, level in levels.decibels().items()}
    {'a': 20, 'b': 19}
    """

    def __init__(self) -> None:
        self._energies: dict[str, float] = {}
        self._total = 0.0

    def add(self, stems: Mapping[str, NDArray[np.floating]]) -> None:
        """Take the next samples of all stems, which sum to the mixture."""
        for name, samples in stems.items():
            self._energies[name] = self._energies.get(name, 0.0) + _energy(samples)
        first, *others = stems.values()
        self._total += _energy(sum(others, first))

    def decibels(self) -> dict[str, float]:
        """Power of each stem relative to that of the mixture, in decibels; NaN for silence."""
        if not self._total:
            return dict.fromkeys(self._energies, float("nan"))
        with np.errstate(divide="ignore"):
            return {
                name: float(10 * np.log10(energy / self._total))
                for name, energy in self._energies.items()
            }


def _energy(samples: NDArray[np.floating]) -> float:
    return float(np.square(samples, dtype=np.float64).sum())
