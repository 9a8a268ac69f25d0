"""What the training loop needs of whatever gives it batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["BatchSource", "Update"]

T_co = TypeVar("T_co", covariant=True)


class BatchSource(Protocol[T_co]):
    """Batches in an order in which a position can be found again.

    Iterating continues from the present position. A batch may be empty: it only shows that time
    has passed. It may depend on the model as the batches before it have left it, as the statistics
    computed by a cluster do.
    """

    @property
    def seconds_done(self) -> float:
        """Seconds of audio in the batches so far, over all passes."""

    @property
    def seconds_total(self) -> float | None:
        """Seconds of audio in all batches; None where unknown."""

    def __iter__(self) -> Iterator[T_co]: ...

    def state(self) -> dict[str, Any]:
        """The position after the last batch, as plain values and arrays."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position; ValueError where it does not belong to these batches."""


class Update(NamedTuple):
    """What an update was made from: sums over its frames."""

    n_frames: float
    divergence: float
