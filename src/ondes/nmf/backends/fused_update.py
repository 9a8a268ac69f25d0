"""The kernels of `ondes.nmf.backends.fused` around the solve; names as in `fused_solve`.

They lay out a dictionary, sum the statistics of frames, and move the dictionary.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from ondes.nmf.backends.fused_solve import (
    COUNTS,
    as_left_factor,
    at_place,
    penalise,
    place,
    product,
    reciprocal,
    rounded,
)

# ---- The dictionary, laid out for a solve ----


@triton.jit(do_not_specialize=["n_components"])
def prepare(
    dictionary, background, columns, rows, bins, n_components, floor,
    F: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, SWAP: tl.constexpr,
    KNOWN: tl.constexpr, BETA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the dictionary in both layouts, for β = 0 divided by the model of equal activations."""
    at = tl.program_id(0) * 16 + tl.arange(0, 16)
    k = tl.arange(0, K)
    real = at < F
    inside = (k < n_components)[:, None] & real[None, :]
    part = tl.load(dictionary + k[:, None] * F + at[None, :], mask=inside, other=0.0)
    scale = 1.0 / (tl.sum(part, axis=0) * F / n_components + floor)
    if BETA == 1:
        scale = tl.zeros_like(scale) + 1.0
    part = rounded((part * scale[None, :]).to(tl.float32), PRECISION)
    tl.store(columns + at[None, :] * K + place(k, SWAP)[:, None], part)
    tl.store(rows + k[:, None] * PADDED + place(at, SWAP)[None, :], part)
    tl.store(bins + at, scale.to(tl.float32))
    tl.store(bins + PADDED + at, tl.where(real, floor * scale, 1.0).to(tl.float32))
    if KNOWN:
        known = tl.load(background + at, mask=real, other=0.0)
        tl.store(bins + 2 * PADDED + at, (known * scale).to(tl.float32))


