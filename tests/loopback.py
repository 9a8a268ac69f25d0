"""A web server on this machine that serves a folder: in ranges, and as unreliably as asked for."""

from __future__ import annotations

import contextlib
import html
import itertools
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        server = self.server
        with server.lock:
            number = next(server.counter)
            server.requests.append((self.command, self.path, self.headers.get("Range")))
        if server.drop_every and number % server.drop_every == 0:
            self.close_connection = True
            if number // server.drop_every % 2:
                self.send(503, b"busy", "text/plain", with_body)
            else:
                self.connection.close()  # without a word
            return
        path = server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if path.is_dir():
            links = "".join(
                f'<a href="{quote(each.name)}{"/" * each.is_dir()}">{html.escape(each.name)}</a>\n'
                for each in sorted(path.iterdir())
            )
            self.send(200, (links + server.more_links).encode(), "text/html", with_body)
        elif path.is_file():
            self.send_file(path, with_body)
        else:
            self.send(404, b"gone", "text/plain", with_body)

    def send_file(self, path, with_body):
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None or not self.server.has_ranges:
            self.send(200, path.read_bytes(), "audio/any", with_body)
            return
        first, last = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
        with path.open("rb") as file:
            file.seek(first)
            data = file.read(last - first + 1)
        range_of = {"Content-Range": f"bytes {first}-{last}/{size}"}
        self.send(206, data, "audio/any", with_body, range_of)

    def send(self, status, data, kind, with_body, more=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes" if self.server.has_ranges else "none")
        for name, value in dict(more).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            with contextlib.suppress(OSError):
                self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(folder, drop_every=0, has_ranges=True, more_links=""):
    """Serve a folder; yields the server, with `url` and the `requests` so far."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None
    server.folder, server.drop_every, server.has_ranges = Path(folder), drop_every, has_ranges
    server.more_links, server.requests, server.lock = more_links, [], threading.Lock()
    server.counter = itertools.count(1)
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def without_proxies():
    """The environment for commands that are to reach this machine."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return kept | {"NO_PROXY": "127.0.0.1"}
