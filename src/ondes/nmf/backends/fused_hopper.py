"""What the kernels of `ondes.nmf.backends.fused` for Hopper GPUs share, in Gluon.

`fused_resident` is for few components and short spectra, `fused_streamed` for many components. Both
make the steps of `fused_kernels.solve` for Itakura-Saito without penalty, sparsity or tolerance;
names as there. Layouts, shared memory and the order of copies and products are explicit: a product
runs while the quotients of another block of bins are computed, for which Triton waits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ondes.nmf.problem import ACTIVATION_CEILING, ACTIVATION_FLOOR, Problem

CAPABILITY = 9, 0
VERSIONS = ((3, 6),)  # of Triton, on which it was tested: Gluon is experimental
COUNTS = ["n_frames", "share", "n_components", "max_steps", "n_momentum"]
LOG_TWO = gl.constexpr(0.6931471805599453)
SMALLEST = gl.constexpr(1e-36)
LEAST, MOST = gl.constexpr(ACTIVATION_FLOOR), gl.constexpr(ACTIVATION_CEILING)


def supports(problem: Problem, capability: tuple[int, int]) -> bool:
    """Whether the kernels solve `problem` on a GPU of this compute capability."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    plain = problem.penalty is None and not problem.sparsity and not problem.solver.tol
    known = version in VERSIONS and capability == CAPABILITY
    return known and plain and problem.divergence.beta == 0 and bool(problem.solver.momentum)


# ---- Arithmetic ----


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


# ---- Layouts: see `fused_parts` ----


