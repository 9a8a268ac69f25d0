"""Tables on disk, written as they grow: CSV, Parquet, NumPy, Raven, Kaleidoscope; and labels."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from ondes.atomic_file import atomic_path
from ondes.errors import FileError
from ondes.nmf.divergence import Array
from ondes.tables.events import Event
from ondes.tables.level_blocks import LevelBlock

__all__ = [
    "LAYOUTS",
    "RowWriter",
    "Rows",
    "check_table",
    "rows_of_block",
    "rows_of_events",
    "table_writer",
    "write_labels",
]

STANDARD_OUTPUT = "-"
LAYOUTS = {
    "csv": ".csv",
    "parquet": ".parquet",
    "npz": ".npz",
    "raven": ".txt",
    "kaleidoscope": ".csv",
}
OF_EVENTS = ("raven", "kaleidoscope")
ROWS_PER_GROUP = 2**14
FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for one begins with it
RAVEN_COLUMNS = (
    *("Selection", "View", "Channel", "Begin Time (s)", "End Time (s)"),
    *("Low Freq (Hz)", "High Freq (Hz)", "Begin Path", "File Offset (s)"),
    *("Annotation", "Level (dB)", "Novelty"),
)
KALEIDOSCOPE_COLUMNS = (
    *("INDIR", "FOLDER", "IN FILE", "CHANNEL", "OFFSET", "DURATION", "Fmin", "Fmax"),
    *("DATE", "TIME", "TOP1MATCH", "LEVEL"),
)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one recording, column by column; `name` is an index in `names`."""

    recording: str
    clock: datetime | None
    names: tuple[str, ...]
    name: Array
    start: Array
    end: Array
    level: Array
    novelty: Array
    low: Array | None = None  # of events, in hertz
    high: Array | None = None
    seconds: float = 0.0  # where the recording ends

    def __len__(self) -> int:
        return len(self.start)

    def times(self) -> Array:
        """Clock time of the start of each row, datetime64[ms]; NaT where unknown."""
        if self.clock is None:
            return np.full(len(self), np.datetime64("NaT", "ms"))
        offsets = np.round(1000 * self.start).astype("timedelta64[ms]")
        times: Array = np.datetime64(self.clock, "ms") + offsets
        return times

    def columns(self, kind: str) -> dict[str, Array]:
        """All columns but the file, by their names in a table."""
        columns = {
            "start": self.start,
            "end": self.end,
            "time": self.times(),
            kind: self.name,
            "level_db": self.level,
            "novelty": self.novelty,
        }
        if self.low is not None and self.high is not None:
            columns |= {"low_hz": self.low, "high_hz": self.high}
        return columns


def rows_of_block(block: LevelBlock) -> Rows:
    """One row for each cell and name, in the order of time.

    Examples
    --------
    >>> block = LevelBlock("a", ("0", "1"), np.zeros(1), np.ones(1), np.zeros((1, 2)), np.ones(1))
    >>> rows_of_block(block).name.tolist()
    [0, 1]
    """
    n_cells, n_names = block.levels.shape
    return Rows(
        block.recording,
        block.clock,
        block.names,
        np.tile(np.arange(n_names), n_cells),
        np.repeat(block.start, n_names),
        np.repeat(block.end, n_names),
        block.levels.reshape(-1),
        np.repeat(block.novelty, n_names),
    )


def rows_of_events(events: Sequence[Event], block: LevelBlock) -> Rows:
    """One row for each event of the recording whose last block is `block`.

    Examples
    --------
    >>> block = LevelBlock("a", ("0",), np.zeros(1), np.ones(1), np.zeros((1, 1)), np.ones(1))
    >>> rows_of_events([Event("a", "0", 0.0, 1.0, -20.0)], block).level.tolist()
    [-20.0]
    """
    index = {name: i for i, name in enumerate(block.names)}
    columns = [(e.start, e.end, e.level, e.novelty, e.low, e.high) for e in events]
    name = np.array([index[event.name] for event in events], dtype=int)
    seconds = float(block.end[-1]) if len(block) else 0.0
    start, end, level, novelty, low, high = np.array(columns, np.float64).reshape(-1, 6).T
    return Rows(
        block.recording, block.clock, block.names, name, start, end, level, novelty, low, high,
        seconds,
    )  # fmt: skip


# ---- writers ----


