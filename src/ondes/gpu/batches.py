"""The rounds of `ondes.signal.batches`, shuffled and levelled on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, cast

from ondes.gpu.frames import FrameMaker, ShuffledFrames
from ondes.signal.batches import Rounds
from ondes.signal.schedule import Schedule

__all__ = ["GpuBatches"]


class GpuBatches:
    """The same batches in the same order as on the host, but all of a round at a time.

    Parameters
    ----------
    schedule : Schedule
    rounds : Rounds
        With a `GpuFrameReader`.
    maker : FrameMaker
    """

    def __init__(self, schedule: Schedule, rounds: Rounds, maker: FrameMaker) -> None:
        self._schedule, self._rounds, self._maker = schedule, rounds, maker

    def __iter__(self) -> Iterator[ShuffledFrames]:
        rounds = cast(Generator[Any], iter(self._rounds))
        with contextlib.closing(rounds):
            for drawn in rounds:
                n_done = drawn.start.n_given * self._schedule.batch_size
                shuffled = self._maker.shuffle(drawn.frames, drawn.order[n_done:])
                self._schedule.advance(drawn.end)
                yield shuffled

    @property
    def seconds_done(self) -> float:
        """Seconds of audio so far, over all passes."""
        return self._schedule.seconds_done

    @property
    def seconds_total(self) -> float | None:
        """Seconds of audio in all passes; None where unknown."""
        return self._schedule.seconds_total

    def state(self) -> dict[str, Any]:
        """The position; see `Schedule.state`."""
        return self._schedule.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position; see `Schedule.restore`."""
        self._schedule.restore(state)
