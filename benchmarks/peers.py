"""The contestants of the race: what users have today, and `ondes`, behind one interface.

A contestant learns from frames that are each scaled to mean one, within its seconds, under a
`Watch` that keeps its dictionary at intervals. Only learning is timed. Each runs in a process of
its own, so that no threads of one run into the time of another:

    python benchmarks/peers.py CONTESTANT THREADS JOBS.json
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import numpy as np

import ondes

FLOOR = 1e-8  # added where zeros are not accepted, to frames and bins of mean one
PLAIN_FLOOR = 1e-6  # to data of mean one as a whole: above the peers' own floors
BATCH = 1000  # frames: the paper's β, and nearly scikit-learn's own 1024
R = 0.7  # what is left of the past after a pass
GROWTH = 1.5  # of the time from one snapshot to the next


class TimeUpError(Exception):
    """Ends a contestant from inside."""


@dataclass
class Watch:
    """Counts seconds of learning and keeps (seconds, passes, dictionary) at growing intervals.

    The seconds of one thread are those of the processor, so that other work on the machine matters
    little; those of several are the wall's.
    """

    budget_s: float
    max_passes: float = np.inf
    threads: int = 1
    seconds: float = 0.0
    kept: list[tuple[float, float, np.ndarray]] = field(default_factory=list)
    _next_s: float = 0.0

    def _clock(self) -> float:
        return time.process_time() if self.threads == 1 else time.perf_counter()

    def start(self) -> None:
        self._began = self._clock()

    def tick(self, passes: float, dictionary: np.ndarray) -> None:
        """Stop the clock, keep the dictionary if it is time, and start the clock again."""
        self.seconds += self._clock() - self._began
        over = self.seconds >= self.budget_s or passes >= self.max_passes
        # The end of the first pass is where comparisons begin.
        if over or self.seconds >= self._next_s or passes == 1:
            self.kept.append((self.seconds, passes, np.array(dictionary, dtype=np.float32)))
            self._next_s = GROWTH * self.seconds
        if over:
            raise TimeUpError
        self._began = self._clock()

    def rounds(self, done: int) -> int:
        """How many more rounds until the next snapshot is due, when `done` took the time so far."""
        each = max(self.seconds, 1e-6) / max(done, 1)
        until = min(self._next_s, self.budget_s) - self.seconds
        return max(1, round(until / each))


@dataclass(frozen=True)
class Task:
    """Frames with mean one each, a first dictionary, and what else a contestant may need."""

    frames: np.ndarray
    first: np.ndarray  # rows sum to one
    seed: int
    threads: int
    warm: bool  # whether activations fit in memory beside the frames: the paper's smaller sets
    floor: float = FLOOR
    beta_loss: str = "itakura-saito"

    @property
    def positive(self) -> np.ndarray:
        return self.frames + np.float32(self.floor)

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Equal activations and the first dictionary, whose product has mean one."""
        n_components, n_bins = self.first.shape
        activations = np.full((len(self.frames), n_components), 1 / n_components, np.float32)
        return activations, (self.first * n_bins + self.floor).astype(np.float32)


def per_call(r: float, n_frames: int, n_frames_in_set: int) -> float:
    """The factor of one call such that a pass over the set keeps r of the past."""
    return float(r ** (n_frames / n_frames_in_set))


# ---- ondes ----


def _fit(model: ondes.OnlineNMF, task: Task, watch: Watch) -> None:
    """`fit` without end; the watch looks after every update."""

    def after_update(model: ondes.OnlineNMF) -> None:
        watch.tick(model.n_frames_seen_ / len(task.frames), model.components_)

    model.set_params(n_passes=10**9, random_state=task.seed, n_jobs=task.threads)
    model.set_params(callback=after_update)
    watch.start()
    model.fit(task.frames)


def ondes_default(task: Task, watch: Watch) -> None:
    _fit(ondes.OnlineNMF(len(task.first), beta_loss=task.beta_loss), task, watch)


def ondes_paper(task: Task, watch: Watch) -> None:
    """Warm restarts where the paper has them, else fresh ones."""
    restarts = "warm" if task.warm else "fresh"
    model = ondes.OnlineNMF.paper(len(task.first), batch_size=BATCH, r=R, restarts=restarts)
    _fit(model, task, watch)


def ondes_batch(task: Task, watch: Watch) -> None:
    _fit(ondes.OnlineNMF.batch(len(task.first)), task, watch)


# ---- scikit-learn ----


