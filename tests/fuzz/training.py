"""Checkpoints of `ondes.train`: each is resumed to a separator, or refused in one sentence."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import random
import shutil
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

import archives
import numpy as np
import soundfile

import ondes

SR = 1000
SETTINGS: dict[str, Any] = {"sr": SR, "n_fft": 64, "n_components": 2, "n_updates": 6}


@functools.cache
def _sources() -> dict[str, Path]:
    """Two recordings of each of two sources."""
    import torch

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rng, time = np.random.default_rng(0), np.arange(11 * SR)
    for name, pitch in {"low": 0.3, "high": 0.9}.items():
        (folder / name).mkdir()
        for n in range(2):
            samples = 0.1 * np.sin(pitch * time) * rng.uniform(size=time.shape)
            soundfile.write(folder / name / f"{n}.wav", samples, SR)
    return {name: folder / name for name in ("low", "high")}


@functools.cache
def seeds() -> dict[str, bytes]:
    """The checkpoint of a run that was ended after three of its updates."""
    from ondes.learning.separator_training.trainer import SeparatorTrainer

    state, path = SeparatorTrainer.state, _sources()["low"].parent / "checkpoint"

    def stopping(self: Any) -> dict[str, Any]:
        if self.n_updates == 3:
            signal.raise_signal(signal.SIGINT)
        return state(self)

    SeparatorTrainer.state = stopping
    with contextlib.suppress(KeyboardInterrupt):
        ondes.train(_sources(), checkpoint=path, **SETTINGS)
    SeparatorTrainer.state = state
    assert 0 < ondes.load(path).history.n_updates < SETTINGS["n_updates"]
    return {"begun": path.read_bytes()}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Another state of the run, or damage as in every archive."""
    if rng.random() < 0.3:
        return archives.mutated(data, rng)
    (name, text), *arrays = archives.members_of(data)
    if rng.random() < 0.4:
        archives.change_array(arrays, rng)
    else:
        tree = json.loads(text)
        archives.change_tree(tree["training"]["state"], rng)
        with contextlib.suppress(ValueError, RecursionError):  # a tree that contains itself
            text = json.dumps(tree).encode()
    return archives.sealed([(name, text), *arrays])


def read(path: Path) -> None:
    """Resume the run; what comes out can be used."""
    from ondes.learning.separator_training import trainer

    trainer.REFRESH_STEPS = 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        separator = ondes.train(_sources(), checkpoint=path, resume=True, **SETTINGS)
    mixture = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    stems = ondes.separate(mixture, separator, sr=SR)
    if not all(np.isfinite(each).all() for each in stems.values()):
        raise ArithmeticError("a stem is not finite")
