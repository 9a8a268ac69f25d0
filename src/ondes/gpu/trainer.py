"""The dictionary and its statistics on a device: one update per mini-batch, with no host sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ondes.gpu.frames import ShuffledFrames
from ondes.nmf.backends import torch as backend
from ondes.nmf.backends.devices import Tensor, memory_errors, ready, torch, widest
from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineNMF
from ondes.nmf.statistics import Statistics
from ondes.training.batch_source import Update
from ondes.training.loop import INITIAL_FRAMES

__all__ = ["GpuTrainer", "initialise", "unsupported"]

_HEADROOM = 1.25  # how much larger than the first a round may be before buffers are reallocated


def unsupported(estimator: OnlineNMF) -> str | None:
    """What of an estimator's settings cannot be trained here, as a sentence, or None."""
    if estimator.backend != "torch":
        return f"backend={estimator.backend!r} does not use a device."
    if estimator.dictionary_penalty is not None:
        return "A dictionary_penalty is solved on the host, batch by batch."
    return None


def initialise(
    estimator: OnlineNMF,
) -> Callable[[Iterator[ShuffledFrames]], list[ShuffledFrames]]:
    """What draws the first dictionary from the first batches, as the host does."""

    def draw(rounds: Iterator[ShuffledFrames]) -> list[ShuffledFrames]:
        first: list[ShuffledFrames] = []
        for frames in rounds:
            first.append(frames)
            if sum(len(each.power) for each in first) >= INITIAL_FRAMES:
                break
        sizes = [n for each in first for n in each.batch_sizes]
        if sizes:
            ends = np.cumsum(sizes)
            n_taken = ends[min(int(np.searchsorted(ends, INITIAL_FRAMES)), len(ends) - 1)]
            estimator.initialise(torch.cat([each.power for each in first])[:n_taken].cpu().numpy())
        return first

    return draw


