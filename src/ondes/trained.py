"""Separators trained from examples of each source: what `ondes.train` returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from ondes.archive import sentence_part
from ondes.atomic_file import check_destination, exclusive_writer, write_atomically
from ondes.errors import FileError
from ondes.history import SeparatorHistory
from ondes.learning import learn
from ondes.model_file import SavedSeparator, packed, read_document, separator_document, separator_of
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.separation import separate
from ondes.separator_training.settings import NetworkSettings, TrainingSettings
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft
from ondes.training.stop_signals import StopSignals

__all__ = ["TrainedSeparator", "train"]

FRAMES_LEARNED = 20000  # enough for a start


class TrainedSeparator:
    """Separates the sources that it was trained for; needs no PyTorch.

    Parameters
    ----------
    names : tuple of str
        The sources.
    audio : AudioSettings
    weights : UnfoldedWeights
    history : SeparatorHistory, optional

    Examples
    --------
    >>> import ondes
    >>> talk = ondes.load("talk.ondes")  # doctest: +SKIP
    >>> stems = talk.separate(samples, sr=44100)  # doctest: +SKIP
    """

    def __init__(
        self,
        names: tuple[str, ...],
        audio: AudioSettings,
        weights: UnfoldedWeights,
        history: SeparatorHistory | None = None,
    ) -> None:
        self.names, self.audio, self.weights, self.history = names, audio, weights, history

    def __repr__(self) -> str:
        return f"<TrainedSeparator: {', '.join(self.names)}>"

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write everything to a file, completely or not at all.

        Parameters
        ----------
        path : str or Path
            Usually ``.ondes``.
        force : bool
            Whether an existing file may be replaced.
        """
        write_atomically(path, packed(path, separator_document(self._saved)), force)

    def separate(self, mixture: ArrayLike, *, sr: int, **options: Any) -> dict[str, Any]:
        """Separate a mixture in memory; see `ondes.separate`."""
        return separate(mixture, self, sr=sr, **options)

    @property
    def _saved(self) -> SavedSeparator:
        return SavedSeparator(self.names, self.audio, self.weights, self.history)


