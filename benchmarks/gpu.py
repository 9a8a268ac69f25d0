"""How fast a CUDA GPU solves: the fused kernel against plain torch, torch.compile and torchnmf.

All of them make the default solve of the same levelled frames, ten extrapolated steps with
restarts; torchnmf has plain steps only. Figures are nanoseconds per frame and step, medians of
device events after a warm-up. A step counts 6 · n_bins · n_components flops, its three products;
the peak is the rate of this GPU's own large TF32 product.

    python benchmarks/gpu.py [--quick] [--out benchmarks/results/gpu.json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
import triton
from kept import KEPT

from ondes.nmf.backends import fused, reference
from ondes.nmf.divergence import LevelledFrames, level_frames
from ondes.nmf.forgetting import GrowingMemory
from ondes.nmf.problem import TOLERATED_RISE, Problem, Solver

BINS = (257, 513, 1025, 2049)
COMPONENTS = (8, 16, 32, 64, 128, 256)
ENTRIES = 2 * 10**8  # of the frames that are solved
BATCH = 128  # frames of a small call, of which learning makes thousands
ROUNDS = 5
SQUARE = 8192
LEARNING = {"n_fft": 512, "hop_length": 256, "spectrum": "power", "beta_loss": "itakura-saito"}
LEARNING |= {"sparsity": 0.0, "forgetting": GrowingMemory(), "solver": Solver()}
LEARNING |= {"backend": "torch", "device": "cuda"}
Run = Callable[[], object]


@dataclass(frozen=True)
class Row:
    n_bins: int
    n_components: int
    n_frames: int
    nanoseconds: dict[str, float]  # per frame and step, of each contestant
    share_of_peak: float  # of the fused kernel in TF32
    fused_over_compiled: float
    small_call: dict[str, float]  # microseconds of one batch on the device, and with its launches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few shapes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/gpu.json")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=list(MORE),
        help="measure only these, and keep the rest of the file",
    )
    options = parser.parse_args()
    if options.only:
        result = json.loads(options.out.read_text())
        for name in options.only:
            result |= MORE[name]()
            print(json.dumps(result[name], indent=1), flush=True)
        KEPT["gpu"].write(result, options.only, options.out)
        return
    shapes = [(f, k) for f in BINS for k in COMPONENTS]
    if options.quick:
        shapes = [(257, 8), (257, 32), (513, 20)]
    gpu = describe_gpu()
    print(", ".join(f"{name}: {value}" for name, value in gpu.items()), flush=True)
    compile_side_by_side(shapes)
    print(header(), flush=True)
    rows = []
    for n_bins, n_components in shapes:
        rows.append(measure(n_bins, n_components, gpu["TF32 product, TFLOP/s"]))
        print(line(rows[-1]), flush=True)
    result: dict[str, object] = {"gpu": gpu, "rows": [asdict(row) for row in rows]}
    for more in MORE.values():
        KEPT["gpu"].write(result, path=options.out)
        found = more()
        result |= found
        print(json.dumps(found, indent=1), flush=True)
    KEPT["gpu"].write(result, path=options.out)


def describe_gpu() -> dict[str, object]:
    """Its name, and the two rates that no figure can exceed."""
    torch.backends.cuda.matmul.allow_tf32 = True
    square = torch.randn(SQUARE, SQUARE, device="cuda")
    product = milliseconds(lambda: square @ square)
    copied = milliseconds(lambda: square.clone())
    return {
        "name": torch.cuda.get_device_name(),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "TF32 product, TFLOP/s": round(2 * SQUARE**3 / product / 1e9, 1),
        "copy, GB/s": round(2 * square.nbytes / copied / 1e6, 1),
    }


def milliseconds(run: Run, rounds: int = ROUNDS) -> float:
    run()
    run()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


# ---- the frames and the contestants ----


def levelled(n_frames: int, n_bins: int, n_components: int) -> tuple[torch.Tensor, Problem]:
    """Frames of a model with the noise of power spectra, and the problem to solve for them."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device="cuda")

    dictionary = uniform(n_components, n_bins).double() ** 3 + 1e-6
    dictionary /= dictionary.sum(dim=1, keepdim=True)
    frames = uniform(n_frames, n_components) ** 4 @ dictionary.float()
    frames *= -uniform(n_frames, n_bins).clamp(min=1e-7).log()
    frames /= frames.mean(dim=1, keepdim=True)
    return frames, Problem(dictionary.cpu().numpy(), 1e-12, Solver())


def step(
    target: torch.Tensor,
    dictionary: torch.Tensor,
    momentum: torch.Tensor,
    state: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor, ...]:
    """One step of the default solve in plain torch, for every frame."""
    here, point, lowest, age = state
    inverse = 1 / (point @ dictionary + 1e-12)
    ratio = target * inverse
    numerator, denominator = (ratio * inverse) @ dictionary.T, inverse @ dictionary.T
    onwards = (point * numerator / denominator).clamp(min=1e-20)
    cost = (ratio - ratio.log() - 1).sum(dim=1)
    risen = cost > lowest + TOLERATED_RISE * target.shape[1]
    age = torch.where(risen, 0, age + 1) % len(momentum)
    ahead = (onwards * (onwards / here) ** momentum[age][:, None]).clamp(min=1e-20)
    again = risen[:, None]
    here, point = torch.where(again, here, onwards), torch.where(again, here, ahead)
    return here, point, torch.minimum(lowest, cost), age


