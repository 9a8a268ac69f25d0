"""Who may talk to the studio: this machine, with the token, from the studio's own page."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "new_token"]

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


def new_token() -> str:
    """A token that nobody guesses.

    Examples
    --------
    >>> len(new_token())
    43
    """
    return secrets.token_urlsafe(32)


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
        if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        _, token, rest = (scope["path"] + "//").split("/", 2)
        is_known = secrets.compare_digest(token.encode(), self._token.encode())
        return is_known and bool(rest)


async def _refuse(send: Send) -> None:
    body = b"Refused: open the address that ondes studio has printed.\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
