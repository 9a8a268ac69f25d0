"""Recordings in, a dictionary out: hours of sound at constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from joblib import effective_n_jobs

from ondes.checkpoint import EVERY_S
from ondes.lessons import (
    SEED_FRAMES,
    SHUFFLED_BYTES,
    CheckpointPlan,
    Failures,
    LearningProgress,
    Lessons,
    run,
)
from ondes.model_file import AudioSettings
from ondes.nmf import parameters
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF
from ondes.signal.audio import AudioError, RawFormat, find_recordings
from ondes.signal.batches import Batches
from ondes.signal.stft import Stft

__all__ = ["LearningProgress", "divergence_of", "go_on_learning", "learn"]

DEFAULT_SR = 22050
STREAM_FRAMES = 1000  # a stream is heard in ten seconds
SCORED_AT_ONCE = 1024
MAX_READERS = 4  # more of them wait for the interpreter's lock

Inputs = str | Path | BinaryIO | Iterable[str | Path]


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
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY_S,
    resume: bool = False,
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
    checkpoint : str or Path, optional
        A file that says how to go on, written while learning and when it is interrupted. It is a
        model file, too. It stays: delete it when the model is saved. A stream can have none.
    checkpoint_every : float
        Seconds from one checkpoint to the next. One that cannot be written is a RuntimeWarning.
    resume : bool
        Go on from `checkpoint`, to the very bytes of an unbroken run; where the file does not
        exist, begin. All settings must be what they were, but those that say who does the work.
    progress : callable, optional
        Called with a `LearningProgress` after every update; with ``backend="torch"`` after every
        round of some minutes of sound, since an update there takes less time than a call.
    on_error : callable, optional
        Called once for each bad recording with its path and the `AudioError`; the rest is still
        learned. Without it the error is raised.
    **settings
        Further parameters of `OnlineISNMF`. Beside `n_jobs` threads of the kernel half as many
        read; for a card, `n_jobs` threads read, and one a core if it is not given. At most four.

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
        model,
        inputs,
        passes=passes,
        seed=seed,
        raw=raw,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        progress=progress,
        on_error=on_error,
    )


def go_on_learning(
    model: OnlineISNMF,
    inputs: Inputs,
    *,
    passes: int = 1,
    seed: int = 0,
    raw: RawFormat | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY_S,
    resume: bool = False,
    progress: Callable[[LearningProgress], object] | None = None,
    on_error: Callable[[str, AudioError], object] | None = None,
) -> OnlineISNMF:
    """Teach more recordings to a model that has `audio_`; see `learn`. The model is changed."""
    parameters.check(model)
    sources = _sources(inputs)
    failures = Failures(on_error)
    plan = CheckpointPlan.of(checkpoint, checkpoint_every, resume)
    if plan is not None and _is_stream(sources):
        raise ValueError("A stream can be heard only once, so no checkpoint could resume it.")
    lessons, teach, begin = _lessons(model, sources, passes, seed, raw, failures)
    return run(
        model,
        lessons,
        teach,
        begin=begin,
        names=[str(source) for source in sources] if isinstance(sources, list) else ["stream"],
        settings={"passes": passes, "seed": seed, "raw": None if raw is None else astuple(raw)},
        failures=failures,
        progress=progress,
        plan=plan,
    )


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


def _lessons(
    model: OnlineISNMF,
    sources: list[Path] | BinaryIO,
    passes: int,
    seed: int,
    raw: RawFormat | None,
    on_error: Callable[[str, AudioError], object],
) -> tuple[Lessons[Any], Callable[[OnlineISNMF, Any], object], Callable[..., Any]]:
    """What is taught, how, and how it begins: batches on the host, or rounds on a device."""
    if model.batch_size is None:
        raise ValueError("batch_size=None needs all frames in one array; give a number.")
    audio: AudioSettings = model.audio_
    n_shuffled = SHUFFLED_BYTES // (4 * audio.stft.n_bins)
    how = sources, audio.stft, audio.sr, model.batch_size
    settings: dict[str, Any] = {
        "seed": seed,
        "n_passes": passes,
        "silence": audio.silence,
        "raw": raw,
        "on_error": on_error,
        "buffer_size": STREAM_FRAMES if _is_stream(sources) else n_shuffled,
    }
    if model.backend == "torch":
        from ondes import card

        if card.unsupported(model) is None:
            # The card is so much faster than a decoder that other cores should read for it.
            n_free = effective_n_jobs(-1 if model.n_jobs is None else model.n_jobs)
            settings["n_readers"] = min(n_free, MAX_READERS)
            rounds = card.DeviceRounds(card.maker_for(model), *how, **settings)
            return rounds, card.Course().teach, card.begin
    settings["n_readers"] = max(1, min(effective_n_jobs(model.n_jobs) // 2, MAX_READERS))
    return Batches(*how, **settings), OnlineISNMF.partial_fit, _begin


def _sources(inputs: Inputs) -> list[Path] | BinaryIO:
    if hasattr(inputs, "read"):
        return cast(BinaryIO, inputs)
    return find_recordings([inputs] if isinstance(inputs, (str, Path)) else list(inputs))


def _is_stream(sources: list[Path] | BinaryIO) -> bool:
    return not isinstance(sources, list) or Path("-") in sources


def _begin(model: OnlineISNMF, batches: Iterator[Array]) -> list[Array]:
    """Draw the first dictionary from the first batches, and give them back."""
    first: list[Array] = []
    for batch in batches:
        first.append(batch)
        if sum(map(len, first)) >= SEED_FRAMES:
            break
    if first:
        model.begin(np.concatenate(first))
    return first
