"""Learning on many machines: the rounds of one run, shared out to the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ondes.checkpoint import EVERY_S
from ondes.distributed.engines import ClusterError, Engine, Here
from ondes.distributed.plan import Plan, first_round, shard_size
from ondes.distributed.rounds import Rounds
from ondes.learning import DEFAULT_SR
from ondes.lessons import CheckpointPlan, Failures, LearningProgress, run
from ondes.model_file import AudioSettings
from ondes.nmf import parameters
from ondes.nmf.estimator import OnlineISNMF
from ondes.signal.audio import AudioError, RawFormat, find_recordings
from ondes.signal.batches import Batches
from ondes.signal.segments import is_stream
from ondes.signal.stft import Stft

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["ClusterError", "go_on_learning", "learn"]

N_SHARDS = 8
PATIENCE_S = 10.0
WAIT_S = 60.0

Inputs = str | Path | Iterable[str | Path]


def learn(
    client: Client | str | None,
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
    n_shards: int = N_SHARDS,
    round_size: int | None = None,
    n_workers: int | None = None,
    patience: float = PATIENCE_S,
    wait: float = WAIT_S,
    raw: RawFormat | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY_S,
    resume: bool = False,
    progress: Callable[[LearningProgress], object] | None = None,
    on_error: Callable[[str, AudioError], object] | None = None,
    **settings: Any,
) -> OnlineISNMF:
    """Learn a dictionary from recordings with all workers of a cluster.

    The dictionary is a function of the recordings, the settings and the seed: to the last bit the
    same with any number of workers of one kind of processor, and whatever is lost on the way. It
    moves once a round and not once a mini-batch, so it is another one than that of `ondes.learn`.

    Workers may come and go. One that hangs is restarted. Each of these is a RuntimeWarning of one
    sentence, and costs time alone.

    Parameters
    ----------
    client : distributed.Client, str or None
        The cluster, or its scheduler's address. None: as many processes on this machine as
        `n_workers` says, for as long as it takes.
    inputs : str, Path, or iterable of str or Path
        Files, folders and globs, in any order. All workers must see them under the same paths.
        Recordings in lossless formats are read from anywhere; others must be read in a row.
    n_components, sr, n_fft, hop_length, window, passes, seed, silence
        See `ondes.learn`.
    n_shards : int
        Parts of a full round. More workers than that have nothing to do: give two for each.
    round_size : int, optional
        Frames in a full round; if not given, 16384 a shard at 32 components of 257 bins, fewer
        where the dictionary is larger, more where there are more than 32 shards. The first rounds
        are smaller, and the first two hours of sound are learned here, by mini-batches and
        with `n_jobs` threads.
    n_workers : int, optional
        Processes where `client` is None; as many as there are cores if not given. Zero does the
        same rounds in this process, and needs no Dask.
    patience : float
        Seconds without a sign after which a worker is taken for hung. It has more where rounds
        take long.
    wait : float
        Seconds to wait for workers where there are none, and for a scheduler that went away.
    raw, checkpoint, checkpoint_every, resume, progress, on_error, **settings
        See `ondes.learn`. Checkpoints are written here, not by the workers.

    Returns
    -------
    OnlineISNMF
        With `audio_` and `provenance_`.

    Raises
    ------
    ClusterError
        Where no scheduler answers, no workers come, or they are not fit for the work.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from ondes.signal.audio import write_audio
    >>> noise = np.random.default_rng(0).standard_normal(8000).astype("f4") / 9
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_audio(f"{folder}/noise.wav", [noise], 8000)
    ...     model = learn(None, folder, 4, sr=8000, n_workers=0, backend="reference")
    >>> model.components_.shape
    (4, 257)
    """
    model = OnlineISNMF(n_components, n_passes=passes, random_state=seed, **settings)
    model.audio_ = AudioSettings(sr, Stft(n_fft, hop_length, window), silence)
    return go_on_learning(
        client,
        model,
        inputs,
        passes=passes,
        seed=seed,
        n_shards=n_shards,
        round_size=round_size,
        n_workers=n_workers,
        patience=patience,
        wait=wait,
        raw=raw,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        progress=progress,
        on_error=on_error,
    )


def go_on_learning(
    client: Client | str | None,
    model: OnlineISNMF,
    inputs: Inputs,
    *,
    passes: int = 1,
    seed: int = 0,
    n_shards: int = N_SHARDS,
    round_size: int | None = None,
    n_workers: int | None = None,
    patience: float = PATIENCE_S,
    wait: float = WAIT_S,
    raw: RawFormat | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY_S,
    resume: bool = False,
    progress: Callable[[LearningProgress], object] | None = None,
    on_error: Callable[[str, AudioError], object] | None = None,
) -> OnlineISNMF:
    """Teach more recordings to a model that has `audio_`; see `learn`. The model is changed."""
    parameters.check(model)
    if round_size is None:
        round_size = n_shards * shard_size(model.n_components, model.audio_.stft.n_bins, n_shards)
    if not 1 <= n_shards <= round_size:
        raise ValueError(
            f"n_shards={n_shards} must be at least 1 and at most round_size={round_size}."
        )
    sources = _sources(inputs)
    plan = CheckpointPlan.of(checkpoint, checkpoint_every, resume)
    failures = Failures(on_error)
    batches = _batches(model, sources, passes, seed, raw, round_size, failures)
    rounds = Plan(batches, round_size, n_shards, int(getattr(model, "n_frames_seen_", 0)))
    with _engine(client, n_workers, patience, wait, model) as engine:
        return run(
            model,
            Rounds(model, rounds, engine, failures),
            OnlineISNMF.absorb,
            names=[str(source) for source in sources],
            settings={
                "passes": passes,
                "seed": seed,
                "raw": None if raw is None else astuple(raw),
                "round_size": round_size,
                "n_shards": n_shards,
            },
            failures=failures,
            progress=progress,
            plan=plan,
        )


def _sources(inputs: Inputs) -> list[Path]:
    found = find_recordings([inputs] if isinstance(inputs, (str, Path)) else list(inputs))
    if any(map(is_stream, found)):
        raise ValueError("A stream cannot be shared out to workers: give files, or learn here.")
    return [path.absolute() for path in found]


def _batches(
    model: OnlineISNMF,
    sources: list[Path],
    passes: int,
    seed: int,
    raw: RawFormat | None,
    round_size: int,
    failures: Failures,
) -> Batches:
    if model.batch_size is None:
        raise ValueError("batch_size=None needs all frames in one array; give a number.")
    audio: AudioSettings = model.audio_
    portion = first_round(round_size)
    batches = Batches(
        sources,
        audio.stft,
        audio.sr,
        min(model.batch_size, portion),
        buffer_size=portion,
        segment_size=min(1024, max(1, portion // 8)),  # every round has several recordings in it
        seed=seed,
        n_passes=passes,
        silence=audio.silence,
        raw=raw,
        on_error=failures,
    )
    pairs = zip(sources, batches.recordings, strict=True)
    unmeasured = {path for path, recording in pairs if recording.n_frames is None}
    if not unmeasured:
        return batches
    for path in sorted(unmeasured):
        reason = "does not say how long it is: convert it, to FLAC for one"
        failures(str(path), AudioError(path, reason))
    measured = [path for path in sources if path not in unmeasured]
    return _batches(model, measured, passes, seed, raw, round_size, failures)


@contextlib.contextmanager
def _engine(
    client: Client | str | None,
    n_workers: int | None,
    patience: float,
    wait: float,
    model: OnlineISNMF,
) -> Iterator[Engine]:
    if client is None and n_workers == 0:
        yield Here()
        return
    try:
        from ondes.distributed.cluster import Cluster, connected
    except ImportError as error:
        raise ImportError("A cluster needs Dask: pip install 'ondes[dask]'.") from error
    with (
        connected(client, n_workers) as client,
        Cluster(client, patience=patience, wait=wait) as cluster,
    ):
        cluster.check_workers(model)
        yield cluster
