"""Answers of a web server: the sound that was served is read, or refused without the secret.

A file is a list of changes in JSON. The n-th request gets the answer that a server should give,
changed by the n-th of them; later requests get it as it is. No change makes other bytes look like
those that were asked for: nobody could tell.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import re
import socket
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from mutations import NUMBERS

from ondes.errors import FileError
from ondes.signal import remote
from ondes.signal.recordings import RawFormat
from ondes.signal.recordings import read as read_recording

SECRET, RAW = "a-secret-key", RawFormat(8000)
STATUSES = (*(100, 101, 103, 199, 200, 204, 206, 301, 302, 303, 304, 307, 308, 400, 401), 403)
STATUSES += (404, 405, 408, 410, 416, 418, 429, 500, 502, 503, 511, 599, 600, 999, 0)
HEADERS = ("Content-Length", "Content-Range", "Content-Encoding", "Transfer-Encoding", "Location")
HEADERS += ("Accept-Ranges", "Connection", "ETag", "Set-Cookie", "Content-Type", "Refresh", "X")
VALUES = (
    *("", " ", "identity", "gzip", "br", "deflate, gzip", "chunked", "gzip, chunked", "none"),
    *("bytes", "bytes */*", "bytes 0-0/*", "bytes 0-99/100", "bytes 5-1/9", "bytes a-b/c", "-1"),
    *("bytes 0-18446744073709551616/1", "items 0-1/2", "bytes 0-9", "text/html", "keep-alive"),
    *("upgrade", "close", "/", "//", "http://", f"/?X-Signature={SECRET}", "file:///etc/passwd"),
    *("http://[", "http://127.0.0.1:1/", "ftp://127.0.0.1:1/", "é", "\x00", "\x1b[31m", "a" * 9000),
    *("a=b; Domain=.", "1e3", "+5", "0x10", "5, 5", "5, 6", *map(str, NUMBERS)),
)
HEADS = ("HTTP/9.9 200", "ICY 200 OK", "HTTP/1.1", "<html>", "\x00" * 50, "HTTP/1.1 206 " + SECRET)
CHANGES = ("status", "header", "header", "drop", "another range", "cut", "more", "head", "close")
CHANGES += ("slow", "length", "length")


def seeds() -> dict[str, bytes]:
    """Servers that answer as they should, for samples without a header and for others."""
    return {name: json.dumps([name]).encode() for name in ("a.raw", "a.mp3", "a.wav")}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Changes of some of the first answers."""
    changes = [_change(rng) for _ in range(rng.choice((1, 2, 3, 8)))]
    return json.dumps([*json.loads(data), *changes]).encode()


def _change(rng: random.Random) -> list[Any]:
    if rng.random() < 0.4:
        return []
    kind = rng.choice(CHANGES)
    if kind == "slow" and rng.random() < 0.9:  # it takes time
        return []
    choices: dict[str, tuple[Any, ...]] = {
        "status": STATUSES,
        "cut": (0, 1, 100, 4000, 4095),
        "length": (0, 1, 100, 4096, 16000, 16384, 31999, 32001),
        "more": (1, 100, 2**20, 2**28),
        "another range": (-4096, -2, 1, 2, 4096, 30000),
        "head": HEADS,
    }
    if kind in ("header", "drop"):
        return [kind, rng.choice(HEADERS), rng.choice(VALUES)]
    return [kind, rng.choice(choices.get(kind, (0,)))]


def read(path: Path) -> None:
    """What is read is what was served, and no error holds the secret."""
    from fsspec.implementations.http import HTTPFileSystem

    try:
        name, *changes = json.loads(path.read_bytes())
        served = _recordings()[name]
    except (ValueError, TypeError, KeyError):
        return
    raw = RAW if name == "a.raw" else None
    limits = {"BLOCK_BYTES": 2**12, "FIRST_WAIT_S": 1e-3, "DEADLINE_S": 0.5, "SILENCE_S": 0.3}
    for name, value in limits.items():
        setattr(remote, name, value)
    remote._facts.cache_clear()
    remote._silences = remote._Silences()
    with _serving(served, changes) as port, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of servers that take long
        try:
            url = f"http://127.0.0.1:{port}/{name}?X-Signature={SECRET}"
            samples, _ = read_recording(url, raw=raw)
        except FileError as error:
            if SECRET in "".join(traceback.format_exception(error)):
                raise ArithmeticError("the secret is in an error") from None
            raise FileError(path, error.reason) from None
        finally:
            for system in HTTPFileSystem._cache.values():
                HTTPFileSystem.close_session(system.loop, system._session)
            HTTPFileSystem.clear_instance_cache()
    path.write_bytes(served)
    if not np.array_equal(samples, read_recording(path, raw=raw)[0]):
        raise ArithmeticError("other samples than were served")


@functools.cache
def _recordings() -> dict[str, bytes]:
    """The same two seconds in three formats."""
    samples = np.random.default_rng(0).uniform(-0.3, 0.3, RAW.sr * 2)
    made = {}
    for name in ("mp3", "wav"):
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, RAW.sr, format=name)
        made[f"a.{name}"] = buffer.getvalue()
    return made | {"a.raw": (samples * 2**15).astype("<i2").tobytes()}


# ---- the server ----


@contextlib.contextmanager
def _serving(data: bytes, changes: list[list[Any]]) -> Iterator[int]:
    server, is_over, threads = socket.create_server(("127.0.0.1", 0)), threading.Event(), []
    left = iter(changes)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                thread = threading.Thread(target=answer, args=(connection,))
                threads.append(thread)
                thread.start()

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(5)
            request = b""
            while b"\r\n\r\n" not in request:
                part = connection.recv(2**14)
                if not part:
                    return
                request += part
            _answer(connection, request, data, next(left, []), is_over)

    threads.append(threading.Thread(target=accept))
    threads[0].start()
    try:
        yield server.getsockname()[1]
    finally:
        is_over.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for thread in threads:
            thread.join()


def _answer(
    connection: socket.socket,
    request: bytes,
    data: bytes,
    change: list[Any],
    is_over: threading.Event,
) -> None:
    kind, *how = change or [""]
    asked = re.search(rb"(?i)\r\nrange: bytes=(\d+)-(\d+)\r\n", request)
    is_get, size = request.startswith(b"GET"), len(data)
    headers = {"Content-Length": str(size), "Accept-Ranges": "bytes", "Connection": "close"}
    status, body = 200, data
    if asked is not None:
        first = int(asked[1])
        last = min(int(asked[2]), size - 1)
        if kind == "another range":
            first, last = max(0, first + how[0]), max(0, last + how[0])
        status, body = 206, data[first : last + 1]
        headers |= {
            "Content-Length": str(len(body)),
            "Content-Range": f"bytes {first}-{last}/{size}",
        }
    if kind == "status":
        status = how[0]
    elif kind == "length":
        headers["Content-Length"] = str(how[0])
    elif kind == "header":
        headers[how[0]] = how[1]
    elif kind == "drop":
        headers.pop(how[0], None)
    elif kind == "cut":
        body = body[: how[0]]
    elif kind == "close":
        return
    elif kind == "slow":
        while not is_over.wait(0.05):
            pass
        return
    lines = [how[0] if kind == "head" else f"HTTP/1.1 {status} of course"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "replace"))
    if is_get:
        connection.sendall(body)
        for _ in range(how[0] // 2**16 + 1 if kind == "more" else 0):
            if is_over.is_set():
                break
            connection.sendall(bytes(min(how[0], 2**16)))
