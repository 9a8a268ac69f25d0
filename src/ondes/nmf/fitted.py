"""A fitted dictionary: its state, the frames it is given, and their activations and scores.

Frames are checked once: arrays stay arrays, and what is on a device stays there. Arrays that a CUDA
device will work on cross to it here, whole, and are checked there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, cast

import numpy as np

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Encoding, encode_blocks
from ondes.nmf.settings import LARGEST_WEIGHT, Settings
from ondes.nmf.sparse import SparseFrames, is_sparse
from ondes.nmf.statistics import Statistics

__all__ = ["DictionaryTransformer", "FittedState", "checked_weights"]

_CPU = 1  # of DLPack


@dataclass(frozen=True, eq=False)
class FittedState:
    """What `OnlineNMF.state` returns and `OnlineNMF.restore` takes: learning goes on from here.

    Raises a ValueError of one sentence where its parts are invalid or do not fit together.

    Attributes
    ----------
    components : array of shape (n_components, n_bins), float64
    statistics : Statistics
    n_frames_seen : int, or float where frames have weights
    is_initialised : bool
    random_state : numpy.random.RandomState
    n_features_in : int
        Number of bins.
    backend : str
    n_passes : int
    feature_names_in : array of shape (n_bins,), or None

    Examples
    --------
    >>> import numpy as np
    >>> import ondes
    >>> frames = np.random.default_rng(0).exponential(size=(50, 6))
    >>> state = ondes.OnlineNMF(2, random_state=0).partial_fit(frames).state()
    >>> ondes.OnlineNMF(2).restore(state).n_frames_seen_
    50
    """

    components: Array
    statistics: Statistics
    n_frames_seen: float
    is_initialised: bool
    random_state: np.random.RandomState
    n_features_in: int
    backend: str = ""
    n_passes: int = 0
    feature_names_in: Array | None = None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields; with an underscore at the end they are attributes of the estimator."""
        return tuple(field.name for field in fields(cls))

    def __post_init__(self) -> None:
        numerator, denominator, divergence, n_frames = (
            getattr(self.statistics, name, None)
            for name in ("numerator", "denominator", "divergence", "n_frames")
        )
        _check_count("n_features_in", self.n_features_in)
        _check_count("n_frames_seen", self.n_frames_seen)
        _check_count("n_passes", self.n_passes)
        _check_count("n_frames", n_frames)
        _check_count("divergence", divergence, least=-math.inf)
        shape = (len(np.atleast_1d(self.components)), int(self.n_features_in))
        _check_entries("components", self.components, shape)
        _check_entries("numerator", numerator, shape)
        _check_entries("denominator", denominator, shape)
        if not isinstance(self.random_state, np.random.RandomState):
            raise ValueError("random_state must be a RandomState.")
        if not isinstance(self.is_initialised, (bool, np.bool_)):
            raise ValueError("is_initialised must be true or false.")
        if not isinstance(self.backend, str):
            raise ValueError("backend must be a name.")
        names = self.feature_names_in
        if names is not None and np.shape(names) != shape[1:]:
            raise ValueError(f"feature_names_in must have {shape[1]} names.")

    def check_fits(self, settings: Settings) -> None:
        """Raise a ValueError where this state cannot be of an estimator with these settings."""
        n_components, n_bins = self.components.shape
        if n_components != settings.n_components:
            raise ValueError(
                f"A state of {n_components} components does not fit "
                f"n_components={settings.n_components}."
            )
        if self.statistics.beta != settings.divergence.beta:
            raise ValueError(
                f"Statistics of β = {self.statistics.beta:g} do not fit "
                f"beta_loss={settings.beta_loss!r}."
            )
        settings.background(n_bins)
        settings.known_rows(n_bins)


def _check_count(name: str, count: object, least: float = 0) -> None:
    if not isinstance(count, (int, float, np.number)) or not math.isfinite(count):
        raise ValueError(f"{name} must be a finite number.")
    if count < least:
        raise ValueError(f"{name} must not be negative.")


