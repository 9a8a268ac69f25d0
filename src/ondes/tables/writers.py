"""Tables on disk, written as they grow: CSV, Parquet, NumPy; and labels for Audacity."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from ondes.atomic_file import atomic_path
from ondes.errors import FileError
from ondes.tables.events import Event
from ondes.tables.rows import Rows

__all__ = ["SUFFIXES", "RowWriter", "check_table", "table_writer", "write_labels"]

SUFFIXES = (".csv", ".parquet", ".npz")
STANDARD_OUTPUT = "-"
ROWS_PER_GROUP = 2**14


class RowWriter(Protocol):
    """Takes the rows of a table."""

    def write(self, rows: Rows) -> None:
        """Append rows."""


def check_table(path: str | Path) -> None:
    """Raise an error where `table_writer` could not write a file of this name.

    Raises
    ------
    FileError
        Where the suffix is none of .csv, .parquet and .npz.
    ModuleNotFoundError
        Where pyarrow is missing for .parquet.
    """
    suffix = Path(path).suffix.lower()
    if str(path) != STANDARD_OUTPUT and suffix not in SUFFIXES:
        raise FileError(path, f"is not a table: choose one of {', '.join(SUFFIXES)}")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError("A Parquet table needs pyarrow: pip install 'ondes[tables]'.")


@contextlib.contextmanager
def table_writer(path: str | Path, kind: str, *, force: bool = False) -> Iterator[RowWriter]:
    """Write a table as it grows; it appears when the block ends well, or not at all.

    Parameters
    ----------
    path : str or Path
        Ends with .csv, .parquet or .npz; ``-`` is CSV on standard output.
    kind : {"component", "source"}
        The name of the column that says which.
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
    >>> from ondes.tables.rows import Rows
    >>> one = np.ones(1)
    >>> with table_writer("-", "component") as table:
    ...     table.write(Rows("a.wav", None, ("0",), np.zeros(1, int), one, one + 1, -20 * one, one))
    file,start,end,time,component,level_db,oddness
    a.wav,1,2,,0,-20.00,1.0000
    """
    check_table(path)
    suffix = Path(path).suffix.lower()
    with contextlib.ExitStack() as stack:
        if str(path) == STANDARD_OUTPUT:
            yield CsvWriter(sys.stdout, kind)
            sys.stdout.flush()
            return
        draft = stack.enter_context(atomic_path(path, force))
        if suffix == ".csv":
            file = draft.open("w", encoding="utf-8", errors="surrogateescape", newline="")
            yield CsvWriter(stack.enter_context(file), kind)
        elif suffix == ".parquet":
            yield stack.enter_context(contextlib.closing(ParquetWriter(draft, kind)))
        else:
            columns = NpzColumns(kind, Path(path).absolute().parent, stack)
            yield columns
            columns.save(draft)


class CsvWriter:
    """Rows as text: seconds with three digits, levels with two."""

    def __init__(self, file: IO[str], kind: str) -> None:
        self._file = file
        file.write(f"file,start,end,time,{kind},level_db,oddness\n")

    def write(self, rows: Rows) -> None:
        """Append rows."""
        file, *names = map(_quoted, (rows.recording, *rows.names))
        times = rows.times()
        clock = [""] * len(rows) if times is None else np.datetime_as_string(times).tolist()
        columns = zip(
            rows.start.tolist(), rows.end.tolist(), clock, rows.name.tolist(),
            rows.level.tolist(), rows.oddness.tolist(), strict=True,
        )  # fmt: skip
        self._file.writelines(
            f"{file},{start:.10g},{end:.10g},{time},{names[name]},{level:.2f},{odd:.4f}\n"
            for start, end, time, name, level, odd in columns
        )


class ParquetWriter:
    """Rows as row groups, some of them held back until a group is full."""

    def __init__(self, path: Path, kind: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._kind = kind
        self._schema = pa.schema(
            [
                ("file", pa.dictionary(pa.int32(), pa.string())),
                ("start", pa.float64()),
                ("end", pa.float64()),
                ("time", pa.timestamp("ms")),
                (kind, pa.int32() if kind == "component" else pa.string()),
                ("level_db", pa.float32()),
                ("oddness", pa.float32()),
            ]
        )
        columns = ["file", kind, "start", "end", "time"]
        self._writer = pq.ParquetWriter(
            path, self._schema, compression="snappy", use_dictionary=columns
        )
        self._held: list[Any] = []
        self._n_held = 0

    def write(self, rows: Rows) -> None:
        """Append rows."""
        import pyarrow as pa

        times = rows.times()
        named = rows.name
        if self._kind == "source":
            named = np.array(list(map(_utf8, rows.names)), dtype=object)[rows.name]
        columns = {
            "file": pa.DictionaryArray.from_arrays(
                np.zeros(len(rows), np.int32), pa.array([_utf8(rows.recording)])
            ),
            "start": rows.start,
            "end": rows.end,
            "time": pa.nulls(len(rows), pa.timestamp("ms")) if times is None else times,
            self._kind: pa.array(named, self._schema.field(self._kind).type),
            "level_db": rows.level.astype(np.float32),
            "oddness": rows.oddness.astype(np.float32),
        }
        self._held.append(pa.table(columns, schema=self._schema))
        self._n_held += len(rows)
        if self._n_held >= ROWS_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        """Write what was held back, and the end of the file."""
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._held:
            self._writer.write_table(pa.concat_tables(self._held).unify_dictionaries())
        self._held, self._n_held = [], 0


class NpzColumns:
    """Rows as one array per column: `file` and the component are indices in `files` and `names`."""

    TYPES = {  # noqa: RUF012
        "file": "<i4", "start": "<f8", "end": "<f8", "time": "<M8[ms]", "level_db": "<f4",
        "oddness": "<f4",
    }  # fmt: skip

    def __init__(self, kind: str, folder: Path, stack: contextlib.ExitStack) -> None:
        self._kind, self._types = kind, self.TYPES | {kind: "<i4"}
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
        times = rows.times()
        columns = {
            "file": np.full(len(rows), len(self._files) - 1),
            "start": rows.start,
            "end": rows.end,
            "time": np.full(len(rows), np.datetime64("NaT")) if times is None else times,
            self._kind: rows.name,
            "level_db": rows.level,
            "oddness": rows.oddness,
        }
        for name, values in columns.items():
            self._columns[name].write(values.astype(self._types[name]).tobytes())

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
    ...     write_labels(f"{folder}/a.txt", [Event("a.wav", "frog", 1.0, 2.5, -20.0)])
    ...     Path(f"{folder}/a.txt").read_text()
    '1.000000\t2.500000\tfrog −20.0 dB\n'
    """
    with atomic_path(path, force) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        for event in events:
            level = f"{event.level:.1f} dB".replace("-", "−")
            name = " ".join(_utf8(event.name).split())
            file.write(f"{event.start:.6f}\t{event.end:.6f}\t{name} {level}\n")


def _temporary(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _quoted(text: str) -> str:
    """A field of a CSV file."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([text])
    return line.getvalue()


def _utf8(text: str) -> str:
    """The same, where file names are not valid UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
