"""Recordings in, a dictionary out: hours of sound at constant memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Self, cast

import numpy as np

from ondes.model_file import AudioSettings, Provenance
from ondes.nmf import parameters
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF
from ondes.signal.audio import AudioError, RawFormat, find_recordings
from ondes.signal.batches import Batches
from ondes.signal.stft import Stft

__all__ = ["LearningProgress", "divergence_of", "go_on_learning", "learn"]

DEFAULT_SR = 22050
SEED_FRAMES = 3000  # the first dictionary is drawn from so many; one mini-batch is too alike
# The dictionary remembers its last frames best, so these must be a fair sample of all there are:
# the more frames are shuffled the better, as far as memory goes. A stream is heard in ten seconds.
SHUFFLED_BYTES = 2**25
STREAM_FRAMES = 1000
CURVE_GROWTH = 1.03  # a point of the learning curve whenever the frames have grown by this
MAX_FILES_NAMED = 1000
SCORED_AT_ONCE = 1024

Inputs = str | Path | BinaryIO | Iterable[str | Path]


@dataclass(frozen=True)
class LearningProgress:
    """Where learning stands after a mini-batch.

    Attributes
    ----------
    seconds_done : float
        Of sound, over all passes.
    seconds_total : float or None
        None for a stream.
    n_frames : int
        Frames learned from.
    divergence : float
        Per bin, of the frames that the statistics still remember.
    """

    seconds_done: float
    seconds_total: float | None
    n_frames: int
    divergence: float


def learn(
    inputs: Inputs,
    n_components: int = 32,
    *,
    sr: int = DEFAULT_SR,
    n_fft: int = 512,
    hop_length: int | None = None,
    window: str = "hann",
    passes: int = 1,
    seed: int = 0,
    silence: float | None = -60.0,
    batch_size: int = 128,
    raw: RawFormat | None = None,
    progress: Callable[[LearningProgress], object] | None = None,
    on_error: Callable[[str, AudioError], object] | None = None,
    **settings: Any,
) -> OnlineISNMF:
    """Learn a dictionary from recordings of any length, at constant memory.

    Ctrl-C ends learning, not the program: what was learned so far is returned, and
    `provenance_.stopped_by` says so. A second Ctrl-C is an ordinary one.

    Parameters
    ----------
    inputs : str, Path, binary stream, or iterable of str or Path
        Files, folders and globs, in any order; ``-`` for standard input.
    n_components : int
        Rows of the dictionary.
    sr : int
        Samples a second that all recordings are brought to.
    n_fft, hop_length, window
        See `Stft`.
    passes : int
        How often to hear all recordings.
    seed : int
        Decides the order of the frames and the first dictionary.
    silence : float or None
        Frames this many decibels below the loudest so far of their recording are left out; None
        keeps all.
    batch_size : int
        The dictionary moves once every so many frames.
    raw : RawFormat, optional
        What the samples are where no header says.
    progress : callable, optional
        Called with a `LearningProgress` after every update.
    on_error : callable, optional
        Called once for each bad recording with its path and the `AudioError`; the rest is still
        learned. Without it the error is raised.
    **settings
        Further parameters of `OnlineISNMF`.

    Returns
    -------
    OnlineISNMF
        With `audio_`, an `AudioSettings`, and `provenance_`, a `Provenance`.

    Examples
    --------
    >>> import io, numpy as np
    >>> from ondes.signal.audio import RawFormat
    >>> noise = np.random.default_rng(0).standard_normal(8000).astype("<f4")
    >>> pipe = io.BytesIO(noise.tobytes())
    >>> model = learn(pipe, 4, sr=8000, raw=RawFormat(8000, 1, "f32le"), backend="reference")
    >>> model.components_.shape
    (4, 257)
    """
    model = OnlineISNMF(
        n_components, batch_size=batch_size, n_passes=passes, random_state=seed, **settings
    )
    model.audio_ = AudioSettings(sr, Stft(n_fft, hop_length, window), silence)
    return go_on_learning(
        model, inputs, passes=passes, seed=seed, raw=raw, progress=progress, on_error=on_error
    )


def go_on_learning(
    model: OnlineISNMF,
    inputs: Inputs,
    *,
    passes: int = 1,
    seed: int = 0,
    raw: RawFormat | None = None,
    progress: Callable[[LearningProgress], object] | None = None,
    on_error: Callable[[str, AudioError], object] | None = None,
) -> OnlineISNMF:
    """Teach more recordings to a model that has `audio_`; see `learn`. The model is changed."""
    parameters.check(model)
    sources = _sources(inputs)
    failures: list[str] = []

    def fail(path: str, error: AudioError) -> None:
        failures.append(path)
        if on_error is None:
            raise error
        on_error(path, error)

    batches = _batches(model, sources, passes, seed, raw, fail)
    before = getattr(model, "provenance_", None) or Provenance(np.empty((0, 2)))
    curve: list[tuple[float, float]] = [tuple(point) for point in before.learning_curve]
    with _StopSignals() as signals:
        arriving = signals.until_one_comes(iter(batches))
        for batch in arriving if _has_learned(model) else _begun(model, arriving):
            model.partial_fit(batch)
            n_frames, divergence = model.n_frames_seen_, model.statistics_.divergence_per_bin
            if not curve or n_frames >= CURVE_GROWTH * curve[-1][0]:
                curve.append((n_frames, divergence))
            if progress is not None:
                seconds = batches.seconds_done, batches.seconds_total
                progress(LearningProgress(*seconds, n_frames, divergence))
    if not _has_learned(model):
        if signals.received is not None:
            raise KeyboardInterrupt
        raise ValueError("There is no sound to learn from in what was given; give recordings.")
    names = [str(source) for source in sources] if isinstance(sources, list) else ["stream"]
    end = (model.n_frames_seen_, model.statistics_.divergence_per_bin)
    model.provenance_ = Provenance(
        learning_curve=np.array(curve if curve[-1] == end else [*curve, end], dtype=np.float64),
        files=(*before.files, *names)[:MAX_FILES_NAMED],
        n_files=before.n_files + len(names),
        n_failed=before.n_failed + len(failures),
        n_frames=model.n_frames_seen_,
        seconds=before.seconds + batches.seconds_done,
        divergence=end[1],
        stopped_by=signals.received,
    )
    return model


def divergence_of(
    model: OnlineISNMF, source: str | Path | BinaryIO, *, raw: RawFormat | None = None
) -> tuple[int, float]:
    """How far a recording is from what a model can say, at constant memory.

    Parameters
    ----------
    model : OnlineISNMF
        With `audio_`, which says how the recording becomes frames.
    source : str, Path or binary stream
    raw : RawFormat, optional
        What the samples are where no header says.

    Returns
    -------
    n_frames : int
        Frames with sound.
    divergence : float
        Their mean Itakura-Saito divergence per bin; NaN where there are none.
    """
    audio: AudioSettings = model.audio_
    n_frames, total = 0, 0.0
    for frames in Batches(
        source, audio.stft, audio.sr, SCORED_AT_ONCE, silence=audio.silence, raw=raw
    ):
        n_frames += int(np.count_nonzero(frames.any(axis=1)))
        total -= float(model.score_samples(frames).sum())
    return n_frames, total / n_frames if n_frames else float("nan")


def _has_learned(model: OnlineISNMF) -> bool:
    return getattr(model, "n_frames_seen_", 0) > 0


def _batches(
    model: OnlineISNMF,
    sources: list[Path] | BinaryIO,
    passes: int,
    seed: int,
    raw: RawFormat | None,
    on_error: Callable[[str, AudioError], object],
) -> Batches:
    if model.batch_size is None:
        raise ValueError("batch_size=None needs all frames in one array; give a number.")
    audio: AudioSettings = model.audio_
    is_stream = not isinstance(sources, list) or Path("-") in sources
    return Batches(
        sources,
        audio.stft,
        audio.sr,
        model.batch_size,
        seed=seed,
        n_passes=passes,
        silence=audio.silence,
        raw=raw,
        on_error=on_error,
        buffer_size=STREAM_FRAMES if is_stream else SHUFFLED_BYTES // (4 * audio.stft.n_bins),
    )


def _sources(inputs: Inputs) -> list[Path] | BinaryIO:
    if hasattr(inputs, "read"):
        return cast(BinaryIO, inputs)
    return find_recordings([inputs] if isinstance(inputs, (str, Path)) else list(inputs))


def _begun(model: OnlineISNMF, batches: Iterator[Array]) -> Iterator[Array]:
    """The same batches, once the first of them have given the first dictionary."""
    first: list[Array] = []
    for batch in batches:
        first.append(batch)
        if sum(map(len, first)) >= SEED_FRAMES:
            break
    if first:
        model.begin(np.concatenate(first))
    yield from first
    yield from batches


class _StopSignals:
    """Ctrl-C may cut short a wait for sound, but never an update of the dictionary.

    So may every signal that raises KeyboardInterrupt here: the command line has SIGTERM do so.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._is_waiting = False
        self._replaced: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in signal.Signals:
                if signal.getsignal(number) is signal.default_int_handler:
                    signal.signal(number, self._receive)
                    self._replaced.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._replaced:
            signal.signal(number, signal.default_int_handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        is_second = self.received is not None
        self.received = signal.Signals(number).name
        if self._is_waiting or is_second:
            raise KeyboardInterrupt

    def until_one_comes(self, batches: Iterator[Array]) -> Iterator[Array]:
        """The batches that arrive before a signal does."""
        while self.received is None:
            try:
                self._is_waiting = True
                batch = next(batches, None)
                self._is_waiting = False
            except KeyboardInterrupt:
                self._is_waiting = False
                if self.received is None:
                    raise
                return
            if batch is None:
                return
            yield batch
