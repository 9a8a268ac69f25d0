"""What is fuzzed: where its valid files come from, how they are damaged, and who reads them."""

from __future__ import annotations

import functools
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import archives
import numpy as np
import sounds

import ondes
from ondes import checkpoint
from ondes.model_file import AudioSettings, Provenance
from ondes.signal.audio import AudioError, open_blocks, probe

OTHER_SR = 22050
LATE = 40000  # samples; so far, decoders that can do so jump


@dataclass(frozen=True)
class Target:
    """One kind of file.

    Attributes
    ----------
    seeds : callable
        Gives valid files by name.
    mutate : callable
        Makes of a valid file one that need not be.
    read : callable
        Reads all of a file.
    error : type
        The only error that `read` may raise.
    """

    seeds: Callable[[], dict[str, bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], object]
    error: type[Exception]


@functools.cache
def small_models() -> dict[str, ondes.OnlineISNMF]:
    """Models of the most different settings, one of them of sound."""
    frames = np.random.default_rng(0).exponential(size=(60, 5))
    settings: dict[str, dict[str, object]] = {
        "plain": {},
        "penalties": {
            "penalty": ondes.GroupLog(0.1),
            "dictionary_penalty": ondes.Smoothness(0.01),
            "groups": ["drums", "drums", "bass"],
            "forgetting": ondes.HalfLife(70.5),
        },
        "arrays": {
            "init": np.ones((3, 5)),
            "frozen": np.arange(1.0, 6),
            "background": np.full(5, 0.01),
            "random_state": np.random.RandomState(3),
            "solver": ondes.Solver(max_steps=4, momentum=(0.0, 0.3)),
        },
        "sound": {"forgetting": ondes.PerPass(0.3, 400), "penalty": ondes.L1(0.2)},
    }
    models = {
        name: ondes.OnlineISNMF(3, **{"random_state": 0, "backend": "reference", **own})
        for name, own in settings.items()
    }
    for model in models.values():
        model.partial_fit(frames)
    curve = np.array([[20.0, 0.5], [60.0, 0.25]])
    models["sound"].audio_ = AudioSettings(8000, ondes.Stft(8, 4, "sine"))
    models["sound"].provenance_ = Provenance(curve, ("a.wav",), 1, 0, 60, 4.5, 0.25, "SIGINT")
    return models


@functools.cache
def model_seeds() -> dict[str, bytes]:
    """Each of the small models as a file."""
    return {name: _written(ondes.save, model) for name, model in small_models().items()}


@functools.cache
def checkpoint_seeds() -> dict[str, bytes]:
    """The model of sound in the middle of a run."""
    model = small_models()["sound"]
    position = {
        "settings": ["sine", 8, 4],
        "recordings": [["a.wav", 8000, 36000], ["b.wav", 44100, 52000]],
        "position": [0, 3, 1, 17, 240, 2],
        "loudest": [[0, 0.25], [1, 12.5]],
    }
    settings = {"passes": 2, "seed": 0}
    begun = checkpoint.Checkpoint(model, position, settings)
    going = checkpoint.Checkpoint(
        model, position, settings, {"b.wav": "is cut short"}, model.provenance_
    )
    return {
        name: _written(lambda each, path: checkpoint.write(path, each), kept)
        for name, kept in {"begun": begun, "going on": going}.items()
    }


def _written(write: Callable[[Any, Path], None], what: object) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(what, Path(folder, "file"))
        return Path(folder, "file").read_bytes()


def read_model(path: Path) -> None:
    """A model that is taken can also be shown and kept again."""
    model = ondes.load(path)
    repr(model.get_params())
    ondes.save(model, path, force=True)


def read_checkpoint(path: Path) -> None:
    """One that is taken can also be written again."""
    checkpoint.write(path, checkpoint.read(path))


def read_recording(path: Path) -> None:
    """All of it, at its own rate and at another, and what comes late in it."""
    probe(path)
    for sr, start in ((None, 0), (OTHER_SR, 0), (None, LATE)):
        with open_blocks(path, sr=sr, start=start) as blocks:
            for _ in blocks:
                pass


def read_without_av(path: Path) -> None:
    """As where PyAV is not installed."""
    av, sys.modules["av"] = sys.modules["av"], None
    try:
        read_recording(path)
    finally:
        sys.modules["av"] = av


def read_piped(path: Path) -> None:
    """As from a pipe, which cannot go back."""
    with path.open("rb", buffering=0) as stream, open_blocks(stream) as blocks:
        for _ in blocks:
            pass


TARGETS = {
    "model": Target(model_seeds, archives.mutated, read_model, ondes.ModelFileError),
    "checkpoint": Target(checkpoint_seeds, archives.mutated, read_checkpoint, ondes.ModelFileError),
    "recording": Target(sounds.seeds, sounds.mutated, read_recording, AudioError),
    "recording_without_av": Target(
        sounds.libsndfile_seeds, sounds.mutated, read_without_av, AudioError
    ),
    "piped": Target(sounds.wav_seeds, sounds.mutated, read_piped, AudioError),
}
