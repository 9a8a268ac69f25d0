"""Serve the studio on this machine, to those who have its token, until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from ondes.errors import OndesError
from ondes.studio.routes import Studio
from ondes.studio.session import OpenedFile, Session

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "serve"]

LOOPBACK = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
SAFE_METHODS = ("GET", "HEAD")


def serve(
    opened: Sequence[OpenedFile] = (),
    *,
    port: int = 0,
    open_browser: bool = True,
    report: Callable[[str], object] = print,
) -> bool:
    """Open recordings in the studio and serve its page until Ctrl-C, or until the terminal closes.

    Parameters
    ----------
    opened : sequence of OpenedFile
    port : int
        0 is any free one.
    open_browser : bool
    report : callable
        Called with the page's address once it can be opened.

    Returns
    -------
    bool
        Whether all threads have ended. If not, one is blocked, and the process should end without
        waiting for it.

    Raises
    ------
    OndesError
        Where the port is taken.
    """
    session = Session()
    with _listening(port) as listener, contextlib.ExitStack() as stack:
        stack.callback(session.close)
        port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
        app = Guard(Studio(session).app, token, port)
        address = f"http://{LOOPBACK}:{port}/{token}/"
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, server_header=False, lifespan="off",
            timeout_graceful_shutdown=1, ws="none",
        )  # fmt: skip
        if opened:
            session.open_files(opened)

        async def run() -> None:
            server = uvicorn.Server(config)
            # uvicorn handles SIGINT and SIGTERM; an exception in one of its tasks ends nothing.
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                signal.signal(signal.SIGHUP, server.handle_exit)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            report(address)
            if open_browser:
                webbrowser.open(_redirect(session.folder, address))
            await serving

        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run())
    return not session.jobs.is_alive


def _redirect(folder: Path, address: str) -> str:
    """A private page that leads to the studio's: every user of a machine sees command lines."""
    page = folder / "open.html"
    page.touch(mode=0o600)
    page.write_text(f'<meta http-equiv="refresh" content="0;url={address}"><title>ondes</title>\n')
    return page.as_uri()


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise OndesError(
                f"Port {port} cannot be used ({error.strerror}); choose another."
            ) from error
        listener.listen(128)
        yield listener


class Guard:
    """Refuses a request unless its path begins with the token and it comes from our own page.

    A page of another site can make a browser send requests here; it knows no token, and its name
    is in ``Origin``. A name that resolves to this machine is in ``Host``.

    Parameters
    ----------
    app : ASGI application
        Sees paths without the token.
    token : str
    port : int
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http" or not self._is_allowed(scope):
            await _refuse(send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        root = f"/{self._token}"
        inner = {**scope, "path": scope["path"][len(root) :], "raw_path": None}
        await self._app(inner, receive, send_with_headers)

    def _is_allowed(self, scope: Scope) -> bool:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get(b"host") not in self._hosts:
            return False
        origin = headers.get(b"origin")
        if origin is not None and origin not in self._origins:
            return False
        if scope["method"] not in SAFE_METHODS and origin is None:
            return False
        _, token, rest = (scope["path"] + "//").split("/", 2)
        # A file that leads to the page is another site; the page by itself has no secrets.
        sites = ("same-origin", "none", "cross-site" if rest == "//" else "none")
        if headers.get(b"sec-fetch-site", "same-origin") not in sites:
            return False
        is_known = secrets.compare_digest(token.encode(), self._token.encode())
        return is_known and bool(rest)


async def _refuse(send: Send) -> None:
    body = b"Refused: open the address that ondes studio has printed.\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
