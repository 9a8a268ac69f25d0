"""`ondes.train`: from recordings of each source to a separator, with checkpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.learning.checkpoint import EVERY_S, CheckpointFile
from ondes.learning.dictionary_learning import learn
from ondes.learning.interruption import Failures, StopSignals
from ondes.models.archive import sentence_part
from ondes.models.band_network import BandWeights
from ondes.models.history import SeparatorHistory
from ondes.models.loading import SHELF, from_shelf, load
from ondes.models.model_file import read_document, separator_document, separator_of
from ondes.models.trained_separator import TrainedSeparator
from ondes.signal.audio_settings import AudioSettings, passband
from ondes.signal.stft import Stft

__all__ = ["train"]

FRAMES, RATE_OF_FRAMES = Stft(1920, 480), 16000  # 120 ms, whole at most rates
FRAMES_LEARNED = 20000  # enough for a start


def train(
    sources: Mapping[str, Any],
    *,
    n_components: int | None = None,
    sr: int = 16000,
    n_fft: int | None = None,
    hop_length: int | None = None,
    minutes: float = 5.0,
    n_updates: int | None = None,
    random_state: int = 0,
    device: str = "cpu",
    start: str | Path | None = "auto",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Any], object] | None = None,
    on_error: Callable[[str, FileError], object] | None = None,
    return_on_interrupt: bool = False,
) -> TrainedSeparator:
    """Train a separator from recordings of each source; needs PyTorch.

    It starts from a separator that comes with ondes, if that has one of the sources by name; else
    from a dictionary that is learned for each source. Then it is trained on random mixtures of the
    recordings. A tenth of each source's recordings is held out: the state that separates their
    mixtures best is kept.

    Parameters
    ----------
    sources : mapping of str to str, Path, or iterable of these
        At least two names, and the files, folders and globs of each. Hours are read at constant
        memory; two minutes of each are enough to try it.
    n_components : int, optional
        Components of each source, for a start from dictionaries; by default 64 on a CPU, 128 on a
        GPU.
    sr : int
        Sampling rate in Hz to work at. Mixtures of any rate can be separated.
    n_fft, hop_length : int, optional
        Parameters of `Stft`; by default 120 ms and a quarter of `n_fft`.
    minutes : float
        How long to train, the dictionaries included.
    n_updates : int, optional
        Train for this many updates instead; then the same `random_state` gives the same result on
        one device.
    random_state : int
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
    start : str, Path or None
        A separator to start from: the name of one that comes with ondes, a file that was trained
        from one, or None for dictionaries. ``"auto"`` finds one by the names of its sources, where
        neither components nor frames are given.
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
    from ondes.learning.separator_training.pools import SamplePool, SourceRecordings
    from ondes.learning.separator_training.trainer import SeparatorTrainer
    from ondes.nmf.backends.devices import ready

    begin = time.perf_counter()
    if len(sources) < 2:
        raise ValueError("A separator needs at least two sources; give another name and its files.")
    if not 0 < minutes < 1e6 or (n_updates is not None and n_updates < 1):
        raise ValueError("minutes and n_updates must be positive.")
    ready(device)
    names, failures = tuple(sources), Failures(on_error)
    start = start_of(start, names, sr, n_components, n_fft or hop_length)
    first = _beginning(start, names, sr, n_components, (n_fft, hop_length), device)
    audio = first.audio
    recordings = [
        SourceRecordings.of(name, sources[name], audio, random_state, failures) for name in names
    ]
    _check_disjoint(recordings)
    signals = StopSignals(enabled=return_on_interrupt or checkpoint is not None)
    with ExitStack() as stack:
        file = stack.enter_context(CheckpointFile(checkpoint, EVERY_S))
        is_resumed = file.is_there(resume)
        pools = [
            SamplePool(each.training, audio, random_state, on_error=failures) for each in recordings
        ]
        held_out = [
            SamplePool(each.held_out, audio, random_state, 300, failures) for each in recordings
        ]
        for pool in (*pools, *held_out):
            stack.callback(pool.close)
        settings = {
            "names": list(names),
            "recordings": [each.mark for each in recordings],
            "sound": [_digest(pool.samples) for pool in (*pools, *held_out)],
            "sr": sr,
            "n_fft": audio.stft.n_fft,
            "hop_length": audio.stft.hop_length,
            "n_components": first.n_components,
            "random_state": random_state,
            "start": first.digest,
        }
        state = _read_state(Path(str(checkpoint)), settings) if is_resumed else None
        trainer = SeparatorTrainer(
            names, first.network(pools, state is not None, random_state), pools, held_out, audio,
            training=first.training, device=device, seed=random_state,
        )  # fmt: skip
        if state is not None:
            with _resuming(str(checkpoint)):
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

        def document() -> dict[str, Any]:
            training = {"settings": settings, "state": trainer.state()}
            return separator_document(separator().saved) | {"training": training}

        def save() -> None:
            file.write(document)

        with signals:
            seconds = 60 * minutes - (time.perf_counter() - begin)
            should_stop = signals.is_requested
            trainer.run(seconds, n_updates, progress=progress, should_stop=should_stop, save=save)
        if signals.is_requested():
            save()
            if not return_on_interrupt:
                raise KeyboardInterrupt
        return separator()


