"""Recordings in, a dictionary out: hours of audio at constant memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ondes.dictionary import Dictionary
from ondes.errors import FileError
from ondes.nmf.learner import DictionaryLearner
from ondes.presets import settings_of
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.recordings import RawFormat
from ondes.signal.stft import Stft
from ondes.training.checkpointer import EVERY_S
from ondes.training.loop import LearningProgress
from ondes.training_run import N_SHARDS, RecordingInputs

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["LearningProgress", "learn", "untrained"]


def learn(
    recordings: RecordingInputs,
    n_components: int | None = None,
    *,
    preset: str = "separation",
    sr: int | None = None,
    n_fft: int | None = None,
    hop_length: int | None = None,
    window: str = "hann",
    spectrum: str | None = None,
    beta_loss: str | float | None = None,
    sparsity: float | None = None,
    n_passes: int = 1,
    random_state: int = 0,
    top_db: float | None = 60.0,
    batch_size: int | None = None,
    raw: RawFormat | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY_S,
    resume: bool = False,
    cluster: Client | str | None = None,
    n_workers: int | None = None,
    n_shards: int = N_SHARDS,
    round_size: int | None = None,
    progress: Callable[[LearningProgress], object] | None = None,
    on_error: Callable[[str, FileError], object] | None = None,
    return_on_interrupt: bool = False,
    **settings: Any,
) -> Dictionary:
    """Learn a dictionary from recordings of any length, at constant memory.

    Parameters
    ----------
    recordings : str, Path, binary stream, array, or iterable of str, Path or arrays
        Files, folders and globs, in any order; ``-`` for standard input; or samples in memory at
        `sr`, of shape (n,) or (n, n_channels), float32 or int16.
    n_components : int, optional
        Spectra in the dictionary; 128 by default.
    preset : {"separation", "paper"}
        The defaults of the other settings: those that separate real recordings best, or those of
        Lefèvre, Bach and Févotte (2011), with the Itakura-Saito divergence of power.
    sr : int, optional
        Sampling rate in Hz that recordings are resampled to; 16000 by default. Mixtures of any
        rate can be separated.
    n_fft, hop_length, window
        Parameters of `Stft`. By default 4096 samples and a quarter of `n_fft`. The power of several
        channels is averaged.
    spectrum : {"magnitude", "power"}, optional
        The values of a frame; magnitude by default.
    beta_loss, sparsity
        As in `OnlineNMF`; by default "kullback-leibler" and 2.
    n_passes : int
        Number of passes over all recordings.
    random_state : int
        Seed of the order of the frames and of the first dictionary.
    top_db : float or None
        Frames more than this many decibels below the loudest frame so far of their recording are
        left out; None keeps all.
    batch_size : int, optional
        Frames per update of the dictionary; 128 by default.
    raw : RawFormat, optional
        Format of samples without a header.
    checkpoint : str or Path, optional
        A file that training can be resumed from, written while it runs and when it is interrupted.
        It is also a model file. Delete it yourself when the dictionary is saved. A stream cannot
        have a checkpoint.
    checkpoint_every : float
        Seconds from one checkpoint to the next. One that cannot be written gives a RuntimeWarning.
    resume : bool
        Continue from `checkpoint`; the result has the same bytes as that of an uninterrupted run.
        If the file does not exist, start from the beginning. All settings that affect the result
        must be the same.
    cluster : distributed.Client or str, optional
        Compute on a Dask cluster: its client, the address of its scheduler, or ``"local"`` for
        processes on this machine. All workers must find the recordings under the same paths. The
        dictionary is updated once per round instead of once per mini-batch, so it differs from
        that of one machine. It does not depend on the number of workers, or on lost workers.
        ``"in-process"`` computes the same rounds in this process, without Dask.
    n_workers : int, optional
        Processes of ``cluster="local"``; one per core if not given.
    n_shards : int
        Parts of a full round on a cluster; two per worker are best.
    round_size : int, optional
        Frames in a full round on a cluster; by default enough that scheduling costs little.
    progress : callable, optional
        Called with a `LearningProgress` after every update; with ``backend="torch"`` and on a
        cluster after every round.
    on_error : callable, optional
        Called once for each unreadable recording with its path and the `FileError`; training
        continues with the others. Without it the error is raised.
    return_on_interrupt : bool
        Whether Ctrl-C and SIGTERM end training and return what was learned so far, with
        `history.stopped_by` set; a second signal raises KeyboardInterrupt. By default the first one
        raises it: at once, or, with a checkpoint, after the checkpoint is written.
    **settings
        Further parameters of `OnlineNMF`. In addition to the `n_jobs` threads of the kernel, as
        many threads read recordings, but at most four; for a GPU one per core by default.

    Returns
    -------
    Dictionary

    Raises
    ------
    FileError
        If a recording or the checkpoint cannot be used.
    ClusterError
        If no scheduler answers, there are no workers, or they cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import ondes
    >>> noise = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    >>> ondes.learn(noise, 4, sr=8000).components.shape
    (4, 2049)
    """
    given = {
        "n_components": n_components,
        "sr": sr,
        "n_fft": n_fft,
        "hop_length": hop_length,
        "spectrum": spectrum,
        "beta_loss": beta_loss,
        "sparsity": sparsity,
        "batch_size": batch_size,
    }
    given |= {"n_passes": n_passes, "random_state": random_state}
    return untrained(preset, window, top_db, **(given | settings)).learn(
        recordings,
        n_passes=n_passes,
        random_state=random_state,
        raw=raw,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        cluster=cluster,
        n_workers=n_workers,
        n_shards=n_shards,
        round_size=round_size,
        progress=progress,
        on_error=on_error,
        return_on_interrupt=return_on_interrupt,
    )


def untrained(
    preset: str = "separation", window: str = "hann", top_db: float | None = 60.0, **settings: Any
) -> Dictionary:
    """The dictionary that `learn` trains, before it is trained.

    Parameters
    ----------
    preset, window, top_db, **settings
        As in `learn`; None is the value of the preset.

    Examples
    --------
    >>> untrained(n_components=4, sr=8000).audio.sr
    8000
    """
    chosen = settings_of(preset, settings)
    stft = Stft(chosen.pop("n_fft"), chosen.pop("hop_length"), window)
    audio = AudioSettings(chosen.pop("sr"), stft, top_db, chosen.pop("spectrum"))
    return Dictionary(DictionaryLearner(**chosen), audio)
