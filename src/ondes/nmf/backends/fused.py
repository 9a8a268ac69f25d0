"""The inner solve of many frames in one launch on a CUDA device.

What `ondes.nmf.backends.reference` does, with the activations in registers from the first step to
the last. A program of the kernel has a range of frames and solves a tile of them side by side; a
frame that is finished gives its row to the next one. A second launch sums the statistics, and for
learning a third moves the dictionary. Every sum has a fixed order: a call repeats bit for bit on
one device, and a frame's activations depend neither on its neighbours nor on its position among
them.

For Itakura-Saito everything is divided by the model of equal activations, bin by bin. Neither
objective nor steps change; the gain of the fresh start becomes a mean; and the tensor cores, whose
numbers have the range of float32 but fewer digits, multiply quantities near one.

Bounds against float64 after the default solve, for a model's spectra and, in brackets, for entries
spread over 1e-12 to 1 with a fifth of them zero; tested by `tests/fused_guarantees.py` on a GPU:

==========  ===================  ================  =======================
precision   activations          their divergence  the divergence returned
==========  ===================  ================  =======================
``ieee``    1e-5 (1e-4)          1e-6              1e-6
``tf32``    1e-2 (5e-2)          1e-5              1e-5
``bf16``    1e-1 (5e-1)          1e-4              1e-4
==========  ===================  ================  =======================

Activations are relative to the largest of their frame, and bounded in 999 of 1000 frames: where
rounding decides a restart, a frame takes another path to the same cost.
``ieee`` computes each product as three of TF32, which together have float32's digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ondes.nmf.backends import fused_solve, fused_update
from ondes.nmf.backends.devices import constants
from ondes.nmf.backends.torch import Sums
from ondes.nmf.penalties import L1, GroupLog
from ondes.nmf.problem import TOLERATED_RISE, Problem

Entry = TypeVar("Entry")

MAX_COMPONENTS = 256
LOWEST_FLOOR = 1e-15  # v / y² and the product of two bins stay within float32's range
SHORTEST_CHUNK = 4  # tiles of frames that are summed before the sum is stored

# ---- Tile shapes: one table, found by timing candidates on an H200 ----
#
# Registers decide: they hold a program's activations and sums, so the more components, the fewer
# programs share a multiprocessor.

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
    """

    frames: int
    bins: int
    warps: int
    per_processor: int
    stages: int = 1
    parked: bool = False

    def tail(self, n_bins: int) -> int:
        """The width of the last block, which may be narrower; 0 where no bin remains."""
        rest = n_bins % self.bins
        return max(16, 1 << (rest - 1).bit_length()) if rest else 0

    def padded_bins(self, n_bins: int) -> int:
        """The bins with what fills the last block."""
        return n_bins // self.bins * self.bins + self.tail(n_bins)

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


def _first(table: dict[int, Entry], width: int) -> Entry:
    return next(entry for most, entry in table.items() if width <= most)


# ---- The interface of `ondes.nmf.backends.torch` ----


def unsupported(problem: Problem, dtype: torch.dtype) -> str | None:
    """What the kernel cannot solve of `problem`, as a sentence, or None."""
    kind = type(problem.penalty)
    if problem.divergence.beta not in (0, 1):
        return (
            "The fused kernel supports the divergences of Itakura-Saito and Kullback-Leibler, not "
            f"that of β = {problem.divergence.beta:g}."
        )
    if dtype != torch.float32:
        return f"The fused kernel works in float32, not {str(dtype).removeprefix('torch.')}."
    if problem.penalty is not None and kind not in (L1, GroupLog):
        return f"The fused kernel supports the penalties L1 and GroupLog, not {kind.__name__}."
    if len(problem.dictionary) > MAX_COMPONENTS:
        return (
            f"The fused kernel supports at most {MAX_COMPONENTS} components, "
            f"not {len(problem.dictionary)}."
        )
    if problem.floor < LOWEST_FLOOR:
        return (
            f"The fused kernel needs a noise floor of {LOWEST_FLOOR} or more, not {problem.floor}."
        )
    return None


def solve(
    values: Tensor,
    dictionary: Tensor,
    problem: Problem,
    *,
    background: Tensor | None = None,
    background_activation: Tensor | None = None,
    start: Tensor | None = None,
    precision: str = "tf32",
    with_sums: bool,
    tile: Tile | None = None,
) -> tuple[Tensor, Sums | None]:
    """What `ondes.nmf.backends.torch.solve` does, for float32 frames; `tile` is its choice."""
    known = background, background_activation
    activations, parts = _run(values, dictionary, problem, known, start, precision, tile, with_sums)
    if parts is None:
        return activations, None
    n_components, n_bins = shape = dictionary.shape
    total = parts.sum(dim=0, dtype=torch.float64)
    weighted, inverse, gradient, divergence = torch.split(
        total, [n_components * n_bins] * 2 + [n_components, _n_blocks(parts, shape)]
    )
    return activations, Sums(weighted.view(shape), inverse.view(shape), gradient, divergence.sum())