def _sklearn_settings(task: Task) -> dict[str, object]:
    return {"n_components": len(task.first), "init": "custom", "beta_loss": task.beta_loss,
            "tol": 0, "random_state": task.seed}  # fmt: skip


def minibatch_fit(task: Task, watch: Watch) -> None:
    from sklearn.decomposition import MiniBatchNMF

    n_batches = -(-len(task.frames) // BATCH)

    class Watched(MiniBatchNMF):
        """The same `fit`; its test for convergence is called after each mini-batch."""

        def _minibatch_convergence(self, X, batch_cost, H, H_buffer, n_samples, step, n_steps):
            stop = super()._minibatch_convergence(
                X, batch_cost, H, H_buffer, n_samples, step, n_steps
            )
            watch.tick((step + 1) / n_batches, H)
            return stop

    frames, (activations, dictionary) = task.positive, task.start
    model = Watched(**_sklearn_settings(task), batch_size=BATCH, forget_factor=R, max_iter=10**9,
                    max_no_improvement=None)  # fmt: skip
    watch.start()
    model.fit_transform(frames, W=activations, H=dictionary)


def minibatch_partial_fit(task: Task, watch: Watch) -> None:
    from sklearn.decomposition import MiniBatchNMF

    frames, (activations, dictionary) = task.positive, task.start
    n_frames = len(frames)
    forget = per_call(R, min(BATCH, n_frames), n_frames)
    model = MiniBatchNMF(**_sklearn_settings(task), batch_size=BATCH, forget_factor=forget)
    watch.start()
    for number in itertools.count():
        for first in range(0, n_frames, BATCH):
            rows = slice(first, first + BATCH)
            model.partial_fit(frames[rows], W=activations[rows], H=dictionary)
            watch.tick(number + min(first + BATCH, n_frames) / n_frames, model.components_)


def batch_mu(task: Task, watch: Watch) -> None:
    """Batch steps depend on the two factors alone, so that calls can follow each other."""
    from sklearn.decomposition import NMF

    frames, (activations, dictionary) = task.positive, task.start
    model = NMF(**_sklearn_settings(task), solver="mu")
    done = 0
    watch.start()
    while True:
        n_steps = watch.rounds(done)
        model.set_params(max_iter=n_steps)
        activations = model.fit_transform(frames, W=activations, H=dictionary)
        dictionary = model.components_
        done += n_steps
        watch.tick(done, dictionary)


# ---- torch ----


def torchnmf_batch(task: Task, watch: Watch) -> None:
    import torch
    from torchnmf.nmf import NMF

    activations, dictionary = (torch.from_numpy(each) for each in task.start)
    frames = torch.from_numpy(task.positive)
    NMF(W=dictionary.T.contiguous(), H=activations[:1]).fit(frames[:1], beta=0, max_iter=1)
    model, done = (
        NMF(W=dictionary.T.contiguous(), H=activations),
        0,
    )  # autograd is initialised by now
    watch.start()
    while True:
        n_steps = watch.rounds(done)
        model.fit(frames, beta=0, tol=-np.inf, max_iter=n_steps)
        done += n_steps
        watch.tick(done, model.W.detach().numpy().T)


def diffsptk_batch(task: Task, watch: Watch) -> None:
    import torch
    from torch.utils.data import DataLoader

    diffsptk = import_diffsptk()

    activations, dictionary = task.start
    model = diffsptk.NMF(len(activations), dictionary.shape[1] - 1, len(dictionary), beta=0, eps=0)
    model.U[:], model.H[:] = torch.from_numpy(activations), torch.from_numpy(dictionary)
    # By default it would stack the frames one by one in every step.
    whole = DataLoader([(torch.from_numpy(task.positive),)], batch_size=None)
    done = 0
    watch.start()
    while True:
        model.n_iter = watch.rounds(done)
        model(whole)
        done += model.n_iter
        watch.tick(done, model.H.numpy())


def import_diffsptk() -> ModuleType:
    """Its NMF does not need torchaudio, which fails to load with a torch without CUDA."""
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = ModuleType("torchaudio")
    import diffsptk

    return diffsptk


# ---- oobss ----


def oobss_online(task: Task, watch: Watch) -> None:
    """Frame by frame; its ρ = r^(β/t) has the frames so far where the paper has N."""
    from oobss import OnlineISNMF

    n_frames, n_bins = task.frames.shape
    model = OnlineISNMF(len(task.first), n_bins, beta=100, forget=R, inner_iter=10, keep_h=False)
    model.W = task.first.T.copy()
    frames = task.frames.astype(np.float64)
    watch.start()
    for done in itertools.count(1):
        model.partial_fit(frames[(done - 1) % n_frames])
        watch.tick(done / n_frames, model.W.T)


@dataclass(frozen=True)
class Contestant:
    learn: Callable[[Task, Watch], None]
    title: str
    package: str  # which has to be installed
    ours: bool = False
    needs_all: bool = False  # activations of every frame in memory: large sets only in part


CONTESTANTS = {
    "default": Contestant(ondes_default, "ondes, the default", "ondes", ours=True),
    "paper": Contestant(ondes_paper, "ondes, the paper's algorithm", "ondes", ours=True),
    "batch": Contestant(ondes_batch, "ondes, batch", "ondes", ours=True, needs_all=True),
    "minibatch": Contestant(minibatch_fit, "scikit-learn MiniBatchNMF.fit", "sklearn"),
    "partial": Contestant(
        minibatch_partial_fit, "scikit-learn MiniBatchNMF.partial_fit", "sklearn"
    ),
    "mu": Contestant(batch_mu, 'scikit-learn NMF(solver="mu")', "sklearn", needs_all=True),
    "torchnmf": Contestant(torchnmf_batch, "torchnmf", "torchnmf", needs_all=True),
    "diffsptk": Contestant(diffsptk_batch, "diffsptk NMF", "diffsptk", needs_all=True),
    "oobss": Contestant(oobss_online, "oobss OnlineISNMF", "oobss"),
}
PEERS = tuple(name for name, contestant in CONTESTANTS.items() if not contestant.ours)


def levelled(frames: np.ndarray) -> np.ndarray:
    """Each frame at mean one: the divergence is invariant, but peers with floors are not."""
    return (frames / frames.mean(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)


def first_dictionary(
    frames: np.ndarray, n_components: int, seed: int, beta_loss: str = "itakura-saito"
) -> np.ndarray:
    """The default's own; peers that accept one get the same."""
    model = ondes.OnlineNMF(n_components, beta_loss=beta_loss, random_state=seed)
    return model.initialise(frames).components_


def run(name: str, task: Task, watch: Watch) -> Watch:
    """Let a contestant learn from frames at any level.

    A peer gets each frame and each bin at mean one, and its dictionary is scaled back: the
    divergence is invariant to both, but the peers' absolute floors are not, and many would diverge.
    That of Kullback-Leibler weighs bins by their level, so these stay as they are.
    """
    frames = levelled(task.frames)
    spectrum = np.ones(frames.shape[1], np.float32)
    if not CONTESTANTS[name].ours and task.beta_loss == "itakura-saito":
        spectrum = frames.mean(axis=0) + np.finfo(np.float32).tiny
    first = task.first / spectrum
    first /= first.sum(axis=1, keepdims=True)
    return run_plain(name, replace(task, frames=frames / spectrum, first=first), watch, spectrum)


def run_plain(name: str, task: Task, watch: Watch, spectrum: np.ndarray | float = 1.0) -> Watch:
    """Let a contestant learn from these very frames; its dictionary is multiplied by `spectrum`."""
    # A peer that diverges is a result: its curve shows it better than its warnings.
    with suppress(TimeUpError), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CONTESTANTS[name].learn(task, watch)
    watch.kept = [(seconds, passes, kept * spectrum) for seconds, passes, kept in watch.kept]
    return watch


def main() -> None:
    name, threads, jobs = sys.argv[1], int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
    if CONTESTANTS[name].package in ("torchnmf", "diffsptk"):
        import torch

        torch.set_num_threads(threads)
    for job in jobs:
        frames, beta_loss = np.load(job["frames"])[: job["n_frames"]], job["beta_loss"]
        if beta_loss == "kullback-leibler":
            frames = np.sqrt(frames)  # magnitudes, as separation has them
        first = first_dictionary(frames, job["n_components"], job["seed"], beta_loss)
        task = Task(frames, first, job["seed"], threads, job["warm"], beta_loss=beta_loss)
        watch = Watch(job["budget_s"], job["max_passes"] or np.inf, threads)
        if job["plain"]:
            run_plain(name, replace(task, frames=frames / frames.mean(), floor=PLAIN_FLOOR), watch)
        else:
            run(name, task, watch)
        seconds, passes, dictionaries = zip(*watch.kept, strict=True)
        np.savez(job["out"], seconds=seconds, passes=passes, dictionaries=dictionaries)


def environment(threads: int) -> dict[str, str]:
    """Variables that limit every library of a process to so many threads."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads))}


if __name__ == "__main__":
    main()