class GpuTrainer:
    """Trains an estimator on its device.

    What changes from update to update is on the device too: where the batch begins, how much the
    past counts. On CUDA a whole update is thus one recorded graph, replayed batch by batch.

    Parameters
    ----------
    estimator : OnlineNMF
        With ``backend="torch"``; after every round it has the dictionary and statistics.
    """

    def __init__(self, estimator: OnlineNMF) -> None:
        self._estimator = estimator
        self._is_set_up = False

    def step(self, frames: ShuffledFrames) -> Update:
        """One update for each batch of a round; then dictionary and statistics come back."""
        if not frames.batch_sizes:
            return Update(0.0, 0.0)
        if not self._is_set_up:
            self._set_up()
        with memory_errors(self._device):
            return self._train(frames)

    def _set_up(self) -> None:
        self._is_set_up = True
        estimator, settings = self._estimator, self._estimator.settings
        self._device = torch.device(estimator.device or "cpu")
        self._wide = widest(self._device)
        self._settings = settings
        self._problem = settings.problem(estimator.components_)
        state = estimator.state()
        self._n_seen, self._n_remembered = state.n_frames_seen, state.statistics.n_frames
        self._dictionary = self._tensor(state.components)
        self._statistics = Statistics(
            self._tensor(state.statistics.numerator),
            self._tensor(state.statistics.denominator),
            self._tensor(state.statistics.divergence),
            0.0,  # counted on the host
            state.statistics.beta,
        )
        self._round_divergence = self._tensor(0.0)
        self._background: Tensor | None = None
        if self._problem.background is not None:
            row, self._background_mean = backend.background_row(self._problem)
            self._background = torch.tensor(row, dtype=torch.float32, device=self._device)
        self._allocate(0)

    def _train(self, frames: ShuffledFrames) -> Update:
        factors = []
        for n in frames.batch_sizes:
            n_past = self._n_seen + self._settings.prior_frames
            factors.append(self._settings.forgetting.factor(n_past, float(n), None))
            self._n_remembered = self._n_remembered * factors[-1] + n
            self._n_seen += n
        if len(frames.values) > len(self._values):
            self._allocate(int(_HEADROOM * len(frames.values)))
        self._values[: len(frames.values)] = frames.values
        self._level[: len(frames.level)] = frames.level
        self._factors[: len(factors)] = self._tensor(factors)
        for each in (self._first, self._number, self._round_divergence):
            each.zero_()
        for n in frames.batch_sizes:
            self._advance(n)
        self._store()
        return Update(float(sum(frames.batch_sizes)), float(self._round_divergence))

    def _store(self) -> None:
        numerator, denominator = self._statistics.numerator, self._statistics.denominator
        dictionary, numerator, denominator = (
            each.cpu().double().numpy().copy()
            for each in (self._dictionary, numerator, denominator)
        )
        divergence = float(self._statistics.divergence)
        self._estimator.restore(
            replace(
                self._estimator.state(),
                components=dictionary,
                statistics=Statistics(
                    *(numerator, denominator, divergence, self._n_remembered),
                    self._statistics.beta,
                ),
                n_frames_seen=self._n_seen,
                backend=f"torch ({ready(str(self._device))})",
            )
        )

    def _tensor(self, values: Array | list[float] | float) -> Tensor:
        return torch.tensor(values, dtype=self._wide, device=self._device)

    def _allocate(self, n_frames: int) -> None:
        n_bins = self._dictionary.shape[1]
        self._values = torch.ones((n_frames, n_bins), device=self._device)
        self._level = torch.ones(n_frames, dtype=self._wide, device=self._device)
        self._factors = torch.ones(n_frames, dtype=self._wide, device=self._device)
        self._first = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._number = torch.zeros_like(self._first)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _advance(self, n: int) -> None:
        if n != self._estimator.batch_size or not self._is_recordable:
            self._update(n)
            return
        if self._graph is None:
            self._graph = self._record(n)
        self._graph.replay()

    @property
    def _is_recordable(self) -> bool:
        """Whether an update never needs the host: the plain solve may, with a tol or a penalty."""
        is_simple = self._problem.penalty is None and self._problem.solver.tol == 0
        is_fused = backend.is_fused(self._problem, self._values)
        return self._device.type == "cuda" and (is_simple or is_fused)

    def _record(self, n: int) -> torch.cuda.CUDAGraph:
        statistics = self._statistics
        state = (
            *(self._dictionary, statistics.numerator, statistics.denominator),
            *(statistics.divergence, self._round_divergence, self._first, self._number),
        )
        before = [each.clone() for each in state]
        other = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        other.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(other):  # kernels are compiled here, which cannot be recorded
            self._update(n)
        torch.cuda.current_stream(self._device).wait_stream(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._update(n)
        for now, then in zip(state, before, strict=True):
            now.copy_(then)
        return graph

    def _update(self, n: int) -> None:
        """One update on the next `n` frames, as `OnlineNMF.partial_fit` makes it."""
        rows = self._first + torch.arange(n, device=self._device)
        background_activation = None
        if self._background is not None:
            background_activation = (self._background_mean / self._level[rows]).float()
        _, sums = backend.solve(
            self._values[rows],
            self._dictionary,
            self._problem,
            background=self._background,
            background_activation=background_activation,
            precision=self._estimator.precision or "tf32",
            with_sums=True,
        )
        assert sums is not None
        new = Statistics.from_sums(self._dictionary, *sums, 0.0, self._statistics.beta)
        dictionary, statistics, _ = update(
            self._dictionary,
            self._statistics,
            new,
            self._factors[self._number][0],
            exponent=self._estimator.dictionary_exponent,
            n_fixed=self._settings.n_fixed,
            is_sparse=self._settings.sparsity > 0,
            xp=torch,
        )
        self._round_divergence += sums.divergence
        self._dictionary.copy_(dictionary)
        self._statistics.numerator.copy_(statistics.numerator)
        self._statistics.denominator.copy_(statistics.denominator)
        self._statistics.divergence.copy_(statistics.divergence)
        self._first += n
        self._number += 1