class RowWriter(Protocol):
    """Takes the rows of a table."""

    def write(self, rows: Rows) -> None:
        """Append rows."""


def check_table(path: str | Path, layout: str | None = None) -> str:
    """The layout of a table of this name; an error where `table_writer` could not write it.

    Raises
    ------
    FileError
        Where the suffix is that of no layout, or of another than `layout`.
    ModuleNotFoundError
        Where pyarrow is missing for .parquet.
    """
    suffix = Path(path).suffix.lower()
    known = {".csv": "csv"} | {LAYOUTS[name]: name for name in ("parquet", "npz", "raven")}
    if str(path) == STANDARD_OUTPUT:
        suffix = LAYOUTS[layout or "csv"]
        if suffix not in (".csv", ".txt"):
            raise FileError("-", f"takes text only; name a file that ends in {suffix}")
    if suffix not in known:
        raise FileError(path, f"is not a table: choose one of {', '.join(known)}")
    layout = layout or known[suffix]
    if suffix != LAYOUTS[layout]:
        raise FileError(path, f"is not a name for {layout}: it must end in {LAYOUTS[layout]}")
    if layout == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError("A Parquet table needs pyarrow: pip install 'ondes[tables]'.")
    return layout


@contextlib.contextmanager
def table_writer(
    path: str | Path,
    kind: str,
    *,
    events: bool = False,
    layout: str | None = None,
    force: bool = False,
) -> Iterator[RowWriter]:
    """Write a table as it grows; it appears when the block ends well, or not at all.

    Parameters
    ----------
    path : str or Path
        ``-`` is standard output.
    kind : {"component", "source"}
        The name of the column that says which.
    events : bool
        Whether the rows are events, which have a lowest and a highest frequency.
    layout : {"csv", "parquet", "npz", "raven", "kaleidoscope"}, optional
        By default what the name ends in: .csv, .parquet, .npz, or .txt for Raven. The last two
        are of events.
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    FileError
        Where the file exists already, cannot be written, or has another suffix.
    ModuleNotFoundError
        Where pyarrow is missing for .parquet.

    Examples
    --------
    >>> from ondes.tables.writers import Rows
    >>> one = np.ones(1)
    >>> with table_writer("-", "component") as table:
    ...     table.write(Rows("a.wav", None, ("0",), np.zeros(1, int), one, one + 1, -20 * one, one))
    file,start,end,time,component,level_db,novelty
    a.wav,1,2,,0,-20.00,1.0000
    """
    layout = check_table(path, layout)
    if layout in OF_EVENTS and not events:
        raise ValueError(f"A table for {layout.title()} lists events: give events=True.")
    of_text: dict[str, Callable[[IO[str], str, bool], RowWriter]]
    of_text = {"csv": CsvWriter, "raven": RavenWriter, "kaleidoscope": KaleidoscopeWriter}
    with contextlib.ExitStack() as stack:
        if str(path) == STANDARD_OUTPUT:
            if isinstance(sys.stdout, io.TextIOWrapper):  # names may have any bytes
                sys.stdout.reconfigure(errors="surrogateescape")
            yield of_text[layout](sys.stdout, kind, events)
            sys.stdout.flush()
            return
        draft = stack.enter_context(atomic_path(path, force))
        if layout in of_text:
            file = draft.open("w", encoding="utf-8", errors="surrogateescape", newline="")
            yield of_text[layout](stack.enter_context(file), kind, events)
        elif layout == "parquet":
            writing = contextlib.closing(ParquetWriter(draft, kind, events))
            yield stack.enter_context(writing)
        else:
            columns = NpzColumns(kind, events, Path(path).absolute().parent, stack)
            yield columns
            columns.save(draft)


class CsvWriter:
    """Rows as text: seconds with three digits, levels with two."""

    def __init__(self, file: IO[str], kind: str, events: bool) -> None:
        self._file, self._kind = file, kind
        bounds = ",low_hz,high_hz" if events else ""
        file.write(f"file,start,end,time,{kind},level_db,novelty{bounds}\n")

    def write(self, rows: Rows) -> None:
        """Append rows."""
        file, *names = map(_cell, (rows.recording, *rows.names))
        columns = {name: each.tolist() for name, each in rows.columns(self._kind).items()}
        columns["time"] = _clock_texts(rows)
        for start, end, time, name, level, novelty, *bounds in zip(*columns.values(), strict=True):
            cells = "".join(f",{_number(each, 0)}" for each in bounds)
            self._file.write(
                f"{file},{start:.10g},{end:.10g},{time},{names[name]},{level:.2f},"
                f"{_number(novelty, 4)}{cells}\n"
            )