def learn(
    values: Tensor,
    state: Tensor,
    factor: Tensor,
    problem: Problem,
    *,
    exponent: float,
    n_fixed: int = 0,
    background: Tensor | None = None,
    background_activation: Tensor | None = None,
    precision: str = "tf32",
) -> Tensor:
    """Solve, and move the dictionary: what `ondes.nmf.dictionary_update.update` does, in place.

    `state` of shape (3, n_components, n_bins), float64, has the dictionary, the numerator and the
    denominator. Returns the divergence of these frames.
    """
    known = background, background_activation
    _, parts = _run(values, state[0], problem, known, None, precision, None, True)
    assert parts is not None
    n_components, n_bins = shape = state[0].shape
    n_blocks = _n_blocks(parts, shape)
    divergence = state.new_empty(1)
    fused_update.move[(n_components,)](
        parts, state, factor, constants((exponent,), torch.float64, state.device), divergence,
        n_components=n_components, n_chunks=len(parts), n_blocks=n_blocks, n_fixed=n_fixed,
        F=n_bins, WIDTH=min(1024, 1 << (n_bins - 1).bit_length()),
        BLOCKS=1 << (n_blocks - 1).bit_length(), BETA=int(problem.divergence.beta),
        PENALISED=problem.penalty is not None, SPARSE=problem.sparsity > 0,
        POWER={1.0: "one", 0.5: "root"}.get(exponent, "any"), num_warps=8,
    )  # fmt: skip
    return divergence


