"""What learning remembers of the frames it has seen: sums over frames, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Statistics"]

ArrayOrTensor = Any  # a NumPy array or a PyTorch tensor


@dataclass(frozen=True)
class Statistics:
    """A and B of the paper, with the divergence and the count: every field adds and decays.

    The estimator holds NumPy arrays and floats; on a GPU all four fields are tensors.

    Attributes
    ----------
    numerator : array of shape (n_components, n_bins), float64
        A = Σ w² · (v / y²) · h over frames.
    denominator : array of shape (n_components, n_bins), float64
        B = Σ (1 / y) · h over frames, plus the gradient of a penalty on the activations.
    divergence : float
        Σ d(v, y) over frames; divided by `n_frames` it is the running cost.
    n_frames : float
        How many non-silent frames these sums stand for, after forgetting.

    Examples
    --------
    >>> empty = Statistics.zeros(2, 3)
    >>> (empty + empty).decay(0.5).n_frames
    0.0
    """

    numerator: ArrayOrTensor
    denominator: ArrayOrTensor
    divergence: ArrayOrTensor
    n_frames: ArrayOrTensor

    @classmethod
    def zeros(cls, n_components: int, n_bins: int) -> Statistics:
        """The statistics of no frames."""
        shape = (n_components, n_bins)
        return cls(np.zeros(shape), np.zeros(shape), 0.0, 0.0)

    @classmethod
    def prior(cls, dictionary: ArrayOrTensor, n_frames: float) -> Statistics:
        """Statistics that give `dictionary` back and weigh like `n_frames` frames of data."""
        n_components, n_bins = dictionary.shape
        # A frame at level one shares n_bins of energy among n_components: h / y is about this.
        weight = np.full(dictionary.shape, n_frames * n_bins / n_components)
        return cls(weight * dictionary**2, weight, 0.0, float(n_frames))

    @classmethod
    def from_sums(
        cls,
        dictionary: ArrayOrTensor,
        weighted: ArrayOrTensor,
        inverse: ArrayOrTensor,
        penalty_gradient: ArrayOrTensor,
        divergence: ArrayOrTensor,
        n_frames: ArrayOrTensor,
    ) -> Statistics:
        """The statistics of some frames, from what a backend sums over them.

        Parameters
        ----------
        dictionary : array of shape (n_components, n_bins), float64
        weighted : array of shape (n_components, n_bins)
            Σ h · (v + ε) / y².
        inverse : array of shape (n_components, n_bins), float64
            Σ h / y.
        penalty_gradient : array of shape (n_components,), float64
            Σ h · ψ', the slope of the penalty on the activations; zeros without one.
        divergence, n_frames : float
        """
        return cls(
            dictionary**2 * weighted, inverse + penalty_gradient[:, None], divergence, n_frames
        )

    @property
    def divergence_per_bin(self) -> float:
        """The running cost: of the frames remembered, each at the time of its update."""
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

    def decay(self, factor: ArrayOrTensor) -> Statistics:
        """Multiply every sum by `factor`."""
        return Statistics(
            self.numerator * factor,
            self.denominator * factor,
            self.divergence * factor,
            self.n_frames * factor,
        )

    def rescale(self, scale: ArrayOrTensor) -> Statistics:
        """Follow dictionary rows divided by `scale`, of shape (n_components,): A / s and B · s."""
        return Statistics(
            self.numerator / scale[:, None],
            self.denominator * scale[:, None],
            self.divergence,
            self.n_frames,
        )
