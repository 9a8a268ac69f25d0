"""A trained separator together with dictionaries of further sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ondes.nmf.divergence import BetaDivergence
from ondes.separation.masked_frames import MaskStream
from ondes.separation.sources import Models, SourceDictionary, Sources
from ondes.separation.unfolded_masks import TrainedModel
from ondes.signal.audio_settings import AudioSettings

__all__ = ["AnyModels", "MixedSources"]


@dataclass(frozen=True, eq=False)
class MixedSources:
    """The sources of a trained separator, and others that have dictionaries.

    Attributes
    ----------
    trained : TrainedModel
    sources : Sources
        Those of the separator first, with the spectra that it encodes with; then the others.

    Examples
    --------
    >>> MixedSources.of({"talk": ondes.load("talk.ondes"), "rain": rain}).names  # doctest: +SKIP
    ('speech', 'music', 'rain')
    """

    trained: TrainedModel
    sources: Sources

    @property
    def names(self) -> tuple[str, ...]:
        """Of all sources."""
        return self.sources.names

    @classmethod
    def of(cls, models: Mapping[str, SourceDictionary | TrainedModel]) -> MixedSources:
        """From models by name, one of them a trained separator, whose sources have their own."""
        trained = [each for each in models.values() if isinstance(each, TrainedModel)]
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
            {name: each for name, each in models.items() if not isinstance(each, TrainedModel)}
        )
        if (others.sr, others.stft) != (own.sr, own.stft):
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


AnyModels = (
    Models
    | TrainedModel
    | Mapping[str, SourceDictionary | TrainedModel]
    | MixedSources
    | MaskStream
)


def _described(audio: AudioSettings) -> str:
    return f"{audio.sr} Hz, n_fft {audio.stft.n_fft}, hop {audio.stft.hop_length}"
