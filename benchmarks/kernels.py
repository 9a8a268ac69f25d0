"""The native kernel against this machine's matrix product, and against other packages' steps.

One inner step of n frames counts 2 · n_bins · n_components · n flops a product: three products of
Itakura-Saito, two of Kullback-Leibler. Every contestant is timed in turns with a large square
matrix product, whose rate is the peak; medians of rounds. One thread is timed by its own clock, so
that other work on the machine matters little. The kernel's threads are woken by a call that is not
timed, as those of the matrix product are awake; then as many calls are timed as have its flops.

    python benchmarks/kernels.py [--quick] [--music FOLDER] [--out benchmarks/results/kernels.json]
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import sklearn
from kept import KEPT
from sklearn.decomposition import _nmf
from threadpoolctl import threadpool_limits

from ondes import OnlineNMF
from ondes.demo_scene import make_scene
from ondes.nmf.backends import native, reference
from ondes.nmf.divergence import BetaDivergence, level_frames
from ondes.nmf.problem import TRANSFORM_SOLVER, Problem, Solver
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.recordings import find_recordings
from ondes.signal.stft import Stft

N_FRAMES = 768
SQUARE = 1536
BINS = (257, 513, 1025, 2049)
COMPONENTS = (8, 10, 16, 20, 32, 50, 64, 100, 200)
ODD = ((129, 7), (301, 13), (1000, 37))
LARGE = tuple((f, k) for f in (257, 513) for k in (500, 1000, 2000))
PRODUCTS = {"itakura-saito": 3, "kullback-leibler": 2}
PAUSE = 0.2  # seconds that the threads of a BLAS keep spinning after their work
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Row:
    loss: str
    dtype: str
    threads: int
    n_bins: int
    n_components: int
    gflops: dict[str, float]  # of each contestant, and of the matrix product
    share: dict[str, float]  # of the peak, median of each round's own

    def missed(self) -> str:
        """Which of the project's targets this row misses."""
        share = self.share["native"]
        aims = {}
        judged = self.n_components >= (8 if self.loss == "itakura-saito" else 16)
        if self.n_bins in (257, 513) and judged:
            aims["80 % of peak"] = share >= 0.8
        aims["NumPy"] = share >= self.share["numpy"]
        aims["scikit-learn"] = share >= self.share["sklearn"]
        if self.n_components <= 20 and self.dtype == "float32":
            aims["4 × scikit-learn"] = share >= 4 * self.share["sklearn"]
        return ", ".join(aim for aim, met in aims.items() if not met)


def contestants(
    loss: str, n_bins: int, n_components: int, dtype: str, threads: int
) -> dict[str, tuple[Callable[[], object], int]]:
    """Functions to be timed, each with the number of inner steps it makes."""
    rng = np.random.default_rng(0)
    dictionary = rng.gamma(0.5, size=(n_components, n_bins)) + 1e-6
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    spectra = rng.gamma(0.5, size=(N_FRAMES, n_components)) @ dictionary
    frames = level_frames((spectra * rng.exponential(size=spectra.shape)).astype(dtype))
    steps, few = (30, 3) if n_bins * n_components < 20_000 else (12, 2)
    if n_components >= 500:
        steps, few = 4, 1
    divergence = BetaDivergence.of(loss)

    def problem(n_steps: int, momentum: tuple[float, ...] = ()) -> Problem:
        solver = Solver(n_steps, 1.0, momentum, tol=0.0)
        return Problem(dictionary, 1e-6, solver, divergence=divergence)

    start = reference.fresh_start(frames, problem(1))
    target = frames.values + np.asarray(1e-6, dtype)
    components = dictionary.astype(dtype)

    def sklearn_steps() -> None:
        activations = start.copy()
        for _ in range(few):
            activations, *_ = _nmf._multiplicative_update_w(
                target, activations, components, beta_loss=divergence.beta, l1_reg_W=0, l2_reg_W=0,
                gamma=0.5 if divergence.beta == 0 else 1.0,
            )  # fmt: skip

    plain, default = problem(steps), problem(steps, Solver().momentum)
    found: dict[str, tuple[Callable[[], object], int]] = {
        "native": (lambda: native.encode(frames, plain, start, threads), steps),
        "native, default momentum": (lambda: native.encode(frames, default, start, threads), steps),
        "numpy": (lambda: reference.encode(frames, problem(few), start), few),
        "sklearn": (sklearn_steps, few),
    }
    torchnmf = torchnmf_steps(target, components, start, few, threads, divergence.beta)
    return found | ({"torchnmf": (torchnmf, few)} if torchnmf else {})


