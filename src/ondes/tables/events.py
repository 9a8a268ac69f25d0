"""When a component or source is louder than a threshold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from ondes.nmf.divergence import Array
from ondes.tables.level_blocks import LevelBlock

__all__ = ["Event", "EventFinder", "find_events"]

TINY = 1e-9  # seconds
NAN = float("nan")


@dataclass(frozen=True)
class Event:
    """A span of time in which a component or source is louder than the threshold.

    Attributes
    ----------
    recording, name : str
    start, end : float
        Seconds from the beginning of the recording.
    level : float
        The loudest cell, in dB re full scale.
    novelty : float
        The largest of its cells; NaN where unknown.
    low, high : float
        Hertz: where its sound lies, from the lowest to the highest of its cells; NaN where unknown.
    clock : datetime or None
        Time of its beginning, where the recording's name has a time.

    Examples
    --------
    >>> Event("a.wav", "0", 1.0, 2.5, -20.0).end
    2.5
    """

    recording: str
    name: str
    start: float
    end: float
    level: float
    novelty: float = NAN
    low: float = NAN
    high: float = NAN
    clock: datetime | None = None


class EventFinder:
    """Finds events in blocks of levels, in the order of time.

    Parameters
    ----------
    threshold : float
        In dB re full scale; a cell that is louder belongs to an event.
    min_length : float
        Seconds: shorter events are left out.
    min_gap : float
        Seconds: two events of one name with a shorter pause between them are one.

    Examples
    --------
    >>> start = np.arange(6.0)
    >>> levels = np.array([[-60.0], [-20.0], [-60.0], [-10.0], [-60.0], [-60.0]])
    >>> block = LevelBlock("a.wav", ("frog",), start, start + 1, levels, np.zeros(6))
    >>> finder = EventFinder(threshold=-40, min_gap=1.5)
    >>> [(event.start, event.end) for event in finder.push(block) + finder.flush()]
    [(1.0, 4.0)]
    """

    def __init__(self, threshold: float, *, min_length: float = 0.0, min_gap: float = 0.0) -> None:
        if np.isnan(threshold) or not min_length >= 0 or not min_gap >= 0:
            raise ValueError(
                f"threshold={threshold!r} must be a number of decibels, and "
                f"min_length={min_length!r} and min_gap={min_gap!r} 0 seconds or more."
            )
        self._threshold, self._min_length, self._min_gap = threshold, min_length, min_gap
        self._open: dict[str, Event] = {}
        self._closed: list[Event] = []  # later ones that must wait for one that began before
        self._recording: str | None = None

    def push(self, block: LevelBlock) -> list[Event]:
        """Take the next block; return the events before which none can begin any more."""
        done = self.flush() if block.recording != self._recording else []
        self._recording = block.recording
        if not len(block):
            return done
        for column, name in enumerate(block.names):
            levels = block.levels[:, column]
            for first, last in _runs(levels > self._threshold):
                cells = slice(first, last + 1)
                event = Event(
                    block.recording, name,
                    float(block.start[first]), float(block.end[last]),
                    float(levels[cells].max()), float(block.novelty[cells].max()),
                    *(NAN, NAN) if block.low is None or block.high is None else
                    (float(block.low[cells, column].min()), float(block.high[cells, column].max())),
                )  # fmt: skip
                self._add(event, block)
            if name in self._open and block.end[-1] - self._open[name].end >= self._min_gap + TINY:
                self._close(name)
        return done + self._in_order()

    def flush(self) -> list[Event]:
        """Return the last events of a recording."""
        for name in list(self._open):
            self._close(name)
        return self._in_order()

    def _in_order(self) -> list[Event]:
        """By their start, those that start before every open event."""
        limit = min((event.start for event in self._open.values()), default=float("inf"))
        ready = [event for event in self._closed if event.start < limit]
        self._closed = [event for event in self._closed if event.start >= limit]
        return sorted(ready, key=lambda event: (event.start, event.end))

    def _add(self, event: Event, block: LevelBlock) -> None:
        before = self._open.get(event.name)
        if before is not None:
            gap = event.start - before.end
            if gap < self._min_gap - TINY or gap <= TINY:
                event = replace(
                    before,
                    end=event.end,
                    level=max(before.level, event.level),
                    novelty=max(before.novelty, event.novelty),
                    low=min(before.low, event.low),
                    high=max(before.high, event.high),
                )
            else:
                self._close(event.name)
        if event.clock is None and block.clock is not None:
            event = replace(event, clock=block.clock + timedelta(seconds=event.start))
        self._open[event.name] = event

    def _close(self, name: str) -> None:
        event = self._open.pop(name)
        if event.end - event.start >= self._min_length - TINY:
            self._closed.append(event)


def find_events(
    blocks: Iterable[LevelBlock],
    threshold: float,
    *,
    min_length: float = 0.0,
    min_gap: float = 0.0,
) -> Iterator[Event]:
    """The events in blocks of levels, such as `ondes.levels` yields; see `EventFinder`.

    Examples
    --------
    >>> start = np.arange(3.0)
    >>> levels = np.array([[-60.0], [-20.0], [-60.0]])
    >>> block = LevelBlock("a.wav", ("frog",), start, start + 1, levels, np.zeros(3))
    >>> [event.name for event in find_events([block], -40)]
    ['frog']
    """
    finder = EventFinder(threshold, min_length=min_length, min_gap=min_gap)
    for block in blocks:
        yield from finder.push(block)
    yield from finder.flush()


def _runs(is_loud: Array) -> list[tuple[int, int]]:
    """First and last index of each run of True."""
    changes = np.flatnonzero(np.diff(np.r_[False, is_loud, False]))
    return [(int(a), int(b) - 1) for a, b in changes.reshape(-1, 2)]
