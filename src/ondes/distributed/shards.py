"""What is done with one shard of a round: pure functions, so that any of them may run again.

Each gives the same bits wherever and however often it runs. A worker that is lost therefore costs
time and nothing else.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes import __version__
from ondes.nmf.estimator import OnlineISNMF
from ondes.nmf.statistics import Statistics
from ondes.signal.audio import AudioError
from ondes.signal.frame_buffer import FrameBuffer
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.segments import FrameSettings, Recording, Segment, Source
from ondes.signal.silence import Loudest

__all__ = [
    "Credentials",
    "Heard",
    "Shard",
    "Sources",
    "add",
    "given",
    "hear",
    "introduce",
    "read",
    "summarise",
]


@dataclass(frozen=True)
class Sources:
    """All that a worker must know to read any segment.

    Attributes
    ----------
    name : str
        Of this run: what a worker keeps open belongs to it.
    version : str
        The ondes that planned it.
    """

    name: str
    paths: list[Source]
    recordings: list[Recording]
    how: FrameSettings
    version: str = __version__


@dataclass(frozen=True)
class Heard:
    """What the driver must know of a shard that was read: few bytes.

    Attributes
    ----------
    loudest : dict of int to float
        By recording, the energy of its loudest frame here.
    n_read : int
        Frames, silent ones included.
    failures : list of AudioError
    unseen : list of str
        Recordings that are not there for the one who was to read them.
    """

    loudest: Loudest
    n_read: int
    failures: list[AudioError]
    unseen: list[str]


@dataclass(frozen=True)
class Shard:
    """Frames that stay where they were read.

    Attributes
    ----------
    frames : array of shape (n_frames, n_bins), float32
    energies : array of shape (n_frames,), float32
    files : array of shape (n_frames,)
        The recording of each frame.
    heard : Heard
    """

    frames: NDArray[np.float32]
    energies: NDArray[np.float32]
    files: NDArray[np.intp]
    heard: Heard

    def sounding(self, thresholds: Loudest) -> NDArray[np.float32]:
        """The frames above their recording's threshold; those of no threshold are all kept."""
        if not thresholds:
            return self.frames
        each = np.array([thresholds[int(file)] for file in self.files], dtype=np.float32)
        return self.frames[self.energies > each]


_kept = threading.local()  # a recording that must be read in a row stays open between two shards


def read(sources: Sources, segments: list[Segment]) -> Shard:
    """Decode and transform the segments of a shard."""
    if sources.version != __version__:
        raise ValueError(
            f"A worker has ondes {__version__} and the driver {sources.version}: "
            "install the same version everywhere."
        )
    if getattr(_kept, "name", None) != sources.name:
        _kept.name = sources.name
        _kept.reader = SegmentReader(sources.paths, sources.recordings, sources.how)
    buffer = FrameBuffer(sources.how.stft, sum(each.n_frames for each in segments))
    energies, files = [np.empty(0, np.float32)], []
    loudest: Loudest = {}
    for file, span in _kept.reader.read(segments):
        energy = buffer.add(span).sum(axis=1)
        loudest[file] = max(loudest.get(file, 0.0), float(energy.max()))
        energies.append(energy)
        files.append(np.full(len(energy), file))
    failures = _kept.reader.failures()
    unseen = [bad.path for bad in failures if not Path(bad.path).exists()]
    return Shard(
        buffer.frames,
        np.concatenate(energies),
        np.concatenate([np.empty(0, np.intp), *files]),
        Heard(loudest, len(buffer), failures, unseen),
    )


def hear(shard: Shard) -> Heard:
    """Leave the frames behind."""
    return shard.heard


def summarise(shard: Shard, model: OnlineISNMF, thresholds: Loudest) -> Statistics:
    """What the model's next update needs of the frames with sound."""
    frames = shard.sounding(thresholds)
    if len(frames) == 0:
        return Statistics.zeros(*model.components_.shape)
    return model.summarise(frames)


def add(*statistics: Statistics) -> Statistics:
    """The sum, from left to right."""
    total, *others = statistics
    for each in others:
        total = total + each
    return total


@dataclass(frozen=True)
class Credentials:
    """Who a worker is: the same version, and the same bits from the same work."""

    version: str
    bits: str


def introduce(model: OnlineISNMF) -> Credentials:
    """Do a small piece of work with the model's settings, and say how it came out."""
    frames = np.random.default_rng(0).exponential(size=(64, 33)).astype(np.float32)
    who = {name: getattr(model, name) for name in ("backend", "device", "precision")}
    done = OnlineISNMF(4, random_state=0, **who).begin(frames).summarise(frames)
    return Credentials(__version__, hashlib.sha256(done.numerator.tobytes()).hexdigest())


def given(value: Any) -> Any:
    """The value itself: sent once as a task, then passed on from worker to worker."""
    return value
