"""Rows of a table: one for each cell of time and each component or source, or one per event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from ondes.nmf.divergence import Array
from ondes.tables.events import Event
from ondes.tables.levels import LevelBlock

__all__ = ["Rows", "rows_of_block", "rows_of_events"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one recording, column by column.

    Attributes
    ----------
    recording : str
    clock : datetime or None
        Time of the recording's beginning.
    names : tuple of str
    name : integer array of shape (n,)
        Index in `names`.
    start, end, level, oddness : arrays of shape (n,)

    Examples
    --------
    >>> one = np.zeros(1)
    >>> len(Rows("a.wav", None, ("0",), np.zeros(1, int), one, one + 1, one - 20, one))
    1
    """

    recording: str
    clock: datetime | None
    names: tuple[str, ...]
    name: Array
    start: Array
    end: Array
    level: Array
    oddness: Array

    def __len__(self) -> int:
        return len(self.start)

    def times(self) -> Array | None:
        """Clock time of the start of each row, datetime64[ms]; None where unknown."""
        if self.clock is None:
            return None
        offsets = np.round(1000 * self.start).astype("timedelta64[ms]")
        times: Array = np.datetime64(self.clock, "ms") + offsets
        return times


def rows_of_block(block: LevelBlock) -> Rows:
    """One row for each cell and name, in the order of time.

    Examples
    --------
    >>> block = LevelBlock("a", ("0", "1"), np.zeros(1), np.ones(1), np.zeros((1, 2)), np.ones(1))
    >>> rows_of_block(block).name.tolist()
    [0, 1]
    """
    n_cells, n_names = block.levels.shape
    return Rows(
        block.recording,
        block.clock,
        block.names,
        np.tile(np.arange(n_names), n_cells),
        np.repeat(block.start, n_names),
        np.repeat(block.end, n_names),
        block.levels.reshape(-1),
        np.repeat(block.oddness, n_names),
    )


def rows_of_events(events: Sequence[Event], block: LevelBlock) -> Rows:
    """One row for each event of a recording that `block` belongs to.

    Examples
    --------
    >>> block = LevelBlock("a", ("0",), np.zeros(1), np.ones(1), np.zeros((1, 1)), np.ones(1))
    >>> rows_of_events([Event("a", "0", 0.0, 1.0, -20.0)], block).level.tolist()
    [-20.0]
    """
    index = {name: i for i, name in enumerate(block.names)}
    columns = [(event.start, event.end, event.level, event.oddness) for event in events]
    start, end, level, oddness = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    name = np.array([index[event.name] for event in events], dtype=int)
    return Rows(block.recording, block.clock, block.names, name, start, end, level, oddness)
