"""`ondes levels`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.models import as_model, load_models
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.models.model import Model
    from ondes.tables import Event, LevelBlock


@click.command(short_help="Write a table of what sounds when.")
@click.argument("files", nargs=-1, required=True)
@options.dictionaries(required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="The table to write: .csv, .parquet, .npz or, for Raven, .txt; - is standard output.",
)
@click.option(
    "--format",
    "layout",
    type=click.Choice(["csv", "parquet", "npz", "raven", "kaleidoscope"]),
    help="What to write as -o.  [default: what its name ends in]",
)
@click.option(
    "--every",
    type=click.FloatRange(0.001),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Time from one row to the next.",
)
@click.option(
    "--by",
    type=click.Choice(["component", "source"]),
    help="Measure each component or each source.  [default: source, if there are several]",
)
@click.option(
    "--source",
    "kept",
    multiple=True,
    metavar="NAME",
    help="Write this source, or component number, alone; may be repeated.",
)
@click.option(
    "--threshold",
    type=float,
    metavar="DB",
    help="Write events instead: spans of time in which the level is above this.",
)
@click.option(
    "--min-length",
    type=click.FloatRange(0),
    metavar="SECONDS",
    default=0.0,
    help="Leave out shorter events.",
)
@click.option(
    "--min-gap",
    type=click.FloatRange(0),
    metavar="SECONDS",
    default=0.0,
    help="Join events with a shorter pause between them.",
)
@click.option(
    "--labels",
    type=click.Path(),
    callback=options.no_minus,
    metavar="FILE",
    help="Also write the events as labels for Audacity, in a folder if there are several FILES.",
)
@options.span
@options.raw
@options.compute
@options.force
@options.as_json
def levels(files: tuple[str, ...], **given: Any) -> int:
    """Write a table of what sounds when in FILES: recordings, folders, glob patterns.

    The columns are file, start, end, time, component or source, level_db and novelty. A level is
    that of the component or source when it is played alone, in dB relative to full scale. The time
    is clock time, if the name of a file contains it, as in 20240131_063000.wav. Novelty says how
    badly the models explain that moment. Events also have low_hz and high_hz, between which nine
    tenths of their power lie. Memory does not grow with the length of the recordings.

    \b
    ondes levels pond/ -d pond.ondes -o pond.csv
    ondes levels pond/ -d frog.ondes -d rain.ondes --by source -o pond.parquet
    ondes levels night.wav -d pond.ondes --every 0.2 --threshold -45 --min-length 0.5 \\
        -o calls.csv --labels night.txt
    ondes levels field/ -d call.ondes -d rain.ondes --source call --threshold -45 -o calls.txt
    """  # noqa: D301
    compute = options.compute_settings(given)
    options.check_span(given)
    _check_usage(given)
    models, kind = _model(given)
    _check_kept(models, kind, given)
    recordings, failures = terminal.find_recordings(files)
    _check_sequence(recordings, given)
    n_files = len(recordings) + len(failures)
    labels = _label_files(recordings, given)
    work = _Work(kind, given, compute, labels, failures)
    if recordings:
        work.run(models, recordings)
    n_done = work.n_done
    if given["as_json"]:
        result = {"table": given["output"], "labels": work.written, "rows": work.n_rows}
        terminal.print_json(result | {"n_files": n_files, **terminal.listed(failures)})
    elif given["output"] != "-":
        written = [given["output"]] if given["output"] is not None and n_done else []
        for path in (*written, *work.written):
            terminal.say(printable(str(path)))
    if failures:
        return terminal.SOME_FAILED if n_done else terminal.FAILED
    return terminal.DONE


def _check_usage(given: dict[str, Any]) -> None:
    from ondes.atomic_file import check_destination
    from ondes.tables import OF_EVENTS, check_table

    if given["output"] is None and given["labels"] is None:
        raise click.UsageError("Nothing to write: give -o, or --labels with --threshold.")
    if given["threshold"] is None:
        for option in ("labels", "min_length", "min_gap"):
            if given[option]:
                name = option.replace("_", "-")
                raise click.UsageError(f"--{name} needs --threshold, the level of an event.")
    if given["as_json"] and given["output"] == "-":
        raise click.UsageError("-o - and --json both need standard output; give one of them.")
    if given["output"] is None:
        if given["layout"] is not None:
            raise click.UsageError("--format needs -o, the table to write.")
        return
    layout = check_table(given["output"], given["layout"])
    if layout in OF_EVENTS and given["threshold"] is None:
        raise click.UsageError(
            f"A table for {layout.title()} lists events: give --threshold, their level."
        )
    if given["output"] != "-":
        check_destination(given["output"], given["force"])


def _model(given: dict[str, Any]) -> tuple[Model, str]:
    """The model, and whether its components or its sources have levels."""
    from ondes.models.sources import Sources

    model, by = as_model(load_models(given["dictionaries"])), given["by"]
    if isinstance(model, Sources):
        return model, by or ("source" if len(model.names) > 1 else "component")
    if by == "component":
        raise click.UsageError("A trained separator has no components; leave out --by.")
    return model, "source"


def _check_kept(model: Any, kind: str, given: dict[str, Any]) -> None:
    names = model.names if kind == "source" else tuple(map(str, range(model.n_components)))
    for name in given["kept"]:
        if name not in names:
            of = ", ".join(map(printable, names)) if kind == "source" else f"0 to {names[-1]}"
            raise click.UsageError(f"--source {printable(name)} is not one of the {kind}s: {of}.")


def _check_sequence(recordings: Sequence[Any], given: dict[str, Any]) -> None:
    is_part = given["start"] > 0 or given["end"] is not None
    if is_part and len(recordings) > 1 and str(given["output"]).lower().endswith(".txt"):
        raise click.UsageError(
            "Raven counts the time of several recordings from the first one on: leave out --start "
            "and --end, or write one table per recording."
        )


def _label_files(recordings: Sequence[Any], given: dict[str, Any]) -> dict[str, Path]:
    """The label track of each recording, checked before any work."""
    from ondes.atomic_file import check_destination

    if given["labels"] is None:
        return {}
    target = Path(given["labels"])
    if given["output"] is not None and target.absolute() == Path(given["output"]).absolute():
        raise click.UsageError("-o and --labels name the same file.")
    if len(recordings) == 1 and not target.is_dir():
        check_destination(target, given["force"])
        return {str(recordings[0]): target}
    if not target.is_dir() and (target.exists() or target.suffix.lower() == ".txt"):
        raise click.UsageError(
            f"--labels {printable(str(target))} is one file, and each of the {len(recordings)} "
            "recordings gets its own; name a folder."
        )
    names = {str(path): target / f"{_stem(path)}.txt" for path in recordings}
    if len(set(names.values())) < len(names):
        raise click.UsageError(
            "Two recordings have the same name, so their label files would, too; "
            "give them one by one."
        )
    for path in filter(Path.exists, names.values()):
        check_destination(path, given["force"])
    return names


def _stem(path: Any) -> str:
    stem = "stdin" if str(path) == "-" else Path(str(path)).stem
    return stem if stem.strip(".") else "_"


class _Work:
    """One run over all recordings."""

    def __init__(
        self,
        kind: str,
        given: dict[str, Any],
        compute: dict[str, Any],
        labels: dict[str, Path],
        failures: list[FileError],
    ) -> None:
        self._kind, self._given, self._compute = kind, given, compute
        self._labels, self._failures = labels, failures
        self.n_done = self.n_rows = 0
        self._seconds = 0.0
        self.written: list[Path] = []

    def run(self, models: Any, recordings: Sequence[Any]) -> None:
        """Measure all recordings; a table of nothing is not written."""
        from ondes.tables import table_writer

        output = self._given["output"]
        with contextlib.suppress(_NothingMeasured), contextlib.ExitStack() as stack:
            bar = stack.enter_context(terminal.bar("measuring"))
            stack.enter_context(terminal.warnings_shown_by(bar))
            table = None
            if output is not None:
                table = stack.enter_context(
                    table_writer(
                        output,
                        self._kind,
                        events=self._given["threshold"] is not None,
                        layout=self._given["layout"],
                        force=self._given["force"],
                    )
                )
            for recording in recordings:
                try:
                    self._measure(recording, models, table, bar)
                except (FileError, ValueError) as error:
                    named = error
                    if not isinstance(named, FileError):
                        named = FileError(recording, str(error).rstrip("."))
                    bar.complain(str(named))
                    self._failures.append(named)
            if not self.n_done:
                raise _NothingMeasured

    def _measure(self, recording: Any, models: Any, table: Any, bar: terminal.Bar) -> None:
        from ondes.tables import EventFinder, recording_levels, rows_of_block, rows_of_events

        given = self._given
        finder = None
        if given["threshold"] is not None:
            lengths = {"min_length": given["min_length"], "min_gap": given["min_gap"]}
            finder = EventFinder(given["threshold"], **lengths)
        events: list[Event] = []
        block: LevelBlock | None = None
        try:
            for block in recording_levels(
                recording, models, by=self._kind, every=given["every"], start=given["start"],
                end=given["end"], raw=given["raw"], bounds=finder is not None, **self._compute,
            ):  # fmt: skip
                block = block.only(given["kept"]) if given["kept"] else block
                if finder is None:
                    self._write(table, rows_of_block(block))
                else:
                    events += finder.push(block)
                self._seconds += float(block.end[-1] - block.start[0])
                bar.show(self._seconds, None, printable(str(recording)))
        finally:  # what was measured before any damage stays
            if block is not None:
                self.n_done += 1
                if finder is not None:
                    events += finder.flush()
                    self._write(table, rows_of_events(events, block))
                self._write_labels(str(recording), events)

    def _write(self, table: Any, rows: Any) -> None:
        self.n_rows += len(rows)
        if table is not None:
            table.write(rows)

    def _write_labels(self, recording: str, events: Sequence[Event]) -> None:
        from ondes.tables import write_labels

        if recording in self._labels:
            path = self._labels[recording]
            if len(self._labels) > 1:
                path.parent.mkdir(parents=True, exist_ok=True)
            write_labels(path, events, force=self._given["force"])
            self.written.append(path)


class _NothingMeasured(Exception):  # noqa: N818
    """No recording could be read."""
