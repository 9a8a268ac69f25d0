"""What a step asks of the data: both parts of the gradient and the divergence, at activations.

Three ways to find the same: over all entries; for Frobenius by Gram matrices, of which no step
costs more with more bins; for Kullback-Leibler over the entries of sparse frames that are not zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ondes.nmf.divergence import Array, LevelledFrames
from ondes.nmf.problem import Problem
from ondes.nmf.sparse import SparseFrames
from ondes.rebatch import slices

__all__ = ["Objective", "Sums", "Terms", "blocks", "known_part", "objective", "sparse_sums"]

BLOCK = 1024  # frames at a time: temporaries stay small, float32 sums stay short
LEAST_SHARE = 1e-6  # of a component's mean row, where its entries count
BLOCK_ENTRIES = 2**22  # and so many entries of sparse frames, where all must be visited


class Terms(NamedTuple):
    """At activations h: Σ w v y^(β−2) and Σ w y^(β−1), (n, n_components), and the divergences."""

    numerator: Array
    denominator: Array
    fit: Array


class Sums(NamedTuple):
    """Over frames: Σ h v y^(β−2) and Σ h y^(β−1), (n_components, n_bins), by their weights."""

    weighted: Array
    inverse: Array


class Objective(Protocol):
    """The objective of some frames as a function of their activations."""

    def fresh_start(self) -> Array:
        """Equal activations at the gain that minimises the divergence, one for each frame.

        With weights of entries one for each component, (n, n_components).
        """
        ...

    def at(self, point: Array, rows: Array) -> Terms:
        """The terms of a step of some of the frames from `point`."""
        ...

    def divergences(self, activations: Array) -> Array:
        """d(ε + v, ε + h W), one float64 value per frame."""
        ...

    def sums(self, activations: Array, counted: Array) -> Sums:
        """What the statistics need of all frames; `counted` are h times the frames' weights."""
        ...


def objective(frames: LevelledFrames, problem: Problem) -> Objective:
    """The quickest way for these frames and this divergence."""
    beta, is_sparse = problem.divergence.beta, isinstance(frames.values, SparseFrames)
    if beta == 2 and frames.weights is None:
        return Quadratic(frames, problem)
    if is_sparse and beta == 1:
        return SparseKullbackLeibler(frames, problem)
    if is_sparse:
        frames = replace(frames, values=frames.values.toarray())
    return Dense(frames, problem)


