"""Dictionaries that follow the mixture while it is separated.

`AdaptedSources` moves dictionaries that were learned before, each held by what it was (MAP).
`FreeComponents` adds a source that no dictionary is known of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import Array, level_frames
from ondes.nmf.encoding import Compute, summarise
from ondes.nmf.initialisation import random_frames
from ondes.nmf.penalties import ActivationPenalty
from ondes.nmf.problem import Solver
from ondes.nmf.statistics import Statistics
from ondes.separation.sources import Sources
from ondes.signal.silence import Loudest, is_active, loudest_of, merge

__all__ = ["AdaptedSources", "FreeComponents"]

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
        active: Array = spectra[
            loud & spectra.any(axis=1)
        ]  # all sound may lie above the known band
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
    >>> import numpy as np
    >>> from ondes.signal.audio_settings import AudioSettings
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
    penalty : ActivationPenalty, optional
        On the activations, with the sources as groups.
    random_state : int
        Decides which frames the free rows start from.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.audio_settings import AudioSettings
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
        penalty: ActivationPenalty | None = None,
        random_state: int = 0,
    ) -> None:
        if name in sources.names:
            names = (*sources.names, name)
            raise ValueError(f"Two sources have the same name among {names}; rename one.")
        # Sparsity of the known sources alone would hand everything to the free components.
        self._known = replace(sources, sparsity=0.0)
        self._n_free, self._name, self._penalty = n_free, name, penalty
        self._compute, self._random_state = compute or Compute(), random_state
        self._half_life = FREE_HALF_LIFE * sources.sr / sources.stft.hop_length
        beta = sources.divergence.beta
        self._exponent = 1 / (2 - beta) if beta < 1 else 1.0  # of a step that never goes too far
        self.reset()

    def reset(self) -> None:
        """Forget everything learned."""
        self._active = ActiveFrames()
        empty = np.empty((0, self._known.stft.n_bins))
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
            problem = self._sources.problem(Solver(max_steps=1, momentum=()), self._penalty)
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
