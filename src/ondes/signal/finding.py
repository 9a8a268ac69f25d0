"""Which recordings are meant: files, folders, globs, URLs and manifests become a list.

A manifest lists one recording per line, a file or a URL; a relative path counts from the manifest's
own folder. Empty lines and lines that begin with ``#`` are skipped, so that M3U playlists are
manifests. Where the first line names columns, one of them ``path``, the file is CSV (or separated
by tabs), and may have the columns ``start`` and ``end``, in seconds. Whatever else it has is
ignored. A selection table of Raven names its recordings in other columns, or is named after one.
"""

from __future__ import annotations

import csv
import functools
import glob
import io
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from ondes.errors import FileError
from ondes.signal import remote
from ondes.signal.locations import Location, RemotePath, Span, as_location
from ondes.signal.pcm import standard_input
from ondes.signal.remote import RemoteFile

__all__ = ["SUFFIXES", "FoundRecordings", "canonical_order", "find_recordings", "read_manifest"]

MAX_REASON = 200  # characters of what a line is wrong with
MAX_LINE = 2**16  # characters; a recording that is taken for a manifest has no lines
SUFFIXES = tuple(
    f".{suffix}"
    for suffix in (
        *("wav", "wave", "flac", "ogg", "oga", "opus", "aif", "aiff", "aifc", "au", "caf"),
        *("w64", "rf64", "mp3", "mp2", "m4a", "m4b", "aac", "wma"),
        *("mp4", "m4v", "mov", "mkv", "mka", "webm", "avi"),
    )
)


class FoundRecordings(list[Location]):
    """What `find_recordings` found: it need not look for them again."""


def find_recordings(inputs: str | Location | Iterable[str | Location]) -> list[Location]:
    """List the recordings that files, folders and globs name, each once, in a canonical order.

    Parameters
    ----------
    inputs : str, Path, RemotePath, Span, or iterable of these
        Files, folders (searched recursively, by suffix) and globs (``**`` matches folders).
        URLs, folders and globs of URLs. ``@list.txt`` for a manifest, which lists recordings.
        ``-``, standard input, stays as it is.

    Returns
    -------
    list of Path, RemotePath or Span
        Sorted by absolute path, whatever the order of `inputs`.

    Raises
    ------
    FileError
        Where a file is missing, or a folder or glob has no recording.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.wav", "a.flac", "notes.txt"):
    ...         Path(folder, name).touch()
    ...     [path.name for path in find_recordings(folder)]
    ['a.flac', 'b.wav']
    """
    if isinstance(inputs, FoundRecordings):
        return inputs
    if isinstance(inputs, (str, Path, RemotePath, Span)):
        inputs = [inputs]
    return canonical_order(path for given in inputs for path in _expand(given))


def canonical_order(locations: Iterable[str | Location]) -> list[Location]:
    """Each recording once, sorted by absolute path; of several spellings, always the same one."""
    folder_of = functools.lru_cache(maxsize=1024)(os.path.realpath)
    spellings: dict[tuple[str, float, float], Location] = {}
    for given in locations:
        location = as_location(given)
        key = _key(location, folder_of)
        known = spellings.get(key)
        is_first = known is None or _in_parts(str(location)) < _in_parts(str(known))
        if is_first:
            spellings[key] = location
    return FoundRecordings(spellings[key] for key in sorted(spellings))


def _key(location: Location, folder_of: functools._lru_cache_wrapper[str]) -> _Key:
    """What sorts recordings, local ones first, and is equal for the same recording."""
    start, end = 0.0, float("inf")
    if isinstance(location, Span):
        start, end = location.start, end if location.end is None else location.end
        location = location.path
    if isinstance(location, RemotePath):
        return f"\uffff{_in_parts(location.url)}", start, end
    folder, name = os.path.split(location)
    path = os.path.join(folder_of(folder), name)  # noqa: PTH118 - a million of them
    if name in ("", ".", "..") or os.path.islink(path):  # noqa: PTH114
        path = os.path.realpath(path)
    return _in_parts(path), start, end


