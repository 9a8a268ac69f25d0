"""Semi-supervised separation: components learned from the mixture while it is separated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, encode
from ondes.nmf.estimator import OnlineNMF
from ondes.nmf.forgetting import HalfLife
from ondes.nmf.problem import Solver
from ondes.separation.sources import Sources
from ondes.signal.silence import Loudest, is_active, loudest_of, merge

__all__ = ["FreeComponents"]

# Frames are compared by their amplitude, whose square may overflow: 60 dB of power are 30 here.
TOP_DB = 60.0 / 2
MIXTURE = 0  # the number of the one recording
HALF_LIFE = 4.0  # seconds: an unknown source may change at any time
FIRST_VISITS = 5  # a dictionary just drawn is far from good


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
    >>> from ondes.signal.stft import Stft
    >>> sources = Sources(np.full((1, 5), 0.2), np.zeros(1, int), ("hiss",), 8000, Stft(8))
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
        self._sources, self._n_free, self._name = sources, n_free, name
        self._compute = compute or Compute()
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget everything learned."""
        self._learner: OnlineNMF | None = None
        self._loudest: Loudest = {}

    def learn(self, spectra: Array, amplitude: Array) -> Sources:
        """Learn from the next frames, and return all sources as they are known now.

        Parameters
        ----------
        spectra : array of shape (n_frames, n_bins), power at any volume
        amplitude : array of shape (n_frames,)
            The largest amplitude in each frame; nothing is learned from frames 60 dB below the
            loudest one so far.
        """
        self._loudest = merge(self._loudest, loudest_of(amplitude, MIXTURE))
        active = spectra[is_active(amplitude, MIXTURE, self._loudest, TOP_DB)]
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
