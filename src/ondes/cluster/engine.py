"""What runs the functions of `ondes.cluster.shards`: this process, or a cluster."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Engine", "InProcess", "Interrupted", "Priority", "RoundLost"]


class RoundLost(Exception):  # noqa: N818
    """The results of this round will not come: run it again."""


class Interrupted(Exception):  # noqa: N818
    """A stop was requested while results were awaited."""


class Priority(enum.IntEnum):
    """What goes first: small tasks that others wait for, then this round, then the next."""

    READ = 0
    COMPUTE = 1
    SMALL = 2


class Engine(Protocol):
    """Takes functions and returns futures, which may be arguments of other functions."""

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.READ,
        place: int | None = None,
    ) -> Any:
        """A future of the function's value. Those of one `place` prefer the same worker."""
        ...

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """Their values in the same order; raises RoundLost where they will not come.

        Raises Interrupted where a stop was requested meanwhile.
        """
        ...

    def recover(self) -> None:
        """Prepare to run a lost round again; raises ClusterError where that is impossible."""
        ...


class InProcess:
    """Runs everything at once in this process."""

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.READ,
        place: int | None = None,
    ) -> Any:
        """The function's value itself."""
        return function(*arguments)

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """The values again."""
        return list(futures)

    def recover(self) -> None:
        """Nothing is ever lost here."""