def blocks(frames: LevelledFrames) -> list[slice]:
    """The frames, so many at a time."""
    n_bins = frames.values.shape[1]
    is_sparse = isinstance(frames.values, SparseFrames)
    most = max(1, min(BLOCK, BLOCK_ENTRIES // n_bins)) if is_sparse else BLOCK
    return list(slices(len(frames), most))


def known_part(frames: LevelledFrames, problem: Problem) -> Array:
    """The model without any component: ε, and the known background."""
    dtype = frames.values.dtype
    if problem.background is None:
        return np.full((1, 1), problem.floor, dtype=dtype)
    scaled = np.outer(1 / frames.level, problem.background) + problem.floor
    return scaled.astype(dtype)


class Dense:
    """Over all entries: equation (1), with ε as in Algorithm 1, each by its weight."""

    def __init__(self, frames: LevelledFrames, problem: Problem) -> None:
        dtype = frames.values.dtype
        self._problem, self._weights = problem, frames.weights
        self._dictionary = problem.dictionary.astype(dtype)
        self._target = frames.values + dtype.type(problem.floor)
        self._known = np.broadcast_to(known_part(frames, problem), self._target.shape)

    def fresh_start(self) -> Array:
        problem, dtype = self._problem, self._target.dtype
        n_components, n_bins = problem.dictionary.shape
        even, beta = n_bins / n_components, problem.divergence.beta
        if self._weights is not None:
            return self._start_of_known(even, beta)
        model = (even * problem.dictionary.sum(axis=0) + problem.floor).astype(dtype)
        if beta == 0:
            gain = np.sum(self._target / model, axis=1) / n_bins
        else:
            gain = self._target @ model ** (beta - 1) / np.sum(model**beta)
        start: Array = dtype.type(even) * gain
        return start

    def _start_of_known(self, even: float, beta: float) -> Array:
        """Components that are equal where entries count, since the others are as if absent."""
        weights, dictionary = self._weights, self._dictionary
        shares = weights @ dictionary.T
        shares /= weights.mean(axis=1, keepdims=True)
        first = weights.dtype.type(even) / np.maximum(shares, LEAST_SHARE)
        model = first @ dictionary + weights.dtype.type(self._problem.floor)
        above = np.sum(weights * self._target * model ** (beta - 1), axis=1, dtype=np.float64)
        gain: Any = above / np.sum(weights * model**beta, axis=1, dtype=np.float64)
        start: Array = first * gain[:, None]
        return start

    def at(self, point: Array, rows: Array) -> Terms:
        divergence, dictionary = self._problem.divergence, self._dictionary
        model = point @ dictionary + self._known[rows]
        is_watched = bool(self._problem.solver.momentum)
        terms = divergence.step_terms(self._target[rows], model, cost=is_watched)
        if self._weights is not None:
            terms = terms.times(self._weights[rows])
        fit: Any = np.zeros(len(point))
        if is_watched:
            fit = np.sum(terms.cost, axis=1, dtype=np.float64)
        return Terms(terms.data @ dictionary.T, terms.model @ dictionary.T, fit)

    def divergences(self, activations: Array) -> Array:
        divergence, model = self._problem.divergence, self._model(activations)
        if self._weights is None:
            return divergence.value(self._target, model)
        terms = divergence.step_terms(self._target, model, cost=True).times(self._weights)
        found: Array = terms.cost.sum(axis=1, dtype=np.float64)
        return found

    def sums(self, activations: Array, counted: Array) -> Sums:
        terms = self._problem.divergence.step_terms(self._target, self._model(activations))
        if self._weights is not None:
            terms = terms.times(self._weights)
        return Sums(counted.T @ terms.data, (counted.T @ terms.model).astype(np.float64))

    def _model(self, activations: Array) -> Array:
        model: Array = activations @ self._dictionary + self._known
        return model


class Quadratic:
    """Frobenius: ½ ‖v − h W‖² = ½ ‖v‖² − h · W v + ½ h · (W Wᵀ) h.

    W v and ‖v‖² are found once. ε, on both sides, cancels from the divergence.
    """

    def __init__(self, frames: LevelledFrames, problem: Problem) -> None:
        self._dictionary, self._floor = problem.dictionary, problem.floor
        self._values = frames.values
        dtype = frames.values.dtype
        self._gram = problem.dictionary @ problem.dictionary.T
        self._row_sums = problem.dictionary.sum(axis=1)
        data = _matrix(frames.values)
        self._projected = (data @ problem.dictionary.T.astype(dtype)).astype(np.float64)
        squares = _squares(frames.values)
        # The background is a row of the dictionary whose activation is known.
        self._spectrum = problem.background
        if problem.background is not None:
            self._gain = 1 / frames.level
            self._across = self._dictionary @ problem.background
            with_data = data @ problem.background
            squares = squares - 2 * self._gain * with_data
            squares += np.square(self._gain) * float(problem.background @ problem.background)
        self._squares = squares

    def fresh_start(self) -> Array:
        n_components, n_bins = self._dictionary.shape
        even = n_bins / n_components
        model = even * self._dictionary.sum(axis=0) + self._floor
        above = _matrix(self._values) @ model + self._floor * model.sum()
        start: Array = even * above / (model @ model)
        return start

    def at(self, point: Array, rows: Array) -> Terms:
        point = point.astype(np.float64)
        offset = self._floor * self._row_sums
        numerator, below = self._projected[rows] + offset, point @ self._gram
        if self._spectrum is None:
            denominator, inner = below + offset, self._projected[rows]
        else:
            known = self._gain[rows, None] * self._across
            denominator, inner = below + offset + known, self._projected[rows] - known
        fit = self._squares[rows] / 2 + np.sum(point * (below / 2 - inner), axis=1)
        return Terms(numerator, denominator, fit)

    def divergences(self, activations: Array) -> Array:
        if isinstance(self._values, SparseFrames):
            return np.maximum(self.at(activations, np.arange(len(activations))).fit, 0)
        model = activations @ self._dictionary  # no digits are lost where the model is close
        if self._spectrum is not None:
            model += np.outer(self._gain, self._spectrum)
        difference = self._values - model
        squares: Array = np.einsum("tf,tf->t", difference, difference) / 2
        return squares

    def sums(self, activations: Array, counted: Array) -> Sums:
        h = counted.astype(np.float64)
        floor = self._floor * h.sum(axis=0)[:, None]
        weighted = np.asarray((_matrix(self._values).T @ counted).T, dtype=np.float64) + floor
        inverse = (h.T @ activations.astype(np.float64)) @ self._dictionary + floor
        if self._spectrum is not None:
            inverse = inverse + np.outer(self._gain @ h, self._spectrum)
        return Sums(weighted, inverse)


class SparseKullbackLeibler:
    """Where v is zero, only Σ y counts: a constant for each component.

    There ε is left out of the data, since it is less than rounding; in sums over frames it stays
    as what keeps an entry of the dictionary from becoming zero.
    """

    def __init__(self, frames: LevelledFrames, problem: Problem) -> None:
        self._frames, self._problem = frames.values, problem
        self._weights = frames.relative_weights
        self._target = frames.values.values + frames.values.dtype.type(problem.floor)
        self._bins, self._rows = frames.values.bins, frames.values.rows
        self._dictionary = problem.dictionary.astype(frames.values.dtype)
        self._row_sums = problem.dictionary.sum(axis=1)
        self._known = np.full(len(self._bins), problem.floor, dtype=frames.values.dtype)
        self._total = np.full(len(frames), problem.floor * frames.values.shape[1])  # Σ y − v
        self._total -= frames.values.sums(self._target)
        if problem.background is not None:
            gain = 1 / frames.level
            self._known += (gain[self._rows] * problem.background[self._bins]).astype(
                self._known.dtype
            )
            self._total += gain * problem.background.sum()

    def fresh_start(self) -> Array:
        n_components, n_bins = self._dictionary.shape
        total = self._frames.sums(self._target)
        total += self._problem.floor * (n_bins - np.diff(self._frames.matrix.indptr))
        even = n_bins / n_components
        start: Array = even * total / (even * self._row_sums.sum() + n_bins * self._problem.floor)
        return start

    def at(self, point: Array, rows: Array) -> Terms:
        whole = np.zeros((len(self._frames), point.shape[1]), point.dtype)
        whole[rows] = point  # those of the others are not asked for
        ratio = self._ratio(whole)
        numerator = self._frames.with_values(ratio).matrix @ self._dictionary.T
        denominator = np.broadcast_to(self._row_sums.astype(point.dtype), numerator.shape)
        return Terms(numerator[rows], denominator[rows], self._fit(whole, ratio)[rows])

    def divergences(self, activations: Array) -> Array:
        return self._fit(activations, self._ratio(activations))

    def sums(self, activations: Array, counted: Array) -> Sums:
        ratio = self._frames.with_values(self._ratio(activations))
        weighted = (ratio.matrix.T @ counted).T.astype(np.float64)
        return sparse_sums(weighted, activations, self._problem, self._weights)

    def _ratio(self, activations: Array) -> Array:
        model = self._known.copy()
        for row, activation in zip(self._dictionary, activations.T, strict=True):
            model += row[self._bins] * activation[self._rows]
        ratio: Array = self._target / model
        return ratio

    def _fit(self, activations: Array, ratio: Array) -> Array:
        logs = self._frames.sums(self._target * np.log(ratio))
        fit: Array = logs + self._total + activations.astype(np.float64) @ self._row_sums
        return fit


def sparse_sums(
    weighted: Array, activations: Array, problem: Problem, weights: Array | None = None
) -> Sums:
    """Those of Kullback-Leibler, from Σ h v / y over the entries that are not zero.

    The others have ε / y of their own, about ε / (w h + ε) with h the component's mean: without it
    an entry that no frame has yet would end at zero, where it could never grow.
    """
    if weights is None:
        total = activations.sum(axis=0, dtype=np.float64)[:, None]
        mean = total / max(1, len(activations))
    else:
        total = (activations.T.astype(np.float64) @ weights)[:, None]
        mean = total / weights.sum(dtype=np.float64)
    rest = problem.floor * total / (problem.dictionary * mean + problem.floor)
    return Sums(weighted + rest, np.broadcast_to(total, weighted.shape))


def _matrix(values: Array) -> Array:
    return values.matrix if isinstance(values, SparseFrames) else values


def _squares(values: Array) -> Array:
    if isinstance(values, SparseFrames):
        return values.sums(np.square(values.values, dtype=np.float64))
    squares: Array = np.einsum("tf,tf->t", values, values, dtype=np.float64)
    return squares
