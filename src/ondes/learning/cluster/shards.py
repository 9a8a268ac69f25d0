"""What is done with one shard of a round, and what runs it: this process, or a cluster.

The functions are pure: each returns the same bits wherever and however often it runs. A lost worker
therefore costs time and nothing else.
"""

from __future__ import annotations

import enum
import hashlib
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ondes import __version__
from ondes.errors import FileError
from ondes.learning.corpus import Corpus
from ondes.nmf import encoding
from ondes.nmf.encoding import Compute
from ondes.nmf.problem import Problem, Solver
from ondes.nmf.statistics import Statistics
from ondes.signal.audio_settings import AudioSettings, Loudest, is_active, loudest_of
from ondes.signal.frame_reader import FrameBuffer, add_frames
from ondes.signal.schedule import Segment

__all__ = [
    "Engine",
    "InProcess",
    "Interrupted",
    "Priority",
    "RoundLost",
    "Shard",
    "ShardInfo",
    "SharedCorpus",
    "WorkerInfo",
    "add",
    "given",
    "info",
    "introduce",
    "read",
    "shared",
    "summarise",
]


@dataclass(frozen=True)
class SharedCorpus(Corpus):
    """Recordings of known length that all workers find under the same paths.

    Attributes
    ----------
    run : str
        Name of this run: the files that a worker keeps open belong to it.
    version : str
        Version of ondes that planned it.
    """

    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    version: str = __version__


def shared(corpus: Corpus) -> tuple[SharedCorpus, list[FileError]]:
    """What all workers can read of a corpus, and the recordings that are left out."""
    if corpus.is_stream or corpus.is_in_memory:
        raise ValueError("A cluster needs recordings in files, which all workers can read.")
    pairs = [(path.absolute(), each) for path, each in zip(corpus.items, corpus.known, strict=True)]
    reason = "has no length in its header; convert it, for example to FLAC"
    left_out = [FileError(path, reason) for path, each in pairs if each.n_frames is None]
    kept = [(path, each) for path, each in pairs if each.n_frames is not None]
    items, known = [path for path, _ in kept], [each for _, each in kept]
    return SharedCorpus(items, known, corpus.audio, corpus.raw), left_out


@dataclass(frozen=True)
class ShardInfo:
    """What the driver must know of a shard that was read: few bytes.

    Attributes
    ----------
    loudest : dict of int to float
        By recording, the energy of its loudest frame here.
    n_read : int
        Frames, silent ones included.
    failures : list of FileError
    missing : list of str
        Recordings that do not exist where they were to be read.
    rates : dict of int to float
        By recording, its own sampling rate.
    """

    loudest: Loudest
    n_read: int
    failures: list[FileError]
    missing: list[str]
    rates: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """Frames that stay where they were read.

    Attributes
    ----------
    frames : array of shape (n_frames, n_bins), float32
        Power.
    energies : array of shape (n_frames,), float32, or float64 where the range must be wider
    files : array of shape (n_frames,)
        The recording of each frame.
    info : ShardInfo
    """

    frames: NDArray[np.float32]
    energies: NDArray[Any]
    files: NDArray[np.intp]
    info: ShardInfo

    def active_frames(self, loudest: Loudest, audio: AudioSettings) -> NDArray[np.float32]:
        """The non-silent frames, NaN where a recording's own sampling rate has nothing."""
        active = is_active(self.energies, self.files, loudest, audio.top_db)
        frames = audio.from_power(self.frames[active])
        for file in np.unique(self.files):
            if (rate := self.info.rates[int(file)]) < audio.sr:
                of_file = self.files[active] == file
                frames[of_file] = audio.mark_missing(frames[of_file], rate)
        return frames


_kept = threading.local()  # a recording that is read sequentially stays open between two shards


def read(corpus: SharedCorpus, segments: list[Segment]) -> Shard:
    """Decode and transform the segments of a shard."""
    if corpus.version != __version__:
        raise ValueError(
            f"A worker has ondes {__version__} and the driver {corpus.version}: "
            "install the same version everywhere."
        )
    if getattr(_kept, "run", None) != corpus.run:
        _kept.run = corpus.run
        _kept.reader = corpus.open()
    buffer = FrameBuffer(corpus.audio, sum(each.n_frames for each in segments))
    energies, files = [np.empty(0, np.float32)], [np.empty(0, np.intp)]
    for file, samples in _kept.reader.read(segments):
        energies.append(add_frames(buffer, samples))
        files.append(np.full(len(energies[-1]), file))
    energy, file_of = np.concatenate(energies), np.concatenate(files)
    failures = _kept.reader.failures()
    missing = [failure.path for failure in failures if not Path(failure.path).exists()]
    rates = {int(file): _kept.reader.rate(int(file)) for file in np.unique(file_of)}
    about = ShardInfo(loudest_of(energy, file_of), len(buffer), failures, missing, rates)
    return Shard(buffer.trimmed(), energy, file_of, about)


def info(shard: Shard) -> ShardInfo:
    """Leave the frames behind."""
    return shard.info


def summarise(
    shard: Shard, problem: Problem, compute: Compute, loudest: Loudest, audio: AudioSettings
) -> Statistics:
    """What the dictionary's next update needs of the non-silent frames."""
    frames = shard.active_frames(loudest, audio)
    if len(frames) == 0:
        return Statistics.zeros(*problem.dictionary.shape, beta=problem.divergence.beta)
    return encoding.summarise(frames, problem, compute)[1]


def add(*statistics: Statistics) -> Statistics:
    """The sum, from left to right."""
    total, *others = statistics
    for each in others:
        total = total + each
    return total


@dataclass(frozen=True)
class WorkerInfo:
    """What must be alike on all workers: the version, and the bits of a small computation."""

    version: str
    bits: str


def introduce(compute: Compute) -> WorkerInfo:
    """Do a small computation, and return a digest of its bits."""
    generator = np.random.default_rng(0)
    frames = generator.exponential(size=(64, 33)).astype(np.float32)
    problem = Problem(generator.dirichlet(np.ones(33), size=4), 1e-12, Solver())
    _, done = encoding.summarise(frames, problem, compute)
    return WorkerInfo(__version__, hashlib.sha256(done.numerator.tobytes()).hexdigest())


def given(value: Any) -> Any:
    """The value itself: sent once as a task, then passed on from worker to worker."""
    return value


# ---- what runs these functions ----


class RoundLost(Exception):  # noqa: N818
    """The results of this round will not come: run it again."""


class Interrupted(Exception):  # noqa: N818
    """A stop was requested while results were awaited."""


class Priority(enum.IntEnum):
    """What goes first: small tasks that others wait for, then this round, then the next."""

    READ = 0
    COMPUTE = 1
    SMALL = 2


class Engine(Protocol):
    """Takes functions and returns futures, which may be arguments of other functions."""

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.READ,
        place: int | None = None,
    ) -> Any:
        """A future of the function's value. Those of one `place` prefer the same worker."""
        ...

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """Their values in the same order; raises RoundLost where they will not come.

        Raises Interrupted where a stop was requested meanwhile.
        """
        ...

    def recover(self) -> None:
        """Prepare to run a lost round again; raises ClusterError where that is impossible."""
        ...


class InProcess:
    """Runs everything at once in this process."""

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.READ,
        place: int | None = None,
    ) -> Any:
        """The function's value itself."""
        return function(*arguments)

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """The values again."""
        return list(futures)

    def recover(self) -> None:
        """Nothing is ever lost here."""
