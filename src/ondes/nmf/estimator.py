"""Online NMF behind scikit-learn's estimator interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

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

__all__ = ["OnlineNMF"]


class OnlineNMF(passes.CallbackSupportMixin, DictionaryTransformer):  # type: ignore[misc]
    """Learn a dictionary for nonnegative frames, one mini-batch after the other.

    Every frame v is modelled as activations × dictionary in the Itakura-Saito divergence, which
    weighs quiet detail as much as loud. Memory does not grow with the number of frames. The same
    data at another scale gives the same dictionary.

    Frames are rows: a spectrogram of shape (frequency, time), as librosa returns it, is given
    transposed, ``S.T``.

    Parameters
    ----------
    n_components : int, default=32
        Rows of the dictionary, the fixed ones included.
    beta_loss : {"itakura-saito", "kullback-leibler", "frobenius"} or float, default="itakura-saito"
        The divergence, or its index β from 0 to 2.
    sparsity : float, default=0
        λ of the penalty λ Σ_k ‖w_k‖₂ h_k on a frame of mean one: fewer components are active at a
        time, and the dictionary learns for that.
    batch_size : int or None, default=128
        Frames per update of the dictionary. None: one update per pass.
    n_passes : int, default=10
        How often `fit` goes over its frames.
    init : {"k-means++", "random"} or array of shape (n_components, n_bins), default="k-means++"
        The first dictionary: frames far apart from each other, random frames, or the rows given.
        An array may leave out the rows given in `fixed_components`.
    forgetting : Forgetting, default=None
        How the past fades; None is `GrowingMemory()`. See `ondes.nmf.forgetting`.
    solver : Solver, default=None
        How activations are found while learning; None is `Solver()`.
    transform_solver : Solver, default=None
        The same for `transform` and `score`; None is `Solver(max_steps=200, tol=1e-3)`.
    dictionary_exponent : float in (0, 1], default=0.9
        θ of the dictionary's update w ← w · (A / (w^(2−β) B))^θ; ½ is the paper's √(A / B).
    restarts : {"fresh", "warm"}, default="fresh"
        "warm": `fit` on an array keeps every frame's activations for its next visit.
    shuffle : bool, default=True
        Visit the frames in a new order in each pass; of an iterable, within each of its arrays.
    penalty : ActivationPenalty, default=None
        See `ondes.nmf.penalties`.
    dictionary_penalty : DictionaryPenalty, default=None
        See `ondes.nmf.penalties`. The update is then the exact minimum of the surrogate.
    groups : array of shape (n_components,), default=None
        A label for each component: those of one source share one. None: each is its own group.
    fixed_components : array of shape (n_fixed, n_bins), default=None
        Known spectra: the first rows of the dictionary, which never change.
    background : array of shape (n_bins,), default=None
        A known variance that the model adds to every frame, in the data's units.
    noise_floor : float, default=1e-12
        ε, relative to each frame's mean; from 1e-15 to 1.
    prior_frames : float, default=0
        The weight of the first dictionary, in frames of data; it fades as these would.
    tol : float, default=0
        `fit` stops when an update moves the dictionary by less, in the Frobenius norm.
    random_state : int, RandomState or None, default=None
    callback : callable, default=None
        Called with the estimator after every update; an exception that it raises ends `fit` and
        leaves the estimator as it is then. (scikit-learn's `set_callbacks` sees whole passes.)
    n_jobs : int or None, default=None
        Threads of the compiled kernel; None is one, −1 all. It does not change the result.
    backend : {"auto", "native", "reference", "torch"}, default="auto"
        What computes: the compiled kernel, NumPy, or PyTorch. "auto" is the kernel, or NumPy
        where it was not built.
    device : {"cpu", "cuda", "cuda:1", "mps"}, default=None
        Of backend="torch"; None is "cpu". A GPU is only used on request.
    precision : {"tf32", "ieee", "bf16"}, default=None
        Of the matrix products of float32 frames on a CUDA device; None is "tf32".
    verbose : int, default=0
        1: one line per pass on standard error.

    Attributes
    ----------
    components_ : array of shape (n_components, n_bins), float64
        The dictionary; every row sums to one.
    statistics_ : Statistics
        All that learning remembers of the frames.
    n_frames_seen_ : int
        Frames learned from; silent ones are not counted.
    is_initialised_ : bool
        Whether the first dictionary has been drawn; out of silence none can be.
    random_state_ : RandomState
    n_passes_ : int
        Passes that the last `fit` began.
    backend_ : str
        The backend of the last update, with its device where that is PyTorch.
    n_features_in_ : int
        Number of bins.

    Examples
    --------
    >>> import numpy as np
    >>> import ondes
    >>> frames = np.random.default_rng(0).exponential(size=(500, 20))
    >>> model = ondes.OnlineNMF(n_components=4, random_state=0).fit(frames)
    >>> model.transform(frames).shape
    (500, 4)
    """

    def __init__(
        self,
        n_components: int = 32,
        *,
        beta_loss: str | float = "itakura-saito",
        sparsity: float = 0.0,
        batch_size: int | None = 128,
        n_passes: int = 10,
        init: Any = "k-means++",
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
        callback: Callable[[OnlineNMF], object] | None = None,
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
        """Algorithm 1 of Lefèvre, Bach and Févotte (2011) with its errata, nothing more.

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

    # ---- learning ----

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn a new dictionary.

        Parameters
        ----------
        X : array or memory-map of shape (n_frames, n_bins), or an iterable of such arrays
            An iterable is read once per pass and never held whole. With ``backend="torch"`` also
            a tensor, or any array with DLPack.
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
        """Draw the first dictionary from these frames, and learn nothing from them yet.

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
        """What an update of the present dictionary needs of these frames; changes nothing.

        Statistics of several machines add up: `absorb` of their sum is one update on all frames.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        """
        check_is_fitted(self)
        settings = self.settings
        frames = self._validate(X, settings, reset=False)
        problem = settings.problem(self.components_)
        return encoding.summarise(frames, problem, settings.compute)[1]

    def absorb(self, statistics: Statistics, n_frames_in_set: int | None = None) -> Self:
        """One update: forget a little, add `statistics`, and move the dictionary.

        Parameters
        ----------
        statistics : Statistics
            From `summarise`, or a sum of such.
        n_frames_in_set : int, optional
            N of the paper's forgetting r^(β/N), where the set is finite.
        """
        check_is_fitted(self)
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
        """One update per batch; yields what they were made from, and how far rows moved."""
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
            yield trained, float(np.linalg.norm(self.components_ - before))

    def _take_over(self, trainer: passes.Trainer, backend: str) -> None:
        self.components_, self.statistics_ = trainer.fetch()
        self.n_frames_seen_, self.backend_ = trainer.n_frames_seen, backend
        if self.callback is not None:
            self.callback(self)

    def _initialise(self, frames: Array, settings: Settings) -> None:
        """Forget everything; the first dictionary comes from these frames."""
        random_state = check_random_state(self.random_state)
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
