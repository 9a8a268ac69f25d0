"""Model files, `.ondes`: a complete dictionary, which continues learning where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ondes import __version__
from ondes.atomic_file import check_destination, write_atomically
from ondes.errors import FileError
from ondes.models.archive import pack, read_archive, sentence_part, unpack
from ondes.models.band_network import BandWeights
from ondes.models.history import SeparatorHistory, TrainingHistory
from ondes.nmf.fitted import FittedState
from ondes.nmf.forgetting import ConstantFactor, GrowingMemory, HalfLife, PerPass
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.penalties import L1, GroupLog, LogSparsity, Smoothness
from ondes.nmf.problem import AbsoluteFloor, Solver
from ondes.nmf.statistics import Statistics
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.locations import Location
from ondes.signal.stft import Stft

__all__ = ["SavedSeparator", "document_of", "model_of", "save_model"]

NOT_SAVED = ("n_jobs", "verbose", "callback")  # they change no result
MAX_STEPS = 10**5
CLASSES: tuple[type, ...] = (
    *(
        ConstantFactor,
        GrowingMemory,
        HalfLife,
        PerPass,
        AbsoluteFloor,
        GroupLog,
        L1,
        LogSparsity,
        Smoothness,
    ),
    *(Solver, Statistics, FittedState, Stft, AudioSettings, TrainingHistory),
    *(UnfoldedWeights, BandWeights, SeparatorHistory),
)


Model = tuple[DictionaryLearner, AudioSettings | None, TrainingHistory | None]
"""The arguments of `ondes.Dictionary`; two are None where it learned from arrays."""


class SavedSeparator(NamedTuple):
    """The parts of a file with a trained separator."""

    names: tuple[str, ...]
    audio: AudioSettings
    weights: UnfoldedWeights | BandWeights
    history: SeparatorHistory | None


def save_model(path: str | Path, model: Model, force: bool = False) -> None:
    """Write a model, whose learner is fitted, completely or not at all; see `Dictionary.save`."""
    check_destination(path, force)
    document = document_of(*model)
    try:
        _check_audio(*model[:2])
    except ValueError as error:
        raise FileError(path, f"cannot be written: {sentence_part(error)}") from error
    write_atomically(path, packed(path, document), force)


def document_of(
    learner: DictionaryLearner, audio: AudioSettings | None, history: TrainingHistory | None
) -> dict[str, Any]:
    """The content of a model file as a tree of values."""
    parameters = learner.get_params(deep=False)
    return {
        "written_by": f"ondes {__version__}",
        "parameters": {k: v for k, v in parameters.items() if k not in NOT_SAVED},
        "fitted": learner.state(),
        "audio": audio,
        "history": history,
    }


def packed(path: str | Path, document: dict[str, Any]) -> bytes:
    """The bytes of a file with this content; FileError where no file can hold it."""
    try:
        return pack(document, CLASSES)
    except ValueError as error:
        raise FileError(path, f"cannot be written: {sentence_part(error)}") from error


def read_document(path: str | Location) -> dict[str, Any]:
    """Undo `packed` for a file."""
    return unpack(read_archive(path), path, CLASSES)


def model_of(path: str | Location, document: dict[str, Any]) -> Model:
    """The model in a document; FileError where there is no valid one."""
    try:
        # Files of before `weighting` came have frames that count alike.
        estimator = DictionaryLearner(**{"weighting": "equal"} | document["parameters"])
        if estimator.backend == "torch":  # a choice of the machine that saved it
            estimator.set_params(backend="auto", device=None, precision=None)
        for solver in (estimator.settings.solver, estimator.settings.transform_solver):
            _check_solver(solver)
        estimator.restore(of_type(document["fitted"], FittedState))
        audio, history = document["audio"], document["history"]
        _check_audio(estimator, audio)
        if history is not None:
            of_type(history, TrainingHistory)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise FileError(path, f"is not a valid model: {sentence_part(error)}") from error
    return estimator, audio, history


def _check_solver(solver: Solver) -> None:
    """The steps of one batch cannot be interrupted, so a file may not ask for very many."""
    if type(solver.max_steps) is not int or solver.max_steps > MAX_STEPS:
        raise ValueError(
            f"max_steps={solver.max_steps!r} must be a whole number of at most {MAX_STEPS}"
        )


def _check_audio(estimator: DictionaryLearner, audio: AudioSettings | None) -> None:
    if audio is not None:
        n_bins = of_type(audio, AudioSettings).n_bins
        if n_bins != estimator.n_features_in_:
            raise ValueError(
                f"its dictionary has {estimator.n_features_in_} bins, its STFT {n_bins}"
            )


def separator_document(separator: SavedSeparator) -> dict[str, Any]:
    """The content of a file with a trained separator."""
    written_by = {"written_by": f"ondes {__version__}"}
    return written_by | {"separator": separator._asdict() | {"names": list(separator.names)}}


def separator_of(path: str | Location, document: dict[str, Any]) -> SavedSeparator:
    """The trained separator in a document; FileError where there is no valid one."""
    try:
        parts = of_type(document["separator"], dict)
        names = tuple(of_type(name, str) for name in parts["names"])
        audio, weights = of_type(parts["audio"], AudioSettings), parts["weights"]
        if not isinstance(weights, (UnfoldedWeights, BandWeights)):
            raise TypeError("it has no weights")
        if weights.n_bins != audio.n_bins or len(set(names)) != weights.n_sources:
            raise ValueError("its weights do not fit its STFT or its sources")
        history = parts["history"]
        if history is not None:
            of_type(history, SeparatorHistory)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise FileError(path, f"is not a valid separator: {sentence_part(error)}") from error
    return SavedSeparator(names, audio, weights, history)


def of_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it has a {type(value).__name__} in place of a {kind.__name__}")
    return value
