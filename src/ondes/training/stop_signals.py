"""Ctrl-C and SIGTERM end training between two updates, never during one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

__all__ = ["StopSignals"]


class StopSignals:
    """Turns the signals that raise KeyboardInterrupt into a request to stop; a context manager.

    These are SIGINT, and whatever else has Python's SIGINT handler: the command line gives it to
    SIGTERM and SIGHUP. A second signal raises KeyboardInterrupt as usual.

    Parameters
    ----------
    enabled : bool
        Whether to handle signals at all.

    Attributes
    ----------
    received : str or None
        The name of the signal that came.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self.received: str | None = None
        self._replaced: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if self._enabled and threading.current_thread() is threading.main_thread():
            valid = signal.valid_signals()  # on Windows, two of the enumeration are not
            for number in signal.Signals:
                if number in valid and signal.getsignal(number) is signal.default_int_handler:
                    signal.signal(number, self._receive)
                    self._replaced.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._replaced:
            signal.signal(number, signal.default_int_handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    def is_requested(self) -> bool:
        """Whether to stop; whoever waits for something asks again and again."""
        return self.received is not None
