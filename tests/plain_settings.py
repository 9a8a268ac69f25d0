"""Settings under which `ondes.learn` is easy to follow by hand, whatever its preset is."""

from __future__ import annotations

from ondes import GrowingMemory, Solver

# The Itakura-Saito divergence of power, with the estimator's own defaults.
PLAIN = {
    "spectrum": "power",
    "beta_loss": "itakura-saito",
    "sparsity": 0.0,
    "forgetting": GrowingMemory(),
    "solver": Solver(),
}
