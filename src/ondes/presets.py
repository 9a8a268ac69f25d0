"""Settings of `ondes.learn` that belong together."""

from __future__ import annotations

from typing import Any

from ondes.nmf.forgetting import GrowingMemory, PerPass
from ondes.nmf.problem import Solver

__all__ = ["PRESETS", "Preset", "settings_of"]

Preset = dict[str, Any]

PRESETS: dict[str, Preset] = {
    # What separated real recordings best: see docs/results.md.
    "separation": {
        "n_components": 128,
        "sr": 16000,
        "n_fft": 4096,
        "hops_per_frame": 4,
        "spectrum": "magnitude",
        "beta_loss": "kullback-leibler",
        "sparsity": 2.0,
        "batch_size": 128,
        "forgetting": GrowingMemory(10.0),
        "solver": Solver(max_steps=10, momentum=()),
    },
    # Lefèvre, Bach and Févotte (2011).
    "paper": {
        "n_components": 32,
        "sr": 22050,
        "n_fft": 512,
        "hops_per_frame": 2,
        "spectrum": "power",
        "beta_loss": "itakura-saito",
        "sparsity": 0.0,
        "batch_size": 1000,
        "forgetting": PerPass(0.7),
        "solver": Solver.paper(100),
        "dictionary_exponent": 0.5,
        "init": "random",
    },
}


def settings_of(preset: str, given: Preset) -> Preset:
    """A preset's settings, with those that are given and not None in their place.

    Examples
    --------
    >>> settings_of("paper", {"n_fft": 1024, "sr": None})["hop_length"]
    512
    """
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r} must be one of {', '.join(map(repr, PRESETS))}.")
    settings = PRESETS[preset] | {name: value for name, value in given.items() if value is not None}
    hops_per_frame = settings.pop("hops_per_frame")
    settings.setdefault("hop_length", max(1, settings["n_fft"] // hops_per_frame))
    return settings
