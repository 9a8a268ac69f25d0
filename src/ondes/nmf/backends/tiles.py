"""Tile shapes of the fused kernel: how many frames and bins a program has at a time.

One table, found by timing candidates on an H200. Registers decide: they hold a program's
activations and sums, so the more components, the fewer programs share a multiprocessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

Entry = TypeVar("Entry")

REGISTERS = 65536  # of one multiprocessor


@dataclass(frozen=True)
class Tile:
    """The shape of one program of the kernel.

    Attributes
    ----------
    frames : int, a power of two from 16 on
        Frames that a program solves side by side.
    bins : int, a power of two from 16 on
        Bins that it processes at a time.
    warps : int
    per_processor : int
        Programs that share a multiprocessor.
    stages : int
        Blocks of bins being fetched from memory, and the one being processed.
    parked : bool
        Whether the last good activations are in memory between steps, not in registers.
    kernel : str
        "general" is that of `fused_kernels`; "resident" and "streamed" are those of
        `fused_resident` and `fused_streamed`, for Hopper GPUs.
    """

    frames: int
    bins: int
    warps: int
    per_processor: int
    stages: int = 1
    parked: bool = False
    kernel: str = "general"

    def tail(self, n_bins: int) -> int:
        """The width of the last block, which may be narrower; 0 where no bin remains."""
        rest = n_bins % self.bins
        return max(16, 1 << (rest - 1).bit_length()) if rest else 0

    def padded_bins(self, n_bins: int) -> int:
        """The bins with what fills the last block: on Hopper GPUs blocks are equally wide."""
        at_a_time = {"streamed": self.bins, "resident": 2 * self.bins}.get(self.kernel)
        if at_a_time is None or n_bins % at_a_time == 1:
            return n_bins // self.bins * self.bins + self.tail(n_bins)
        return -(-n_bins // at_a_time) * at_a_time

    @property
    def registers(self) -> int:
        """The most per thread that let `per_processor` programs run at once."""
        return min(255, REGISTERS // (32 * self.warps * self.per_processor) // 8 * 8)


# By precision, then by the padded number of components that a tile serves at most.
_MANY: dict[str, dict[int, Tile]] = {
    "tf32": {
        16: Tile(64, 32, 4, 4),
        32: Tile(64, 32, 4, 3),
        64: Tile(64, 32, 4, 2, stages=3),
        128: Tile(32, 32, 4, 2, stages=3, parked=True),
        256: Tile(32, 32, 8, 1, stages=3, parked=True),
    },
    "ieee": {
        32: Tile(64, 32, 4, 2),
        64: Tile(64, 16, 4, 2),
        128: Tile(16, 64, 4, 2, parked=True),
        256: Tile(16, 32, 4, 2),
    },
    "bf16": {
        32: Tile(64, 32, 4, 3),
        64: Tile(64, 64, 4, 2),
        128: Tile(64, 32, 4, 2),
        256: Tile(32, 32, 4, 2, stages=2),
    },
}
# Long spectra do not stay in the nearest cache from step to step: fetch ahead.
_LONG = 400
_MANY_LONG = {
    16: Tile(64, 32, 4, 4, stages=3),
    32: Tile(64, 32, 4, 2, stages=4),
    128: Tile(64, 16, 4, 2, stages=3),
}
# Few frames: small tiles, to occupy many multiprocessors.
_FEW = {64: Tile(16, 64, 2, 1, stages=2), 256: Tile(16, 32, 4, 1, stages=2)}
_FEW_TF32 = {
    64: Tile(16, 256, 4, 1),
    128: Tile(16, 128, 8, 1, stages=2),
    256: _FEW[256],  # wider blocks of so many components exceed the shared memory
}
# Many frames on a Hopper GPU, in TF32. Of 128 frames and up to 32 components, so many bins fit into
# the shared memory.
_RESIDENT = Tile(128, 32, 8, 1, kernel="resident")
_LONGEST_RESIDENT = 257
_STREAMED = {
    128: Tile(64, 64, 8, 1, kernel="streamed"),
    256: Tile(64, 32, 8, 1, kernel="streamed"),
}
# Frames and bins at a time of the statistics.
_SUMS = {64: (64, 32), 256: (32, 16)}


def padded(n_components: int) -> int:
    """The width of a row of activations in the kernel: a power of two.

    Examples
    --------
    >>> padded(1), padded(20), padded(256)
    (16, 32, 256)
    """
    return max(16, 1 << (n_components - 1).bit_length())


def choose(n_frames: int, n_bins: int, n_components: int, precision: str, processors: int) -> Tile:
    """The tile for `n_frames` frames, on a GPU of `processors` multiprocessors."""
    width = padded(n_components)
    if n_frames <= 16 * processors:
        return _first(_FEW_TF32 if precision == "tf32" else _FEW, width)
    if precision == "tf32" and n_bins >= _LONG and width in _MANY_LONG:
        return _MANY_LONG[width]
    return _first(_MANY[precision], width)


def choose_for_hopper(
    n_frames: int, n_bins: int, n_components: int, processors: int
) -> Tile | None:
    """The tile for a kernel of `fused_hopper`, or None where `fused_kernels` is faster."""
    width = padded(n_components)
    if width <= 32:
        enough = n_frames >= _RESIDENT.frames * processors
        return _RESIDENT if enough and n_bins <= _LONGEST_RESIDENT else None
    return _STREAMED.get(width) if n_frames > 32 * processors else None


def choose_for_sums(n_components: int) -> tuple[int, int]:
    """Frames and bins at a time of the statistics."""
    return _first(_SUMS, padded(n_components))


def _first(table: dict[int, Entry], width: int) -> Entry:
    return next(entry for most, entry in table.items() if width <= most)