def torchnmf_steps(
    target: np.ndarray,
    components: np.ndarray,
    start: np.ndarray,
    n_steps: int,
    threads: int,
    beta: float,
) -> Callable[[], object] | None:
    """torchnmf's step on the CPU, where it is installed."""
    try:
        import torch
        from torchnmf.nmf import NMF
    except ImportError:
        return None
    values, rows = torch.from_numpy(target), torch.from_numpy(components.T.copy())

    def run() -> None:
        torch.set_num_threads(threads)
        model = NMF(W=rows, H=torch.from_numpy(start.copy()), trainable_W=False)
        model.fit(values, beta=beta, max_iter=n_steps, tol=-np.inf)

    return run


def measure(
    loss: str, dtype: str, threads: int, n_bins: int, n_components: int, rounds: int
) -> Row:
    square = np.random.default_rng(0).random((SQUARE, SQUARE)).astype(dtype)
    clock = time.thread_time if threads == 1 else time.perf_counter

    product_flops = 2.0 * SQUARE**3

    def rate(run: Callable[[], object], flops: float, times: int = 1) -> float:
        began = clock()
        for _ in range(times):
            run()
        return times * flops / (clock() - began) / 1e9

    step_flops = 2.0 * PRODUCTS[loss] * n_bins * n_components * N_FRAMES
    racing = contestants(loss, n_bins, n_components, dtype, threads)
    rates: dict[str, list[float]] = {name: [] for name in ("matrix product", *racing)}
    with threadpool_limits(threads):
        for _ in range(rounds + 1):
            rates["matrix product"].append(rate(lambda: square @ square, product_flops))
            for name, (run, steps) in racing.items():
                flops, times = steps * step_flops, 1
                if name.startswith("native"):
                    times = max(1, round(product_flops / flops))
                    if threads > 1:
                        time.sleep(PAUSE)
                        run()
                rates[name].append(rate(run, flops, times))
    warm = {name: np.array(found[1:]) for name, found in rates.items()}
    peak = warm["matrix product"]
    return Row(
        loss,
        dtype,
        threads,
        n_bins,
        n_components,
        {name: round(float(np.median(found)), 2) for name, found in warm.items()},
        {name: round(float(np.median(warm[name] / peak)), 3) for name in racing},
    )


def frames_of_scenes() -> tuple[np.ndarray, np.ndarray]:
    """To learn from, and to solve for."""
    learned, solved = (Stft().power(make_scene(random_state=seed).mixture) for seed in (1, 2))
    return learned, solved


