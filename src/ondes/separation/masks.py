"""Each source's share of the power, frame by frame and bin by bin."""

from __future__ import annotations

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, encode
from ondes.nmf.penalties import ActivationPenalty
from ondes.separation.sources import FLOOR, Sources

__all__ = ["source_masks"]

# Under the model a bin's power is exponential: beyond ten times its mean once in 22 000 bins.
SURPRISE = 10.0


def source_masks(
    frames: Array,
    sources: Sources,
    *,
    residual: bool = False,
    penalty: ActivationPenalty | None = None,
    compute: Compute | None = None,
) -> Array:
    """Wiener masks: each source's share of the modelled power, bin by bin.

    Parameters
    ----------
    frames : array of shape (n_frames, n_bins), power, nonnegative
    sources : Sources
    residual : bool
        Whether to return one more mask, for power beyond ten times the model's. By default the
        sources share that power as well.
    penalty : ActivationPenalty, optional
        Its groups are the sources.
    compute : Compute, optional
        Backend, device and threads.

    Returns
    -------
    array of shape (n_sources or n_sources + 1, n_frames, n_bins)
        They sum to one in each bin, also in silent frames.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), 8000, Stft(4))
    >>> masks = source_masks(np.array([[9.0, 1.0, 0.0]]), sources)
    >>> masks[0].round(3)
    array([[1. , 1. , 0.5]])
    """
    encoding = encode(frames, sources.problem(penalty=penalty), compute)
    levelled, activations = encoding.levelled, encoding.activations
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
