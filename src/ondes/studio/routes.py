"""The studio's requests: the page, its state, actions, tiles, sound, files."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
from collections import OrderedDict
from collections.abc import Callable, Hashable
from importlib.resources import files
from pathlib import PurePath
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from ondes.errors import OndesError
from ondes.studio import export, playback, tiles
from ondes.studio.actions import perform, rule_of, within
from ondes.studio.components import Components
from ondes.studio.jobs import Busy, sentence
from ondes.studio.session import OpenedFile, Session
from ondes.studio.view import scale_of, session_as_plain

__all__ = ["BytesCache", "Studio"]

T = TypeVar("T")
# A thread that is blocked must not keep the server from ending.
in_thread = functools.partial(anyio.to_thread.run_sync, abandon_on_cancel=True)

MEBIBYTE = 2**20
MAX_REQUEST = MEBIBYTE  # of an action
MAX_SHOWN = 2000  # events
EXPECTED = (OndesError, ValueError, OSError, Exception)  # the page reports each of them
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class BytesCache:
    """Remembers bytes by key up to a number of bytes in all, the most recently used ones.

    One thread at a time may use it.

    Examples
    --------
    >>> cache = BytesCache(10)
    >>> cache.get("a", lambda: b"12345678"), cache.get("b", lambda: b"12345678")
    (b'12345678', b'12345678')
    >>> cache.n_bytes
    8
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self.n_bytes = max_bytes, 0
        self._entries: OrderedDict[Hashable, bytes] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The bytes of a key, made where they are not remembered."""
        if key not in self._entries:
            self._entries[key] = make()
            self.n_bytes += len(self._entries[key])
            while self.n_bytes > self._max_bytes and len(self._entries) > 1:
                self.n_bytes -= len(self._entries.popitem(last=False)[1])
        self._entries.move_to_end(key)
        return self._entries[key]


class Studio:
    """The web application around one session.

    Parameters
    ----------
    session : Session

    Attributes
    ----------
    app : Starlette
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tiles, self._sounds = BytesCache(16 * MEBIBYTE), BytesCache(24 * MEBIBYTE)
        # Pictures may not keep the sound waiting; one of each at a time bounds the memory.
        self._drawing = anyio.CapacityLimiter(1)
        self._sounding = anyio.CapacityLimiter(1)
        self._page = {
            each.name: each.read_bytes()
            for each in files("ondes.studio").joinpath("page").iterdir()
            if PurePath(each.name).suffix in KINDS
        }
        self._dropped: dict[str, OpenedFile] = {}
        self._numbers = itertools.count(1)
        model, part = "{model:int}", "{component:int}"
        tile, sound = "/tile/{recording}/{level}/{index:int}", "/sound/{recording}/{index:int}"
        routes = [
            Route("/", self._index),
            Route("/page/{name}", self._asset),
            Route("/state", self._state),
            Route("/do", self._do, methods=["POST"]),
            Route("/drop", self._drop, methods=["POST"]),
            Route("/open", self._open, methods=["POST"]),
            Route(tile, self._tile),
            Route(f"{tile}/{model}/{part}", self._part_tile),
            Route(sound, self._sound),
            Route(f"{sound}/{model}", self._sound),
            Route("/levels/{recording}/{model:int}", self._levels),
            Route("/events", self._events, methods=["POST"]),
            Route("/within", self._within, methods=["POST"]),
            Route("/save", self._save),
            Route("/download/{id}", self._download),
        ]
        self.app = Starlette(
            routes=routes,
            exception_handlers=dict.fromkeys(EXPECTED, _complaint),
        )

    async def _index(self, request: Request) -> Response:
        return Response(self._page["index.html"], media_type=KINDS[".html"])

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._page:
            return _not_found()
        return Response(self._page[name], media_type=KINDS[PurePath(name).suffix])

    async def _state(self, request: Request) -> Response:
        return await self._answer()

    async def _do(self, request: Request) -> Response:
        given = await _json(request)
        name = str(given.pop("action", ""))
        await in_thread(perform, self._session, name, given)
        return await self._answer()

    async def _drop(self, request: Request) -> Response:
        """A file, as the body of the request; the page opens it by the id that it gets."""
        name = PurePath(request.query_params.get("name", "").replace("\\", "/")).name or "sound"
        size = int(request.headers.get("content-length", 0))
        suffix = PurePath(name).suffix.lower()
        suffix = suffix if suffix[1:].isalnum() and len(suffix) <= 6 else ""
        id = f"d{next(self._numbers)}"  # noqa: A001
        path = self._session.folder / f"{id}{suffix}"
        try:
            async with await anyio.open_file(path, "wb") as file:
                n_left = size
                async for data in request.stream():
                    # Asked again and again: other uploads fill the same disk.
                    free = shutil.disk_usage(self._session.folder).free - self._session.reserve
                    if max(n_left, len(data)) > free:
                        raise ValueError(f"{name} is larger than the free space on this disk.")
                    await file.write(data)
                    await file.flush()
                    n_left -= len(data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._dropped[id] = OpenedFile(path, name, is_dropped=True)
        return JSONResponse({"id": id})

    async def _open(self, request: Request) -> Response:
        ids = (await _json(request)).get("ids", [])
        dropped = [self._dropped.pop(each) for each in ids if each in self._dropped]
        self._session.open_files(dropped)
        return await self._answer()

    async def _tile(self, request: Request) -> Response:
        recording, level, index = self._place(request)
        scale = self._scale(request)

        def make() -> bytes:
            return tiles.tile(recording, scale, level, index).tobytes()

        key = (recording.id, level, index, scale)
        return await self._data(self._tiles, key, make, self._drawing)

    async def _part_tile(self, request: Request) -> Response:
        recording, level, index = self._place(request)
        number, component = request.path_params["model"], request.path_params["component"]
        model, scale = self._session.model(number), self._scale(request)
        if component >= len(model.model.names):
            return _not_found()

        def make() -> bytes:
            drawn = tiles.part_tiles(recording, scale, level, index, model.model)
            return drawn.tobytes()

        key = (recording.id, level, index, scale, number)
        n_bytes = tiles.ROWS * tiles.COLUMNS
        part = slice(component * n_bytes, (component + 1) * n_bytes)
        return await self._data(self._tiles, key, make, self._drawing, part)

    async def _sound(self, request: Request) -> Response:
        recording = self._session.recording(request.path_params["recording"])
        index, number = request.path_params["index"], request.path_params.get("model")
        model = None if number is None else self._session.model(number)
        listening = self._session.listening
        key = (recording.id, index, number, listening)
        return await self._data(
            self._sounds,
            key,
            lambda: playback.chunk(
                recording, listening, index, None if model is None else model.model
            ),
            self._sounding,
        )

    async def _levels(self, request: Request) -> Response:
        model = self._session.model(request.path_params["model"])
        recording = request.path_params["recording"]
        if not isinstance(model, Components) or recording not in model.levels:
            return _not_found()
        data = await in_thread(export.levels_as_bytes, model.levels[recording])
        return Response(data, media_type="application/octet-stream")

    async def _events(self, request: Request) -> Response:
        rule = rule_of(self._session, await _json(request))
        found = await in_thread(export.events_of, self._session.components(), rule)
        shown = [
            {
                "recording": number,
                "start": event.start,
                "end": event.end,
                "level": event.level,
                "clock": None if event.clock is None else event.clock.isoformat(),
            }
            for number, event in found[:MAX_SHOWN]
        ]
        band = {"low": rule.low, "high": rule.high}
        return JSONResponse({"n": len(found), "events": shown, **band})

    async def _within(self, request: Request) -> Response:
        given = await _json(request)
        return JSONResponse(await in_thread(within, self._session, given))

    async def _save(self, request: Request) -> Response:
        data = await in_thread(self._session.packed)
        return Response(data, media_type="application/octet-stream")

    async def _download(self, request: Request) -> Response:
        id = request.path_params["id"]  # noqa: A001
        download = self._session.downloads.get(id)
        if download is None:
            return _not_found()
        # A browser asks with HEAD first, and for parts of what it could not fetch in one go.
        is_all = request.method == "GET" and "range" not in request.headers
        fetched = BackgroundTask(self._session.withdraw, id) if is_all else None
        return FileResponse(download.path, filename=download.name, background=fetched)

    def _place(self, request: Request) -> tuple[Any, int, int]:
        recording = self._session.recording(request.path_params["recording"])
        level, index = int(request.path_params["level"]), request.path_params["index"]
        if level not in tiles.LEVELS or index > MEBIBYTE:
            raise ValueError("There is no picture at that zoom; reload the page.")
        return recording, level, index

    def _scale(self, request: Request) -> tiles.Scale:
        given = request.query_params
        if "low" not in given:
            return scale_of(self._session)
        low, high = float(given["low"]), float(given["high"])
        return tiles.Scale(high, low, is_linear=given["axis"] == "linear")

    async def _data(
        self,
        cache: BytesCache,
        key: object,
        make: Callable[[], bytes],
        limiter: anyio.CapacityLimiter,
        part: slice = slice(None),
    ) -> Response:
        data = await in_thread(cache.get, key, make, limiter=limiter)
        return Response(data[part], media_type="application/octet-stream")

    async def _answer(self) -> Response:
        return JSONResponse(await in_thread(session_as_plain, self._session))


async def _json(request: Request) -> dict[str, Any]:
    body = b""
    async for data in request.stream():
        body += data
        if len(body) > MAX_REQUEST:
            raise ValueError("The request is too long; reload the page.")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError("The request is not valid; reload the page.")
    return given


async def _complaint(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": sentence(error)}, 409 if isinstance(error, Busy) else 400)


def _not_found() -> Response:
    return JSONResponse({"error": "There is nothing at this address; reload the page."}, 404)
