"""Lists of recordings as text: valid ones, and damage by line, cell and character."""

from __future__ import annotations

import random

from mutations import damaged

SEEDS = {
    "m3u": "#EXTM3U\n\na.wav\nb c.flac\n#EXTINF:1,A title\nsub/d,e.wav\nhttps://h/x.ogg\n",
    "csv": 'Title,start,Path,end\none,1.5,a.wav,3\ntwo,,b c.flac,\nthree,2,"sub/d,e.wav",\n',
    "tabs": "path\tstart\tend\na.wav\t0:10\t1:00:00\nb.wav\t\t2.5\n",
    "raven": "Selection\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tBegin Path\n"
    "1\t0.5\t1.5\t1000\t2000\ta.wav\n2\t2\t3.25\t100\t20000\tb.wav\n",
}
CELLS = (
    *("", " ", "-", "@list", "@-", "nan", "inf", "-1", "1e308", "0:99", "1:2:3:4", "١٢", "=1+1"),
    *("https://[", "https://h:99999/x", "s3://", "zip://a::b", "\x00", "\x1b[31m", "\ud7ff", '"'),
    *("x" * 140_000, "path", "start", "..", "/etc/passwd", "~", "*", "[", "a" * 5000, "é" * 300),
)


def seeds() -> dict[str, bytes]:
    """Valid lists by their kind."""
    return {name: text.encode() for name, text in SEEDS.items()}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A list with other cells, lines or bytes."""
    if rng.random() < 0.3:
        return damaged(data, rng)
    text = data.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        which = rng.randrange(len(lines))
        delimiter = rng.choice((",", "\t", ";"))
        cells = lines[which].split(delimiter)
        cells[rng.randrange(len(cells))] = rng.choice(CELLS)
        changed = rng.choice((delimiter.join(cells), lines[which] * 2, "", delimiter * 300))
        lines[which] = changed
        if rng.random() < 0.2:
            lines.insert(rng.randrange(len(lines)), rng.choice(CELLS))
        text = "\n".join(lines)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"))
    return text.encode(encoding, "replace")
