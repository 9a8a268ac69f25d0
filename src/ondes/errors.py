"""Every error that ondes raises by itself: one base class, one sentence each."""

from __future__ import annotations

__all__ = ["ClusterError", "DeviceError", "FileError", "OndesError", "printable"]


class OndesError(Exception):
    """Base class of these errors; the message is one sentence that says what to do."""


class FileError(OndesError):
    """A file that cannot be read or written: a recording, a model, a checkpoint, a report.

    Attributes
    ----------
    path : str
        The file.
    reason : str
        What is wrong, and what to do.

    Examples
    --------
    >>> print(FileError("song.wav", "does not exist"))
    song.wav: does not exist.
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(str(path), reason)
        self.path, self.reason = str(path), reason

    def __str__(self) -> str:
        name = "standard input" if self.path == "-" else printable(self.path)
        return f"{name}: {self.reason}."


class DeviceError(OndesError):
    """A device that does not exist or cannot be used."""


class ClusterError(OndesError):
    """A cluster that cannot do the work."""


def printable(name: str) -> str:
    r"""A name on one line that any terminal shows, whatever characters it has.

    Examples
    --------
    >>> print(printable("a\nb"))
    'a\nb'
    """
    return name if name.isprintable() else ascii(name)
