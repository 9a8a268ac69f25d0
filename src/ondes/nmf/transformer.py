"""A fitted dictionary as a scikit-learn transformer: its state, activations and scores."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Encoding, encode_blocks
from ondes.nmf.fitted_state import FittedState
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics
from ondes.nmf.validation import validate

__all__ = ["DictionaryTransformer"]


class DictionaryTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What an estimator does with `components_` once it has learned them."""

    background: Any
    components_: Array
    statistics_: Statistics
    n_frames_seen_: int
    is_initialised_: bool
    random_state_: np.random.RandomState
    n_passes_: int
    backend_: str

    @property
    def settings(self) -> Settings:
        """The parameters, checked and typed."""
        return Settings.from_parameters(vars(self))

    def state(self) -> FittedState:
        """All that was learned, as a value that later learning does not change."""
        check_is_fitted(self)
        learned: dict[str, Any] = {
            name: getattr(self, f"{name}_", None) for name in FittedState.names()
        }
        return FittedState(**copy.deepcopy(learned))

    def restore(self, state: FittedState) -> Self:
        """Take over what was learned elsewhere; ValueError where it does not fit the parameters.

        Parameters
        ----------
        state : FittedState
            From `state`; it is copied.
        """
        state.check_fits(self.settings)
        for name, value in vars(copy.deepcopy(state)).items():
            setattr(self, f"{name}_", value)
        if state.feature_names_in is None:  # scikit-learn's attribute for frames without names
            del self.feature_names_in_
        return self

    def __getstate__(self) -> dict[str, Any]:
        # The fitted attributes have all that is on a device, and recorded graphs are not stored.
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_trainer"}

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
        check_is_fitted(self)
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
        """Minus the divergence per bin, one value per frame; zero for a silent one.

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
            scores[rows] = -encoded.divergences() / frames.shape[1]
        return _like(X, scores)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of `score_samples`, silent frames included: higher is better.

        It compares dictionaries of one size. With more components it rises, on frames held out as
        well, as activations are free to fit each frame: ``GridSearchCV`` over `n_components` takes
        the largest. To choose their number, score what the dictionary is for, such as separation
        (`ondes.Dictionary.separate`), or take the number from which on the score rises by less
        than you care about.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        y : ignored
        """
        return float(self.score_samples(X).mean())

    def _encode(self, X: Any) -> tuple[Array, Iterator[tuple[slice, Encoding]]]:
        check_is_fitted(self)
        settings = self.settings
        frames = self._validate(X, settings, reset=False)
        problem = settings.problem(self.components_, settings.transform_solver)
        return frames, encode_blocks(frames, problem, settings.compute)

    def _validate(self, X: Any, settings: Settings, reset: bool) -> Array:
        return validate(self, X, settings, reset)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


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
