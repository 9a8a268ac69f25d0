"""Separators trained from examples of each source: from `ondes.train`, or on the shelf."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ondes.atomic_file import write_atomically
from ondes.models.band_network import BandWeights
from ondes.models.combined import Combined
from ondes.models.history import SeparatorHistory
from ondes.models.model import MaskStream, SourceVariances
from ondes.models.model_file import SavedSeparator, packed, separator_document
from ondes.models.trained_masks import trained_masks
from ondes.models.variances import TrainedVariances
from ondes.nmf.encoding import Compute
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

__all__ = ["TrainedSeparator"]


class TrainedSeparator:
    """Separates the sources that it was trained for; needs no PyTorch.

    Parameters
    ----------
    names : tuple of str
        The sources.
    audio : AudioSettings
    weights : UnfoldedWeights or BandWeights
    history : SeparatorHistory, optional

    Examples
    --------
    >>> import numpy as np, ondes
    >>> talk = ondes.load("talk")
    >>> talk.names
    ('speech', 'music', 'effects')
    >>> stems = ondes.separate(np.zeros(9600, np.float32), talk, sr=16000)
    """

    def __init__(
        self,
        names: tuple[str, ...],
        audio: AudioSettings,
        weights: UnfoldedWeights | BandWeights,
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
        write_atomically(path, packed(path, separator_document(self.saved)), force)

    def with_delay(self, seconds: float) -> TrainedSeparator:
        """The same separator for live sound, late by so many seconds at most.

        It hears the past alone, and separates less well than a recording from both sides.

        Parameters
        ----------
        seconds : float
            From 10 ms to 120 ms, as of `Stft.with_delay`.

        Examples
        --------
        >>> import ondes
        >>> separator = ondes.Separator(ondes.load("denoise").with_delay(0.03), sr=48000)
        >>> separator.delay / separator.sr
        0.03
        """
        if not isinstance(self.weights, BandWeights):
            raise ValueError(
                "This separator was trained with frames of its own, and hears what comes after; "
                "for live sound use one that comes with ondes, or dictionaries."
            )
        stft = Stft.with_delay(seconds, self.audio.sr)
        if stft.n_fft != self.audio.stft.n_fft:
            raise ValueError("This separator's frames have another length than live sound needs.")
        return TrainedSeparator(
            self.names, replace(self.audio, stft=stft), self.weights, self.history
        )

    def masks(self, compute: Compute) -> MaskStream:
        """Begin a stream of masks; see `ondes.models.model.Model`."""
        return trained_masks(self.weights, self.audio, compute)

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """The same for spatial separation."""
        return TrainedVariances(self.weights, n_bins, compute.n_threads)

    def adapting(self, *names: str, **options: Any) -> Combined:
        """Refused: it has no dictionaries that could adapt."""
        return Combined.of({"separator": self}).adapting(*names, **options)

    def with_free(self, n: int, *name: str, **options: Any) -> Combined:
        """With one more source, learned from the mixture; for spatial separation."""
        return Combined.of({"separator": self}).with_free(n, *name, **options)

    @property
    def saved(self) -> SavedSeparator:
        """The parts of its file."""
        return SavedSeparator(self.names, self.audio, self.weights, self.history)
