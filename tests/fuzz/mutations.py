"""Damage for any file: flipped bits, truncation, moved slices, numbers that often break code."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 1023, 1024, 1025, 32767, 32768, 65535, 65536),
    *(2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
HEADER_BYTES = 256  # where most of a format's decisions lie


def position(data: bytes, rng: random.Random) -> int:
    """Anywhere, and as often somewhere in the header."""
    end = len(data) if rng.random() < 0.5 else min(len(data), HEADER_BYTES)
    return rng.randrange(max(end, 1))


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64)) if changed else 0):
        changed[position(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: position(data, rng)]


def cut_out(data: bytes, rng: random.Random) -> bytes:
    first = position(data, rng)
    return data[:first] + data[first + rng.choice((1, 4, 8, 64, 1024)) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    first = position(data, rng)
    piece = data[first : first + rng.choice((1, 4, 16, 256))]
    return data[:first] + piece * rng.choice((2, 3, 50)) + data[first:]


def move(data: bytes, rng: random.Random) -> bytes:
    first, other = position(data, rng), position(data, rng)
    piece = data[first : first + rng.choice((4, 16, 256))]
    return data[:other] + piece + data[other + len(piece) :]


def number(data: bytes, rng: random.Random) -> bytes:
    size, order = rng.choice((1, 2, 4, 4, 8)), rng.choice("<>")
    value = rng.choice(NUMBERS) if rng.random() < 0.7 else rng.getrandbits(64)
    written = struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[size], value % 256**size)
    first = position(data, rng)
    return data[:first] + written + data[first + size :]


def noise(data: bytes, rng: random.Random) -> bytes:
    first = position(data, rng)
    piece = rng.randbytes(rng.choice((4, 32, 512)))
    return data[:first] + piece + data[first + len(piece) :]


BYTE_LEVEL: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(flip_bits, flip_bits, number, number, number),
    *(cut, cut_out, repeat, move, noise),
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One to four kinds of damage, one after the other."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(BYTE_LEVEL)(data, rng)
    return data
