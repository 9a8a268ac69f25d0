"""Manifests: lists of recordings in a text or CSV file.

One recording per line, a file or a URL; a relative path counts from the manifest's own folder.
Empty lines and lines that begin with ``#`` are skipped, so that M3U playlists are manifests. Where
the first line names columns, one of them ``path``, the file is CSV (or separated by tabs), and may
have the columns ``start`` and ``end``, in seconds. Whatever else it has is ignored.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from ondes.errors import FileError
from ondes.signal.locations import Location, Part, RemotePath, as_location
from ondes.signal.pcm import standard_input
from ondes.signal.remote import RemoteFile

__all__ = ["read_manifest"]

MAX_LINE = 2**16  # characters; a recording that is taken for a manifest has no lines


def read_manifest(path: Path | RemotePath) -> Iterator[Location]:
    r"""The recordings of a manifest, one after the other; none is looked for.

    Parameters
    ----------
    path : Path or RemotePath
        ``-`` for standard input.

    Raises
    ------
    FileError
        Where it cannot be read, or a line makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = Path(folder, "list.csv")
    ...     _ = manifest.write_text("path,start,end\na.wav,1.5,3\ns3://bucket/b.flac,,\n")
    ...     [each.name for each in read_manifest(manifest)]
    ['a.wav#t=1.5,3', 'b.flac']
    """
    remote = RemoteFile(path) if isinstance(path, RemotePath) else None
    folder = Path() if remote is not None or str(path) == "-" else cast(Path, path).parent
    try:
        with _opened(path, remote) as file:
            yield from _locations(_lines(file, path), path, folder)
    except UnicodeDecodeError as error:
        raise FileError(f"@{path}", "is not a manifest: it is not text in UTF-8") from error
    except OSError as error:
        raise FileError(f"@{path}", f"cannot be read ({error.strerror or error})") from error
    if remote is not None and remote.failure is not None:
        raise remote.failure


def _opened(path: Path | RemotePath, remote: RemoteFile | None) -> TextIO:
    raw: Any
    if remote is not None:
        raw = io.BufferedReader(remote)
    elif str(path) == "-":
        raw = io.BufferedReader(cast(Any, standard_input()))
    else:
        raw = cast(Path, path).open("rb")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _locations(lines: Iterator[str], path: Path | RemotePath, folder: Path) -> Iterator[Location]:
    first = next(lines, "")
    delimiter = "\t" if "\t" in first else ","
    header = next(csv.reader([first], delimiter=delimiter), [])
    columns = {name.strip().lower(): number for number, name in enumerate(header)}
    if "path" not in columns:
        for line in itertools.chain([first] if first else [], lines):
            yield as_location(line.strip(), folder)
        return
    for number, row in enumerate(csv.reader(lines, delimiter=delimiter), 1):
        entry = {name: row[at].strip() for name, at in columns.items() if at < len(row)}
        try:
            location = as_location(entry["path"], folder)
            start, end = entry.get("start"), entry.get("end")
            if start or end:
                times = float(start or 0), float(end) if end else None
                location = Part(cast(Path, location), *times)
        except (LookupError, ValueError) as error:
            reason = f"recording {number} has no path, or invalid times ({error})".rstrip(".")
            raise FileError(f"@{path}", reason) from error
        yield location


def _lines(file: TextIO, path: Path | RemotePath) -> Iterator[str]:
    for number in itertools.count(1):
        line = file.readline(MAX_LINE)
        if len(line) == MAX_LINE or "\0" in line:
            raise FileError(f"@{path}", f"is not a manifest: line {number} names no recording")
        if not line:
            return
        if line.strip() and not line.startswith("#"):
            yield line
