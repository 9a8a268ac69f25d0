"""The kernels of `ondes.nmf.backends.fused`, in Triton.

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

from ondes.nmf.backends.fused_parts import (
    as_left_factor,
    by_row,
    by_thread,
    exp2,
    log2,
    product,
    reciprocal,
)
from ondes.nmf.problem import ACTIVATION_CEILING, ACTIVATION_FLOOR

LOG_TWO = tl.constexpr(0.6931471805599453)
SMALLEST = tl.constexpr(1e-36)  # whose reciprocal is a number of float32
LEAST, MOST = tl.constexpr(ACTIVATION_FLOOR), tl.constexpr(ACTIVATION_CEILING)
COUNTS = ["n_frames", "share", "n_components", "n_groups", "max_steps", "n_momentum"]


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
        step = tl.maximum(point * quotient, LEAST)
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
