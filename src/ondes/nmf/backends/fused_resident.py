"""The kernel of `ondes.nmf.backends.fused` for few components on Hopper GPUs; see `fused_hopper`.

The dictionary, in both orders, and the frames stay in shared memory. A group of four warps has 64
frames and needs no other group: its results are the left factors of its next products as they are,
in the order of `fused_parts.place`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

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


@gluon.jit
def as_left_factor(x, M: gl.constexpr, WIDTH: gl.constexpr, LEFT: gl.constexpr):
    """What `fused_parts.as_left_factor` does; no number moves between threads."""
    x = x.reshape([M, WIDTH // 8, 4, 2]).permute((0, 1, 3, 2)).reshape([M, WIDTH])
    return gl.convert_layout(x, LEFT, assert_trivial=True)


@gluon.jit
def copy(
    to, source, stride,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Copy a block of the dictionary, and go on before it is there."""
    layout: gl.constexpr = gl.BlockedLayout(
        [1, 4], [128 // COLUMNS, COLUMNS // 4], [WARPS, 1], [1, 0]
    )
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    async_copy.async_copy_global_to_shared(to, source + (row[:, None] * stride + column[None, :]))


@gluon.jit
def begin_model(left, across, M: gl.constexpr, WIDTH: gl.constexpr, MODEL: gl.constexpr):
    """Begin the product that gives the model of a block."""
    zeros = warpgroup_mma_init(gl.zeros([M, WIDTH], gl.float32, MODEL))
    return warpgroup_mma(left, across.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def look(
    model, rest, numerator, denominator, costs, targets, back, block,
    M: gl.constexpr, WIDTH: gl.constexpr, MODEL: gl.constexpr, LEFT: gl.constexpr,
    BY_THREAD: gl.constexpr,
):  # fmt: skip
    """Begin the sums over a block; the factors must be kept until they are there."""
    target = by_row(targets.index(block).load(BY_THREAD), M, WIDTH, 1, MODEL)
    weighted, inverse, costs = weigh(model + rest, target, costs, M, WIDTH, MODEL)
    weighted = as_left_factor(weighted, M, WIDTH, LEFT)
    inverse = as_left_factor(inverse, M, WIDTH, LEFT)
    right = back.index(block).permute((1, 0))
    numerator = warpgroup_mma(weighted, right, numerator, is_async=True)
    denominator = warpgroup_mma(inverse, right, denominator, is_async=True)
    return numerator, denominator, costs, weighted, inverse


@gluon.jit(do_not_specialize=COUNTS)
def solve(
    values, start, activations, background, columns, rows, bins, momentum,
    n_frames, share, n_components, max_steps, n_momentum, floor, tolerated, exponent,
    F: gl.constexpr, K: gl.constexpr, PADDED: gl.constexpr, M: gl.constexpr, WIDTH: gl.constexpr,
    STARTED: gl.constexpr, KNOWN: gl.constexpr, POWER: gl.constexpr,
):  # fmt: skip
    """Solve for the activations of a program's share of the frames, M side by side."""
    WARPS: gl.constexpr = M // 16
    ONE_MORE: gl.constexpr = F % (2 * WIDTH) == 1  # a last bin, outside the blocks
    BLOCKS: gl.constexpr = (F - 1 if ONE_MORE else PADDED) // WIDTH
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, K, 8])
    MODEL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, WIDTH, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 1)
    POINTS: gl.constexpr = gl.DotOperandLayout(0, MODEL, 1)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    BY_THREAD: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, WARPS], [1, 0])
    BY_ROW: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [WARPS, 1], [1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    NARROW: gl.constexpr = gl.NVMMASharedLayout(min(128, 4 * K), 32, 2)
    across = gl.allocate_shared_memory(gl.float32, [BLOCKS, WIDTH, K], NARROW)
    back = gl.allocate_shared_memory(gl.float32, [BLOCKS, K, WIDTH], WIDE)
    targets = gl.allocate_shared_memory(gl.float32, [BLOCKS, WIDTH // 8, 8 * M], FLAT)
    for block in range(BLOCKS):
        copy(across.index(block), columns + block * WIDTH * K, K, WIDTH, K, WARPS)
        copy(back.index(block), rows + block * WIDTH, PADDED, K, WIDTH, WARPS)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    k = gl.arange(0, K, gl.SliceLayout(0, SUMS))
    m = gl.arange(0, M, gl.SliceLayout(1, SUMS))
    part = gl.zeros([K], gl.float32, gl.SliceLayout(0, SUMS))
    if ONE_MORE:
        part = gl.load(rows + k * PADDED + F - 1)
    program = gl.program_id(0)
    last = gl.minimum(program * share + share, n_frames)
    for begin in range(program * share, last, M):
        at = gl.arange(0, WIDTH, gl.SliceLayout(0, BY_ROW))
        row = begin + gl.arange(0, M, gl.SliceLayout(1, BY_ROW))
        row = gl.minimum(row, n_frames - 1).to(gl.int64)
        totals = gl.zeros([M, WIDTH], gl.float32, BY_ROW)
        gl.thread_barrier()
        for each in gl.static_range(0, BLOCKS, 2):
            one, totals = take(values, row, bins, floor, each * WIDTH + at, totals, F)
            other, totals = take(values, row, bins, floor, (each + 1) * WIDTH + at, totals, F)
            targets.index(each).store(by_thread(one, M, WIDTH, 1))
            targets.index(each + 1).store(by_thread(other, M, WIDTH, 1))
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
        point = first_point(start, row, total + last_target, n_components, k, K, M, STARTED, SUMS)
        here = point
        lowest = gl.full([M], float("inf"), gl.float32, gl.SliceLayout(1, SUMS))
        age = gl.zeros([M], gl.int32, gl.SliceLayout(1, SUMS))
        gl.thread_barrier()
        for _ in range(max_steps):
            last_model = gl.sum(point * part[None, :], axis=1) + last_known
            above, below, cost = begin_sums(last_model, last_target, part, K, M, ONE_MORE, SUMS)
            costs = no_costs(M, WIDTH, MODEL)
            left = as_left_factor(point, M, K, POINTS)
            # The next block's model and the last block's sums are computed during a block's
            # quotients. Two blocks in turn: registers must stay as they are while products run.
            model = begin_model(left, across.index(0), M, WIDTH, MODEL)
            rest = beside(bins, known, 0, PADDED, WIDTH, KNOWN, MODEL)
            found, above, below = warpgroup_mma_wait(0, deps=[model, above, below])
            numerator = warpgroup_mma_init(above)
            denominator = warpgroup_mma_init(below)
            weighted = gl.zeros([M, WIDTH], gl.float32, LEFT)
            inverse = weighted
            other_weighted = weighted
            other_inverse = weighted
            for block in range(0, BLOCKS, 2):
                model = begin_model(left, across.index(block + 1), M, WIDTH, MODEL)
                other_rest = beside(bins, known, block + 1, PADDED, WIDTH, KNOWN, MODEL)
                numerator, denominator, costs, weighted, inverse = look(
                    found, rest, numerator, denominator, costs, targets, back, block,
                    M, WIDTH, MODEL, LEFT, BY_THREAD,
                )  # fmt: skip
                found, other_weighted, other_inverse = warpgroup_mma_wait(
                    2, deps=[model, other_weighted, other_inverse]
                )
                following = (block + 2) % BLOCKS
                model = begin_model(left, across.index(following), M, WIDTH, MODEL)
                rest = beside(bins, known, following, PADDED, WIDTH, KNOWN, MODEL)
                numerator, denominator, costs, other_weighted, other_inverse = look(
                    found, other_rest, numerator, denominator, costs, targets, back, block + 1,
                    M, WIDTH, MODEL, LEFT, BY_THREAD,
                )  # fmt: skip
                found, weighted, inverse = warpgroup_mma_wait(2, deps=[model, weighted, inverse])
            above, below, _, _ = warpgroup_mma_wait(
                0, deps=[numerator, denominator, other_weighted, other_inverse]
            )
            cost += gl.convert_layout(gl.sum(costs, axis=1), gl.SliceLayout(1, SUMS))
            risen, weight, lowest, age = judge(cost, lowest, age, momentum, n_momentum, tolerated)
            point, here = advance(
                point, here, above, below, risen[:, None], weight[:, None], exponent, POWER
            )
        to = activations + row[:, None] * n_components + k[None, :]
        gl.store(to, here, mask=(begin + m < last)[:, None] & (k < n_components)[None, :])
