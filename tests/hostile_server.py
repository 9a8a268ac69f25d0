"""A web server on this machine that answers as no server should."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE, BOMB = bytes(2**16), gzip.compress(bytes(2**24))
ANSWERS = (
    *("403", "500", "redirects", "malformed", "endless", "longer", "shorter", "gzip"),
    *("another range", "no range", "silent", "drip", "nothing"),
)
SILENT_TO_ALL = "silent to all"  # also to questions about a file
FOLDERS = "folders"  # in every folder, two folders


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self):
        self.server.connected = True
        super().handle()

    def do_HEAD(self):
        if self.server.how == SILENT_TO_ALL:
            self.do_GET()
        else:
            self.head(200, [("Content-Length", str(len(self.server.data)))])

    def do_GET(self):
        server = self.server
        server.requests.append(dict(self.headers))
        with contextlib.suppress(OSError):
            self.answer(server.how, server.data)
        self.close_connection = True

    def answer(self, how, data):
        first, last = map(int, self.headers.get("Range", "bytes=0-0")[6:].split("-"))
        data, size = data[first : last + 1], len(data)
        range_of = [("Content-Range", f"bytes {first}-{last}/{size}")]
        length = [("Content-Length", str(len(data)))]
        if how in ("403", "500"):
            self.head(int(how), [("Content-Length", "0")])
        elif how == "redirects":
            self.head(302, [("Location", self.path), ("Content-Length", "0")])
        elif how == "malformed":
            self.wfile.write(f"HTTP/9 what {self.path}\r\n\r\n".encode())
        elif how == "endless":
            self.head(206, [*range_of, ("Transfer-Encoding", "chunked")])
            while not self.server.is_over:
                self.wfile.write(b"10000\r\n" + PIECE + b"\r\n")
        elif how == "longer":
            self.head(206, [*range_of, ("Content-Length", str(len(data) + 2**28))])
            self.wfile.write(data)
            while not self.server.is_over:
                self.wfile.write(PIECE)
        elif how == "shorter":
            self.head(206, [*range_of, ("Content-Length", str(len(data) // 2))])
            self.wfile.write(data[: len(data) // 2])
        elif how == "gzip":
            self.head(206, [*range_of, ("Content-Encoding", "gzip"), ("Content-Length", len(BOMB))])
            self.wfile.write(BOMB)
        elif how == "another range":
            self.head(206, [("Content-Range", f"bytes {first + 2}-{last + 2}/{size}"), *length])
            self.wfile.write(data)
        elif how == "no range":
            self.head(206, length)
            self.wfile.write(data)
        elif how == FOLDERS:
            page = b'<a href="a/">a</a><a href="b/">b</a><a href="c.wav">c</a>'
            self.head(200, [("Content-Type", "text/html"), ("Content-Length", str(len(page)))])
            self.wfile.write(page)
        elif how in ("silent", SILENT_TO_ALL, "drip"):
            if how == "drip":
                self.head(206, [*range_of, *length])
            while not self.server.is_over:
                time.sleep(0.05)
                if how == "drip":
                    self.wfile.write(b"\0")

    def head(self, status, headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, str(value))
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def hostile_server(data, how):
    """Serve these bytes under any name; `how` is one of `ANSWERS`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.data, server.how, server.requests, server.is_over = data, how, [], False
    server.connected, server.handle_error = False, lambda *_: None
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over = True
        server.shutdown()
        server.server_close()