_Key = tuple[str, float, float]


def _in_parts(path: str) -> str:
    """A path that sorts as its parts do one after the other."""
    return path.replace(os.sep, "\0")


def _is_manifest(given: str | Location) -> bool:
    """Whether an argument is ``@`` and a manifest's name, and not the name of a file."""
    return isinstance(given, str) and given.startswith("@") and not os.path.lexists(given)


def _listed(given: str) -> Iterator[Location]:
    manifest = as_location(given[1:])
    is_empty = True
    for location in read_manifest(cast(Path | RemotePath, manifest)):
        is_empty = False
        yield location
    if is_empty:
        raise FileError(given, "lists no recordings")


def _expand(given: str | Location) -> Iterator[Location]:
    location = as_location(given)
    if isinstance(location, Span):
        yield location
    elif isinstance(location, RemotePath):
        yield from remote.expand(location, SUFFIXES)
    elif _is_manifest(given):
        yield from _listed(str(given))
    elif location.is_dir():
        found = [p for p in location.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
        if not found:
            raise FileError(location, "has no recordings in it")
        yield from found
    elif str(given) == "-" or os.path.lexists(location):
        yield location
    elif not glob.has_magic(str(given)):
        raise FileError(location, "does not exist")
    else:
        matches = [Path(name) for name in glob.glob(str(given), recursive=True)]  # noqa: PTH207
        files = [match for match in matches if match.is_file()]
        if not files:
            raise FileError(location, "matches no files")
        yield from files


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
    is_raven = {"begin time (s)", "end time (s)"} <= columns.keys()
    if "path" not in columns and not is_raven:
        for line in itertools.chain([first] if first else [], lines):
            yield as_location(line.strip(), folder)
        return
    for number, row in enumerate(_rows(lines, delimiter, path), 1):
        entry = {name: row[at].strip() for name, at in columns.items() if at < len(row)}
        try:
            if is_raven:
                entry |= _selected(entry, path, folder)
            location = as_location(entry["path"], folder)
            start, end = entry.get("start"), entry.get("end")
            if start or end:
                times = float(start or 0), float(end) if end else None
                location = Span(cast(Path, location), *times)
        except (LookupError, ValueError) as error:
            said = str(error).rstrip(".")
            said = f"{said[:MAX_REASON]}…" if len(said) > MAX_REASON else said
            reason = f"recording {number} has no path, or invalid times ({said})"
            raise FileError(f"@{path}", reason) from error
        yield location


def _rows(lines: Iterator[str], delimiter: str, path: Path | RemotePath) -> Iterator[list[str]]:
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        yield from reader
    except csv.Error as error:
        reason = f"is not CSV after recording {reader.line_num}: a quotation mark may not end"
        raise FileError(f"@{path}", reason) from error


def _selected(row: dict[str, str], table: Path | RemotePath, folder: Path) -> dict[str, str]:
    """Path, start and end of a row of a Raven selection table, in seconds of its file."""
    begin, end = float(row["begin time (s)"]), float(row["end time (s)"])
    named = [row[name] for name in ("begin path", "begin file") if row.get(name)]
    offset = float(row["file offset (s)"]) if row.get("file offset (s)") else begin
    # A table that was made elsewhere lies beside the recordings, and may be named after them.
    named += [each.replace("\\", "/").rpartition("/")[2] for each in named]
    if not named:
        beside = sorted(each for each in folder.glob("*.*") if each.suffix.lower() in SUFFIXES)
        named = [each.name for each in beside if table.name.startswith(f"{each.stem}.")]
    found = [each for each in named if (folder / each).is_file()]
    return {"path": [*found, *named][0], "start": str(offset), "end": str(offset + end - begin)}


def _lines(file: TextIO, path: Path | RemotePath) -> Iterator[str]:
    for number in itertools.count(1):
        line = file.readline(MAX_LINE)
        if len(line) == MAX_LINE or "\0" in line:
            raise FileError(f"@{path}", f"is not a manifest: line {number} names no recording")
        if not line:
            return
        if line.strip() and not line.startswith("#"):
            yield line
