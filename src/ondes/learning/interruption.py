"""What may interrupt a run: recordings that cannot be read, and signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

from ondes.errors import FileError

__all__ = ["Failures", "StopSignals"]


class Failures:
    """The unreadable recordings of a run: each is reported once, or raised without a callback.

    Parameters
    ----------
    on_error : callable, optional
        Called with the path and the `FileError`.
    """

    def __init__(self, on_error: Callable[[str, FileError], object] | None = None) -> None:
        self.reasons: dict[str, str] = {}
        self._on_error = on_error

    def __call__(self, path: str, error: FileError) -> None:
        """Report a recording."""
        if path in self.reasons:
            return
        self.reasons[path] = error.reason
        if self._on_error is None:
            raise error
        self._on_error(path, error)


class StopSignals:
    """Turns the signals that raise KeyboardInterrupt into a request to stop; a context manager.

    These are SIGINT, and whatever else has Python's SIGINT handler: the command line gives it to
    SIGTERM and SIGHUP. Training then ends between two updates, never during one. A second signal
    raises KeyboardInterrupt as usual.

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
