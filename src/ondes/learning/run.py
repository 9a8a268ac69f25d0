"""One run of learning: its recordings, their order, the learner, where it stands, what ends it."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from ondes.cores import n_threads
from ondes.errors import ClusterError, FileError
from ondes.learning.checkpoint import EVERY_S, Checkpoint, CheckpointFile, check_same_run
from ondes.learning.corpus import Corpus, RecordingInputs, found
from ondes.learning.interruption import Failures, StopSignals
from ondes.models.archive import sentence_part
from ondes.models.dictionary import Dictionary
from ondes.models.history import TrainingHistory
from ondes.nmf.backends.tensors import active_rows
from ondes.nmf.forgetting import PerPass, warn_without_total
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.statistics import Statistics, Trained
from ondes.rebatch import slices
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import MiniBatches, Rounds
from ondes.signal.frame_reader import FrameReader, HostFrameReader
from ondes.signal.recordings import RawFormat
from ondes.signal.schedule import Schedule

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["EVERY_S", "LearningProgress", "Run", "RunOptions", "initialise"]

INITIAL_FRAMES = 3000  # the first dictionary is drawn from this many; one mini-batch is too alike
# The dictionary remembers its last frames best, so these must be a fair sample of all: the more
# frames are shuffled the better, as far as memory goes.
SHUFFLED_BYTES = 2**25
SEGMENT_SAMPLES = 2**18  # consecutive samples of a recording: a round has many segments
STREAM_FRAMES = 1000  # a stream is learned from within ten seconds
MAX_READERS = 4  # more of them wait for the interpreter's lock
MAX_FILES_NAMED = 1000
N_SHARDS = 8
OTHER_NAME = "choose another name, or replace it (--force)"
# What only `fit` does, by parameter: the value that asks for nothing, and what to do instead.
ONLY_FIT = {
    "n_init": (1, "a run learns once"),
    "remainder": ("update", "frames left over at the end of a round make a smaller batch"),
    "restarts": ("fresh", "recordings are learned from with fresh restarts"),
    "shuffle": (True, "recordings are always shuffled"),
    "tol": (0.0, "recordings are learned from to their end"),
    "verbose": (0, "`progress` and the history say how learning goes"),
}

T = TypeVar("T")


@dataclass(frozen=True)
class LearningProgress:
    """Where training stands.

    Attributes
    ----------
    seconds_done : float
        Seconds of audio so far, over all passes.
    seconds_total : float or None
        None for a stream.
    n_frames : int
        Frames learned from.
    divergence : float
        Per bin; see `TrainingHistory`.
    """

    seconds_done: float
    seconds_total: float | None
    n_frames: int
    divergence: float


@dataclass(frozen=True)
class RunOptions:
    """What a user chooses of a run beside the dictionary; see `ondes.learn` for the fields."""

    n_passes: int = 1
    random_state: int = 0
    raw: RawFormat | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: float | None = None
    resume: bool = False
    cluster: Client | str | None = None
    n_workers: int | None = None
    n_shards: int | None = None
    round_size: int | None = None
    progress: Callable[[LearningProgress], object] | None = None
    on_error: Callable[[str, FileError], object] | None = None
    return_on_interrupt: bool = False

    def __post_init__(self) -> None:
        for name, least in {"n_passes": 1, "random_state": 0}.items():
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number from {least}.")
        if self.resume and self.checkpoint is None:
            raise ValueError("resume=True needs the checkpoint to continue: give its path.")
        if (every := self.checkpoint_every) is not None and (not every >= 0 or math.isinf(every)):
            raise ValueError(f"checkpoint_every={every!r} must be a number of seconds.")
        needs = {
            "checkpoint_every": ("checkpoint", self.checkpoint is not None),
            "n_workers": ("cluster='local'", self.cluster == "local"),
            "n_shards": ("cluster", self.cluster is not None),
            "round_size": ("cluster", self.cluster is not None),
        }
        for name, (needed, is_there) in needs.items():
            if getattr(self, name) is not None and not is_there:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} needs {needed}: give that, or leave it out."
                )


class Resumable(Protocol):
    """A position in an order of batches, as `ondes.signal.schedule.Schedule` keeps it."""

    @property
    def seconds_done(self) -> float:
        """Seconds of audio in the batches so far, over all passes."""

    @property
    def seconds_total(self) -> float | None:
        """Seconds of audio in all batches; None where unknown."""

    def state(self) -> dict[str, Any]:
        """The position after the last batch, as plain values and arrays."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position; ValueError where it does not belong to these batches."""


