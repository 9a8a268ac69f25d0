"""What is fuzzed: where valid files come from, how they are damaged, and how they are read."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import answers
import archives
import learners
import listings
import numpy as np
import sounds
import tables
import texts
import training

import ondes
from ondes.errors import FileError
from ondes.learning import checkpoint
from ondes.models.dictionary import Dictionary
from ondes.models.history import SeparatorHistory, TrainingHistory
from ondes.models.loading import load
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.signal import finding
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.recordings import open_blocks, probe
from ondes.signal.schedule import Position, Schedule
from ondes.signal.survey import Recording

AUDIO = AudioSettings(8000, ondes.Stft(8, 4, "sine"))
OTHER_SR = 22050
LATE = 40000  # samples; to go so far, decoders that can do so seek


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
    seconds : float
        Processor time that it may take, which does not depend on how busy the machine is.
    """

    seeds: Callable[[], dict[str, bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], object]
    error: type[Exception]
    seconds: float = 1.0


@functools.cache
def small_models() -> dict[str, Dictionary]:
    """Models with very different settings, one of them of audio."""
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
            "fixed_components": np.arange(1.0, 6),
            "background": np.full(5, 0.01),
            "random_state": np.random.RandomState(3),
            "solver": ondes.Solver(max_steps=4, momentum=(0.0, 0.3)),
        },
        "sound": {"forgetting": ondes.PerPass(0.3, 400), "penalty": ondes.L1(0.2)},
    }
    estimators = {
        name: ondes.OnlineNMF(3, **{"random_state": 0, "backend": "reference", **own})
        for name, own in settings.items()
    }
    for estimator in estimators.values():
        estimator.partial_fit(frames)
    curve = np.array([[20.0, 0.5], [60.0, 0.25]])
    history = TrainingHistory(curve, ("a.wav",), 1, 0, 60, 4.5, 0.25, "SIGINT")
    models = {name: Dictionary(each, None, None) for name, each in estimators.items()}
    return models | {"sound": Dictionary(estimators["sound"], AUDIO, history)}


@functools.cache
def model_seeds() -> dict[str, bytes]:
    """Each of the small models as a file."""
    return {
        name: _written(lambda model, path: model.save(path), model)
        for name, model in small_models().items()
    }


@functools.cache
def checkpoint_seeds() -> dict[str, bytes]:
    """The model of audio in the middle of a run."""
    model, settings = small_models()["sound"], {"n_passes": 2, "random_state": 0}
    state = schedule().state()
    begun = checkpoint.Checkpoint(model, state, settings)
    failures = {"b.wav": "is truncated"}
    continued = checkpoint.Checkpoint(model, state, settings, failures, model.history)
    return {
        name: _written(lambda each, path: checkpoint.write(path, each.document()), each)
        for name, each in {"begun": begun, "continued": continued}.items()
    }


@functools.cache
def separator_seeds() -> dict[str, bytes]:
    """Small trained separators, of two sources and of three."""
    return {
        f"{n} sources": _written(lambda each, path: each.save(path), _small_separator(n))
        for n in (2, 3)
    }


def _small_separator(n_sources: int) -> TrainedSeparator:
    rng = np.random.default_rng(n_sources)
    n_components, n_bins = 2, AUDIO.stft.n_bins
    dictionaries = rng.gamma(0.5, size=(3, n_sources * n_components, n_bins)) + 1e-3
    weights = UnfoldedWeights(
        dictionaries.astype(np.float32),
        (dictionaries.sum(axis=2) + 1).astype(np.float32),
        rng.gamma(0.5, size=(n_sources, 5, n_components, n_bins)).astype(np.float32),
        (0.1 * rng.standard_normal((2, n_sources * n_components))).astype(np.float32),
        (3, 9),
        6,
        2.5,
        1e-4,
    )
    names = tuple(f"source {n}" for n in range(n_sources))
    history = SeparatorHistory((3,) * n_sources, (20.0,) * n_sources, (9.5,) * n_sources, 60)
    return TrainedSeparator(names, AUDIO, weights, history)


