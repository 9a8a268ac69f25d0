"""How close a separated source is to the true one, in decibels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["si_sdr"]


def si_sdr(reference: ArrayLike, estimate: ArrayLike) -> float:
    """Scale-invariant signal-to-distortion ratio of Le Roux et al. (2019), means not removed.

    Parameters
    ----------
    reference, estimate : arrays of one shape, (n,) or (n, n_channels)
        Channels are taken as one long signal.

    Returns
    -------
    float
        Decibels: inf for the reference itself at any volume, −inf for anything orthogonal to it.

    Examples
    --------
    >>> import numpy as np
    >>> round(si_sdr(np.array([1.0, 0.0]), np.array([3.0, 0.3])), 6)
    20.0
    """
    target, found = (np.ravel(np.asarray(x, dtype=np.float64)) for x in (reference, estimate))
    if target.shape != found.shape:
        raise ValueError(
            f"The reference has {target.size} samples and the estimate {found.size}; give both "
            "the same length."
        )
    if not target.any():
        raise ValueError(
            "The reference is silent, and a ratio to silence is not defined; leave it out."
        )
    projected = (found @ target) / (target @ target) * target
    distortion = found - projected
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 10 * np.log10((projected @ projected) / (distortion @ distortion))
    return float(ratio) if found.any() else -np.inf
