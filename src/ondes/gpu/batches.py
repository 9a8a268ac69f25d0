"""The rounds of `ondes.signal.batches`, shuffled on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, cast

from ondes.gpu.frames import FrameMaker
from ondes.nmf.backends.devices import Tensor
from ondes.signal.batches import Rounds

__all__ = ["GpuBatches"]


class GpuBatches:
    """The same batches in the same order as on the host, but all of a round at a time.

    Parameters
    ----------
    rounds : Rounds
        With a `GpuFrameReader`.
    maker : FrameMaker

    Attributes
    ----------
    schedule : Schedule
    """

    def __init__(self, rounds: Rounds, maker: FrameMaker) -> None:
        self._rounds, self._maker, self.schedule = rounds, maker, rounds.schedule

    def __iter__(self) -> Iterator[Tensor]:
        rounds = cast(Generator[Any], iter(self._rounds))
        with contextlib.closing(rounds):
            for drawn in rounds:
                n_done = drawn.start.n_given * self.schedule.batch_size
                shuffled = self._maker.shuffle(drawn.frames, drawn.order[n_done:])
                self.schedule.advance(drawn.end)
                yield shuffled
