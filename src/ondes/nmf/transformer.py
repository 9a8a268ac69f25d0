"""A fitted dictionary: its state, and the activations and scores of frames."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal, Self

import numpy as np

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Encoding, encode_blocks
from ondes.nmf.fitted_state import FittedState
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics
from ondes.nmf.validation import validate

__all__ = ["DictionaryTransformer"]


class DictionaryTransformer:
    """What an estimator does with `components_` once it has learned them."""

    background: Any
    components_: Array
    statistics_: Statistics
    n_frames_seen_: int
    is_initialised_: bool
    random_state_: np.random.RandomState
    n_passes_: int
    backend_: str
    n_features_in_: int

    @property
    def settings(self) -> Settings:
        """The parameters, checked and typed."""
        return Settings.from_parameters(vars(self))

    def state(self) -> FittedState:
        """All that was learned, as a value that later learning does not change."""
        self.check_fitted()
        learned: dict[str, Any] = {
            name: getattr(self, f"{name}_", None) for name in FittedState.names()
        }
        return FittedState(**copy.deepcopy(learned))

    def restore(self, state: FittedState) -> Self:
        """Use what was learned elsewhere; ValueError if it does not fit the parameters.

        Parameters
        ----------
        state : FittedState
            From `state`; it is copied.
        """
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
        """An array of shape (n_frames, n_bins); ValueError where it does not fit the dictionary.

        Parameters
        ----------
        X : array of floats
        reset : bool
            Whether its number of bins is that of the dictionary from now on.
        dtype : list of dtypes, optional
            One of which it must have.
        order : {"C"}, optional
            In memory.
        """
        frames: Array = np.asarray(X, order=order)
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

        Use it to compare dictionaries of the same size. It rises with the number of components, on
        held-out frames as well, because activations are fitted to each frame: ``GridSearchCV`` over
        `n_components` chooses the largest. To choose this number, measure the result that you
        want, such as separation (`ondes.Dictionary.separate`), or take the number beyond which the
        score hardly rises.

        Parameters
        ----------
        X : array of shape (n_frames, n_bins)
        y : ignored
        """
        return float(self.score_samples(X).mean())

    def _encode(self, X: Any) -> tuple[Array, Iterator[tuple[slice, Encoding]]]:
        self.check_fitted()
        settings = self.settings
        frames = self._validate(X, settings, reset=False)
        problem = settings.problem(self.components_, settings.transform_solver)
        return frames, encode_blocks(frames, problem, settings.compute)

    def _validate(self, X: Any, settings: Settings, reset: bool) -> Array:
        return validate(self, X, settings, reset)


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
