"""The dictionary's course on a device: one update a mini-batch, none of which the host awaits."""

from __future__ import annotations

from ondes.card.frames import MixedFrames
from ondes.nmf import parameters
from ondes.nmf.backends import torch as backend
from ondes.nmf.backends.devices import Tensor, out_of_memory_said, ready, torch, widest
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF
from ondes.nmf.forgetting import GrowingMemory
from ondes.nmf.problem import Solver
from ondes.nmf.statistics import Statistics

_ROOM = 1.25  # what a round may have more than the first before buffers are made anew


class Course:
    """A model's dictionary and statistics on its device, and the updates that move them there.

    What changes from update to update is on the device too: where the batch begins, how much the
    past counts. On a CUDA card a whole update is thus one recorded graph, replayed batch by batch.
    """

    def __init__(self) -> None:
        self._is_begun = False

    def teach(self, model: OnlineISNMF, frames: MixedFrames) -> None:
        """One update for each batch of a round; then dictionary and statistics come back."""
        if not self._is_begun:
            self._begin(model)
        with out_of_memory_said(self._device):
            self._learn(frames)
            self._store(model)

    def _begin(self, model: OnlineISNMF) -> None:
        self._is_begun = True
        self._device = torch.device(model.device or "cpu")
        self._wide = widest(self._device)
        self._forgetting = model.forgetting or GrowingMemory()
        self._problem = parameters.problem_of(model, model.solver or Solver())
        self._precision = model.precision or "tf32"
        self._exponent, self._n_frozen = model.dictionary_exponent, parameters.n_frozen(model)
        self._batch_size = model.batch_size
        self._dictionary = self._here(model.components_)
        self._numerator = self._here(model.statistics_.numerator)
        self._denominator = self._here(model.statistics_.denominator)
        self._divergence = self._here(model.statistics_.divergence)
        self._n_seen, self._n_remembered = model.n_frames_seen_, model.statistics_.n_frames
        self._background: Tensor | None = None
        if self._problem.background is not None:
            row, self._background_mean = backend.background_row(self._problem)
            self._background = torch.tensor(row, dtype=torch.float32, device=self._device)
        self._make_room(0)

    def _learn(self, frames: MixedFrames) -> None:
        sizes = [n for n in frames.batch_sizes if n]
        factors = []
        for n in sizes:
            factors.append(self._forgetting.factor(self._n_seen, float(n), None))
            self._n_remembered = self._n_remembered * factors[-1] + n
            self._n_seen += n
        if len(frames.values) > len(self._values):
            self._make_room(int(_ROOM * len(frames.values)))
        self._values[: len(frames.values)] = frames.values
        self._level[: len(frames.level)] = frames.level
        self._factors[: len(factors)] = self._here(factors)
        self._first.zero_()
        self._number.zero_()
        for n in sizes:
            self._advance(n)

    def _store(self, model: OnlineISNMF) -> None:
        dictionary, numerator, denominator = (
            each.cpu().double().numpy().copy()
            for each in (self._dictionary, self._numerator, self._denominator)
        )
        divergence = float(self._divergence)
        model.components_ = dictionary
        model.statistics_ = Statistics(numerator, denominator, divergence, self._n_remembered)
        model.n_frames_seen_ = self._n_seen
        model.backend_ = f"torch ({ready(str(self._device))})"

    def _here(self, values: Array | list[float] | float) -> Tensor:
        return torch.tensor(values, dtype=self._wide, device=self._device)

    def _make_room(self, n_frames: int) -> None:
        n_bins = self._dictionary.shape[1]
        self._values = torch.ones((n_frames, n_bins), device=self._device)
        self._level = torch.ones(n_frames, dtype=self._wide, device=self._device)
        self._factors = torch.ones(n_frames, dtype=self._wide, device=self._device)
        self._first = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._number = torch.zeros_like(self._first)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _advance(self, n: int) -> None:
        if n != self._batch_size or not self._can_be_recorded:
            self._update(n)
            return
        if self._graph is None:
            self._graph = self._record(n)
        self._graph.replay()

    @property
    def _can_be_recorded(self) -> bool:
        """Whether an update asks nothing of the host: the plain solve may, at a stop or penalty."""
        is_simple = self._problem.penalty is None and self._problem.solver.tol == 0
        is_fused = backend.is_fused(self._problem, self._values)
        return self._device.type == "cuda" and (is_simple or is_fused)

    def _record(self, n: int) -> torch.cuda.CUDAGraph:
        state = (
            *(self._dictionary, self._numerator, self._denominator, self._divergence),
            *(self._first, self._number),
        )
        before = [each.clone() for each in state]
        beside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(beside):  # kernels are compiled here, which cannot be recorded
            self._update(n)
        torch.cuda.current_stream(self._device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._update(n)
        for now, then in zip(state, before, strict=True):
            now.copy_(then)
        return graph

    def _update(self, n: int) -> None:
        """What `OnlineISNMF.partial_fit` does with a batch, as written in `reference`."""
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
            precision=self._precision,
            with_sums=True,
        )
        assert sums is not None
        factor, squared = self._factors[self._number], self._dictionary.square()
        numerator = self._numerator * factor + squared * sums.weighted
        denominator = self._denominator * factor + sums.inverse + sums.pull[:, None]

        curvature = squared * denominator
        heard = (curvature > 0) & (numerator > 0)
        ratio = torch.where(heard, numerator / curvature, 1.0)
        moved = self._dictionary * ratio**self._exponent
        scale = moved.sum(dim=1, keepdim=True)
        moved[: self._n_frozen] = self._dictionary[: self._n_frozen]
        scale[: self._n_frozen] = 1

        torch.div(moved, scale, out=self._dictionary)
        torch.div(numerator, scale, out=self._numerator)
        torch.mul(denominator, scale, out=self._denominator)
        self._divergence.mul_(factor[0]).add_(sums.divergence)
        self._first += n
        self._number += 1
