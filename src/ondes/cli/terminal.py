"""What all commands say and how: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress

    from ondes.model_file import AudioSettings
    from ondes.nmf.estimator import OnlineISNMF

DONE, FAILED, MISUSED, SOME_FAILED, INTERRUPTED = 0, 1, 2, 3, 130


def complain(message: str) -> None:
    """One line on standard error, however the message was broken."""
    click.echo(f"ondes: {' '.join(message.split())}", err=True)


def print_json(result: Any) -> None:
    """A result for programs; what JSON has no number for is null."""
    click.echo(json.dumps(_plain(result), indent=2, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A result for people: the first column to the left, the rest to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        click.echo("  ".join(cells).rstrip())


def printable(name: str) -> str:
    """A file's name on one line, whatever is in it."""
    return name if name.isprintable() else ascii(name)


def clock(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3:05 min, 1:02:03 h."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


class Bar:
    """A progress bar over seconds of sound, or nothing where standard error is no terminal."""

    def __init__(self, progress: Progress | None, title: str) -> None:
        self._progress = progress
        self._seconds_before: float | None = None
        if progress is not None:
            self._task = progress.add_task(title, total=None, note="", speed="")

    def show(self, seconds_done: float, seconds_total: float | None, note: str = "") -> None:
        """Draw how far things are."""
        if self._progress is None:
            return
        if self._seconds_before is None:  # a resumed run has done much of it at no time
            self._seconds_before = seconds_done
        elapsed, n_new = self._elapsed(), seconds_done - self._seconds_before
        speed = f"{n_new / elapsed:.0f} × real time" if elapsed > 0.5 else ""
        self._progress.update(
            self._task, completed=seconds_done, total=seconds_total, note=note, speed=speed
        )

    def _elapsed(self) -> float:
        assert self._progress is not None
        return self._progress.tasks[self._task].elapsed or 0.0

    def complain(self, message: str) -> None:
        """One line above the bar."""
        if self._progress is None:
            complain(message)
        else:
            line = f"ondes: {' '.join(message.split())}"
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """Draw a bar on standard error until the end of the block."""
    if not sys.stderr.isatty():
        yield Bar(None, title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} s of sound"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, title)


def gather(inputs: Sequence[str]) -> tuple[list[Path], int]:
    """The recordings that arguments name, and how many arguments name none; each has its line."""
    from ondes.signal.audio import AudioError, find_recordings

    found: list[Path] = []
    n_failed = 0
    for given in inputs:
        try:
            found += find_recordings([given])
        except AudioError as error:
            complain(str(error))
            n_failed += 1
    if "-" in inputs and sys.stdin.isatty():
        raise click.UsageError("Standard input is a terminal; pipe WAV or raw samples into it.")
    return find_recordings(found), n_failed


def load_model(path: str) -> tuple[OnlineISNMF, AudioSettings]:
    """A model that knows how sound becomes frames."""
    from ondes.model_file import ModelFileError, load

    model = load(path)
    if model.audio_ is None:
        raise ModelFileError(
            path, "was learned from arrays, so it does not know about sound; use `ondes learn`"
        )
    return model, model.audio_


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
