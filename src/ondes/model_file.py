"""Model files, `.ondes`: all of a model, so that it goes on learning exactly where it stopped."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ondes import __version__
from ondes.archive import (
    ModelFileError,
    check_destination,
    pack,
    read_whole,
    sentence_part,
    unpack,
    write_archive,
)
from ondes.nmf import parameters
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF
from ondes.nmf.forgetting import GrowingMemory, HalfLife, PerPass
from ondes.nmf.penalties import L1, GroupLog, LogSparsity, Smoothness
from ondes.nmf.problem import Solver
from ondes.nmf.statistics import Statistics
from ondes.signal.stft import Stft

__all__ = ["AudioSettings", "ModelFileError", "Provenance", "check_destination", "load", "save"]

OF_THE_MACHINE = ("n_jobs", "verbose")  # they change no result, and are no part of a model
LEARNED = (
    *("components_", "statistics_", "n_frames_seen_", "is_seeded_", "random_state_"),
    *("n_features_in_", "feature_names_in_", "n_passes_", "backend_"),
)


@dataclasses.dataclass(frozen=True)
class AudioSettings:
    """How sound becomes the frames that a model knows.

    Attributes
    ----------
    sr : int
        Samples a second.
    stft : Stft
    silence : float or None
        Frames this many decibels below the loudest so far were not learned from.

    Examples
    --------
    >>> AudioSettings(22050, Stft(512)).stft.n_bins
    257
    """

    sr: int
    stft: Stft
    silence: float | None = -60.0

    def __post_init__(self) -> None:
        if not isinstance(self.sr, int) or not 1 <= self.sr < 2**31:
            raise ValueError(f"sr={self.sr!r} must be a whole number of samples a second.")


@dataclasses.dataclass(frozen=True, eq=False)
class Provenance:
    """What a model was learned from, and how it went.

    Attributes
    ----------
    learning_curve : array of shape (n_points, 2), float64
        Frames seen so far, and the running divergence per bin there.
    files : tuple of str
        The recordings, the first thousand of them.
    n_files, n_failed : int
        How many recordings there were, and how many of them could not be read to their end.
    n_frames : int
    seconds : float
        Of sound, over all passes.
    divergence : float
        Per bin, of the frames that the statistics still remember.
    stopped_by : str or None
        ``"SIGINT"`` or ``"SIGTERM"`` where learning was interrupted.
    """

    learning_curve: Array
    files: tuple[str, ...] = ()
    n_files: int = 0
    n_failed: int = 0
    n_frames: int = 0
    seconds: float = 0.0
    divergence: float = 0.0
    stopped_by: str | None = None


CLASSES: tuple[type, ...] = (
    *(GrowingMemory, HalfLife, PerPass, GroupLog, L1, LogSparsity, Smoothness),
    *(Solver, Statistics, Stft, AudioSettings, Provenance),
)


def save(model: OnlineISNMF, path: str | Path, force: bool = False) -> None:
    """Write a model, whole or not at all.

    Parameters
    ----------
    model : OnlineISNMF
        Fitted. Its `audio_` and `provenance_` are kept where it has them.
    path : str or Path
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    ModelFileError
        Where the file exists or cannot be written, or a setting is of a class of your own.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> frames = np.random.default_rng(0).exponential(size=(50, 6))
    >>> model = OnlineISNMF(2, backend="reference", random_state=0).partial_fit(frames)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/noise.ondes")
    ...     again = load(f"{folder}/noise.ondes")
    >>> np.array_equal(again.components_, model.components_)
    True
    """
    check_destination(path, force)
    write_archive(path, packed(path, document_of(path, model)), force)


def document_of(path: str | Path, model: OnlineISNMF) -> dict[str, Any]:
    """What a file holds of a model; ModelFileError where its parts do not belong together."""
    check_is_fitted(model)
    try:
        _check_consistent(model)
    except ValueError as error:
        raise ModelFileError(path, f"cannot be written: {sentence_part(error)}") from error
    return {
        "written_by": f"ondes {__version__}",
        "parameters": {
            name: value
            for name, value in model.get_params(deep=False).items()
            if name not in OF_THE_MACHINE
        },
        "learned": {name: value for name, value in vars(model).items() if name in LEARNED},
        "audio": getattr(model, "audio_", None),
        "provenance": getattr(model, "provenance_", None),
    }


def packed(path: str | Path, document: dict[str, Any]) -> bytes:
    """A document as the bytes of a file; ModelFileError where no file can hold it."""
    try:
        return pack(document, CLASSES)
    except ValueError as error:
        raise ModelFileError(path, f"cannot be written: {sentence_part(error)}") from error


def load(path: str | Path) -> OnlineISNMF:
    """Read a model; it goes on learning exactly where it stopped.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    OnlineISNMF
        `audio_` says what sound it knows (None if it learned from arrays), `provenance_` where
        it comes from.

    Raises
    ------
    ModelFileError
        Where the file is missing, damaged, cut short, of a newer ondes, or no model.
    """
    return model_of(path, unpack(read_whole(path), path, CLASSES))


def model_of(path: str | Path, document: dict[str, Any]) -> OnlineISNMF:
    """The model in a document; ModelFileError where it holds none."""
    try:
        model = OnlineISNMF(**document["parameters"])
        if model.backend == "torch":  # of the machine it was saved on, which may be another
            model.set_params(backend="auto", device=None, precision=None)
        learned = document["learned"]
        if not isinstance(learned, dict) or not set(learned) <= set(LEARNED):
            raise ValueError("it has learned what no model learns")
        parts = {"audio_": document["audio"], "provenance_": document["provenance"]}
        for name, value in (learned | parts).items():
            setattr(model, name, value)
        check_is_fitted(model)
        parameters.check(model)
        _check_consistent(model)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ModelFileError(path, f"holds no valid model: {sentence_part(error)}") from error
    return model


def _check_consistent(model: OnlineISNMF) -> None:
    """Raise ValueError where the parts of a model do not belong together."""
    dictionary, statistics = model.components_, model.statistics_
    shape = (model.n_components, model.n_features_in_)
    sums = {"numerator": statistics.numerator, "denominator": statistics.denominator}
    for name, array in {"components_": dictionary, **sums}.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.shape != shape:
            raise ValueError(f"{name} is not float64 of shape {shape}")
        if not (np.isfinite(array) & (array >= 0)).all():
            raise ValueError(f"{name} has NaN, infinite or negative entries")
    counts = {"n_frames_seen_": model.n_frames_seen_, "n_frames": statistics.n_frames}
    for name, count in {**counts, "divergence": statistics.divergence}.items():
        if not _is_number(count):
            raise ValueError(f"{name} is not a number")
    if min(counts.values()) < 0:
        raise ValueError("it has seen fewer frames than none")
    if not isinstance(model.random_state_, np.random.RandomState):
        raise ValueError("its random state is none")
    if not isinstance(model.is_seeded_, (bool, np.bool_)):
        raise ValueError("it does not say whether its dictionary is drawn")
    parameters.background_of(model, shape[1])
    parameters.known_rows(model, shape[1])
    _check_about_sound(model)


def _check_about_sound(model: OnlineISNMF) -> None:
    audio, provenance = getattr(model, "audio_", None), getattr(model, "provenance_", None)
    if audio is not None:
        if not isinstance(audio, AudioSettings) or not isinstance(audio.stft, Stft):
            raise ValueError("its audio settings are none")
        if not isinstance(audio.stft.window, str):
            raise ValueError("its window has no name")
        if audio.silence is not None and not _is_number(audio.silence):
            raise ValueError("its silence is not a number")
        if audio.stft.n_bins != model.n_features_in_:
            raise ValueError(
                f"its dictionary has {model.n_features_in_} bins, its STFT {audio.stft.n_bins}"
            )
    if provenance is not None:
        if not isinstance(provenance, Provenance):
            raise ValueError("its provenance is none")
        _check_provenance(provenance)


def _check_provenance(provenance: Provenance) -> None:
    curve = provenance.learning_curve
    if not isinstance(curve, np.ndarray) or curve.shape[1:] != (2,):
        raise ValueError("its learning curve is none")
    numbers = ("n_files", "n_failed", "n_frames", "seconds", "divergence")
    for name in numbers:
        if not _is_number(getattr(provenance, name)):
            raise ValueError(f"{name} of its provenance is not a number")
    for name in (*provenance.files, provenance.stopped_by or ""):
        if not isinstance(name, str):
            raise ValueError("its provenance has names that are none")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)
