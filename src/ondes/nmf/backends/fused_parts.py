"""Arithmetic and layouts for the kernels of `ondes.nmf.backends.fused_kernels`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

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
