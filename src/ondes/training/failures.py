"""Recordings that could not be read."""

from __future__ import annotations

from collections.abc import Callable

from ondes.errors import FileError

__all__ = ["Failures"]


class Failures:
    """The unreadable recordings of a run: each is reported once, or raised if nobody listens.

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
