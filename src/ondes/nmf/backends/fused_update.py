"""The kernel of `ondes.nmf.backends.fused` that moves the dictionary, one program per row."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl


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
        weighted = total_of(parts, at, inside, n_chunks, stride)
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
