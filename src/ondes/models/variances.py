"""Variances of the sources, from what is known of each: dictionaries or a trained separator.

Spatial methods alternate between demixing, given the variance of each source in every bin and
frame, and variances, given the power of each demixed source.
"""

from __future__ import annotations

import warnings
from collections import deque
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ondes.cores import each
from ondes.models.band_network import BandWeights
from ondes.models.masks import FLOOR
from ondes.models.model import SourceVariances, known_bins
from ondes.models.trained_masks import TrainedMaskStream
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.rebatch import slices

if TYPE_CHECKING:
    from ondes.models.sources import Sources

__all__ = ["CombinedVariances", "DictionaryVariances", "TrainedVariances", "activation_step"]

Real = NDArray[np.float32]

FIRST_STEPS, FRESH_STEPS = 25, 5
SMALLEST = np.float32(1e-20)
ALIKE = 0.9999  # cosine between two dictionaries, row by row
FRAMES_AT_ONCE = 64  # by each thread: what more take would leave the caches


class _Fixed:
    """A model that the mixture does not change."""

    def follow(self, spectra: Real, amplitude: Real) -> None:
        """Take the next frames: there is nothing to learn."""

    def reset(self) -> None:
        """Forget what was learned: nothing."""


class DictionaryVariances(_Fixed):
    """Each source's variance is what its dictionary makes of its power.

    Parameters
    ----------
    sources : Sources
    n_bins : int
        Of the mixture, which may have another sampling rate than the dictionaries. Bins that they
        do not know follow the mean over the octave below.
    together : bool
        Whether all dictionaries explain each output while demixing begins, so that what is left of
        other sources in it does not count. Not good where some are of free components, which can
        explain anything.
    n_threads : int
        On which the result does not depend.

    Examples
    --------
    >>> from ondes.models.sources import Sources
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> model = DictionaryVariances(sources, 3)
    >>> model.start(np.array([[9.0], [2.0], [9.0]], np.float32))[:, :, 0].round(2)
    array([[9., 1., 0.],
           [0., 1., 9.]], dtype=float32)
    """

    def __init__(
        self, sources: Sources, n_bins: int, *, together: bool = True, n_threads: int = 1
    ) -> None:
        self._n_bins, self._together, self._n_threads = n_bins, together, n_threads
        _warn_of_dictionaries_alike(sources)
        self._take(sources)

    def _take(self, sources: Sources) -> None:
        self._beta, self._exponent = sources.divergence.beta, sources.exponent
        slope = sources.sparsity * np.sqrt(np.square(sources.dictionary).sum(axis=1))
        if sources.sparsity_weights is not None:
            slope = slope * sources.sparsity_weights
        order = np.argsort(sources.source_of, kind="stable")
        counts = [int(np.sum(sources.source_of == n)) for n in range(len(sources.names))]
        ends = np.cumsum([0, *counts])
        self._own = [slice(ends[n], ends[n + 1]) for n in range(len(counts))]
        self._rows = np.ascontiguousarray(sources.dictionary[order, : self._n_bins].T, np.float32)
        self._sums = self._rows.sum(axis=0)[:, None]
        self._slope = slope[order].astype(np.float32)[:, None]
        self._used = [slice(0, len(order)) if self._together else own for own in self._own]

    def start(self, power: Real) -> Real:
        """By all dictionaries together; see `SourceVariances`."""
        found = self._fit(power, slice(None), FIRST_STEPS)
        self._activations = [found[used] for used in self._used]
        variances = self._variances(np.broadcast_to(power, (len(self._own), *power.shape)))
        _share_above(variances, power, len(self._rows))
        return variances

    def restart(self, powers: Real) -> Real:
        """By all dictionaries together, or by its own; see `SourceVariances`."""
        pairs = zip(powers, self._used, strict=True)
        self._activations = [self._fit(power, used, FRESH_STEPS) for power, used in pairs]
        return self._variances(powers)

    def step(self, powers: Real) -> Real:
        """One step on the same activations; see `SourceVariances`."""
        for source, (power, used) in enumerate(zip(powers, self._used, strict=True)):
            found, target = self._activations[source], self._target(power)
            self._activations[source] = self._step(found, used, target, self._slope[used])
        return self._variances(powers)

    def settle(self, powers: Real) -> Real:
        """The geometric mean of what all dictionaries and what a source's own make of its power."""
        self.restart(powers)
        for source, (power, own) in enumerate(zip(powers, self._own, strict=True)):
            alone = self._fit(power, own, FRESH_STEPS)
            self._activations[source] = np.sqrt(alone * self._own_activations(source))
        return self._variances(powers)

    def settled_step(self, powers: Real) -> Real:
        """One step on each source's own activations, without sparsity."""
        for source, (power, own) in enumerate(zip(powers, self._own, strict=True)):
            found, target = self._own_activations(source), self._target(power)
            self._activations[source] = self._step(found, own, target, np.float32(0))
        return self._variances(powers)

    def _fit(self, power: Real, rows: slice, n_steps: int) -> Real:
        """Activations of some rows of the dictionaries, from scratch."""
        sums, target = self._sums[rows], self._target(power)
        total = np.maximum(sums.sum(), SMALLEST)
        flat = np.broadcast_to(target.sum(axis=0) / total, (len(sums), target.shape[1]))
        found: Real = np.maximum(flat, SMALLEST, dtype=np.float32)
        return self._step(found, rows, target, self._slope[rows], n_steps)

    def _step(
        self,
        found: Real,
        rows: slice,
        target: Real,
        slope: Real | np.float32,
        n_steps: int = 1,
    ) -> Real:
        """Steps from activations; every frame has a minimum of its own."""
        dictionary, sums = self._rows[:, rows], self._sums[rows]
        stepped = np.empty_like(found)

        def act(frames: slice) -> None:
            own, wanted = found[:, frames], np.ascontiguousarray(target[:, frames])
            for _ in range(n_steps):
                own = activation_step(own, dictionary, wanted, self._beta, slope, sums)
            stepped[:, frames] = own

        parts = slices(found.shape[1], FRAMES_AT_ONCE)
        deque(each(act, parts, self._n_threads), maxlen=0)
        return stepped

    def _own_activations(self, source: int) -> Real:
        found, own = self._activations[source], self._own[source]
        return found if len(found) == own.stop - own.start else found[own]

    def _target(self, power: Real) -> Real:
        known = power[: len(self._rows)]
        target: Real = known if self._exponent == 1 else np.sqrt(known)
        return target

    def _variances(self, powers: Real) -> Real:
        n_known = len(self._rows)
        variances = np.empty(powers.shape, np.float32)
        for source, own in enumerate(self._own):
            model = self._rows[:, own] @ self._own_activations(source)
            variances[source, :n_known] = model if self._exponent == 1 else np.square(model)
        if n_known < self._n_bins:
            _follow_octave_below(variances, powers, n_known)
        return variances


