"""Online NMF: learns a dictionary from frames, and finds activations with it.

scikit-learn takes a second and a hundred megabytes to import, so it is not imported here, where
all commands begin.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import signature
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ondes.nmf import encoding, passes
from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.forgetting import Forgetting, PerPass
from ondes.nmf.host_trainer import HostTrainer
from ondes.nmf.initialisation import first_dictionary
from ondes.nmf.penalties import ActivationPenalty, DictionaryPenalty
from ondes.nmf.problem import Solver
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics, Trained
from ondes.nmf.transformer import DictionaryTransformer
from ondes.nmf.warm_restarts import StoredActivations
from ondes.rebatch import rebatch

__all__ = ["DictionaryLearner"]


class DictionaryLearner(DictionaryTransformer):
    """What `ondes.OnlineNMF` does, without what scikit-learn expects of an estimator beside that.

    Parameters and attributes are those of `ondes.OnlineNMF`.

    Examples
    --------
    >>> frames = np.random.default_rng(0).exponential(size=(500, 20))
    >>> DictionaryLearner(n_components=4, random_state=0).fit(frames).components_.shape
    (4, 20)
    """

    def __init__(
        self,
        n_components: int = 32,
        *,
        beta_loss: str | float = "itakura-saito",
        sparsity: float = 0.0,
        batch_size: int | None = 128,
        n_passes: int = 10,
        init: Any = "auto",
        forgetting: Forgetting | None = None,
        solver: Solver | None = None,
        transform_solver: Solver | None = None,
        dictionary_exponent: float = 0.9,
        restarts: str = "fresh",
        shuffle: bool = True,
        penalty: ActivationPenalty | None = None,
        dictionary_penalty: DictionaryPenalty | None = None,
        groups: Any = None,
        fixed_components: Any = None,
        background: Any = None,
        noise_floor: float = 1e-12,
        prior_frames: float = 0.0,
        tol: float = 0.0,
        random_state: Any = None,
        callback: Callable[[Any], object] | None = None,
        n_jobs: int | None = None,
        backend: str = "auto",
        device: str | None = None,
        precision: str | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.beta_loss = beta_loss
        self.sparsity = sparsity
        self.batch_size = batch_size
        self.n_passes = n_passes
        self.init = init
        self.forgetting = forgetting
        self.solver = solver
        self.transform_solver = transform_solver
        self.dictionary_exponent = dictionary_exponent
        self.restarts = restarts
        self.shuffle = shuffle
        self.penalty = penalty
        self.dictionary_penalty = dictionary_penalty
        self.groups = groups
        self.fixed_components = fixed_components
        self.background = background
        self.noise_floor = noise_floor
        self.prior_frames = prior_frames
        self.tol = tol
        self.random_state = random_state
        self.callback = callback
        self.n_jobs = n_jobs
        self.backend = backend
        self.device = device
        self.precision = precision
        self.verbose = verbose

    @classmethod
    def paper(
        cls,
        n_components: int = 32,
        *,
        batch_size: int | None = 1000,
        r: float = 0.7,
        restarts: str = "fresh",
        **others: Any,
    ) -> Self:
        """Algorithm 1 of Lefèvre, Bach and Févotte (2011), with its errors corrected.

        θ = ½, ρ = r^(β/N), random frames as the first dictionary, fresh restarts of 100 steps or
        warm restarts of one. `others` are parameters of the class.
        """
        preset: dict[str, Any] = {
            "forgetting": PerPass(r),
            "solver": Solver.paper(1 if restarts == "warm" else 100),
            "dictionary_exponent": 0.5,
            "init": "random",
        }
        return cls(n_components, batch_size=batch_size, restarts=restarts, **(preset | others))

    @classmethod
    def batch(cls, n_components: int = 32, *, n_passes: int = 100, **others: Any) -> Self:
        """Batch majorise-minimise, the paper's comparison: all frames at every update.

        It is the online algorithm with β = N and r = 0. `others` are parameters of the class.
        """
        preset: dict[str, Any] = {"restarts": "warm", "solver": Solver.paper(1), "shuffle": False}
        preset |= {"n_passes": n_passes} | others
        return cls.paper(n_components, batch_size=None, r=0.0, **preset)

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """The parameters, sorted by name; `deep` is scikit-learn's, and there is nothing deeper."""
        names = sorted(signature(DictionaryLearner).parameters)
        return {name: getattr(self, name) for name in names}

    def set_params(self, **parameters: Any) -> Self:
        """Change parameters; ValueError where there is no such one."""
        for name, value in parameters.items():
            if name not in self.get_params():
                raise ValueError(f"There is no parameter {name!r}; see `ondes.OnlineNMF`.")
            setattr(self, name, value)
        return self

    def with_parameters(self, **changed: Any) -> Self:
        """A copy that has learned the same, with these parameters changed."""
        other = type(self)(**copy.deepcopy(self.get_params(deep=False) | changed))
        return other.restore(self.state())

    # ---- learning ----

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn a new dictionary.

        Parameters
        ----------
        X : array or memory-map of shape (n_frames, n_bins), or an iterable of such arrays
            An iterable is read once per pass, and is never in memory as a whole. With
            ``backend="torch"`` also a tensor, or any array with DLPack.
        y : ignored
        """
        settings = self.settings
        if passes.is_iterable_of_arrays(X):
            passes.check_iterable(X, settings)
            changes = partial(self._pass_over_iterable, X, settings)
        else:
            frames = self._validate(X, settings, reset=True)
            self._initialise(frames, settings)
            stored = passes.stored_activations(frames, settings)
            changes = partial(self._pass_over_array, frames, stored, settings)

        def one_pass(number: int) -> bool:
            return any(change < settings.tol for change in changes(number))

        passes.run(self, one_pass, settings.n_passes, X, y)
        return self

    def _pass_over_array(
        self, frames: Array, stored: StoredActivations | None, settings: Settings, number: int
    ) -> Iterator[float]:
        """One pass; yields how far each update moved the dictionary."""
        self.n_passes_ = number
        settings = settings.in_pass(number, len(frames))
        order = np.arange(len(frames))
        if settings.shuffle:
            order = self.random_state_.permutation(len(frames))
        for _, change in self._train(frames, settings, order, len(frames), stored):
            yield change

    def _pass_over_iterable(
        self, arrays: Iterable[Any], settings: Settings, number: int
    ) -> Iterator[float]:
        """One pass; yields how far each update moved the dictionary."""
        batch, size = None, passes.at_once(settings)
        for batch in rebatch(self._frames(arrays, settings, number), size):
            for _, change in self._train(batch, settings):
                yield change
        if batch is None:
            raise ValueError("The iterable given to fit holds no frames; give some.")

    def _frames(self, arrays: Iterable[Any], settings: Settings, number: int) -> Iterator[Array]:
        """The checked arrays of an iterable, each permuted; the first active one initialises."""
        is_first = number == 1
        for array in arrays:
            frames = tensors.on_host(self._validate(array, settings, reset=is_first))
            if is_first or not self.is_initialised_:
                self._initialise(frames, settings)
            is_first = False
            self.n_passes_ = number
            # A copy either way: the iterable may use its memory again.
            yield self.random_state_.permutation(frames) if settings.shuffle else frames.copy()

    def initialise(self, X: Any) -> Self:
        """Choose the first dictionary from these frames; nothing is learned from them yet.

        `fit` and the first `partial_fit` do this by themselves. A stream whose first frames are
        too few or too similar may be initialised from more of them.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        """
        self._initialise(self._validate(X, self.settings, reset=True), self.settings)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Continue learning: one update per `batch_size` frames, so several per call if X is long.

        Frames left over at the end make one more, smaller batch.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        y : ignored
        """
        self.learn_batches(X)
        return self

    def learn_batches(self, X: Any) -> tuple[float, float]:
        """What `partial_fit` does; returns the number of non-silent frames and their divergence.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        """
        settings = self.settings
        is_first = not hasattr(self, "components_")
        frames = self._validate(X, settings, reset=is_first)
        if is_first or not self.is_initialised_:
            self._initialise(frames, settings)
        n_frames, divergence = 0.0, 0.0
        for trained, _ in self._train(frames, settings):
            n_frames += trained.n_frames
            divergence += trained.divergence
        return n_frames, divergence

    def summarise(self, X: Any) -> Statistics:
        """The statistics of these frames, for `absorb`; the dictionary does not change.

        Statistics of several machines can be added: `absorb` of their sum is one update on all
        frames.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        """
        self.check_fitted()
        settings = self.settings
        frames = self._validate(X, settings, reset=False)
        problem = settings.problem(self.components_)
        return encoding.summarise(frames, problem, settings.compute)[1]

    def absorb(self, statistics: Statistics, n_frames_in_set: int | None = None) -> Self:
        """One update: multiply the past by ρ, add `statistics`, and update the dictionary.

        Parameters
        ----------
        statistics : Statistics
            From `summarise`, or a sum of such.
        n_frames_in_set : int, optional
            N of the paper's forgetting factor r^(β/N), if the set is finite.
        """
        self.check_fitted()
        trainer = HostTrainer(self.settings)
        trainer.load(self.components_, self.statistics_, self.n_frames_seen_)
        trainer.absorb(statistics, n_frames_in_set)
        if statistics.n_frames:
            self._take_over(trainer, self.backend_)
        return self

    def _train(
        self,
        frames: Array,
        settings: Settings,
        order: NDArray[np.intp] | None = None,
        n_frames_in_set: int | None = None,
        stored: StoredActivations | None = None,
    ) -> Iterator[tuple[Trained, float]]:
        """One update per batch; yields what they were made from, and how far rows moved.

        How far, only where there is a `tol` to compare it with.
        """
        trainer = passes.trainer(settings, frames, getattr(self, "_trainer", None), stored)
        self._trainer = None if isinstance(trainer, HostTrainer) else trainer
        watched = self.callback is not None or bool(settings.tol)
        for part, rows in passes.portions(trainer, frames, order, settings.batch_size, watched):
            before = self.components_
            trainer.load(before, self.statistics_, self.n_frames_seen_)
            trained = trainer.train(part, rows, n_frames_in_set)
            if not trained.n_frames:
                yield trained, np.inf
                continue
            self._take_over(trainer, trainer.backend)
            # Not np.linalg.norm: threads of BLAS would take the cores from the kernel.
            is_asked = settings.tol > 0
            change = np.sqrt(np.square(self.components_ - before).sum()) if is_asked else np.inf
            yield trained, float(change)

    def _take_over(self, trainer: passes.Trainer, backend: str) -> None:
        self.components_, self.statistics_ = trainer.fetch()
        self.n_frames_seen_, self.backend_ = trainer.n_frames_seen, backend
        if self.callback is not None:
            self.callback(self)

    def _initialise(self, frames: Array, settings: Settings) -> None:
        """Forget everything; the first dictionary comes from these frames."""
        random_state = _random_state(self.random_state)
        components = first_dictionary(frames, settings, random_state)
        backend = settings.compute.backend_for(settings.problem(components))
        self.components_ = components
        self.statistics_ = Statistics.prior(
            components, settings.prior_frames, settings.divergence.beta
        )
        self.random_state_, self.n_frames_seen_ = random_state, 0
        # Out of silence no dictionary can be drawn: it is drawn from the next frames.
        self.is_initialised_ = not isinstance(settings.init, str) or bool(frames.any())
        self.backend_, self.n_passes_ = backend.NAME, 0


def _random_state(given: Any) -> np.random.RandomState:
    if isinstance(given, Integral):
        return np.random.RandomState(int(given))
    from sklearn.utils import check_random_state

    checked: np.random.RandomState = check_random_state(given)
    return checked
