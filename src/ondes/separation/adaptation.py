"""Semi-supervised: components that learn, while a mixture is separated, what nobody described."""

from __future__ import annotations

from typing import Any

import numpy as np

from ondes.nmf.backends.reference import divergences, encode
from ondes.nmf.divergence import Array, level_frames
from ondes.nmf.estimator import OnlineISNMF
from ondes.nmf.forgetting import HalfLife
from ondes.nmf.problem import Problem, Solver
from ondes.separation.masks import FLOOR, Sources

__all__ = ["FreeComponents"]

QUIET = 1e-3  # of the loudest amplitude so far: nothing is learned from quieter frames
HALF_LIFE = 4.0  # seconds: what nobody described may change at any time
FIRST_VISITS = 5  # a dictionary just drawn is far from good


class FreeComponents:
    """One more source beside the known ones, whose dictionary follows the mixture.

    Parameters
    ----------
    sources : Sources
        The known ones; their dictionaries stay.
    n_free : int
        Components to learn.
    name : str
        Of the new source.
    **settings
        Of `OnlineISNMF`.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> sources = Sources(np.full((1, 5), 0.2), np.zeros(1, int), ("hiss",), 8000, Stft(8))
    >>> free = FreeComponents(sources, 2, "rest", random_state=0)
    >>> frames = np.random.default_rng(0).exponential(size=(20, 5))
    >>> free.learn(frames, np.ones(20)).names
    ('hiss', 'rest')
    """

    def __init__(self, sources: Sources, n_free: int, name: str, **settings: Any) -> None:
        self._sources, self._n_free, self._name = sources, n_free, name
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget everything learned."""
        self._learner: OnlineISNMF | None = None
        self._loudest = 0.0

    def learn(self, spectra: Array, peak: Array) -> Sources:
        """Learn from the next frames, and return all sources as they are known now.

        Parameters
        ----------
        spectra : array of shape (n_frames, n_bins), power at any volume
        peak : array of shape (n_frames,)
            The amplitude of each frame, which tells the silent ones.
        """
        self._loudest = max(self._loudest, float(peak.max(initial=0)))
        heard = spectra[peak > QUIET * self._loudest]
        if len(heard):
            if self._learner is None:
                self._learner = self._first_learner(heard)
            else:
                self._learner.partial_fit(heard)
        free = np.empty((0, spectra.shape[1]))
        if self._learner is not None:
            free = self._learner.components_[self._sources.n_components :]
        return self._sources.joined_by(free, self._name)

    def _first_learner(self, heard: Array) -> OnlineISNMF:
        """Drawn from the frames that the known sources explain worst: there the unknown sounds."""
        known = self._sources
        frames_a_second = known.sr / known.stft.hop_length
        learner = OnlineISNMF(
            known.n_components + self._n_free,
            frozen=known.dictionary,
            groups=np.append(known.source_of, np.full(self._n_free, len(known.names))),
            forgetting=HalfLife(HALF_LIFE * frames_a_second),
            **self._settings,
        )
        levelled = level_frames(heard)
        problem = Problem(known.dictionary, FLOOR, Solver())
        unexplained = divergences(levelled, encode(levelled, problem), problem)
        strangest = heard[unexplained >= np.median(unexplained)]
        for frames in [strangest] * FIRST_VISITS + [heard] * FIRST_VISITS:
            learner.partial_fit(frames)
        return learner
