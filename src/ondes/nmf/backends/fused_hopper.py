"""The kernel of `ondes.nmf.backends.fused` for many components on Hopper GPUs, in Gluon.

It makes the steps of `fused_kernels.solve` for Itakura-Saito without penalty, sparsity or
tolerance; names as there. For many components, Triton's own layouts read the activations from
shared memory once per warp, or spill registers. Here layouts, shared memory and the order of copies
and products are explicit. Two groups of four warps solve M frames, and share the columns of each
product. Registers hold the sums and the last good activations; shared memory holds the points, and
of the dictionary the present block and the next one in both orders.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from ondes.nmf.problem import ACTIVATION_CEILING, ACTIVATION_FLOOR, Problem

CAPABILITY = 9, 0
VERSIONS = ((3, 6),)  # of Triton, on which it was tested: Gluon is experimental
LOG_TWO = gl.constexpr(0.6931471805599453)
SMALLEST = gl.constexpr(1e-36)
LEAST, MOST = gl.constexpr(ACTIVATION_FLOOR), gl.constexpr(ACTIVATION_CEILING)


def supports(problem: Problem, capability: tuple[int, int]) -> bool:
    """Whether the kernel solves `problem` on a GPU of this compute capability."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    plain = problem.penalty is None and not problem.sparsity and not problem.solver.tol
    known = version in VERSIONS and capability == CAPABILITY
    return known and plain and problem.divergence.beta == 0 and bool(problem.solver.momentum)


@gluon.jit
def reciprocal(x):
    """1 / x, to 1 ulp."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def log2(x):
    """The logarithm to the base of two, to 2⁻²²."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def exp2(x):
    """2ˣ, to 2 ulp."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def fetch_columns(to, columns, first, K: gl.constexpr, WIDTH: gl.constexpr):
    """Copy a block of bins for the model, and go on before it is there."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [8, 1], [1, 0])
    at = gl.arange(0, WIDTH, gl.SliceLayout(1, layout))
    k = gl.arange(0, K, gl.SliceLayout(0, layout))
    block = columns + first * K + (at[:, None] * K + k[None, :])
    async_copy.async_copy_global_to_shared(to, block)
    async_copy.commit_group()


@gluon.jit
def fetch_rows(to, rows, first, K: gl.constexpr, PADDED: gl.constexpr, WIDTH: gl.constexpr):
    """The same for the sums, whose product needs the other order."""
    across: gl.constexpr = WIDTH // 4
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 // across, across], [8, 1], [1, 0])
    k = gl.arange(0, K, gl.SliceLayout(1, layout))
    at = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    block = rows + first + (k[:, None] * PADDED + at[None, :])
    async_copy.async_copy_global_to_shared(to, block)
    async_copy.commit_group()


@gluon.jit
def add_last(point, columns, k, last, K: gl.constexpr, ONE_MORE: gl.constexpr):
    """What the components add to the model of the last bin."""
    part = gl.zeros_like(k).to(gl.float32)
    if ONE_MORE:
        part = gl.load(columns + last * K + k)
    return gl.sum(point * part[None, :], axis=1)


