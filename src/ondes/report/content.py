"""What a report shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Component", "Explained", "ReportContent", "Sound", "Track", "clock", "describe_excerpt"]

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Sound:
    """An encoded sound, a whole audio file, and where it lies in the excerpt, in seconds."""

    data: bytes
    media_type: str
    start: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Track:
    """The mixture or one of its sources."""

    name: str
    sound: Sound
    spectrogram: Array  # (n_columns, n_rows): mean power over equal spans of time and of mel
    power: float  # mean square of the samples: what is heard
    # SI-SDR in dB of the mixture and of this, where the true source is known.
    scores: tuple[float, float] | None = None
    components: tuple[int, ...] = ()  # rows of the dictionary that make up the source
    place: str | None = None  # where the source stands, in words


@dataclass(frozen=True, eq=False)
class Component:
    """One component of the dictionary."""

    index: int
    spectrum: Array
    powers: Array  # over equal spans of time, its mean square when it is heard alone
    sound: Sound | None = None

    @property
    def power(self) -> float:
        """Its mean square over the whole excerpt."""
        return float(self.powers.mean()) if len(self.powers) else 0.0


@dataclass(frozen=True)
class Explained:
    """How far models are from the excerpt: divergence per bin, zero is perfect."""

    components: float
    one_spectrum: float  # the excerpt's mean spectrum alone, at the best level for each moment
    flat: float  # white noise at the best level for each moment


@dataclass(frozen=True, eq=False)
class ReportContent:
    """Everything that a report shows of one mixture, or of an excerpt of it."""

    title: str
    sr: int
    model_sr: int  # that the components' spectra belong to
    n_samples: int
    mixture: Track
    sources: tuple[Track, ...] = ()
    components: tuple[Component, ...] = ()
    explained: Explained | None = None
    numbers: tuple[tuple[str, str], ...] = ()  # name and value, in the order to show them
    settings: tuple[tuple[str, str], ...] = ()
    excerpt: str | None = None  # which part of the recording this is; see `describe_excerpt`

    def __post_init__(self) -> None:
        if self.n_samples < 1:
            raise ValueError("A report needs at least one sample of the mixture.")
        indices = [component.index for component in self.components]
        if indices != list(range(len(indices))):
            raise ValueError(f"Components {indices} are not numbered from 0 on.")
        for source in self.sources:
            if not set(source.components) <= set(indices):
                raise ValueError(
                    f"{source.name} lists components beyond the {len(indices)} of the dictionary."
                )

    @property
    def seconds(self) -> float:
        """Length of the excerpt in seconds."""
        return self.n_samples / self.sr


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
