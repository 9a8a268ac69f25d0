"""The file format: a tree of plain values, arrays and known classes in one file.

The file is an npz without pickle. Its first member, `ondes.json`, is the tree. What JSON cannot
express is an object with a `"$"`: an array (stored as a `.npy` member), a random state, or a
class from a list that reader and writer share. Nothing else can be named, so reading never runs
code from a file. The archive's comment is the SHA-256 of all bytes before it: a flipped bit or a
truncation is found before anything is parsed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import io
import itertools
import json
import math
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.signal.locations import Location, RemotePath, as_location

__all__ = ["pack", "read_archive", "sentence_part", "unpack"]

FORMAT_VERSION = 1
JSON_MEMBER = "ondes.json"
DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<u4", "|u1", "|b1")
MT19937_WORDS = 624
PLAIN = frozenset({bool, int, float, str, type(None)})
MAX_VERSION = 10**6
# No small file may fill the memory. An empty list is 3 bytes of text and 64 of memory, so beyond
# a number of free ones each value must come with this many bytes of text. Empty members are as far
# out of proportion.
FREE_VALUES, BYTES_PER_VALUE = 2**17, 12
MAX_MEMBERS = 1000
MAX_BYTES, MAX_REMOTE_BYTES = 2**32, 2**28

_HEAD, _NAME_AT = b"PK\x03\x04", 30  # a zip's first member's name lies 30 bytes in
_ENTRY = b"PK\x01\x02"  # opens a member's entry in the archive's directory
_DIGEST = b"sha256:"
_N_HEX = 64
_N_TAIL = len(_DIGEST) + _N_HEX
DAMAGED = "is damaged or truncated; copy it again, or restore a backup"


# ---- files ----


def read_archive(path: str | Location) -> bytes:
    """The bytes of an archive; of a file that is none, no more than its two ends are read."""
    path = as_location(path)
    try:
        with _opened(path) as file:
            data = _read(path, file)
            failure = getattr(file, "failure", None)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error
    if failure is not None:
        raise failure
    if isinstance(data, str):
        raise FileError(path, data)
    return data


def _opened(path: Location) -> Any:
    if isinstance(path, RemotePath):
        from ondes.signal.remote import RemoteFile

        return RemoteFile(path)
    return Path(str(path)).open("rb")


def _read(path: Location, file: Any) -> bytes | str:
    """All of it, or what is wrong with it."""
    head = file.read(_NAME_AT + len(JSON_MEMBER))
    if not (head.startswith(_HEAD) and head.endswith(JSON_MEMBER.encode())):
        return "is not an ondes model"
    size = file.seek(0, os.SEEK_END)
    if size > (MAX_REMOTE_BYTES if isinstance(path, RemotePath) else MAX_BYTES):
        return f"has {size:,} bytes, more than any model has"
    file.seek(-min(size, _N_TAIL), os.SEEK_END)
    if not file.read().startswith(_DIGEST):
        return DAMAGED
    file.seek(0)
    data: bytes = file.read()
    return data


# ---- bytes ----


def pack(document: dict[str, Any], classes: Iterable[type]) -> bytes:
    """Encode a tree as the bytes of an archive; equal trees give equal bytes.

    Parameters
    ----------
    document : dict
        Of None, bool, int, float, str, lists, tuples, dicts, arrays of numbers, random states,
        and dataclasses that are among `classes`.
    classes : iterable of type

    Raises
    ------
    ValueError
        For anything else.
    """
    members: dict[str, bytes] = {}
    tree = {"format": FORMAT_VERSION, **_encode(document, "", frozenset(classes), members)}
    text = json.dumps(tree, allow_nan=False, ensure_ascii=True, indent=1).encode()
    _check_values(text)
    if len(members) >= MAX_MEMBERS:
        raise ValueError(f"it has more than {MAX_MEMBERS - 1} arrays; join some")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {JSON_MEMBER: text, **members}.items():
            member = zipfile.ZipInfo(name)  # dated 1980: the bytes depend on the content alone
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, data)
        archive.comment = _DIGEST + bytes(_N_HEX)
    hashed = buffer.getvalue()[:-_N_HEX]
    return hashed + hashlib.sha256(hashed).hexdigest().encode()


def unpack(data: bytes, path: str | Location, classes: Iterable[type]) -> dict[str, Any]:
    """Undo `pack`, with memory in proportion to the bytes present, whatever they claim.

    Raises
    ------
    FileError
        About `path`.
    """
    hashed, digest = data[:-_N_HEX], data[-_N_HEX:]
    if not hashed.endswith(_DIGEST) or digest != hashlib.sha256(hashed).hexdigest().encode():
        raise FileError(path, DAMAGED)
    try:
        members = _members(data)
        text = members.pop(JSON_MEMBER)
        _check_values(text)
        with _no_garbage_collection():
            tree = json.loads(text, parse_constant=_refuse_constant)
        version = tree.pop("format")
        if not isinstance(version, int) or not 1 <= version < MAX_VERSION:
            raise ValueError("it has no format version")
        if version > FORMAT_VERSION:
            raise FileError(
                path,
                f"was written by a newer ondes (format {version}, this one reads up to "
                f"{FORMAT_VERSION}); upgrade ondes",
            )
        known = {each.__name__: each for each in classes}
        return {name: _decode(part, known, members) for name, part in tree.items()}
    except FileError:
        raise
    except Exception as error:  # a forged archive can fail in any way: report one thing
        reason = f"is not a valid ondes model ({sentence_part(error)})"
        raise FileError(path, reason) from error


def sentence_part(error: BaseException) -> str:
    """An error's message as part of another sentence, on one line that any terminal shows."""
    message = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """While many lists are created, the collector would scan all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_values(text: bytes) -> None:
    """Raise ValueError where JSON would be much larger as objects than it is as text."""
    n_allowed = FREE_VALUES + len(text) // BYTES_PER_VALUE
    if next(itertools.islice(_VALUE.finditer(text), n_allowed, None), None) is not None:
        raise ValueError("it has too many values outside arrays")


_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[,\[{]', re.DOTALL)  # each match is at most one value


def _members(data: bytes) -> dict[str, bytes]:
    if data.count(_ENTRY) > MAX_MEMBERS:
        raise ValueError("it has too many members")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        listed = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in listed):
            raise ValueError("it has compressed members")
        if sum(member.file_size for member in listed) > len(data):
            raise ValueError("its members claim more bytes than it has")
        return {member.filename: archive.read(member) for member in listed}


# ---- values ----


def _encode(value: Any, where: str, classes: frozenset[type], members: dict[str, bytes]) -> Any:
    def inner(part: Any, name: str) -> Any:
        return _encode(part, f"{where}.{name}".lstrip("."), classes, members)

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [
            part if type(part) in PLAIN else inner(part, str(n)) for n, part in enumerate(value)
        ]
    if isinstance(value, dict):
        return {str(name): inner(part, name) for name, part in value.items()}
    if isinstance(value, np.random.RandomState):
        return {"$": "RandomState", **_random_state_parts(value, where, inner)}
    if type(value) in classes and dataclasses.is_dataclass(value):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"$": type(value).__name__, **{k: inner(part, k) for k, part in parts.items()}}
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            return inner(array.tolist(), "labels")
        return _encode_array(array, where, members)
    raise ValueError(
        f"{where} is a {type(value).__name__}, which a model file cannot store; use a class "
        "of ondes"
    )


def _encode_array(array: NDArray[Any], where: str, members: dict[str, bytes]) -> dict[str, str]:
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if array.dtype.str not in DTYPES:
        raise ValueError(f"{where} is an array of {array.dtype}; give float64")
    if not np.isfinite(array).all():
        raise ValueError(f"{where} has NaN or infinite entries")
    buffer = io.BytesIO()
    npy.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    members[f"{where}.npy"] = buffer.getvalue()
    return {"$": "array", "member": f"{where}.npy"}


def _random_state_parts(state: np.random.RandomState, where: str, inner: Any) -> dict[str, Any]:
    kind, key, position, has_gauss, gauss = state.get_state(legacy=True)
    if kind != "MT19937":
        raise ValueError(f"{where} uses the generator {kind}; give a whole number instead")
    parts = {"key": key, "position": position, "has_gauss": has_gauss, "gauss": gauss}
    return {name: inner(part, name) for name, part in parts.items()}


def _decode(tree: Any, classes: dict[str, type], members: dict[str, bytes]) -> Any:
    if isinstance(tree, list):
        for n, part in enumerate(tree):
            if isinstance(part, (list, dict, str)):
                tree[n] = _decode(part, classes, members)
    if isinstance(tree, str):
        tree.encode(errors="surrogateescape")  # UnicodeError where no file could have this name
    if not isinstance(tree, dict):
        return tree
    kind = tree.pop("$", None)
    if kind == "array":
        return _decode_array(members.pop(tree["member"]))  # each member serves once
    for name, part in tree.items():
        tree[name] = _decode(part, classes, members)
    if kind is None:
        return tree
    if kind == "RandomState":
        return _decode_random_state(**tree)
    if kind not in classes:
        raise ValueError(f"it names an unknown class {kind!r}")
    # The known classes are immutable values, so their sequences are tuples.
    return classes[kind](**{k: tuple(v) if isinstance(v, list) else v for k, v in tree.items()})


def _decode_array(data: bytes) -> NDArray[Any]:
    # NumPy would evaluate the header as Python; only this one form is ever written.
    start = len(_NPY_1_0) + 2
    end = start + int.from_bytes(data[start - 2 : start], "little")
    header = _NPY_HEADER.fullmatch(data[start:end])
    if not data.startswith(_NPY_1_0) or header is None:
        raise ValueError("it has an array of an unknown version")
    descr, is_fortran, sizes = (part.decode() for part in header.groups())
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if descr not in DTYPES or math.prod(shape) * np.dtype(descr).itemsize != len(data) - end:
        raise ValueError("it has an array that is not what its header says")
    flat = np.frombuffer(data, descr, offset=end)
    if not np.isfinite(flat).all():
        raise ValueError("it has an array with NaN or infinite entries")
    return flat.reshape(shape, order="F" if is_fortran == "True" else "C").copy(order="K")


_NPY_1_0 = npy.magic(1, 0)
_NPY_HEADER = re.compile(
    rb"\{'descr': '(...)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \} *\n"
)


def _decode_random_state(
    key: NDArray[np.uint32], position: int, has_gauss: int, gauss: float
) -> np.random.RandomState:
    # NumPy takes the position on trust, and would read past its memory.
    if key.shape != (MT19937_WORDS,) or not 0 <= int(position) <= MT19937_WORDS:
        raise ValueError("it has an invalid random state")
    state = np.random.RandomState()
    state.set_state(("MT19937", key, int(position), int(has_gauss), float(gauss)))
    return state


def _refuse_constant(name: str) -> float:
    raise ValueError(f"its JSON has {name}")
