"""Online NMF: learns a dictionary from frames, and finds activations with it.

scikit-learn takes a second and a hundred megabytes to import, so it is not imported here, where
all commands begin.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from inspect import signature
from numbers import Integral
from typing import TYPE_CHECKING, Any, ParamSpec, Self

import numpy as np
from numpy.typing import NDArray

from ondes.nmf import encoding
from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.fitted import DictionaryTransformer, checked_weights
from ondes.nmf.forgetting import ConstantFactor, Forgetting, PerPass, warn_without_total
from ondes.nmf.host_trainer import HostTrainer, Visits
from ondes.nmf.initialisation import common_weight, first_dictionary
from ondes.nmf.penalties import ActivationPenalty, DictionaryPenalty
from ondes.nmf.problem import AbsoluteFloor, Solver
from ondes.nmf.settings import PASSES, Settings
from ondes.nmf.statistics import Statistics, Trained
from ondes.rebatch import rebatch, slices

if TYPE_CHECKING:
    from ondes.nmf.device_trainer import DeviceTrainer

__all__ = ["DictionaryLearner"]

P = ParamSpec("P")
BATCHES_AT_ONCE = 64  # of an iterable, that a device is given
_SPARSITY = "give sparsity, or penalty=ondes.L1(…)"
ELSEWHERE = {  # what other packages call it, and what to give here
    "alpha": _SPARSITY,
    "alpha_W": _SPARSITY,
    "alpha_H": _SPARSITY,
    "l1_ratio": _SPARSITY,
    "max_iter": "give n_passes",
    "max_no_improvement": "give tol or n_passes",
    "forget_factor": "give forgetting=ondes.HalfLife(…) or ondes.PerPass(…)",
    "fresh_restarts": "give restarts='fresh' or 'warm'",
    "fresh_restarts_max_iter": "give solver=ondes.Solver(…)",
    "transform_max_iter": "give transform_solver=ondes.Solver(…)",
}


def _known_words(init: Callable[P, None]) -> Callable[P, None]:
    """Answer a parameter that there is not by a sentence, with the words of this package."""
    known = signature(init).parameters

    @wraps(init)
    def checked(*args: P.args, **parameters: P.kwargs) -> None:
        for name in parameters.keys() - known:
            instead = ELSEWHERE.get(name, "see the parameters in `help(ondes.OnlineNMF)`")
            raise TypeError(f"{name!r} is no parameter of {type(args[0]).__name__}: {instead}.")
        init(*args, **parameters)

    return checked


class DictionaryLearner(DictionaryTransformer):
    """What `ondes.OnlineNMF` does, without what scikit-learn expects of an estimator beside that.

    Parameters and attributes are those of `ondes.OnlineNMF`.

    Examples
    --------
    >>> frames = np.random.default_rng(0).exponential(size=(500, 20))
    >>> DictionaryLearner(n_components=4, random_state=0).fit(frames).components_.shape
    (4, 20)
    """

    _trainer: DeviceTrainer | None = None  # that of the last call, with its recorded graphs

    @_known_words
    def __init__(
        self,
        n_components: int | str = 32,
        *,
        beta_loss: str | float = "itakura-saito",
        weighting: str = "level",
        feature_weight: Any = None,
        sparsity: float = 0.0,
        batch_size: int | None = 128,
        n_passes: int | None = None,
        n_init: int = 1,
        init: Any = "auto",
        forgetting: Forgetting | None = None,
        solver: Solver | None = None,
        transform_solver: Solver | None = None,
        dictionary_exponent: float = 0.9,
        restarts: str = "fresh",
        start: Any = "even",
        remainder: str = "update",
        shuffle: bool = True,
        penalty: ActivationPenalty | None = None,
        dictionary_penalty: DictionaryPenalty | None = None,
        groups: Any = None,
        fixed_components: Any = None,
        background: Any = None,
        noise_floor: float | AbsoluteFloor = 1e-12,
        prior: float | Statistics = 0.0,
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
        self.weighting = weighting
        self.feature_weight = feature_weight
        self.sparsity = sparsity
        self.batch_size = batch_size
        self.n_passes = n_passes
        self.n_init = n_init
        self.init = init
        self.forgetting = forgetting
        self.solver = solver
        self.transform_solver = transform_solver
        self.dictionary_exponent = dictionary_exponent
        self.restarts = restarts
        self.start = start
        self.remainder = remainder
        self.shuffle = shuffle
        self.penalty = penalty
        self.dictionary_penalty = dictionary_penalty
        self.groups = groups
        self.fixed_components = fixed_components
        self.background = background
        self.noise_floor = noise_floor
        self.prior = prior
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
        beta: int | None = 1000,
        r: float = 0.7,
        rho: float | None = None,
        eta: float = 0.0,
        epsilon: float | None = None,
        W0: Any = None,
        A0: Any = None,
        B0: Any = None,
        H0: Any = "even",
        n_steps: int | None = None,
        restarts: str = "fresh",
        **others: Any,
    ) -> Self:
        """Algorithm 1 of Lefèvre, Bach and Févotte (2011), with its errors corrected.

        Its inputs have their names there; matrices are transposed, since frames are rows.

        Parameters
        ----------
        n_components : int
            K.
        beta : int or None
            β, the frames per update; None is N. With ``remainder="carry"`` the counter of frames
            runs on from pass to pass, as printed.
        r : float
            ρ = r^(β/N).
        rho : float, optional
            A constant ρ instead.
        eta : float
            η: `fit` stops when an update changes the dictionary by less.
        epsilon : float, optional
            ε in the data's units; by default 1e-12 of the mean of each frame.
        W0 : array of shape (n_components, n_bins), optional
            W⁰, rows divided by their sums; by default random frames.
        A0, B0 : arrays of shape (n_components, n_bins), optional
            A⁰ and B⁰ under W⁰ with rows that sum to one; by default 0.
        H0 : {"even", "random"} or array of shape (n_frames, n_components)
            Where activations start: at every visit with fresh restarts, at the first with warm.
        n_steps : int, optional
            Steps per visit; by default 100 with fresh restarts, and 1 with warm.
        restarts : {"fresh", "warm"}
        **others
            Parameters of the class.
        """
        preset: dict[str, Any] = {
            "batch_size": beta,
            "forgetting": PerPass(r) if rho is None else ConstantFactor(rho),
            "tol": eta,
            "init": "random" if W0 is None else W0,
            "start": H0,
            "solver": Solver.paper(n_steps or (1 if restarts == "warm" else 100)),
            "dictionary_exponent": 0.5,
        }
        if (A0 is None) != (B0 is None):
            raise ValueError("A0 and B0 belong together: give both or none.")
        if A0 is not None:
            preset["prior"] = Statistics(np.asarray(A0, float), np.asarray(B0, float), 0.0, 0.0)
        if epsilon is not None:
            preset["noise_floor"] = AbsoluteFloor(epsilon)
        return cls(n_components, restarts=restarts, **(preset | others))

    @classmethod
    def batch(cls, n_components: int = 32, *, n_passes: int = 100, **others: Any) -> Self:
        """Batch majorise-minimise, the paper's comparison: all frames at every update.

        It is the online algorithm with β = N and r = 0. `others` are parameters of the class.
        """
        preset: dict[str, Any] = {"restarts": "warm", "solver": Solver.paper(1), "shuffle": False}
        preset |= {"n_passes": n_passes} | others
        return cls.paper(n_components, beta=None, r=0.0, **preset)

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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn a new dictionary.

        Parameters
        ----------
        X : array or memory-map of shape (n_frames, n_bins), or an iterable of such arrays
            A list or tuple of arrays is one array in parts, which are not put together in memory.
            Any other iterable is read once per pass, and is never in memory as a whole. With
            ``backend="torch"`` also a tensor, or any array with DLPack. Missing entries are NaN, or
            masked: they do not count.
        y : ignored
        sample_weight : array of shape (n_frames,), optional
            What each frame counts: 2 is that of a frame given twice, 0 that of one left out. For an
            array or a list of arrays.
        """
        self._n_chosen = None
        vars(self).pop("choice_", None)
        if self._is_auto and not _is_stream(X):
            self._choose(X, sample_weight)
        settings, visits, n_active = self.settings, None, 0.0
        weights: Array | None = None
        if _is_stream(X):
            _check_unweighted(sample_weight)
        if settings.n_init > 1:
            return self._fit_best(X, settings, sample_weight)
        n_passes = settings.n_passes or PASSES
        if _is_stream(X):
            _check_stream(X, settings)
            warn_without_total(settings.forgetting)
            changes = partial(self._pass_over_stream, X, settings)
        else:
            frames = self._validate(X, settings, reset=True)
            weights = checked_weights(sample_weight, len(frames))
            self._initialise(frames, settings, weights)
            visits = Visits.of_array(frames, settings, self.random_state_)
            background = settings.background(frames.shape[1])
            has_floor = background is not None and background.any()  # silence is a frame too
            active = np.ones(len(frames), bool) if has_floor else tensors.active_rows(frames)
            if weights is not None:
                active &= weights > 0
                if not weights.any():
                    raise ValueError("sample_weight is zero for all frames: nothing to learn from.")
            n_visited = n_active = int(active.sum())
            if weights is not None:  # what counts little is visited all the same
                n_active = float(weights[active].sum())
                n_visited = max(n_visited, math.ceil(n_active))
            n_passes = settings.passes_over(n_visited)
            changes = partial(
                self._pass_over_array, frames, weights, n_active, n_visited, visits, settings
            )

        def is_last(number: int) -> bool:
            is_converged = any(change < settings.tol for change in changes(number))
            if self.verbose:
                self._print_progress(f"pass {number}/{n_passes}")
            return is_converged or number == n_passes

        self._run_passes(is_last, n_passes, {"X": X, "y": y})
        if visits is not None and visits.waiting is not None and not self.n_frames_seen_:
            self.absorb(visits.waiting, n_active)
        return self

    def _choose(self, X: Any, sample_weight: Any) -> None:
        """The number of components that describes entries best that were not learned from."""
        from ondes.nmf.choosing import check_free, choice_for

        check_free(self.get_params())
        self._n_chosen = 1  # until it is chosen: the other parameters are checked with it
        frames = self._validate(X, self.settings, reset=True)
        weights = checked_weights(sample_weight, len(frames))
        choice = choice_for(self.get_params(), frames, weights)
        self._n_chosen, self.choice_ = choice.n_components, choice
        if self.verbose:
            print(f"[ondes] {choice}", file=sys.stderr)

    def _fit_best(self, X: Any, settings: Settings, sample_weight: Any = None) -> Self:
        """`fit` with several seeds, side by side; the dictionary that describes X best."""
        is_stream = _is_stream(X)
        if is_stream:
            _check_stream(X, settings)
        highest = np.iinfo(np.int32).max
        seeds = _random_state(self.random_state).randint(highest, size=settings.n_init)
        others = self.get_params() | {"n_init": 1, "n_jobs": None}
        others["n_components"] = settings.n_components

        def run(seed: int) -> tuple[float, Self]:
            model = type(self)(**others | {"random_state": int(seed)})
            if is_stream:
                return -model.fit(X).statistics_.divergence_per_bin, model
            model.fit(X, sample_weight=sample_weight)
            return model.score(X, sample_weight=sample_weight), model

        in_turn = is_stream or self.callback is not None
        n_threads = 1 if in_turn else min(settings.compute.n_threads, settings.n_init)
        with ThreadPoolExecutor(n_threads) as pool:
            best = max(pool.map(run, seeds), key=lambda scored: scored[0])[1]
        return self.restore(best.state())

    def _print_progress(self, where: str) -> None:
        print(
            f"[ondes] {where}, {self.n_frames_seen_} frames, divergence "
            f"{self.statistics_.divergence_per_bin:.4f} per bin, backend {self.backend_}",
            file=sys.stderr,
        )

    def _run_passes(
        self, is_last: Callable[[int], bool], n_passes: int, data: dict[str, Any]
    ) -> None:
        """Make passes 1, 2, … until one is the last."""
        next(filter(is_last, itertools.count(1)))

    def _pass_over_array(
        self,
        frames: Array,
        weights: Array | None,
        n_active: float,
        n_visited: int,
        visits: Visits,
        settings: Settings,
        number: int,
    ) -> Iterator[float]:
        """One pass; yields how far each update moved the dictionary."""
        self.n_passes_ = number
        settings = settings.in_pass(number, n_visited)
        order = np.arange(len(frames))
        if settings.shuffle:
            order = self.random_state_.permutation(len(frames))
        for _, change in self._train(frames, settings, order, n_active, visits, weights):
            yield change

    def _pass_over_stream(
        self, arrays: Iterable[Any], settings: Settings, number: int
    ) -> Iterator[float]:
        """One pass; yields how far each update moved the dictionary."""
        batch, size = None, settings.batch_size or 1
        if settings.trains_on_device:
            size *= BATCHES_AT_ONCE
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
            order = self.random_state_.permutation(len(frames)) if settings.shuffle else None
            yield frames.copy() if order is None else frames[order]

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

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue learning: one update per `batch_size` frames, so several per call if X is long.

        Frames left over at the end make one more, smaller batch. `n_passes` and `shuffle` are of
        `fit`: here each frame is visited once, in the order given.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        y : ignored
        sample_weight : array of shape (n_frames,), optional
            What each frame counts; see `fit`.
        """
        settings = self.settings
        if settings.tol:
            raise ValueError(f"tol={settings.tol!r} ends `fit`; partial_fit has no passes to end.")
        if settings.n_init > 1:
            raise ValueError(f"n_init={settings.n_init} is of `fit`; partial_fit learns once.")
        _check_one_visit(settings, "partial_fit")
        if not getattr(self, "n_frames_seen_", 0):
            warn_without_total(settings.forgetting)
        self.learn_batches(X, sample_weight=sample_weight)
        if self.verbose:
            self._print_progress("partial_fit")
        return self

    def learn_batches(
        self, X: Any, n_frames_in_set: float | None = None, sample_weight: Any = None
    ) -> tuple[float, float]:
        """What `partial_fit` does; returns the number of non-silent frames and their divergence.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        n_frames_in_set : float, optional
            N of the paper's forgetting factor r^(β/N), if the set is finite.
        sample_weight : array of shape (n_frames,), optional
            What each frame counts.
        """
        settings = self.settings
        is_first = not hasattr(self, "components_")
        if not is_first:
            self._check_unchanged(settings)
        frames = self._validate(X, settings, reset=is_first)
        weights = checked_weights(sample_weight, len(frames))
        if is_first or not self.is_initialised_:
            self._initialise(frames, settings, weights)
        n_frames, divergence = 0.0, 0.0
        for trained, _ in self._train(frames, settings, None, n_frames_in_set, None, weights):
            n_frames += trained.n_frames
            divergence += trained.divergence
        return n_frames, divergence

    def summarise(self, X: Any, sample_weight: Any = None) -> Statistics:
        """The statistics of these frames, for `absorb`; the dictionary does not change.

        Statistics of several machines can be added: `absorb` of their sum is one update on all
        frames.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        sample_weight : array of shape (n_frames,), optional
            What each frame counts.
        """
        settings = self.settings
        self._check_unchanged(settings)
        _check_one_visit(settings, "`summarise`")
        frames = self._validate(X, settings, reset=False)
        weights = checked_weights(sample_weight, len(frames))
        problem = settings.problem(self.components_)
        return encoding.summarise(frames, problem, settings.compute, None, weights)[1]

    def absorb(self, statistics: Statistics, n_frames_in_set: float | None = None) -> Self:
        """One update: multiply the past by ρ, add `statistics`, and update the dictionary.

        Parameters
        ----------
        statistics : Statistics
            From `summarise`, or a sum of such.
        n_frames_in_set : float, optional
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
        n_frames_in_set: float | None = None,
        visits: Visits | None = None,
        weights: Array | None = None,
    ) -> Iterator[tuple[Trained, float]]:
        """One update per batch; yields what they were made from, and how far rows moved.

        How far, only where there is a `tol` to compare it with.
        """
        if settings.keeps_visits and visits is None:
            visits = Visits(settings, self.random_state_)
        trainer: HostTrainer | DeviceTrainer = HostTrainer(
            settings, visits if settings.keeps_visits else None
        )
        size = settings.batch_size or len(frames)
        first = size - (visits.n_waiting if visits is not None else 0)
        if settings.trains_on_device:
            from ondes.nmf.device_trainer import trainer_for

            trainer = self._trainer = trainer_for(settings, frames, self._trainer)
            if self.callback is None and not settings.tol:
                size = first = len(frames)  # a device needs the host no more until all is done
        for rows in slices(len(frames), size, first):
            part, chosen = (frames[rows], None) if order is None else (frames, order[rows])
            before = self.components_
            trainer.load(before, self.statistics_, self.n_frames_seen_)
            here = None if weights is None else weights[rows if order is None else order[rows]]
            trained = trainer.train(part, chosen, n_frames_in_set, here)
            if not trained.n_frames:
                yield trained, np.inf
                continue
            self._take_over(trainer, trainer.backend)
            # Not np.linalg.norm: threads of BLAS would take the cores from the kernel.
            is_asked = settings.tol > 0
            change = np.sqrt(np.square(self.components_ - before).sum()) if is_asked else np.inf
            yield trained, float(change)

    def _take_over(self, trainer: HostTrainer | DeviceTrainer, backend: str) -> None:
        self.components_, self.statistics_ = trainer.fetch()
        self.n_frames_seen_, self.backend_ = trainer.n_frames_seen, backend
        if self.callback is not None:
            self.callback(self)

    def _initialise(self, frames: Array, settings: Settings, weights: Array | None = None) -> None:
        """Forget everything; the first dictionary comes from these frames."""
        random_state = _random_state(self.random_state)
        components = first_dictionary(frames, settings, random_state, weights)
        backend = settings.compute.backend_for(settings.problem(components))
        self.components_ = components
        common = common_weight(frames, settings, weights)
        self.statistics_ = settings.first_statistics(components, common)
        self.random_state_, self.n_frames_seen_ = random_state, 0
        # Out of silence no dictionary can be drawn: it is drawn from the next frames.
        self.is_initialised_ = not isinstance(settings.init, str) or bool(
            tensors.active_rows(frames).any()
        )
        self.backend_, self.n_passes_ = backend.NAME, 0


