"""Nonnegative dictionaries from audio of any length, learned online at constant memory."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

# Name -> module. Nothing is imported before it is used: `ondes --help` must start at once.
_MODULES = {
    "AudioSettings": "signal.audio_settings",
    "ClusterError": "errors",
    "ComponentChoice": "nmf.choosing",
    "Compute": "nmf.encoding",
    "Denoiser": "separation.denoising",
    "DeviceError": "errors",
    "Dictionary": "models.dictionary",
    "FileError": "errors",
    "GroupLog": "nmf.penalties",
    "GrowingMemory": "nmf.forgetting",
    "HalfLife": "nmf.forgetting",
    "L1": "nmf.penalties",
    "LogSparsity": "nmf.penalties",
    "OndesError": "errors",
    "OnlineNMF": "nmf.estimator",
    "PerPass": "nmf.forgetting",
    "RawFormat": "signal.recordings",
    "Separator": "separation.separator",
    "Smoothness": "nmf.penalties",
    "Solver": "nmf.problem",
    "Sources": "models.sources",
    "Statistics": "nmf.statistics",
    "Stft": "signal.stft",
    "TrainedSeparator": "models.trained_separator",
    "choose_components": "nmf.choosing",
    "levels": "tables.level_blocks",
    "denoise": "separation.denoising",
    "denoise_file": "separation.denoising",
    "discover_sources": "separation.discovery",
    "itakura_saito": "nmf.divergence",
    "learn": "learning.dictionary_learning",
    "load": "models.loading",
    "read": "signal.recordings",
    "score_separation": "separation.evaluation",
    "separate": "separation.separator",
    "separate_file": "separation.separator",
    "train": "learning.separator_training.training",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"ondes.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'ondes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
