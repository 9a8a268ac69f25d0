"""One training run on recordings: on this machine, on a GPU, or on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from joblib import effective_n_jobs

from ondes.errors import FileError
from ondes.history import TrainingHistory
from ondes.model_file import SavedModel
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineNMF
from ondes.signal import memory_reader
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import MiniBatches, Rounds
from ondes.signal.frame_reader import FrameReader, HostFrameReader
from ondes.signal.inventory import digest
from ondes.signal.memory_reader import MemoryReader
from ondes.signal.recordings import RawFormat, find_recordings
from ondes.signal.schedule import Schedule
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.segments import Recording, is_stream, survey
from ondes.training.batch_source import BatchSource, Update
from ondes.training.checkpoint import check_finished_run
from ondes.training.checkpointer import EVERY_S, CheckpointPlan
from ondes.training.failures import Failures
from ondes.training.loop import LearningProgress, first_frames, train
from ondes.training.stop_signals import StopSignals

if TYPE_CHECKING:
    from distributed import Client

    from ondes.cluster.engine import Engine

__all__ = ["IN_PROCESS", "TrainingRun"]

# The dictionary remembers its last frames best, so these must be a fair sample of all: the more
# frames are shuffled the better, as far as memory goes.
SHUFFLED_BYTES = 2**25
SEGMENT_SAMPLES = 2**18  # consecutive samples of a recording: a round has many segments
STREAM_FRAMES = 1000  # a stream is learned from within ten seconds
MAX_READERS = 4  # more of them wait for the interpreter's lock
N_SHARDS = 8
IN_PROCESS = "in-process"

RecordingInputs = str | Path | BinaryIO | Array | Iterable[str | Path | Array]
"""Paths, folders and globs; a binary stream; or samples in memory."""


@dataclass
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
    _signals: StopSignals = field(init=False)
    _failures: Failures = field(init=False)

    def train(
        self,
        estimator: OnlineNMF,
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
        inputs = _Inputs.of(recordings)
        if plan is not None and inputs.is_stream:
            raise ValueError("A stream can be read only once, so no checkpoint could resume it.")
        if inputs.is_stream and self.n_passes > 1:
            raise ValueError("A stream can be read only once: n_passes must be 1.")
        self._failures = Failures(self.on_error)
        self._signals = StopSignals(enabled=self.return_on_interrupt or plan is not None)
        common: dict[str, Any] = {
            "files": inputs.names,
            "failures": self._failures,
            "signals": self._signals,
            "progress": self.progress,
            "plan": plan,
            "settings": self._settings(estimator, audio),
        }
        model = SavedModel(estimator, audio, history)
        if self.cluster is not None:
            history = self._on_cluster(model, audio, inputs, common)
        else:
            known = inputs.survey(audio, self.raw)
            source, step, initialise = self._here(estimator, audio, inputs, known)
            common["recordings"] = digest(known)
            history = train(model, source, step, initialise=initialise, **common)
        _record_backend(estimator)
        if history.stopped_by is not None and not self.return_on_interrupt:
            raise KeyboardInterrupt
        return history

    def check_finished(
        self,
        path: str | Path,
        finished: SavedModel,
        estimator: OnlineNMF,
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
        known = _Inputs.of(recordings).survey(audio, self.raw)
        if self.cluster is not None:
            known = [each for each in known if each.n_frames is not None]
        model, settings = SavedModel(estimator, audio, None), self._settings(estimator, audio)
        check_finished_run(path, finished, model, settings, digest(known))

    def _settings(self, estimator: OnlineNMF, audio: AudioSettings) -> dict[str, Any]:
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

    # ---- this machine ----

    def _here(
        self,
        estimator: OnlineNMF,
        audio: AudioSettings,
        inputs: _Inputs,
        known: list[Recording],
    ) -> tuple[BatchSource[Any], Callable[[Any], Update], Callable[..., Any]]:
        n_shuffled = SHUFFLED_BYTES // (4 * audio.stft.n_bins)
        schedule = Schedule(
            known,
            audio,
            batch_size=cast(int, estimator.batch_size),
            round_size=STREAM_FRAMES if inputs.is_stream else n_shuffled,
            segment_size=max(1, min(1024, SEGMENT_SAMPLES // audio.stft.hop_length)),
            random_state=self.random_state,
            n_passes=self.n_passes,
        )
        if estimator.backend == "torch":
            from ondes import gpu

            if gpu.unsupported(estimator) is None:
                return self._on_gpu(estimator, schedule, inputs)
        n_readers = max(1, min(effective_n_jobs(estimator.n_jobs) // 2, MAX_READERS))

        def open_reader() -> FrameReader:
            return HostFrameReader(inputs.open(schedule, self.raw, n_readers), audio)

        batches = MiniBatches(self._rounds(schedule, open_reader))
        return batches, _step(estimator), _initialise(estimator)

    def _on_gpu(
        self, estimator: OnlineNMF, schedule: Schedule, inputs: _Inputs
    ) -> tuple[BatchSource[Any], Callable[[Any], Update], Callable[..., Any]]:
        from ondes import gpu
        from ondes.nmf.backends.devices import ready, torch

        audio, device = schedule.audio, torch.device(estimator.device or "cpu")
        ready(str(device))
        background = estimator.settings.background(audio.stft.n_bins)
        maker = gpu.FrameMaker(audio, schedule.batch_size, background, device)
        # The GPU is so much faster than a decoder that other cores should read for it.
        n_readers = min(effective_n_jobs(estimator.n_jobs or -1), MAX_READERS)

        def open_reader() -> FrameReader:
            return gpu.GpuFrameReader(inputs.open(schedule, self.raw, n_readers), maker)

        batches = gpu.GpuBatches(schedule, self._rounds(schedule, open_reader), maker)
        return batches, gpu.GpuTrainer(estimator).step, gpu.initialise(estimator)

    def _rounds(self, schedule: Schedule, open_reader: Callable[[], FrameReader]) -> Rounds:
        return Rounds(
            schedule,
            open_reader,
            on_error=self._failures,
            should_stop=self._signals.is_requested,
        )

    # ---- a cluster ----

    def _on_cluster(
        self,
        model: SavedModel,
        audio: AudioSettings,
        inputs: _Inputs,
        common: dict[str, Any],
    ) -> TrainingHistory:
        from ondes import cluster
        from ondes.cluster.shards import Recordings

        estimator, n_shards = model.estimator, self.n_shards
        if inputs.is_stream or inputs.arrays is not None:
            raise ValueError("A cluster needs recordings in files, which all workers can read.")
        round_size = common["settings"]["round_size"]
        if not 1 <= n_shards <= round_size:
            raise ValueError(
                f"n_shards={n_shards} must be at least 1 and at most round_size={round_size}."
            )
        inputs, recordings = self._measured(inputs, audio)
        portion = cluster.first_round(round_size)
        schedule = Schedule(
            recordings,
            audio,
            batch_size=min(estimator.batch_size or portion, portion),
            round_size=portion,
            segment_size=min(1024, max(1, portion // 8)),  # a round has several recordings in it
            random_state=self.random_state,
            n_passes=self.n_passes,
        )

        def open_reader() -> FrameReader:
            return HostFrameReader(inputs.open(schedule, self.raw, 1), audio)

        n_before = int(getattr(estimator, "n_frames_seen_", 0))
        plan = cluster.Plan(schedule, round_size, n_shards, n_before)
        shared = Recordings(inputs.paths, recordings, audio, self.raw)
        batches = MiniBatches(self._rounds(schedule, open_reader))

        def absorb(statistics: Any) -> Update:
            estimator.absorb(statistics)
            return Update(statistics.n_frames, statistics.divergence)

        with self._engine(estimator) as engine:
            source = cluster.ClusterSource(estimator, plan, shared, batches, engine, self._failures)
            return train(model, source, absorb, recordings=digest(recordings), **common)

    def _round_size(self, estimator: OnlineNMF, audio: AudioSettings) -> int:
        if self.round_size is not None:
            return self.round_size
        from ondes.cluster import shard_size

        n_components, n_bins = estimator.n_components, audio.stft.n_bins
        return self.n_shards * shard_size(n_components, n_bins, self.n_shards)

    def _measured(self, inputs: _Inputs, audio: AudioSettings) -> tuple[_Inputs, list[Recording]]:
        """Without the recordings of unknown length, which are reported."""
        inputs = _Inputs([path.absolute() for path in inputs.paths])
        pairs = list(zip(inputs.paths, inputs.survey(audio, self.raw), strict=True))
        for path, recording in pairs:
            if recording.n_frames is None:
                reason = "has no length in its header; convert it, for example to FLAC"
                self._failures(str(path), FileError(path, reason))
        known = [(path, each) for path, each in pairs if each.n_frames is not None]
        return _Inputs([path for path, _ in known]), [each for _, each in known]

    @contextlib.contextmanager
    def _engine(self, estimator: OnlineNMF) -> Iterator[Engine]:
        from ondes.cluster import InProcess

        if self.cluster == IN_PROCESS:
            yield InProcess()
            return
        try:
            from ondes.cluster.dask_engine import DaskEngine, connected
        except ImportError as error:
            raise ImportError("A cluster needs Dask: pip install 'ondes[dask]'.") from error
        with (
            connected(cast(Any, self.cluster), self.n_workers) as client,
            DaskEngine(client, self._signals.is_requested) as engine,
        ):
            engine.check_workers(estimator.settings.compute)
            yield engine


@dataclass(frozen=True)
class _Inputs:
    """Recordings in files, in a stream, or in memory."""

    paths: list[Any]
    arrays: Sequence[Array] | None = None

    @classmethod
    def of(cls, given: RecordingInputs) -> _Inputs:
        if hasattr(given, "read"):
            return cls([given])
        if isinstance(given, (str, Path)):
            return cls(list(find_recordings([given])))
        several: list[Any] = [given] if isinstance(given, np.ndarray) else list(given)
        if any(isinstance(each, np.ndarray) for each in several):
            return cls([], [_as_samples(each) for each in several])
        return cls(list(find_recordings(several)))

    @property
    def is_stream(self) -> bool:
        return any(map(is_stream, self.paths))

    @property
    def names(self) -> list[str]:
        if self.arrays is not None:
            return [f"recording {n}" for n in range(len(self.arrays))]
        return ["stream" if hasattr(path, "read") else str(path) for path in self.paths]

    def survey(self, audio: AudioSettings, raw: RawFormat | None) -> list[Recording]:
        if self.arrays is not None:
            return memory_reader.describe(self.arrays, audio)
        return survey(self.paths, audio, raw)

    def open(self, schedule: Schedule, raw: RawFormat | None, n_readers: int) -> Any:
        if self.arrays is not None:
            return MemoryReader(self.arrays, schedule.audio.stft)
        return SegmentReader(self.paths, schedule.recordings, schedule.audio, raw, n_readers)


def _record_backend(estimator: OnlineNMF) -> None:
    """Let `backend_` be that of this run, not that of a checkpoint or of an earlier run."""
    settings = estimator.settings
    problem = settings.problem(estimator.components_)
    used = settings.compute.backend_for(problem).NAME
    if used != estimator.backend_:
        estimator.restore(replace(estimator.state(), backend=used))


def _as_samples(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _step(estimator: OnlineNMF) -> Callable[[Array], Update]:
    def step(batch: Array) -> Update:
        if not len(batch):
            return Update(0.0, 0.0)
        if not getattr(estimator, "is_initialised_", False):
            estimator.initialise(batch)
        statistics = estimator.summarise(batch)
        estimator.absorb(statistics)
        return Update(statistics.n_frames, statistics.divergence)

    return step


def _initialise(estimator: OnlineNMF) -> Callable[[Iterator[Array]], list[Array]]:
    def initialise(batches: Iterator[Array]) -> list[Array]:
        first = first_frames(batches)
        if any(map(len, first)):
            estimator.initialise(np.concatenate(first))
        return first

    return initialise
