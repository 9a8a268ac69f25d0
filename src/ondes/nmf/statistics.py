"""What learning remembers of the frames it has seen: sums over frames, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondes.nmf.divergence import Array


@dataclass(frozen=True)
class Statistics:
    """A and B of the paper, with the divergence and the count: every field adds and decays.

    Attributes
    ----------
    numerator : array of shape (n_components, n_bins), float64
        A = Σ w² · (v / y²) · h over frames.
    denominator : array of shape (n_components, n_bins), float64
        B = Σ (1 / y) · h over frames.
    divergence : float
        Σ d(v, y) over frames; divided by `n_frames` it is the running cost.
    n_frames : float
        How many frames with sound these sums stand for, after forgetting.

    Examples
    --------
    >>> empty = Statistics.zeros(2, 3)
    >>> (empty + empty).decay(0.5).n_frames
    0.0
    """

    numerator: Array
    denominator: Array
    divergence: float
    n_frames: float

    @classmethod
    def zeros(cls, n_components: int, n_bins: int) -> Statistics:
        """The statistics of no frames."""
        shape = (n_components, n_bins)
        return cls(np.zeros(shape), np.zeros(shape), 0.0, 0.0)

    @classmethod
    def prior(cls, dictionary: Array, n_frames: float) -> Statistics:
        """Statistics that give `dictionary` back and weigh like `n_frames` frames of data."""
        n_components, n_bins = dictionary.shape
        # A frame at level one shares n_bins of energy among n_components: h / y is about this.
        weight = np.full(dictionary.shape, n_frames * n_bins / n_components)
        return cls(weight * dictionary**2, weight, 0.0, float(n_frames))

    @property
    def divergence_per_bin(self) -> float:
        """The running cost: of the frames remembered, each as it was met; zero for none."""
        if self.n_frames == 0:
            return 0.0
        return float(self.divergence / self.n_frames / self.numerator.shape[1])

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.numerator + other.numerator,
            self.denominator + other.denominator,
            self.divergence + other.divergence,
            self.n_frames + other.n_frames,
        )

    def decay(self, factor: float) -> Statistics:
        """Let every sum count `factor` times as much."""
        return Statistics(
            self.numerator * factor,
            self.denominator * factor,
            self.divergence * factor,
            self.n_frames * factor,
        )

    def rescale(self, scale: Array) -> Statistics:
        """Follow dictionary rows divided by `scale`, of shape (n_components,): A / s and B · s."""
        return Statistics(
            self.numerator / scale[:, None],
            self.denominator * scale[:, None],
            self.divergence,
            self.n_frames,
        )