def _run(
    values: Tensor,
    dictionary: Tensor,
    problem: Problem,
    background: tuple[Tensor | None, Tensor | None],
    start: Tensor | None,
    precision: str,
    tile: Tile | None,
    with_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """The activations, and sums of chunks of the frames."""
    shape = len(values), values.shape[1], len(dictionary)
    tile = tile or choose(*shape, precision, _processors(values.device))
    layout = _Layout(tile, *shape[1:], precision, values.is_cuda)
    arguments = _arguments(problem, values.device, layout.K)
    row, known = background
    known = None if row is None else known
    model = _prepare(dictionary, row, problem, layout)
    values = values.contiguous()
    activations = values.new_empty((shape[0], shape[2]))
    if len(values):
        _solve(values, start, activations, known, model, problem, arguments, layout)
    if not with_sums:
        return activations, None
    return activations, _summarise(values, activations, known, model, problem, arguments, layout)


def _n_blocks(parts: Tensor, shape: tuple[int, ...]) -> int:
    """How many blocks of bins have a divergence of their own in the sums."""
    n_components, n_bins = shape
    return int(parts.shape[1] - (2 * n_bins + 1) * n_components)


class _Layout:
    """The shapes that kernels are compiled for."""

    def __init__(
        self, tile: Tile, n_bins: int, n_components: int, precision: str, on_gpu: bool
    ) -> None:
        self.tile, self.F, self.K = tile, n_bins, padded(n_components)
        self.tail = tile.tail(n_bins)
        self.padded = tile.padded_bins(n_bins)
        # Warps have 16 rows each; where rows are too few for all, the others share the columns.
        self.down = min(tile.warps, tile.frames // 16)
        self.across = min(tile.warps // self.down, tile.bins // 8)
        self.across_tail = min(self.across, max(self.tail, 16) // 8)
        self.precision = {"ieee": "tf32x3"}.get(precision, precision)
        self.swap = self.across == 1 and precision != "bf16"
        self.fast = on_gpu
        # One block has all bins, or all but one: the dictionary stays in shared memory.
        self.resident = n_bins // tile.bins == 1 and tile.stages == 1
        self.narrow = torch.bfloat16 if precision == "bf16" else torch.float32


class _Model(NamedTuple):
    dictionary: Tensor
    columns: Tensor  # the dictionary as right factor of either product
    rows: Tensor
    bins: Tensor  # the scale, the floor and the background, in units of the even model
    linear: Tensor | None  # what sparsity adds to each denominator, and the sums of the rows


def _prepare(
    dictionary: Tensor, background: Tensor | None, problem: Problem, layout: _Layout
) -> _Model:
    device, K, padded = dictionary.device, layout.K, layout.padded
    dictionary, beta = dictionary.contiguous(), int(problem.divergence.beta)
    columns = torch.empty((padded, K), dtype=layout.narrow, device=device)
    rows = torch.empty((K, padded), dtype=layout.narrow, device=device)
    bins = torch.empty((3, padded), dtype=torch.float32, device=device)
    fused_update.prepare[(padded // 16,)](
        dictionary, bins if background is None else background, columns, rows, bins,
        len(dictionary), problem.floor,
        layout.F, K, padded, layout.swap, background is not None, beta, layout.precision,
    )  # fmt: skip
    linear = None
    if beta == 1 or problem.sparsity:
        linear = torch.empty(2 * K, device=device)
        fused_update.weigh_rows[(K,)](
            dictionary, linear, len(dictionary), float(problem.sparsity), layout.F, K, 128
        )
    return _Model(dictionary, columns, rows, bins, linear)


def _arguments(problem: Problem, device: torch.device, K: int) -> dict[str, Any]:
    """The penalty as arguments of the kernels."""
    none = {"groups": None, "n_groups": 0, "strength": 0.0, "offset": 1.0}
    match problem.penalty:
        case L1(strength):
            return none | {"PENALTY": "l1", "GROUPED": False, "strength": strength}
        case GroupLog(strength, offset):
            found = none | {"PENALTY": "group_log", "strength": strength, "offset": offset}
            if problem.groups is None:
                return found | {"GROUPED": False}
            groups = tuple(problem.groups.tolist())
            padding = (-1,) * (K - len(groups))
            table = constants(groups + padding, torch.int32, device)
            return found | {"GROUPED": True, "groups": table, "n_groups": max(groups) + 1}
    return none | {"PENALTY": "none", "GROUPED": False}


def _solve(
    values: Tensor,
    start: Tensor | None,
    activations: Tensor,
    known: Tensor | None,
    model: _Model,
    problem: Problem,
    penalty: dict[str, Any],
    layout: _Layout,
) -> None:
    tile, solver = layout.tile, problem.solver
    power = {1.0: "one", 0.5: "root"}.get(solver.exponent, "any")
    momentum = constants(solver.momentum or (0.0,), torch.float32, values.device)
    n_tiles = -(-len(values) // tile.frames)
    n_programs = min(n_tiles, tile.per_processor * _processors(values.device))
    shared = {
        "n_frames": len(values), "share": -(-n_tiles // n_programs) * tile.frames,
        "n_components": activations.shape[1], "max_steps": solver.max_steps,
        "n_momentum": max(1, len(solver.momentum)), "floor": problem.floor,
        "tolerated": TOLERATED_RISE * layout.F, "exponent": solver.exponent,
        "F": layout.F, "K": layout.K, "PADDED": layout.padded, "M": tile.frames,
        "WIDTH": tile.bins, "STARTED": start is not None, "KNOWN": known is not None,
        "POWER": power, "num_warps": tile.warps, "maxnreg": tile.registers,
    }  # fmt: skip
    given = values, start, activations, known
    laid_out = model.columns, model.rows, model.bins
    width = layout.padded + layout.K * tile.parked
    scratch = values.new_empty(n_programs * tile.frames * width)
    fused_solve.solve[(n_programs,)](
        *given, scratch, *laid_out, model.linear, momentum, tol=solver.tol,
        TAIL=layout.tail, DOWN=layout.down, ACROSS=layout.across,
        ACROSS_TAIL=layout.across_tail, SWAP=layout.swap, STAGES=tile.stages,
        RESIDENT=layout.resident, PARKED=tile.parked, WARPS=tile.warps,
        MOMENTUM=bool(solver.momentum), STOPS=solver.tol > 0,
        BETA=int(problem.divergence.beta), SPARSE=problem.sparsity > 0,
        PRECISION=layout.precision, FAST=layout.fast, **shared, **penalty,
        num_stages=tile.stages,
    )  # fmt: skip


def _summarise(
    values: Tensor,
    activations: Tensor,
    known: Tensor | None,
    model: _Model,
    problem: Problem,
    penalty: dict[str, Any],
    layout: _Layout,
) -> Tensor:
    """The sums of chunks of the frames: weighted, inverse, the penalty's, and the divergence."""
    (n_frames, n_bins), n_components = values.shape, activations.shape[1]
    frames, width = _first(_SUMS, padded(n_components))
    n_tiles, n_blocks = -(-n_frames // frames), -(-n_bins // width)
    wanted = -(-4 * _processors(values.device) // n_blocks)
    n_chunks = max(1, min(-(-n_tiles // SHORTEST_CHUNK), wanted))
    parts = values.new_empty((n_chunks, (2 * n_bins + 1) * n_components + n_blocks))
    fused_update.summarise[(n_blocks, n_chunks)](
        values, activations, known, model.dictionary, model.bins,
        parts=parts, n_frames=n_frames, share=-(-n_tiles // n_chunks) * frames,
        n_components=n_components, floor=problem.floor,
        F=n_bins, K=layout.K, PADDED=layout.padded, M=frames, WIDTH=width, SWAP=layout.swap,
        KNOWN=known is not None, BETA=int(problem.divergence.beta),
        PRECISION=layout.precision, FAST=layout.fast, **penalty,
        num_warps=4,
    )  # fmt: skip
    return parts


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2  # the interpreter: more than one program, so that their edges are tested
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
