"""The kernels of `ondes.nmf.backends.fused` that lay out a dictionary; names as in `fused_kernels`.

They run before every solve, on as many programs as the dictionary has blocks of bins, or rows.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from ondes.nmf.backends.fused_parts import place, rounded


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