def _is_stream(X: Any) -> bool:
    """Tell an iterable of arrays from anything that is one array itself, in parts or whole.

    Examples
    --------
    >>> _is_stream([[1.0, 2.0]]), _is_stream(iter([]))
    (False, True)
    """
    is_array = hasattr(X, "shape") or hasattr(X, "__array__")
    return isinstance(X, Iterable) and not is_array and not isinstance(X, (str, bytes, list, tuple))


def _check_stream(arrays: Iterable[Any], settings: Settings) -> None:
    """Raise a ValueError where these settings cannot be used with an iterable."""
    if settings.restarts == "warm":
        raise ValueError("restarts='warm' needs an array or a list of arrays; use 'fresh'.")
    _check_one_visit(settings, "an iterable")
    for name, default in {"n_passes": PASSES, "n_init": 1}.items():
        n = getattr(settings, name) or default
        if n > 1 and iter(arrays) is arrays:
            raise ValueError(
                f"{name}={n} needs an iterable that can be read again, and this iterator cannot; "
                f"give a list of arrays, or {name}=1."
            )
    if settings.batch_size is None:
        raise ValueError("batch_size=None needs an array or a list of arrays; give a number.")


def _check_unweighted(sample_weight: Any) -> None:
    if sample_weight is not None:
        raise ValueError(
            "sample_weight needs an array or a list of arrays; for an iterable call partial_fit "
            "with the weights of each of its arrays."
        )


def _check_one_visit(settings: Settings, where: str) -> None:
    """Raise a ValueError where these settings need frames that are known by their number."""
    if settings.remainder == "carry":
        raise ValueError(f"remainder='carry' needs `fit` of an array or a list, not {where}.")
    if not isinstance(settings.start, str):
        raise ValueError(f"start of each frame needs `fit` of an array or a list, not {where}.")


def _random_state(given: Any) -> np.random.RandomState:
    if isinstance(given, Integral):
        return np.random.RandomState(int(given))
    from sklearn.utils import check_random_state

    checked: np.random.RandomState = check_random_state(given)
    return checked
