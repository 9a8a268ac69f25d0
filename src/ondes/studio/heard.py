"""How loud every component is over time, as it is heard, and how odd every moment is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.divergence import Array
from ondes.separation.sources import Sources
from ondes.studio.recordings import Recording
from ondes.tables import Event, LevelBlock, clock_time, find_events, recording_levels

__all__ = ["Heard", "listen", "step_for"]

SHORTEST_STEP, LONGEST_STEP = 0.05, 0.5  # seconds
STEPS_WANTED, MAX_STEPS = 4000, 100_000
SILENCE = -200.0  # decibels


@dataclass(frozen=True, eq=False)
class Heard:
    """Levels of one recording, step by step.

    Attributes
    ----------
    every : float
        Seconds from one step to the next.
    levels : float32 array of shape (n_steps, n_components)
        Of each component when it is heard alone, in decibels re full scale.
    oddness : float32 array of shape (n_steps,)
        How badly the components explain the moment.
    clock : datetime or None
        When the recording began, from its name.
    """

    every: float
    levels: NDArray[np.float32]
    oddness: NDArray[np.float32]
    clock: datetime | None = None

    def energies(self) -> Array:
        """The energy of each component alone, shape (n_components,)."""
        energies: Array = self.every * (10 ** (self.levels.astype(np.float64) / 10)).sum(axis=0)
        return energies

    def events(
        self,
        recording: str,
        name: str,
        components: Sequence[int],
        threshold: float,
        min_length: float,
        min_gap: float,
    ) -> list[Event]:
        """When some components together are louder than a threshold in decibels."""
        powers = 10 ** (self.levels[:, list(components)].astype(np.float64) / 10)
        levels = 10 * np.log10(np.maximum(powers.sum(axis=1, keepdims=True), 1e-30))
        start = self.every * np.arange(len(levels))
        block = LevelBlock(
            recording, (name,), start, start + self.every, levels, self.oddness, self.clock
        )
        found = find_events([block], threshold, min_length=min_length, min_gap=min_gap)
        return list(found)


def step_for(seconds: float) -> float:
    """Seconds per step for recordings of this length in all: fine, but not too many.

    Examples
    --------
    >>> step_for(180), step_for(36000)
    (0.05, 0.5)
    """
    wanted = min(max(seconds / STEPS_WANTED, SHORTEST_STEP), LONGEST_STEP)
    return max(wanted, seconds / MAX_STEPS)


def listen(
    recording: Recording,
    sources: Sources,
    every: float,
    progress: Callable[[float], object] = lambda _: None,
) -> Heard:
    """Measure every component over a whole recording, at constant memory.

    Parameters
    ----------
    recording : Recording
    sources : Sources
        One component each.
    every : float
        Seconds per step.
    progress : callable, optional
        Called with the fraction that is done.
    """
    levels = [np.zeros((0, sources.n_components), np.float32)]
    oddness = [np.zeros(0, np.float32)]
    options: dict[str, Any] = {
        "by": "component",
        "every": every,
        "n_jobs": min(4, os.cpu_count() or 1),
    }
    for block in recording_levels(recording.readable, sources, **options):
        levels.append(np.maximum(block.levels, SILENCE).astype(np.float32))
        oddness.append(np.nan_to_num(block.oddness).astype(np.float32))
        if len(block):
            progress(min(1.0, float(block.end[-1]) / recording.seconds))
    return Heard(every, np.concatenate(levels), np.concatenate(oddness), clock_time(recording.name))
