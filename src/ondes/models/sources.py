"""Dictionaries of several sources side by side, for the same frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from ondes.models.adaptation import REST, AdaptingSources, SourcesWithFree
from ondes.models.dictionary import Dictionary
from ondes.models.masks import FLOOR, DictionaryMasks, HostMasks
from ondes.models.model import MaskStream, SourceVariances
from ondes.models.variances import DictionaryVariances
from ondes.nmf.divergence import Array, BetaDivergence
from ondes.nmf.encoding import Compute
from ondes.nmf.problem import Problem, Solver
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

__all__ = ["FLOOR", "REST", "Sources"]

ITAKURA_SAITO = BetaDivergence.of("itakura-saito")
# More steps separate no better; with other divergences a solution that has converged is worse. Ten
# steps with momentum reach the objective, and the quality, of 25 plain ones.
IS_STEPS, FEW_STEPS = Solver(max_steps=20), Solver(max_steps=10)


@dataclass(frozen=True)
class SourcesProblem(Problem):
    """A `Problem` where each component has its own share of the sparsity."""

    sparsity_weights: Array | None = None

    @property
    def sparsity_slope(self) -> Array:
        """What sparsity adds to each component's denominator, shape (n_components,)."""
        weights = 1.0 if self.sparsity_weights is None else self.sparsity_weights
        slope: Array = super().sparsity_slope * weights
        return slope


@dataclass(frozen=True, eq=False)
class Sources:
    """Named groups of dictionary rows, all for the same frames.

    Attributes
    ----------
    dictionary : array of shape (n_components, n_bins), rows sum to one
    source_of : integer array of shape (n_components,)
        The index in `names` of each row's source.
    names : tuple of str
    audio : AudioSettings
        Of the frames that the dictionaries were learned from.
    divergence : BetaDivergence
        That they were learned with.
    sparsity : float
        As in `Problem`.
    sparsity_weights : array of shape (n_components,), optional
        How much of it each component gets; by default all of it.

    Examples
    --------
    >>> import numpy as np
    >>> rows, audio = np.full((3, 5), 0.2), AudioSettings(8000, Stft(8))
    >>> Sources(rows, np.array([0, 0, 1]), ("voice", "noise"), audio).n_components
    3
    """

    dictionary: Array
    source_of: Array
    names: tuple[str, ...]
    audio: AudioSettings
    divergence: BetaDivergence = ITAKURA_SAITO
    sparsity: float = 0.0
    sparsity_weights: Array | None = None

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(
                f"names={self.names!r} must be at least one name, and none of them twice."
            )
        if self.dictionary.shape[1] != self.audio.n_bins:
            raise ValueError(
                f"The dictionary has {self.dictionary.shape[1]} bins and its frames "
                f"{self.audio.n_bins}; give the settings that the dictionary was learned with."
            )

    @property
    def n_components(self) -> int:
        """Rows of all sources together."""
        return len(self.dictionary)

    @property
    def sr(self) -> int:
        """Sampling rate in Hz that the dictionaries were learned at."""
        return self.audio.sr

    @property
    def stft(self) -> Stft:
        """The transform that they were learned with."""
        return self.audio.stft

    @property
    def exponent(self) -> int:
        """Which power of the modelled spectra is power: 1, or 2 for magnitudes."""
        return 2 if self.audio.spectrum == "magnitude" else 1

    @property
    def floor(self) -> float:
        """The noise floor of the model, relative to a frame's mean."""
        return float(FLOOR ** (1 / self.exponent))

    def rows_of(self, name: str) -> Array:
        """Boolean array of shape (n_components,): which rows belong to a source."""
        if name not in self.names:
            raise ValueError(f"No source has the name {name!r}; there are {', '.join(self.names)}.")
        rows: Array = self.source_of == self.names.index(name)
        return rows

    @classmethod
    def of(cls, given: Sources | Dictionary | Mapping[str, Dictionary]) -> Sources:
        """Sources as they are, from dictionaries by name, or from the groups of one dictionary."""
        if isinstance(given, Sources):
            return given
        if isinstance(given, Mapping):
            return cls.from_dictionaries(given)
        return cls.from_groups(given)

    @classmethod
    def from_dictionaries(cls, dictionaries: Mapping[str, Dictionary]) -> Self:
        """One source per dictionary; all must have been learned with the same settings."""
        if not dictionaries:
            raise ValueError("No dictionaries were given; give at least one by name.")
        settings = {name: _settings_of(name, each) for name, each in dictionaries.items()}
        first, *others = settings
        for name in others:
            if not settings[name].fits(settings[first]):
                raise ValueError(
                    f"The dictionaries {first!r} and {name!r} differ in "
                    f"{settings[first].differences(settings[name])}; learn both with the same "
                    "settings."
                )
        rows = [dictionary.components for dictionary in dictionaries.values()]
        source_of = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        return cls(np.concatenate(rows), source_of, tuple(dictionaries), *settings[first])

    @classmethod
    def from_groups(cls, dictionary: Dictionary, names: Iterable[str] | None = None) -> Self:
        """One source per group of a dictionary.

        Parameters
        ----------
        dictionary : Dictionary
            With `groups`.
        names : iterable of str, optional
            In the order of the sorted labels; by default the labels themselves.
        """
        settings = _settings_of("dictionary", dictionary)
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
        return cls(dictionary.components, source_of, chosen, *settings)

    @classmethod
    def from_components(
        cls, dictionary: Dictionary, components: Mapping[str, Iterable[int]]
    ) -> Self:
        """Sources from lists of a dictionary's components; those in no list are "rest"."""
        settings = _settings_of("dictionary", dictionary)
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
        return cls(dictionary.components, source_of, names, *settings)

    def with_source(self, rows: Array, name: str) -> Sources:
        """These sources and one more; `rows` of shape (n, n_bins) may be empty."""
        weights = self.sparsity_weights
        return replace(
            self,
            dictionary=np.concatenate([self.dictionary, rows]),
            sparsity_weights=None if weights is None else np.append(weights, np.ones(len(rows))),
            source_of=np.concatenate([self.source_of, np.full(len(rows), len(self.names))]),
            names=(*self.names, name),
        )

    def adapting(self, *names: str, batch_size: int | None = None) -> AdaptingSources:
        """These sources, of which some follow the mixture; see `AdaptingSources`."""
        return AdaptingSources(self, names, batch_size)

    def with_free(
        self, n: int, name: str = REST, *, random_state: int = 0, batch_size: int | None = None
    ) -> SourcesWithFree:
        """These sources, and one learned from the mixture alone; see `SourcesWithFree`."""
        return SourcesWithFree(self, n, name, random_state, batch_size)

    def masks(self, compute: Compute) -> MaskStream:
        """Begin a stream of masks; see `Model`."""
        masks = DictionaryMasks(self, self.compute(compute))
        return masks if self.sparsity_weights is None else HostMasks.where_needed(masks, compute)

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """The same for spatial separation; see `Model`."""
        return DictionaryVariances(self, n_bins, n_threads=compute.n_threads)

    def compute(self, wanted: Compute | None = None) -> Compute:
        """What computes the activations: only NumPy has a sparsity for each component."""
        return wanted or Compute() if self.sparsity_weights is None else Compute("reference")

    def problem(self, solver: Solver | None = None) -> Problem:
        """What `ondes.nmf.encoding.encode` solves for each frame."""
        if solver is None:
            solver = IS_STEPS if self.divergence == ITAKURA_SAITO else FEW_STEPS
        return SourcesProblem(
            self.dictionary,
            self.floor,
            solver,
            divergence=self.divergence,
            sparsity=self.sparsity,
            sparsity_weights=self.sparsity_weights,
        )


