"""The kernel of `ondes.nmf.backends.fused` that solves for activations, in Triton.

Names in capitals are known when a kernel is compiled. F and K are the numbers of bins and of
components, K padded to a power of two; PADDED the bins with what fills the last block; M the
frames of a tile and WIDTH the bins of a block. BETA is 0 for Itakura-Saito and 1 for
Kullback-Leibler. FAST is false in Triton's interpreter, which does not have a GPU's own
instructions.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from ondes.nmf.problem import ACTIVATION_CEILING, ACTIVATION_FLOOR

LOG_TWO = tl.constexpr(0.6931471805599453)
SMALLEST = tl.constexpr(1e-36)  # whose reciprocal is a number of float32
LEAST, MOST = tl.constexpr(ACTIVATION_FLOOR), tl.constexpr(ACTIVATION_CEILING)
COUNTS = ["n_frames", "share", "n_components", "n_groups", "max_steps", "n_momentum"]


# ---- Arithmetic: one instruction each where the plain function also handles denormals ----


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """1 / x, to 1 ulp."""
    if FAST:
        x = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )
    else:
        x = 1.0 / x
    return x


@triton.jit
def log2(x, FAST: tl.constexpr):
    """The logarithm to the base of two, to 2⁻²²."""
    if FAST:
        x = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )
    else:
        x = tl.log2(x)
    return x


@triton.jit
def exp2(x, FAST: tl.constexpr):
    """2ˣ, to 2 ulp."""
    if FAST:
        x = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )
    else:
        x = tl.exp2(x)
    return x


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """To the nearest number of the tensor cores, which by themselves truncate."""
    if PRECISION == "bf16":
        x = x.to(tl.bfloat16).to(tl.float32)
    elif PRECISION == "tf32":
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def product(left, right, total, PRECISION: tl.constexpr):
    """Add left · right to `total`; `right` has the type of the precision already."""
    if PRECISION == "bf16":
        total = tl.dot(left.to(tl.bfloat16), right, total)
    else:
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


# ---- Layouts ----
#
# Of each 16 × 8 part of a product's result a thread has rows r and r + 8 of the columns 2c and
# 2c + 1, but of a left factor the columns c and c + 4. So frames are stored in the order in which
# threads have results, and the dictionary's rows and columns are exchanged such that a result is
# the left factor of the next product as it is: no number moves between threads. These functions
# matter for speed alone: with another layout Triton itself moves the numbers.


@triton.jit
def by_thread(
    x, M: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr
):  # fmt: skip
    """Rows (M, WIDTH) as one dimension in which a thread's numbers are neighbours.

    DOWN × ACROSS is the arrangement of the warps over the rows.
    """
    x = tl.reshape(x, (M // (16 * DOWN), DOWN, 2, 8, ACROSS, WIDTH // (8 * ACROSS), 4, 2))
    return tl.reshape(tl.permute(x, (0, 5, 4, 1, 3, 6, 2, 7)), (M * WIDTH,))


@triton.jit
def by_row(
    x, M: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr
):  # fmt: skip
    """Undo `by_thread`."""
    x = tl.reshape(x, (M // (16 * DOWN), WIDTH // (8 * ACROSS), ACROSS, DOWN, 8, 4, 2, 2))
    return tl.reshape(tl.permute(x, (0, 3, 6, 4, 2, 1, 5, 7)), (M, WIDTH))


@triton.jit
def as_left_factor(x, M: tl.constexpr, WIDTH: tl.constexpr, SWAP: tl.constexpr):
    """Columns in the order of `place`."""
    if SWAP:
        x = tl.reshape(tl.permute(tl.reshape(x, (M, WIDTH // 8, 4, 2)), (0, 1, 3, 2)), (M, WIDTH))
    return x


@triton.jit
def place(column, SWAP: tl.constexpr):
    """The index in a left factor of a column of a result."""
    if SWAP:
        column = column // 8 * 8 + column % 2 * 4 + column % 8 // 2
    return column


@triton.jit
def at_place(index, SWAP: tl.constexpr):
    """Undo `place`."""
    if SWAP:
        index = index // 8 * 8 + index % 4 * 2 + index % 8 // 4
    return index


# ---- The inner loop ----


@triton.jit
def take(
    values, row, given, new, frames, bins, first, floor,
    F: tl.constexpr, M: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """Store a block of bins of the new frames for the steps; returns it, padded with zeros."""
    at = first + tl.arange(0, WIDTH)
    there = given[:, None] & (at < F)[None, :]
    value = tl.load(values + row[:, None] * F + at[None, :], mask=there, other=0.0)
    value = tl.where(there, (value + floor) * tl.load(bins + at)[None, :], 0.0)
    laid_out = by_thread(tl.where(there, value, 1.0), M, WIDTH, DOWN, ACROSS)
    to = frames + first * M + tl.arange(0, M * WIDTH)
    if STOPS:
        mask = by_thread(tl.broadcast_to(new[:, None], (M, WIDTH)), M, WIDTH, DOWN, ACROSS)
        tl.store(to, laid_out, mask=mask)
    else:  # all rows get new frames at once
        tl.store(to, laid_out)
    return value


@triton.jit
def lay_out(
    values, row, given, new, frames, bins, floor,
    F: tl.constexpr, M: tl.constexpr, WIDTH: tl.constexpr, TAIL: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, ACROSS_TAIL: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """Store all bins of the new frames for the steps; returns each frame's sum."""
    whole: tl.constexpr = F - F % WIDTH
    tl.debug_barrier()
    blocks = tl.zeros((M, WIDTH), tl.float32)
    for first in tl.range(0, whole, WIDTH, num_stages=1):
        blocks += take(
            values, row, given, new, frames, bins, first, floor, F, M, WIDTH, DOWN, ACROSS, STOPS
        )
    total = tl.sum(blocks, axis=1)
    if F % WIDTH == 1:
        value = (tl.load(values + row * F + whole) + floor) * tl.load(bins + whole)
        total += value
        tl.store(frames + whole * M + tl.arange(0, M), value, mask=new)
    elif TAIL > 0:
        rest = take(
            values, row, given, new, frames, bins, whole, floor,
            F, M, TAIL, DOWN, ACROSS_TAIL, STOPS,
        )  # fmt: skip
        total += tl.sum(rest, axis=1)
    tl.debug_barrier()
    return total


