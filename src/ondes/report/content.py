"""What a report shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReportContent", "Source", "clock", "describe_excerpt"]

Samples = NDArray[np.float32]
Array = NDArray[np.floating]


@dataclass(frozen=True)
class Source:
    """One separated source.

    Parameters
    ----------
    name : str
    samples : float32 array of shape (n,) or (n, n_channels)
        As long as the mixture.
    score : float, optional
        SI-SDR in dB, where the true source is known.
    components : tuple of int
        Rows of the dictionary that make up the source.
    """

    name: str
    samples: Samples
    score: float | None = None
    components: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report shows of one mixture, or of an excerpt of it.

    Parameters
    ----------
    title : str
    sr : int
        Sampling rate in Hz.
    hop_length, n_fft : int
        Settings of the STFT that `dictionary` and `activations` come from.
    mixture : float32 array of shape (n,) or (n, n_channels)
        The excerpt to show and play.
    sources : tuple of Source
    dictionary : array of shape (n_components, n_bins)
    activations : array of shape (n_frames, n_components)
        Activations of the excerpt.
    component_samples : tuple of float32 arrays, each of shape (n,) or (n, n_channels)
        Each component alone, or empty.
    curves : tuple of (str, tuple of (float, float))
        The name of a dictionary and its learning curve: numbers of frames, and the divergence per
        bin there.
    numbers, settings : tuple of (str, str)
        Name and value, in the order to show them.
    excerpt : str, optional
        Which part of the recording this is; see `describe_excerpt`.

    Raises
    ------
    ValueError
        Where the parts do not fit together.
    """

    title: str
    sr: int
    hop_length: int
    n_fft: int
    mixture: Samples
    sources: tuple[Source, ...]
    dictionary: Array
    activations: Array
    component_samples: tuple[Samples, ...] = ()
    curves: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()
    numbers: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    excerpt: str | None = None

    def __post_init__(self) -> None:
        n_components = len(self.dictionary)
        if not len(self.mixture):
            raise ValueError("A report needs at least one sample of the mixture.")
        if self.dictionary.shape != (n_components, self.n_fft // 2 + 1):
            raise ValueError(
                f"A dictionary of shape {self.dictionary.shape} does not fit n_fft = {self.n_fft}."
            )
        if self.activations.ndim != 2 or self.activations.shape[1] != n_components:
            raise ValueError(
                f"Activations of shape {self.activations.shape} do not fit "
                f"{n_components} components."
            )
        if len(self.component_samples) not in (0, n_components):
            raise ValueError(
                f"Samples of {len(self.component_samples)} components do not fit "
                f"{n_components} components."
            )
        for name, samples in self._parts():
            if len(samples) != len(self.mixture):
                raise ValueError(
                    f"{name} has {len(samples)} samples, but the mixture has {len(self.mixture)}."
                )
        for source in self.sources:
            if not set(source.components) <= set(range(n_components)):
                raise ValueError(
                    f"{source.name} lists components beyond the {n_components} of the dictionary."
                )

    def _parts(self) -> list[tuple[str, Samples]]:
        return [
            *((source.name, source.samples) for source in self.sources),
            *((f"Component {i}", samples) for i, samples in enumerate(self.component_samples)),
        ]

    @property
    def seconds(self) -> float:
        """Length of the excerpt in seconds."""
        return len(self.mixture) / self.sr


def describe_excerpt(start: float, stop: float, total: float) -> str | None:
    """Describe which part of a recording is shown, in seconds; None where it is all of it.

    Examples
    --------
    >>> describe_excerpt(0, 60, 11565)
    'Shown: 0:00 to 1:00 of 3:12:45'
    >>> describe_excerpt(0, 25, 25)
    """
    if start <= 0 and stop >= total:
        return None
    return f"Shown: {clock(start)} to {clock(stop)} of {clock(total)}"


def clock(seconds: float) -> str:
    """Write seconds as on a clock.

    Examples
    --------
    >>> clock(75), clock(11565)
    ('1:15', '3:12:45')
    """
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