class _Settings(NamedTuple):
    """What a dictionary was learned with, as far as it matters to separation."""

    audio: AudioSettings
    divergence: BetaDivergence
    sparsity: float

    def differences(self, other: _Settings) -> str:
        """What differs, and how, by the names that the settings have for users."""
        pairs = zip(self._by_name().items(), other._by_name().values(), strict=True)
        found = [f"{name} ({own} and {others})" for (name, own), others in pairs if own != others]
        return ", ".join(found)

    def _by_name(self) -> dict[str, object]:
        audio, stft = self.audio, self.audio.stft
        return {
            "sr": audio.sr, "n_fft": stft.n_fft, "hop_length": stft.hop_length,
            "window": stft.window, "spectrum": audio.spectrum, "fmax": audio.fmax,
            "beta_loss": f"β = {self.divergence.beta:g}", "sparsity": f"{self.sparsity:g}",
        }  # fmt: skip

    def fits(self, other: _Settings) -> bool:
        """Whether frames of the one are frames of the other; silence does not matter."""
        return self == other._replace(audio=replace(other.audio, top_db=self.audio.top_db))


def _settings_of(name: str, dictionary: Dictionary) -> _Settings:
    if not hasattr(dictionary, "components"):
        raise ValueError(f"{name!r} has not been learned yet; learn it first.")
    estimator = dictionary.learner
    if estimator.background is not None:
        raise ValueError(
            f"{name!r} was learned with a background, which belongs to no source; learn it without."
        )
    if dictionary.audio is None:
        raise ValueError(
            f"{name!r} was learned from arrays, so its sampling rate and STFT are unknown; give "
            "ondes.Dictionary an AudioSettings."
        )
    divergence = BetaDivergence.of(estimator.beta_loss)
    return _Settings(dictionary.audio, divergence, float(estimator.sparsity))
