"""Signals that wait while a library calls back into Python."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["deferred_signals"]

NUMBERS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name))


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Answer signals at the end of the block: libsndfile loses what its callbacks raise.

    Ctrl-C inside such a callback would look like a disk that cannot be written to. In other threads
    than the main one there is nothing to do, since handlers do not run there.

    Examples
    --------
    >>> with contextlib.suppress(KeyboardInterrupt), deferred_signals():
    ...     signal.raise_signal(signal.SIGINT)
    ...     print("finished")
    finished
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    handlers = {number: signal.getsignal(number) for number in NUMBERS}
    handlers = {number: each for number, each in handlers.items() if each is not None}
    for number in handlers:
        signal.signal(number, keep)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)