class Batches(NamedTuple):
    """What a run learns from.

    Attributes
    ----------
    each : iterable of frames or Statistics
        Iterating continues from the position and changes it. An empty batch only shows that time
        has passed. Statistics are those of frames under the dictionary as it is when they come.
    position : Resumable
    draw : callable
        Draws the first dictionary: it takes batches from the iterator, and returns them to be
        learned from in turn.
    """

    each: Iterable[Any]
    position: Resumable
    draw: Callable[[Iterator[Any]], list[Any]]


class Run:
    """A run of learning: on this machine, on a GPU, or on a cluster.

    Parameters
    ----------
    dictionary : Dictionary
        Its learner is trained: it is changed.
    recordings
        As for `ondes.learn`.
    options : RunOptions
    """

    def __init__(
        self, dictionary: Dictionary, recordings: RecordingInputs, options: RunOptions
    ) -> None:
        if dictionary.audio is None:
            raise ValueError(
                "This dictionary was learned from arrays, so it has no audio settings; learn it "
                "from recordings, or give `audio`."
            )
        _check_route(dictionary.learner, options)
        self.dictionary, self.learner, self.options = dictionary, dictionary.learner, options
        self.audio: AudioSettings = dictionary.audio
        self.failures = Failures(options.on_error)
        has_checkpoint = options.checkpoint is not None
        self.signals = StopSignals(enabled=options.return_on_interrupt or has_checkpoint)
        items = found(recordings)
        self.corpus = Corpus.surveyed(items, self.audio, options.raw)
        if self.corpus.is_stream and has_checkpoint:
            raise ValueError(
                "A stream can be read only once and not resumed; leave out checkpoint."
            )
        if self.corpus.is_stream and options.n_passes > 1:
            raise ValueError("A stream can be read only once: n_passes must be 1.")
        self._files, self._unknown = self.corpus.names, list[FileError]()
        if options.cluster is not None:
            from ondes.learning.cluster.shards import shared

            self.corpus, self._unknown = shared(self.corpus)
        self._before = self._learned = dictionary.history
        self._position: Resumable

    # ---- what decides the result ----

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result beside the dictionary's own parameters, as plain values."""
        raw, options = self.options.raw, self.options
        settings: dict[str, Any] = {
            "n_passes": options.n_passes,
            "random_state": int(options.random_state),
            "raw": None if raw is None else astuple(raw),
        }
        if options.cluster is not None:
            settings |= {"round_size": self._round_size, "n_shards": self._n_shards}
        return settings

    def check_finished(self, path: str | Path, finished: Dictionary) -> None:
        """Raise FileError unless the model in a file is what this run ended with, or began."""
        run = None if finished.history is None else finished.history.run
        if run is None:
            raise FileError(path, f"exists already, and does not belong to this run; {OTHER_NAME}")
        before, now = (finished, run["settings"]), (self.dictionary, self.settings)
        check_same_run(path, before, now, remedy=OTHER_NAME)
        if run["recordings"] != self.corpus.digest():
            raise FileError(path, f"belongs to a run with other recordings; {OTHER_NAME}")

    # ---- learning ----

    def learn(self) -> Dictionary:
        """Learn from all batches, or from those that come before a signal to stop.

        Raises KeyboardInterrupt where a signal ended it, unless `return_on_interrupt`; the
        checkpoint is written by then.
        """
        for failure in self._unknown:
            self.failures(failure.path, failure)
        forgetting = self.learner.settings.forgetting
        self._n_in_set: float | None = self.corpus.n_frames
        if self._n_in_set is None:
            warn_without_total(forgetting)
        elif isinstance(forgetting, PerPass) and self._counts(forgetting):
            self._n_in_set = self._n_active()
        options = self.options
        every = EVERY_S if options.checkpoint_every is None else options.checkpoint_every
        with self.open_batches() as batches:
            self._position = batches.position
            with CheckpointFile(options.checkpoint, every) as file, self.signals:
                self._train(batches, file)
        if not _has_learned(self.learner):
            if self.signals.is_requested():
                raise KeyboardInterrupt
            n_failed, n_all = len(self.failures.reasons), len(self.corpus.items)
            why = "are silent" if n_failed < n_all else "could not be read"
            raise ValueError(f"The recordings {why}, so there is nothing to learn; give others.")
        if self._n_learned < self.learner.n_components and not self.signals.is_requested():
            self._warn_of_few_frames()
        self._record_backend()
        if self.signals.is_requested() and not options.return_on_interrupt:
            raise KeyboardInterrupt
        run = {"settings": self.settings, "recordings": self.corpus.digest()}
        return Dictionary(self.learner, self.audio, self._history(run))

    def _train(self, batches: Batches, file: CheckpointFile) -> None:
        # Whether the position of the batches is where the learner stands.
        in_step = self._resume(file)
        is_new = not in_step and not _has_learned(self.learner)
        with contextlib.closing(_until_stopped(batches.each, self.signals)) as coming:
            first = batches.draw(coming) if is_new else []
            # A first dictionary drawn from fewer frames than it asks for is not the final one.
            is_cut_short = self.signals.is_requested()
            try:
                for n_batches, batch in enumerate(itertools.chain(first, coming), 1):
                    self._learn_batch(batch)
                    in_step = not is_cut_short and n_batches >= len(first)
                    if in_step and file.is_due:
                        file.write(self._checkpoint)
            except ClusterError:  # no more batches will come: what was learned is kept
                if in_step:
                    file.write(self._checkpoint)
                raise
        if in_step and self.signals.is_requested():
            file.write(self._checkpoint)

    def _learn_batch(self, batch: Any) -> None:
        """What `partial_fit` does, and in a cluster the end of it."""
        n_in_set = self._n_in_set
        if isinstance(batch, Statistics):
            self.learner.absorb(batch, n_in_set)
            learned = Trained(batch.n_frames, batch.divergence)
        elif len(batch):
            learned = Trained(*self.learner.learn_batches(batch, n_in_set))
        else:
            learned = Trained(0.0, 0.0)
        if learned.n_frames:
            per_bin = learned.divergence / learned.n_frames / self.learner.n_features_in_
            history = self._learned or TrainingHistory()
            self._learned = history.with_update(round(learned.n_frames), per_bin)
        if self.options.progress is not None:
            now = self._learned or TrainingHistory()
            seconds = self._position.seconds_done, self._position.seconds_total
            self.options.progress(LearningProgress(*seconds, now.n_frames, now.divergence))

    def _counts(self, rule: PerPass) -> bool:
        return rule.n_frames is None and 0 < rule.r < 1 and self.options.cluster is None

    def _n_active(self) -> int:
        """Frames of the first pass that are not silent, which are known only after reading them."""
        frames_of = partial(HostFrameReader, audio=self.audio)
        # Learning reports what cannot be read.
        rounds = self._rounds(frames_of, self._n_readers, n_passes=1, on_error=lambda *_: None)
        return sum(int(active_rows(batch).sum()) for batch in MiniBatches(rounds))

    @property
    def _n_learned(self) -> int:
        return self._learned.n_frames if self._learned else 0

    def _history(self, run: dict[str, Any] | None = None) -> TrainingHistory:
        """The history up to now; with what decided the run, that of its end."""
        before, now = self._before or TrainingHistory(), self._learned or TrainingHistory()
        return replace(
            now if run is None else now.with_last_point(),
            files=(*before.files, *self._files)[:MAX_FILES_NAMED],
            n_files=before.n_files + len(self._files),
            n_failed=before.n_failed + len(self.failures.reasons),
            seconds=before.seconds + self._position.seconds_done,
            stopped_by=None if run is None else self.signals.received,
            run=run,
        )

    # ---- checkpoints ----

    def _resume(self, file: CheckpointFile) -> bool:
        """Continue from the last checkpoint; whether there is one."""
        kept = file.resumed(self.options.resume, self.dictionary, self.settings)
        if kept is None:
            return False
        try:
            self._position.restore(kept.position)
        except (LookupError, TypeError, AttributeError) as error:
            reason = f"has an invalid position ({sentence_part(error)})"
            raise FileError(
                str(self.options.checkpoint), f"{reason}; delete the file to start over"
            ) from error
        self.learner.restore(kept.dictionary.learner.state())
        self._before, self._learned = kept.before, kept.dictionary.history
        for name, reason in kept.failures.items():
            self.failures(name, FileError(name, reason))
        return True

    def _checkpoint(self) -> dict[str, Any]:
        dictionary = Dictionary(self.learner, self.audio, self._history())
        position, reasons = self._position.state(), self.failures.reasons
        return Checkpoint(dictionary, position, self.settings, reasons, self._before).document()

    # ---- where a batch is summarised ----

    @contextlib.contextmanager
    def open_batches(self) -> Iterator[Batches]:
        """The batches of this run, until the end of the block."""
        if self.options.cluster is not None:
            with self._on_cluster() as batches:
                yield batches
        elif self.learner.settings.trains_on_device:
            yield self._on_device()
        else:
            yield self._on_host()

    def _on_host(self) -> Batches:
        rounds = self._rounds(partial(HostFrameReader, audio=self.audio), self._n_readers)
        return Batches(MiniBatches(rounds), rounds.schedule, self._draw(rounds.schedule))

    @property
    def _n_readers(self) -> int:
        return max(1, min(n_threads(self.learner.n_jobs), MAX_READERS))

    def _on_device(self) -> Batches:
        from ondes.learning.gpu import DeviceRounds, FrameMaker, GpuFrameReader

        maker = FrameMaker(self.audio, self.learner.device or "cpu")
        # The GPU is so much faster than a decoder that other cores should read for it.
        n_readers = min(n_threads(self.learner.n_jobs or -1), MAX_READERS)
        rounds = self._rounds(partial(GpuFrameReader, maker=maker), n_readers)
        draw = self._draw(rounds.schedule, size=self.learner.batch_size)
        return Batches(DeviceRounds(rounds, maker), rounds.schedule, draw)

    def _draw(
        self, schedule: Schedule, size: int | None = None
    ) -> Callable[[Iterator[Any]], list[Any]]:
        """See `initialise`; no frame is drawn from twice."""
        return partial(
            initialise, self.learner, size=size, is_over=lambda: schedule.position.n_pass > 0
        )

    def _rounds(
        self,
        frames_of: Callable[[Any], FrameReader],
        n_readers: int,
        n_passes: int | None = None,
        on_error: Callable[[str, FileError], object] | None = None,
    ) -> Rounds:
        """What so many threads read in the order of the schedule."""
        n_shuffled = SHUFFLED_BYTES // (4 * self.audio.n_bins)
        schedule = self._schedule(
            batch_size=cast(int, self.learner.batch_size),
            round_size=STREAM_FRAMES if self.corpus.is_stream else n_shuffled,
            segment_size=max(1, min(1024, SEGMENT_SAMPLES // self.audio.stft.hop_length)),
            n_passes=n_passes or self.options.n_passes,
        )
        return Rounds(
            schedule,
            lambda: frames_of(self.corpus.open(n_readers)),
            on_error=on_error or self.failures,
            should_stop=self.signals.is_requested,
        )

    def _schedule(self, **settings: int) -> Schedule:
        order = {"random_state": self.options.random_state, "n_passes": self.options.n_passes}
        return Schedule(self.corpus.known, self.audio, **order | settings)

    @contextlib.contextmanager
    def _on_cluster(self) -> Iterator[Batches]:
        from ondes.learning.cluster.plan import Plan, schedule_sizes
        from ondes.learning.cluster.rounds import ClusterRounds, open_engine
        from ondes.learning.cluster.shards import SharedCorpus

        shared = cast(SharedCorpus, self.corpus)
        sizes = schedule_sizes(self._round_size, self._n_shards, self.learner.batch_size)
        n_before = int(getattr(self.learner, "n_frames_seen_", 0))
        plan = Plan(self._schedule(**sizes), self._round_size, self._n_shards, n_before)
        options, should_stop = self.options, self.signals.is_requested
        compute = self.learner.settings.compute
        with open_engine(options.cluster, options.n_workers, compute, should_stop) as engine:
            rounds = ClusterRounds(self.learner, plan, shared, engine, self.failures, should_stop)

            def draw(_: Iterator[Any]) -> list[Any]:
                initialise(self.learner, rounds.first_frames())
                return []  # they are learned from when they come again, shuffled

            yield Batches(rounds, plan, draw)

    @property
    def _n_shards(self) -> int:
        return N_SHARDS if self.options.n_shards is None else self.options.n_shards

    @property
    def _round_size(self) -> int:
        if self.options.round_size is not None:
            return self.options.round_size
        from ondes.learning.cluster.plan import shard_size

        n_components, n_bins = self.learner.n_components, self.audio.n_bins
        return self._n_shards * shard_size(n_components, n_bins, self._n_shards)

    # ---- said at the end ----

    def _record_backend(self) -> None:
        """Let `backend_` be that of this run, not that of a checkpoint or of an earlier run."""
        settings = self.learner.settings
        used = settings.compute.backend_for(settings.problem(self.learner.components_)).NAME
        if used != self.learner.backend_:
            self.learner.restore(replace(self.learner.state(), backend=used))

    def _warn_of_few_frames(self) -> None:
        warnings.warn(
            f"{self.learner.n_components} components were learned from {self._n_learned} "
            "non-silent frames, which is too few to be useful; give more recordings, or fewer "
            "components.",
            RuntimeWarning,
            stacklevel=4,
        )


def _check_route(learner: DictionaryLearner, options: RunOptions) -> None:
    """Raise ValueError where a parameter asks for what only `fit`, or one machine, does."""
    if learner.settings.batch_size is None:
        raise ValueError("batch_size=None needs all frames in one array; give a number.")
    for name, (nothing, instead) in ONLY_FIT.items():
        if (value := getattr(learner, name)) != nothing:
            raise ValueError(
                f"{name}={value!r} is for `OnlineNMF.fit` of an array: {instead}; leave it out."
            )
    if not isinstance(learner.start, str):
        raise ValueError("start of each frame is for `OnlineNMF.fit` of an array; leave it out.")
    if options.cluster is not None and learner.start != "even":
        raise ValueError(
            f"start={learner.start!r} is for one machine: give no cluster, or leave it out."
        )


def _has_learned(learner: DictionaryLearner) -> bool:
    return getattr(learner, "n_frames_seen_", 0) > 0


def _until_stopped(batches: Iterable[T], signals: StopSignals) -> Generator[T]:
    """The batches until a stop is requested; one that has come is never dropped."""
    coming = iter(batches)
    try:
        while not signals.is_requested() and (batch := next(coming, None)) is not None:
            yield batch
    finally:
        if isinstance(coming, Generator):
            coming.close()


def initialise(
    learner: DictionaryLearner,
    batches: Iterator[Any],
    size: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[Any]:
    """Draw the first dictionary from the first frames, and return what they came in.

    It stays undrawn where there are none. With a `size`, what comes is many mini-batches of it.
    """
    first: list[Any] = []
    drawn: list[Any] = []
    n_drawn = 0
    for batch in batches:
        first.append(batch)
        for rows in slices(len(batch), size or max(1, len(batch))):
            if n_drawn < INITIAL_FRAMES:
                drawn.append(batch[rows])
                n_drawn += len(drawn[-1])
        if n_drawn >= INITIAL_FRAMES or is_over():
            break
    if drawn:
        learner.initialise(_joined(drawn))
    return first


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)
