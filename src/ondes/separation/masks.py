"""Each source's share of the power, frame by frame and bin by bin."""

from __future__ import annotations

import numpy as np

from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, Encoding, encode
from ondes.nmf.penalties import ActivationPenalty
from ondes.rebatch import slices
from ondes.separation.sources import FLOOR, Sources

__all__ = ["masks_of", "source_masks"]

# Under the model a bin's power is exponential: beyond ten times its mean once in 22 000 bins.
SURPRISE = 10.0
ROWS_AT_ONCE = 64


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
    frames : array of shape (n_frames, n_bins), nonnegative
        Power or magnitude, as the sources' `audio` has it.
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
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> masks = source_masks(np.array([[9.0, 1.0, 0.0]]), sources)
    >>> masks[0].round(3)
    array([[1. , 1. , 0.5]])
    """
    if sources.sparsity_weights is not None:  # the other backends have one sparsity for all
        compute = Compute("reference")
    encoding = encode(frames, sources.problem(penalty=penalty), compute)
    return masks_of(encoding, sources, residual=residual)


def masks_of(encoding: Encoding, sources: Sources, *, residual: bool = False) -> Array:
    """Masks from activations that are known already; see `source_masks`."""
    levelled, activations = encoding.levelled, encoding.activations
    dtype = levelled.values.dtype
    dictionary = sources.dictionary.astype(dtype)
    n_sources = len(sources.names)
    shape = (n_sources, len(levelled.active), dictionary.shape[1])
    modelled = np.empty(shape, dtype)
    activations = levelled.spread(activations)
    for source in range(n_sources):
        own = sources.source_of == source
        rows_of_source, own_activations = dictionary[own], activations[:, own]
        # The bits of a product may depend on how many rows it has.
        for rows in slices(len(activations), ROWS_AT_ONCE):
            np.matmul(own_activations[rows], rows_of_source, out=modelled[source, rows])
    explained = None
    if sources.exponent != 1:
        explained = modelled.sum(axis=0) ** sources.exponent + dtype.type(FLOOR)
        modelled **= sources.exponent
    modelled += dtype.type(FLOOR / n_sources)
    total = modelled.sum(axis=0)
    if not residual:
        modelled /= total
        return modelled
    believed = levelled.spread(levelled.values) ** sources.exponent / dtype.type(SURPRISE)
    if explained is not None:  # the power of the sum, not the sum of the powers
        believed *= total / explained
    believed = np.maximum(total, believed)
    return np.concatenate([modelled / believed, (1 - total / believed)[None]])
