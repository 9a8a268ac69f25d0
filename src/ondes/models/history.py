"""What a dictionary was learned from, and how well it explained what it learned from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SeparatorHistory", "TrainingHistory"]

Array = NDArray[Any]

CURVE_GROWTH = 1.03  # one point of the learning curve whenever the frames have grown by this


def _no_curve() -> Array:
    return np.empty((0, 2))


@dataclass(frozen=True, eq=False)
class TrainingHistory:
    """What a dictionary was learned from, and how training went.

    Attributes
    ----------
    learning_curve : array of shape (n_points, 2), float64
        Number of frames so far, and `divergence` at that point.
    files : tuple of str
        The recordings, at most the first thousand.
    n_files, n_failed : int
        How many recordings were given, and how many of them could not be read to their end.
    n_frames : int
        Non-silent frames learned from.
    seconds : float
        Seconds of audio, over all passes.
    divergence : float
        Average divergence per bin of all frames, each measured just before it was learned from.
        Later frames weigh more: of t frames, frame s weighs s / t.
    stopped_by : str or None
        ``"SIGINT"`` or ``"SIGTERM"`` where training was interrupted.
    run : dict or None
        What decided the last run beside the model's parameters: `settings` by name, and a digest
        of the `recordings`.

    Examples
    --------
    >>> TrainingHistory().with_update(n_frames=10, divergence=2.0).with_update(10, 1.0).divergence
    1.25
    """

    learning_curve: Array = field(default_factory=_no_curve)
    files: tuple[str, ...] = ()
    n_files: int = 0
    n_failed: int = 0
    n_frames: int = 0
    seconds: float = 0.0
    divergence: float = 0.0
    stopped_by: str | None = None
    run: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        curve = self.learning_curve
        if not isinstance(curve, np.ndarray) or curve.shape[1:] != (2,):
            raise ValueError("the learning curve of its history is not an array of pairs")
        for name in ("n_files", "n_failed", "n_frames", "seconds", "divergence"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
                raise ValueError(f"{name} of its history is not a number")
        for name in (*self.files, self.stopped_by or ""):
            if not isinstance(name, str):
                raise ValueError("a name in its history is not text")
        if self.run is not None:
            kinds = {name: type(part) for name, part in self.run.items()}
            if kinds != {"settings": dict, "recordings": str}:
                raise ValueError("the last run in its history is not valid")

    def with_update(self, n_frames: int, divergence: float) -> TrainingHistory:
        """The history after an update on `n_frames` frames of this mean divergence per bin."""
        if n_frames == 0:
            return self
        total = self.n_frames + n_frames
        share = (self.n_frames / total) ** 2  # the weights s of the frames so far, of all
        average = share * self.divergence + (1 - share) * divergence
        now = replace(self, n_frames=total, divergence=average)
        curve = self.learning_curve
        is_far = len(curve) == 0 or total >= CURVE_GROWTH * curve[-1, 0]
        return now.with_last_point() if is_far else now

    def with_last_point(self) -> TrainingHistory:
        """The same with a curve up to the last update."""
        point, curve = np.array([[self.n_frames, self.divergence]]), self.learning_curve
        if len(curve) and np.array_equal(curve[-1:], point):
            return self
        return replace(self, learning_curve=np.concatenate([curve, point]))


@dataclass(frozen=True)
class SeparatorHistory:
    """How a separator was trained; one value per source where it says so.

    Attributes
    ----------
    n_files : tuple of int
        Recordings of each source.
    seconds : tuple of float
        Seconds of audio of each source that were in use at the end.
    si_sdr : tuple of float
        Decibels, of each source, on mixtures of recordings that were held out.
    n_updates : int
    stopped_by : str or None
        ``"SIGINT"`` or ``"SIGTERM"`` where training was interrupted.

    Examples
    --------
    >>> SeparatorHistory(si_sdr=(9.5, 9.0)).si_sdr
    (9.5, 9.0)
    """

    n_files: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    si_sdr: tuple[float, ...] = ()
    n_updates: int = 0
    stopped_by: str | None = None

    def __post_init__(self) -> None:
        numbers = (*self.n_files, *self.seconds, *self.si_sdr, self.n_updates)
        if not all(isinstance(each, (int, float)) and math.isfinite(each) for each in numbers):
            raise ValueError("its history has entries that are not numbers")
        if not isinstance(self.stopped_by, (str, type(None))):
            raise ValueError("a name in its history is not text")