class _Beginning(NamedTuple):
    """What training begins with: a separator's weights, or sizes of dictionaries to learn."""

    audio: AudioSettings
    training: Any  # TrainingSettings, which need PyTorch
    n_components: int | None
    weights: BandWeights | None

    @property
    def digest(self) -> str | None:
        from ondes.learning.separator_training.recurrent_network import digest

        return None if self.weights is None else digest(self.weights)

    def network(self, pools: Sequence[Any], is_resumed: bool, seed: int) -> Any:
        from ondes.learning.separator_training.network import Network, NetworkSettings
        from ondes.learning.separator_training.recurrent_network import BandNetwork

        if self.weights is not None:
            return BandNetwork(self.weights)
        n_components = self.n_components or 1
        dictionaries = [np.ones((n_components, self.audio.n_bins))] * len(pools)
        if not is_resumed:  # else they are in the checkpoint
            dictionaries = [
                _learned(each.samples, n_components, self.audio, seed) for each in pools
            ]
        return Network(dictionaries, NetworkSettings(), self.training.n_without_gradient)


def _beginning(
    start: str | Path | None,
    names: tuple[str, ...],
    sr: int,
    n_components: int | None,
    frames: tuple[int | None, int | None],
    device: str,
) -> _Beginning:
    from ondes.learning.separator_training.mixtures import TrainingSettings
    from ondes.learning.separator_training.recurrent_network import with_sources

    if start is not None:
        first = _start(start, bool(n_components or any(frames)) or sr != RATE_OF_FRAMES)
        training, weights = TrainingSettings.for_start(device), with_sources(first, names)
        return _Beginning(first.audio, training, n_components, weights)
    n_fft = frames[0] or FRAMES.at_rate(sr / RATE_OF_FRAMES).n_fft
    stft = Stft(n_fft, frames[1] or n_fft // 4)
    audio = AudioSettings(sr, stft, spectrum="magnitude", fmax=passband(sr))
    training = TrainingSettings.for_device(device)
    return _Beginning(audio, training, n_components or training.n_components, None)


def _learned(
    samples: NDArray[np.int16], n_components: int, audio: AudioSettings, seed: int
) -> NDArray[np.float64]:
    """The dictionary of a source that its network starts from."""
    n_fft, hop_length = audio.stft.n_fft, audio.stft.hop_length
    return learn(
        samples[: FRAMES_LEARNED * hop_length], n_components, sr=audio.sr, n_fft=n_fft,
        hop_length=hop_length, random_state=seed, n_jobs=-1,
    ).components  # fmt: skip


def start_of(
    start: str | Path | None,
    names: Sequence[str],
    sr: int = RATE_OF_FRAMES,
    n_components: int | None = None,
    n_fft: int | None = None,
) -> str | Path | None:
    """What ``"auto"`` means: the separator on the shelf with most of these sources, if it has any.

    Examples
    --------
    >>> start_of("auto", ("speech", "music"))
    'talk'
    >>> start_of("auto", ("speech", "noise"))
    'denoise'
    >>> start_of("auto", ("guitar", "drums"))
    """
    if start != "auto":
        return start
    known = {name: len(set(names) & set(from_shelf(name).names)) for name in SHELF}
    best = max(known, key=known.__getitem__)
    is_changed = n_components or n_fft or sr != RATE_OF_FRAMES
    return None if is_changed or not known[best] else best


def _start(start: str | Path, is_changed: bool) -> TrainedSeparator:
    """The separator to start from; ValueError where it cannot be one."""
    separator = load(start)
    weights = separator.weights if isinstance(separator, TrainedSeparator) else None
    if not isinstance(separator, TrainedSeparator) or not isinstance(weights, BandWeights):
        raise ValueError(
            f"{start} is no separator to start from: give talk, denoise, or one that was trained "
            "from these."
        )
    if is_changed:
        raise ValueError(
            f"A separator that starts from {start} has its components and frames; leave them out, "
            "or start from none."
        )
    return separator


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


def _digest(samples: NDArray[np.int16]) -> str:
    """Of the sound itself: names and lengths do not tell an edited recording from another."""
    return hashlib.sha256(samples.tobytes()).hexdigest()[:32]


def _read_state(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    document = read_document(path)
    separator_of(path, document)
    with _resuming(path):
        run = document["training"]
        state = run["state"]
        if not isinstance(state, dict):
            raise ValueError("it has no state")
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
