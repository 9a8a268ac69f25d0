"""Training on the host: one update per call, with the activations that warm restarts keep."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.nmf import encoding
from ondes.nmf.backends import tensors
from ondes.nmf.dictionary_update import update
from ondes.nmf.divergence import Array, levels
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics, Trained
from ondes.rebatch import slices

__all__ = ["HostTrainer", "StoredActivations", "Visits"]

BLOCK = 4096  # frames whose levels are taken at a time
_WIDEST = 1e6
# In units of a frame's level: a row that fades and comes back would start far off, and overflow.
_LARGEST = 1e6


class HostTrainer:
    """Trains a dictionary batch by batch; `ondes.nmf.device_trainer` does the same on a device.

    Examples
    --------
    >>> import ondes
    >>> trainer = HostTrainer(ondes.OnlineNMF(2).settings)
    >>> trainer.load(np.full((2, 3), 1 / 3), Statistics.zeros(2, 3), 0)
    >>> trainer.train(np.ones((100, 3))).n_frames, trainer.n_frames_seen
    (100.0, 100)
    """

    def __init__(self, settings: Settings, visits: Visits | None = None) -> None:
        self._settings, self._visits = settings, visits
        self.backend = ""
        self.n_frames_seen: float = 0

    def load(self, components: Array, statistics: Statistics, n_frames_seen: float) -> None:
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
        n_frames_in_set: float | None = None,
        sample_weight: Array | None = None,
    ) -> Trained:
        """One update; the weights are those of the frames in this order."""
        settings, visits = self._settings, self._visits
        batch = tensors.on_host(frames) if order is None else tensors.rows_of(frames, order)
        problem = settings.problem(self._components)
        start = (
            None if visits is None else visits.start_of(len(batch), order, self._components.shape)
        )
        encoded, statistics = encoding.summarise(
            batch, problem, settings.compute, start, sample_weight
        )
        self.backend = encoded.backend
        if visits is not None:
            visits.keep(encoded, order)
            held = visits.held_back(statistics, len(batch))
            if held is None:
                return Trained(0.0, 0.0)
            statistics = held
        self.absorb(statistics, n_frames_in_set)
        return Trained(statistics.n_frames, statistics.divergence)

    def absorb(self, statistics: Statistics, n_frames_in_set: float | None = None) -> None:
        """Forget a little, add `statistics`, move the dictionary."""
        settings, n_new = self._settings, statistics.n_frames
        if n_new == 0:
            return
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
        n_seen = self.n_frames_seen + n_new
        self.n_frames_seen = int(n_seen) if float(n_seen).is_integer() else n_seen
        if self._visits is not None:
            self._visits.rescale(scale)


class Visits:
    """What `fit` keeps from one visit of a frame to the next.

    Where activations start, those of warm restarts, and the sums of a batch that the end of a pass
    has left unfinished.
    """

    def __init__(self, settings: Settings, rng: np.random.RandomState) -> None:
        self._settings, self._rng = settings, rng
        self._stored: StoredActivations | None = None
        self._first: Array | None = None
        self.n_waiting = 0
        self.waiting: Statistics | None = None

    @classmethod
    def of_array(cls, frames: Array, settings: Settings, rng: np.random.RandomState) -> Visits:
        """For frames that are visited again and are known by their number."""
        visits = cls(settings, rng)
        shape = len(frames), settings.n_components
        if settings.restarts == "warm":
            visits._stored = StoredActivations(*shape, tensors.numpy_dtype(frames))
        if isinstance(settings.start, str):
            return visits
        first = np.array(settings.start, dtype=np.float64)
        if first.shape != shape or not (np.isfinite(first) & (first >= 0)).all():
            raise ValueError(
                f"start of shape {first.shape} must be {shape}, the activations of each frame, "
                "finite and nowhere negative."
            )
        background = settings.background(frames.shape[1])
        for rows in slices(len(frames), BLOCK):
            given = tensors.on_host(frames[rows])
            given = given + settings.added if settings.added else given
            level = levels(given, background, settings.feature_weight(frames.shape[1]))
            first[rows] /= np.where(level > 0, level, 1.0)[:, None]
        if visits._stored is None:
            visits._first = first
        else:
            visits._stored.keep(np.arange(len(frames)), first)
        return visits

    def start_of(
        self, n_frames: int, order: NDArray[np.intp] | None, shape: tuple[int, int]
    ) -> Array | None:
        """Where the activations of a batch start, in units of each frame's level; None is even."""
        if self._stored is not None and order is not None:
            recalled = self._stored.recall(order)
            if recalled is not None:
                return recalled
        if self._first is not None and order is not None:
            first: Array = self._first[order]
            return first
        if isinstance(self._settings.start, str) and self._settings.start == "random":
            n_components, n_bins = shape
            uniform: Array = self._rng.uniform(size=(n_frames, n_components))
            return uniform * 2 * n_bins / n_components
        return None

    def keep(self, encoded: encoding.Encoding, order: NDArray[np.intp] | None) -> None:
        """Remember what was found, for warm restarts."""
        if self._stored is not None and order is not None:
            self._stored.keep(order[encoded.levelled.active], encoded.activations)

    def held_back(self, statistics: Statistics, n_frames: int) -> Statistics | None:
        """All that waits, with these; None while the batch is not full and the counter runs on."""
        if self._settings.remainder == "update":
            return statistics
        self.waiting = statistics if self.waiting is None else self.waiting + statistics
        self.n_waiting += n_frames
        if self.n_waiting < (self._settings.batch_size or n_frames):
            return None
        held, self.waiting, self.n_waiting = self.waiting, None, 0
        return held

    def rescale(self, scale: Array) -> None:
        """Follow dictionary rows divided by `scale`."""
        if self._stored is not None:
            self._stored.rescale(scale)


class StoredActivations:
    """One row of activations per frame, rescaled lazily along with the dictionary's rows.

    Rescaling every row after every update would cost more than the update. Instead the product of
    all scales so far is kept, and a row is stored divided by the product of its time.

    Examples
    --------
    >>> import numpy as np
    >>> stored = StoredActivations(n_frames=3, n_components=1, dtype=np.float64)
    >>> stored.keep(np.array([1]), np.array([[2.0]]))
    >>> stored.rescale(np.array([10.0]))
    >>> stored.recall(np.array([1]))
    array([[20.]])
    """

    def __init__(self, n_frames: int, n_components: int, dtype: np.typing.DTypeLike) -> None:
        self._rows = np.zeros((n_frames, n_components), dtype=dtype)
        self._scale = np.ones(n_components)
        self._is_visited = np.zeros(n_frames, dtype=bool)

    def keep(self, frames: Array, activations: Array) -> None:
        """Store the activations of the frames with these indices."""
        self._rows[frames] = activations / self._scale
        self._is_visited[frames] = True

    def recall(self, frames: Array) -> Array | None:
        """The stored activations, as they are under the present dictionary.

        None at the first visit of any of the frames.
        """
        is_known = bool(self._is_visited[frames].all())
        self._is_visited[frames] = True
        return self._scaled(self._rows[frames]) if is_known else None

    def rescale(self, scale: Array) -> None:
        """Follow dictionary rows divided by `scale`."""
        self._scale = self._scale * scale
        if self._scale.max() > _WIDEST or self._scale.min() < 1 / _WIDEST:
            self._rows = self._scaled(self._rows)
            self._scale = np.ones_like(self._scale)

    def _scaled(self, rows: Array) -> Array:
        scaled: Array = np.minimum(rows * self._scale, _LARGEST).astype(rows.dtype)
        return scaled
