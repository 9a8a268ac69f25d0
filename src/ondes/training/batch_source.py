"""What the training loop needs: batches, how to learn from one, and where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

__all__ = ["BatchSource", "Resumable", "Update"]

T = TypeVar("T")


class Resumable(Protocol):
    """A position in an order of batches, as `ondes.signal.schedule.Schedule` keeps it."""

    @property
    def seconds_done(self) -> float:
        """Seconds of audio in the batches so far, over all passes."""

    @property
    def seconds_total(self) -> float | None:
        """Seconds of audio in all batches; None where unknown."""

    def state(self) -> dict[str, Any]:
        """The position after the last batch, as plain values and arrays."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position; ValueError where it does not belong to these batches."""


class Update(NamedTuple):
    """What an update was made from: sums over its frames."""

    n_frames: float
    divergence: float


@dataclass(frozen=True)
class BatchSource(Generic[T]):
    """Batches in an order in which a position can be found again.

    Attributes
    ----------
    batches : iterable
        Iterating continues from the position and changes it. A batch may be empty: it only shows
        that time has passed. It may depend on the model as the batches before it have left it, as
        the statistics computed by a cluster do.
    position : Resumable
    step : callable
        Updates the estimator with one batch.
    initialise : callable, optional
        Draws the first dictionary of an estimator that has none: it takes batches from the
        iterator and returns them, to be trained on in turn. Without it, the step or the batches do.
    """

    batches: Iterable[T]
    position: Resumable
    step: Callable[[T], Update]
    initialise: Callable[[Iterator[T]], Sequence[T]] | None = None