@gluon.jit
def by_thread(x, M: gl.constexpr, WIDTH: gl.constexpr, ACROSS: gl.constexpr):
    """Rows (M, WIDTH) in an order in which a thread's numbers are neighbours."""
    x = x.reshape([M // 16, 2, 8, ACROSS, WIDTH // (8 * ACROSS), 4, 2])
    return x.permute((4, 3, 0, 2, 5, 1, 6)).reshape([WIDTH // (8 * ACROSS), 8 * ACROSS * M])


@gluon.jit
def by_row(
    x, M: gl.constexpr, WIDTH: gl.constexpr, ACROSS: gl.constexpr, MODEL: gl.constexpr
):  # fmt: skip
    """Undo `by_thread`."""
    x = x.reshape([WIDTH // (8 * ACROSS), ACROSS, M // 16, 8, 4, 2, 2])
    x = x.permute((2, 5, 3, 1, 0, 4, 6)).reshape([M, WIDTH])
    return gl.convert_layout(x, MODEL, assert_trivial=True)


# ---- A tile of frames ----


@gluon.jit
def take(values, row, bins, floor, at, totals, F: gl.constexpr):
    """A block of bins in units of the even model, ones beyond the last, and the totals with it."""
    there = (at < F)[None, :]
    value = gl.load(values + row[:, None] * F + at[None, :], mask=there, other=0.0)
    value = (value + floor) * gl.load(bins + at)[None, :]
    return gl.where(there, value, 1.0), totals + gl.where(there, value, 0.0)


@gluon.jit
def announce(values, first, n_frames, M: gl.constexpr, F: gl.constexpr):
    """Ask for a tile of frames, which comes into the L2 cache while another one is solved."""
    at = gl.arange(0, 256, gl.BlockedLayout([1], [32], [8], [0])) * 32  # a line has 32 numbers
    for more in range(0, M * F, 256 * 32):
        asked = gl.minimum(first.to(gl.int64) * F + (more + at), n_frames.to(gl.int64) * F - 1)
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [values + asked], gl.int32, False, 1
        )


@gluon.jit
def last_bin(
    values, row, bins, background, floor,
    F: gl.constexpr, PADDED: gl.constexpr, ONE_MORE: gl.constexpr, KNOWN: gl.constexpr,
):  # fmt: skip
    """The target of the one bin outside the blocks, and what its model has beside components."""
    target = gl.zeros_like(row).to(gl.float32)
    known = gl.zeros_like(row).to(gl.float32)
    if ONE_MORE:
        target = (gl.load(values + row * F + F - 1) + floor) * gl.load(bins + F - 1)
        known += gl.load(bins + PADDED + F - 1)
        if KNOWN:
            known += gl.load(background + row) * gl.load(bins + 2 * PADDED + F - 1)
    return target, known


@gluon.jit
def first_point(
    start, row, total, n_components, k,
    K: gl.constexpr, M: gl.constexpr, STARTED: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Where the first step starts from."""
    real = (k < n_components)[None, :]
    point = gl.zeros([M, K], gl.float32, SUMS) + (total / n_components)[:, None]
    if STARTED:
        source = start + row[:, None] * n_components + k[None, :]
        point = gl.load(source, mask=real & (row >= 0)[:, None], other=0.0)
    return gl.maximum(gl.where(real, point, LEAST), LEAST)


# ---- A step ----


@gluon.jit
def beside(
    bins, known, block,
    PADDED: gl.constexpr, WIDTH: gl.constexpr, KNOWN: gl.constexpr, MODEL: gl.constexpr,
):  # fmt: skip
    """What the model of a block has beside components: the floor and the known background."""
    at = bins + PADDED + block * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, MODEL))
    rest = gl.load(at)[None, :]
    if KNOWN:
        rest = rest + known[:, None] * gl.load(at + PADDED)[None, :]
    return rest


@gluon.jit
def begin_sums(
    model, target, part, K: gl.constexpr, M: gl.constexpr, ONE_MORE: gl.constexpr,
    SUMS: gl.constexpr,
):  # fmt: skip
    """Numerator, denominator and cost of the one bin outside the blocks."""
    numerator = gl.zeros([M, K], gl.float32, SUMS)
    denominator = gl.zeros([M, K], gl.float32, SUMS)
    cost = gl.zeros_like(model)
    if ONE_MORE:
        inverse = reciprocal(model)
        ratio = target * inverse
        cost = ratio + LOG_TWO * log2(model)
        numerator = (ratio * inverse)[:, None] * part[None, :]
        denominator = inverse[:, None] * part[None, :]
    return numerator, denominator, cost


@gluon.jit
def no_costs(M: gl.constexpr, WIDTH: gl.constexpr, MODEL: gl.constexpr):
    """Zeros, as `weigh` adds to them."""
    zeros = gl.zeros([M, WIDTH], gl.float32, MODEL)
    return gl.split(zeros.reshape([M, WIDTH // 2, 2]))[0]


@gluon.jit
def weigh(model, target, costs, M: gl.constexpr, WIDTH: gl.constexpr, MODEL: gl.constexpr):
    """v / y², 1 / y, and the costs with those of a block: one reciprocal for two bins."""
    one, other = gl.split(model.reshape([M, WIDTH // 2, 2]))
    one_target, other_target = gl.split(target.reshape([M, WIDTH // 2, 2]))
    both = one * other
    of_both = reciprocal(both)
    one_inverse = other * of_both
    other_inverse = one * of_both
    one_ratio = one_target * one_inverse
    other_ratio = other_target * other_inverse
    costs += one_ratio + other_ratio + LOG_TWO * log2(both)
    weighted = gl.join(one_ratio * one_inverse, other_ratio * other_inverse)
    inverse = gl.join(one_inverse, other_inverse)
    return (
        gl.convert_layout(weighted.reshape([M, WIDTH]), MODEL, assert_trivial=True),
        gl.convert_layout(inverse.reshape([M, WIDTH]), MODEL, assert_trivial=True),
        costs,
    )


@gluon.jit
def judge(cost, lowest, age, momentum, n_momentum, tolerated):
    """Which frames' costs have risen, the weight of their push, the lowest costs and the ages."""
    risen = cost > lowest + tolerated
    age = gl.where(risen, 0, (age + 1) % n_momentum)
    return risen, gl.load(momentum + age), gl.minimum(lowest, cost), age


@gluon.jit
def advance(
    point, here, numerator, denominator, risen, weight, exponent, POWER: gl.constexpr
):  # fmt: skip
    """Where the next step starts from, and where this one led.

    Components that are padding have sums of zero, and stay at `LEAST`.
    """
    of_both = reciprocal(gl.maximum(denominator * here, SMALLEST))
    quotient = numerator * (here * of_both)
    if POWER == "root":
        quotient = gl.sqrt(quotient)
    elif POWER == "any":
        quotient = exp2(exponent * log2(quotient))
    step = gl.maximum(point * quotient, LEAST)
    push = exp2(weight * log2(step * (denominator * of_both)))
    ahead = gl.minimum(gl.maximum(step * push, LEAST), MOST)
    return gl.where(risen, here, ahead), gl.where(risen, here, step)
