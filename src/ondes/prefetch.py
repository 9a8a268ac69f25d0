"""Work done ahead: a thread makes the next items while those before are used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from queue import Empty, SimpleQueue
from typing import TypeVar

__all__ = ["prefetch"]

Item = TypeVar("Item")

STOP_WAIT_S = 2.0
POLL_S = 0.1


def prefetch(
    items: Iterable[Item],
    n: int,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    stop: threading.Event | None = None,
) -> Generator[Item]:
    """The same items, made in a thread, up to `n` of them before they are asked for.

    Parameters
    ----------
    items : iterable
        What its iterator raises is raised here, after all items before.
    n : int
    should_stop : callable
        Asked while nothing comes: where it returns true, the generator ends.
    stop : threading.Event, optional
        Set when the generator ends, for items that take long to make.

    Examples
    --------
    >>> list(prefetch(range(3), 2))
    [0, 1, 2]
    """
    ready: SimpleQueue[tuple[Item] | BaseException | None] = SimpleQueue()
    room = threading.Semaphore(n)
    stop = stop or threading.Event()
    iterator = iter(items)

    def work() -> None:
        try:
            while room.acquire() and not stop.is_set():
                # Nothing here keeps the item: it may be freed while the next one is made.
                ready.put((next(iterator),))
        except StopIteration:
            ready.put(None)
        except BaseException as error:
            ready.put(error)
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    worker = threading.Thread(target=work, name="ondes-prefetch", daemon=True)
    worker.start()
    try:
        while not should_stop():
            try:
                found = ready.get(timeout=POLL_S)
            except Empty:
                continue
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            room.release()
            yield found[0]
            del found
    finally:
        stop.set()
        room.release()
        # A pipe that is blocked may hold the worker forever: leave it behind then.
        worker.join(STOP_WAIT_S)
