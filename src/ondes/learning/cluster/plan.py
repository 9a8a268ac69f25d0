"""Which segments form a round, and which of them a shard.

All of it is a function of the recordings, the settings and the seed, never of the workers, their
number or their speed.

A round is one update of the dictionary, on one thirty-second of all frames before it, or on
`round_size` frames if that is less. As long as this is less than `first_round` frames, which is for
two hours of audio or less, the dictionary is young and has to move often: the driver trains it by
mini-batches of frames that the workers read. Later, when its memory has grown, it can wait for many
frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ondes.signal.schedule import Position, Schedule, Segment
from ondes.signal.survey import Recording

__all__ = ["Plan", "PlannedRound", "deal", "first_round", "schedule_sizes", "shard_size"]

GROWTH = 1 / 32  # of the frames before
# A task costs some milliseconds of scheduling whatever its size. This much work, frames times
# entries of the dictionary, takes a core a quarter of a second, of which they are a few per cent.
SHARD_WORK = 16384 * 32 * 257
FEW_SHARDS = 32  # with more shards the scheduler has more to do per round: they get longer
SPREAD = 4  # shards of a small round may be this much smaller, so that more workers take part


def shard_size(n_components: int, n_bins: int, n_shards: int) -> int:
    """Default number of frames in a shard: enough that a task's own cost is small."""
    alone = np.clip(SHARD_WORK // (n_components * n_bins), 1024, 32768)
    return int(alone * max(1, n_shards / FEW_SHARDS))


def first_round(round_size: int) -> int:
    """Frames in the first round that is computed by the workers."""
    return min(16384, max(1, round_size // 8))


def schedule_sizes(round_size: int, n_shards: int, batch_size: int | None) -> dict[str, int]:
    """What a `Schedule` needs to know of rounds of `round_size` frames in `n_shards` shards."""
    if not 1 <= n_shards <= round_size:
        raise ValueError(
            f"n_shards={n_shards} must be at least 1 and at most round_size={round_size}."
        )
    portion = first_round(round_size)
    return {
        "batch_size": min(batch_size or portion, portion),
        "round_size": portion,
        "segment_size": min(1024, max(1, portion // 8)),  # a round has several recordings in it
    }


class PlannedRound(NamedTuple):
    """The segments of each shard by its number, and where the next round starts."""

    shards: dict[int, list[Segment]]
    next_pass: int
    next_portion: int


@dataclass
class Plan:
    """The rounds of a run.

    Attributes
    ----------
    schedule : Schedule
        The order of the segments. What it calls a round is a portion here, of `first_round`
        frames: rounds of a cluster take one or more of them.
    round_size : int
        Frames in a full round.
    n_shards : int
        Shards in a full round.
    n_frames_before : int
        What the model had learned from before this run.
    """

    schedule: Schedule
    round_size: int
    n_shards: int
    n_frames_before: int

    def is_young(self, position: Position) -> bool:
        """Whether the next round is too small for the workers."""
        n_wanted = self._n_wanted(position.n_pass, position.n_round)
        return n_wanted < self.schedule.round_size

    def is_for_the_driver(self, position: Position) -> bool:
        """Whether the driver learns from the frames at a position, by mini-batches."""
        is_begun_or_young = position.n_given > 0 or self.is_young(position)
        return is_begun_or_young and not self.schedule.is_finished(position)

    def portions(self) -> Iterator[dict[int, list[Segment]]]:
        """The shards of the portions that the driver learns from, from the current one on."""
        position = self.schedule.position
        while self.is_for_the_driver(position):
            segments = self.schedule.segments_at(position)
            yield deal(segments, self.schedule.recordings, self.n_shards)
            position = self.schedule.after(position, 0, {})

    def rounds(self, n_pass: int, n_portion: int) -> Iterator[PlannedRound]:
        """All rounds from a portion of a pass on."""
        while n_pass < self.schedule.n_passes:
            order = self.schedule.order_of_pass(n_pass)
            n_portions, n_next = order.n_rounds, n_portion
            while n_next < n_portions:
                first, n_wanted = n_next, self._n_wanted(n_pass, n_next)
                n_next = min(first + max(1, n_wanted // self.schedule.round_size), n_portions)
                segments = [each for n in range(first, n_next) for each in order.segments(n)]
                after = (n_pass, n_next) if n_next < n_portions else (n_pass + 1, 0)
                yield PlannedRound(self._dealt(segments), *after)
            n_pass, n_portion = n_pass + 1, 0

    # ---- the position of its schedule ----

    @property
    def seconds_done(self) -> float:
        """As of `Schedule`."""
        return self.schedule.seconds_done

    @property
    def seconds_total(self) -> float | None:
        """As of `Schedule`."""
        return self.schedule.seconds_total

    def state(self) -> dict[str, Any]:
        """The position of the schedule, and what decides the rounds beside it."""
        return {"schedule": self.schedule.state(), "n_frames_before": self.n_frames_before}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position; see `Schedule.restore`."""
        self.schedule.restore(state["schedule"])
        self.n_frames_before = int(state["n_frames_before"])

    # ---- the size of a round ----

    def _n_wanted(self, n_pass: int, n_portion: int) -> int:
        """Frames in a full round at a portion, if that many are left."""
        per_pass = sum(recording.n_frames or 0 for recording in self.schedule.recordings)
        before = n_pass * per_pass + n_portion * self.schedule.round_size
        return int(min(GROWTH * (self.n_frames_before + before), self.round_size))

    def _dealt(self, segments: list[Segment]) -> dict[int, list[Segment]]:
        n_frames = sum(segment.n_frames for segment in segments)
        n_shards = SPREAD * n_frames * self.n_shards // self.round_size
        n_shards = max(1, min(n_shards, self.n_shards))
        return deal(sorted(segments), self.schedule.recordings, n_shards)


def deal(
    segments: list[Segment], recordings: list[Recording], n_shards: int
) -> dict[int, list[Segment]]:
    """Shards with about the same number of frames each, by number.

    A recording that must be read sequentially always goes to the same number.
    """
    dealt: dict[int, list[Segment]] = {}
    total = sum(each.n_frames for each in segments if recordings[each.file].seekable)
    n_before = 0
    for each in segments:
        number = each.file % n_shards
        if recordings[each.file].seekable:
            number = (2 * n_before + each.n_frames) * n_shards // (2 * total)
            n_before += each.n_frames
        dealt.setdefault(number, []).append(each)
    return dict(sorted(dealt.items()))