def frames_of_music(folder: Path, n_frames: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """The same from recordings, every other one held out."""
    paths = find_recordings([folder])
    audio = AudioSettings(11025, Stft())
    learned, solved = (
        next(iter(frame_batches(part, audio, n_frames))) for part in (paths[::2], paths[1::2])
    )
    return learned, solved[: n_frames // 4]


def inner_solve(
    learned: np.ndarray, solved: np.ndarray, n_components: int, rounds: int
) -> dict[str, float]:
    """Seconds of the default solve and of 150 of the paper's steps, and the remaining gap of each.

    The gap is relative to the divergence of 3000 extrapolated steps. One thread.
    """
    model = OnlineNMF(n_components, random_state=0, n_passes=3).fit(learned)
    frames = level_frames(solved)

    def problem(solver: Solver) -> Problem:
        return Problem(model.components_, 1e-12, solver)

    def divergence_of(solver: Solver) -> float:
        activations = native.encode(frames, problem(solver))
        return float(reference.divergences(frames, activations, problem(solver)).mean())

    lowest = divergence_of(Solver(3000, tol=1e-7))
    short = replace(TRANSFORM_SOLVER, max_steps=4)
    while short.max_steps < 200 and divergence_of(short) > 1.001 * lowest:
        short = replace(short, max_steps=short.max_steps + 1)
    solvers = {
        "150 steps of the paper": Solver.paper(150),
        "default": TRANSFORM_SOLVER,
        "default, to a gap of 1e-3": short,
    }
    found: dict[str, float] = {"n_components": n_components}
    for name, solver in solvers.items():
        times = []
        for _ in range(rounds):
            began = time.thread_time()
            native.encode(frames, problem(solver))
            times.append(time.thread_time() - began)
        found[f"{name}: seconds"] = float(np.median(times))
        found[f"{name}: relative gap"] = divergence_of(solver) / lowest - 1
    return found


def table(rows: list[Row]) -> Iterator[str]:
    yield (
        f"{'loss':16} {'dtype':8} {'thr':>3} {'bins':>5} {'comp':>4} {'peak GF':>8} {'native':>7} "
        f"{'default':>7} {'numpy':>6} {'sklearn':>7} {'x numpy':>7} {'x sklearn':>9}  missed"
    )
    for row in rows:
        share = row.share
        yield (
            f"{row.loss:16} {row.dtype:8} {row.threads:3} {row.n_bins:5} {row.n_components:4} "
            f"{row.gflops['matrix product']:8.1f} {share['native']:7.0%} "
            f"{share['native, default momentum']:7.0%} {share['numpy']:6.0%} "
            f"{share['sklearn']:7.0%} {share['native'] / share['numpy']:7.1f} "
            f"{share['native'] / share['sklearn']:9.1f}  {row.missed()}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few shapes, few rounds")
    parser.add_argument("--music", type=Path, help="a folder of recordings for the inner solve")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/kernels.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn's step divides by what it later replaces

    shapes = [(f, k) for f in BINS for k in COMPONENTS] + list(ODD)
    shapes_of = {
        "itakura-saito": [*shapes, *LARGE],
        "kullback-leibler": [(f, k) for f, k in (*shapes, *LARGE) if f in (257, 513)],
    }
    rounds = 3
    if options.quick:
        quick = [(257, 8), (257, 10), (257, 16), (257, 64), (513, 20)]
        shapes_of = dict.fromkeys(PRODUCTS, quick)
    rows: list[Row] = []
    header, *_ = table([])
    print(header)
    kinds = itertools.product(("float32", "float64"), sorted({1, CORES}), PRODUCTS)
    for dtype, threads, loss in kinds:
        for n_bins, n_components in shapes_of[loss]:
            rows.append(measure(loss, dtype, threads, n_bins, n_components, rounds))
            print(list(table(rows[-1:]))[1], flush=True)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": CORES,
        "isa": native.isa(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "load average": os.getloadavg()[0],
    }
    solves = {"scene": inner_solve(*frames_of_scenes(), 32, rounds)}
    if options.music:
        for k in (20, 64):
            solves[f"music, K = {k}"] = inner_solve(*frames_of_music(options.music), k, rounds)
    for name, found in solves.items():
        paper = found["150 steps of the paper: seconds"]
        for solve in ("default", "default, to a gap of 1e-3"):
            ratio, gap = found[f"{solve}: seconds"] / paper, found[f"{solve}: relative gap"]
            print(f"{name}: {solve}: {ratio:.2f} of the time of 150 steps, gap {gap:.1e}")
    result = {
        "machine": machine,
        "inner solve": solves,
        "rows": [asdict(row) | {"missed": row.missed()} for row in rows],
    }
    KEPT["kernels"].write(result, path=options.out)


if __name__ == "__main__":
    main()
