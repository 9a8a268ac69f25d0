"""Which recordings are meant: files, folders, globs, URLs and manifests become a list."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from ondes.errors import FileError
from ondes.signal import remote
from ondes.signal.locations import Location, Part, RemotePath, as_location
from ondes.signal.manifest import read_manifest

__all__ = ["SUFFIXES", "FoundRecordings", "canonical_order", "find_recordings"]

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
    inputs : str, Path, RemotePath, Part, or iterable of these
        Files, folders (searched recursively, by suffix) and globs (``**`` matches folders).
        URLs, folders and globs of URLs. ``@list.txt`` for a manifest, which lists recordings (see
        `ondes.signal.manifest`). ``-``, standard input, stays as it is.

    Returns
    -------
    list of Path, RemotePath or Part
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
    if isinstance(inputs, (str, Path, RemotePath, Part)):
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
    if isinstance(location, Part):
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
    if isinstance(location, Part):
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
