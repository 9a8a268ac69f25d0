"""Long work in the background: one job at a time, with progress and cancel."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath

from ondes.errors import FileError, OndesError, printable

__all__ = ["Busy", "Cancelled", "Job", "Jobs", "Progress"]


class Cancelled(Exception):  # noqa: N818
    """Raised inside a job that the user has cancelled."""


class Busy(OndesError):  # noqa: N818
    """Another job is running."""


@dataclass(frozen=True)
class Job:
    """Where a job stands.

    Parameters
    ----------
    id : int
    title : str
        What it does, as the page says it.
    state : {"running", "done", "failed", "cancelled"}
    fraction : float or None
        From 0 to 1, None where unknown.
    error : str or None
        One sentence.
    """

    id: int
    title: str
    state: str = "running"
    fraction: float | None = None
    error: str | None = None


class Progress:
    """What a job calls again and again: it reports, and raises `Cancelled` when that is wanted."""

    def __init__(self, report: Callable[[float | None, str | None], None]) -> None:
        self._report = report
        self._cancelled = threading.Event()

    def __call__(self, fraction: float | None = None, title: str | None = None) -> None:
        """Report the fraction that is done and, where it has changed, what is being done."""
        if self._cancelled.is_set():
            raise Cancelled
        self._report(fraction, title)

    def cancel(self) -> None:
        """Make the next report raise `Cancelled`."""
        self._cancelled.set()


class Jobs:
    """Runs one job at a time in a thread.

    Parameters
    ----------
    changed : callable
        Called whenever a job has begun or ended.

    Examples
    --------
    >>> jobs = Jobs()
    >>> jobs.start("counting", lambda progress: progress(0.5))
    1
    >>> jobs.join()
    >>> jobs.current.state
    'done'
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._progress: Progress | None = None
        self.current: Job | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job is running."""
        return self.current is not None and self.current.state == "running"

    def start(self, title: str, work: Callable[[Progress], object]) -> int:
        """Begin a job and return its id; `Busy` where another one is running."""
        with self._lock:
            if self.is_busy:
                raise Busy("Something else is being computed; wait for it, or cancel it first.")
            number = 1 if self.current is None else self.current.id + 1
            self.current = Job(number, title)
            self._progress = Progress(self._report)
            self._thread = threading.Thread(
                target=self._run, args=(work, self._progress), daemon=True, name="studio job"
            )
            self._thread.start()
        self._changed()
        return number

    def cancel(self) -> None:
        """Ask the running job to end, if there is one."""
        if self._progress is not None:
            self._progress.cancel()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the job has ended, but not longer than some seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def is_alive(self) -> bool:
        """Whether the thread of a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def _report(self, fraction: float | None, title: str | None) -> None:
        assert self.current is not None
        self.current = replace(self.current, fraction=fraction, title=title or self.current.title)

    def _run(self, work: Callable[[Progress], object], progress: Progress) -> None:
        assert self.current is not None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work(progress)
            self.current = replace(self.current, state="done", fraction=1.0)
        except Cancelled:
            self.current = replace(self.current, state="cancelled")
        except Exception as error:  # the page reports it, and the server keeps running
            self.current = replace(self.current, state="failed", error=sentence(error))
        self._changed()


def sentence(error: BaseException) -> str:
    """One sentence for the page, whatever the error is; it names files without their folder."""
    message = " ".join(str(error).split())
    if isinstance(error, FileError):
        message = f"{printable(PurePath(error.path).name)}: {error.reason}"
    elif isinstance(error, OSError):
        message = error.strerror or type(error).__name__
    if isinstance(error, (OndesError, ValueError, OSError, ImportError)) and message:
        return message if message.endswith(".") else f"{message}."
    if isinstance(error, MemoryError):
        return "There is not enough memory for this; select a shorter part."
    return f"Something unexpected happened ({type(error).__name__}: {message})."
