"""Dictionaries that follow the mixture while it is separated.

`AdaptedSources` moves dictionaries that were learned before, each held by what it was (MAP).
`FreeComponents` adds a source that no dictionary is known of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, encode, summarise
from ondes.nmf.estimator import OnlineNMF
from ondes.nmf.forgetting import HalfLife
from ondes.nmf.problem import Solver
from ondes.separation.sources import Sources
from ondes.signal.silence import Loudest, is_active, loudest_of, merge

__all__ = ["AdaptedSources", "FreeComponents"]

# Frames are compared by their amplitude, whose square may overflow: 60 dB of power are 30 here.
TOP_DB = 60.0 / 2
MIXTURE = 0  # the number of the one recording
HALF_LIFE = 4.0  # seconds: an unknown source may change at any time
FIRST_VISITS = 5  # a dictionary just drawn is far from good

PRIOR = 20.0  # weight of a learned component, in units of the mean use of its source's components
ADAPTATION_HALF_LIFE = 30.0  # seconds
FIRST_STEPS, N_ITERATIONS = 10, 15  # steps on the activations alone, then moves of the dictionary


class ActiveFrames:
    """Selects the frames to learn from: not 60 dB below the loudest one so far."""

    def __init__(self) -> None:
        self._loudest: Loudest = {}

    def select(self, spectra: Array, amplitude: Array) -> Array:
        """The active ones of the next frames, by the largest amplitude in each."""
        self._loudest = merge(self._loudest, loudest_of(amplitude, MIXTURE))
        active: Array = spectra[is_active(amplitude, MIXTURE, self._loudest, TOP_DB)]
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
        self._numerator: Array = np.zeros(self._first.shape)
        self._denominator: Array = np.zeros(self._first.shape)

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
            self._numerator = past[0] + new.numerator * scale[:, None] ** (1 - beta)
            self._denominator = past[1] + new.denominator / scale[:, None]
            self._maximise(2 - beta)

    def _maximise(self, power: float) -> None:
        """The exact maximum of the posterior under the majoriser."""
        prior = np.empty((len(self._rows), 1))
        for source in range(len(self._learned.names)):
            own = self._learned.source_of == source
            prior[own] = PRIOR * self._denominator[own].mean()
        prior = np.maximum(prior, 1e-300)
        counts = prior * self._first**power + self._numerator
        rows = (counts / (prior + self._denominator)) ** (1 / power)
        self._rows = np.where(self._moves[:, None], rows, self._first)

    def _sources(self) -> Sources:
        rows = self._rows / self._rows.sum(axis=1, keepdims=True)
        dictionary = np.where(self._moves[:, None], rows, self._learned.dictionary)
        return replace(self._learned, dictionary=dictionary)


class FreeComponents:
    """One more source beside the known ones, whose dictionary follows the mixture.

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
    **settings
        Further parameters of `OnlineNMF`.

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
        **settings: Any,
    ) -> None:
        # Sparsity of the known sources alone would hand everything to the free components.
        self._sources = replace(sources, sparsity=0.0)
        self._n_free, self._name = n_free, name
        self._compute = compute or Compute()
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget everything learned."""
        self._learner: OnlineNMF | None = None
        self._active = ActiveFrames()

    def learn(self, spectra: Array, amplitude: Array) -> Sources:
        """Learn from the next frames, and return all sources as they are known now.

        Parameters
        ----------
        spectra : array of shape (n_frames, n_bins), at any volume
        amplitude : array of shape (n_frames,)
            The largest amplitude in each frame; nothing is learned from frames 60 dB below the
            loudest one so far.
        """
        active = self._active.select(spectra, amplitude)
        if len(active):
            if self._learner is None:
                self._learner = self._first_learner(active)
            else:
                self._learner.partial_fit(active)
        free = np.empty((0, spectra.shape[1]))
        if self._learner is not None:
            free = self._learner.components_[self._sources.n_components :]
        return self._sources.with_source(free, self._name)

    def _first_learner(self, active: Array) -> OnlineNMF:
        """Drawn from the frames that the known sources explain worst: the unknown is loud there."""
        known = self._sources
        frames_per_second = known.sr / known.stft.hop_length
        learner = OnlineNMF(
            known.n_components + self._n_free,
            fixed_components=known.dictionary,
            beta_loss=known.divergence.beta,
            groups=np.append(known.source_of, np.full(self._n_free, len(known.names))),
            forgetting=HalfLife(HALF_LIFE * frames_per_second),
            backend=self._compute.backend,
            device=self._compute.device,
            precision=self._compute.precision,
            n_jobs=self._compute.n_jobs,
            **self._settings,
        )
        # By the reference: which frames are chosen must not depend on a backend's rounding.
        encoding = encode(active, known.problem(Solver()), Compute("reference"))
        unexplained = encoding.divergences()
        worst = active[unexplained >= np.median(unexplained)]
        for frames in [worst] * FIRST_VISITS + [active] * FIRST_VISITS:
            learner.partial_fit(frames)
        return learner
