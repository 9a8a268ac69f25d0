"""The kernel of `ondes.nmf.backends.fused` for many components on Hopper GPUs; see `fused_hopper`.

Two groups of four warps solve M frames, and share the columns of each product. Registers hold the
sums and the last good activations; shared memory holds the points, and of the dictionary the
present block and the next one in both orders.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ondes.nmf.backends.fused_hopper import (
    COUNTS,
    advance,
    announce,
    begin_sums,
    beside,
    by_row,
    by_thread,
    first_point,
    judge,
    last_bin,
    no_costs,
    take,
    weigh,
)


def blocks(columns: Tensor, rows: Tensor, width: int) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Both orders of the dictionary, as blocks of bins for `fetch`."""
    layout = gl.NVMMASharedLayout(128, 32, 2)
    return (
        TensorDescriptor.from_tensor(columns, [width, len(rows)], layout),
        TensorDescriptor.from_tensor(rows, [len(rows), width], layout),
    )


@gluon.jit
def fetch(
    columns, rows, across, back, arrived, column_block, row_block,
    K: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Copy a block of bins for the model and one for the sums, and go on before they are there."""
    mbarrier.expect(arrived, 2 * 4 * WIDTH * K)
    tma.async_copy_global_to_shared(columns, [column_block * WIDTH, 0], arrived, across)
    tma.async_copy_global_to_shared(rows, [0, row_block * WIDTH], arrived, back)


@gluon.jit
def begin_model(points, across, M: gl.constexpr, WIDTH: gl.constexpr, MODEL: gl.constexpr):
    """Begin the product that gives the model of a block."""
    zeros = warpgroup_mma_init(gl.zeros([M, WIDTH], gl.float32, MODEL))
    return warpgroup_mma(points, across.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def by_thread_at(M: gl.constexpr, WIDTH: gl.constexpr, BY_THREAD: gl.constexpr):
    """Where in a block's frames a thread's numbers are."""
    i = gl.arange(0, WIDTH // 16, gl.SliceLayout(1, BY_THREAD))
    j = gl.arange(0, 16 * M, gl.SliceLayout(0, BY_THREAD))
    return i[:, None] * (16 * M) + j[None, :]


@gluon.jit
def look(
    model, rest, target, numerator, denominator, costs, known, frames, bins, columns, rows,
    points, across, back, arrived, weighted, inverse, block, turn,
    M: gl.constexpr, K: gl.constexpr, PADDED: gl.constexpr, WIDTH: gl.constexpr,
    BLOCKS: gl.constexpr, KNOWN: gl.constexpr, MORE: gl.constexpr, MODEL: gl.constexpr,
):  # fmt: skip
    """Begin the next block's model, and then the sums over this one; fetch what follows."""
    over_square, over, costs = weigh(model + rest, target, costs, M, WIDTH, MODEL)
    weighted.index(turn).store(over_square)
    inverse.index(turn).store(over)
    above, below = warpgroup_mma_wait(0, deps=[numerator, denominator])
    mbarrier.wait(arrived, 1 - turn)
    fence_async_shared()
    gl.thread_barrier()
    following = (block + 1) % BLOCKS
    target = by_row(gl.load(frames + following * M * WIDTH), M, WIDTH, 2, MODEL)
    rest = beside(bins, known, following, PADDED, WIDTH, KNOWN, MODEL)
    fetch(
        columns, rows, across.index(turn), back.index(1 - turn), arrived,
        (block + 2) % BLOCKS, following, K, WIDTH,
    )  # fmt: skip
    next_model = warpgroup_mma_init(model)
    if MORE:
        next_model = begin_model(points, across.index(1 - turn), M, WIDTH, MODEL)
    right = back.index(turn).permute((1, 0))
    numerator = warpgroup_mma(weighted.index(turn), right, warpgroup_mma_init(above), is_async=True)
    denominator = warpgroup_mma(
        inverse.index(turn), right, warpgroup_mma_init(below), is_async=True
    )
    return next_model, rest, target, numerator, denominator, costs


@gluon.jit(do_not_specialize=COUNTS)
def solve(
    values, start, activations, background, scratch, columns, column_blocks, row_blocks, bins,
    momentum, n_frames, share, n_components, max_steps, n_momentum, floor, tolerated, exponent,
    F: gl.constexpr, K: gl.constexpr, PADDED: gl.constexpr, M: gl.constexpr, WIDTH: gl.constexpr,
    STARTED: gl.constexpr, KNOWN: gl.constexpr, POWER: gl.constexpr,
):  # fmt: skip
    """Solve for the activations of a program's share of the frames, M side by side."""
    ONE_MORE: gl.constexpr = F % WIDTH == 1  # a last bin, outside the blocks
    BLOCKS: gl.constexpr = (F - 1 if ONE_MORE else PADDED) // WIDTH
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, K // 2, 8])
    MODEL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, WIDTH // 2, 8])
    BY_THREAD: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, 8], [1, 0])
    BY_ROW: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [8, 1], [1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SHARED: gl.constexpr = column_blocks.layout
    points = gl.allocate_shared_memory(gl.float32, [M, K], SHARED)
    across = gl.allocate_shared_memory(gl.float32, [2, WIDTH, K], SHARED)
    back = gl.allocate_shared_memory(gl.float32, [2, K, WIDTH], SHARED)
    weighted = gl.allocate_shared_memory(gl.float32, [2, M, WIDTH], SHARED)
    inverse = gl.allocate_shared_memory(gl.float32, [2, M, WIDTH], SHARED)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    last_part = gl.allocate_shared_memory(gl.float32, [K], FLAT)  # of the dictionary
    program = gl.program_id(0)
    frames = scratch + program.to(gl.int64) * (M * PADDED) + by_thread_at(M, WIDTH, BY_THREAD)
    k = gl.arange(0, K, gl.SliceLayout(0, SUMS))
    m = gl.arange(0, M, gl.SliceLayout(1, SUMS))
    if ONE_MORE:
        last_part.store(gl.load(columns + (F - 1) * K + k))
    last = gl.minimum(program * share + share, n_frames)
    turn = 0  # which of two buffers has the present block
    mbarrier.init(arrived, count=1)
    fetch(column_blocks, row_blocks, across.index(0), back.index(0), arrived, 0, 0, K, WIDTH)
    mbarrier.wait(arrived, 0)
    fetch(
        column_blocks, row_blocks, across.index(1), back.index(0), arrived, 1 % BLOCKS, 0, K, WIDTH
    )
    for begin in range(program * share, last, M):
        at = gl.arange(0, WIDTH, gl.SliceLayout(0, BY_ROW))
        row = begin + gl.arange(0, M, gl.SliceLayout(1, BY_ROW))
        row = gl.minimum(row, n_frames - 1).to(gl.int64)
        totals = gl.zeros([M, WIDTH], gl.float32, BY_ROW)
        for block in range(BLOCKS):
            target, totals = take(values, row, bins, floor, block * WIDTH + at, totals, F)
            weighted.index(0).store(target)
            target = by_thread(weighted.index(0).load(MODEL), M, WIDTH, 2)
            target = gl.convert_layout(target, BY_THREAD, assert_trivial=True)
            gl.store(frames + block * M * WIDTH, target)
        total = gl.convert_layout(gl.sum(totals, axis=1), gl.SliceLayout(1, SUMS))
        announce(values, begin + M, n_frames, M, F)
        known = gl.zeros([M], gl.float32, gl.SliceLayout(1, MODEL))
        if KNOWN:
            row = begin + gl.arange(0, M, gl.SliceLayout(1, MODEL))
            known = gl.load(background + gl.minimum(row, n_frames - 1))
        row = gl.minimum(begin + m, n_frames - 1).to(gl.int64)
        last_target, last_known = last_bin(
            values, row, bins, background, floor, F, PADDED, ONE_MORE, KNOWN
        )
        here = first_point(start, row, total + last_target, n_components, k, K, M, STARTED, SUMS)
        points.store(here)
        last_model = last_known
        if ONE_MORE:
            part = last_part.load(gl.SliceLayout(0, SUMS))
            last_model = gl.sum(here * part[None, :], axis=1) + last_known
        lowest = gl.full([M], float("inf"), gl.float32, gl.SliceLayout(1, SUMS))
        age = gl.zeros([M], gl.int32, gl.SliceLayout(1, SUMS))
        for _ in range(max_steps):
            part = last_part.load(gl.SliceLayout(0, SUMS))
            above, below, cost = begin_sums(last_model, last_target, part, K, M, ONE_MORE, SUMS)
            costs = no_costs(M, WIDTH, MODEL)
            fence_async_shared()
            gl.thread_barrier()
            model = begin_model(points, across.index(turn), M, WIDTH, MODEL)
            target = by_row(gl.load(frames), M, WIDTH, 2, MODEL)
            rest = beside(bins, known, 0, PADDED, WIDTH, KNOWN, MODEL)
            found, above, below = warpgroup_mma_wait(0, deps=[model, above, below])
            numerator = warpgroup_mma_init(above)
            denominator = warpgroup_mma_init(below)
            for block in range(BLOCKS - 1):
                # While the sums of a block run, the next block's quotients are computed.
                model, rest, target, numerator, denominator, costs = look(
                    found, rest, target, numerator, denominator, costs, known, frames, bins,
                    column_blocks, row_blocks, points, across, back, arrived, weighted, inverse,
                    block, turn,
                    M, K, PADDED, WIDTH, BLOCKS, KNOWN, True, MODEL,
                )  # fmt: skip
                found = warpgroup_mma_wait(2, deps=[model])
                turn = 1 - turn
            _, _, _, numerator, denominator, costs = look(
                found, rest, target, numerator, denominator, costs, known, frames, bins,
                column_blocks, row_blocks, points, across, back, arrived, weighted, inverse,
                BLOCKS - 1, turn,
                M, K, PADDED, WIDTH, BLOCKS, KNOWN, False, MODEL,
            )  # fmt: skip
            turn = 1 - turn
            cost += gl.convert_layout(gl.sum(costs, axis=1), gl.SliceLayout(1, SUMS))
            above, below = warpgroup_mma_wait(0, deps=[numerator, denominator])
            risen, weight, lowest, age = judge(cost, lowest, age, momentum, n_momentum, tolerated)
            point, here = advance(
                points.load(SUMS), here, above, below, risen[:, None], weight[:, None], exponent,
                POWER,
            )  # fmt: skip
            points.store(point)
            if ONE_MORE:
                part = last_part.load(gl.SliceLayout(0, SUMS))
                last_model = gl.sum(point * part[None, :], axis=1) + last_known
        to = activations + row[:, None] * n_components + k[None, :]
        gl.store(to, here, mask=(begin + m < last)[:, None] & (k < n_components)[None, :])
    mbarrier.wait(arrived, 1 - turn)
