"""Damaged model files and checkpoints, most of them with a valid digest.

A flipped byte never gets past the digest, so most files made here are taken apart, changed inside,
and sealed with a new one: what is tested is the reader behind the digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mutations import NUMBERS, damaged

from ondes.models import archive

Members = list[tuple[str, bytes]]

NAMES = (
    *("", ".", "..", "../../evil.npy", "/etc/passwd", "C:\\evil.npy", "a/b.npy", "x" * 5000),
    *("ondes.json", "ondes.json/", "\x00.npy", "naïve.npy", "fitted.components.npy"),
)
N_BOMB = 2**22


class Landmine:
    """Ends the process if anything unpickles it: no file may run code."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (exec, ("import os; os.abort()",))


VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "\ud800", "\x1b[31m", "a\nb", [], {}, [[]], 1.5, -1, 0),
    *(1e308, -1e308, 5e-324, 10**30, -(10**30), 10**400, *NUMBERS, float("nan"), float("inf")),
    *({"$": "array", "member": "fitted.components.npy"}, {"$": "array"}, {"$": ["array"]}),
    *({"$": "Stft", "n_fft": 10**12}, {"$": "Stft", "window": ["taylor", 10**9]}, {"$": "exec"}),
    *({"$": "FittedState"}, {"$": "TrainingHistory"}, {"$": "AudioSettings", "sr": 2**31}),
    *({"$": "RandomState"}, {"$": "Landmine"}, {"$": "Solver", "momentum": [0, "x"]}, {"$": None}),
    *([1] * 300, ["k"] * 3, {"a" * 1000: {"$": {}}}, "k-means++", "random", 2**31, [0, 0, 1]),
)


