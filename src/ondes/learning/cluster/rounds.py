"""The rounds of a run, computed by an engine: the batches of a cluster.

Workers read shards of recordings, which stay there as frames. While the dictionary is young, the
driver learns from their frames by mini-batches; later the workers summarise whole rounds.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ondes.errors import ClusterError, FileError
from ondes.learning.cluster import shards
from ondes.learning.cluster.plan import Plan, PlannedRound
from ondes.learning.cluster.shards import (
    Engine,
    InProcess,
    Interrupted,
    Priority,
    RoundLost,
    Shard,
    ShardInfo,
    SharedCorpus,
)
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.statistics import Statistics
from ondes.signal.audio_settings import Loudest, is_active, loudest_of, merge
from ondes.signal.batches import MiniBatches, Rounds
from ondes.signal.frame_reader import FramesRead
from ondes.signal.schedule import Position, Segment

__all__ = ["ClusterRounds", "WorkerFrames", "open_engine"]

IN_PROCESS = "in-process"

AHEAD = 2  # rounds read before their turn: one to be ready, one to fill the gap between rounds
FAN_IN = 8  # statistics in one sum
MAX_LOSSES = 5  # of one round


@contextlib.contextmanager
def open_engine(
    cluster: Any, n_workers: int | None, compute: Compute, should_stop: Callable[[], bool]
) -> Iterator[Engine]:
    """What computes for a run, whose workers have been checked.

    Parameters
    ----------
    cluster, n_workers
        As of `ondes.learn`.
    compute : Compute
    should_stop : callable
        Asked while results are awaited.
    """
    if cluster == IN_PROCESS:
        yield InProcess()
        return
    try:
        from ondes.learning.cluster.dask_engine import DaskEngine, connected
    except ImportError as error:
        raise ImportError("A cluster needs Dask: pip install 'ondes[dask]'.") from error
    with connected(cluster, n_workers) as client, DaskEngine(client, should_stop) as engine:
        engine.check_workers(replace(compute, n_jobs=1))  # as they compute rounds
        yield engine


@dataclass(frozen=True)
class _Reading:
    """A round that is being read; `frames` and `infos` are futures, one of each per shard."""

    planned: PlannedRound
    frames: list[Any]
    infos: list[Any]


class ClusterRounds:
    """What a run learns from on a cluster: mini-batches of frames, then statistics of rounds.

    The learner must have absorbed the last ones before the next ones are asked for.

    Parameters
    ----------
    learner : DictionaryLearner
    plan : Plan
    corpus : SharedCorpus
    engine : Engine
    on_error : callable
        Called with the path of an unreadable recording and its error, perhaps more than once.
    should_stop : callable
        Asked while frames are awaited.
    """

    def __init__(
        self,
        learner: DictionaryLearner,
        plan: Plan,
        corpus: SharedCorpus,
        engine: Engine,
        on_error: Callable[[str, FileError], object],
        should_stop: Callable[[], bool],
    ) -> None:
        self._learner, self._plan, self._engine = learner, plan, engine
        self._corpus, self._on_error = corpus, on_error
        self._schedule = plan.schedule
        self._batches = MiniBatches(
            Rounds(
                plan.schedule,
                lambda: WorkerFrames(engine, plan, corpus),
                on_error=on_error,
                should_stop=should_stop,
                is_wanted=plan.is_for_the_driver,
            )
        )

    def __iter__(self) -> Iterator[Array | Statistics]:
        return self._whatever_is_lost() if hasattr(self._learner, "components_") else iter(())

    def first_frames(self) -> Iterator[Array]:
        """The frames of the first pass in the order of reading, for the first dictionary."""
        order = self._schedule.order_of_pass(0)
        loudest: Loudest = {}
        for n_portion in range(order.n_rounds):
            shard = shards.read(self._corpus, order.segments(n_portion))
            loudest = merge(loudest, shard.info.loudest)
            yield shard.active_frames(loudest, self._schedule.audio)

    @property
    def _position(self) -> Position:
        return self._schedule.position

    def _whatever_is_lost(self) -> Iterator[Array | Statistics]:
        lost_at, n_losses = None, 0
        while not self._schedule.is_finished(self._position):
            try:
                yield from self._batches
                if not self._plan.is_for_the_driver(self._position):  # else a stop was requested
                    yield from self._by_rounds()
                return
            except Interrupted:
                return
            except RoundLost as reason:
                n_losses = n_losses + 1 if lost_at is self._position else 1
                lost_at = self._position
                if n_losses > MAX_LOSSES:
                    raise ClusterError(
                        f"A round was lost {n_losses} times in a row, the last time because of "
                        f"this: {reason}"
                    ) from reason
                self._engine.recover()

    def _by_rounds(self) -> Iterator[Statistics]:
        reading = ShardReading(self._engine, self._corpus)
        plan = self._plan.rounds(self._position.n_pass, self._position.n_round)
        ahead = deque(self._read(planned, reading) for planned in islice(plan, AHEAD))
        while ahead:
            current = ahead.popleft()
            infos: list[ShardInfo] = self._engine.results(current.infos)
            self._report(infos)
            loudest = self._position.loudest
            for info in infos:
                loudest = merge(loudest, info.loudest)
            files = sorted({file for info in infos for file in info.loudest})
            futures = self._summarise(current.frames, {file: loudest[file] for file in files})
            ahead.extend(self._read(planned, reading) for planned in islice(plan, 1))
            statistics = shards.add(*self._engine.results(futures))
            n_read = self._position.n_read + sum(info.n_read for info in infos)
            _, n_pass, n_portion = current.planned
            self._schedule.advance(Position(n_pass, n_portion, n_read=n_read, loudest=loudest))
            yield statistics

    def _read(self, planned: PlannedRound, reading: ShardReading) -> _Reading:
        frames = reading.begin(planned.shards)
        infos = [self._engine.submit(shards.info, each, priority=Priority.SMALL) for each in frames]
        return _Reading(planned, frames, infos)

    def _summarise(self, frames: list[Any], loudest: Loudest) -> list[Any]:
        """Futures of a round's statistics, few enough to be added here.

        A tree of sums over the shards in their order leads to them.
        """
        submit = self._engine.submit
        settings = self._learner.settings
        problem = submit(
            shards.given, settings.problem(self._learner.components_), priority=Priority.SMALL
        )
        rest = (replace(settings.compute, n_jobs=1), loudest, self._schedule.audio)
        level = [
            submit(shards.summarise, each, problem, *rest, priority=Priority.COMPUTE)
            for each in frames
        ]
        while len(level) > FAN_IN:
            level = [
                submit(shards.add, *level[first : first + FAN_IN], priority=Priority.COMPUTE)
                for first in range(0, len(level), FAN_IN)
            ]
        return level

    def _report(self, infos: list[ShardInfo]) -> None:
        check_seen(infos)
        for failure in (failure for info in infos for failure in info.failures):
            self._on_error(failure.path, failure)


class ShardReading:
    """Has shards read by an engine; its futures are valid until a round is lost.

    Parameters
    ----------
    engine : Engine
    corpus : SharedCorpus
    """

    def __init__(self, engine: Engine, corpus: SharedCorpus) -> None:
        self._engine, self._known = engine, corpus.known
        self._corpus = engine.submit(shards.given, corpus, priority=Priority.SMALL)
        self._turns = itertools.count()

    def begin(self, dealt: dict[int, list[Segment]]) -> list[Any]:
        """A future of each shard, given its segments by its number."""
        frames = []
        for number, segments in dealt.items():
            is_free = all(self._known[each.file].seekable for each in segments)
            place = next(self._turns) if is_free else number
            frames.append(self._engine.submit(shards.read, self._corpus, segments, place=place))
        return frames


class WorkerFrames:
    """The frames of the portions that the driver learns from; a `FrameReader`.

    They are those of a `HostFrameReader`. The workers read `AHEAD` portions before their turn, so
    they have to be asked for in the order of the plan, from its current position on.

    Parameters
    ----------
    engine : Engine
    plan : Plan
    corpus : SharedCorpus
    """

    def __init__(self, engine: Engine, plan: Plan, corpus: SharedCorpus) -> None:
        self._engine, self._audio = engine, corpus.audio
        reading = ShardReading(engine, corpus)
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
        frames = np.empty((np.count_nonzero(active), self._audio.n_bins), np.float32)
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
