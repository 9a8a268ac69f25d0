"""The sizes of a separator, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NetworkSettings", "TrainingSettings"]


@dataclass(frozen=True)
class NetworkSettings:
    """The shape of the network.

    Attributes
    ----------
    n_steps : int
        Steps of the unfolded solver.
    n_untied : int
        How many of the last ones have a dictionary of their own.
    n_decoder : int
        Frames that the decoder looks at.
    contexts : tuple of int
        Frames of the temporal means.
    sparsity : float
        λ at the start.
    floor : float
        Of the temporal means, relative to the level of the longest context.
    """

    n_steps: int = 12
    n_untied: int = 4
    n_decoder: int = 5
    contexts: tuple[int, ...] = (3, 9, 31)
    sparsity: float = 2.0
    floor: float = 1e-4


@dataclass(frozen=True)
class TrainingSettings:
    """How the network is trained; measured on real recordings, see docs/results.md.

    Attributes
    ----------
    n_components : int
        Of each source.
    batch_size : int
        Mixtures per update.
    seconds : float
        Length of a mixture.
    n_without_gradient : int
        First steps of the solver that no gradient goes through: a tie in quality, faster.
    learning_rate : float
        At its peak; it falls along a cosine.
    n_warm_up : int
        Updates in which it rises to the peak.
    largest_gradient : float
        Gradients of a larger norm are scaled down to it.
    level_db : float
        Sources of a mixture differ by at most this.
    equaliser_db : float
        Strength of a smooth random equaliser for each source.
    semitones : int
        Largest change of pitch and speed.
    """

    n_components: int = 128
    batch_size: int = 24
    seconds: float = 4.0
    n_without_gradient: int = 4
    learning_rate: float = 6e-2
    n_warm_up: int = 20
    largest_gradient: float = 5.0
    level_db: float = 5.0
    equaliser_db: float = 3.0
    semitones: int = 4

    @classmethod
    def for_device(cls, device: str) -> TrainingSettings:
        """What is best within minutes on this kind of device."""
        if device.startswith("cuda"):
            return cls()
        return cls(n_components=64, batch_size=8, seconds=2.0, n_without_gradient=8)