def _check_entries(name: str, array: object, shape: tuple[int, int]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.shape != shape:
        raise ValueError(f"{name} must be a float64 array of shape {shape}.")
    if not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(f"{name} must be finite and nowhere negative.")


class DictionaryTransformer:
    """What an estimator does with `components_` once it has learned them."""

    _n_chosen: int | None = None  # with n_components="auto"

    n_components: Any
    background: Any
    components_: Array
    statistics_: Statistics
    n_frames_seen_: float
    is_initialised_: bool
    random_state_: np.random.RandomState
    n_passes_: int
    backend_: str
    n_features_in_: int

    @property
    def settings(self) -> Settings:
        """The parameters, checked and typed."""
        parameters = vars(self)
        if self._is_auto:
            if self._n_chosen is None:
                raise ValueError(
                    "n_components='auto' is chosen by `fit` of an array or a list of arrays: give "
                    "a number here, such as that of `ondes.choose_components` of some frames."
                )
            parameters = parameters | {"n_components": self._n_chosen}
        return Settings.from_parameters(parameters)

    @property
    def _is_auto(self) -> bool:
        return isinstance(self.n_components, str) and self.n_components == "auto"

    @property
    def n_iter_(self) -> int:
        """scikit-learn's name of `n_passes_`."""
        return self.n_passes_

    @property
    def reconstruction_err_(self) -> float:
        """√(2 Σ d) over the frames of a pass, from the running divergence: no frame is read again.

        scikit-learn's has every frame under the last dictionary.
        """
        statistics, n_in_pass = self.statistics_, self.n_frames_seen_ / max(1, self.n_passes_)
        mean = statistics.divergence / statistics.n_frames if statistics.n_frames else 0.0
        return math.sqrt(2 * max(0.0, mean * n_in_pass))

    def state(self) -> FittedState:
        """All that was learned, as a value that later learning does not change."""
        self._check_unchanged(self.settings)
        learned: dict[str, Any] = {
            name: getattr(self, f"{name}_", None) for name in FittedState.names()
        }
        return FittedState(**copy.deepcopy(learned))

    def _check_unchanged(self, settings: Settings) -> None:
        """Raise ValueError where nothing was learned, or something else than parameters now say."""
        self.check_fitted()
        n_components, beta = len(self.components_), self.statistics_.beta
        if n_components != settings.n_components:
            raise ValueError(
                f"n_components={settings.n_components}, but {n_components} were learned: call fit, "
                "or set it back."
            )
        if beta != settings.divergence.beta:
            raise ValueError(
                f"beta_loss={settings.beta_loss!r}, but it was learned with β = {beta:g}: call "
                "fit, or set it back."
            )

    def restore(self, state: FittedState) -> Self:
        """Use what was learned elsewhere; ValueError if it does not fit the parameters.

        Parameters
        ----------
        state : FittedState
            From `state`; it is copied.
        """
        self._n_chosen = len(state.components)
        state.check_fits(self.settings)
        for name, value in vars(copy.deepcopy(state)).items():
            setattr(self, f"{name}_", value)
        if state.feature_names_in is None:  # scikit-learn's attribute for frames without names
            delattr(self, "feature_names_in_")
        return self

    def check_fitted(self) -> None:
        """Raise ValueError where nothing was learned."""
        if not hasattr(self, "components_"):
            raise ValueError("This dictionary has not been learned yet; learn it first.")

    def as_frames(
        self, X: Any, reset: bool, *, dtype: Any = None, order: Literal["C"] | None = None
    ) -> Array:
        """An array of shape (n_frames, n_bins); ValueError where it does not fit the dictionary."""
        frames: Array = X if is_sparse(X) else np.asarray(X, order=order)
        if frames.ndim != 2 or not frames.size or frames.dtype not in (dtype or [frames.dtype]):
            raise ValueError(
                f"X of shape {frames.shape} and type {frames.dtype} must be an array of floats "
                "of shape (n_frames, n_bins)."
            )
        if reset:
            self.n_features_in_ = frames.shape[1]
        elif frames.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {frames.shape[1]} features, but the dictionary has {self.n_features_in_}."
            )
        return frames

    def __getstate__(self) -> dict[str, Any]:
        # The fitted attributes have all that is on a device, and recorded graphs are not stored.
        return {name: value for name, value in vars(self).items() if name != "_trainer"}

    def transform(self, X: Any) -> Array:
        """Solve for the activations of each frame on its own.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
            With ``backend="torch"`` also a tensor, or any array with DLPack: on the estimator's
            device it is not copied.

        Returns
        -------
        array of shape (n_frames, n_components), of the frames' dtype
            For a tensor, a tensor on the same device.
        """
        frames, blocks = self._encode(X)
        activations = _empty(frames, (len(frames), len(self.components_)), frames.dtype)
        for rows, encoded in blocks:
            activations[rows] = encoded.full()
        return _like(X, activations)

    def inverse_transform(self, X: Any) -> Array:
        """The modelled frames: activations × dictionary, plus the background if one is known.

        Parameters
        ----------
        X : array of shape (n_frames, n_components)

        Returns
        -------
        array of shape (n_frames, n_bins)
        """
        self.check_fitted()
        if tensors.is_tensor(X) and self.settings.compute.backend == "torch":
            return self._inverse_of_tensor(X)
        activations = np.asarray(X)
        if activations.dtype.kind in "biu":
            activations = activations.astype(np.float64)
        self._check_activations(activations)
        model: Array = activations @ self.components_.astype(activations.dtype)
        if self.background is not None:
            model = model + np.asarray(self.background, dtype=model.dtype)
        return model

    def _inverse_of_tensor(self, activations: Any) -> Array:
        activations = activations if activations.is_floating_point() else activations.double()
        self._check_activations(activations)
        model = activations @ activations.new_tensor(self.components_)
        if self.background is not None:
            model = model + activations.new_tensor(np.asarray(self.background))
        found: Array = model
        return found

    def _check_activations(self, activations: Array) -> None:
        if activations.ndim != 2 or activations.shape[1] != len(self.components_):
            raise ValueError(
                f"Activations of shape {tuple(activations.shape)} do not fit "
                f"{len(self.components_)} components; give an array of shape "
                "(n_frames, n_components)."
            )

    def score_samples(self, X: Any) -> Array:
        """Minus the divergence per bin, one value per frame; zero for a silent frame.

        With ``weighting="level"`` it is in the data's units, with ``"equal"`` that of a frame of
        mean one. Missing entries, NaN, do not count.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)

        Returns
        -------
        array of shape (n_frames,), float64
        """
        frames, blocks = self._encode(X)
        scores = _empty(frames, (len(frames),))
        for rows, encoded in blocks:
            scores[rows] = encoded.scores()
        return _like(X, scores)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The mean of `score_samples`, silent frames included: higher is better.

        Use it to compare dictionaries of the same size. It rises with the number of components, on
        held-out frames as well, because activations are fitted to each frame: ``GridSearchCV`` over
        `n_components` chooses the largest. To choose this number, measure the result that you
        want, such as separation (`ondes.Dictionary.separate`), or take the number beyond which the
        score hardly rises.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        y : ignored
        sample_weight : array of shape (n_frames,), optional
            What each frame counts.
        """
        scores = self.score_samples(X)
        weights = checked_weights(sample_weight, len(scores))
        if weights is None:
            return float(scores.mean())
        if not weights.any():
            raise ValueError("sample_weight is zero for all frames, so there is no score.")
        return float(np.average(tensors.on_host(scores), weights=weights))

    def _encode(self, X: Any) -> tuple[Array, Iterator[tuple[slice, Encoding]]]:
        settings = self.settings
        self._check_unchanged(settings)
        frames = self._validate(X, settings, reset=False)
        problem = settings.problem(self.components_, settings.transform_solver)
        return frames, encode_blocks(frames, problem, settings.compute)

    def _validate(self, X: Any, settings: Settings, reset: bool) -> Array:
        """Nonnegative finite frames, as a C-ordered array or, with PyTorch, maybe as a tensor."""
        if not is_list_of_arrays(X):
            return self._on_device([self._checked(X, settings, reset)], settings)
        arrays = [self._checked(array, settings, reset and not n) for n, array in enumerate(X)]
        return self._on_device(arrays, settings)

    def _checked(self, X: Any, settings: Settings, reset: bool) -> Array:
        """An array, where it will stay there with its numbers checked; or a checked tensor."""
        name = type(self).__name__
        n_bins = settings.n_bins if reset else self.n_features_in_
        shape: tuple[int, ...] = tuple(X.shape) if hasattr(X, "shape") else ()
        if len(shape) == 2 and n_bins == shape[0] != shape[1]:
            raise ValueError(
                f"X has {shape[1]} features, but {name} is expecting {n_bins} features as input: "
                f"its shape {shape} looks like (frequency, time); give X.T, one frame per row."
            )
        if isinstance(X, np.ma.MaskedArray):
            floats = X.astype(X.dtype if X.dtype.kind == "f" else np.float64)
            X = np.ma.filled(floats, np.nan)
        if tensors.is_foreign(X):
            if settings.compute.backend == "torch":
                return _adopted(self, X, settings, reset)
            if X.__dlpack_device__()[0] != _CPU:
                raise ValueError(
                    f"X is on a GPU, where backend={settings.compute.backend!r} cannot work: give "
                    "backend='torch' and device='cuda', or a copy of X on the host."
                )
        if is_sparse(X):
            settings.check_sparse()
            rows = SparseFrames.of(self.as_frames(X, reset))
            _check_values(rows.values, name)
            if np.isnan(rows.values).any():
                raise ValueError(
                    "X has missing entries (NaN), which sparse input cannot have: give a dense "
                    "array."
                )
            return cast(Array, rows)
        frames: Array = self.as_frames(X, reset, dtype=[np.float64, np.float32], order="C")
        if not _is_on_cuda(settings):
            _check_values(frames, name)
        return frames

    def _on_device(self, arrays: list[Array], settings: Settings) -> Array:
        """All of them as one; on a CUDA device where they fit, and checked there."""
        name = type(self).__name__
        frames: Any = arrays[0] if len(arrays) == 1 else None
        if frames is None and any(map(tensors.is_tensor, arrays)):
            from ondes.nmf.backends.devices import torch

            device = torch.device(settings.compute.device or "cpu")
            parts: list[Any] = [
                each if tensors.is_tensor(each) else tensors.upload(each, device) for each in arrays
            ]
            frames = torch.cat(parts)
        elif frames is None and is_sparse(arrays[0]):
            frames = SparseFrames.concatenate(cast(Any, arrays))
        elif frames is None:
            frames = tensors.Chain(arrays)
        if not tensors.is_tensor(frames) and _is_on_cuda(settings):
            from ondes.nmf.backends.devices import ready, torch

            device = torch.device(str(settings.compute.device))
            ready(str(device))
            if tensors.fits(frames.nbytes, device):
                frames = tensors.upload(frames[:], device)
                tensors.check(frames, name)
            else:
                for each in arrays:
                    _check_values(each, name)
        found: Array = frames
        return found


def checked_weights(given: Any, n_frames: int) -> Array | None:
    """Weights of frames as float64, or None; ValueError where they are none."""
    if given is None:
        return None
    given = given.cpu() if tensors.is_tensor(given) else given
    weights = np.array(given, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(n_frames, weights)
    if weights.shape != (n_frames,):
        raise ValueError(
            f"sample_weight of shape {weights.shape} must have one value for each of "
            f"{n_frames} frames."
        )
    if not (np.isfinite(weights) & (weights >= 0)).all() or weights.max(initial=0) > LARGEST_WEIGHT:
        raise ValueError(
            f"sample_weight must be finite, nowhere negative, and at most {LARGEST_WEIGHT:g}."
        )
    return weights


def is_list_of_arrays(X: Any) -> bool:
    """Whether this is one array of frames in parts.

    Examples
    --------
    >>> is_list_of_arrays([np.ones((2, 3))]), is_list_of_arrays([[1.0, 2.0]])
    (True, False)
    """
    return isinstance(X, (list, tuple)) and bool(X) and getattr(X[0], "ndim", 0) == 2


def _is_on_cuda(settings: Settings) -> bool:
    return settings.compute.backend == "torch" and str(settings.compute.device).startswith("cuda")


def _empty(frames: Any, shape: tuple[int, ...], dtype: Any = None) -> Array:
    """An array where the frames are one, else a tensor beside them; float64 by default."""
    if not tensors.is_tensor(frames):
        return np.empty(shape, dtype or np.float64)
    from ondes.nmf.backends.devices import widest

    beside: Array = frames.new_empty(shape, dtype=dtype or widest(frames.device))
    return beside


def _like(given: Any, found: Any) -> Array:
    """An array for an array, a tensor on the same device for a tensor."""
    if not tensors.is_tensor(found):
        array: Array = found
        return array
    if not tensors.is_foreign(given):
        return tensors.download(found)
    there: Array = found.to(given.device) if tensors.is_tensor(given) else found
    return there


def _check_values(frames: Array, name: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if not frames.size or (np.isfinite(frames.sum()) and frames.min() >= 0):
            return
        if isinstance(frames, np.ndarray):  # NaN is missing
            lowest, highest = np.fmin.reduce(frames, None), np.fmax.reduce(frames, None)
            if np.isnan(lowest) or (lowest >= 0 and highest < np.inf):
                return
    tensors.refuse(frames, name)


def _adopted(estimator: Any, X: Any, settings: Settings, reset: bool) -> Array:
    from ondes.nmf.backends.devices import memory_errors, ready, torch

    device = torch.device(settings.compute.device or "cpu")
    ready(str(device))
    with memory_errors(device):
        frames: Any = tensors.adopt(X, device)
        # An array of the same shape that occupies one number: scikit-learn checks the shape.
        shape = np.broadcast_to(np.zeros(1), tuple(frames.shape))
        estimator.as_frames(shape, reset, dtype=None)
        tensors.check(frames, type(estimator).__name__)
    adopted: Array = frames
    return adopted