class TrainedVariances(_Fixed):
    """Each source's variance is its share of the power in the masks of a trained separator.

    As in independent deeply learned matrix analysis (Makishima et al., 2019). While demixing
    begins, masks are those of the mixture: a source that is demixed badly would always agree with
    its own. Afterwards they are the geometric mean of those and of each demixed source's own.

    Parameters
    ----------
    weights : UnfoldedWeights or BandWeights
    n_bins : int
        Of the mixture; bins that the model does not know follow the octave below.
    n_threads : int
    """

    def __init__(
        self, weights: UnfoldedWeights | BandWeights, n_bins: int, n_threads: int = 1
    ) -> None:
        self._weights, self._n_bins, self._n_threads = weights, n_bins, n_threads

    def start(self, power: Real) -> Real:
        """From the masks of the mixture; see `SourceVariances`."""
        self._variances = self._masked(power)
        return self._variances

    def restart(self, powers: Real) -> Real:
        """From the masks of all demixed sources together; see `SourceVariances`."""
        return self.start(powers.sum(axis=0))

    def step(self, powers: Real) -> Real:
        """Those of the last start; see `SourceVariances`."""
        return self._variances

    def settle(self, powers: Real) -> Real:
        """From the masks of all sources together and of each alone; see `SourceVariances`."""
        alone = np.stack([self._masked(power)[source] for source, power in enumerate(powers)])
        self._variances = np.sqrt(self._masked(powers.sum(axis=0)) * alone)
        return self._variances

    settled_step = step

    def _masked(self, power: Real) -> Real:
        """Each source's share of a power, (n_sources, n_bins, n_frames)."""
        n_known = self._weights.n_bins
        known = known_bins(power.T, n_known)
        masks = TrainedMaskStream(self._weights, self._n_threads)
        whole = np.ones(len(known), np.float32)
        shares = np.concatenate([masks.push(known, whole), masks.flush()], axis=1)
        variances = np.empty((len(shares), *power.shape), np.float32)
        shares = np.swapaxes(shares, 1, 2)[:, : self._n_bins]
        variances[:, :n_known] = shares * power[:n_known]
        _share_above(variances, power, n_known)
        return variances