@triton.jit
def fetch(
    columns, rows, first, K: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """A block of bins of the dictionary, as right factor of either product."""
    at = first + tl.arange(0, WIDTH)
    k = tl.arange(0, K)
    across = tl.load(columns + at[None, :] * K + k[:, None])
    back = tl.load(rows + k[None, :] * PADDED + at[:, None])
    return across, back


@triton.jit
def look(
    point, sums, cost, known, frames, across, back, bins, first,
    M: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, SWAP: tl.constexpr, KNOWN: tl.constexpr, COST: tl.constexpr,
    BETA: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Add the sums over a block of bins, and the cost of its pairs of bins.

    For β = 0 the sums are numerators above denominators. For β = 1 they are numerators alone:
    denominators do not depend on the frame.
    """
    at = first + tl.arange(0, WIDTH)
    target = tl.load(frames + first * M + tl.arange(0, M * WIDTH))
    target = by_row(target, M, WIDTH, DOWN, ACROSS)
    model = product(point, across, None, PRECISION) + tl.load(bins + PADDED + at)[None, :]
    if KNOWN:
        model += known[:, None] * tl.load(bins + 2 * PADDED + at)[None, :]
    # One reciprocal, and for β = 0 one logarithm, for two bins: these bind, not products.
    one, other = tl.split(tl.reshape(model, (M, WIDTH // 2, 2)))
    of_both = reciprocal(one * other, FAST)
    inverse = tl.reshape(tl.join(other * of_both, one * of_both), (M, WIDTH))
    ratio = target * inverse
    if BETA == 1:
        if COST:
            each = model - LOG_TWO * target * log2(model, FAST)
            one_cost, other_cost = tl.split(tl.reshape(each, (M, WIDTH // 2, 2)))
            cost += one_cost + other_cost
        sums = product(as_left_factor(ratio, M, WIDTH, SWAP), back, sums, PRECISION)
    else:
        if COST:  # without Σ log v, which does not change
            one_ratio, other_ratio = tl.split(tl.reshape(ratio, (M, WIDTH // 2, 2)))
            cost += one_ratio + other_ratio + LOG_TWO * log2(one * other, FAST)
        both = tl.permute(tl.join(ratio * inverse, inverse), (2, 0, 1))
        terms = as_left_factor(tl.reshape(both, (2 * M, WIDTH)), 2 * M, WIDTH, SWAP)
        sums = product(terms, back, sums, PRECISION)
    return sums, cost


@triton.jit
def look_at_one(
    point, numerator, denominator, cost, known, frames, rows, bins, at,
    M: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, KNOWN: tl.constexpr,
    COST: tl.constexpr, BETA: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The same for one bin: spectra have 2ⁿ + 1, and a whole block for the last is slower."""
    part = tl.load(rows + tl.arange(0, K) * PADDED + at).to(tl.float32)[None, :]
    model = tl.sum(point * part, axis=1) + tl.load(bins + PADDED + at)
    if KNOWN:
        model += known * tl.load(bins + 2 * PADDED + at)
    inverse = reciprocal(model, FAST)
    target = tl.load(frames + at * M + tl.arange(0, M))
    ratio = target * inverse
    if BETA == 1:
        if COST:
            cost += model - LOG_TWO * target * log2(model, FAST)
        numerator += ratio[:, None] * part
    else:
        if COST:
            cost += ratio + LOG_TWO * log2(model, FAST)
        numerator += (ratio * inverse)[:, None] * part
        denominator += inverse[:, None] * part
    return numerator, denominator, cost


@triton.jit
def weigh(
    point, known, frames, columns, rows, bins, linear, across, back,
    F: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr,
    WIDTH: tl.constexpr, TAIL: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ACROSS_TAIL: tl.constexpr, SWAP: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    KNOWN: tl.constexpr, COST: tl.constexpr, BETA: tl.constexpr, SPARSE: tl.constexpr,
    PRECISION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The numerator and the denominator of a step from `point`, and the cost there."""
    whole: tl.constexpr = F - F % WIDTH
    factor = as_left_factor(point, M, K, SWAP)
    sums = tl.zeros(((2 - BETA) * M, K), tl.float32)
    costs = tl.zeros((M, WIDTH // 2), tl.float32)
    if RESIDENT:
        sums, costs = look(
            factor, sums, costs, known, frames, across, back, bins, 0,
            M, PADDED, WIDTH, DOWN, ACROSS, SWAP, KNOWN, COST, BETA, PRECISION, FAST,
        )  # fmt: skip
    else:
        for first in tl.range(0, whole, WIDTH, num_stages=STAGES):
            its_across, its_back = fetch(columns, rows, first, K, PADDED, WIDTH)
            sums, costs = look(
                factor, sums, costs, known, frames, its_across, its_back, bins, first,
                M, PADDED, WIDTH, DOWN, ACROSS, SWAP, KNOWN, COST, BETA, PRECISION, FAST,
            )  # fmt: skip
    cost = tl.sum(costs, axis=1)
    if TAIL > 0 and F % WIDTH != 1:
        last_across, last_back = fetch(columns, rows, whole, K, PADDED, TAIL)
        costs = tl.zeros((M, TAIL // 2), tl.float32)
        sums, costs = look(
            factor, sums, costs, known, frames, last_across, last_back, bins, whole,
            M, PADDED, TAIL, DOWN, ACROSS_TAIL, SWAP, KNOWN, COST, BETA, PRECISION, FAST,
        )  # fmt: skip
        cost += tl.sum(costs, axis=1)
    if BETA == 1:
        numerator = sums
        denominator = tl.zeros((M, K), tl.float32)
    else:
        numerator, denominator = tl.split(tl.permute(tl.reshape(sums, (2, M, K)), (1, 2, 0)))
    if F % WIDTH == 1:
        numerator, denominator, cost = look_at_one(
            point, numerator, denominator, cost, known, frames, rows, bins, whole,
            M, K, PADDED, KNOWN, COST, BETA, FAST,
        )  # fmt: skip
    if BETA == 1:
        denominator += tl.load(linear + K + tl.arange(0, K))[None, :]
    if SPARSE:
        more = tl.load(linear + tl.arange(0, K))[None, :]
        denominator += more
        if COST:
            cost += tl.sum(point * more, axis=1)
    return numerator, denominator, cost


@triton.jit
def penalise(
    point, real, groups, n_groups, strength, offset,
    F: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PENALTY: tl.constexpr,
    GROUPED: tl.constexpr,
):  # fmt: skip
    """The penalty of each frame, and its slope for each activation."""
    value = tl.zeros((M,), tl.float32)
    slope = tl.zeros((M, K), tl.float32)
    if PENALTY == "l1":
        value += tl.sum(tl.where(real, point, 0.0), axis=1) / F
        slope += 1.0
    elif GROUPED:
        group = tl.load(groups + tl.arange(0, K))
        for first in range(0, n_groups, 16):
            g = first + tl.arange(0, 16)
            inside = (group[:, None] == g[None, :]).to(tl.float32)
            share = tl.dot(point, inside, input_precision="tf32x3") / F
            value += tl.sum(tl.where((g < n_groups)[None, :], tl.log(offset + share), 0.0), axis=1)
            slope = tl.dot(1.0 / (offset + share), inside.T, slope, input_precision="tf32x3")
    else:
        share = point / F
        value += tl.sum(tl.where(real, tl.log(offset + share), 0.0), axis=1)
        slope += 1.0 / (offset + share)
    return strength * value, strength / F * slope


@triton.jit(do_not_specialize=COUNTS)
def solve(
    values, start, activations, background, scratch, columns, rows, bins, linear, momentum, groups,
    n_frames, share, n_components, n_groups, max_steps, n_momentum,
    floor, tolerated, exponent, tol, strength, offset,
    F: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, M: tl.constexpr,
    WIDTH: tl.constexpr, TAIL: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ACROSS_TAIL: tl.constexpr, SWAP: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    PARKED: tl.constexpr, WARPS: tl.constexpr, STARTED: tl.constexpr, KNOWN: tl.constexpr,
    POWER: tl.constexpr, MOMENTUM: tl.constexpr,
    STOPS: tl.constexpr, PENALTY: tl.constexpr, GROUPED: tl.constexpr, BETA: tl.constexpr,
    SPARSE: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Solve for the activations of a program's share of the frames, M side by side."""
    program = tl.program_id(0)
    frames = scratch + program.to(tl.int64) * (M * (PADDED + K if PARKED else PADDED))
    parking = frames + M * PADDED + tl.arange(0, M * K)
    upcoming = program * share
    last = tl.minimum(upcoming + share, n_frames)
    k = tl.arange(0, K)
    real = (k < n_components)[None, :]

    frame = tl.full((M,), -1, tl.int32)  # which frame is in which row; -1 is none
    finished = tl.full((M,), 1, tl.int1)
    n_finished = M
    n_steps = tl.zeros((M,), tl.int32) if STOPS else 0
    age = tl.zeros((M,), tl.int32)
    lowest = tl.zeros((M,), tl.float32)
    known = tl.zeros((M,), tl.float32)
    here = tl.zeros((M, K), tl.float32)  # where the last good step led; in memory where PARKED
    point = tl.zeros((M, K), tl.float32)  # where the next step starts from
    across = 0
    back = 0
    if RESIDENT:
        across, back = fetch(columns, rows, 0, K, PADDED, WIDTH)
    alive = last - upcoming
    while alive > 0:
        if n_finished > 0:  # the next frames get the rows of those that are finished
            following = upcoming + tl.cumsum(finished.to(tl.int32), axis=0) - 1
            frame = tl.where(finished, tl.where(following < last, following, -1), frame)
            upcoming += n_finished
            given = finished & (frame >= 0)
            row = tl.where(given, frame, 0).to(tl.int64)
            total = lay_out(
                values, row, given, finished, frames, bins, floor,
                F, M, WIDTH, TAIL, DOWN, ACROSS, ACROSS_TAIL, STOPS,
            )  # fmt: skip
            if STARTED:
                at = start + row[:, None] * n_components + k[None, :]
                begun = tl.load(at, mask=given[:, None] & real, other=1.0)
            else:
                even = tl.zeros((), tl.float32) + n_components
                if BETA == 1:
                    even = tl.sum(tl.load(linear + K + k)) + n_components * floor
                begun = tl.zeros((M, K), tl.float32) + (total / even)[:, None]
            begun = tl.maximum(tl.where(real, begun, LEAST), LEAST)
            point = tl.where(finished[:, None], begun, point)
            if PARKED:
                mask = tl.broadcast_to(finished[:, None], (M, K))
                mask = by_thread(mask, M, K, DOWN, WARPS // DOWN)
                tl.store(parking, by_thread(begun, M, K, DOWN, WARPS // DOWN), mask=mask)
                tl.debug_barrier()
            else:
                here = tl.where(finished[:, None], begun, here)
            if KNOWN:
                known = tl.where(given, tl.load(background + row), known)
            lowest = tl.where(finished, float("inf"), lowest)
            age = tl.where(finished, 0, age)
            n_steps = tl.where(finished, 0, n_steps) if STOPS else 0

        numerator, denominator, cost = weigh(
            point, known, frames, columns, rows, bins, linear, across, back,
            F, M, K, PADDED, WIDTH, TAIL, DOWN, ACROSS, ACROSS_TAIL, SWAP, STAGES, RESIDENT,
            KNOWN, MOMENTUM, BETA, SPARSE, PRECISION, FAST,
        )  # fmt: skip
        numerator += tl.where(real, 0.0, 1.0)
        denominator += tl.where(real, 0.0, 1.0)
        if PENALTY != "none":
            value, slope = penalise(
                point, real, groups, n_groups, strength, offset, F, M, K, PENALTY, GROUPED
            )
            cost += value
            denominator += slope
        if PARKED:
            here = by_row(tl.load(parking), M, K, DOWN, WARPS // DOWN)
        of_both = reciprocal(tl.maximum(denominator * here, SMALLEST), FAST)
        quotient = numerator * (here * of_both)
        if POWER == "root":
            quotient = tl.sqrt(quotient)
        elif POWER == "any":
            quotient = exp2(exponent * log2(quotient, FAST), FAST)
        step = tl.minimum(tl.maximum(point * quotient, LEAST), MOST)
        if STOPS:
            gap = tl.where(real, point * tl.abs(numerator - denominator), 0.0)
            solved = tl.sum(gap, axis=1) / F < tol
        if MOMENTUM:
            risen = cost > lowest + tolerated
            lowest = tl.minimum(lowest, cost)
            age = tl.where(risen, 0, (age + 1) % n_momentum)
            weight = tl.load(momentum + age)[:, None]
            push = exp2(weight * log2(step * (denominator * of_both), FAST), FAST)
            ahead = tl.minimum(tl.maximum(step * push, LEAST), MOST)
            point = tl.where(risen[:, None], here, ahead)
            here = tl.where(risen[:, None], here, step)
            if STOPS:
                solved = solved & (risen == 0)
        else:
            point = step
            here = step
        if PARKED:
            tl.store(parking, by_thread(here, M, K, DOWN, WARPS // DOWN))
        n_steps += 1
        if STOPS:
            finished = solved | (n_steps >= max_steps)
            n_finished = tl.sum(finished.to(tl.int32), axis=0)
        else:
            n_finished = tl.where(n_steps >= max_steps, M, 0)
        if n_finished > 0:
            done = finished & (frame >= 0)
            to = activations + tl.where(done, frame, 0).to(tl.int64)[:, None] * n_components
            tl.store(to + k[None, :], here, mask=done[:, None] & real)
            left = tl.sum(((frame >= 0) & (finished == 0)).to(tl.int32), axis=0)
            alive = left + tl.maximum(last - upcoming, 0)
