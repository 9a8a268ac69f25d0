"""Whether demixing has told the sources apart: figures that need no truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.models.model import SourceVariances
from ondes.separation.spatial.demixing import assigned
from ondes.signal.stft import Frames

__all__ = ["Confidence", "distinctness", "model_shares"]

Real = NDArray[np.float32]

THINNED = 4  # of so many frames, one is looked at
LEAST_AGREEMENT = 0.6  # of outputs with their models, relative to that of masks
# Outputs that are less distinct than the one are never believed, between the two where the models
# recognise them, and beyond where they are in the order of the masks.
LEAST_DISTINCT, MOST_DISTINCT = 0.64, 0.8
TINY = np.float32(1e-20)


class Confidence:
    """Decides whether sources are demixed, block after block; earlier blocks fade.

    Voices and instruments are loud in different bins and frames, so what is demixed well is
    distinct, and noise at the microphones is in all outputs alike. Where demixing went wrong, the
    models divide each output among the sources, much more than what their masks make of the
    mixture. But models that confuse two voices do so too, though they are demixed well: very
    distinct outputs need only rise and fall with the masks of their own sources.

    Parameters
    ----------
    n_sources : int
    half_life : float
        In frames.
    """

    def __init__(self, n_sources: int, half_life: float) -> None:
        self._half_life = half_life
        self._agreement = np.zeros((2, 2, n_sources))
        self._distinct = np.zeros(2)
        self._likeness = np.zeros((n_sources, n_sources))

    def is_demixed(self, frames: Frames, images: Frames, model: SourceVariances) -> bool:
        """Whether to believe the images of all sources but the last in the next block.

        Parameters
        ----------
        frames : complex64 array of shape (n_bins, n_channels, n_frames)
        images : complex64 array of shape (n_sources - 1, n_bins, n_channels, n_frames)
        model : SourceVariances
        """
        peak = float(np.abs(frames).max())
        if not peak > 0:
            return True
        mixture, own = frames[..., ::THINNED] / peak, images[..., ::THINNED] / peak
        powers = np.square(np.abs([*own, mixture - own.sum(axis=0)])).mean(axis=2)
        power = np.square(np.abs(mixture)).mean(axis=1)
        masks = model_shares(model, power)
        fading = 0.5 ** (frames.shape[2] / self._half_life)
        agreements = [_agreement(model, each) for each in (powers, masks**2 * power)]
        self._agreement = fading * self._agreement + peak**2 * np.array(agreements)
        self._distinct = fading * self._distinct + peak * distinctness(powers)
        self._likeness = fading * self._likeness + peak * _likeness(masks, powers)
        distinct = self._distinct[0] / self._distinct[1]
        if distinct > MOST_DISTINCT and self._is_in_order():
            return True
        demixed, masked = self._agreement[:, 0] / (self._agreement[:, 1] + 1e-300)
        is_recognised = bool((demixed >= LEAST_AGREEMENT * masked).all())
        return bool(distinct > LEAST_DISTINCT) and is_recognised

    def _is_in_order(self) -> bool:
        order = assigned(self._likeness[None])[0]
        return bool((order == np.arange(len(order))).all())


def model_shares(model: SourceVariances, power: Real) -> Real:
    """What the models make of the power of a mixture, (n_bins, n_frames): masks."""
    found = model.start(power)
    shares: Real = found / (found.sum(axis=0) + TINY)
    return shares


def distinctness(powers: Real) -> NDArray[np.float64]:
    """How much louder than the others one of n sources is: 0 where all are alike, 1 where alone.

    The sum over bins and frames, weighted by amplitudes, and the sum of these weights.

    Parameters
    ----------
    powers : array of shape (n_sources, n_bins, n_frames)

    Examples
    --------
    >>> total, weight = distinctness(np.array([[[4.0, 1.0]], [[0.0, 1.0]]], np.float32))
    >>> round(float(total / weight), 2)
    0.59
    """
    together = powers.sum(axis=0) + TINY
    weights = np.sqrt(together)
    n = len(powers)
    loudest = (n * powers.max(axis=0) / together - 1) / max(1, n - 1)
    return np.array([(loudest * weights).sum(), weights.sum()], np.float64)


def _agreement(model: SourceVariances, powers: Real) -> NDArray[np.float64]:
    """Of each source's power, what its own model explains beside the others, and all of it."""
    shares = (model_shares(model, power)[source] for source, power in enumerate(powers))
    pairs = zip(shares, powers, strict=True)
    sums = [(float((share * power).sum()), float(power.sum())) for share, power in pairs]
    return np.array(sums).T


def _likeness(masks: Real, powers: Real) -> NDArray[np.float64]:
    """Covariances of every output's share (rows) with every source's mask (columns)."""
    together = powers.sum(axis=0) + TINY
    weights = np.sqrt(together)
    weights /= weights.sum() + TINY
    shares = powers / together
    centred = [each - (each * weights).sum(axis=(1, 2), keepdims=True) for each in (shares, masks)]
    outputs, sources = (each.reshape(len(each), -1) for each in centred)
    covariances: NDArray[np.float64] = ((outputs * weights.ravel()) @ sources.T).astype(np.float64)
    return covariances