def train(
    sources: Mapping[str, Any],
    *,
    n_components: int | None = None,
    sr: int = 16000,
    n_fft: int = 2048,
    hop_length: int | None = None,
    minutes: float = 5.0,
    n_updates: int | None = None,
    random_state: int = 0,
    device: str = "cpu",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Any], object] | None = None,
    return_on_interrupt: bool = False,
) -> TrainedSeparator:
    """Train a separator from recordings of each source; needs PyTorch.

    A dictionary is learned for each source, then the separator is trained on random mixtures of
    the recordings. A tenth of each source's recordings is held out: the state that separates their
    mixtures best is kept.

    Parameters
    ----------
    sources : mapping of str to str, Path, or iterable of these
        At least two names, and the files, folders and globs of each. Hours are read at constant
        memory; two minutes of each are a start.
    n_components : int, optional
        Of each source; by default 64 on a CPU, 128 on a GPU.
    sr : int
        Sampling rate in Hz to work at. Mixtures of any rate can be separated.
    n_fft, hop_length : int
        Of the STFT; `hop_length` is a quarter of `n_fft` by default.
    minutes : float
        How long to train, the dictionaries included.
    n_updates : int, optional
        Train for so many updates instead: then the same `random_state` gives the same result on
        one device.
    random_state : int
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
    checkpoint : str or Path, optional
        A file that training can be resumed from; it is a separator, too.
    resume : bool
        Continue from `checkpoint` where it exists.
    progress : callable, optional
        Called with a `SeparatorProgress` now and then.
    return_on_interrupt : bool
        Whether Ctrl-C and SIGTERM end training and return the best so far.

    Returns
    -------
    TrainedSeparator

    Raises
    ------
    ValueError
        Where there are fewer than two sources, one has too little audio, or two share recordings.
    FileError
        Where recordings or the checkpoint cannot be used.
    DeviceError
        Where the device does not exist.
    """
    from ondes.nmf.backends.devices import ready
    from ondes.separator_training.pools import SamplePool, SourceRecordings
    from ondes.separator_training.trainer import SeparatorTrainer

    begin = time.perf_counter()
    if len(sources) < 2:
        raise ValueError("A separator needs at least two sources; give another name and its files.")
    if not 0 < minutes < 1e6 or (n_updates is not None and n_updates < 1):
        raise ValueError("minutes and n_updates must be positive.")
    ready(device)
    audio = AudioSettings(sr, Stft(n_fft, hop_length or n_fft // 4), spectrum="magnitude")
    training = TrainingSettings.for_device(device)
    n_components = n_components or training.n_components
    names = tuple(sources)
    recordings = [SourceRecordings.of(name, sources[name], audio, random_state) for name in names]
    _check_disjoint(recordings)
    settings = {
        "names": list(names),
        "sr": sr,
        "n_fft": n_fft,
        "hop_length": audio.stft.hop_length,
        "n_components": n_components,
        "random_state": random_state,
    }
    signals = StopSignals(enabled=return_on_interrupt or checkpoint is not None)
    with ExitStack() as stack:
        state = None
        if checkpoint is not None:
            check_destination(checkpoint, force=True)
            stack.enter_context(exclusive_writer(Path(checkpoint)))
            state = _read_state(Path(checkpoint), settings, resume)
        pools = [SamplePool(each.training, audio, random_state) for each in recordings]
        held_out = [
            SamplePool(each.held_out, audio, random_state, seconds=300) for each in recordings
        ]
        for pool in (*pools, *held_out):
            stack.callback(pool.close)
        dictionaries = [
            learn(
                pool.samples[: FRAMES_LEARNED * audio.stft.hop_length],
                n_components,
                sr=sr,
                n_fft=n_fft,
                hop_length=audio.stft.hop_length,
                random_state=random_state,
                n_jobs=-1,
            ).components
            for pool in pools
        ]
        trainer = SeparatorTrainer(
            names,
            dictionaries,
            pools,
            held_out,
            audio,
            network=NetworkSettings(),
            training=training,
            device=device,
            seed=random_state,
        )
        if state is not None:
            trainer.restore(state)

        def separator() -> TrainedSeparator:
            history = SeparatorHistory(
                n_files=tuple(len(each.training) for each in recordings),
                seconds=tuple(len(pool.samples) / sr for pool in pools),
                n_updates=trainer.n_updates,
                si_sdr=tuple(trainer.best_si_sdr[name] for name in names),
                stopped_by=signals.received,
            )
            return TrainedSeparator(names, audio, trainer.weights(), history)

        def save() -> None:
            if checkpoint is not None:
                document = separator_document(separator()._saved)
                document |= {"training": {"settings": settings, "state": trainer.state()}}
                write_atomically(checkpoint, packed(checkpoint, document), force=True)

        with signals:
            trainer.run(
                60 * minutes - (time.perf_counter() - begin),
                n_updates,
                progress=progress,
                should_stop=signals.is_requested,
                save=save,
            )
        if signals.is_requested():
            save()
            if not return_on_interrupt:
                raise KeyboardInterrupt
        return separator()


def _check_disjoint(recordings: list[Any]) -> None:
    owners: dict[Path, str] = {}
    for each in recordings:
        for path in (*each.training, *each.held_out):
            other = owners.setdefault(path.resolve(), each.name)
            if other != each.name:
                raise ValueError(
                    f"{path} belongs to both {other!r} and {each.name!r}; sources must have "
                    "recordings of their own."
                )


def _read_state(path: Path, settings: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    if not path.exists():
        return None
    if not resume:
        raise FileError(
            path, "belongs to an unfinished run; resume it, or delete the file to start over"
        )
    document = read_document(path)
    separator_of(path, document)
    try:
        run = document["training"]
        if run["settings"] != settings:
            raise ValueError("its sources or settings are not those of this run")
        state: dict[str, Any] = run["state"]
        return state
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            path, f"cannot be resumed: {sentence_part(error)}; delete the file to start over"
        ) from error
