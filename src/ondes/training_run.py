"""One training run on recordings: on this machine, on a GPU, or on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from ondes.cores import n_threads
from ondes.errors import FileError
from ondes.history import TrainingHistory
from ondes.model_file import SavedModel
from ondes.nmf.divergence import Array
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.statistics import Statistics
from ondes.signal import memory_reader
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import MiniBatches, Rounds
from ondes.signal.frame_reader import FrameReader, HostFrameReader
from ondes.signal.inventory import digest
from ondes.signal.locations import Location, is_location
from ondes.signal.memory_reader import MemoryReader
from ondes.signal.recordings import RawFormat, find_recordings
from ondes.signal.schedule import Schedule
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.segments import Recording, is_stream, survey
from ondes.training.batch_source import BatchSource, Update
from ondes.training.checkpoint import check_finished_run
from ondes.training.checkpointer import EVERY_S, CheckpointPlan
from ondes.training.failures import Failures
from ondes.training.loop import LearningProgress, initialise, train
from ondes.training.stop_signals import StopSignals

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["RecordingInputs", "TrainingRun"]

# The dictionary remembers its last frames best, so these must be a fair sample of all: the more
# frames are shuffled the better, as far as memory goes.
SHUFFLED_BYTES = 2**25
SEGMENT_SAMPLES = 2**18  # consecutive samples of a recording: a round has many segments
STREAM_FRAMES = 1000  # a stream is learned from within ten seconds
MAX_READERS = 4  # more of them wait for the interpreter's lock
N_SHARDS = 8

RecordingInputs = str | Location | BinaryIO | Array | Iterable[str | Location | Array]
"""Paths, folders, globs, URLs and parts; a binary stream; or samples in memory."""


@dataclass(frozen=True)
class TrainingRun:
    """How to train an estimator on recordings; see `ondes.learn` for the fields."""

    n_passes: int = 1
    random_state: int = 0
    raw: RawFormat | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: float = EVERY_S
    resume: bool = False
    cluster: Client | str | None = None
    n_workers: int | None = None
    n_shards: int = N_SHARDS
    round_size: int | None = None
    progress: Callable[[LearningProgress], object] | None = None
    on_error: Callable[[str, FileError], object] | None = None
    return_on_interrupt: bool = False

    def train(
        self,
        estimator: DictionaryLearner,
        audio: AudioSettings,
        history: TrainingHistory | None,
        recordings: RecordingInputs,
    ) -> TrainingHistory:
        """Train the estimator, which is changed, and return the history.

        Raises KeyboardInterrupt where a signal ended training, unless `return_on_interrupt`; the
        checkpoint is written by then.
        """
        if estimator.settings.batch_size is None:
            raise ValueError("batch_size=None needs all frames in one array; give a number.")
        if not isinstance(self.random_state, (int, np.integer)) or self.random_state < 0:
            raise ValueError(f"random_state={self.random_state!r} must be a whole number from 0.")
        plan = CheckpointPlan.of(self.checkpoint, self.checkpoint_every, self.resume)
        inputs = _Inputs.of(recordings, self.raw)
        if plan is not None and inputs.is_stream:
            raise ValueError(
                "A stream can be read only once and not resumed; leave out checkpoint."
            )
        if inputs.is_stream and self.n_passes > 1:
            raise ValueError("A stream can be read only once: n_passes must be 1.")
        failures = Failures(self.on_error)
        signals = StopSignals(enabled=self.return_on_interrupt or plan is not None)
        files, settings = inputs.names, self._settings(estimator, audio)
        inputs, known = self._surveyed(inputs, audio, failures)
        reading = _Reading(inputs, known, failures, signals)
        with self._source(estimator, audio, reading) as source:
            history = train(
                SavedModel(estimator, audio, history),
                source,
                files=files,
                recordings=digest(known),
                settings=settings,
                failures=failures,
                signals=signals,
                progress=self.progress,
                plan=plan,
            )
        _record_backend(estimator)
        if history.stopped_by is not None and not self.return_on_interrupt:
            raise KeyboardInterrupt
        return history

    def check_finished(
        self,
        path: str | Path,
        finished: SavedModel,
        estimator: DictionaryLearner,
        audio: AudioSettings,
        recordings: RecordingInputs,
    ) -> None:
        """Raise FileError unless the model in a file is what this run ended with, or began.

        Parameters
        ----------
        path : str or Path
            Of `finished`.
        finished : SavedModel
        estimator, audio, recordings
            As for `train`.
        """
        _, known = self._surveyed(
            _Inputs.of(recordings, self.raw), audio, Failures(lambda *_: None)
        )
        model, settings = SavedModel(estimator, audio, None), self._settings(estimator, audio)
        check_finished_run(path, finished, model, settings, digest(known))

    def _settings(self, estimator: DictionaryLearner, audio: AudioSettings) -> dict[str, Any]:
        """What decides the result beside the model's own parameters, as plain values."""
        settings: dict[str, Any] = {
            "n_passes": self.n_passes,
            "random_state": int(self.random_state),
            "raw": None if self.raw is None else astuple(self.raw),
        }
        if self.cluster is not None:
            round_size = self._round_size(estimator, audio)
            settings |= {"round_size": round_size, "n_shards": self.n_shards}
        return settings

    def _surveyed(
        self, inputs: _Inputs, audio: AudioSettings, on_error: Callable[[str, FileError], object]
    ) -> tuple[_Inputs, list[Recording]]:
        """The recordings to train on; on a cluster those of unknown length are left out."""
        if self.cluster is None:
            return inputs, inputs.survey(audio)
        if inputs.is_stream or inputs.arrays is not None:
            raise ValueError("A cluster needs recordings in files, which all workers can read.")
        inputs = replace(inputs, paths=[path.absolute() for path in inputs.paths])
        pairs = list(zip(inputs.paths, inputs.survey(audio), strict=True))
        for path, recording in pairs:
            if recording.n_frames is None:
                reason = "has no length in its header; convert it, for example to FLAC"
                on_error(str(path), FileError(path, reason))
        known = [(path, each) for path, each in pairs if each.n_frames is not None]
        return replace(inputs, paths=[path for path, _ in known]), [each for _, each in known]

    @contextlib.contextmanager
    def _source(
        self, estimator: DictionaryLearner, audio: AudioSettings, reading: _Reading
    ) -> Iterator[BatchSource[Any]]:
        if self.cluster is not None:
            with self._on_cluster(estimator, audio, reading) as source:
                yield source
            return
        n_shuffled = SHUFFLED_BYTES // (4 * audio.stft.n_bins)
        schedule = self._schedule(
            reading,
            audio,
            batch_size=cast(int, estimator.batch_size),
            round_size=STREAM_FRAMES if reading.inputs.is_stream else n_shuffled,
            segment_size=max(1, min(1024, SEGMENT_SAMPLES // audio.stft.hop_length)),
        )
        if estimator.backend == "torch":
            from ondes import gpu

            if gpu.unsupported(estimator) is None:
                yield _on_gpu(estimator, schedule, reading)
                return
        yield _on_host(estimator, schedule, reading)

    def _schedule(self, reading: _Reading, audio: AudioSettings, **sizes: int) -> Schedule:
        order: dict[str, Any] = {"random_state": self.random_state, "n_passes": self.n_passes}
        return Schedule(reading.known, audio, **sizes, **order)

    # ---- a cluster ----

    def _round_size(self, estimator: DictionaryLearner, audio: AudioSettings) -> int:
        if self.round_size is not None:
            return self.round_size
        from ondes.cluster import shard_size

        n_components, n_bins = estimator.n_components, audio.stft.n_bins
        return self.n_shards * shard_size(n_components, n_bins, self.n_shards)

    @contextlib.contextmanager
    def _on_cluster(
        self, estimator: DictionaryLearner, audio: AudioSettings, reading: _Reading
    ) -> Iterator[BatchSource[Any]]:
        from ondes import cluster
        from ondes.cluster.shards import Recordings

        round_size = self._round_size(estimator, audio)
        sizes = cluster.schedule_sizes(round_size, self.n_shards, estimator.batch_size)
        schedule = self._schedule(reading, audio, **sizes)
        n_before = int(getattr(estimator, "n_frames_seen_", 0))
        plan = cluster.Plan(schedule, round_size, self.n_shards, n_before)
        shared = Recordings(reading.inputs.paths, reading.known, audio, self.raw)

        compute, should_stop = estimator.settings.compute, reading.signals.is_requested
        with cluster.open_engine(self.cluster, self.n_workers, compute, should_stop) as engine:
            parts = (plan, shared, engine, reading.failures, should_stop)
            rounds = cluster.ClusterSource(estimator, *parts)
            yield BatchSource(rounds, plan, partial(_absorbed, estimator))


@dataclass(frozen=True)
class _Inputs:
    """Recordings in files, in a stream, or in memory."""

    paths: list[Any]
    raw: RawFormat | None = None
    arrays: Sequence[Array] | None = None

    @classmethod
    def of(cls, given: RecordingInputs, raw: RawFormat | None) -> _Inputs:
        if hasattr(given, "read"):
            return cls([given], raw)
        is_one = is_location(given) or isinstance(given, np.ndarray)
        several: Any = [given] if is_one else given  # `find_recordings` knows its own result
        if not isinstance(several, list):
            several = list(several)
        if any(isinstance(each, np.ndarray) for each in several):
            return cls([], raw, [_as_samples(each) for each in several])
        return cls(list(find_recordings(several)), raw)

    @property
    def is_stream(self) -> bool:
        return any(map(is_stream, self.paths))

    @property
    def names(self) -> list[str]:
        if self.arrays is not None:
            return [f"recording {n}" for n in range(len(self.arrays))]
        return ["stream" if hasattr(path, "read") else str(path) for path in self.paths]

    def survey(self, audio: AudioSettings) -> list[Recording]:
        if self.arrays is not None:
            return memory_reader.describe(self.arrays, audio)
        return survey(self.paths, audio, self.raw)

    def open(self, schedule: Schedule, n_readers: int) -> Any:
        if self.arrays is not None:
            return MemoryReader(self.arrays, schedule.audio.stft)
        return SegmentReader(self.paths, schedule.recordings, schedule.audio, self.raw, n_readers)


def _as_samples(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array


@dataclass(frozen=True)
class _Reading:
    """The recordings of a run, where failures are reported, and what ends it."""

    inputs: _Inputs
    known: list[Recording]
    failures: Failures
    signals: StopSignals

    def rounds(
        self, schedule: Schedule, frames_of: Callable[[Any], FrameReader], n_readers: int
    ) -> Rounds:
        """What so many threads read in the order of a schedule."""
        return Rounds(
            schedule,
            lambda: frames_of(self.inputs.open(schedule, n_readers)),
            on_error=self.failures,
            should_stop=self.signals.is_requested,
        )


# ---- this machine ----


def _on_host(
    estimator: DictionaryLearner, schedule: Schedule, reading: _Reading
) -> BatchSource[Array]:
    n_readers = max(1, min(n_threads(estimator.n_jobs), MAX_READERS))
    frames_of = partial(HostFrameReader, audio=schedule.audio)
    batches = MiniBatches(reading.rounds(schedule, frames_of, n_readers))

    def step(batch: Array) -> Update:
        if not len(batch):
            return Update(0.0, 0.0)
        if not getattr(estimator, "is_initialised_", False):
            estimator.initialise(batch)
        return _absorbed(estimator, estimator.summarise(batch))

    return BatchSource(batches, schedule, step, partial(initialise, estimator))


def _on_gpu(
    estimator: DictionaryLearner, schedule: Schedule, reading: _Reading
) -> BatchSource[Any]:
    from ondes import gpu
    from ondes.nmf.backends.devices import ready, torch

    audio, device = schedule.audio, torch.device(estimator.device or "cpu")
    ready(str(device))
    maker = gpu.FrameMaker(audio, device)
    # The GPU is so much faster than a decoder that other cores should read for it.
    n_readers = min(n_threads(estimator.n_jobs or -1), MAX_READERS)
    rounds = reading.rounds(schedule, lambda files: gpu.GpuFrameReader(files, maker), n_readers)
    trainer = gpu.GpuTrainer(estimator)
    return BatchSource(
        gpu.GpuBatches(rounds, maker), schedule, trainer.step, gpu.initialise(estimator)
    )


def _absorbed(estimator: DictionaryLearner, statistics: Statistics) -> Update:
    estimator.absorb(statistics)
    return Update(statistics.n_frames, statistics.divergence)


def _record_backend(estimator: DictionaryLearner) -> None:
    """Let `backend_` be that of this run, not that of a checkpoint or of an earlier run."""
    settings = estimator.settings
    problem = settings.problem(estimator.components_)
    used = settings.compute.backend_for(problem).NAME
    if used != estimator.backend_:
        estimator.restore(replace(estimator.state(), backend=used))
