"""Which recordings a saved position belongs to: a few numbers for each of very many."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.errors import printable
from ondes.signal.segments import Recording

__all__ = ["INVALID", "Inventory", "check_same", "digest", "take_inventory", "vector"]

Inventory = dict[str, NDArray[Any]]

DTYPES: dict[str, type[np.generic]] = {
    "names": np.uint8,
    "marks": np.uint8,
    "sr": np.int64,
    "n_samples": np.int64,
}
UNKNOWN = -1  # number of samples
INVALID = "The saved position is invalid: start again without it."


def take_inventory(recordings: Sequence[Recording]) -> Inventory:
    r"""What must be the same when a run continues, as arrays that a file can hold.

    Examples
    --------
    >>> inventory = take_inventory([Recording("a.wav", 8000, 16000), Recording("stream")])
    >>> bytes(inventory["names"]), inventory["n_samples"].tolist()
    (b'a.wav\x00stream\x00', [16000, -1])
    """
    lengths = (UNKNOWN if each.n_samples is None else each.n_samples for each in recordings)
    return {
        "names": _joined([each.name for each in recordings]),
        "marks": _joined([each.mark for each in recordings]),
        "sr": np.array([each.sr for each in recordings], np.int64),
        "n_samples": np.fromiter(lengths, np.int64, len(recordings)),
    }


def digest(recordings: Sequence[Recording]) -> str:
    """Equal for the same recordings in the same order, whatever their folders and tags.

    Examples
    --------
    >>> digest([Recording("a.wav", 8000, 16000)]) == digest([Recording("b.wav", 8000, 16000)])
    False
    """
    inventory = take_inventory(recordings)
    hashed = hashlib.sha256()
    for name in ("names", "sr", "n_samples"):
        hashed.update(inventory[name].tobytes())
    return hashed.hexdigest()[:32]


def check_same(saved: Mapping[str, NDArray[Any]], recordings: Sequence[Recording]) -> None:
    """Compare a saved inventory with the recordings that are there.

    Parameters
    ----------
    saved : mapping of str to array
        As of `take_inventory`.
    recordings : sequence of Recording

    Raises
    ------
    ValueError
        Where a recording is gone, new or changed, or the inventory is invalid. A recording with
        other bytes is a RuntimeWarning.
    """
    try:
        before = {name: vector(saved[name], dtype) for name, dtype in DTYPES.items()}
        names, marks = _parted(before["names"]), _parted(before["marks"])
        rates, lengths = before["sr"].tolist(), before["n_samples"].tolist()
        facts = list(zip(names, rates, lengths, marks, strict=True))
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(INVALID) from error
    now = take_inventory(recordings)
    if all(np.array_equal(now[name], before[name]) for name in now):
        return
    counted, counted_before = Counter(each.name for each in recordings), Counter(names)
    for name in sorted(counted_before - counted):
        raise ValueError(f"{printable(name)} is missing since the position was saved: restore it.")
    for name in sorted(counted - counted_before):
        raise ValueError(
            f"{printable(name)} is new since the position was saved: leave it out for now."
        )
    for each, fact in zip(recordings, facts, strict=True):
        _check_one(each, *fact)


def _check_one(recording: Recording, name: str, sr: int, n_samples: int, mark: str) -> None:
    said, known = printable(recording.name), None if n_samples == UNKNOWN else n_samples
    if recording.name != name:
        raise ValueError(
            f"{said} is at another position among the recordings than when the run was saved; "
            "restore the order."
        )
    if (recording.sr, recording.n_samples) != (sr, known):
        raise ValueError(
            f"{said} has {recording.n_samples} samples at {recording.sr} Hz, and had "
            f"{known} at {sr} Hz when the position was saved: restore it as it was."
        )
    if recording.mark != mark:  # perhaps only its tags, which would be no reason to lose a run
        warnings.warn(
            f"{said} has changed since the position was saved; if its sound has changed, the "
            "result will differ.",
            RuntimeWarning,
            stacklevel=4,
        )


def vector(value: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """A value from a file that must be a one-dimensional array; TypeError where it is not."""
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype != dtype:
        raise TypeError(f"not a vector of {dtype.__name__}")
    return value


def _joined(words: list[str]) -> NDArray[np.uint8]:
    """Words in one array, each ended by a zero, which no file name holds."""
    text = "".join(f"{word}\0" for word in words)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def _parted(joined: NDArray[np.uint8]) -> list[str]:
    return joined.tobytes().decode("utf-8", "surrogatepass").split("\0")[:-1]
