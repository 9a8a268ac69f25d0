"""A cache with a bound on its bytes; what was not used for longest leaves first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

__all__ = ["BytesCache"]


class BytesCache:
    """Remembers bytes by key, up to a number of bytes in all.

    Equal keys that are asked for at the same time are computed once.

    Examples
    --------
    >>> cache = BytesCache(10)
    >>> cache.get("a", lambda: b"12345678"), cache.get("b", lambda: b"12345678")
    (b'12345678', b'12345678')
    >>> cache.n_bytes
    8
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, bytes] = OrderedDict()
        self._being_made: dict[Hashable, threading.Lock] = {}
        self.n_bytes = 0

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The bytes of a key, made where they are not remembered."""
        with self._lock:
            turn = self._being_made.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key]
            try:
                data = make()
            finally:
                with self._lock:
                    self._being_made.pop(key, None)
            with self._lock:
                self._entries[key] = data
                self.n_bytes += len(data)
                while self.n_bytes > self._max_bytes and len(self._entries) > 1:
                    _, oldest = self._entries.popitem(last=False)
                    self.n_bytes -= len(oldest)
            return data
