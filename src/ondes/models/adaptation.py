"""Dictionaries that follow the mixture while it is separated: models that wrap `Sources`.

`AdaptingSources` moves dictionaries that were learned before, each held by what it was (MAP).
`SourcesWithFree` adds a source that no dictionary is known of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ondes.models.masks import HostMasks, source_masks
from ondes.models.model import MaskStream, SourceVariances
from ondes.models.variances import DictionaryVariances
from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import Array, level_frames
from ondes.nmf.encoding import Compute, summarise
from ondes.nmf.initialisation import random_frames
from ondes.nmf.problem import Solver
from ondes.nmf.statistics import Statistics
from ondes.signal.audio_settings import AudioSettings, Loudest, is_active, loudest_of, merge

if TYPE_CHECKING:
    from ondes.models.sources import Sources

__all__ = ["REST", "AdaptedSources", "AdaptingSources", "FreeComponents", "SourcesWithFree"]

Real = NDArray[np.float32]

REST = "rest"
BATCH_SIZE = 256  # frames from one move of a dictionary to the next: more decide better

# Frames are compared by their amplitude, whose square may overflow: 60 dB of power are 30 here.
TOP_DB = 60.0 / 2
MIXTURE = 0  # the number of the one recording
FREE_HALF_LIFE = 4.0  # seconds: an unknown source may change at any time
N_FIRST_ITERATIONS, N_FREE_ITERATIONS = 40, 30  # rows that were just drawn are far from good
SMOOTH_START = 0.1  # of a frame's mean: zero could never grow

PRIOR = 21.0  # weight of a learned component, in units of the mean use of its source's components
ADAPTATION_HALF_LIFE = 30.0  # seconds
FIRST_STEPS, N_ITERATIONS = 10, 8  # steps on the activations alone, then moves of the dictionary


class ActiveFrames:
    """Selects the frames to learn from: not 60 dB below the loudest one so far."""

    def __init__(self) -> None:
        self._loudest: Loudest = {}

    def select(self, spectra: Array, amplitude: Array) -> Array:
        """The active ones of the next frames, by the largest amplitude in each."""
        self._loudest = merge(self._loudest, loudest_of(amplitude, MIXTURE))
        loud = is_active(amplitude, MIXTURE, self._loudest, TOP_DB)
        # All sound may lie above the known band; what is missing is NaN.
        active: Array = spectra[loud & (spectra > 0).any(axis=1)]
        return active


class AdaptedSources:
    """Sources of which some follow the mixture: maximum a posteriori, with fading statistics.

    The statistics of a moving source start from pseudo-counts of its learned dictionary, which
    never fade: a component that the mixture does not use stays what it was, and one that it uses
    as often as `PRIOR` times the average moves half of the way. For magnitudes and the
    Kullback-Leibler divergence; with Itakura-Saito it rarely improves anything.

    Parameters
    ----------
    sources : Sources
    names : sequence of str
        The sources that move; the others stay fixed.
    compute : Compute, optional
        Backend, device and threads.

    Examples
    --------
    >>> from ondes.models.sources import Sources
    >>> from ondes.signal.stft import Stft
    >>> rows, audio = np.full((2, 5), 0.2), AudioSettings(8000, Stft(8))
    >>> sources = AdaptedSources(Sources(rows, np.arange(2), ("a", "b"), audio), ["b"])
    >>> frames = np.random.default_rng(0).exponential(size=(20, 5)) + [0, 0, 0, 0, 9]
    >>> moved = sources.learn(frames, np.ones(20)).dictionary
    >>> bool(moved[0, 4] == 0.2), bool(moved[1, 4] > 0.2)
    (True, True)
    """

    def __init__(
        self, sources: Sources, names: Sequence[str], compute: Compute | None = None
    ) -> None:
        if sources.divergence.beta > 1:
            raise ValueError(
                f"Dictionaries learned with β = {sources.divergence.beta:g} cannot adapt; learn "
                "them with beta_loss='kullback-leibler'."
            )
        self._learned, self._compute = sources, compute or Compute()
        self._moves = np.any([sources.rows_of(name) for name in names], axis=0)
        self._half_life = ADAPTATION_HALF_LIFE * sources.sr / sources.stft.hop_length
        # Pseudo-counts are given to rows of unit norm, which is the scale of sparsity.
        norms = np.linalg.norm(sources.dictionary, axis=1, keepdims=True)
        self._first = sources.dictionary / norms
        self.reset()

    def reset(self) -> None:
        """Return to the dictionaries as they were learned."""
        self._active = ActiveFrames()
        self._rows = self._first.copy()
        moving = self._first[self._moves]  # nothing else is kept of the others
        self._numerator: Array = np.zeros_like(moving)
        self._denominator: Array = np.zeros_like(moving)

    def learn(self, spectra: Array, amplitude: Array) -> Sources:
        """Learn from the next frames, and return all sources as they are known now.

        Parameters
        ----------
        spectra : array of shape (n_frames, n_bins), at any volume
        amplitude : array of shape (n_frames,)
            The largest amplitude in each frame; nothing is learned from frames 60 dB below the
            loudest one so far.
        """
        frames = self._active.select(spectra, amplitude)
        if len(frames):
            self._move(frames)
        return self._sources()

    def _move(self, frames: Array) -> None:
        fade = 0.5 ** (len(frames) / self._half_life)
        past = self._numerator * fade, self._denominator * fade
        beta, activations = self._learned.divergence.beta, None
        for n_steps in (FIRST_STEPS, *[1] * (N_ITERATIONS - 1)):
            problem = self._sources().problem(Solver(n_steps, momentum=()))
            # A problem has rows that sum to one; sums over frames are kept at the rows' own scale.
            scale = self._rows.sum(axis=1)
            if activations is not None:
                activations = (activations * scale).astype(frames.dtype)
            encoding, new = summarise(frames, problem, self._compute, activations)
            activations = encoding.activations / scale
            own = scale[self._moves, None]
            self._numerator = past[0] + new.numerator[self._moves] * own ** (1 - beta)
            self._denominator = past[1] + new.denominator[self._moves] / own
            self._maximise(2 - beta)

    def _maximise(self, power: float) -> None:
        """The exact maximum of the posterior under the majoriser."""
        moving = self._learned.source_of[self._moves]
        for source in set(moving.tolist()):
            every, own = self._learned.source_of == source, moving == source
            prior = max(PRIOR * float(self._denominator[own].mean()), 1e-300)
            counts = prior * self._first[every] ** power + self._numerator[own]
            rows = counts / (prior + self._denominator[own])
            self._rows[every] = rows if power == 1 else rows ** (1 / power)

    def _sources(self) -> Sources:
        dictionary = self._learned.dictionary.copy()
        moved = self._rows[self._moves]
        dictionary[self._moves] = moved / moved.sum(axis=1, keepdims=True)
        return replace(self._learned, dictionary=dictionary)


class FreeComponents:
    """One more source beside the known ones, whose dictionary follows the mixture.

    Activations and the free rows take turns, many times per batch: that is what a source without
    any prior needs. Sums over earlier frames fade. Free rows describe best what repeats, so a
    voice should be known and the music or the noise behind it free, not the other way round.

    Parameters
    ----------
    sources : Sources
        The known ones; their dictionaries stay fixed.
    n_free : int
        Components to learn.
    name : str
        Name of the new source.
    compute : Compute, optional
        Backend, device and threads.
    random_state : int
        Decides which frames the free rows start from.

    Examples
    --------
    >>> from ondes.models.sources import Sources
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(8))
    >>> sources = Sources(np.full((1, 5), 0.2), np.zeros(1, int), ("hiss",), audio)
    >>> free = FreeComponents(sources, 2, "rest", random_state=0)
    >>> frames = np.random.default_rng(0).exponential(size=(20, 5))
    >>> free.learn(frames, np.ones(20)).names
    ('hiss', 'rest')
    """

    def __init__(
        self,
        sources: Sources,
        n_free: int,
        name: str,
        compute: Compute | None = None,
        *,
        random_state: int = 0,
    ) -> None:
        if name in sources.names:
            names = (*sources.names, name)
            raise ValueError(f"Two sources have the same name among {names}; rename one.")
        # Sparsity of the known sources alone would hand everything to the free components.
        self._known = replace(sources, sparsity=0.0)
        self._n_free, self._name = n_free, name
        self._compute, self._random_state = compute or Compute(), random_state
        self._half_life = FREE_HALF_LIFE * sources.sr / sources.stft.hop_length
        beta = sources.divergence.beta
        self._exponent = 1 / (2 - beta) if beta < 1 else 1.0  # of a step that never goes too far
        self.reset()

    def reset(self) -> None:
        """Forget everything learned."""
        self._active = ActiveFrames()
        empty = np.empty((0, self._known.audio.n_bins))
        self._sources = self._known.with_source(empty, self._name)
        self._past = Statistics.zeros(*self._known.dictionary.shape)

    def learn(self, spectra: Array, amplitude: Array) -> Sources:
        """Learn from the next frames, and return all sources as they are known now.

        Parameters
        ----------
        spectra : array of shape (n_frames, n_bins), at any volume
        amplitude : array of shape (n_frames,)
            The largest amplitude in each frame; nothing is learned from frames 60 dB below the
            loudest one so far.
        """
        frames = self._active.select(spectra, amplitude)
        if len(frames):
            n_iterations = N_FREE_ITERATIONS
            if self._sources.n_components == self._known.n_components:
                self._start(frames)
                n_iterations = N_FIRST_ITERATIONS
            self._move(frames, n_iterations)
        return self._sources

    def _start(self, frames: Array) -> None:
        """Rows from random frames."""
        values = level_frames(frames, None).values
        rng = np.random.RandomState(self._random_state)
        rows = random_frames(values + SMOOTH_START, self._n_free, rng)
        self._sources = self._known.with_source(rows, self._name)
        shape = self._sources.dictionary.shape
        self._past = Statistics.zeros(*shape, beta=self._known.divergence.beta)

    def _move(self, frames: Array, n_iterations: int) -> None:
        fade, past, kept = 0.5 ** (len(frames) / self._half_life), self._past, self._past
        activations = None
        for _ in range(n_iterations):
            problem = self._sources.problem(Solver(max_steps=1, momentum=()))
            encoding, new = summarise(frames, problem, self._compute, activations)
            rows, kept, scale = update(
                self._sources.dictionary,
                past,
                new,
                fade,
                exponent=self._exponent,
                n_fixed=self._known.n_components,
            )
            past = past.rescale(scale)
            activations = (encoding.activations * scale).astype(frames.dtype)
            self._sources = replace(self._sources, dictionary=rows)
        self._past = kept


class Learner(Protocol):
    """`AdaptedSources`, `FreeComponents`."""

    def reset(self) -> None:
        """Forget everything learned."""

    def learn(self, spectra: Array, amplitude: Array) -> Sources:
        """Learn from the next frames, and return all sources as they are known now."""


class FollowingModel:
    """A `Model` of sources that are learned from the mixture while it is separated."""

    sources: Sources
    batch_size: int | None
    together: ClassVar[bool]  # as of `DictionaryVariances`

    @property
    def names(self) -> tuple[str, ...]:
        """Of all sources."""
        return self.sources.names

    @property
    def audio(self) -> AudioSettings:
        """Of the frames that the known sources were learned from."""
        return self.sources.audio

    def masks(self, compute: Compute) -> MaskStream:
        """Begin a stream of masks; see `Model`."""
        masks = LearningMasks(self._learner(compute), self, self.batch_size, compute)
        return HostMasks.where_needed(masks, compute)

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """The same for spatial separation; see `Model`."""
        given = self._learner(compute), self.sources, n_bins
        return LearningVariances(*given, together=self.together, n_threads=compute.n_threads)

    def _learner(self, compute: Compute) -> Learner:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class AdaptingSources(FollowingModel):
    """Sources of which some follow the mixture: a `Model`; see `AdaptedSources`.

    Use it for the source that its dictionary describes less well, such as music under a voice.

    Attributes
    ----------
    sources : Sources
    moving : tuple of str
        The names of those that follow.
    batch_size : int, optional
        Frames from one move to the next; by default 256. The masks are late by as many.

    Examples
    --------
    >>> from ondes.models.sources import Sources
    >>> from ondes.signal.stft import Stft
    >>> rows, audio = np.full((2, 5), 0.2), AudioSettings(8000, Stft(8), spectrum="magnitude")
    >>> model = Sources(rows, np.arange(2), ("speech", "music"), audio).adapting("music")
    >>> model.masks(Compute()).delay
    255
    """

    sources: Sources
    moving: tuple[str, ...]
    batch_size: int | None = None
    together: ClassVar[bool] = True

    def _learner(self, compute: Compute) -> AdaptedSources:
        return AdaptedSources(self.sources, self.moving, compute)


@dataclass(frozen=True, eq=False)
class SourcesWithFree(FollowingModel):
    """Sources, and one more that is learned from the mixture: a `Model`; see `FreeComponents`.

    Attributes
    ----------
    sources : Sources
        Their dictionaries stay fixed.
    n_free : int
        Components of the new source.
    name : str
        Of the new source.
    random_state : int
        Decides its first dictionary.
    batch_size : int, optional
        As of `AdaptingSources`.
    """

    sources: Sources
    n_free: int
    name: str = REST
    random_state: int = 0
    batch_size: int | None = None
    together: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of all sources, the new one last."""
        return (*self.sources.names, self.name)

    def _learner(self, compute: Compute) -> FreeComponents:
        if self.n_free < 1:
            raise ValueError(f"n_free={self.n_free} must be 1 or more.")
        return FreeComponents(
            self.sources, self.n_free, self.name, compute, random_state=self.random_state
        )