def schedule() -> Schedule:
    """Two recordings, one of unknown length, in the middle of a pass."""
    known = Recording("a.wav", 8000, 36000, AUDIO.stft.n_frames(36000), True, mark="01234567")
    recordings = [known, Recording("b.flac", 8000)]
    made = Schedule(recordings, AUDIO, batch_size=32, round_size=2048, n_passes=2)
    made.advance(Position(0, 3, n_read=6200, n_given=2, loudest={0: 0.25}))
    return made


def _written(write: Callable[[Any, Path], None], what: object) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(what, Path(folder, "file"))
        return Path(folder, "file").read_bytes()


def read_model(path: Path) -> None:
    """A model that is accepted can also be shown and saved again."""
    dictionary = load(path)
    repr((dictionary, dictionary.estimator.get_params()))
    dictionary.save(path, force=True)


def read_separator(path: Path) -> None:
    """One that is accepted can also be shown, saved again, and used: its stems are finite."""
    separator = load(path)
    repr((separator, separator.history))
    separator.save(path, force=True)
    if isinstance(separator, TrainedSeparator) and separator.audio.stft.n_fft <= 64:
        mixture = np.random.default_rng(0).standard_normal(400).astype(np.float32)
        stems = ondes.separate(mixture, separator, sr=separator.audio.sr)
        if not all(np.isfinite(each).all() for each in stems.values()):
            raise ArithmeticError("a stem is not finite")


def read_checkpoint(path: Path) -> None:
    """One that is accepted can also be written again, and its position is valid or refused."""
    read = checkpoint.read(path)
    checkpoint.write(path, read.document())
    with contextlib.suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of recordings with other bytes
        restored = schedule()
        restored.restore(read.position)
        restored.after(restored.position, len(restored.segments_at(restored.position)), {})


def read_recording(path: Path) -> None:
    """All of it, at its own rate and at another, and its end alone."""
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


@functools.cache
def work_seeds() -> dict[str, bytes]:
    """Saved work of the studio: with a dictionary and groups, and without."""
    from ondes.studio.components import Components
    from ondes.studio.project import Group, Mix, Project
    from ondes.studio.work_file import pack_work

    components = Components(small_models()["sound"], {})
    groups = [Group(1, "drums", (0, 2)), Group(2, "bass", (1,), is_proposed=True)]
    grouped = Project.of(groups, model=0)
    mix = Mix(amount=0.5).changed("g1", gain=-6.0)
    return {
        "groups": pack_work(grouped, mix, components, {}, {}),
        "nothing": pack_work(Project(), Mix(), None, {}, {}),
    }


def read_work_file(path: Path) -> None:
    """Work that is accepted can be shown, and put on recordings."""
    from ondes.studio.work_file import read_work

    work = read_work(path)
    repr(work.project)
    work.on([])
    json.dumps(work.mix.as_plain(), allow_nan=False)


def read_manifest(path: Path) -> None:
    """A list that is accepted can be shown."""
    repr(list(finding.read_manifest(path)))


TARGETS = {
    "model": Target(model_seeds, archives.mutated, read_model, FileError),
    "separator": Target(separator_seeds, archives.mutated, read_separator, FileError),
    "checkpoint": Target(checkpoint_seeds, archives.mutated, read_checkpoint, FileError),
    "recording": Target(sounds.seeds, sounds.mutated, read_recording, FileError),
    "recording_without_av": Target(
        sounds.libsndfile_seeds, sounds.mutated, read_without_av, FileError
    ),
    "piped": Target(sounds.wav_seeds, sounds.mutated, read_piped, FileError),
    "manifest": Target(texts.seeds, texts.mutated, read_manifest, FileError),
    "work": Target(work_seeds, archives.mutated, read_work_file, FileError),
    "answers": Target(answers.seeds, answers.mutated, answers.read, FileError),
    "pages": Target(listings.seeds, listings.mutated, listings.read, FileError),
    "training": Target(training.seeds, training.mutated, training.read, FileError),
    "tables": Target(tables.seeds, tables.mutated, tables.read, FileError),
    "settings": Target(learners.seeds, learners.mutated, learners.read, FileError, 5.0),
}
PACKAGES = {"answers": "aiohttp", "pages": "aiohttp", "training": "torch", "tables": "pyarrow"}
for _name, _package in PACKAGES.items():
    if importlib.util.find_spec(_package) is None:
        del TARGETS[_name]
