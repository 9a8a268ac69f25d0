"""What learning remembers of the frames it has seen: sums over frames, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["SMALLEST", "Statistics", "Trained"]

SMALLEST = 1e-100  # an entry of the dictionary whose powers do not leave the range of float64
# In float32 a sum of h v / y² may overflow where an entry of the dictionary is almost zero.
LARGEST = 3e38
ArrayOrTensor = Any  # a NumPy array or a PyTorch tensor


class Trained(NamedTuple):
    """What updates were made from: sums over their non-silent frames."""

    n_frames: float
    divergence: float


@dataclass(frozen=True, eq=False)
class Statistics:
    """A and B of the paper, the divergence and the number of frames: sums that can be added.

    In the estimator they are NumPy arrays and floats. On a device the arrays are tensors, and the
    single numbers are None, because they are counted on the host.

    Attributes
    ----------
    numerator : array of shape (n_components, n_bins), float64
        A = Σ w^(2−β) · v · y^(β−2) · h over frames; the paper's w² · (v / y²) · h for β = 0.
    denominator : array of shape (n_components, n_bins), float64
        B = Σ y^(β−1) · h over frames, plus the gradient of a penalty on the activations; the
        paper's (1 / y) · h for β = 0. For β > 1 it is multiplied by w^(1−β).
    divergence : float
        Σ d(v, y) over frames; divided by `n_frames` it is the running cost.
    n_frames : float
        Number of non-silent frames in these sums, after forgetting.
    beta : float
        The index of the divergence.

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
    beta: float = 0.0

    @classmethod
    def zeros(cls, *shape: int, beta: float = 0.0) -> Statistics:
        """The statistics of no frames; `shape` is (n_components, n_bins)."""
        return cls(np.zeros(shape), np.zeros(shape), 0.0, 0.0, beta)

    @classmethod
    def prior(cls, dictionary: ArrayOrTensor, n_frames: float, beta: float = 0.0) -> Statistics:
        """Statistics that reproduce `dictionary`, with the weight of `n_frames` frames of data."""
        n_components, n_bins = dictionary.shape
        # A frame at level one shares n_bins of energy among n_components: h / y is about this.
        weight = np.full(dictionary.shape, n_frames * n_bins / n_components)
        gradient = np.zeros(n_components)
        return cls.from_sums(dictionary, weight, weight, gradient, 0.0, float(n_frames), beta)

    @classmethod
    def from_sums(
        cls,
        dictionary: ArrayOrTensor,
        weighted: ArrayOrTensor,
        inverse: ArrayOrTensor,
        penalty_gradient: ArrayOrTensor,
        divergence: ArrayOrTensor,
        n_frames: ArrayOrTensor,
        beta: float = 0.0,
    ) -> Statistics:
        """The statistics of some frames, from what a backend sums over them.

        Parameters
        ----------
        dictionary : array of shape (n_components, n_bins), float64
        weighted : array of shape (n_components, n_bins)
            Σ h · (v + ε) · y^(β−2).
        inverse : array of shape (n_components, n_bins), float64
            Σ h · y^(β−1).
        penalty_gradient : array of shape (n_components,), float64
            Σ h · ψ', the slope of the penalty on the activations; zeros or None without one.
        divergence, n_frames, beta : float
        """
        if hasattr(weighted, "nan_to_num"):
            weighted = weighted.nan_to_num(nan=np.nan, posinf=LARGEST)
        elif np.isposinf(weighted.max(initial=0)):
            weighted = np.nan_to_num(weighted, nan=np.nan, posinf=LARGEST)
        numerator = dictionary ** (2 - beta) * weighted
        denominator = inverse
        if penalty_gradient is not None:
            denominator = inverse + penalty_gradient[:, None]
        if beta > 1:
            known = dictionary > 0  # an entry of zero stays zero, and needs no statistics
            denominator = denominator * known * (dictionary + ~known).clip(SMALLEST) ** (1 - beta)
        return cls(numerator, denominator, divergence, n_frames, beta)

    @property
    def divergence_per_bin(self) -> float:
        """The running cost: the mean over the frames, each at the time of its update."""
        if self.n_frames == 0:
            return 0.0
        return float(self.divergence / self.n_frames / self.numerator.shape[1])

    def __add__(self, other: Statistics) -> Statistics:
        if self.beta != other.beta:
            raise ValueError(f"Statistics of β = {self.beta:g} and {other.beta:g} cannot be added.")
        return Statistics(
            self.numerator + other.numerator,
            self.denominator + other.denominator,
            _sum(self.divergence, other.divergence),
            _sum(self.n_frames, other.n_frames),
            self.beta,
        )

    def faded_into(self, new: Statistics, factor: ArrayOrTensor) -> Statistics:
        """These statistics times `factor`, plus the new ones; one operation for each tensor."""
        if not hasattr(self.numerator, "addcmul"):
            return self.decay(factor) + new
        return Statistics(
            new.numerator.addcmul(self.numerator, factor),
            new.denominator.addcmul(self.denominator, factor),
            _sum(_times(self.divergence, factor), new.divergence),
            _sum(_times(self.n_frames, factor), new.n_frames),
            self.beta,
        )

    def decay(self, factor: ArrayOrTensor) -> Statistics:
        """Multiply every sum by `factor`."""
        return Statistics(
            self.numerator * factor,
            self.denominator * factor,
            _times(self.divergence, factor),
            _times(self.n_frames, factor),
            self.beta,
        )

    def rescale(self, scale: ArrayOrTensor) -> Statistics:
        """The statistics of dictionary rows divided by `scale`, s of shape (n_components,).

        A · s^(β−1), and B · s, or B · s^β for β > 1.
        """
        s, beta = scale[:, None], self.beta
        return Statistics(
            self.numerator / s if beta == 0 else self.numerator * s ** (beta - 1),
            self.denominator * (s**beta if beta > 1 else s),
            self.divergence,
            self.n_frames,
            beta,
        )


def _times(one: ArrayOrTensor, factor: ArrayOrTensor) -> ArrayOrTensor:
    return None if one is None else one * factor


def _sum(one: ArrayOrTensor, other: ArrayOrTensor) -> ArrayOrTensor:
    return None if one is None else one + other
