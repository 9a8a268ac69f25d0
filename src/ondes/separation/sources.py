"""Dictionaries of several sources side by side, for the same frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.penalties import ActivationPenalty
from ondes.nmf.problem import TRANSFORM_SOLVER, Problem, Solver
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

__all__ = ["FLOOR", "REST", "Models", "SourceDictionary", "Sources"]

FLOOR = 1e-12  # relative to a frame's mean power; the sources share it evenly
REST = "rest"


class SourceDictionary(Protocol):
    """What separation needs of an `ondes.Dictionary`."""

    @property
    def components(self) -> Array:
        """Array of shape (n_components, n_bins), rows sum to one."""

    @property
    def groups(self) -> Any:
        """One label per component, or None."""

    @property
    def audio(self) -> AudioSettings | None:
        """Sampling rate and STFT; None where it was learned from arrays."""

    @property
    def estimator(self) -> Any:
        """The estimator, whose `background` must be None."""


@dataclass(frozen=True, eq=False)
class Sources:
    """Named groups of dictionary rows, all for the same frames.

    Attributes
    ----------
    dictionary : array of shape (n_components, n_bins), rows sum to one
    source_of : integer array of shape (n_components,)
        The index in `names` of each row's source.
    names : tuple of str
    sr : int
        Sampling rate in Hz that the dictionaries were learned at.
    stft : Stft
        The transform that they were learned with.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> rows = np.full((3, 5), 0.2)
    >>> Sources(rows, np.array([0, 0, 1]), ("voice", "noise"), 8000, Stft(8)).n_components
    3
    """

    dictionary: Array
    source_of: Array
    names: tuple[str, ...]
    sr: int
    stft: Stft

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"names={self.names!r} must be at least one name, each of them once.")
        if self.dictionary.shape[1] != self.stft.n_bins:
            raise ValueError(
                f"The dictionary has {self.dictionary.shape[1]} bins and the STFT "
                f"{self.stft.n_bins}; give the STFT that the dictionary was learned with."
            )

    @property
    def n_components(self) -> int:
        """Rows of all sources together."""
        return len(self.dictionary)

    @classmethod
    def of(cls, given: Models) -> Sources:
        """Sources as they are, from dictionaries by name, or from the groups of one dictionary."""
        if isinstance(given, Sources):
            return given
        if isinstance(given, Mapping):
            return cls.from_dictionaries(given)
        return cls.from_groups(given)

    @classmethod
    def from_dictionaries(cls, dictionaries: Mapping[str, SourceDictionary]) -> Self:
        """One source per dictionary; all must have the same sampling rate and STFT."""
        if not dictionaries:
            raise ValueError("No dictionaries were given; give at least one by name.")
        (first, audio), *others = [(name, _audio_of(name, d)) for name, d in dictionaries.items()]
        for name, other in others:
            if (other.sr, other.stft) != (audio.sr, audio.stft):
                raise ValueError(
                    f"The dictionaries {first!r} ({audio.sr} Hz, {audio.stft}) and {name!r} "
                    f"({other.sr} Hz, {other.stft}) are for different frames; learn both with the "
                    "same settings."
                )
        rows = [dictionary.components for dictionary in dictionaries.values()]
        source_of = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        return cls(np.concatenate(rows), source_of, tuple(dictionaries), audio.sr, audio.stft)

    @classmethod
    def from_groups(cls, dictionary: SourceDictionary, names: Iterable[str] | None = None) -> Self:
        """One source per group of a dictionary.

        Parameters
        ----------
        dictionary : Dictionary
            With `groups`.
        names : iterable of str, optional
            In the order of the sorted labels; by default the labels themselves.
        """
        audio = _audio_of("dictionary", dictionary)
        if dictionary.groups is None:
            raise ValueError(
                "The dictionary has no groups, so its sources are unknown; learn it with groups=, "
                "or use Sources.from_components."
            )
        labels, source_of = np.unique(np.asarray(dictionary.groups), return_inverse=True)
        chosen = tuple(map(str, labels if names is None else names))
        if len(chosen) != len(labels):
            raise ValueError(
                f"{len(chosen)} names do not fit the dictionary's {len(labels)} groups."
            )
        return cls(dictionary.components, source_of, chosen, audio.sr, audio.stft)

    @classmethod
    def from_components(
        cls, dictionary: SourceDictionary, components: Mapping[str, Iterable[int]]
    ) -> Self:
        """Sources from lists of a dictionary's components; those in no list are "rest"."""
        audio = _audio_of("dictionary", dictionary)
        n_components = len(dictionary.components)
        source_of = np.full(n_components, len(components))
        for source, (name, indices) in enumerate(components.items()):
            for index in indices:
                if not 0 <= index < n_components:
                    raise ValueError(
                        f"Component {index} of {name!r} does not exist; the indices are 0 to "
                        f"{n_components - 1}."
                    )
                if source_of[index] != len(components):
                    raise ValueError(f"Component {index} is listed twice; list it in one source.")
                source_of[index] = source
        names = tuple(components)
        if (source_of == len(components)).any():
            names = (*names, REST)
        return cls(dictionary.components, source_of, names, audio.sr, audio.stft)

    def with_source(self, rows: Array, name: str) -> Sources:
        """These sources and one more; `rows` of shape (n, n_bins) may be empty."""
        return Sources(
            np.concatenate([self.dictionary, rows]),
            np.concatenate([self.source_of, np.full(len(rows), len(self.names))]),
            (*self.names, name),
            self.sr,
            self.stft,
        )

    def problem(
        self, solver: Solver = TRANSFORM_SOLVER, penalty: ActivationPenalty | None = None
    ) -> Problem:
        """What `ondes.nmf.encoding.encode` solves for each frame; the groups are the sources."""
        return Problem(self.dictionary, FLOOR, solver, None, penalty, self.source_of)


Models = Sources | SourceDictionary | Mapping[str, SourceDictionary]


def _audio_of(name: str, dictionary: SourceDictionary) -> AudioSettings:
    if not hasattr(dictionary, "components"):
        raise ValueError(f"{name!r} has learned nothing yet; learn it first.")
    if dictionary.estimator.background is not None:
        raise ValueError(
            f"{name!r} was learned with a background, which belongs to no source; learn it without."
        )
    if dictionary.audio is None:
        raise ValueError(
            f"{name!r} was learned from arrays, so its sampling rate and STFT are unknown; give "
            "ondes.Dictionary an AudioSettings."
        )
    return dictionary.audio
