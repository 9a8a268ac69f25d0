"""Whose power is it: dictionaries of several sources side by side, and the masks they give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ondes.nmf import backends
from ondes.nmf.divergence import Array, level_frames
from ondes.nmf.estimator import TRANSFORM_SOLVER, OnlineISNMF
from ondes.nmf.penalties import ActivationPenalty
from ondes.nmf.problem import Problem, Solver
from ondes.signal.stft import Stft

__all__ = ["Sources", "source_masks"]

FLOOR = 1e-12  # relative to a frame's mean power; the sources share it evenly
# Under the model a bin's power is exponential: beyond ten times its mean once in 22 000 bins.
SURPRISE = 10.0
REST = "rest"


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
        Samples a second of the sound that the dictionaries know.
    stft : Stft
        How that sound becomes frames.

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
            raise ValueError(
                f"names={self.names!r} of the sources must be one or more, all unlike."
            )
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
    def of(cls, given: Sources | OnlineISNMF | Mapping[str, OnlineISNMF]) -> Sources:
        """Sources as they are, from models by name, or from the groups of one model."""
        if isinstance(given, Sources):
            return given
        if isinstance(given, OnlineISNMF):
            return cls.from_groups(given)
        return cls.from_models(given)

    @classmethod
    def from_models(cls, models: Mapping[str, OnlineISNMF]) -> Self:
        """One fitted model a source.

        Parameters
        ----------
        models : mapping of str to OnlineISNMF
            With `audio_`, the same for all.
        """
        if not models:
            raise ValueError("No dictionaries were given; give at least one by name.")
        (first, audio), *others = [(name, _audio_of(name, model)) for name, model in models.items()]
        for name, other in others:
            if (other.sr, other.stft) != (audio.sr, audio.stft):
                raise ValueError(
                    f"The models {first!r} ({audio.sr} Hz, {audio.stft}) and {name!r} "
                    f"({other.sr} Hz, {other.stft}) know different frames; learn both alike."
                )
        rows = [model.components_ for model in models.values()]
        source_of = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        return cls(np.concatenate(rows), source_of, tuple(models), audio.sr, audio.stft)

    @classmethod
    def from_groups(cls, model: OnlineISNMF, names: Iterable[str] | None = None) -> Self:
        """The groups of one fitted model.

        Parameters
        ----------
        model : OnlineISNMF
            With `audio_` and `groups`.
        names : iterable of str, optional
            In the order of the sorted labels; by default the labels themselves.
        """
        audio = _audio_of("the model", model)
        if model.groups is None:
            raise ValueError(
                "The model has no groups to tell its sources by; set groups=, or list components."
            )
        labels, source_of = np.unique(np.asarray(model.groups), return_inverse=True)
        chosen = tuple(map(str, labels if names is None else names))
        if len(chosen) != len(labels):
            raise ValueError(f"{len(chosen)} names do not fit the model's {len(labels)} groups.")
        return cls(model.components_, source_of, chosen, audio.sr, audio.stft)

    @classmethod
    def from_components(cls, model: OnlineISNMF, components: Mapping[str, Iterable[int]]) -> Self:
        """The user's own lists of one model's components; those in no list are "rest".

        Parameters
        ----------
        model : OnlineISNMF
            With `audio_`.
        components : mapping of str to iterable of int
        """
        audio = _audio_of("the model", model)
        n_components = len(model.components_)
        source_of = np.full(n_components, len(components))
        for source, (name, indices) in enumerate(components.items()):
            for index in indices:
                if not 0 <= index < n_components:
                    raise ValueError(
                        f"Component {index} of {name!r} does not exist; there are 0 to "
                        f"{n_components - 1}."
                    )
                if source_of[index] != len(components):
                    raise ValueError(f"Component {index} is listed twice; list it in one source.")
                source_of[index] = source
        names = tuple(components)
        if (source_of == len(components)).any():
            names = (*names, REST)
        return cls(model.components_, source_of, names, audio.sr, audio.stft)

    def joined_by(self, rows: Array, name: str) -> Sources:
        """These sources and one more; `rows` of shape (n, n_bins) may be none."""
        return Sources(
            np.concatenate([self.dictionary, rows]),
            np.concatenate([self.source_of, np.full(len(rows), len(self.names))]),
            (*self.names, name),
            self.sr,
            self.stft,
        )


def source_masks(
    frames: Array,
    sources: Sources,
    *,
    residual: bool = False,
    penalty: ActivationPenalty | None = None,
    solver: Solver | None = None,
    backend: str = "auto",
    n_jobs: int = 1,
) -> Array:
    """Wiener masks: each source's share of the modelled power, bin by bin.

    Parameters
    ----------
    frames : array of shape (n_frames, n_bins), power, nonnegative
    sources : Sources
    residual : bool
        One mask more, for what is ten times louder than the model or beyond. Without it, the
        sources share that, too.
    penalty : ActivationPenalty, optional
        Its groups are the sources.
    solver, backend, n_jobs
        As of `OnlineISNMF`.

    Returns
    -------
    array of shape (n_sources or n_sources + 1, n_frames, n_bins)
        They sum to one in each bin, silent ones included.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), 8000, Stft(4))
    >>> masks = source_masks(np.array([[9.0, 1.0, 0.0]]), sources, backend="reference")
    >>> masks[0].round(3)
    array([[1. , 1. , 0.5]])
    """
    levelled = level_frames(frames)
    problem = Problem(
        sources.dictionary, FLOOR, solver or TRANSFORM_SOLVER, None, penalty, sources.source_of
    )
    chosen = backends.choose(backend, problem, len(frames))
    activations = chosen.encode(levelled, problem, None, n_jobs)
    dictionary = sources.dictionary.astype(frames.dtype)
    n_sources = len(sources.names)
    modelled = np.empty((n_sources, *frames.shape), frames.dtype)
    for source in range(n_sources):
        own = sources.source_of == source
        modelled[source] = levelled.spread(activations[:, own] @ dictionary[own])
    modelled += frames.dtype.type(FLOOR / n_sources)
    total = modelled.sum(axis=0)
    if not residual:
        masks: Array = modelled / total
        return masks
    believed = np.maximum(total, levelled.spread(levelled.values) / frames.dtype.type(SURPRISE))
    return np.concatenate([modelled / believed, (1 - total / believed)[None]])


def _audio_of(name: str, model: OnlineISNMF) -> Any:
    if not hasattr(model, "components_"):
        raise ValueError(f"The model {name!r} has learned nothing yet; fit it first.")
    if model.background is not None:
        raise ValueError(
            f"The model {name!r} has a background, which no source owns; learn without one."
        )
    audio = getattr(model, "audio_", None)
    if audio is None:
        raise ValueError(
            f"The model {name!r} does not say what sound it knows; learn it from audio, or set "
            "its audio_ to an AudioSettings."
        )
    return audio
