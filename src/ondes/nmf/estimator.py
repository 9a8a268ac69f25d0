"""Online Itakura-Saito NMF behind scikit-learn's estimator interface."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from ondes.nmf import backends, parameters, seeding
from ondes.nmf.backends import reference
from ondes.nmf.cutting import cut, is_iterable_of_arrays, rebatch
from ondes.nmf.divergence import Array, LevelledFrames, level_frames
from ondes.nmf.forgetting import Forgetting, GrowingMemory, PerPass
from ondes.nmf.penalties import ActivationPenalty, DictionaryPenalty
from ondes.nmf.problem import Problem, Solver
from ondes.nmf.simplex import penalised_update
from ondes.nmf.statistics import Statistics
from ondes.nmf.warm import StoredActivations

TRANSFORM_SOLVER = Solver(max_steps=200, tol=1e-3)  # within 1e-3 of the converged divergence
_CHUNK = 4096  # frames transformed at a time: memory beyond input and output stays constant


class OnlineISNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learn a dictionary for nonnegative frames, one mini-batch after the other.

    Every frame v is explained as activations × dictionary in the Itakura-Saito divergence, which
    sees quiet detail as well as loud. Memory does not grow with the number of frames. The same
    data at another scale gives the same dictionary.

    Parameters
    ----------
    n_components : int, default=16
        Rows of the dictionary, the frozen ones included.
    batch_size : int or None, default=128
        The dictionary moves once every so many frames. None: once a pass.
    n_passes : int, default=10
        How often `fit` goes over its frames.
    init : {"k-means++", "random"} or array of shape (n_components, n_bins), default="k-means++"
        The first dictionary: frames far apart from each other, random frames, or the rows given.
        An array may leave out the rows given in `frozen`.
    forgetting : Forgetting, default=None
        How the past fades; None is `GrowingMemory()`. See `ondes.nmf.forgetting`.
    solver : Solver, default=None
        How activations are found while learning; None is `Solver()`.
    transform_solver : Solver, default=None
        The same for `transform` and `score`; None is `Solver(max_steps=200, tol=1e-3)`.
    dictionary_exponent : float in (0, 1], default=0.9
        θ of the dictionary's update w ← w · (A / (w² B))^θ; ½ is the paper's √(A / B).
    restarts : {"fresh", "warm"}, default="fresh"
        "warm": `fit` on an array keeps every frame's activations for its next visit.
    shuffle : bool, default=True
        Visit the frames in a new order each pass; of an iterable, inside each of its arrays.
    penalty : ActivationPenalty, default=None
        See `ondes.nmf.penalties`.
    dictionary_penalty : DictionaryPenalty, default=None
        See `ondes.nmf.penalties`. The update is then the surrogate's exact minimum.
    groups : array of shape (n_components,), default=None
        A label for each component: those of one source share one. None: each is its own group.
    frozen : array of shape (n_frozen, n_bins), default=None
        Known spectra: the first rows of the dictionary, which never move.
    background : array of shape (n_bins,), default=None
        A known variance that the model adds to every frame, in the data's units.
    noise_floor : float, default=1e-12
        ε, relative to each frame's mean.
    prior_frames : float, default=0
        How many frames of data the first dictionary weighs.
    tol : float, default=0
        `fit` stops when an update moves the dictionary by less, in the Frobenius norm.
    random_state : int, RandomState or None, default=None
    n_jobs : int or None, default=None
        Threads of the compiled kernel; None is one, −1 all. It does not change the result.
    backend : {"auto", "native", "reference", "torch"}, default="auto"
        Who does the work: the compiled kernel, NumPy, or PyTorch. "auto" is the kernel, or NumPy
        where it was not built.
    device : {"cpu", "cuda", "cuda:1", "mps"}, default=None
        Where backend="torch" works; None is "cpu". A card is never taken unasked.
    precision : {"tf32", "ieee", "bf16"}, default=None
        Of the products of float32 frames on a CUDA card; None is "tf32".
    verbose : int, default=0
        1: a line a pass on standard error.

    Attributes
    ----------
    components_ : array of shape (n_components, n_bins), float64
        The dictionary; every row sums to one.
    statistics_ : Statistics
        All that learning remembers.
    n_frames_seen_ : int
        Frames learned from; silent ones teach nothing and are not counted.
    is_seeded_ : bool
        Whether the first dictionary is drawn; as long as all is silence, it is not.
    n_passes_ : int
        Passes that the last `fit` began.
    backend_ : str
        Who did the work, and on which device where that was PyTorch.
    n_features_in_ : int
        Number of bins.

    Examples
    --------
    >>> import numpy as np
    >>> import ondes
    >>> frames = np.random.default_rng(0).exponential(size=(500, 20))
    >>> model = ondes.OnlineISNMF(n_components=4, random_state=0).fit(frames)
    >>> model.transform(frames).shape
    (500, 4)
    """

    components_: Array
    statistics_: Statistics
    n_frames_seen_: int
    is_seeded_: bool
    n_passes_: int
    backend_: str

    def __init__(
        self,
        n_components: int = 16,
        *,
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
        frozen: Any = None,
        background: Any = None,
        noise_floor: float = 1e-12,
        prior_frames: float = 0.0,
        tol: float = 0.0,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "auto",
        device: str | None = None,
        precision: str | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
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
        self.frozen = frozen
        self.background = background
        self.noise_floor = noise_floor
        self.prior_frames = prior_frames
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend
        self.device = device
        self.precision = precision
        self.verbose = verbose

    @classmethod
    def paper(
        cls,
        n_components: int = 16,
        *,
        batch_size: int = 1000,
        r: float = 0.7,
        restarts: str = "fresh",
        **others: Any,
    ) -> Self:
        """Algorithm 1 of Lefèvre, Bach and Févotte (2011) with its errata, nothing more.

        θ = ½, ρ = r^(β/N), random frames as the first dictionary, fresh restarts of 100 steps or
        warm restarts of one. `others` are parameters of the class.
        """
        settings: dict[str, Any] = {
            "forgetting": PerPass(r),
            "solver": Solver.paper(1 if restarts == "warm" else 100),
            "dictionary_exponent": 0.5,
            "init": "random",
        }
        return cls(n_components, batch_size=batch_size, restarts=restarts, **(settings | others))

    @classmethod
    def batch(cls, n_components: int = 16, *, n_passes: int = 100, **others: Any) -> Self:
        """Batch majorise-minimise, the paper's comparison: all frames at every update.

        It is the online algorithm with β = N and r = 0. `others` are parameters of the class.
        """
        settings: dict[str, Any] = {
            "forgetting": PerPass(0.0),
            "solver": Solver.paper(1),
            "dictionary_exponent": 0.5,
            "init": "random",
            "restarts": "warm",
            "shuffle": False,
        }
        return cls(n_components, batch_size=None, n_passes=n_passes, **(settings | others))

    # ---- learning ----

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn a new dictionary.

        Parameters
        ----------
        X : array or memory-map of shape (n_frames, n_bins), or an iterable of such arrays
            An iterable is read once a pass and never held whole.
        y : ignored
        """
        parameters.check(self)
        if is_iterable_of_arrays(X):
            return self._fit_iterable(X)
        frames = self._validate(X, reset=True)
        self._begin(frames)
        stored = None
        if self.restarts == "warm":
            stored = StoredActivations(len(frames), self.n_components, frames.dtype)
        for number in range(1, self.n_passes + 1):
            self.n_passes_ = number
            order = np.arange(len(frames))
            if self.shuffle:
                order = self.random_state_.permutation(len(frames))
            for rows in cut(order, self.batch_size):
                change = self._visit(frames, rows, stored)
                if change < self.tol:
                    return self
            self._report_pass()
        return self

    def _fit_iterable(self, arrays: Iterable[Any]) -> Self:
        if self.restarts == "warm":
            raise ValueError("restarts='warm' needs all frames in one array; use 'fresh'.")
        if self.n_passes > 1 and iter(arrays) is arrays:
            raise ValueError(
                f"n_passes={self.n_passes} cannot go over an iterator that is spent after one; "
                "give a list of arrays, or n_passes=1."
            )
        if self.batch_size is None:
            raise ValueError("batch_size=None needs all frames in one array; give a number.")
        for number in range(1, self.n_passes + 1):
            self.n_passes_ = number
            learned = False
            for batch in rebatch(self._arrays(arrays), self.batch_size):
                learned = True
                if self._learn(batch) < self.tol:
                    return self
            if not learned:
                raise ValueError("The iterable given to fit holds no frames; give some.")
            self._report_pass()
        return self

    def _arrays(self, arrays: Iterable[Any]) -> Iterator[Array]:
        """The arrays of an iterable, checked, each permuted in itself; the first one seeds."""
        first = self.n_passes_ == 1
        for array in arrays:
            frames = self._validate(array, reset=first)
            if first or not self.is_seeded_:
                self._begin(frames)
            first = False
            yield self.random_state_.permutation(frames) if self.shuffle else frames

    def begin(self, X: Any) -> Self:
        """Draw the first dictionary from these frames, and learn nothing from them yet.

        `fit` and the first `partial_fit` do this by themselves. A stream whose first frames are
        too few or too much alike may begin from more of them.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        """
        parameters.check(self)
        self._begin(self._validate(X, reset=True))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Go on learning: an update after every `batch_size` frames, and one for the rest.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        y : ignored
        """
        parameters.check(self)
        begun = hasattr(self, "components_")
        frames = self._validate(X, reset=not begun)
        if not begun or not self.is_seeded_:
            self._begin(frames)
        for batch in cut(frames, self.batch_size):
            self._learn(batch)
        return self

    def summarise(self, X: Any) -> Statistics:
        """What the present dictionary's next update needs of these frames; changes nothing.

        Statistics of several machines add up: `absorb` of their sum is one update on all frames.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        """
        check_is_fitted(self)
        return self._summarise(self._level(self._validate(X, reset=False)))[1]

    def absorb(self, statistics: Statistics, n_frames_in_set: int | None = None) -> Self:
        """Forget a little, add `statistics`, and move the dictionary.

        Parameters
        ----------
        statistics : Statistics
            From `summarise`, or a sum of such.
        n_frames_in_set : int, optional
            N of the paper's forgetting r^(β/N), where the set is finite.
        """
        check_is_fitted(self)
        self._absorb(statistics, n_frames_in_set)
        return self

    def _visit(self, frames: Array, rows: Array, stored: StoredActivations | None) -> float:
        """One mini-batch of a finite set; returns how far the dictionary moved."""
        batch = frames[rows]
        if stored is None:
            return self._learn(batch, len(frames))
        levelled = self._level(batch)
        rows = rows[levelled.sounding]
        start = stored.recall(rows) if self.n_passes_ > 1 else None
        activations, statistics = self._summarise(levelled, start)
        stored.keep(rows, activations)
        change, scale = self._absorb(statistics, len(frames))
        stored.rescale(scale)
        return change

    def _learn(self, batch: Array, n_frames_in_set: int | None = None) -> float:
        """One mini-batch; returns how far the dictionary moved."""
        return self._absorb(self._summarise(self._level(batch))[1], n_frames_in_set)[0]

    def _summarise(
        self, frames: LevelledFrames, start: Array | None = None
    ) -> tuple[Array, Statistics]:
        problem = parameters.problem_of(self, self.solver or Solver())
        backend = self._choose(problem, len(frames))
        self.backend_ = backend.NAME
        return backend.summarise(frames, problem, start, effective_n_jobs(self.n_jobs))

    def _absorb(self, statistics: Statistics, n_frames_in_set: int | None) -> tuple[float, Array]:
        """Returns how far the dictionary moved, and what its rows were divided by."""
        before = self.components_
        if statistics.n_frames == 0:
            return np.inf, np.ones(len(before))
        forgetting = self.forgetting or GrowingMemory()
        factor = forgetting.factor(self.n_frames_seen_, statistics.n_frames, n_frames_in_set)
        kept = self.statistics_.decay(factor) + statistics
        if self.dictionary_penalty is not None:
            moved = penalised_update(before, kept, self.dictionary_penalty)
        else:
            moved = reference.update_dictionary(before, kept, self.dictionary_exponent)
        n_frozen = parameters.n_frozen(self)
        moved[:n_frozen] = before[:n_frozen]
        self.components_, self.statistics_, scale = reference.rescale(moved, kept, n_frozen)
        self.n_frames_seen_ += round(statistics.n_frames)
        return float(np.linalg.norm(self.components_ - before)), scale

    # ---- using the dictionary ----

    def transform(self, X: Any) -> Array:
        """Solve for the activations of each frame on its own.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)

        Returns
        -------
        array of shape (n_frames, n_components), of the frames' dtype
        """
        check_is_fitted(self)
        frames = self._validate(X, reset=False)
        activations = np.empty((len(frames), self.n_components), dtype=frames.dtype)
        for first, levelled, solved in self._encode(frames):
            scaled = solved * levelled.level[:, None]
            activations[first : first + _CHUNK] = levelled.spread(scaled)
        return activations

    def inverse_transform(self, X: Any) -> Array:
        """The modelled frames: activations × dictionary, plus the background where one is known.

        Parameters
        ----------
        X : array of shape (n_frames, n_components)

        Returns
        -------
        array of shape (n_frames, n_bins)
        """
        check_is_fitted(self)
        activations = np.asarray(X)
        if activations.ndim != 2 or activations.shape[1] != len(self.components_):
            raise ValueError(
                f"Activations of shape {activations.shape} do not fit {len(self.components_)} "
                "components; give an array of shape (n_frames, n_components)."
            )
        model: Array = activations @ self.components_.astype(activations.dtype)
        if self.background is not None:
            model = model + np.asarray(self.background, dtype=model.dtype)
        return model

    def score_samples(self, X: Any) -> Array:
        """Minus the divergence per bin, one value a frame; zero for a silent one.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)

        Returns
        -------
        array of shape (n_frames,), float64
        """
        return self._scores(X)[0]

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the mean divergence per bin over the frames with sound: higher is better.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        y : ignored
        """
        scores, n_sounding = self._scores(X)
        return float(scores.sum() / max(n_sounding, 1))

    def _scores(self, X: Any) -> tuple[Array, int]:
        check_is_fitted(self)
        frames = self._validate(X, reset=False)
        scores, n_sounding = np.empty(len(frames)), 0
        problem = parameters.problem_of(self, self._transform_solver)
        for first, levelled, solved in self._encode(frames):
            each = -reference.divergences(levelled, solved, problem) / frames.shape[1]
            scores[first : first + _CHUNK] = levelled.spread(each)
            n_sounding += len(levelled)
        return scores, n_sounding

    def _encode(self, frames: Array) -> Iterator[tuple[int, LevelledFrames, Array]]:
        problem = parameters.problem_of(self, self._transform_solver)
        backend = self._choose(problem, len(frames))
        n_jobs = effective_n_jobs(self.n_jobs)
        for first in range(0, len(frames), _CHUNK):
            levelled = self._level(frames[first : first + _CHUNK])
            yield first, levelled, backend.encode(levelled, problem, None, n_jobs)

    def _choose(self, problem: Problem, n_frames: int) -> backends.Backend:
        return backends.choose(self.backend, problem, n_frames, self.device, self.precision)

    # ---- the edge ----

    def _validate(self, X: Any, reset: bool) -> Array:
        frames: Array = validate_data(
            self, X, reset=reset, dtype=[np.float64, np.float32], order="C"
        )
        check_non_negative(frames, type(self).__name__)
        return frames

    def _begin(self, frames: Array) -> None:
        """Forget everything; the first dictionary comes from these frames."""
        random_state = check_random_state(self.random_state)
        components = self._first_dictionary(frames, random_state)
        self.random_state_, self.n_frames_seen_ = random_state, 0
        # Out of silence no dictionary can be drawn: the next frames are asked again.
        self.is_seeded_ = not isinstance(self.init, str) or bool(frames.any())
        self.components_ = components
        self.statistics_ = Statistics.prior(components, self.prior_frames)

    def _first_dictionary(self, frames: Array, random_state: np.random.RandomState) -> Array:
        frozen, given = parameters.known_rows(self, frames.shape[1])
        if given is not None:
            return np.concatenate([frozen, given])
        n_drawn = self.n_components - len(frozen)
        sounding = np.flatnonzero(frames.any(axis=1))
        candidates = random_state.permutation(sounding)[: seeding.n_candidates(n_drawn)]
        levelled = self._level(frames[candidates]).values + frames.dtype.type(self.noise_floor)
        return np.concatenate([frozen, seeding.DRAWS[self.init](levelled, n_drawn, random_state)])

    @property
    def _transform_solver(self) -> Solver:
        return self.transform_solver or TRANSFORM_SOLVER

    def _level(self, frames: Array) -> LevelledFrames:
        return level_frames(frames, parameters.background_of(self, frames.shape[1]))

    def _report_pass(self) -> None:
        if self.verbose:
            cost = self.statistics_.divergence_per_bin
            print(
                f"[ondes] pass {self.n_passes_}/{self.n_passes}, {self.n_frames_seen_} frames, "
                f"divergence {cost:.4f} per bin, backend {self.backend_}",
                file=sys.stderr,
            )

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
