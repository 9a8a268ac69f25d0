"""Separators trained from examples of each source: what `ondes.train` returns."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.archive import sentence_part
from ondes.atomic_file import check_destination, exclusive_writer, write_atomically
from ondes.errors import FileError
from ondes.history import SeparatorHistory
from ondes.learning import learn
from ondes.model_file import SavedSeparator, packed, read_document, separator_document, separator_of
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.scores import si_sdr
from ondes.separation import separate
from ondes.separator_training.settings import NetworkSettings, TrainingSettings
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.recordings import find_recordings
from ondes.signal.stft import Stft
from ondes.training.failures import Failures
from ondes.training.stop_signals import StopSignals

__all__ = ["TrainedSeparator", "train"]

FRAMES_LEARNED = 20000  # enough for a start
FULL_SCALE = 32768  # of the samples of a pool
SILENT, SCORED_LEVEL = 1e-4, 0.1  # mean square roots


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

    def score(
        self,
        sources: Mapping[str, Any],
        *,
        n_mixtures: int = 24,
        seconds: float = 10.0,
        random_state: int = 0,
    ) -> dict[str, NDArray[np.float64]]:
        """How well mixtures are separated; give recordings that it was not trained on.

        Parameters
        ----------
        sources : mapping of str to str, Path, or iterable of these
            The files, folders and globs of each source.
        n_mixtures : int
            How many mixtures to make, all sources at the same level; fewer if the recordings
            are short.
        seconds : float
            Length of each.
        random_state : int
            Decides which parts of the recordings are used.

        Returns
        -------
        dict of str to array of shape (n_mixtures,)
            SI-SDR of each source in decibels; an unseparated mixture of two has about zero.

        Raises
        ------
        ValueError
            If the names are not those of the sources, or there is too little audio.
        FileError
            If recordings cannot be used.
        """
        if set(sources) != set(self.names):
            wanted = " ".join(f"{name}=FILES" for name in self.names)
            raise ValueError(
                f"The separator was trained for {', '.join(self.names)}; give recordings of each: "
                f"{wanted}."
            )
        if n_mixtures < 1 or not seconds > 0:
            raise ValueError("n_mixtures and seconds must be positive.")
        examples = {
            name: _examples(name, sources[name], self.audio, n_mixtures, seconds, random_state)
            for name in self.names
        }
        ratios: dict[str, list[float]] = {name: [] for name in self.names}
        for truths in zip(*examples.values(), strict=False):
            stems = self.separate(sum(truths), sr=self.audio.sr)
            for name, truth in zip(self.names, truths, strict=True):
                ratios[name].append(si_sdr(truth, stems[name]))
        return {name: np.array(each) for name, each in ratios.items()}

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
    on_error: Callable[[str, FileError], object] | None = None,
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
        memory; two minutes of each are enough to try it.
    n_components : int, optional
        Components of each source; by default 64 on a CPU, 128 on a GPU.
    sr : int
        Sampling rate in Hz to work at. Mixtures of any rate can be separated.
    n_fft, hop_length : int
        Parameters of `Stft`; `hop_length` is a quarter of `n_fft` by default.
    minutes : float
        How long to train, the dictionaries included.
    n_updates : int, optional
        Train for this many updates instead; then the same `random_state` gives the same result on
        one device.
    random_state : int
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
    checkpoint : str or Path, optional
        A file that training can be resumed from; it is also a model file.
    resume : bool
        Continue from `checkpoint` if it exists; with `n_updates` on a CPU, the result has the
        same bytes as an uninterrupted run. Recordings and settings must be the same.
    progress : callable, optional
        Called with a `SeparatorProgress` from time to time.
    on_error : callable, optional
        Called once for each unreadable recording with its path and the `FileError`; training
        continues with the others. Without it the error is raised.
    return_on_interrupt : bool
        Whether Ctrl-C and SIGTERM end training and return the best separator so far.

    Returns
    -------
    TrainedSeparator

    Raises
    ------
    ValueError
        If there are fewer than two sources, one has too little audio, or two share recordings.
    FileError
        If recordings or the checkpoint cannot be used.
    DeviceError
        If the device does not exist.
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
    names, failures = tuple(sources), Failures(on_error)
    recordings = [
        SourceRecordings.of(name, sources[name], audio, random_state, failures) for name in names
    ]
    _check_disjoint(recordings)
    settings = {
        "names": list(names),
        "recordings": [each.mark for each in recordings],
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
        pools = [
            SamplePool(each.training, audio, random_state, on_error=failures) for each in recordings
        ]
        held_out = [
            SamplePool(each.held_out, audio, random_state, 300, failures) for each in recordings
        ]
        for pool in (*pools, *held_out):
            stack.callback(pool.close)
        dictionaries = [np.ones((n_components, audio.stft.n_bins))] * len(pools)
        if state is None:  # else they are in it
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
        if state is not None and checkpoint is not None:
            with _resuming(checkpoint):
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
                try:
                    write_atomically(checkpoint, packed(checkpoint, document), force=True)
                except FileError as error:
                    reason = f"{str(error).rstrip('.')}, so the previous checkpoint stays"
                    warnings.warn(f"{reason}; training goes on.", RuntimeWarning, stacklevel=3)

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


def _examples(
    name: str, inputs: Any, audio: AudioSettings, n_examples: int, seconds: float, seed: int
) -> list[NDArray[np.float32]]:
    """Parts of a source's recordings, none of them silent, all of one level."""
    from ondes.separator_training.pools import SamplePool

    given = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    n_samples = round(seconds * audio.sr)
    # Twice as much, since some may be silent.
    pool = SamplePool(find_recordings(given), audio, seed, seconds=2 * n_examples * seconds)
    pool.close()
    found: list[NDArray[np.float32]] = []
    for start in range(0, len(pool.samples) - n_samples + 1, n_samples):
        part = pool.samples[start : start + n_samples].astype(np.float32) / np.float32(FULL_SCALE)
        level = float(np.sqrt(np.mean(np.square(part))))
        if level > SILENT:
            found.append(part * np.float32(SCORED_LEVEL / level))
    if not found:
        raise ValueError(
            f"The recordings of {name!r} have no {seconds:g} s of uninterrupted sound; give more."
        )
    order = np.random.default_rng(seed).permutation(len(found))[:n_examples]
    return [found[number] for number in order]


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
    with _resuming(path):
        run = document["training"]
        state: dict[str, Any] = run["state"]
        if run["settings"] != settings:
            raise ValueError("its recordings or settings are not those of this run")
        return state


@contextmanager
def _resuming(path: str | Path) -> Iterator[None]:
    """Name the checkpoint in whatever its content leads to."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(
            path, f"cannot be resumed: {sentence_part(error)}; delete the file to start over"
        ) from error
