"""The dictionary and its statistics on the host: one update per call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.nmf import encoding
from ondes.nmf.backends import tensors
from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import Array
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics, Trained
from ondes.nmf.warm_restarts import StoredActivations

__all__ = ["HostTrainer"]


class HostTrainer:
    """Trains a dictionary batch by batch; `ondes.nmf.device_trainer` does the same on a device.

    Parameters
    ----------
    settings : Settings
    stored : StoredActivations, optional
        Activations of earlier visits, for warm restarts.

    Examples
    --------
    >>> import ondes
    >>> trainer = HostTrainer(ondes.OnlineNMF(2).settings)
    >>> trainer.load(np.full((2, 3), 1 / 3), Statistics.zeros(2, 3), 0)
    >>> trainer.train(np.ones((100, 3))).n_frames, trainer.n_frames_seen
    (100.0, 100)
    """

    def __init__(self, settings: Settings, stored: StoredActivations | None = None) -> None:
        self._settings, self._stored = settings, stored
        self.backend, self.n_frames_seen = "", 0

    def load(self, components: Array, statistics: Statistics, n_frames_seen: int) -> None:
        """Go on from here."""
        self._components, self._statistics = components, statistics
        self.n_frames_seen = n_frames_seen

    def fetch(self) -> tuple[Array, Statistics]:
        """The dictionary and the statistics."""
        return self._components, self._statistics

    def train(
        self,
        frames: Array,
        order: NDArray[np.intp] | None = None,
        n_frames_in_set: int | None = None,
    ) -> Trained:
        """One update.

        Parameters
        ----------
        frames : array of shape (n_frames, n_bins)
        order : integer array, optional
            Which of the frames are the batch; by default all.
        n_frames_in_set : int, optional
            N of the paper's forgetting r^(β/N).
        """
        settings, stored = self._settings, self._stored
        batch = tensors.on_host(frames) if order is None else tensors.rows_of(frames, order)
        start = None if stored is None or order is None else stored.recall(order)
        problem = settings.problem(self._components)
        encoded, statistics = encoding.summarise(batch, problem, settings.compute, start)
        self.backend = encoded.backend
        if stored is not None and order is not None:
            stored.keep(order[encoded.levelled.active], encoded.activations)
        scale = self.absorb(statistics, n_frames_in_set)
        if stored is not None:
            stored.rescale(scale)
        return Trained(statistics.n_frames, statistics.divergence)

    def absorb(self, statistics: Statistics, n_frames_in_set: int | None = None) -> Array:
        """Forget a little, add `statistics`, move; returns what rows were divided by."""
        settings, n_new = self._settings, statistics.n_frames
        if n_new == 0:
            return np.ones(len(self._components))
        # The prior fades like so many frames.
        n_seen = self.n_frames_seen + settings.prior_frames
        self._components, self._statistics, scale = update(
            self._components,
            self._statistics,
            statistics,
            settings.forgetting.factor(n_seen, n_new, n_frames_in_set),
            exponent=settings.dictionary_exponent,
            n_fixed=settings.n_fixed,
            penalty=settings.dictionary_penalty,
            is_sparse=settings.sparsity > 0,
        )
        self.n_frames_seen += round(n_new)
        rows: Array = scale
        return rows
