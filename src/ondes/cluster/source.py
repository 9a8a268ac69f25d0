"""The statistics of one round after the other, computed by an engine."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

from ondes.cluster import shards
from ondes.cluster.engine import Engine, InProcess, Interrupted, Priority, RoundLost
from ondes.cluster.plan import Plan, PlannedRound
from ondes.cluster.reading import AHEAD, ShardReading, WorkerFrames, check_seen
from ondes.cluster.shards import Recordings, ShardInfo
from ondes.errors import ClusterError, FileError
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.statistics import Statistics
from ondes.signal.batches import MiniBatches, Rounds
from ondes.signal.schedule import Position
from ondes.signal.silence import Loudest, merge
from ondes.training.loop import initialise

__all__ = ["ClusterSource", "open_engine"]

IN_PROCESS = "in-process"

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
        from ondes.cluster.dask_engine import DaskEngine, connected
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


class ClusterSource:
    """The statistics of one mini-batch or round after the other; the batches of a `BatchSource`.

    The estimator must have absorbed the last statistics before the next ones are asked for.

    Parameters
    ----------
    estimator : DictionaryLearner
        Where it has no dictionary yet, the first frames initialise it.
    plan : Plan
    recordings : Recordings
    engine : Engine
    on_error : callable
        Called with the path of an unreadable recording and its error, perhaps more than once.
    should_stop : callable
        Asked while frames are awaited.
    """

    def __init__(
        self,
        estimator: DictionaryLearner,
        plan: Plan,
        recordings: Recordings,
        engine: Engine,
        on_error: Callable[[str, FileError], object],
        should_stop: Callable[[], bool],
    ) -> None:
        self._estimator, self._plan, self._engine = estimator, plan, engine
        self._recordings, self._on_error = recordings, on_error
        self._schedule = plan.schedule
        self._batches = MiniBatches(
            Rounds(
                plan.schedule,
                lambda: WorkerFrames(engine, plan, recordings),
                on_error=on_error,
                should_stop=should_stop,
                is_wanted=plan.is_for_the_driver,
            )
        )

    def __iter__(self) -> Iterator[Statistics]:
        if not getattr(self._estimator, "is_initialised_", False):
            first = initialise(self._estimator, self._portions())
            if not any(map(len, first)):
                return
        yield from self._whatever_is_lost()

    # ---- the driver ----

    def _portions(self) -> Iterator[Array]:
        """The first frames, for the first dictionary."""
        order = self._schedule.order_of_pass(0)
        loudest: Loudest = {}
        for n_portion in range(order.n_rounds):
            shard = shards.read(self._recordings, order.segments(n_portion))
            loudest = merge(loudest, shard.info.loudest)
            yield shard.active_frames(loudest, self._schedule.audio)

    def _by_mini_batches(self) -> Iterator[Statistics]:
        batches = cast(Generator[Array], iter(self._batches))
        with contextlib.closing(batches):
            for batch in batches:
                yield self._summarised(batch)

    def _summarised(self, batch: Array) -> Statistics:
        if len(batch):
            return self._estimator.summarise(batch)
        return self._estimator.statistics_.decay(0.0)  # those of no frames

    @property
    def _position(self) -> Position:
        return self._schedule.position

    # ---- the workers ----

    def _whatever_is_lost(self) -> Iterator[Statistics]:
        lost_at, n_losses = None, 0
        while not self._schedule.is_finished(self._position):
            try:
                yield from self._by_mini_batches()
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
        reading = ShardReading(self._engine, self._recordings)
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
        settings = self._estimator.settings
        problem = submit(
            shards.given, settings.problem(self._estimator.components_), priority=Priority.SMALL
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
