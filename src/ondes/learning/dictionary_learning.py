"""Recordings in, a dictionary out: hours of audio at constant memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ondes.errors import FileError
from ondes.learning.corpus import RecordingInputs, found
from ondes.learning.run import LearningProgress, Run, RunOptions
from ondes.models.dictionary import Dictionary
from ondes.nmf.backends.tensors import active_rows
from ondes.nmf.choosing import MOST_FRAMES, ComponentChoice, check_free, choice_for
from ondes.nmf.divergence import Array
from ondes.nmf.forgetting import GrowingMemory, PerPass
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.problem import Solver
from ondes.signal.audio_settings import AudioSettings, passband
from ondes.signal.recordings import RawFormat
from ondes.signal.stft import Stft
from ondes.signal.survey import is_stream

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["PRESETS", "LearningProgress", "components_for", "continued", "learn", "untrained"]

Settings = dict[str, Any]

# 240 ms, which is a whole number of samples without large prime factors at all common rates; so is
# the hop, a quarter of it.
LONG_FRAMES, RATE_OF_FRAMES = Stft(3840, 960), 16000
FRAMES: Settings = {"window": "hann", "top_db": 60.0, "weighting": "equal"}
PRESETS: dict[str, Settings] = {
    # What separated real recordings best: see docs/results/separation.md.
    "separation": {
        **FRAMES,
        "n_components": 128,
        "sr": 16000,
        "hops_per_frame": 4,
        "spectrum": "magnitude",
        "beta_loss": "kullback-leibler",
        "sparsity": 2.0,
        "batch_size": 128,
        "forgetting": GrowingMemory(10.0),
        "solver": Solver(max_steps=10, momentum=()),
    },
    # Lefèvre, Bach and Févotte (2011).
    "paper": {
        **FRAMES,
        "n_components": 32,
        "sr": 22050,
        "n_fft": 512,
        "hops_per_frame": 2,
        "spectrum": "power",
        "beta_loss": "itakura-saito",
        "sparsity": 0.0,
        "batch_size": 1000,
        "forgetting": PerPass(0.7),
        "solver": Solver.paper(100),
        "dictionary_exponent": 0.5,
        "init": "random",
    },
}

# Of a dictionary that learning continues, only these may be chosen anew: they change no result.
COMPUTE = ("backend", "callback", "device", "n_jobs", "precision")


def learn(
    recordings: RecordingInputs,
    n_components: int | str | None = None,
    *,
    dictionary: Dictionary | None = None,
    preset: str | None = None,
    sr: int | None = None,
    n_fft: int | None = None,
    hop_length: int | None = None,
    window: str | None = None,
    delay: float | None = None,
    fmax: float | None = None,
    spectrum: str | None = None,
    beta_loss: str | float | None = None,
    sparsity: float | None = None,
    n_passes: int = 1,
    n_init: int = 1,
    random_state: int = 0,
    top_db: float | str | None = "auto",
    batch_size: int | None = None,
    raw: RawFormat | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float | None = None,
    resume: bool = False,
    cluster: Client | str | None = None,
    n_workers: int | None = None,
    n_shards: int | None = None,
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
    n_components : int or "auto", optional
        Spectra in the dictionary; 128 by default. "auto": their number is chosen beforehand from
        some frames of the recordings, as `ondes.choose_components` does; not of a stream.
    dictionary : Dictionary, optional
        Continue learning from this one, which stays as it is. It determines all that frames and
        their model are: give none of `n_components`, `preset` to `sparsity`, `top_db` and
        `batch_size`, and of `settings` only `n_jobs`, `backend`, `device`, `precision` and
        `callback`.
    preset : {"separation", "paper"}, optional
        The defaults of the other settings: those that separate real recordings best, or those of
        Lefèvre, Bach and Févotte (2011), with the Itakura-Saito divergence of power; the former by
        default.
    sr : int, optional
        Sampling rate in Hz that recordings are resampled to; 16000 by default. Mixtures of any
        rate can be separated.
    n_fft, hop_length, window
        Parameters of `Stft`. By default 240 ms, a quarter of `n_fft`, and "hann". The power
        of several channels is averaged.
    delay : float, optional
        Seconds that a live separation with this dictionary may be late by: frames are then those of
        `Stft.with_delay`, in place of `n_fft`, `hop_length` and `window`. 0.03 costs about two
        decibels of separation.
    fmax : float, optional
        The highest frequency in Hz that counts; by default 0.45 of `sr`. A resampled recording
        lacks what is above, and a mixture at another rate has it. ``sr / 2`` counts everything,
        which is right where all recordings and mixtures have the rate `sr`.
    spectrum : {"magnitude", "power"}, optional
        The values of a frame; magnitude by default.
    beta_loss, sparsity
        As in `OnlineNMF`; by default "kullback-leibler" and 2.
    n_passes : int
        Number of passes over all recordings.
    n_init : int
        Learn so often, with the seeds from `random_state` on, and return the dictionary whose
        `history.divergence` is lowest. The recordings are read anew each time.
    random_state : int
        Seed of the order of the frames and of the first dictionary.
    top_db : float, None or "auto"
        Frames more than this many decibels below the loudest frame so far of their recording are
        left out; None keeps all; "auto" is 60, or that of `dictionary`.
    batch_size : int, optional
        Frames per update of the dictionary; 128 by default.
    raw : RawFormat, optional
        Format of samples without a header.
    checkpoint : str or Path, optional
        A file that training can be resumed from, written while it runs and when it is interrupted.
        It is also a model file. Delete it yourself when the dictionary is saved. A stream cannot
        have a checkpoint.
    checkpoint_every : float, optional
        Seconds from one checkpoint to the next; 60 by default. One that cannot be written gives a
        RuntimeWarning.
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
    n_shards : int, optional
        Parts of a full round on a cluster, 8 by default; two per worker are best.
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
        Further parameters of `OnlineNMF`, but for `remainder`, `restarts`, `shuffle`, `tol` and
        `verbose`, which are those of its `fit` of arrays. In addition to the `n_jobs` threads of
        the kernel, as many threads read recordings, but at most four; for a GPU one per core by
        default.

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
    (4, 865)
    """
    _check_names(settings)
    model = {
        "n_components": n_components,
        "preset": preset,
        "sr": sr,
        "n_fft": n_fft,
        "hop_length": hop_length,
        "window": window,
        "delay": delay,
        "fmax": fmax,
        "spectrum": spectrum,
        "beta_loss": beta_loss,
        "sparsity": sparsity,
        "batch_size": batch_size,
    }
    given = {name: value for name, value in (model | settings).items() if value is not None}
    if top_db != "auto":
        given["top_db"] = top_db
    options = RunOptions(
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
    if n_init != 1:
        for other, is_given in {
            "dictionary": dictionary is not None,
            "checkpoint": checkpoint is not None,
        }.items():
            if is_given:
                raise ValueError(f"n_init={n_init!r} and {other} exclude each other; give one.")
    if dictionary is not None:
        return Run(continued(dictionary, **given), recordings, options).learn()
    given |= {"n_passes": n_passes}
    if n_components == "auto":
        recordings = found(recordings)
        choice = components_for(recordings, options, given | {"random_state": random_state})
        given["n_components"] = choice.n_components
    if n_init == 1:
        return Run(untrained(**given, random_state=random_state), recordings, options).learn()
    return _best_of(n_init, given, recordings, options)


def components_for(items: list[Any], options: RunOptions, given: Settings) -> ComponentChoice:
    """The number of components for recordings, chosen from some of their frames.

    Parameters
    ----------
    items : list
        Recordings as `ondes.learning.corpus.found` gives them.
    options : RunOptions
        Of the run that will learn from them, and report what cannot be read.
    given : dict
        Settings of `learn` but for n_components.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    >>> components_for([noise], RunOptions(), {"sr": 8000, "n_fft": 256}).n_frames
    253
    """
    if any(not isinstance(each, np.ndarray) and is_stream(each) for each in items):
        raise ValueError(
            "A stream can be read only once, and n_components='auto' reads it twice: give a number."
        )
    learner = untrained(**given | {"n_components": 1}).learner
    parameters = learner.get_params() | {"n_passes": None}  # those over some frames: as of `fit`
    check_free(parameters)
    on_host = {"backend": "auto", "device": None, "precision": None}
    sampling = RunOptions(
        random_state=options.random_state, raw=options.raw, on_error=lambda *_: None
    )
    run = Run(untrained(**given | on_host | {"n_components": 1}), items, sampling)
    some: list[Array] = []
    with run.open_batches() as batches:
        for batch in batches.each:
            some.append(batch[active_rows(batch)])
            if sum(map(len, some)) >= MOST_FRAMES:
                break
    if not sum(map(len, some)):
        raise ValueError("No frame could be read that is not silent: give other recordings.")
    return choice_for(parameters, np.concatenate(some)[:MOST_FRAMES])


def _best_of(
    n_init: int, given: Settings, recordings: RecordingInputs, options: RunOptions
) -> Dictionary:
    """Learn with several seeds; where that is interrupted, the best of what is complete."""
    if not isinstance(n_init, (int, np.integer)) or n_init < 1:
        raise ValueError(f"n_init={n_init!r} must be a whole number from 1.")
    items = found(recordings)
    if any(not isinstance(each, np.ndarray) and is_stream(each) for each in items):
        raise ValueError(f"A stream can be read only once: n_init={n_init} must be 1.")
    learned: list[Dictionary] = []
    for seed in range(options.random_state, options.random_state + n_init):
        model = untrained(**given, random_state=seed)
        latest = Run(model, items, replace(options, random_state=seed)).learn()
        assert latest.history is not None
        stopped_by = latest.history.stopped_by
        if stopped_by is None or not learned:
            learned.append(latest)
        if stopped_by is not None:
            break
    best = min(learned, key=lambda each: each.history.divergence if each.history else np.inf)
    assert best.history is not None
    best.history = replace(best.history, stopped_by=stopped_by)
    return best


def untrained(preset: str = "separation", **given: Any) -> Dictionary:
    """The dictionary that `learn` trains, before it is trained.

    Parameters
    ----------
    preset : str
    **given
        As of `learn`; what is not given is that of the preset.

    Examples
    --------
    >>> untrained("paper", n_fft=1024).audio.stft.hop_length
    512
    """
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r} must be one of {', '.join(map(repr, PRESETS))}.")
    chosen = PRESETS[preset] | given
    sr, fmax = chosen.pop("sr"), chosen.pop("fmax", None)
    hops_per_frame = chosen.pop("hops_per_frame")
    delay, window = chosen.pop("delay", None), chosen.pop("window")
    if delay is not None:
        for name in ("n_fft", "hop_length", "window"):
            if name in given:
                raise ValueError(f"{name} and delay exclude each other; give one.")
        chosen.pop("n_fft", None)
        stft = Stft.with_delay(delay, sr)
    else:
        n_fft = chosen.pop("n_fft", LONG_FRAMES.at_rate(sr / RATE_OF_FRAMES).n_fft)
        hop_length = chosen.pop("hop_length", max(1, n_fft // hops_per_frame))
        stft = Stft(n_fft, hop_length, window)
    fmax = passband(sr) if fmax is None else fmax
    audio = AudioSettings(sr, stft, chosen.pop("top_db"), chosen.pop("spectrum"), fmax)
    return Dictionary(DictionaryLearner(**chosen), audio)


def _check_names(settings: Settings) -> None:
    known = signature(DictionaryLearner).parameters
    for name in settings:
        if name not in known:
            where = "see the documentation of `ondes.learn`."
            if name == "sample_weight":
                where = "weights of frames are for `OnlineNMF.fit` of an array."
            raise TypeError(f"Learning from recordings has no parameter {name!r}: {where}")


def continued(dictionary: Dictionary, **given: Any) -> Dictionary:
    """A copy to continue learning from; ValueError where what is given is up to the dictionary."""
    if others := [name for name in given if name not in COMPUTE]:
        raise ValueError(
            f"{others[0]}={given[others[0]]!r} cannot be chosen where learning continues: the "
            "dictionary determines it; leave it out."
        )
    before = dictionary.learner
    if "backend" in given:
        given = {"device": None, "precision": None} | given
    learner = type(before)(**before.get_params(deep=False) | given)
    if hasattr(before, "components_"):
        learner.restore(before.state())
    return Dictionary(learner, dictionary.audio, dictionary.history)
