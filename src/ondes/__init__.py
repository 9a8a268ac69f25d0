"""Itakura-Saito NMF dictionaries from audio of any length, learned online at constant memory."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Name -> module. Nothing is imported before it is asked for: `ondes --help` must start at once.
_HOMES = {
    "OnlineISNMF": "estimator",
    "Solver": "problem",
    "Statistics": "statistics",
    "GrowingMemory": "forgetting",
    "HalfLife": "forgetting",
    "PerPass": "forgetting",
    "GroupLog": "penalties",
    "L1": "penalties",
    "LogSparsity": "penalties",
    "Smoothness": "penalties",
    "itakura_saito": "divergence",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"ondes.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ondes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