class RavenWriter:
    """A Raven selection table; several recordings count as one sequence, in their order."""

    def __init__(self, file: IO[str], kind: str, events: bool) -> None:
        self._file, self._n_rows, self._before = file, 0, 0.0
        file.write("\t".join(RAVEN_COLUMNS) + "\n")

    def write(self, rows: Rows) -> None:
        """Append rows."""
        path = _escaped(_utf8(_path_of(rows.recording)))
        for event in _events_of(rows):
            self._n_rows += 1
            begin, end = self._before + event.start, self._before + event.end
            self._file.write(
                f"{self._n_rows}\tSpectrogram 1\t1\t{begin:.6f}\t{end:.6f}\t"
                f"{_number(event.low, 1)}\t{_number(event.high, 1)}\t{path}\t{event.start:.6f}\t"
                f"{_escaped(_utf8(event.name))}\t{event.level:.2f}\t{_number(event.novelty, 4)}\n"
            )
        self._before += rows.seconds


class KaleidoscopeWriter:
    """Rows as Kaleidoscope reads them (File, Open Results): offset, duration, frequencies."""

    def __init__(self, file: IO[str], kind: str, events: bool) -> None:
        self._file = file
        file.write(",".join(KALEIDOSCOPE_COLUMNS) + "\n")

    def write(self, rows: Rows) -> None:
        """Append rows."""
        path = _path_of(rows.recording)
        folder, _, file = path.rpartition("/" if "/" in path else "\\")
        folder, file = _cell(folder), _cell(file)
        for event, time in zip(_events_of(rows), _clock_texts(rows), strict=True):
            day, _, second = time.partition("T")
            self._file.write(
                f"{folder},,{file},0,{event.start:.3f},{event.end - event.start:.3f},"
                f"{_number(event.low, 0)},{_number(event.high, 0)},{day},{second[:8]},"
                f"{_cell(event.name)},{event.level:.2f}\n"
            )


class ParquetWriter:
    """Rows as row groups: rows are held as they are until a group is full."""

    def __init__(self, path: Path, kind: str, events: bool) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._kind = kind
        fields = [
            ("file", pa.dictionary(pa.int32(), pa.string())),
            ("start", pa.float64()),
            ("end", pa.float64()),
            ("time", pa.timestamp("ms")),
            (kind, pa.int32() if kind == "component" else pa.string()),
            ("level_db", pa.float32()),
            ("novelty", pa.float32()),
        ]
        bounds = [(name, pa.float32()) for name in ("low_hz", "high_hz")] if events else []
        self._schema = pa.schema([*fields, *bounds])
        columns = ["file", kind, "start", "end", "time"]
        self._writer = pq.ParquetWriter(
            path, self._schema, compression="snappy", use_dictionary=columns
        )
        self._held: list[Rows] = []
        self._n_held = 0

    def write(self, rows: Rows) -> None:
        """Append rows."""
        self._held.append(rows)
        self._n_held += len(rows)
        if self._n_held >= ROWS_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        """Write what was held back, and the end of the file."""
        if self._held:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        held = self._held
        each = [rows.columns(self._kind) for rows in held]
        if self._kind == "source":
            for columns, rows in zip(each, held, strict=True):
                columns["source"] = np.array(list(map(_utf8, rows.names)), dtype=object)[rows.name]
        group: dict[str, Any] = {
            name: pa.array(np.concatenate([columns[name] for columns in each]), field.type)
            for name, field in zip(self._schema.names[1:], list(self._schema)[1:], strict=True)
        }
        files = {rows.recording: None for rows in held}
        numbers = {name: number for number, name in enumerate(files)}
        indices = np.repeat(
            [numbers[rows.recording] for rows in held], [len(rows) for rows in held]
        )
        names = pa.array([_utf8(name) for name in files])
        group["file"] = pa.DictionaryArray.from_arrays(indices.astype(np.int32), names)
        self._writer.write_table(pa.table(group, schema=self._schema))
        self._held, self._n_held = [], 0