class LearningMasks:
    """A `MaskStream` of sources that are learned, batch by batch, from the frames themselves."""

    def __init__(
        self,
        learner: Learner,
        model: FollowingModel,
        batch_size: int | None,
        compute: Compute,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be 1 or more.")
        self._learner, self._compute, self._audio = learner, compute, model.audio
        self._n_sources, self._batch_size = len(model.names), batch_size or BATCH_SIZE
        self.delay = self._batch_size - 1
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what was learned from it."""
        self._spectra = np.zeros((0, self._audio.n_bins), np.float32)
        self._amplitude = np.zeros(0, np.float32)
        self._learner.reset()

    def push(self, spectra: Real, amplitude: Real) -> Real:
        """Take the next frames; return the masks of whole batches; see `MaskStream`."""
        self._spectra = np.concatenate([self._spectra, self._audio.from_power(spectra)])
        self._amplitude = np.concatenate([self._amplitude, amplitude])
        masks = [np.zeros((self._n_sources, 0, self._audio.n_bins), np.float32)]
        while len(self._spectra) >= self._batch_size:
            masks.append(self._next(self._batch_size))
        return masks[1] if len(masks) == 2 else np.concatenate(masks, axis=1)

    def flush(self) -> Real:
        """Return the last masks, and reset."""
        masks = self._next(len(self._spectra))
        self.reset()
        return masks

    def _next(self, n: int) -> Real:
        spectra, amplitude = self._spectra[:n], self._amplitude[:n]
        self._spectra, self._amplitude = self._spectra[n:], self._amplitude[n:]
        sources = self._learner.learn(spectra, amplitude)
        return source_masks(spectra, sources, compute=self._compute)


class LearningVariances(DictionaryVariances):
    """What dictionaries that are learned from the mixture make of its sources."""

    def __init__(
        self, learner: Learner, sources: Sources, n_bins: int, *, together: bool, n_threads: int
    ) -> None:
        super().__init__(sources, n_bins, together=together, n_threads=n_threads)
        self._learner, self._audio = learner, sources.audio

    def follow(self, spectra: Real, amplitude: Real) -> None:
        """Learn from the next frames; see `SourceVariances`."""
        self._take(self._learner.learn(self._audio.from_power(spectra), amplitude))

    def reset(self) -> None:
        """Forget what was learned from the mixture."""
        self._learner.reset()