class CombinedVariances:
    """The first sources have a trained separator, the others dictionaries.

    Parameters
    ----------
    trained : SourceVariances
    dictionaries : SourceVariances
        Of all sources: those of the separator have to be told apart from the others.
    n_trained : int
        How many sources the separator has.
    """

    def __init__(
        self, trained: SourceVariances, dictionaries: SourceVariances, n_trained: int
    ) -> None:
        self._trained, self._dictionaries, self._n_trained = trained, dictionaries, n_trained

    def follow(self, spectra: Real, amplitude: Real) -> None:
        """The dictionaries may learn; see `SourceVariances`."""
        self._dictionaries.follow(spectra, amplitude)

    def reset(self) -> None:
        """Forget what was learned from the mixture."""
        self._dictionaries.reset()

    def start(self, power: Real) -> Real:
        """The dictionaries divide the power, the separator its part; see `SourceVariances`."""
        variances = self._dictionaries.start(power)
        own = variances[: self._n_trained].sum(axis=0)
        share = own / (variances.sum(axis=0) + SMALLEST)
        return self._joined(self._trained.start(share * power), variances)

    def restart(self, powers: Real) -> Real:
        """Each from the power of its sources; see `SourceVariances`."""
        own = self._trained.restart(powers[: self._n_trained])
        return self._joined(own, self._dictionaries.restart(powers))

    def step(self, powers: Real) -> Real:
        """Each its step; see `SourceVariances`."""
        own = self._trained.step(powers[: self._n_trained])
        return self._joined(own, self._dictionaries.step(powers))

    def settle(self, powers: Real) -> Real:
        """Each from the power of its sources; see `SourceVariances`."""
        own = self._trained.settle(powers[: self._n_trained])
        return self._joined(own, self._dictionaries.settle(powers))

    def settled_step(self, powers: Real) -> Real:
        """Each its step; see `SourceVariances`."""
        own = self._trained.settled_step(powers[: self._n_trained])
        return self._joined(own, self._dictionaries.settled_step(powers))

    def _joined(self, own: Real, everything: Real) -> Real:
        return np.concatenate([own, everything[self._n_trained :]])


def _warn_of_dictionaries_alike(sources: Sources) -> None:
    rows = sources.dictionary / np.linalg.norm(sources.dictionary, axis=1, keepdims=True)
    own = [rows[sources.source_of == source] for source in range(len(sources.names))]
    for i, j in combinations(range(len(own)), 2):
        if own[i].shape != own[j].shape or (np.sum(own[i] * own[j], axis=1) <= ALIKE).any():
            continue
        warnings.warn(
            f"The sources {sources.names[i]!r} and {sources.names[j]!r} have the same dictionary, "
            "so spatial separation cannot know which is which, and may exchange them; learn a "
            "dictionary for each.",
            stacklevel=4,
        )


def activation_step(
    activations: Real,
    rows: Real,
    target: Real,
    beta: float,
    slope: Real | np.float32,
    sums: Real | None = None,
) -> Real:
    """One multiplicative step on the activations, as in `ondes.nmf` but with frames as columns.

    Parameters
    ----------
    activations : array of shape (n_components, n_frames)
    rows : array of shape (n_bins, n_components)
        The dictionary.
    target : array of shape (n_bins, n_frames)
    beta : float
        Of the divergence.
    slope : array of shape (n_components, 1), or float
        Sparsity times each row's norm.
    sums : array of shape (n_components, 1), optional
        Of the dictionary over its bins, where they are known already.

    Examples
    --------
    >>> rows, target = np.array([[0.5], [0.5]]), np.array([[1.0], [3.0]])
    >>> activation_step(np.ones((1, 1)), rows, target, 1.0, np.float32(0))
    array([[4.]])
    """
    level = np.maximum(target.mean(axis=0), SMALLEST)
    model = rows @ activations + np.float32(FLOOR) * level + SMALLEST
    if beta == 1:
        numerator = rows.T @ (target / model)
        ratio = numerator / ((rows.sum(axis=0)[:, None] if sums is None else sums) + slope)
    else:
        weight = model ** np.float32(beta - 1)
        numerator = rows.T @ (target * weight / model)
        ratio = numerator / (rows.T @ weight + slope * level ** np.float32(beta - 1) + SMALLEST)
        ratio = ratio ** np.float32(1 / (2 - beta) if beta < 1 else 1)
    stepped: Real = np.maximum(activations * ratio, SMALLEST)
    return stepped


def _share_above(variances: Real, power: Real, n_known: int) -> None:
    """Fill the bins above the known ones as masks do: by the mean shares in the octave below."""
    if n_known < len(power):
        octave = variances[:, n_known // 2 : n_known]
        shares = (octave / (octave.sum(axis=0) + SMALLEST)).mean(axis=1, keepdims=True)
        variances[:, n_known:] = shares * power[n_known:]


def _follow_octave_below(variances: Real, powers: Real, n_known: int) -> None:
    """Fill the bins above the known ones: each source's own level there, its time course below."""
    course = variances[:, n_known // 2 : n_known].mean(axis=1, keepdims=True)
    course /= course.mean(axis=2, keepdims=True) + SMALLEST
    variances[:, n_known:] = powers[:, n_known:].mean(axis=2, keepdims=True) * course
