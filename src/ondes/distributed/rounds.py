"""The rounds of a run as lessons: what each of them teaches the dictionary as it then is."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.base import clone

from ondes.distributed import shards
from ondes.distributed.engines import ClusterError, Engine, Priority, RoundLost
from ondes.distributed.plan import Plan, PlannedRound
from ondes.distributed.shards import Heard, Sources
from ondes.lessons import SEED_FRAMES
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF
from ondes.nmf.statistics import Statistics
from ondes.signal.audio import AudioError
from ondes.signal.silence import Loudest, threshold

__all__ = ["Rounds"]

AHEAD = 2  # rounds read before their turn: one to be ready, one to fill the gap between rounds
FAN_IN = 8  # statistics in one sum
MAX_LOSSES = 5  # of one round


@dataclass(frozen=True)
class _Position:
    """Where a round starts, once the dictionary is no longer young."""

    n_pass: int
    n_portion: int
    n_read: int
    loudest: Loudest


@dataclass(frozen=True)
class _Reading:
    """A round that is being read; `frames` and `heard` are promises, one of each a shard."""

    planned: PlannedRound
    frames: list[Any]
    heard: list[Any]


class Rounds:
    """The statistics of one mini-batch or round after the other.

    Iterating goes on from the current position. The model must have absorbed a lesson before the
    next one is asked for.

    Parameters
    ----------
    model : OnlineISNMF
        Where it has no dictionary yet, the first frames give it one.
    plan : Plan
    engine : Engine
    on_error : callable
        Called with the path of a bad recording and its `AudioError`, perhaps more than once.
    """

    def __init__(
        self,
        model: OnlineISNMF,
        plan: Plan,
        engine: Engine,
        on_error: Callable[[str, AudioError], object],
    ) -> None:
        self._model, self._plan, self._engine, self._on_error = model, plan, engine, on_error
        self._batches = plan.batches
        self._position: _Position | None = None  # as long as the dictionary is young
        self._turns = itertools.count()
        self._sources = Sources(
            uuid.uuid4().hex, self._batches.sources, self._batches.recordings, self._batches.how
        )

    def __iter__(self) -> Iterator[Statistics]:
        if not getattr(self._model, "is_seeded_", False) and not self._begin():
            return
        if self._position is None:
            yield from self._by_mini_batches()
        yield from self._by_rounds()

    @property
    def seconds_done(self) -> float:
        """Seconds of sound in what was given so far, over all passes."""
        if self._position is None:
            return self._batches.seconds_done
        how = self._batches.how
        seconds = self._position.n_read * how.stft.hop_length / how.sr
        return seconds if self.seconds_total is None else min(seconds, self.seconds_total)

    @property
    def seconds_total(self) -> float | None:
        """Seconds of sound in all passes, without the bad recordings."""
        return self._batches.seconds_total

    def state(self) -> dict[str, Any]:
        """Position after what was given last, ready for JSON: a few numbers a recording."""
        at = self._position
        return {
            "batches": self._batches.state(),
            "n_frames_before": self._plan.n_frames_before,
            "position": None if at is None else [at.n_pass, at.n_portion, at.n_read],
            "loudest": [] if at is None else [list(pair) for pair in at.loudest.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the position of a `state` of the same recordings and settings.

        Raises
        ------
        ValueError
            Where a recording came, went or changed, or a setting is another.
        """
        self._batches.restore(state["batches"])
        self._plan.n_frames_before = int(state["n_frames_before"])
        self._position = None
        if state["position"] is not None:
            self._position = _position(state["position"], state["loudest"])

    # ---- the driver alone ----

    def _begin(self) -> bool:
        """Draw the first dictionary from the first frames with sound, if there are any."""
        order = self._batches.order_of_pass(0)
        loudest: Loudest = {}
        kept = [np.empty((0, self._batches.how.stft.n_bins), np.float32)]
        for n_portion in range(order.n_rounds):
            shard = shards.read(self._sources, order.segments(n_portion))
            loudest = _louder(loudest, [shard.heard])
            kept.append(shard.sounding(self._thresholds([shard.heard], loudest)))
            if sum(map(len, kept)) >= SEED_FRAMES:
                break
        frames = np.concatenate(kept)
        if len(frames):
            self._model.begin(frames)
        return len(frames) > 0

    def _by_mini_batches(self) -> Iterator[Statistics]:
        n_pass, n_portion, _, _, n_read, n_given = self._batches.state()["position"]
        batches = cast(Generator[Array], iter(self._batches))
        with contextlib.closing(batches):
            while n_given or self._plan.is_young(n_pass, n_portion):
                if (batch := next(batches, None)) is None:
                    break
                yield self._model.summarise(batch)
                n_pass, n_portion, _, _, n_read, n_given = self._batches.state()["position"]
        self._position = _position([n_pass, n_portion, n_read], self._batches.state()["loudest"])

    # ---- the workers ----

    def _by_rounds(self) -> Iterator[Statistics]:
        lost_at, n_losses = None, 0
        while self._at.n_pass < self._batches.n_passes:
            try:
                yield from self._until_lost()
            except RoundLost as reason:
                n_losses = n_losses + 1 if lost_at is self._at else 1
                lost_at = self._at
                if n_losses > MAX_LOSSES:
                    raise ClusterError(
                        f"A round was lost {n_losses} times in a row, the last time because of "
                        f"this: {reason}"
                    ) from reason
                self._engine.recover()

    @property
    def _at(self) -> _Position:
        return cast(_Position, self._position)

    def _until_lost(self) -> Iterator[Statistics]:
        sources = self._engine.submit(shards.given, self._sources, priority=Priority.TINY)
        plan = self._plan.rounds(self._at.n_pass, self._at.n_portion)
        ahead = deque(self._read(planned, sources) for planned in islice(plan, AHEAD))
        while ahead:
            current = ahead.popleft()
            heard: list[Heard] = self._engine.results(current.heard)
            self._report(heard)
            loudest = _louder(self._at.loudest, heard)
            promises = self._summarise(current.frames, self._thresholds(heard, loudest))
            ahead.extend(self._read(planned, sources) for planned in islice(plan, 1))
            statistics = shards.add(*self._engine.results(promises))
            n_read = self._at.n_read + sum(each.n_read for each in heard)
            _, next_pass, next_portion = current.planned
            self._position = _Position(next_pass, next_portion, n_read, loudest)
            yield statistics

    def _read(self, planned: PlannedRound, sources: Any) -> _Reading:
        recordings, submit = self._batches.recordings, self._engine.submit
        frames = []
        for number, segments in planned.shards.items():
            is_free = all(recordings[each.file].can_jump for each in segments)
            place = next(self._turns) if is_free else number
            frames.append(submit(shards.read, sources, segments, place=place))
        heard = [submit(shards.hear, each, priority=Priority.TINY) for each in frames]
        return _Reading(planned, frames, heard)

    def _summarise(self, frames: list[Any], thresholds: Loudest) -> list[Any]:
        """Promises of a round's statistics, few enough to be summed here.

        A tree of sums over the shards in their order leads to them.
        """
        submit = self._engine.submit
        model = submit(shards.given, self._pupil(), priority=Priority.TINY)
        level = [
            submit(shards.summarise, each, model, thresholds, priority=Priority.WORK)
            for each in frames
        ]
        while len(level) > FAN_IN:
            level = [
                submit(shards.add, *level[first : first + FAN_IN], priority=Priority.WORK)
                for first in range(0, len(level), FAN_IN)
            ]
        return level

    def _pupil(self) -> OnlineISNMF:
        """As much of the model as a worker needs."""
        pupil: OnlineISNMF = clone(self._model).set_params(n_jobs=1)
        for name in ("components_", "n_features_in_"):
            setattr(pupil, name, getattr(self._model, name))
        return pupil

    # ---- what was heard ----

    def _thresholds(self, heard: list[Heard], loudest: Loudest) -> Loudest:
        """By recording of a round, the energy that a frame must exceed; none keeps all."""
        silence = self._batches.silence
        if silence is None:
            return {}
        files = {file for each in heard for file in each.loudest}
        return {file: float(threshold(silence, loudest[file])) for file in sorted(files)}

    def _report(self, heard: list[Heard]) -> None:
        for path in (path for each in heard for path in each.unseen):
            if Path(path).exists():
                raise ClusterError(
                    f"{path} is here, but not where a worker looks for it: mount its folder under "
                    "the same path on all machines."
                )
        for failure in (failure for each in heard for failure in each.failures):
            self._on_error(failure.path, failure)


def _louder(before: Loudest, heard: list[Heard]) -> Loudest:
    """The loudest so far, with what was heard now."""
    loudest = dict(before)
    for each in heard:
        for file, energy in each.loudest.items():
            loudest[file] = max(loudest.get(file, 0.0), energy)
    return loudest


def _position(numbers: Iterable[Any], loudest: Iterable[Iterable[Any]]) -> _Position:
    n_pass, n_portion, n_read = map(int, numbers)
    by_file = {int(file): float(energy) for file, energy in loudest}
    return _Position(n_pass, n_portion, n_read, by_file)
