"""All that a fitted estimator has learned, as one value that is consistent in itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics

__all__ = ["FittedState"]


@dataclass(frozen=True, eq=False)
class FittedState:
    """What `OnlineNMF.state` returns and `OnlineNMF.restore` takes: learning goes on from here.

    Raises a ValueError of one sentence where its parts are invalid or do not fit together.

    Attributes
    ----------
    components : array of shape (n_components, n_bins), float64
    statistics : Statistics
    n_frames_seen : int
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
    n_frames_seen: int
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
