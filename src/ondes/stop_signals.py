"""Ctrl-C and its like end learning between two updates, and never in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Self, TypeVar

T = TypeVar("T")


class StopSignals:
    """Ctrl-C may cut short a wait for sound, but never an update of the dictionary.

    So may every signal that raises KeyboardInterrupt here: the command line has SIGTERM do so.
    A second one is an ordinary one.

    Parameters
    ----------
    cuts_waits : bool
        Whether the wait for sound is cut short. A lesson on its way may be lost then, and with it
        the position of the lessons; where that is needed, the lesson is awaited and taught.

    Attributes
    ----------
    received : str or None
        The name of the signal that came.
    """

    def __init__(self, cuts_waits: bool = True) -> None:
        self._cuts_waits = cuts_waits
        self.received: str | None = None
        self._is_waiting = False
        self._replaced: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in signal.Signals:
                if signal.getsignal(number) is signal.default_int_handler:
                    signal.signal(number, self._receive)
                    self._replaced.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._replaced:
            signal.signal(number, signal.default_int_handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        is_second = self.received is not None
        self.received = signal.Signals(number).name
        if is_second or (self._is_waiting and self._cuts_waits):
            raise KeyboardInterrupt

    def until_one_comes(self, lessons: Iterator[T]) -> Iterator[T]:
        """The lessons that arrive before a signal does."""
        while self.received is None:
            try:
                self._is_waiting = True
                lesson = next(lessons, None)
                self._is_waiting = False
            except KeyboardInterrupt:
                self._is_waiting = False
                if self.received is None:
                    raise
                return
            if lesson is None:
                return
            yield lesson
