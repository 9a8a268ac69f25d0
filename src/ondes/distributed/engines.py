"""Who runs the functions of `ondes.distributed.shards`: this process, or a cluster."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["ClusterError", "Engine", "Here", "Priority", "RoundLost"]


class ClusterError(ConnectionError):
    """A cluster that cannot do the work, in one sentence."""


class RoundLost(Exception):  # noqa: N818
    """The answers of this round will not come: run it again."""


class Priority(enum.IntEnum):
    """What goes first: small tasks that others wait for, then this round, then the next."""

    READ = 0
    WORK = 1
    TINY = 2


class Engine(Protocol):
    """Takes functions and gives promises, which may be arguments of other functions."""

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.READ,
        place: int | None = None,
    ) -> Any:
        """Promise of the function's value. Those of one `place` go to one worker if possible."""
        ...

    def results(self, promises: Sequence[Any]) -> list[Any]:
        """What was promised, in the same order; raises RoundLost where it will not come."""
        ...

    def recover(self) -> None:
        """Be ready to run a lost round again; raises ClusterError where that cannot be."""
        ...


class Here:
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

    def results(self, promises: Sequence[Any]) -> list[Any]:
        """The values again."""
        return list(promises)

    def recover(self) -> None:
        """Nothing is ever lost here."""
