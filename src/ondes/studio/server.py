"""Serve the studio on this machine, until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import webbrowser
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from ondes.errors import OndesError
from ondes.studio.routes import Studio
from ondes.studio.security import Guard, new_token
from ondes.studio.session import OpenedFile, Session

__all__ = ["serve"]

LOOPBACK = "127.0.0.1"
M_ARENA_MAX = -8  # of glibc's mallopt


def serve(
    opened: Sequence[OpenedFile] = (),
    *,
    port: int = 0,
    open_browser: bool = True,
    report: Callable[[str], object] = print,
) -> None:
    """Open recordings in the studio and serve its page until Ctrl-C.

    Parameters
    ----------
    opened : sequence of OpenedFile
    port : int
        0 is any free one.
    open_browser : bool
    report : callable
        Called with the page's address once it can be opened.

    Raises
    ------
    OndesError
        Where the port is taken.
    """
    _keep_memory_together()
    with contextlib.closing(Session()) as session, _listening(port) as listener:
        port, token = listener.getsockname()[1], new_token()
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
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            report(address)
            if open_browser:
                webbrowser.open(address)
            await serving

        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run())


def _keep_memory_together() -> None:
    """Let all threads share two heaps: of one heap per thread, glibc would give nothing back."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other systems have other heaps
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


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