def torchnmf_step(
    target: torch.Tensor, dictionary: torch.Tensor, activations: torch.Tensor
) -> torch.Tensor:
    """torchnmf's multiplicative update for β = 0, γ = ½, with its own ε in its own places."""
    eps = torch.finfo(torch.float32).eps
    positive = (activations @ dictionary + eps).reciprocal_()
    negative = positive.square().mul_(target)
    multiplier = (negative @ dictionary.T).relu_().add_(eps)
    multiplier.div_((positive @ dictionary.T).relu_().add_(eps)).pow_(0.5)
    return activations * multiplier


def contestants(frames: torch.Tensor, problem: Problem) -> Iterator[tuple[str, bool, Run]]:
    """Names, whether torch's products are in TF32, and the solves of ten steps."""
    solver = problem.solver
    dictionary = torch.from_numpy(problem.dictionary).cuda()
    narrow, target = dictionary.float(), frames + problem.floor
    n_frames, n_components = len(frames), len(dictionary)
    start = torch.full((n_frames, n_components), frames.shape[1] / n_components, device="cuda")
    momentum = torch.tensor(solver.momentum, device="cuda")
    lowest = torch.full((n_frames,), torch.inf, device="cuda")
    age = torch.zeros(n_frames, dtype=torch.long, device="cuda")

    def steps_of(one: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        state: tuple[torch.Tensor, ...] = start, start, lowest, age
        for _ in range(solver.max_steps):
            state = one(target, narrow, momentum, state)

    def steps_of_torchnmf() -> None:
        activations = start
        for _ in range(solver.max_steps):
            activations = torchnmf_step(target, narrow, activations)

    yield "torch, float32", False, partial(steps_of, step)
    yield "torch, TF32", True, partial(steps_of, step)
    yield "torch.compile, TF32", True, partial(steps_of, compiled_step)
    yield "torchnmf's update, TF32", True, steps_of_torchnmf
    for precision in fused.PRECISIONS:
        yield (
            f"fused, {precision}",
            True,
            partial(fused.solve, frames, dictionary, problem, precision=precision, with_sums=False),
        )
    yield (
        "fused, tf32, with sums",
        True,
        partial(fused.solve, frames, dictionary, problem, with_sums=True),
    )


compiled_step = torch.compile(step, dynamic=True)


def measure(n_bins: int, n_components: int, peak: float) -> Row:
    n_frames = ENTRIES // n_bins
    frames, problem = levelled(n_frames, n_bins, n_components)
    found = {}
    for name, in_tf32, run in contestants(frames, problem):
        torch.backends.cuda.matmul.allow_tf32 = in_tf32
        found[name] = milliseconds(run) * 1e6 / n_frames / problem.solver.max_steps
    achieved = 6.0 * n_bins * n_components / found["fused, tf32"] / 1e3  # TFLOP/s
    return Row(
        n_bins,
        n_components,
        n_frames,
        {name: round(value, 3) for name, value in found.items()},
        round(achieved / peak, 3),
        round(found["torch.compile, TF32"] / found["fused, tf32"], 2),
        small_call(frames[:BATCH], problem),
    )


def small_call(frames: torch.Tensor, problem: Problem) -> dict[str, float]:
    """One batch with its statistics: as recorded in a CUDA graph, and launched from Python."""
    dictionary = torch.from_numpy(problem.dictionary).cuda()
    run = partial(fused.solve, frames, dictionary, problem, with_sums=True)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return {
        "device": round(1e3 * milliseconds(graph.replay, 50), 1),
        "launched": round(1e3 * milliseconds(run, 50), 1),
    }


def compile_side_by_side(shapes: list[tuple[int, int]]) -> None:
    """Compile the kernels on all cores, into Triton's cache: one after the other takes minutes."""
    jobs = [(shape, precision) for shape in shapes for precision in fused.PRECISIONS]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.map(compile_one, jobs, chunksize=1)


def compile_one(job: tuple[tuple[int, int], str]) -> None:
    (n_bins, n_components), precision = job
    for n_frames in (BATCH, 10_000):
        frames, problem = levelled(n_frames, n_bins, n_components)
        dictionary = torch.from_numpy(problem.dictionary).cuda()
        fused.solve(frames, dictionary, problem, precision=precision, with_sums=True)


# ---- what the narrow products cost in accuracy ----


def errors(n_frames: int = 1000) -> dict[str, object]:
    """The largest error of each precision against the reference in float64."""
    rng = np.random.default_rng(0)
    found = []
    for kind in ("a model's spectra", "1e-12 to 1, a fifth zero"):
        worst = {precision: [0.0, 0.0, 0.0] for precision in fused.PRECISIONS}
        for n_bins, n_components in ((257, 8), (257, 32), (257, 64), (513, 32)):
            dictionary = rng.gamma(0.5, size=(n_components, n_bins)) + 1e-9
            dictionary /= dictionary.sum(axis=1, keepdims=True)
            spectra = rng.gamma(0.5, size=(n_frames, n_components)) @ dictionary
            spectra *= rng.exponential(size=spectra.shape)
            if kind.startswith("1e-12"):
                spectra = 10.0 ** rng.uniform(-12, 0, size=spectra.shape)
                spectra[rng.random(spectra.shape) < 0.2] = 0
            problem = Problem(dictionary, 1e-12, Solver())
            for precision, error in errors_of(level_frames(spectra.astype(np.float32)), problem):
                worst[precision] = list(np.maximum(worst[precision], error))
        names = "activations", "divergence", "divergence reported"
        for precision, error in worst.items():
            of_kind = {name: float(f"{each:.1e}") for name, each in zip(names, error, strict=True)}
            found.append({"precision": precision, "frames": kind} | of_kind)
    return {"errors": found}


def errors_of(
    frames: LevelledFrames, problem: Problem
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Of the activations, relative to the frame's largest; of the divergence; of that reported."""
    wide = replace(frames, values=frames.values.astype(np.float64))
    expected = reference.encode(wide, problem)
    largest = expected.max(axis=1, keepdims=True)
    best = reference.divergences(wide, expected, problem).sum()
    values, dictionary = (
        torch.from_numpy(each).cuda() for each in (frames.values, problem.dictionary)
    )
    for precision in fused.PRECISIONS:
        solved, sums = fused.solve(values, dictionary, problem, precision=precision, with_sums=True)
        assert sums is not None
        found = solved.cpu().numpy().astype(np.float64)
        own = reference.divergences(wide, found, problem).sum()
        yield (
            precision,
            (
                float(np.max(np.abs(found - expected) / largest)),
                abs(float(own / best - 1)),
                abs(float(sums.divergence) / float(own) - 1),
            ),
        )


# ---- an hour, from samples in memory to a dictionary ----


def end_to_end(sr: int = 22050) -> dict[str, object]:
    """Seconds from int16 noise in the host's memory to a dictionary, one pass of the default."""
    import ondes

    noise = np.random.default_rng(0).standard_normal(3600 * sr)
    hour = (3000 * noise).astype(np.int16)

    def seconds(n_components: int, n_hours: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        ondes.learn([hour] * n_hours, n_components, sr=sr, **LEARNING)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    rows = []
    for n_components, n_hours, rounds in ((32, 1, 5), (64, 1, 3), (128, 1, 3), (32, 10, 1)):
        first = seconds(n_components, n_hours)
        torch.cuda.reset_peak_memory_stats()
        again = sorted(seconds(n_components, n_hours) for _ in range(rounds))
        rows.append(
            {
                "n_components": n_components,
                "hours": n_hours,
                "seconds": round(again[rounds // 2], 3),
                "seconds_the_first_time": round(first, 2),
                "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20),
            }
        )
    return {"end_to_end": {"sr": sr, "rows": rows}}


def from_files(hours: float = 4.0, sr: int = 22050) -> dict[str, object]:
    """Seconds from scenes in FLAC to a dictionary, by the number of threads that read them."""
    from command_runs import write_recordings

    import ondes

    def seconds(files: list[Path], n_threads: int) -> float:
        begin = time.perf_counter()
        ondes.learn(files, 32, sr=sr, n_jobs=n_threads, **LEARNING)
        return time.perf_counter() - begin

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = write_recordings(Path(folder), sr, hours)
        seconds(files[:1], 1)
        for n_threads in (1, 2, 4):
            again = sorted(seconds(files, n_threads) for _ in range(3))
            rows.append({"n_threads": n_threads, "seconds": round(again[1], 3)})
    return {"from_files": {"sr": sr, "hours": hours, "n_cores": os.cpu_count(), "rows": rows}}


MORE = {"errors": errors, "end_to_end": end_to_end, "from_files": from_files}


def header() -> str:
    return (
        f"{'bins':>5} {'comp':>4} {'fp32':>7} {'TF32':>7} {'compile':>7} {'torchnmf':>8} "
        f"{'fused':>7} {'ieee':>7} {'bf16':>7} {'+ sums':>7} {'peak':>5} {'x compile':>9} "
        f"{'128 frames':>10} {'launched':>8}"
    )


def line(row: Row) -> str:
    times = list(row.nanoseconds.values())
    widths = (7, 7, 7, 8, 7, 7, 7, 7)
    cells = " ".join(f"{time:{width}.3f}" for time, width in zip(times, widths, strict=True))
    return (
        f"{row.n_bins:5} {row.n_components:4} {cells} {row.share_of_peak:5.0%} "
        f"{row.fused_over_compiled:9.1f} {row.small_call['device']:7.0f} µs "
        f"{row.small_call['launched']:5.0f} µs"
    )


if __name__ == "__main__":
    main()
