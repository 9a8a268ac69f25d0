"""Output of all commands: results to standard output, everything else to standard error."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from ondes.errors import FileError, OndesError, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ondes.learning.dictionary_learning import LearningProgress
    from ondes.models.dictionary import Dictionary
    from ondes.models.trained_separator import TrainedSeparator
    from ondes.signal.locations import Location

DONE, FAILED, SOME_FAILED, INTERRUPTED = 0, 1, 3, 130


def say(text: str, *, err: bool = False) -> None:
    """Print text; where its reader has closed the stream, the work is done all the same."""
    try:
        click.echo(text, err=err)
    except OSError as error:
        stream = sys.stderr if err else sys.stdout
        if isinstance(error, BrokenPipeError) or _is_hung_up(stream, error):
            discard(stream)
            return
        name = "error" if err else "output"
        reason = error.strerror or error
        raise OndesError(f"Standard {name} cannot be written ({reason}).") from error


def discard(stream: TextIO) -> None:
    """Let whatever else is written to a stream disappear."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def _is_hung_up(stream: TextIO, error: OSError) -> bool:
    """Whether a stream was a terminal that somebody has closed."""
    return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)


class _Screen:
    """Standard error for a bar, which a terminal that is closed does not end."""

    def write(self, text: str) -> int:
        self._try(lambda: sys.stderr.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(sys.stderr.flush)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            if not _is_hung_up(sys.stderr, error):
                raise
            discard(sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def _console() -> Console:
    from rich.console import Console

    return Console(file=cast(TextIO, _Screen()))


def open_closed_streams() -> None:
    """Standard streams that were closed at the start lead nowhere, and to no file of ours."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def complain(message: str) -> None:
    """Print a message on one line of standard error."""
    say(_line(message), err=True)


def print_json(result: Any) -> None:
    """Print a result for programs; what JSON has no number for is null."""
    say(json.dumps(_plain(result), indent=2, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the first column aligned to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        say("  ".join(cells).rstrip())


def clock(seconds: float) -> str:
    """Seconds with a unit: 42 s, 3:05 min, 1:02:03 h."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


class Bar:
    """A progress bar over seconds of audio, or nothing where standard error is not a terminal."""

    def __init__(self, progress: Progress | None, title: str) -> None:
        self._progress = progress
        self._seconds_before: float | None = None
        if progress is not None:
            self._task = progress.add_task(title, total=None, audio="", speed="", note="")

    def show(self, seconds_done: float, seconds_total: float | None, note: str = "") -> None:
        """Draw the progress."""
        if self._progress is None:
            return
        if self._seconds_before is None:  # a resumed run starts with most of its seconds done
            self._seconds_before = seconds_done
        elapsed, n_new = self._elapsed(), seconds_done - self._seconds_before
        audio = f"{seconds_done:.0f} s of audio" if seconds_done > 0 else ""
        speed = f"{n_new / elapsed:.0f} × real time" if elapsed > 0.5 and n_new > 0 else ""
        self._progress.update(
            self._task,
            completed=seconds_done,
            total=seconds_total,
            audio=audio,
            speed=speed,
            note=note,
        )

    def show_learning(self, progress: LearningProgress) -> None:
        """Draw the progress of learning."""
        note = f"divergence {progress.divergence:.3f}"
        self.show(progress.seconds_done, progress.seconds_total, note)

    def _elapsed(self) -> float:
        assert self._progress is not None
        return self._progress.tasks[self._task].elapsed or 0.0

    def complain(self, message: str) -> None:
        """Print a message on one line above the bar."""
        if self._progress is None:
            complain(message)
        else:
            console = self._progress.console
            console.print(_line(message), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """Draw a bar on standard error until the end of the block."""
    title = printable(title)
    if not sys.stderr.isatty():
        yield Bar(None, title)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[audio]}"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console(), transient=True) as progress:
        yield Bar(progress, title)


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[float, str], None]]:
    """Draw a bar from 0 to 1 on standard error; the block gets what draws it with a note."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console(), transient=True) as progress:
        task = progress.add_task(title, total=1.0, note="")
        yield lambda share, note: progress.update(task, completed=share, note=note)


@contextmanager
def warnings_shown_by(bar: Bar | None = None) -> Iterator[None]:
    """Print every warning of the block as one line, above the bar if there is one."""
    show = complain if bar is None else bar.complain
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: show(str(message))
        yield


def find_recordings(inputs: Sequence[str]) -> tuple[list[Location], list[FileError]]:
    """The recordings that arguments name, and the arguments that failed, with one line each."""
    from ondes.signal import recordings

    found: list[Location] = []
    failures: list[FileError] = []
    for given in inputs:
        try:
            with warnings_shown_by():
                found += recordings.find_recordings([given])
        except FileError as error:
            complain(str(error))
            failures.append(error)
    if "-" in inputs and sys.stdin.isatty():
        raise click.UsageError("Standard input is a terminal; pipe WAV or raw samples into it.")
    return recordings.canonical_order(found), failures


def listed(failures: Sequence[FileError]) -> dict[str, Any]:
    """How many recordings failed, and which and why, for JSON."""
    each = [{"file": failure.path, "reason": failure.reason} for failure in failures]
    return {"n_failed": len(each), "failures": each}


def save(model: Dictionary | TrainedSeparator, output: Path, force: bool) -> bool:
    """Whether a model could be written as `output`; if not, it is saved elsewhere."""
    try:
        model.save(output, force)
    except FileError as error:
        try:
            folder = Path(tempfile.mkdtemp(prefix="ondes-"))
        except OSError:
            raise error from None
        rescued = folder / output.name
        try:
            model.save(rescued)
        except FileError:
            folder.rmdir()
            raise error from None
        reason = str(error).rstrip(".")
        complain(f"{reason}, so the model was saved as {printable(str(rescued))}.")
        return False
    return True


def _line(message: str) -> str:
    text = f"ondes: {' '.join(message.split())}"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
