"""How fast a CUDA GPU learns from arrays, encodes them, and separates.

Milliseconds per update of 128 frames in `fit` and `partial_fit`, from a tensor on the GPU and from
an array of the host, everything included; frames per second of `transform`; and multiples of real
time of `separate`, from samples in memory to stems in memory. Best of three, after a first run that
compiles the kernels. Beside them the fused kernel's step, measured as in `gpu.py`.

    python benchmarks/gpu_arrays.py [--out benchmarks/results/gpu_arrays.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gpu
import numpy as np
import torch
from kept import KEPT

from ondes import AudioSettings, OnlineNMF, Stft
from ondes.nmf.backends import fused
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.separation import Sources, separate

N_FRAMES, N_BINS, N_COMPONENTS, BATCH = 60_000, 257, 48, 128
MINUTES = 20
SHAPES = ((257, 16), (257, 32), (257, 64), (257, 128), (257, 256), (513, 32))
GPU = {"backend": "torch", "device": "cuda"}
LOSSES = {"itakura-saito": 0.0, "kullback-leibler": 0.0, "kullback-leibler, sparse": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "results/gpu_arrays.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    machine = gpu.describe_gpu()
    result = {
        "gpu": machine,
        "steps": [step(*shape, machine["TF32 product, TFLOP/s"]) for shape in SHAPES],
        "updates": [updates(name, sparsity) for name, sparsity in LOSSES.items()],
        "separation": separation(),
    }
    print(json.dumps(result, indent=1))
    KEPT["gpu_arrays"].write(result, path=options.out)


def step(n_bins: int, n_components: int, peak: float) -> dict[str, float]:
    """Nanoseconds per frame and step of the default solve, and its share of the TF32 rate."""
    n_frames = gpu.ENTRIES // n_bins
    frames, problem = gpu.levelled(n_frames, n_bins, n_components)
    dictionary = torch.from_numpy(problem.dictionary).cuda()
    took = gpu.milliseconds(partial(fused.solve, frames, dictionary, problem, with_sums=False))
    nanoseconds = 1e6 * took / n_frames / problem.solver.max_steps
    share = 6.0 * n_bins * n_components / nanoseconds / 1e3 / peak
    return {
        "n_bins": n_bins,
        "n_components": n_components,
        "nanoseconds": round(nanoseconds, 3),
        "share_of_peak": round(share, 3),
    }


def seconds(run: Callable[[], object], rounds: int = 3) -> float:
    run()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def spectra(n_frames: int) -> np.ndarray:
    """Frames of a model with the noise of power spectra."""
    rng = np.random.default_rng(0)
    dictionary = rng.gamma(0.5, size=(N_COMPONENTS, N_BINS))
    frames = rng.gamma(0.5, size=(n_frames, N_COMPONENTS)) @ dictionary
    return (frames * rng.exponential(size=frames.shape)).astype(np.float32)


def updates(name: str, sparsity: float) -> dict[str, object]:
    host = spectra(N_FRAMES)
    beta_loss, n_updates = name.partition(",")[0], N_FRAMES / BATCH

    def model() -> OnlineNMF:
        options = {"beta_loss": beta_loss, "sparsity": sparsity, "random_state": 0}
        return OnlineNMF(N_COMPONENTS, batch_size=BATCH, **options, **GPU)

    found: dict[str, object] = {"loss": name}
    for kind, frames in {"tensor": torch.from_numpy(host).cuda(), "array": host}.items():
        learner = model()
        per_pass = 1e3 / n_updates
        again = seconds(partial(learner.partial_fit, frames))
        fitted = seconds(lambda x=frames: model().fit(x))
        encoded = seconds(partial(learner.transform, frames))
        found[f"partial_fit of a {kind}, ms"] = round(per_pass * again, 4)
        found[f"fit of a {kind}, ms"] = round(per_pass * fitted / learner.n_passes, 4)
        found[f"transform of a {kind}, frames/s"] = round(N_FRAMES / encoded)
    return found


@dataclass
class Trained:
    """A trained separator of random weights, as large as those that training makes."""

    names: tuple[str, ...]
    audio: AudioSettings
    weights: UnfoldedWeights


def separation() -> dict[str, float]:
    rng = np.random.default_rng(0)

    def sources(stft: Stft, spectrum: str, beta: float, sparsity: float) -> Sources:
        rows = rng.gamma(0.3, size=(128, stft.n_bins)) + 1e-6
        rows /= rows.sum(axis=1, keepdims=True)
        audio = AudioSettings(22050, stft, spectrum=spectrum)
        names = ("one", "other")
        return Sources(rows, np.repeat([0, 1], 64), names, audio, BetaDivergence(beta), sparsity)

    def trained(stft: Stft) -> Trained:
        rows = rng.gamma(0.5, size=(5, 256, stft.n_bins)).astype(np.float32)
        decoder = rng.gamma(0.5, size=(2, 5, 128, stft.n_bins)).astype(np.float32)
        exponents = rng.uniform(-0.3, 0.6, size=(3, 256)).astype(np.float32)
        weights = UnfoldedWeights(
            rows, rows.sum(axis=-1) + np.float32(2), decoder, exponents, (3, 9, 31), 12, 1.3, 1e-4
        )
        audio = AudioSettings(16000, stft, spectrum="magnitude")
        return Trained(("speech", "rest"), audio, weights)

    models = {
        "two of 64, Itakura-Saito, 1024/512": sources(Stft(1024, 512), "power", 0.0, 0.0),
        "two of 64, Itakura-Saito, 2048/512": sources(Stft(2048, 512), "power", 0.0, 0.0),
        "two of 64, preset, 4096/1024": sources(Stft(4096, 1024), "magnitude", 1.0, 2.0),
        "trained, 2048/512": trained(Stft(2048, 512)),
    }
    found = {}
    for name, model in models.items():
        sr = model.audio.sr
        mixture = (0.1 * rng.standard_normal(60 * MINUTES * sr)).astype(np.float32)
        took = seconds(lambda x=mixture, m=model, sr=sr: separate(x, m, sr=sr, **GPU))
        found[name] = round(60 * MINUTES / took)
    return found


if __name__ == "__main__":
    main()
