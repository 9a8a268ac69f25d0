"""Itakura-Saito NMF dictionaries from audio of any length, learned online at constant memory."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Name -> module. Nothing is imported before it is asked for: `ondes --help` must start at once.
_HOMES = {
    "OnlineISNMF": "nmf.estimator",
    "Solver": "nmf.problem",
    "Statistics": "nmf.statistics",
    "GrowingMemory": "nmf.forgetting",
    "HalfLife": "nmf.forgetting",
    "PerPass": "nmf.forgetting",
    "GroupLog": "nmf.penalties",
    "L1": "nmf.penalties",
    "LogSparsity": "nmf.penalties",
    "Smoothness": "nmf.penalties",
    "itakura_saito": "nmf.divergence",
    "Stft": "signal.stft",
    "AudioError": "signal.audio",
    "AudioSettings": "model_file",
    "FileInUseError": "whole_file",
    "ModelFileError": "model_file",
    "learn": "learning",
    "load": "model_file",
    "save": "model_file",
    "separate": "separation.separator",
    "separate_file": "separation.separator",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"ondes.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ondes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
