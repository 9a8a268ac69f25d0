"""A trained separator together with dictionaries of further sources, and what users may give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ondes.models.adaptation import AdaptingSources, SourcesWithFree
from ondes.models.dictionary import Dictionary
from ondes.models.model import MaskStream, Model, SourceVariances
from ondes.models.sources import Sources
from ondes.models.variances import CombinedVariances
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.encoding import Compute
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.signal.audio_settings import AudioSettings

__all__ = ["Combined", "model_of"]


class Trained(Model, Protocol):
    """A trained separator."""

    @property
    def weights(self) -> UnfoldedWeights:
        """What training found."""


def model_of(given: Any) -> Model:
    """A model as it is, from models by name, or from the groups of one dictionary."""
    if isinstance(given, Model):
        return given
    if not isinstance(given, Mapping):
        return Sources.from_groups(given)
    if any(isinstance(each, Model) for each in given.values()):
        return Combined.of(given)
    return Sources.from_dictionaries(given)


@dataclass(frozen=True, eq=False)
class Combined:
    """The sources of a trained separator, and others that have dictionaries; for `spatial` only.

    Attributes
    ----------
    trained : TrainedSeparator
    sources : Sources, AdaptingSources or SourcesWithFree
        Those of the separator first, with the spectra that it encodes with; then the others.

    Examples
    --------
    >>> Combined.of({"talk": ondes.load("talk.ondes"), "rain": rain}).names  # doctest: +SKIP
    ('speech', 'music', 'rain')
    """

    trained: Trained
    sources: Sources | AdaptingSources | SourcesWithFree

    @property
    def names(self) -> tuple[str, ...]:
        """Of all sources."""
        return self.sources.names

    @property
    def audio(self) -> AudioSettings:
        """Of the separator and the dictionaries."""
        return self.sources.audio

    def masks(self, compute: Compute) -> MaskStream:
        """Refused: masks of the two kinds do not sum to one."""
        raise ValueError(
            "A trained separator and dictionaries together need spatial='room' or 'pan' "
            "(--spatial); without it, give only one of the two."
        )

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """What both make of the power of each source; see `Model`."""
        trained = self.trained.variances(n_bins, compute)
        dictionaries = self.sources.variances(n_bins, compute)
        return CombinedVariances(trained, dictionaries, len(self.trained.names))

    def adapting(self, *names: str, **options: Any) -> Combined:
        """Some of the dictionaries follow the mixture; see `Sources.adapting`."""
        if set(names) & set(self.trained.names):
            raise ValueError(f"adapt={names!r}: the sources of a trained separator do not adapt.")
        return replace(self, sources=self._dictionaries.adapting(*names, **options))

    def with_free(self, n: int, *name: str, **options: Any) -> Combined:
        """One more source is learned from the mixture; see `Sources.with_free`."""
        return replace(self, sources=self._dictionaries.with_free(n, *name, **options))

    @property
    def _dictionaries(self) -> Sources:
        if not isinstance(self.sources, Sources):
            raise ValueError("adapt and n_free cannot be combined; give one of them.")
        return self.sources

    @classmethod
    def of(cls, models: Mapping[str, Any]) -> Combined:
        """From models by name, one of them a trained separator, whose sources have their own."""
        trained = [each for each in models.values() if not isinstance(each, Dictionary)]
        if len(trained) != 1:
            raise ValueError(
                f"{len(trained)} trained separators were given; give one, and dictionaries for "
                "the other sources."
            )
        (model,) = trained
        rows = model.weights.dictionaries[0].astype(np.float64)
        rows = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1e-300)
        n_sources = len(model.names)
        own = Sources(
            rows,
            np.repeat(np.arange(n_sources), len(rows) // n_sources),
            model.names,
            replace(model.audio, spectrum="magnitude"),
            BetaDivergence.of("kullback-leibler"),
        )
        if len(models) == 1:
            return cls(model, own)
        others = Sources.from_dictionaries(
            {name: each for name, each in models.items() if isinstance(each, Dictionary)}
        )
        if (others.sr, others.stft, others.audio.fmax) != (own.sr, own.stft, own.audio.fmax):
            raise ValueError(
                f"The separator ({_described(own.audio)}) and the dictionaries "
                f"({_described(others.audio)}) are for different frames; train with the --sr and "
                "--n-fft of the dictionaries."
            )
        if (others.exponent, others.divergence) != (own.exponent, own.divergence):
            raise ValueError(
                "A trained separator models magnitudes with the Kullback-Leibler divergence; learn "
                "the dictionaries in the same way, as ondes learn does by default."
            )
        sources = replace(
            own,
            dictionary=np.concatenate([rows, others.dictionary]),
            source_of=np.concatenate([own.source_of, n_sources + others.source_of]),
            names=(*own.names, *others.names),
            sparsity=others.sparsity,
        )
        return cls(model, sources)


def _described(audio: AudioSettings) -> str:
    frames = f"{audio.sr} Hz, n_fft {audio.stft.n_fft}, hop {audio.stft.hop_length}"
    return frames if audio.fmax is None else f"{frames}, fmax {audio.fmax:g}"