def sealed(members: Members, compression: int = zipfile.ZIP_STORED) -> bytes:
    """The members as an archive with a valid digest."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", compression) as file:
        warnings.simplefilter("ignore")  # zipfile warns of duplicate names
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data, compression)
        file.comment = archive._DIGEST + bytes(archive._N_HEX)
    return resealed(buffer.getvalue())


def resealed(data: bytes) -> bytes:
    """The same bytes with a valid digest."""
    hashed = data[: -archive._N_HEX]
    return hashed + hashlib.sha256(hashed).hexdigest().encode()


def members_of(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return [(member.filename, file.read(member)) for member in file.infolist()]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A file that is damaged somewhere, before its digest is computed or after."""
    if rng.random() < 0.1:
        return damaged(data, rng)
    if rng.random() < 0.2:
        return resealed(damaged(data, rng))
    if rng.random() < 0.15:
        return resealed(_with_wrong_zip_header(data, rng))
    if rng.random() < 0.003:
        return rng.choice(BOMBS)(members_of(data), rng)
    members = members_of(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(MEMBER_LEVEL)(members, rng)
    return sealed(members, zipfile.ZIP_DEFLATED if rng.random() < 0.02 else zipfile.ZIP_STORED)


# ---- the archive ----


def _with_wrong_zip_header(data: bytes, rng: random.Random) -> bytes:
    marks = (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")
    found = [n for mark in marks for n in _all(data, mark)]
    at = rng.choice(found) + rng.randrange(4, 46)
    size = rng.choice((1, 2, 4))
    value = rng.choice(NUMBERS) % 256**size
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def _all(data: bytes, mark: bytes) -> list[int]:
    return [n for n in range(len(data)) if data.startswith(mark, n)]


def _drop(members: Members, rng: random.Random) -> None:
    if members:
        members.pop(rng.randrange(len(members)))


def _twice(members: Members, rng: random.Random) -> None:
    if members:
        members.insert(rng.randrange(len(members)), rng.choice(members))


def _swap(members: Members, rng: random.Random) -> None:
    if members:
        a, b = rng.randrange(len(members)), rng.randrange(len(members))
        (name_a, data_a), (name_b, data_b) = members[a], members[b]
        members[a], members[b] = (name_a, data_b), (name_b, data_a)


def _rename(members: Members, rng: random.Random) -> None:
    if members:
        n = rng.randrange(len(members))
        members[n] = rng.choice(NAMES), members[n][1]


def _shuffle(members: Members, rng: random.Random) -> None:
    rng.shuffle(members)


# ---- the tree ----


def _change_json(members: Members, rng: random.Random) -> None:
    _edit(members, rng, ".json", _with_other_value)


def _change_json_text(members: Members, rng: random.Random) -> None:
    _edit(members, rng, ".json", damaged)


def _nest_json(members: Members, rng: random.Random) -> None:
    depth = rng.choice((10, 500, 5000))
    opened, closed = rng.choice((("[", "]"), ('{"$": {"a":', "}}"), ('{"x":', "}")))

    def nested(text: bytes, _: random.Random) -> bytes:
        deep = f"{opened * depth}1{closed * depth if rng.random() < 0.8 else ''}"
        return text.replace(b"null", deep.encode(), 1)

    _edit(members, rng, ".json", nested)


def _with_other_value(text: bytes, rng: random.Random) -> bytes:
    try:
        tree = json.loads(text)
        change_tree(tree, rng)
        return json.dumps(tree).encode()
    except (ValueError, RecursionError):  # no JSON, or a tree that contains itself
        return text


def change_tree(tree: Any, rng: random.Random) -> None:
    """Put another value at one of its places, or at two."""
    places = list(_places(tree))
    for _ in range(rng.choice((1, 1, 2)) if places else 0):
        parent, key = rng.choice(places)
        if rng.random() < 0.15 and isinstance(parent, dict):
            parent.pop(key, None)
        elif rng.random() < 0.15 and isinstance(parent, dict):
            parent[rng.choice(("$", "format", "x", "\x1b", "member", ""))] = rng.choice(VALUES)
        elif rng.random() < 0.2:
            other, other_key = rng.choice(places)
            parent[key] = other.get(other_key) if isinstance(other, dict) else other[other_key]
        else:
            parent[key] = rng.choice(VALUES)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(tree, (dict, list)):
        return
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in pairs:
        yield tree, key
        yield from _places(value)


# ---- the arrays ----


def change_array(members: Members, rng: random.Random) -> None:
    _edit(members, rng, ".npy", rng.choice((damaged, _other_header, _other_array, _other_entry)))


def _other_entry(data: bytes, rng: random.Random) -> bytes:
    entry = np.array(rng.choice((np.nan, np.inf, -np.inf, -1.0, 1e308, 5e-324, 0.0))).tobytes()
    at = max(0, len(data) - 8 * rng.randrange(1, 20))
    return data[:at] + entry + data[at + 8 :]


def _other_array(data: bytes, rng: random.Random) -> bytes:
    shape = rng.choice(((), (0,), (3,), (3, 17), (3, 5), (624,), (1,) * 30, (0, 7)))
    dtype = rng.choice(("f8", "f4", "i8", "u4", "b1", ">f8", "c16", "U3", "S2", "M8[s]", "f2", "O"))
    array = np.full(shape, Landmine(), object) if dtype == "O" else np.zeros(shape, dtype)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue() if rng.random() < 0.9 else pickle.dumps(Landmine())


def _other_header(data: bytes, rng: random.Random) -> bytes:
    header = rng.choice(HEADERS).encode("latin-1")
    if rng.random() < 0.3:
        shape = rng.choice(NUMBERS), rng.choice(NUMBERS)
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = rng.choice((len(header), len(header), len(header) + 1, 0, 65535))
    body = data[-rng.choice((8, 24, 120)) :]
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + header + body


def _header(descr: str, shape: str) -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


HEADERS = (
    *(_header(f"'{d}'", "(3,)") for d in ("|O", "<f8", "<f16", "(9999999,)f8", "V9", "<M8[h]")),
    *(_header("'<f8'", s) for s in ("(-1, -3)", "(3, 1e9)", f"({'1,' * 70})", "(3L,)", "9" * 5000)),
    _header("[('a', '<f8')]", "(3,)"),
    *(f"{'(' * 4000}{')' * 4000}", f"{'-' * 9000}1", "__import__('os').abort()", "é" * 10, ""),
)


def _edit(
    members: Members,
    rng: random.Random,
    suffix: str,
    change: Callable[[bytes, random.Random], bytes],
) -> None:
    chosen = [n for n, (name, _) in enumerate(members) if name.endswith(suffix)]
    if chosen:
        n = rng.choice(chosen)
        members[n] = members[n][0], change(members[n][1], rng)


MEMBER_LEVEL: tuple[Callable[[Members, random.Random], None], ...] = (
    *(_change_json, _change_json, _change_json, _change_json, _change_json, _change_json_text),
    *(_nest_json, change_array, change_array, change_array),
    *(_drop, _twice, _swap, _rename, _shuffle),
)


# ---- files that would grow in memory ----


def _many_small_values(members: Members, rng: random.Random) -> bytes:
    value = rng.choice((b"[],", b"{},", b"999,", b'"ab",', b"1e9,", b'{"a":0},', b"[[[]]],", b'"'))
    value += b" " * rng.choice((0, 0, 10, 30))
    text = b'{"format":1,"parameters":[' + value * (N_BOMB // len(value)) + b"0]}"
    return sealed([(archive.JSON_MEMBER, text)])


def _one_array_many_times(members: Members, rng: random.Random) -> bytes:
    array = io.BytesIO()
    np.lib.format.write_array(array, np.zeros(2**14))
    reference = {"$": "array", "member": "a.npy"}
    text = json.dumps({"format": 1, "parameters": [reference] * 1500})
    return sealed([(archive.JSON_MEMBER, text.encode()), ("a.npy", array.getvalue())])


def _many_empty_members(members: Members, rng: random.Random) -> bytes:
    names = [f"{n}" for n in range(12000)]
    return sealed([*members, *((name, b"") for name in names)])


def _one_member_listed_often(members: Members, rng: random.Random) -> bytes:
    """A central directory that lists the same bytes again and again."""
    data = sealed(members)
    first = data.index(b"PK\x01\x02")
    end = data.index(b"PK\x05\x06")
    entries = data[first:end] * 3000
    tail = bytearray(data[end:])
    tail[12:16] = len(entries).to_bytes(4, "little")
    return resealed(data[:first] + entries + bytes(tail))


def _deflated_bomb(members: Members, rng: random.Random) -> bytes:
    return sealed([(members[0][0], members[0][1]), ("a.npy", bytes(2**26))], zipfile.ZIP_DEFLATED)


BOMBS = (
    *(_many_small_values, _many_small_values, _one_array_many_times),
    *(_many_empty_members, _one_member_listed_often, _deflated_bomb),
)