class NpzColumns:
    """Rows as one array per column: `file` and the component are indices in `files` and `names`."""

    def __init__(self, kind: str, events: bool, folder: Path, stack: contextlib.ExitStack) -> None:
        names = ["low_hz", "high_hz"] if events else []
        self._kind = kind
        self._types = {
            "file": "<i4", "start": "<f8", "end": "<f8", "time": "<M8[ms]", "level_db": "<f4",
            "novelty": "<f4", **dict.fromkeys(names, "<f4"), kind: "<i4",
        }  # fmt: skip
        self._columns: dict[str, IO[bytes]] = {
            name: stack.enter_context(_temporary(folder)) for name in self._types
        }
        self._files: list[str] = []
        self._names: tuple[str, ...] = ()

    def write(self, rows: Rows) -> None:
        """Append rows."""
        if not self._files or self._files[-1] != rows.recording:
            self._files.append(rows.recording)
        self._names = rows.names
        columns = rows.columns(self._kind) | {"file": np.full(len(rows), len(self._files) - 1)}
        for name, kind in self._types.items():
            self._columns[name].write(columns[name].astype(kind).tobytes())

    def save(self, path: Path) -> None:
        """Put the columns together as one file for `numpy.load`."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, kind in self._types.items():
                column = self._columns[name]
                n_rows = column.tell() // np.dtype(kind).itemsize
                column.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    header = {"descr": kind, "fortran_order": False, "shape": (n_rows,)}
                    np.lib.format.write_array_header_1_0(member, header)
                    shutil.copyfileobj(column, member, 2**20)
            for name, texts in (("files", self._files), ("names", self._names)):
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, np.array(texts, dtype=np.str_))


def write_labels(path: str | Path, events: Sequence[Event], *, force: bool = False) -> None:
    r"""Write events as a label track for Audacity (File, Import, Labels).

    An event with frequencies is a spectral selection.

    Parameters
    ----------
    path : str or Path
    events : sequence of Event
        Of one recording.
    force : bool
        Whether an existing file may be replaced.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     event = Event("a.wav", "frog", 1.0, 2.5, -20.0, low=800, high=1200)
    ...     write_labels(f"{folder}/a.txt", [event])
    ...     Path(f"{folder}/a.txt").read_text()
    '1.000000\t2.500000\tfrog −20.0 dB\n\\\t800.000000\t1200.000000\n'
    """
    with atomic_path(path, force) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        for event in events:
            level = f"{event.level:.1f} dB".replace("-", "−")
            name = _escaped(" ".join(_utf8(event.name).split()))
            file.write(f"{event.start:.6f}\t{event.end:.6f}\t{name} {level}\n")
            if np.isfinite(event.low):
                file.write(f"\\\t{event.low:.6f}\t{event.high:.6f}\n")


# ---- cells ----


def _events_of(rows: Rows) -> Iterator[Event]:
    """The rows of events, one by one."""
    assert rows.low is not None
    assert rows.high is not None
    columns = (rows.name, rows.start, rows.end, rows.level, rows.novelty, rows.low, rows.high)
    for name, *cells in zip(*(each.tolist() for each in columns), strict=True):
        yield Event(rows.recording, rows.names[name], *cells)


def _clock_texts(rows: Rows) -> list[str]:
    if rows.clock is None:
        return [""] * len(rows)
    texts: list[str] = np.datetime_as_string(rows.times()).tolist()
    return texts


def _number(value: float, digits: int) -> str:
    """Empty where it is unknown."""
    return "" if np.isnan(value) else f"{value:.{digits}f}"


def _temporary(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _cell(text: str) -> str:
    """A field of a CSV file, which no terminal obeys and no spreadsheet takes for a formula."""
    text = _escaped(text)
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([f"'{text}" if text[:1] in FORMULA else text])
    return line.getvalue()


def _escaped(text: str) -> str:
    """Control characters as Python writes them; what is not valid UTF-8 stays."""
    return "".join(
        each if each.isprintable() or "\ud800" <= each <= "\udfff" else ascii(each)[1:-1]
        for each in text
    )


def _path_of(recording: str) -> str:
    """Where it lies; what was dropped onto a page is a name alone."""
    local = Path(recording)
    is_known = "://" not in recording and (local.name != recording or local.exists())
    return str(local.absolute()) if is_known else recording


def _utf8(text: str) -> str:
    """The same, where file names are not valid UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
