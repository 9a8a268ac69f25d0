"""A learned dictionary of sounds: what `ondes.learn` and `ondes.load` return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import soxr
from numpy.typing import ArrayLike, NDArray

from ondes.models.history import TrainingHistory
from ondes.models.model_file import save_model
from ondes.nmf.divergence import Array
from ondes.nmf.learner import DictionaryLearner
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.frame_reader import spectral_frames
from ondes.signal.locations import Location, is_location
from ondes.signal.recordings import PathOrStream, RawFormat, find_recordings, open_blocks

if TYPE_CHECKING:
    from ondes.nmf.estimator import OnlineNMF

__all__ = ["Dictionary"]

FRAMES_SCORED_AT_ONCE = 1024


class Dictionary:
    """Spectra learned from recordings, with the audio settings and the history of their training.

    Parameters
    ----------
    estimator : OnlineNMF
        Fitted, or to be trained by `ondes.learn`.
    audio : AudioSettings, optional
        How audio becomes the frames of the estimator; None if it learned from arrays of another
        kind.
    history : TrainingHistory, optional

    Attributes
    ----------
    learner : DictionaryLearner
        What was learned. Unlike `estimator`, it does not need scikit-learn.
    audio, history
        As given.

    Examples
    --------
    >>> import numpy as np
    >>> import ondes
    >>> noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    >>> dictionary = ondes.learn(noise, 4, sr=8000)
    >>> dictionary.components.shape
    (4, 865)
    >>> dictionary.transform(noise).shape
    (37, 4)
    """

    def __init__(
        self,
        estimator: DictionaryLearner,
        audio: AudioSettings | None = None,
        history: TrainingHistory | None = None,
    ) -> None:
        self.learner, self.audio, self.history = estimator, audio, history

    def __repr__(self) -> str:
        learned = "untrained"
        if hasattr(self.learner, "components_"):
            n_components, n_bins = self.components.shape
            learned = f"{n_components} components of {n_bins} bins"
        seconds = "" if self.history is None else f", from {self.history.seconds:.0f} s of audio"
        return f"<Dictionary: {learned}{seconds}>"

    @property
    def estimator(self) -> OnlineNMF:
        """What was learned, as a scikit-learn estimator; this imports scikit-learn."""
        from ondes.nmf.estimator import OnlineNMF

        if not isinstance(self.learner, OnlineNMF):
            self.learner = OnlineNMF.of(self.learner)
        return self.learner

    @property
    def components(self) -> Array:
        """The spectra, shape (n_components, n_bins); every row sums to one."""
        components: Array = self.learner.components_
        return components

    @property
    def n_components(self) -> int:
        """The number of spectra."""
        learner = self.learner
        if hasattr(learner, "components_"):  # of which "auto" chose the number
            return len(learner.components_)
        return int(learner.n_components)

    @property
    def groups(self) -> Any:
        """A label for each component, the same for all components of one source; or None."""
        return self.learner.groups

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write everything to a file, completely or not at all.

        Parameters
        ----------
        path : str or Path
            Usually ``.ondes``.
        force : bool
            Whether an existing file may be replaced.

        Raises
        ------
        FileError
            If the file exists or cannot be written, or if a setting is of a user-defined class.
        """
        save_model(path, (self.learner, self.audio, self.history), force)

    def transform(
        self,
        recording: PathOrStream | ArrayLike,
        *,
        sr: int | None = None,
        raw: RawFormat | None = None,
    ) -> Array:
        """The activations of every frame of a recording, in the order of time.

        Parameters
        ----------
        recording : str, Path, binary stream, or array of shape (n,) or (n, n_channels)
        sr : int, optional
            Sampling rate of an array; by default that of the dictionary.
        raw : RawFormat, optional
            Format of samples without a header.

        Returns
        -------
        array of shape (n_frames, n_components)
        """
        frames = (each for each in self._frames(recording, sr, raw) if len(each))
        activations = [self.learner.transform(each) for each in frames]
        return np.concatenate([np.empty((0, self.n_components), np.float32), *activations])

    def score(
        self, recordings: str | Location | Iterable[str | Location], *, raw: RawFormat | None = None
    ) -> float:
        """Minus the mean divergence per bin over the non-silent frames: higher is better.

        Parameters
        ----------
        recordings : str, Path, or iterable of these
            Files, folders, globs, URLs and manifests.
        raw : RawFormat, optional
            Format of samples without a header.
        """
        each = [self.divergence(path, raw=raw) for path in find_recordings(recordings)]
        n_frames = sum(n for n, _ in each)
        return -sum(n * value for n, value in each if n) / n_frames if n_frames else float("nan")

    def divergence(
        self, recording: PathOrStream, *, raw: RawFormat | None = None
    ) -> tuple[int, float]:
        """The divergence between a recording and this dictionary, at constant memory.

        Parameters
        ----------
        recording : str, Path or binary stream
        raw : RawFormat, optional
            Format of samples without a header.

        Returns
        -------
        n_frames : int
            Non-silent frames.
        divergence : float
            Their mean divergence per bin; NaN if there are no such frames.
        """
        n_frames, total = 0, 0.0
        for frames in frame_batches(recording, self._audio, FRAMES_SCORED_AT_ONCE, raw=raw):
            if len(frames):
                n_frames += int(np.count_nonzero(frames.any(axis=1)))
                total -= float(self.learner.score_samples(frames).sum())
        return n_frames, total / n_frames if n_frames else float("nan")

    def with_compute(
        self, backend: str = "auto", device: str | None = None, n_jobs: int | None = None
    ) -> Self:
        """Choose the backend, its device and its threads; this dictionary is returned."""
        self.learner.set_params(backend=backend, device=device, precision=None, n_jobs=n_jobs)
        return self

    @property
    def _audio(self) -> AudioSettings:
        if self.audio is None:
            raise ValueError(
                "This dictionary was learned from arrays, so it has no audio settings; learn it "
                "from recordings, or give `audio`."
            )
        return self.audio

    def _frames(
        self, recording: Any, sr: int | None, raw: RawFormat | None
    ) -> Iterator[NDArray[np.float32]]:
        audio = self._audio
        if is_location(recording) or hasattr(recording, "read"):
            with open_blocks(recording, sr=audio.sr, raw=raw) as blocks:
                yield from spectral_frames(blocks, audio, blocks.own_sr)
            return
        samples = np.asarray(recording, dtype=np.float32)
        if sr is not None and sr != audio.sr:
            samples = soxr.resample(samples, sr, audio.sr)
        yield from spectral_frames([samples], audio, sr or audio.sr)
