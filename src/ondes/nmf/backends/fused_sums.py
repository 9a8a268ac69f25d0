"""The kernel of `ondes.nmf.backends.fused` that sums statistics; names as in `fused_kernels`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from ondes.nmf.backends.fused_kernels import COUNTS, penalise
from ondes.nmf.backends.fused_parts import (
    as_left_factor,
    at_place,
    product,
    reciprocal,
    rounded,
)


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
