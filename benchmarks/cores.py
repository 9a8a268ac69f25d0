"""What more threads give the kernel: one update of a mini-batch, and solves of short blocks.

Every number of threads takes its turn in each round; medians of rounds. Wall-clock time: for a
quiet machine with as many cores.

    python benchmarks/cores.py [--components 128] [--bins 2049] [--rounds 9]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from ondes.cores import n_cores
from ondes.nmf.backends import native
from ondes.nmf.divergence import BetaDivergence, level_frames
from ondes.nmf.problem import Problem, Solver

THREADS = (1, 2, 4, 8, 16)
WAKING = 3  # calls before the one that is timed


def seconds(run: Callable[[], object]) -> float:
    for _ in range(WAKING):
        run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--components", type=int, default=128)
    parser.add_argument("--bins", type=int, default=2049)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    dictionary = rng.gamma(0.5, size=(options.components, options.bins)) + 1e-6
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    spectra = rng.gamma(0.5, size=(1024, options.components)) @ dictionary
    frames = level_frames((spectra * rng.exponential(size=spectra.shape)).astype(np.float32))
    threads = [n for n in THREADS if n <= max(2, n_cores())]
    print(f"{'':34}{'one thread':>11}" + "".join(f"{f'× with {n}':>11}" for n in threads[1:]))
    for loss in ("itakura-saito", "kullback-leibler"):
        problem = Problem(dictionary, 1e-12, Solver(), divergence=BetaDivergence.of(loss))
        for what, n_frames in (("summarise", 128), ("encode", 64), ("encode", 1024)):
            call = getattr(native, what)
            taken: dict[int, list[float]] = {n: [] for n in threads}
            for _ in range(options.rounds):
                for n in threads:
                    taken[n].append(seconds(partial(call, frames[:n_frames], problem, None, n)))
            median = {n: float(np.median(each)) for n, each in taken.items()}
            gains = "".join(f"{median[1] / median[n]:11.2f}" for n in threads[1:])
            print(f"{loss:17}{what:>10}{n_frames:7}{1e3 * median[1]:8.2f} ms{gains}", flush=True)


if __name__ == "__main__":
    main()
