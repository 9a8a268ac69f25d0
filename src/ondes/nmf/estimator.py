"""Online NMF as an estimator of scikit-learn."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array, BetaDivergence
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.settings import Settings

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """There are no callbacks to support."""


__all__ = ["OnlineNMF"]

FEW_ZEROS, HIGH_FLOOR = 0.05, 1e-6
FRAMES_TO_LOOK_AT = 1000


def _visits_frames_once(estimator: DictionaryLearner) -> bool:
    if estimator.restarts == "warm":
        raise AttributeError(
            "restarts='warm' is of `fit`, which visits frames again; partial_fit needs 'fresh'."
        )
    return True


class OnlineNMF(
    CallbackSupportMixin,  # type: ignore[misc]
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
    DictionaryLearner,
):
    """Learn a dictionary for nonnegative frames, one mini-batch after the other.

    Every frame v is modelled as activations × dictionary, by default in the Itakura-Saito
    divergence, which gives quiet detail as much weight as loud. Memory does not grow with the
    number of frames. The same data at another scale gives the same dictionary.

    Frames are rows: a spectrogram of shape (frequency, time), as librosa returns it, is given
    transposed, ``S.T``.

    Parameters
    ----------
    n_components : int or "auto", default=32
        Rows of the dictionary, the fixed ones included. "auto": `fit` of an array chooses them from
        a part of it, as `ondes.choose_components` does, in many times the time of `fit`.
    beta_loss : {"itakura-saito", "kullback-leibler", "frobenius"} or float, default="itakura-saito"
        The divergence, or its index β from 0 to 2.
    weighting : {"level", "equal"}, default="level"
        "level": the divergence of the data as they are, as in scikit-learn's ``NMF``: where β > 0,
        loud frames count more, by their mean to the power of β. "equal": that of frames divided by
        their means, so that all count the same; `ondes.learn` asks for it. With β = 0 both are the
        same.
    feature_weight : array of shape (n_bins,), default=None
        What each bin counts; a bin of weight 0 is not learned from. None is 1.
    sparsity : float, default=0
        λ of the penalty λ Σ_k ‖w_k‖₂ h_k on a frame of mean one: fewer components are active at a
        time, and the dictionary is learned accordingly.
    batch_size : int or None, default=128
        Frames per update of the dictionary. None: one update per pass.
    n_passes : int or None, default=None
        Number of passes of `fit` over its frames. None is 10, and more for an array of at most two
        thousand frames, so that there are at least 60 updates.
    n_init : int, default=1
        `fit` learns with so many seeds, `n_jobs` of them side by side, and keeps the dictionary
        with the best `score`, or for an iterable the lowest running divergence.
    init : {"auto", "k-means++", "parts", "random"} or array of shape (n_components, n_bins)
        The first dictionary: frames far apart from each other, bins that move together, random
        frames, or the rows given. "auto", the default, is "k-means++" for fewer than two thousand
        frames; for more it is "parts" with Itakura-Saito, and "random" with other divergences.
        Where loud frames count more, they are drawn more often. An array may leave out the rows
        given in `fixed_components`.
    forgetting : Forgetting, default=None
        How earlier frames lose weight; None is `GrowingMemory()`. See `ondes.nmf.forgetting`.
    solver : Solver, default=None
        How activations are found while learning. None is `Solver()`, with more steps in later
        passes of `fit` over an array of up to 16,384 frames.
    transform_solver : Solver, default=None
        The same for `transform` and `score`; None is `Solver(max_steps=200, tol=1e-3)`.
    dictionary_exponent : float in (0, 1], default=0.9
        θ of the dictionary's update w ← w · (A / (w^(2−β) B))^θ; ½ is the paper's √(A / B).
    restarts : {"fresh", "warm"}, default="fresh"
        "warm": `fit` on an array keeps every frame's activations for its next visit.
    start : {"even", "random"} or array of shape (n_frames, n_components), default="even"
        Where the activations of a visit start; with warm restarts, those of the first visit. An
        array, in the data's units, is for `fit` on an array.
    remainder : {"update", "carry"}, default="update"
        The frames left over where a pass ends make an update of their own, or the batch goes on in
        the next pass, so that every update has `batch_size` frames; for `fit` on an array.
    shuffle : bool, default=True
        Visit the frames in a new order in each pass; for an iterable, within each of its arrays.
    penalty : ActivationPenalty, default=None
        See `ondes.nmf.penalties`.
    dictionary_penalty : DictionaryPenalty, default=None
        See `ondes.nmf.penalties`. The update is then the exact minimum of the surrogate.
    groups : array of shape (n_components,), default=None
        A label for each component, the same for all components of one source. None: each component
        is its own group.
    fixed_components : array of shape (n_fixed, n_bins), default=None
        Known spectra: the first rows of the dictionary, which never change.
    background : array of shape (n_bins,), default=None
        A known variance that the model adds to every frame, in the data's units.
    noise_floor : float or AbsoluteFloor, default=1e-12
        ε, added to frames and model: relative to each frame's mean, from 1e-15 to 1, or, with
        `ondes.nmf.problem.AbsoluteFloor`, in the data's units.
    prior : float or Statistics, default=0
        The weight of the first dictionary, in frames of data; it is forgotten as data is. Or the
        statistics to begin with.
    tol : float, default=0
        `fit` stops when an update changes the dictionary by less than this, in the Frobenius norm.
    random_state : int, RandomState or None, default=None
    callback : callable, default=None
        Called with the estimator after every update; an exception that it raises ends `fit` and
        leaves the estimator as it is then. (scikit-learn's `set_callbacks` is for whole passes.)
    n_jobs : int or None, default=None
        Threads of the compiled kernel; None is one, −1 is one per core. It does not change the
        result.
    backend : {"auto", "native", "reference", "torch"}, default="auto"
        What computes: the compiled kernel, NumPy, or PyTorch. "auto" is the kernel, or NumPy
        if the kernel was not built.
    device : {"cpu", "cuda", "cuda:1", "mps"}, default=None
        Device of backend="torch"; None is "cpu". A GPU is only used on request.
    precision : {"tf32", "ieee", "bf16"}, default=None
        Precision of the matrix products of float32 frames on a CUDA device; None is "tf32".
    verbose : int, default=0
        1: one line per pass on standard error.

    Attributes
    ----------
    components_ : array of shape (n_components, n_bins), float64
        The dictionary; every row sums to one.
    statistics_ : Statistics
        The sums over frames that the dictionary is updated from.
    n_frames_seen_ : int
        Frames learned from; silent ones are not counted.
    is_initialised_ : bool
        Whether the first dictionary has been chosen, which needs a frame that is not silent.
    random_state_ : RandomState
    n_passes_ : int
        Passes that the last `fit` began.
    backend_ : str
        The backend of the last update, with its device if that is PyTorch.
    n_iter_ : int
        The same as `n_passes_`.
    reconstruction_err_ : float
        √(2 Σ d) over the frames of a pass, each at the time of its update: an estimate of what
        scikit-learn's ``NMF`` calls so.
    n_features_in_ : int
        Number of bins.
    choice_ : ComponentChoice
        With ``n_components="auto"``, how that was chosen; see `ondes.choose_components`.

    Examples
    --------
    >>> import numpy as np
    >>> import ondes
    >>> frames = np.random.default_rng(0).exponential(size=(500, 20))
    >>> model = ondes.OnlineNMF(n_components=4, random_state=0).fit(frames)
    >>> model.transform(frames).shape
    (500, 4)
    """

    def _fit_best(self, X: Any, settings: Settings, sample_weight: Any = None) -> Self:
        if getattr(self, "_skl_callbacks", None):
            raise ValueError(f"n_init={settings.n_init} does not go with set_callbacks; use 1.")
        return super()._fit_best(X, settings, sample_weight)

    def _initialise(self, frames: Array, settings: Settings, weights: Array | None = None) -> None:
        _warn_of_zeros(frames, settings)
        super()._initialise(frames, settings, weights)

    @classmethod
    def of(cls, learner: DictionaryLearner) -> Self:
        """The estimator with the parameters of a learner, and with all that it has learned.

        Parameters
        ----------
        learner : DictionaryLearner
            It must not be used afterwards.
        """
        estimator = cls()
        estimator.__dict__ |= learner.__dict__
        return estimator

    def _run_passes(
        self, is_last: Callable[[int], bool], n_passes: int, data: dict[str, Any]
    ) -> None:
        """Each pass is a task of the callbacks set by `set_callbacks`, which may also end `fit`."""
        if not getattr(self, "_skl_callbacks", None):
            super()._run_passes(is_last, n_passes, data)
            return
        from sklearn.callback import with_callbacks

        with_callbacks(_run_tasks)(self, is_last, n_passes, data)

    partial_fit = available_if(_visits_frames_once)(DictionaryLearner.partial_fit)

    transform = DictionaryLearner.transform  # scikit-learn's `set_output` needs it in this class

    def as_frames(self, X: Any, reset: bool, **conversion: Any) -> Array:
        """Frames from anything that scikit-learn accepts as an array; feature names are kept."""
        checks: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": False}
        frames: Array = validate_data(self, X, reset=reset, **checks, **conversion)
        return frames

    def check_fitted(self) -> None:
        """Raise scikit-learn's NotFittedError if nothing was learned."""
        check_is_fitted(self)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = _takes_sparse(self.beta_loss, self.backend)
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _takes_sparse(beta_loss: Any, backend: Any) -> bool:
    """As `Settings.check_sparse` has it, where the divergence is one; an estimator may be none."""
    try:
        beta = BetaDivergence.of(beta_loss).beta
    except ValueError:
        return False
    return beta >= 1 and backend != "torch"


def _warn_of_zeros(frames: Array, settings: Settings) -> None:
    """Zeros among other numbers: with Itakura-Saito they count more than all else."""
    is_plain = settings.background_spectrum is None and not settings.added
    if settings.divergence.beta != 0 or not is_plain or settings.floor > HIGH_FLOOR:
        return
    some = tensors.rows_of(frames, np.arange(0, len(frames), len(frames) // FRAMES_TO_LOOK_AT + 1))
    some = some[some.any(axis=1)]
    share = np.mean(some == 0) if some.size else 0.0
    if share > FEW_ZEROS:
        warnings.warn(
            f"{share:.0%} of the entries of X are exactly zero, and with the Itakura-Saito "
            "divergence they decide the result: give beta_loss='kullback-leibler', a noise_floor "
            "of what is too little to count, or NaN where an entry is missing.",
            stacklevel=4,
        )


def _run_tasks(
    estimator: Any, is_last: Callable[[int], bool], n_passes: int, data: dict[str, Any]
) -> None:
    fit = estimator._init_callback_context(max_subtasks=n_passes)
    fit.call_on_fit_task_begin(estimator=estimator, **data)
    data = data | {"reconstruction_attributes": {}}  # the estimator is whole after every pass
    for number in itertools.count(1):
        task = fit.subcontext(task_name="pass")
        task.call_on_fit_task_begin(estimator=estimator, **data)
        is_over = is_last(number)
        if task.call_on_fit_task_end(estimator=estimator, **data) or is_over:
            break
    fit.call_on_fit_task_end(estimator=estimator, **data)
