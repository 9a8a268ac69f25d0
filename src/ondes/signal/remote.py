"""Recordings at URLs: read in ranges, kept in a small cache, asked for again where that may help.

Needs fsspec, and for some stores a package of their own. A web server is not trusted: no more is
read than was asked for, and no message says what it, or the address, says: that may hold a key.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import threading
import time
import warnings
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.decoder import Decoder
from ondes.signal.locations import RemotePath

__all__ = ["RemoteDecoder", "RemoteFile", "expand", "mark_of"]

BLOCK_BYTES = 2**18
MAX_AHEAD = 4  # blocks in one request, where a file is read from one to the next
MAX_CACHED = 8  # blocks of each open file
N_ATTEMPTS = 6
FIRST_WAIT_S = 0.1  # doubled after every attempt
MAX_KNOWN = 4096  # files whose size is remembered
MAX_ARCHIVES = 16  # that stay open
DEADLINE_S = 60.0  # for one answer, and for all attempts to get it together
SILENCE_S = 30.0  # between two parts of an answer
SLOW_S = 10.0  # after which whoever waits is told for whom
MAX_SILENCES = 2  # deadlines in a row that a server, or a file, lets pass before it is left out
LEFT_OUT_S = 300.0
MAX_ANSWER_BYTES = 2**26  # of a web server, to one request
MAX_NAMES = 2**18  # in a web server's folder and in all folders in it
LISTING_S = 600.0  # for all pages of these folders together

PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hf": "huggingface_hub",
    "webdav": "webdav4",
}
SAID = {
    "TooManyRedirects": "its server redirects without end",
    "InvalidURL": "this is no address",
    "ClientSSLError": "its server has no valid certificate",
}
# Not those that run code, name further files in their content, or write copies to a disk.
PROTOCOLS = {*PACKAGES, "zip", "tar", "ftp", "smb", "hdfs", "memory"}

REDIRECTS = (301, 302, 303, 307, 308)
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
# Linear in the length of a page, whatever it holds.
LINK = re.compile(rb"""\bhref\s{0,9}=\s{0,9}["']([^"'\r\n]{1,4096})["']""", re.IGNORECASE)

Result = TypeVar("Result")


class RemoteFile(io.RawIOBase):
    """A file at a URL that can be read anywhere, as far as libraries in C are concerned.

    Libraries that read by callbacks cannot pass an exception on: a failure is kept in `failure`,
    and the file seems to end.

    Parameters
    ----------
    path : RemotePath

    Attributes
    ----------
    size : int
    failure : FileError or None

    Raises
    ------
    FileError
        Where it does not exist or cannot be reached.
    """

    def __init__(self, path: RemotePath) -> None:
        self.path, self.failure = path, None
        self.size = _facts(path)[0]
        self._at = self._after_last = 0
        self._n_ahead = 1
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._handle: Any = None

    failure: FileError | None

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as in any file."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer only at the end, or after a `failure`."""
        end = self.size if size < 0 else min(self.size, self._at + size)
        parts = []
        while self._at < end and self.failure is None:
            number, within = divmod(self._at, BLOCK_BYTES)
            try:
                block = self._block(number)
            except FileError as error:
                self.failure = error
                break
            part = block[within : within + end - self._at]
            parts.append(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        """As `read`."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Release the connection."""
        self._drop_handle()
        self._blocks.clear()
        super().close()

    def _block(self, number: int) -> bytes:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        is_next = number == self._after_last
        self._n_ahead = min(2 * self._n_ahead, MAX_AHEAD) if is_next else 1
        start = number * BLOCK_BYTES
        end = min(self.size, start + self._n_ahead * BLOCK_BYTES)
        data = _retried(self.path, lambda: self._fetch(start, end))
        for first in range(0, len(data), BLOCK_BYTES):
            self._blocks[number + first // BLOCK_BYTES] = data[first : first + BLOCK_BYTES]
        self._after_last = number + self._n_ahead
        while len(self._blocks) > MAX_CACHED:
            self._blocks.popitem(last=False)
        return data[:BLOCK_BYTES]

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            if self._handle is None:
                self._handle = _opened(self.path, self.size)
            self._handle.seek(start)
            data: bytes = self._handle.read(end - start)
        except BaseException:
            self._drop_handle()
            raise
        if len(data) != end - start:
            self._drop_handle()
            raise OSError(f"{len(data)} bytes came instead of {end - start}")
        return data

    def _drop_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()


class RemoteDecoder:
    """Another decoder, of a `RemoteFile`, whose failures come out."""

    def __init__(self, decoder: Decoder, file: RemoteFile) -> None:
        self._decoder, self._file = decoder, file
        self.sr, self.channels, self.format = decoder.sr, decoder.channels, decoder.format
        self.n_samples, self.is_seek_exact = decoder.n_samples, decoder.is_seek_exact

    def read(self) -> NDArray[np.float32]:
        """Next samples, (n, channels)."""
        return self._checked(self._decoder.read)

    def seek(self, sample: int) -> None:
        """Go to a sample."""
        self._checked(lambda: self._decoder.seek(sample))

    def close(self) -> None:
        """Close the decoder and the file."""
        self._decoder.close()
        self._file.close()

    def _checked(self, call: Callable[[], Result]) -> Result:
        try:
            result = call()
        except FileError as error:
            raise self._file.failure or error from None
        if self._file.failure is not None:
            raise self._file.failure
        return result


def mark_of(path: RemotePath) -> str:
    """A checksum of what the store says of a file: another one in its place has another."""
    return f"{zlib.crc32(repr(_facts(path)).encode()):08x}"


def expand(path: RemotePath, suffixes: tuple[str, ...]) -> list[RemotePath]:
    """The recordings that a URL names: itself, or those in a folder or of a glob.

    Raises
    ------
    FileError
        Where a folder cannot be listed, or has no recordings.
    """
    if path.suffix.lower() in suffixes and not _has_magic(path):
        return [path]
    system, inner = _system(path)
    is_web = path.url.lower().startswith(("http://", "https://"))
    if _has_magic(path):
        if is_web:
            names = _web_glob(path, system, inner)
        else:
            names = _retried(path, lambda: system.glob(inner))
        found = [name for name in names if "." in name.rsplit("/", 1)[-1]]
        kind = "matches no recordings"
    elif path.url.split("::")[0].endswith("/") or _retried(path, lambda: system.isdir(inner)):
        if is_web:
            names = _web_names(path, system, inner)
        else:
            names = _retried(path, lambda: system.find(inner))
        within = f"{inner.rstrip('/')}/" if inner.strip("/") else ""
        found = [name for name in names if name.startswith(within)]
        kind = "has no recordings in it, or cannot be listed; give a manifest"
    else:
        return [path]
    urls = [_as_url(path, system, name) for name in found if "::" not in name]
    recordings = [each for each in urls if each.suffix.lower() in suffixes]
    if not recordings:
        raise FileError(path, kind)
    return recordings


def _web_names(
    path: RemotePath, system: Any, folder: str, max_depth: float = float("inf")
) -> list[str]:
    """What lies in a folder of a web server, which may claim to have others in it without end."""
    end = time.monotonic() + LISTING_S
    names: list[str] = []
    left, known = [(folder, 1)], {f"{folder.rstrip('/')}/"}

    def listed(at: str) -> list[str]:
        try:
            return cast(list[str], system.ls(at, detail=False))
        except FileNotFoundError:
            if at == folder:
                raise
            return []  # a link may lead nowhere

    with _named_if_slow(path):
        while left:
            at, depth = left.pop()
            for name in _retried(path, functools.partial(listed, at)):
                if not name.endswith("/"):
                    names.append(name)
                elif name not in known and depth < max_depth:
                    known.add(name)
                    left.append((name, depth + 1))
            if len(names) + len(known) > MAX_NAMES or time.monotonic() > end:
                raise FileError(
                    path,
                    f"has more than {MAX_NAMES:,} names in it, or takes more than "
                    f"{LISTING_S / 60:g} minutes to list; give a manifest",
                )
    return names


def _web_glob(path: RemotePath, system: Any, pattern: str) -> list[str]:
    """The names on a web server that match, as fsspec matches them."""
    from fsspec.utils import glob_translate

    root = re.split(r"[^/]*[*[]", pattern, maxsplit=1)[0]
    depth = float("inf") if "**" in pattern else pattern[len(root) :].count("/") + 1
    matches = re.compile(glob_translate(pattern)).match
    return sorted(name for name in _web_names(path, system, root, depth) if matches(name))


def _links(page: bytes) -> str:
    """The links of a page alone: for some pages, fsspec's patterns would take hours."""
    found = {each[1].decode(errors="ignore"): None for each in LINK.finditer(page)}
    if len(found) > MAX_NAMES:
        raise _WrongAnswerError("its server sends more names than a folder may have")
    quoted = (
        re.sub(r"\s", lambda space: quote(space[0]), each.replace(" ", "%20")) for each in found
    )
    return "\n".join(f'<a href="{each}">' for each in quoted)


def _has_magic(path: RemotePath) -> bool:
    """Whether a URL has wildcards; a question mark begins a query."""
    return any(sign in path.url.split("::")[0] for sign in "*[")


def _as_url(path: RemotePath, system: Any, name: str) -> RemotePath:
    first, *rest = path.url.split("::")
    if "://" not in name:
        protocol = first.partition("://")[0]
        name = f"{protocol}://{name.lstrip('/')}"
    return RemotePath("::".join([name, *rest]))


def _system(path: RemotePath) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec.core  # noqa: F401
    except ImportError as error:
        raise FileError(path, "a URL needs fsspec: pip install 'ondes[remote]'") from error
    *links, last = path.url.split("::")
    for link in [*links, last] if "://" in last else links:  # the last may be a file here
        protocol = link.partition("://")[0].lower()
        if protocol not in PROTOCOLS:
            known = ", ".join(sorted(PROTOCOLS))
            raise FileError(path, f"has the protocol {protocol}, which is not one of {known}")
    try:
        first, _, archive = path.url.partition("::")
        if archive:
            return _archive(f"{first.partition('://')[0]}://::{archive}"), first.partition("://")[2]
        return _opened_system(path.url)
    except ImportError as error:
        protocols = [link.partition("://")[0].lower() for link in path.url.split("::")]
        missing = " ".join(sorted({PACKAGES[each] for each in protocols if each in PACKAGES}))
        raise FileError(path, f"needs another package: pip install {missing}") from error
    except Exception as error:  # each store has its own
        raise FileError(path, f"cannot be opened ({_reason(error)})") from None


@lru_cache(maxsize=MAX_ARCHIVES)
def _archive(url: str) -> Any:
    """An archive, whose list of contents is read once; it is closed when nobody has it any more."""
    return _opened_system(url)[0]


def _opened_system(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    found = {link.partition("://")[0].lower() for link in url.split("::")}
    system, inner = url_to_fs(
        url, **{each: {"get_client": _client} for each in ("http", "https") if each in found}
    )
    return system, str(inner)


async def _client(**options: Any) -> Any:
    """A session with web servers that reads no more than was asked for."""
    import aiohttp

    return aiohttp.ClientSession(
        response_class=_checked_response(),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S, sock_read=SILENCE_S),
        **options,
    )


_lengths: OrderedDict[str, str] = OrderedDict()  # in bytes, of what was found at an address


def _remember(url: str, length: str) -> None:
    if length != "*":
        _lengths[url] = length
    while len(_lengths) > MAX_KNOWN:
        _lengths.popitem(last=False)


class _WrongAnswerError(Exception):  # no OSError: aiohttp would make one of its own of it
    """A web server's answer that is not one to the question; its text is ours."""


@lru_cache(maxsize=1)
def _checked_response() -> Any:
    from aiohttp import ClientResponse

    class CheckedResponse(ClientResponse):
        async def start(self, connection: Any) -> Any:
            await super().start(connection)
            try:
                self._check()
            except _WrongAnswerError:
                self.close()
                raise
            return self

        async def text(self, *_: Any, **__: Any) -> str:
            return _links(await self.read())

        async def read(self) -> bytes:
            if self._body is None:
                first, end = self._asked() or (0, MAX_ANSWER_BYTES)
                if end - first > MAX_ANSWER_BYTES:  # of an archive, say, with a false list
                    raise _WrongAnswerError("it asks for more at once than may be in memory")
                body = bytearray()
                async for chunk in self.content.iter_chunked(2**16):
                    body += chunk
                    if len(body) > end - first:
                        self.close()
                        raise _WrongAnswerError("its server sends more than was asked for")
                self._body = bytes(body)
            answer: bytes = await super().read()
            return answer

        def _asked(self) -> tuple[int, int] | None:
            asked = RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            return None if asked is None else (int(asked[1]), int(asked[2]) + 1)

        def _check(self) -> None:
            if self.headers.get("Content-Encoding", "identity") not in ("identity", ""):
                raise _WrongAnswerError("its server sends compressed data, which was not asked for")
            is_moved = self.status in REDIRECTS and "Location" in self.headers
            if is_moved or self.status >= 400:
                return
            url, length = str(self.url), self.headers.get("Content-Length", "*")
            if (asked := self._asked()) is None:
                _remember(url, length)
                return
            if self.status not in (200, 206):
                raise _WrongAnswerError(f"its server answers with status {self.status}")
            if self.status == 206 or asked[0] > 0:
                given = CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
                if given is None or int(given[1]) != asked[0] or int(given[2]) >= asked[1]:
                    raise _WrongAnswerError("its server sends another range than was asked for")
                length = given[3]
            if length not in ("*", _lengths.get(url, length)):
                raise _WrongAnswerError("its server names another length than before")

    return CheckedResponse


@lru_cache(maxsize=MAX_KNOWN)
def _facts(path: RemotePath) -> tuple[int, str]:
    """The size of a file in bytes, and whatever tells it from another one in its place."""
    system, inner = _system(path)
    info = _retried(path, lambda: system.info(inner))
    if info.get("type") == "directory":
        raise FileError(path, "is a folder, not a recording")
    size = info.get("size")
    if size is None or info.get("partial") is False:
        raise FileError(
            path, "is on a server that does not support range requests; download it first"
        )
    names = ("ETag", "etag", "mtime", "LastModified", "last_modified", "CRC")
    return int(size), next((str(info[name]) for name in names if info.get(name)), "")


def _opened(path: RemotePath, size: int) -> Any:
    system, inner = _system(path)
    options = {"cache_type": "none", "block_size": BLOCK_BYTES}
    try:
        return system.open(inner, "rb", size=size, **options)
    except TypeError:  # not every store takes the size that is known
        return system.open(inner, "rb", **options)


def _retried(path: RemotePath, call: Callable[[], Result]) -> Result:
    """The result of a request, repeated after a while where another attempt may succeed."""
    _silences.check(path)
    end = time.monotonic() + DEADLINE_S
    with _named_if_slow(path):
        for attempt in range(N_ATTEMPTS):
            try:
                result = call()
            except FileError:
                raise
            except Exception as found:  # each store has its own
                error = _cause(found)
                if _is_missing(error):
                    raise FileError(path, "was not found on its server") from None
                is_over = attempt == N_ATTEMPTS - 1 or time.monotonic() > end
                if is_over or _is_final(error):
                    if isinstance(error, TimeoutError):
                        _silences.add(path)
                    reason = _reason(error)
                    reason = f"cannot be read ({reason}); check the address and the connection"
                    raise FileError(path, reason) from None
            else:
                _silences.forget(path)
                return result
            time.sleep(FIRST_WAIT_S * 2**attempt)
    raise AssertionError


@contextlib.contextmanager
def _named_if_slow(path: RemotePath) -> Iterator[None]:
    def tell() -> None:
        text = f"{path}: its server takes more than {SLOW_S:g} s to answer; still waiting."
        warnings.warn(text, RuntimeWarning, stacklevel=1)

    timer = threading.Timer(SLOW_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Silences:
    """How many deadlines in a row each server, and each file, has let pass.

    Whoever is silent again and again is left out for a while, so that a run waits for minutes at
    most, however many files or ranges it still wants.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last: dict[str, float] = {}

    def check(self, path: RemotePath) -> None:
        """Raise FileError where it is left out now."""
        for key in self._keys(path):
            is_recent = time.monotonic() < self._last.get(key, -LEFT_OUT_S) + LEFT_OUT_S
            if self._counts[key] >= MAX_SILENCES and is_recent:
                raise FileError(path, "was left out: its server did not answer again and again")

    def add(self, path: RemotePath) -> None:
        """Count one."""
        for key in self._keys(path):
            self._counts[key] += 1
            self._last[key] = time.monotonic()

    def forget(self, path: RemotePath) -> None:
        """Count from none again."""
        for key in self._keys(path):
            if key in self._last:
                del self._counts[key], self._last[key]

    @staticmethod
    def _keys(path: RemotePath) -> tuple[str, str]:
        place = path.url.split("::")[-1]
        return "/".join(place.split("/")[:3]), path.url


_silences = _Silences()


def _cause(error: Exception) -> Exception:
    """What fsspec calls a missing file may be a connection that was lost."""
    is_guess = isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception)
    return _cause(cast(Exception, error.__cause__)) if is_guess else error


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) or getattr(error, "status", None) in (404, 410)


def _is_final(error: Exception) -> bool:
    """Whether the same request would fail again: not allowed, or nothing that can be asked for."""
    status = getattr(error, "status", None)
    is_refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
    kinds = (PermissionError, NotImplementedError, ImportError, _WrongAnswerError)
    return is_refused or isinstance(error, kinds)


def _reason(error: Exception) -> str:
    """What went wrong, in our words: those of a library may quote the address, and so a key."""
    if isinstance(error, _WrongAnswerError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "its server does not answer in time"
    names = {each.__name__ for each in type(error).__mro__}
    for name in names & SAID.keys():
        return SAID[name]
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return f"its server answers with status {status}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__}: {os.strerror(error.errno)}"
    return type(error).__name__
