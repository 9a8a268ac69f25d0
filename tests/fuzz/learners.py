"""Allowed settings of an estimator, drawn at random: learning with them must stay finite."""

from __future__ import annotations

import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ondes
import ondes.nmf.estimator  # here, so that its time is not a file's

# Settings that are refused together.
REFUSED = re.compile("exclude|need|warm|batch_size")
KINDS = ("audio", "zeros", "wide", "rank", "tiny", "one")


def seeds() -> dict[str, bytes]:
    """One valid choice; all others are drawn from it."""
    return {"plain": json.dumps({"seed": 0}).encode()}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Another choice, as the number that it is drawn with."""
    return json.dumps({"seed": rng.getrandbits(40)}).encode()


def drawn(seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Settings that are allowed, and frames that are."""
    rng = random.Random(seed)
    beta = rng.choice((0, 0, 0.5, 1, 1, 1.5, 2))
    settings: dict[str, Any] = {
        "n_components": rng.choice((1, 2, 3, 5)),
        "beta_loss": beta,
        "sparsity": rng.choice((0, 0, 1e-3, 1, 2, 1000, 1e6)),
        "batch_size": rng.choice((1, 2, 7, 8, 24, None)),
        "n_passes": rng.choice((1, 2, 5)),
        "init": rng.choice(("auto", "random", "k-means++", "parts")),
        "forgetting": rng.choice(
            (None, ondes.GrowingMemory(60.0), ondes.HalfLife(5.0), ondes.PerPass(0.0))
        ),
        "solver": rng.choice((None, ondes.Solver(1), ondes.Solver(30), ondes.Solver.paper(5))),
        "dictionary_exponent": rng.choice((0.5, 0.9, 1.0)),
        "restarts": rng.choice(("fresh", "warm")),
        "noise_floor": rng.choice((1e-15, 1e-12, 1e-3, 1.0)),
        "penalty": rng.choice((None, None, ondes.L1(1.0), ondes.GroupLog(10.0))),
        "backend": rng.choice(("auto", "reference")),
        "random_state": rng.randrange(100),
    }
    if settings["penalty"] is not None and isinstance(settings["penalty"], ondes.GroupLog):
        settings["groups"] = [n % 2 for n in range(settings["n_components"])]
    values = np.random.default_rng(seed)
    frames = values.gamma(0.3, size=(24, 3)) @ values.gamma(0.5, size=(3, 9))
    frames *= values.exponential(size=frames.shape)
    kind = rng.choice(KINDS)
    if kind == "zeros":
        frames[values.random(frames.shape) < 0.5] = 0
    elif kind == "wide":
        frames *= 10.0 ** values.uniform(-12, 12, size=(24, 1))
    elif kind == "rank":
        frames = np.outer(frames[:, 0] + 1e-3, frames[0] + 1e-3)
    elif kind == "tiny":
        frames *= 1e-30
    elif kind == "one":
        frames = np.zeros((24, 9))
        frames[:, 4] = 1.0
    return settings, frames.astype(rng.choice((np.float32, np.float64)))


def read(path: Path) -> None:
    """Learn as the file says: the dictionary, its activations and the score are finite."""
    try:
        seed = int(json.loads(path.read_bytes())["seed"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return
    settings, frames = drawn(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # finite is what is promised
        try:
            model = ondes.OnlineNMF(**settings).fit(frames)
        except (ValueError, TypeError) as error:
            if REFUSED.search(str(error)):
                return
            raise
        activations = model.transform(frames)
    found = model.components_, activations, np.array(model.score(frames))
    if not all(np.isfinite(each).all() for each in found):
        raise ArithmeticError(f"not finite with {settings}")