@gluon.jit(do_not_specialize=["n_frames", "share", "n_components", "max_steps", "n_momentum"])
def solve(
    values, start, activations, background, scratch, columns, rows, bins, momentum,
    n_frames, share, n_components, max_steps, n_momentum, floor, tolerated, exponent,
    F: gl.constexpr, K: gl.constexpr, PADDED: gl.constexpr, M: gl.constexpr, WIDTH: gl.constexpr,
    STARTED: gl.constexpr, KNOWN: gl.constexpr, POWER: gl.constexpr,
):  # fmt: skip
    """Solve for the activations of a program's share of the frames, M side by side."""
    ONE_MORE: gl.constexpr = F % WIDTH == 1  # a last bin, outside the blocks
    END: gl.constexpr = F - 1 if ONE_MORE else PADDED
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, K // 2, 8])
    MODEL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, WIDTH // 2, 8])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    points = gl.allocate_shared_memory(gl.float32, [M, K], SHARED)
    across = gl.allocate_shared_memory(gl.float32, [2, WIDTH, K], SHARED)
    back = gl.allocate_shared_memory(gl.float32, [2, K, WIDTH], SHARED)
    terms = gl.allocate_shared_memory(gl.float32, [4, M, WIDTH], SHARED)
    program = gl.program_id(0)
    frames = scratch + program.to(gl.int64) * (M * PADDED)
    model_m = gl.arange(0, M, gl.SliceLayout(1, MODEL))
    at = gl.arange(0, WIDTH, gl.SliceLayout(0, MODEL))
    place = model_m[:, None] * PADDED + at[None, :]
    m = gl.arange(0, M, gl.SliceLayout(1, SUMS))
    k = gl.arange(0, K, gl.SliceLayout(0, SUMS))
    real = (k < n_components)[None, :]
    last = gl.minimum(program * share + share, n_frames)
    turn = 0  # which of two buffers has the present block
    fetch_columns(across.index(0), columns, 0, K, WIDTH)
    fetch_rows(back.index(0), rows, 0, K, PADDED, WIDTH)
    for begin in range(program * share, last, M):
        # A tile of frames, in units of the even model. A thread reads what it wrote itself.
        row = gl.minimum(begin + model_m, n_frames - 1).to(gl.int64)
        totals = gl.zeros([M, WIDTH], gl.float32, MODEL)
        for first in range(0, END, WIDTH):
            there = (first + at < F)[None, :]
            source = values + row[:, None] * F + (first + at)[None, :]
            value = gl.load(source, mask=there, other=0.0)
            value = (value + floor) * gl.load(bins + first + at)[None, :]
            totals += gl.where(there, value, 0.0)
            gl.store(frames + first + place, gl.where(there, value, 1.0))
        known = gl.zeros([M], gl.float32, gl.SliceLayout(1, MODEL))
        if KNOWN:
            known = gl.load(background + row)
        total = gl.convert_layout(gl.sum(totals, axis=1), gl.SliceLayout(1, SUMS))
        row = gl.minimum(begin + m, n_frames - 1).to(gl.int64)
        last_target = gl.zeros([M], gl.float32, gl.SliceLayout(1, SUMS))
        last_known = gl.zeros([M], gl.float32, gl.SliceLayout(1, SUMS))
        if ONE_MORE:
            last_target = (gl.load(values + row * F + END) + floor) * gl.load(bins + END)
            last_known += gl.load(bins + PADDED + END)
            if KNOWN:
                last_known += gl.load(background + row) * gl.load(bins + 2 * PADDED + END)
            total += last_target
        point = gl.zeros([M, K], gl.float32, SUMS) + (total / n_components)[:, None]
        if STARTED:
            source = start + row[:, None] * n_components + k[None, :]
            point = gl.load(source, mask=real & (m >= 0)[:, None], other=0.0)
        point = gl.maximum(gl.where(real, point, LEAST), LEAST)
        here = point
        lowest = gl.full([M], float("inf"), gl.float32, gl.SliceLayout(1, SUMS))
        age = gl.zeros([M], gl.int32, gl.SliceLayout(1, SUMS))
        points.store(point)
        last_model = add_last(point, columns, k, END, K, ONE_MORE)
        for _ in range(max_steps):
            cost = gl.zeros([M], gl.float32, gl.SliceLayout(1, SUMS))
            padding = gl.where(k < n_components, 0.0, 1.0)[None, :]
            numerator = gl.zeros([M, K], gl.float32, SUMS) + padding
            denominator = gl.zeros([M, K], gl.float32, SUMS) + padding
            if ONE_MORE:
                last_model += last_known
                last_inverse = reciprocal(last_model)
                last_ratio = last_target * last_inverse
                cost += last_ratio + LOG_TWO * log2(last_model)
                part = gl.load(columns + END * K + k)[None, :]
                numerator += (last_ratio * last_inverse)[:, None] * part
                denominator += last_inverse[:, None] * part
            numerator = warpgroup_mma_init(numerator)
            denominator = warpgroup_mma_init(denominator)
            costs = gl.zeros([M, WIDTH], gl.float32, MODEL)
            fence_async_shared()
            for first in range(0, END, WIDTH):
                # A product waits for the block that was fetched during the last turn, and while it
                # runs, the next one is fetched into the other buffer.
                target = gl.load(frames + first + place)
                rest = gl.load(bins + PADDED + first + at)[None, :]
                if KNOWN:
                    rest += known[:, None] * gl.load(bins + 2 * PADDED + first + at)[None, :]
                following = gl.where(first + WIDTH < END, first + WIDTH, 0)
                async_copy.wait_group(1)
                fence_async_shared()
                gl.thread_barrier()
                model = warpgroup_mma(
                    points, across.index(turn).permute((1, 0)),
                    warpgroup_mma_init(gl.zeros([M, WIDTH], gl.float32, MODEL)),
                    use_acc=False, is_async=True,
                )  # fmt: skip
                fetch_columns(across.index(1 - turn), columns, following, K, WIDTH)
                model, above, below = warpgroup_mma_wait(0, deps=[model, numerator, denominator])
                model += rest
                inverse = reciprocal(model)
                ratio = target * inverse
                costs += ratio + LOG_TWO * log2(model)
                terms.index(2 * turn).store(ratio * inverse)
                terms.index(2 * turn + 1).store(inverse)
                async_copy.wait_group(1)
                fence_async_shared()
                gl.thread_barrier()
                right = back.index(turn).permute((1, 0))
                numerator = warpgroup_mma(
                    terms.index(2 * turn), right, warpgroup_mma_init(above), is_async=True
                )
                denominator = warpgroup_mma(
                    terms.index(2 * turn + 1), right, warpgroup_mma_init(below), is_async=True
                )
                fetch_rows(back.index(1 - turn), rows, following, K, PADDED, WIDTH)
                turn = 1 - turn
            cost += gl.convert_layout(gl.sum(costs, axis=1), gl.SliceLayout(1, SUMS))
            risen = cost > lowest + tolerated
            lowest = gl.minimum(lowest, cost)
            age = gl.where(risen, 0, (age + 1) % n_momentum)
            weight = gl.load(momentum + age)[:, None]
            above, below = warpgroup_mma_wait(0, deps=[numerator, denominator])
            of_both = reciprocal(gl.maximum(below * here, SMALLEST))
            quotient = above * (here * of_both)
            if POWER == "root":
                quotient = gl.sqrt(quotient)
            elif POWER == "any":
                quotient = exp2(exponent * log2(quotient))
            step = gl.maximum(points.load(SUMS) * quotient, LEAST)
            push = exp2(weight * log2(step * (below * of_both)))
            ahead = gl.minimum(gl.maximum(step * push, LEAST), MOST)
            point = gl.where(risen[:, None], here, ahead)
            here = gl.where(risen[:, None], here, step)
            points.store(point)
            last_model = add_last(point, columns, k, END, K, ONE_MORE)
        to = activations + row[:, None] * n_components + k[None, :]
        gl.store(to, here, mask=(begin + m < last)[:, None] & real)
    async_copy.wait_group(0)