@triton.jit(do_not_specialize=["n_components"])
def weigh_rows(
    dictionary, linear, n_components, sparsity,
    F: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What sparsity adds to every denominator of a row of the dictionary, then the row's sum."""
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    total = tl.zeros((), dictionary.dtype.element_ty)
    squares = tl.zeros((), dictionary.dtype.element_ty)
    for first in range(0, F, WIDTH):
        inside = (row + 0 * at < n_components) & (first + at < F)
        part = tl.load(dictionary + row * F + first + at, mask=inside, other=0.0)
        total += tl.sum(part)
        squares += tl.sum(part * part)
    tl.store(linear + row, (sparsity * tl.sqrt(squares)).to(tl.float32))
    tl.store(linear + K + row, total.to(tl.float32))


# ---- The statistics ----


@triton.jit(do_not_specialize=COUNTS)
def summarise(
    values, activations, background, dictionary, bins, groups, parts,
    n_frames, share, n_components, n_groups, floor, strength, offset,
    F: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, M: tl.constexpr,
    WIDTH: tl.constexpr, SWAP: tl.constexpr, KNOWN: tl.constexpr, PENALTY: tl.constexpr,
    GROUPED: tl.constexpr, BETA: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Sum over a chunk of the frames, for a block of the bins.

    Models are in TF32 at least: a dictionary of bfloat16 shifts the divergence of all frames alike.
    """
    FINER: tl.constexpr = "tf32" if PRECISION == "bf16" else PRECISION
    chunk = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    k = tl.arange(0, K)
    real = (k < n_components)[None, :]
    inside = at < F
    scale = tl.load(bins + at, mask=inside, other=1.0)
    source = at_place(k, SWAP)[:, None]
    stored = (source < n_components) & inside[None, :]
    across = tl.load(dictionary + source * F + at[None, :], mask=stored, other=0.0)
    across = rounded((across * scale[None, :]).to(tl.float32), FINER)
    least = tl.load(bins + PADDED + at, mask=inside, other=1.0)
    sums = tl.zeros(((2 - BETA) * WIDTH, K), tl.float32)
    plain = tl.zeros((K,), tl.float32)
    gradient = tl.zeros((K,), tl.float32)
    divergence = tl.zeros((), tl.float64)
    last = tl.minimum((chunk + 1) * share, n_frames)
    for begin in tl.range(chunk * share, last, M, num_stages=1):
        row = begin + tl.arange(0, M)
        given = row < last
        there = given[:, None] & inside[None, :]
        at_row = activations + row[:, None] * n_components + k[None, :]
        h = tl.load(at_row, mask=given[:, None] & real, other=0.0)
        target = tl.load(values + row[:, None] * F + at[None, :], mask=there, other=0.0)
        factor = as_left_factor(rounded(h, FINER), M, K, SWAP)
        model = product(factor, across, None, FINER) + least[None, :]
        if KNOWN:
            known = tl.load(background + row, mask=given, other=0.0)
            of_known = tl.load(bins + 2 * PADDED + at, mask=inside, other=0.0)
            model += known[:, None] * of_known[None, :]
        inverse = reciprocal(model, FAST)
        target = (target + floor) * scale[None, :]
        ratio = tl.where(there, target * inverse, 1.0)
        if BETA == 1:
            cost = tl.where(there, target * tl.log(ratio) - target + model, 0.0)
            divergence += tl.sum(cost).to(tl.float64)
            terms = tl.trans(ratio)
            plain += tl.sum(h, axis=0)
        else:
            divergence += tl.sum(ratio - 1.0 - tl.log(ratio)).to(tl.float64)
            both = tl.permute(tl.join(ratio * inverse, inverse), (2, 1, 0))
            terms = tl.reshape(both, (2 * WIDTH, M))
        h_rounded = rounded(h, PRECISION)
        if PRECISION == "bf16":
            h_rounded = h_rounded.to(tl.bfloat16)
        sums = product(rounded(terms, PRECISION), h_rounded, sums, PRECISION)
        if PENALTY != "none":
            _, slope = penalise(
                h, real, groups, n_groups, strength, offset, F, M, K, PENALTY, GROUPED
            )
            gradient += tl.sum(slope * h, axis=0)

    parts += chunk * (2 * n_components * F + n_components + tl.num_programs(0))
    if BETA == 1:
        weighted = sums
        inverse = tl.broadcast_to(plain[None, :], (WIDTH, K))
    else:
        weighted, inverse = tl.split(tl.permute(tl.reshape(sums, (2, WIDTH, K)), (1, 2, 0)))
    to = parts + k[None, :] * F + at[:, None]
    tl.store(to, weighted * scale[:, None], mask=inside[:, None] & real)
    to += n_components * F
    tl.store(to, inverse * scale[:, None], mask=inside[:, None] & real)
    parts += 2 * n_components * F
    if tl.program_id(0) == 0:
        tl.store(parts + k, gradient, mask=k < n_components)
    tl.store(parts + n_components + tl.program_id(0), divergence.to(tl.float32))


# ---- The move, one program per row ----


@triton.jit
def total_of(parts, at, inside, n_chunks, stride):
    """The sum over the chunks of frames, in float64."""
    total = tl.zeros(at.shape, tl.float64)
    for chunk in range(n_chunks):
        total += tl.load(parts + chunk * stride + at, mask=inside, other=0.0).to(tl.float64)
    return total


@triton.jit
def power(ratio, exponent, POWER: tl.constexpr):
    """The ratio^θ of a step; `exponent` points to θ, which as an argument would be float32."""
    if POWER == "root":
        ratio = tl.sqrt(ratio)
    elif POWER == "any":
        ratio = tl.exp(tl.load(exponent) * tl.log(ratio))
    return ratio


@triton.jit
def unit_row(at, inside, size, norm, BETA: tl.constexpr):
    """A block of a row at unit L2 norm, and both parts of its gradient there."""
    unit = tl.load(at, mask=inside, other=0.0) / norm
    numerator = tl.load(at + size, mask=inside, other=0.0)
    model = tl.load(at + 2 * size, mask=inside, other=0.0) * norm
    known = (numerator > 0) & (unit > 0)
    safe = tl.where(known, unit, 1.0)
    if BETA == 0:
        data = tl.where(known, numerator / norm / (safe * safe), 0.0)
    else:
        data = tl.where(known, numerator / safe, 0.0)
    return unit, data, model, known


@triton.jit(do_not_specialize=["n_components", "n_chunks", "n_blocks", "n_fixed"])
def move(
    parts, state, factor, exponent, divergence, n_components, n_chunks, n_blocks, n_fixed,
    F: tl.constexpr, WIDTH: tl.constexpr, BLOCKS: tl.constexpr, BETA: tl.constexpr,
    PENALISED: tl.constexpr, SPARSE: tl.constexpr, POWER: tl.constexpr,
):  # fmt: skip
    """Fade the row's statistics, add the new sums, move the row, and rescale it to unit sum.

    What `ondes.nmf.statistics.Statistics.from_sums` and `ondes.nmf.dictionary_update.update` do.
    `parts` are the sums of chunks of frames; `state` is dictionary, numerators, denominators.
    """
    row = tl.program_id(0)
    size = n_components * F
    stride = 2 * size + n_components + n_blocks
    fading = tl.load(factor)
    is_fixed = row < n_fixed
    if row == 0:
        b = tl.arange(0, BLOCKS)
        of_blocks = total_of(parts + 2 * size + n_components, b, b < n_blocks, n_chunks, stride)
        tl.store(divergence, tl.sum(of_blocks))
    slope = tl.zeros((1,), tl.float64)
    if PENALISED:
        only = row + tl.arange(0, 1)
        slope = total_of(parts + 2 * size, only, only >= 0, n_chunks, stride)

    sums = tl.zeros((WIDTH,), tl.float64)
    for first in range(0, F, WIDTH):
        f = first + tl.arange(0, WIDTH)
        inside = f < F
        at = row * F + f
        weighted = tl.minimum(total_of(parts, at, inside, n_chunks, stride), 3e38)
        inverse = total_of(parts, size + at, inside, n_chunks, stride) + slope
        entry = tl.load(state + at, mask=inside, other=0.0)
        reach = entry * entry if BETA == 0 else entry
        past = tl.load(state + size + at, mask=inside, other=0.0)
        numerator = reach * weighted + past * fading
        past = tl.load(state + 2 * size + at, mask=inside, other=0.0)
        denominator = inverse + past * fading
        tl.store(state + size + at, numerator, mask=inside)
        tl.store(state + 2 * size + at, denominator, mask=inside)
        if SPARSE:
            sums += entry * entry
        else:
            curvature = reach * denominator
            known = (curvature > 0) & (numerator > 0)
            ratio = tl.where(known, numerator, 1.0) / tl.where(known, curvature, 1.0)
            moved = entry * power(ratio, exponent, POWER)
            sums += tl.where(inside, moved, 0.0)
            tl.store(state + at, moved, mask=inside & (row + 0 * f >= n_fixed))

    scale = tl.sum(sums)
    rescaling = scale
    if SPARSE:  # see `ondes.nmf.dictionary_update._sparse_move`
        norm = tl.sqrt(scale)
        by_model = tl.zeros((WIDTH,), tl.float64)
        by_data = tl.zeros((WIDTH,), tl.float64)
        for first in range(0, F, WIDTH):
            f = first + tl.arange(0, WIDTH)
            unit, data, model, known = unit_row(state + row * F + f, f < F, size, norm, BETA)
            by_model += unit * model
            by_data += unit * data
        of_model = tl.sum(by_model)
        of_data = tl.sum(by_data)
        sums = tl.zeros((WIDTH,), tl.float64)
        squares = tl.zeros((WIDTH,), tl.float64)
        for first in range(0, F, WIDTH):
            f = first + tl.arange(0, WIDTH)
            inside = f < F
            at = state + row * F + f
            unit, data, model, known = unit_row(at, inside, size, norm, BETA)
            above = data + unit * of_model
            below = model + unit * of_data
            known = known & (above > 0) & (below > 0)
            ratio = tl.where(known, above, 1.0) / tl.where(known, below, 1.0)
            moved = unit * power(ratio, exponent, POWER)
            sums += moved
            squares += moved * moved
            tl.store(at, moved, mask=inside & (row + 0 * f >= n_fixed))
        scale = tl.sum(sums)
        rescaling = scale / tl.sqrt(tl.sum(squares)) * norm
    scale = tl.where(is_fixed, 1.0, scale)
    rescaling = tl.where(is_fixed, 1.0, rescaling)
    for first in range(0, F, WIDTH):
        f = first + tl.arange(0, WIDTH)
        inside = f < F
        at = state + row * F + f
        tl.store(at, tl.load(at, mask=inside, other=0.0) / scale, mask=inside)
        if BETA == 0:
            above = at + size
            tl.store(above, tl.load(above, mask=inside, other=0.0) / rescaling, mask=inside)
        below = at + 2 * size
        tl.store(below, tl.load(below, mask=inside, other=0.0) * rescaling, mask=inside)
