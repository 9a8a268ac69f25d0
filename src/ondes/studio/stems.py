"""Parts of recordings with how loud they are, and stems: parts with names, by a separator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.models.model import Model
from ondes.nmf.divergence import Array
from ondes.studio.jobs import Progress
from ondes.studio.recording import Recording
from ondes.tables import clock_time, recording_levels

__all__ = ["PartLevels", "Stems", "curves_of", "measured_levels", "shares_of", "step_for"]

CURVE_STEPS, CURVE_DB = 96, 50.0  # of the curves on the cards
STEPS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds
MAX_STEPS = 200_000
SILENCE = -200.0  # decibels


@dataclass(frozen=True, eq=False)
class PartLevels:
    """How loud every part is over time in one recording.

    Attributes
    ----------
    every : float
        Seconds from one step to the next.
    levels : float32 array of shape (n_steps, n_parts)
        Of each part when it is heard alone, in decibels re full scale.
    novelty : float32 array of shape (n_steps,)
        How badly the parts explain the moment; zeros for a trained separator.
    seconds : float
        Duration of the recording.
    clock : datetime or None
        When the recording began, from its name.
    """

    every: float
    levels: NDArray[np.float32]
    novelty: NDArray[np.float32]
    seconds: float
    clock: datetime | None = None

    def power(self, parts: Sequence[int] | slice = slice(None)) -> Array:
        """The power of some parts, shape (n_steps, n)."""
        power: Array = 10 ** (self.levels[:, parts].astype(np.float64) / 10)
        return power


@dataclass(frozen=True, eq=False)
class Stems:
    """What a separator with names makes of the recordings.

    Parameters
    ----------
    model : Model
    label : str
        What the page calls the separator.
    levels : mapping of str to PartLevels
        By the id of the recording.
    """

    model: Model
    label: str
    levels: Mapping[str, PartLevels]

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the stems, in the order of the masks."""
        return self.model.names

    @cached_property
    def shares(self) -> Array:
        """What each stem has of all that is heard."""
        return shares_of(self.levels.values(), len(self.names))

    @cached_property
    def curves(self) -> list[list[int]]:
        """The level of each stem over all recordings in a few steps, 0 to 100."""
        return curves_of(self.levels.values(), len(self.names))


def shares_of(levels: Iterable[PartLevels], n_parts: int) -> Array:
    """What each part has of all that is heard, shape (n_parts,); the sum is one."""
    energies = np.zeros(n_parts)
    for each in levels:
        energies += each.every * each.power().sum(axis=0)
    shares: Array = energies / (energies.sum() or 1)
    return shares


def curves_of(all_levels: Iterable[PartLevels], n_parts: int) -> list[list[int]]:
    """The level of each part over all recordings in a few steps, 0 to 100."""
    nothing = np.zeros((0, n_parts), np.float32)
    levels = np.concatenate([nothing, *(each.levels for each in all_levels)])
    if not len(levels):
        return [[0]] * n_parts
    edges = np.linspace(0, len(levels), min(CURVE_STEPS, len(levels)) + 1).astype(int)[:-1]
    steps = np.maximum.reduceat(levels, edges, axis=0)
    scaled = np.clip(100 * (1 + (steps - steps.max()) / CURVE_DB), 0, 100)
    return [list(map(int, column)) for column in scaled.T]


def measured_levels(
    model: Any,
    by: str,
    recordings: Sequence[Recording],
    progress: Progress,
    start: float = 0.0,
) -> dict[str, PartLevels]:
    """Measure the levels of a model's parts in some recordings, at constant memory.

    Parameters
    ----------
    model : Sources or TrainedSeparator
    by : {"component", "source"}
    recordings : sequence of Recording
    progress : Progress
    start : float
        How much of the job was done before.
    """
    total, done = sum(recording.seconds for recording in recordings), 0.0
    every = step_for(total)
    n_parts = model.n_components if by == "component" else len(model.names)
    found = {}
    for recording in recordings:
        levels = [np.zeros((0, n_parts), np.float32)]
        novelty = [np.zeros(0, np.float32)]
        for block in recording_levels(recording.readable, model, by=by, every=every, n_jobs=-1):
            levels.append(np.maximum(block.levels, SILENCE).astype(np.float32))
            novelty.append(np.nan_to_num(block.novelty).astype(np.float32))
            if len(block):
                progress(start + (1 - start) * min(1.0, (done + float(block.end[-1])) / total))
        done += recording.seconds
        found[recording.id] = PartLevels(
            every,
            np.concatenate(levels),
            np.concatenate(novelty),
            recording.seconds,
            clock_time(recording.name),
        )
    return found


def step_for(seconds: float) -> float:
    """Seconds per step for recordings of this length in all: fine, but not too many steps.

    Examples
    --------
    >>> step_for(180), step_for(36000)
    (0.05, 0.2)
    """
    return next((step for step in STEPS if seconds / step <= MAX_STEPS), seconds / MAX_STEPS)
