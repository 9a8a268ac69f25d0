"""Pages of folders on a web server: read in time that grows with their length alone."""

from __future__ import annotations

import random
from pathlib import Path

from mutations import damaged

from ondes.errors import FileError
from ondes.signal import remote

PAGE = (
    '<html><pre><a href="?C=N;O=D">Name</a> <a href="../">Parent</a>\n'
    "<a href=\"a%20b.wav\">a b.wav</a> 2026-01-01 12M\n<A HREF='sub/'>sub/</A>\n"
    '<a class="x" href = "https://h/d/c.flac">c</a> https://h/d/d.mp3\n</pre></html>\n'
)
PARTS = (
    "<a",
    "<a ",
    "href",
    "href=",
    ' href="',
    "'",
    '"',
    ">",
    "<",
    " ",
    "\n",
    "\t",
    "=",
    "\u2003",
)
PARTS += ("http://", "https://h/", "/", "..", "a.wav", "?", "\x00", "<a href='b.wav'>", "é")


def seeds() -> dict[str, bytes]:
    """A folder with recordings and a folder in it, as web servers list them."""
    return {"folder": PAGE.encode()}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A page with other bytes, or parts of it again and again."""
    if rng.random() < 0.3:
        return damaged(data, rng)
    text = data.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        part = "".join(rng.choices(PARTS, k=rng.choice((1, 1, 2, 4))))
        text = text[:at] + part * rng.choice((1, 10, 1000, 10_000)) + text[at:]
    return text.encode()


def read(path: Path) -> None:
    """Its links, as fsspec finds them in what is left of the page."""
    from fsspec.implementations.http import ex, ex2

    try:
        left = remote._links(path.read_bytes())
    except remote._WrongAnswerError as error:
        raise FileError(path, str(error)) from None
    ex.findall(left)
    ex2.findall(left)
