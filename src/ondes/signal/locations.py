"""Where recordings lie: files, URLs, and parts of either."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import unquote, urlsplit

__all__ = [
    "Location", "RemotePath", "Span", "as_location", "check_times", "is_location", "with_span",
]  # fmt: skip

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters, or C:// would be one
LATEST_S = 1e9  # thirty years; in samples a whole number that 64 bits hold
# A name and a password, also those that a careful user would have quoted, and a query.
_SECRETS = re.compile(
    r"(?<=://)(?:[^/?#]*|[^/?#@:[\]]*:(?!:|\d*(?:[/?#]|\Z)).*)@"
    r"|\?.*?(?=::[a-z][a-z0-9+.-]*://|\Z)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, order=True, slots=True)
class RemotePath:
    """A recording at a URL that fsspec opens; its names are those of a `Path`.

    Parameters
    ----------
    url : str
        ``https://…``, ``s3://…``, or a chain as ``zip://a.wav::https://…``.

    Examples
    --------
    >>> path = RemotePath("https://example.org/an%20album/song.flac?version=2")
    >>> path.name, path.stem, path.suffix, path.parent.name
    ('song.flac', 'song', '.flac', 'an album')
    """

    url: str

    def __str__(self) -> str:
        """Without a password or a query, which may be a key: it is printed, and kept in models."""
        return _SECRETS.sub("", self.url)

    @property
    def _path(self) -> PurePosixPath:
        first = self.url.split("::")[0]
        if first.lower().startswith(("http://", "https://")):
            with contextlib.suppress(ValueError):  # of a malformed one, which cannot be opened
                return PurePosixPath(unquote(urlsplit(first).path))
        return PurePosixPath("/" + first.partition("://")[2])

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self._path.stem

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return self._path.suffix

    @property
    def parent(self) -> PurePosixPath:
        """The path of the folder, without its host."""
        return self._path.parent

    def resolve(self) -> RemotePath:
        """The same: a URL is absolute."""
        return self

    def absolute(self) -> RemotePath:
        """The same: a URL is absolute."""
        return self


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a recording, from one time to another, which is then a recording by itself.

    Parameters
    ----------
    path : Path or RemotePath
    start, end : float
        In seconds; without `end`, up to the end of the recording.

    Examples
    --------
    >>> part = Span(Path("song.wav"), 10, 20.5)
    >>> str(part), part.stem
    ('song.wav#t=10,20.5', 'song 10-20.5')
    """

    path: Path | RemotePath
    start: float = 0.0
    end: float | None = None

    def __post_init__(self) -> None:
        check_times(self.start, self.end)

    def __str__(self) -> str:
        return f"{self.path}{self._times}"

    @property
    def _times(self) -> str:
        """As in a media fragment of the W3C."""
        return f"#t={self.start:.12g}" + ("" if self.end is None else f",{self.end:.12g}")

    @property
    def name(self) -> str:
        """The last part of the path, and the times."""
        return f"{self.path.name}{self._times}"

    @property
    def stem(self) -> str:
        """The name without its suffix, and the times."""
        end = "" if self.end is None else f"{self.end:.12g}"
        return f"{self.path.stem} {self.start:.12g}-{end}"

    @property
    def suffix(self) -> str:
        """That of the recording."""
        return self.path.suffix

    @property
    def parent(self) -> PurePosixPath | Path:
        """The folder of the recording."""
        return self.path.parent

    def resolve(self) -> Span:
        """The same part under an absolute path without links."""
        return Span(self.path.resolve(), self.start, self.end)

    def absolute(self) -> Span:
        """The same part under an absolute path."""
        return Span(self.path.absolute(), self.start, self.end)


Location = Path | RemotePath | Span

Other = TypeVar("Other")


def is_location(recording: object) -> bool:
    """Whether a recording is given by its place, rather than as a stream."""
    return isinstance(recording, (str, Path, RemotePath, Span))


def as_location(given: str | Location, folder: Path | None = None) -> Location:
    """A place from what a user writes: a URL only where no file has this name.

    Parameters
    ----------
    given : str, Path, RemotePath or Span
    folder : Path, optional
        Where a relative path in a string begins; the current folder if not given.

    Examples
    --------
    >>> as_location("s3://bucket/song.flac")
    RemotePath(url='s3://bucket/song.flac')
    """
    if not isinstance(given, str):
        return given
    path = given if folder is None else os.path.join(folder, given)  # noqa: PTH118
    is_remote = _URL.match(given) is not None and not os.path.lexists(path)
    return RemotePath(given) if is_remote else Path(path)


def check_times(start: float, end: float | None) -> None:
    """Raise ValueError unless a part of a recording may begin and end there, in seconds."""
    if not 0 <= start < LATEST_S or not (end is None or start < end < LATEST_S):
        raise ValueError(
            f"start={start!r} must be 0 or more, and end={end!r} after it, both below "
            f"{LATEST_S:g} seconds."
        )


def with_span(
    locations: Iterable[Location | Other], start: float = 0.0, end: float | None = None
) -> list[Location | Other]:
    """The part of each recording from `start` to `end`, in seconds; streams stay as they are.

    Times count from where a part that is given begins.

    Examples
    --------
    >>> [str(each) for each in with_span([Path("a.wav"), Span(Path("b.wav"), 5, 9)], 2, 10)]
    ['a.wav#t=2,10', 'b.wav#t=7,9']
    """
    if not start and end is None:
        return locations if isinstance(locations, list) else list(locations)
    return [_cut(each, start, end) for each in locations]


def _cut(given: Location | Other, start: float, end: float | None) -> Location | Other:
    if isinstance(given, Span):
        ends = [each for each in (given.end, None if end is None else given.start + end) if each]
        return Span(given.path, given.start + start, min(ends, default=None))
    if isinstance(given, (Path, RemotePath)) and str(given) != "-":
        return Span(given, start, end)
    return given
