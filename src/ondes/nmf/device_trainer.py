"""The dictionary and its statistics on a device: one update per batch, with no host sync.

What changes from update to update is on the device too: the frames of the batch, how much the past
counts. On CUDA several updates are thus one recorded graph, which is replayed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends import tensors
from ondes.nmf.backends import torch as backend
from ondes.nmf.backends.devices import Tensor, memory_errors, ready, torch, widest
from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import FRAME_WEIGHTS, Array
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics, Trained
from ondes.rebatch import slices

__all__ = ["DeviceTrainer", "trainer_for"]

CHUNK = 2**24  # entries that are put in order and levelled at a time
SPAN = 2**28  # entries of an array that are on the device at a time, where it is too large as whole
REPEATS = 8  # updates in one graph


class DeviceTrainer:
    """Trains a dictionary on a device.

    Parameters
    ----------
    settings : Settings
        Of ``backend="torch"``, without a penalty on the dictionary.
    n_bins : int
    dtype : torch.dtype
        Of the frames.

    Examples
    --------
    >>> import ondes
    >>> settings = ondes.OnlineNMF(2, backend="torch").settings
    >>> trainer = DeviceTrainer(settings, 3, torch.float32)
    >>> trainer.load(np.full((2, 3), 1 / 3), Statistics.zeros(2, 3), 0)
    >>> trainer.train(torch.rand(200, 3)).n_frames, trainer.n_frames_seen
    (200.0, 200)
    """

    def __init__(self, settings: Settings, n_bins: int, dtype: torch.dtype) -> None:
        self._settings, self._dtype = settings, dtype
        self._identity = _identity(settings)
        self.device = torch.device(settings.compute.device or "cpu")
        self.backend = f"torch ({ready(str(self.device))})"
        self._wide = widest(self.device)
        self._beta = settings.divergence.beta
        shape = settings.n_components, n_bins
        self._problem = settings.problem(np.zeros(shape))
        self._state = torch.zeros((3, *shape), dtype=self._wide, device=self.device)
        self._background: Tensor | None = None
        self._background_mean = 0.0
        if self._problem.background is not None:
            row, self._background_mean = backend.background_row(self._problem)
            self._background = torch.tensor(row, dtype=dtype, device=self.device)
        self._graphs: dict[tuple[int, int, bool], _Graph] = {}
        self._n_met: dict[tuple[int, int, bool], int] = {}
        self._n_remembered, self._divergence = 0.0, 0.0
        self.n_frames_seen: float = 0

    def serves(self, settings: Settings, n_bins: int, dtype: torch.dtype) -> bool:
        """Whether this trainer would be made for these arguments."""
        same = n_bins == self._state.shape[2] and dtype == self._dtype
        return same and _are_equal(self._identity, _identity(settings))

    # ---- from the host and back ----

    def load(self, components: Array, statistics: Statistics, n_frames_seen: float) -> None:
        """Go on from here."""
        parts = np.stack([components, statistics.numerator, statistics.denominator])
        self._state.copy_(torch.from_numpy(parts).to(self._wide))
        self._n_remembered = float(statistics.n_frames)
        self._divergence = float(statistics.divergence)
        self.n_frames_seen = n_frames_seen

    def fetch(self) -> tuple[Array, Statistics]:
        """The dictionary and the statistics, float64 on the host."""
        components, numerator, denominator = (
            each.copy() for each in self._state.cpu().double().numpy()
        )
        counts = self._divergence, self._n_remembered
        return components, Statistics(numerator, denominator, *counts, self._beta)

    # ---- training ----

    def train(
        self,
        frames: Tensor | Array,
        order: NDArray[np.intp] | None = None,
        n_frames_in_set: float | None = None,
        sample_weight: Array | None = None,
    ) -> Trained:
        """One update per `batch_size` frames, as `OnlineNMF.partial_fit` makes them.

        The weights are those of the frames in this order.
        """
        with memory_errors(self.device):
            if isinstance(frames, Tensor):
                return self._train(frames, order, n_frames_in_set, sample_weight)
            if order is None:
                order = np.arange(len(frames))
            size = self._settings.batch_size or len(order)
            span = max(1, SPAN // frames.shape[1] // size) * size
            parts = [
                self._train(
                    tensors.upload(np.ascontiguousarray(frames[order[rows]]), self.device),
                    None,
                    n_frames_in_set,
                    None if sample_weight is None else sample_weight[rows],
                )
                for rows in slices(len(order), span)
            ]
            return Trained(*(sum(each) for each in zip(*parts, strict=True)))

    def _train(
        self,
        frames: Tensor,
        order: NDArray[np.intp] | None,
        n_frames_in_set: float | None,
        sample_weight: Array | None,
    ) -> Trained:
        problem = self._problem
        bins, exponent = problem.feature_weight, problem.level_exponent
        level = tensors.levels(frames, problem.background, bins)
        rows, sizes, counts = self._batches(level, order, sample_weight)
        n_learned = [float(n) for n in sizes]
        if counts is not None:
            ends = np.cumsum(sizes)[:-1]
            n_learned = [float(each.sum()) for each in np.split(counts, ends)]
        factors = []
        for n in n_learned:
            n_past = self.n_frames_seen + self._settings.prior_frames
            factors.append(self._settings.forgetting.factor(n_past, n, n_frames_in_set))
            n_seen = self.n_frames_seen + n
            self.n_frames_seen = int(n_seen) if n_seen.is_integer() else n_seen
        fading = torch.tensor(factors, dtype=self._wide, device=self.device)
        has_weights = bins is not None or tensors.has_missing(cast(Any, frames))
        found, first, done = [], 0, 0
        for n_batches in self._chunks(sizes):
            several = slice(done, done + n_batches)
            last = first + sum(sizes[several])
            taken = slice(first, last) if rows is None else rows[first:last]
            given, levels = frames[taken], level[taken]
            values, weights, frame_weights = tensors.levelled(given, levels), None, None
            if has_weights:
                weights = tensors.entry_weights(given, bins)
                values = values.nan_to_num(nan=1.0)
            if exponent:
                frame_weights = (levels**exponent).clamp(*FRAME_WEIGHTS)
            if counts is not None:
                each = torch.tensor(counts[first:last], dtype=self._wide, device=self.device)
                frame_weights = each if frame_weights is None else frame_weights * each
            known = None
            if self._background is not None:
                known = (self._background_mean / levels).to(self._dtype)
            batches = _Frames(values, known, weights, frame_weights)
            found += self._advance(batches, fading[several], sizes[several])
            first, done = last, done + n_batches
        divergences = torch.cat(found).tolist() if found else []
        for factor, n, divergence in zip(factors, n_learned, divergences, strict=True):
            self._n_remembered = self._n_remembered * factor + n
            self._divergence = self._divergence * factor + divergence
        return Trained(float(sum(n_learned)), float(sum(divergences)))

    def _batches(
        self, level: Tensor, order: NDArray[np.intp] | None, sample_weight: Array | None
    ) -> tuple[Tensor | None, list[int], Array | None]:
        """The frames that count in order, how many each batch has, and the weights of all.

        The frames are None where they are all as they are.
        """
        is_active = level > 0
        n_frames = len(level) if order is None else len(order)
        size = self._settings.batch_size or n_frames
        has_weight = sample_weight is None or bool((sample_weight > 0).all())
        if has_weight and bool(is_active.all()):
            sizes = [rows.stop - rows.start for rows in slices(n_frames, size)]
            taken = None if order is None else torch.from_numpy(order).to(self.device)
            return taken, sizes, sample_weight
        active = is_active.cpu().numpy()
        order = np.arange(n_frames) if order is None else order
        counts = active[order] if sample_weight is None else active[order] & (sample_weight > 0)
        sizes = [int(counts[rows].sum()) for rows in slices(n_frames, size)]
        left = None if sample_weight is None else sample_weight[counts]
        return torch.tensor(order[counts], device=self.device), [n for n in sizes if n], left

    def _chunks(self, sizes: list[int]) -> list[int]:
        """How many batches are put in order at a time."""
        if not sizes:
            return []
        n = max(REPEATS, CHUNK // (self._state.shape[2] * max(sizes)) // REPEATS * REPEATS)
        return [rows.stop - rows.start for rows in slices(len(sizes), n)]

    def _advance(self, frames: _Frames, factors: Tensor, sizes: list[int]) -> list[Tensor]:
        """One update per batch; returns the divergences, as tensors of several each."""
        found, first, done = [], 0, 0
        for n, group in itertools.groupby(sizes):
            n_left = len(list(group))
            while n_left:
                repeats = REPEATS if n_left >= REPEATS else 1
                rows, several = slice(first, first + repeats * n), slice(done, done + repeats)
                found.append(self._several(frames.part(rows), factors[several]))
                first, done, n_left = rows.stop, several.stop, n_left - repeats
        return found

    def _several(self, frames: _Frames, factors: Tensor) -> Tensor:
        shape = len(frames.values), len(factors), frames.weights is not None
        if shape not in self._graphs:
            # A graph pays where a size recurs; silent frames make batches of many sizes.
            self._n_met[shape] = self._n_met.get(shape, 0) + 1
            if self._n_met[shape] < 2 or not self._is_recordable(frames):
                return self._update(frames, factors)
            self._graphs[shape] = self._record(frames, factors)
        graph = self._graphs[shape]
        for kept, now in zip((*graph.frames, graph.factors), (*frames, factors), strict=True):
            if kept is not None and now is not None:
                kept.copy_(now)
        graph.graph.replay()
        return graph.divergences.clone()

    def _is_recordable(self, frames: _Frames) -> bool:
        """Whether an update never needs the host: the plain solve may, with a tol or a penalty."""
        is_simple = self._problem.penalty is None and self._problem.solver.tol == 0
        is_fused = frames.weights is None and backend.is_fused(self._problem, frames.values)
        return self.device.type == "cuda" and (is_simple or is_fused)

    def _record(self, frames: _Frames, factors: Tensor) -> _Graph:
        given = frames.map(torch.clone)
        factors = factors.clone()
        before = self._state.clone()
        other = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        other.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(other):  # kernels are compiled here, which cannot be recorded
            self._update(given, factors)
        torch.cuda.current_stream(self.device).wait_stream(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            divergences = self._update(given, factors)
        self._state.copy_(before)
        return _Graph(graph, given, factors, divergences)

    def _update(self, frames: _Frames, factors: Tensor) -> Tensor:
        """As many updates as there are factors, of as many frames each; their divergences."""
        several = slices(len(frames.values), len(frames.values) // len(factors))
        is_even = frames.weights is None and frames.frame_weights is None
        is_fused = is_even and backend.is_fused(self._problem, frames.values)
        update_by = self._update_fused if is_fused else self._update_plainly
        return torch.cat(
            [
                update_by(frames.part(rows), factor)
                for rows, factor in zip(several, torch.split(factors, 1), strict=True)
            ]
        )

    def _update_fused(self, frames: _Frames, factor: Tensor) -> Tensor:
        from ondes.nmf.backends import fused

        return fused.learn(
            frames.values,
            self._state,
            factor,
            self._problem,
            exponent=self._settings.dictionary_exponent,
            n_fixed=self._settings.n_fixed,
            background=self._background,
            background_activation=frames.known,
            precision=self._settings.compute.precision or "tf32",
        )

    def _update_plainly(self, frames: _Frames, factor: Tensor) -> Tensor:
        settings, (dictionary, above, below) = self._settings, self._state
        _, sums = backend.solve(
            frames.values,
            dictionary,
            self._problem,
            background=self._background,
            background_activation=frames.known,
            weights=frames.weights,
            frame_weights=frames.frame_weights,
            precision=settings.compute.precision or "tf32",
            with_sums=True,
        )
        assert sums is not None
        gradient = None if self._problem.penalty is None else sums.penalty_gradient
        new = Statistics.from_sums(
            dictionary, sums.weighted, sums.inverse, gradient, None, None, self._beta
        )
        dictionary, statistics, _ = update(
            dictionary,
            Statistics(above, below, None, None, self._beta),
            new,
            factor,
            exponent=settings.dictionary_exponent,
            n_fixed=settings.n_fixed,
            is_sparse=settings.sparsity > 0,
            xp=torch,
        )
        for kept, now in zip(
            self._state, (dictionary, statistics.numerator, statistics.denominator), strict=True
        ):
            kept.copy_(now)
        return sums.divergence.reshape(1)


def trainer_for(
    settings: Settings, frames: Tensor | Array, before: DeviceTrainer | None
) -> DeviceTrainer:
    """The trainer of before, with its recorded graphs, if it serves these frames; or a new one."""
    dtype = frames.dtype if isinstance(frames, Tensor) else getattr(torch, frames.dtype.name)
    arguments = settings, int(frames.shape[1]), dtype
    is_same = before is not None and before.serves(*arguments)
    return before if before is not None and is_same else DeviceTrainer(*arguments)


class _Frames(NamedTuple):
    """Levelled frames, the background's activation in each, and their weights."""

    values: Tensor
    known: Tensor | None
    weights: Tensor | None
    frame_weights: Tensor | None

    def map(self, change: Callable[[Tensor], Tensor]) -> _Frames:
        """All of them changed, but those that are None."""
        rest = (None if each is None else change(each) for each in self[1:])
        return _Frames(change(self.values), *rest)

    def part(self, rows: slice) -> _Frames:
        """Some of the frames."""
        return self.map(lambda each: each[rows])


class _Graph(NamedTuple):
    """Recorded updates, with the tensors that they read and write."""

    graph: torch.cuda.CUDAGraph
    frames: _Frames
    factors: Tensor
    divergences: Tensor


def _identity(settings: Settings) -> dict[str, object]:
    """The settings as values that later changes of them do not reach."""
    values = {name: value for name, value in vars(settings).items() if name != "prior"}
    return copy.deepcopy(values | {"prior_frames": settings.prior_frames})


def _are_equal(one: dict[str, object], other: dict[str, object]) -> bool:
    return all(_is_equal(value, other[name]) for name, value in one.items())


def _is_equal(one: Any, other: Any) -> bool:
    if hasattr(one, "__array__") or hasattr(other, "__array__"):
        return np.array_equal(one, other)
    return bool(one == other)
