"""Recordings read by the workers: as shards that stay there, or as frames for the driver."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ondes.cluster import shards
from ondes.cluster.engine import Engine, Priority
from ondes.cluster.plan import Plan
from ondes.cluster.shards import Recordings, Shard, ShardInfo
from ondes.errors import ClusterError
from ondes.signal.frame_reader import FramesRead
from ondes.signal.segments import Segment
from ondes.signal.silence import Loudest, is_active, loudest_of, merge

__all__ = ["AHEAD", "ShardReading", "WorkerFrames", "check_seen"]

AHEAD = 2  # rounds read before their turn: one to be ready, one to fill the gap between rounds


class ShardReading:
    """Has shards read by an engine; its futures are valid until a round is lost.

    Parameters
    ----------
    engine : Engine
    recordings : Recordings
    """

    def __init__(self, engine: Engine, recordings: Recordings) -> None:
        self._engine, self._known = engine, recordings.recordings
        self._recordings = engine.submit(shards.given, recordings, priority=Priority.SMALL)
        self._turns = itertools.count()

    def begin(self, dealt: dict[int, list[Segment]]) -> list[Any]:
        """A future of each shard, given its segments by its number."""
        frames = []
        for number, segments in dealt.items():
            is_free = all(self._known[each.file].seekable for each in segments)
            place = next(self._turns) if is_free else number
            frames.append(self._engine.submit(shards.read, self._recordings, segments, place=place))
        return frames


class WorkerFrames:
    """The frames of the portions that the driver learns from; a `FrameReader`.

    They are those of a `HostFrameReader`. The workers read `AHEAD` portions before their turn, so
    they have to be asked for in the order of the plan, from its current position on.

    Parameters
    ----------
    engine : Engine
    plan : Plan
    recordings : Recordings
    """

    def __init__(self, engine: Engine, plan: Plan, recordings: Recordings) -> None:
        self._engine, self._audio = engine, recordings.audio
        reading = ShardReading(engine, recordings)
        self._coming = (reading.begin(dealt) for dealt in plan.portions())
        self._ahead = deque(islice(self._coming, AHEAD))

    def read(self, segments: Sequence[Segment], loudest: Loudest) -> FramesRead:
        """The next portion; `loudest` is what is known of its recordings so far."""
        futures = self._ahead.popleft()
        self._ahead.extend(islice(self._coming, 1))
        parts: list[Shard] = self._engine.results(futures)
        infos = [part.info for part in parts]
        check_seen(infos)
        energies = np.concatenate([np.empty(0, np.float32), *(part.energies for part in parts)])
        files = np.concatenate([np.empty(0, np.intp), *(part.files for part in parts)])
        if self._audio.top_db is not None:
            loudest = merge(loudest, loudest_of(energies, files))
        active = is_active(energies, files, loudest, self._audio.top_db)
        # Segments are in the order of the recordings, and so are those of each in its shards.
        order = np.argsort(files, kind="stable")
        place = np.empty(len(files), np.intp)
        place[order] = np.cumsum(active[order]) - 1
        frames = np.empty((np.count_nonzero(active), self._audio.stft.n_bins), np.float32)
        first = 0
        for part in parts:
            rows = slice(first, first := first + len(part.files))
            frames[place[rows][active[rows]]] = self._audio.from_power(part.frames[active[rows]])
        failures = [failure for info in infos for failure in info.failures]
        return FramesRead(frames, loudest, sum(info.n_read for info in infos), failures)

    def close(self) -> None:
        """Forget what was read ahead."""
        self._ahead.clear()


def check_seen(infos: list[ShardInfo]) -> None:
    """Raise ClusterError where a worker does not see a recording that is here."""
    for path in (path for info in infos for path in info.missing):
        if Path(path).exists():
            raise ClusterError(
                f"{path} is here, but not where a worker looks for it: mount its folder under "
                "the same path on all machines."
            )
