"""Masks from models that take every frame for itself: dictionaries, and a noise that is subtracted.

A Wiener mask is a source's share of the modelled power, bin by bin.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ondes.cores import each
from ondes.models.model import MaskStream, SourceVariances
from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, Encoding, encode
from ondes.signal.audio_settings import AudioSettings

if TYPE_CHECKING:
    from ondes.models.sources import Sources

__all__ = ["DictionaryMasks", "HostMasks", "NoiseSubtraction", "masks_of", "source_masks"]

Real = NDArray[np.float32]

FLOOR = 1e-12  # power relative to a frame's mean; the sources share it evenly
ROWS_AT_ONCE = 64
# Of the mean magnitude: half of all frames of a noise lie above the mean.
OVERSUBTRACTION = 1.5


def source_masks(frames: Array, sources: Sources, *, compute: Compute | None = None) -> Array:
    """Wiener masks: each source's share of the modelled power, bin by bin.

    Parameters
    ----------
    frames : array of shape (n_frames, n_bins), nonnegative
        Power or magnitude, as the sources' `audio` has it.
    sources : Sources
    compute : Compute, optional
        Backend, device and threads.

    Returns
    -------
    array of shape (n_sources, n_frames, n_bins)
        They sum to one in each bin, also in silent frames.

    Examples
    --------
    >>> from ondes.models.sources import Sources
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> masks = source_masks(np.array([[9.0, 1.0, 0.0]]), sources)
    >>> masks[0].round(3)
    array([[1. , 1. , 0.5]])
    """
    compute = sources.compute(compute)
    encoding = encode(frames, sources.problem(), compute)
    masks: Array = masks_of(encoding, sources, n_threads=compute.n_threads)
    return masks


def masks_of(encoding: Encoding, sources: Sources, row: int = 0, n_threads: int = 1) -> Any:
    """Masks from activations that are known already, (n_sources, n_frames, n_bins).

    The bits of a product may depend on how many rows it has, and on which of them a frame is. So
    products have 64 rows, and the first frame is row `row` of one of them.
    """
    if tensors.is_tensor(encoding.activations):
        return _tensor_masks(encoding, sources)
    levelled = encoding.levelled
    activations = levelled.spread(encoding.activations)
    n_frames, dtype = len(activations), levelled.values.dtype
    dictionary = sources.dictionary.astype(dtype)
    masks = np.empty((len(sources.names), n_frames, dictionary.shape[1]), dtype)
    own = [sources.source_of == source for source in range(len(sources.names))]
    parts = [(dictionary[each], activations[:, each]) for each in own]

    def fill(first: int) -> None:
        rows = slice(max(0, first), min(n_frames, first + ROWS_AT_ONCE))
        within = slice(rows.start - first, rows.stop - first)
        modelled = masks[:, rows]
        for source, (rows_of_source, own_activations) in enumerate(parts):
            if modelled.shape[1] == ROWS_AT_ONCE:
                np.matmul(own_activations[rows], rows_of_source, out=modelled[source])
            else:
                padded = np.zeros((ROWS_AT_ONCE, own_activations.shape[1]), dtype)
                padded[within] = own_activations[rows]
                modelled[source] = (padded @ rows_of_source)[within]
        if sources.exponent != 1:
            modelled **= sources.exponent
        modelled += dtype.type(FLOOR / len(parts))
        modelled /= modelled.sum(axis=0)

    deque(each(fill, range(-row, n_frames, ROWS_AT_ONCE), n_threads), maxlen=0)
    return masks


def _tensor_masks(encoding: Encoding, sources: Sources) -> Any:
    from ondes.nmf.backends.devices import torch

    levelled: Any = encoding.levelled
    activations, values = encoding.activations, levelled.values
    dictionary = torch.tensor(sources.dictionary, dtype=values.dtype, device=values.device)
    shape = len(sources.names), len(levelled.active), dictionary.shape[1]
    modelled = values.new_empty(shape)
    for source in range(len(sources.names)):
        own = torch.tensor(sources.source_of == source, device=values.device)
        modelled[source] = levelled.spread(activations[:, own] @ dictionary[own])
    if sources.exponent != 1:
        modelled **= sources.exponent
    modelled += FLOOR / len(sources.names)
    return modelled.div_(modelled.sum(dim=0))


class DictionaryMasks:
    """A `MaskStream` of dictionaries that stay as they are.

    The kernel's answer for a frame depends on that frame alone, so its masks are never late. Other
    backends solve for 64 frames at a time, of live sound for one; PyTorch for all that are pushed,
    up to rounding.

    Parameters
    ----------
    sources : Sources
    compute : Compute
    """

    def __init__(self, sources: Sources, compute: Compute) -> None:
        self._sources, self._compute = sources, sources.compute(compute)
        self._problem = sources.problem()
        name = self._compute.backend_for(self._problem).NAME
        self._takes_all = name in ("native", "torch")
        is_live = sources.audio.stft.n_synthesis is not None
        self._batch_size = 1 if self._takes_all or is_live else ROWS_AT_ONCE
        self.delay = self._batch_size - 1
        self._is_on_device = compute.backend == "torch"
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._row = 0  # of the next frame, among those that are multiplied together
        self._waiting = np.zeros((0, self._sources.audio.n_bins), np.float32)

    def push(self, spectra: Any, amplitude: Any) -> Any:
        """Take the next frames; return masks; see `MaskStream`."""
        if self._is_on_device:
            frames = spectra if self._sources.exponent == 1 else spectra.sqrt()
            return self._masks(frames)
        frames = self._sources.audio.from_power(spectra)
        waiting = np.concatenate([self._waiting, frames]) if len(self._waiting) else frames
        whole = len(waiting) - len(waiting) % self._batch_size
        self._waiting = waiting[whole:]
        size = max(whole, 1) if self._takes_all else self._batch_size
        masks = [self._masks(waiting[first : first + size]) for first in range(0, whole, size)]
        if len(masks) == 1:
            return masks[0]
        nothing = np.zeros((len(self._sources.names), 0, waiting.shape[1]), np.float32)
        return np.concatenate([nothing, *masks], axis=1)

    def flush(self) -> Any:
        """Return the last masks, and reset."""
        if self._is_on_device:
            from ondes.nmf.backends.devices import torch

            return torch.zeros((len(self._sources.names), 0, self._sources.audio.n_bins))
        masks = self._masks(self._waiting)
        self.reset()
        return masks

    def _masks(self, frames: Any) -> Any:
        encoding = encode(frames, self._problem, self._compute)
        masks = masks_of(encoding, self._sources, self._row, self._compute.n_threads)
        self._row = (self._row + len(frames)) % ROWS_AT_ONCE
        return masks


class HostMasks:
    """Masks that only the host computes, for frames on a device.

    Parameters
    ----------
    masks : MaskStream
    compute : Compute
        Of PyTorch.
    """

    def __init__(self, masks: MaskStream, compute: Compute) -> None:
        self._masks, self._device, self.delay = masks, compute.device or "cpu", masks.delay

    @classmethod
    def where_needed(cls, masks: MaskStream, compute: Compute) -> MaskStream:
        """The masks as they are, unless frames are on a device."""
        return cls(masks, compute) if compute.backend == "torch" else masks

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._masks.reset()

    def push(self, spectra: Any, amplitude: Any) -> Any:
        """Take the next frames; return the masks that are ready."""
        return self._there(self._masks.push(spectra.cpu().numpy(), amplitude.cpu().numpy()))

    def flush(self) -> Any:
        """Return the last masks, and reset."""
        return self._there(self._masks.flush())

    def _there(self, masks: Array) -> Any:
        from ondes.nmf.backends.devices import torch

        return torch.tensor(masks, dtype=torch.float32, device=self._device)


@dataclass(frozen=True, eq=False)
class NoiseSubtraction:
    """Spectral subtraction, of a noise of which the mean spectrum is known.

    Attributes
    ----------
    names : tuple of two str
        The second is the noise.
    audio : AudioSettings
    noise : array of shape (n_bins,)
        The noise's mean magnitude.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(2))
    >>> model = NoiseSubtraction(("speech", "noise"), audio, np.array([1.0, 2.0]))
    >>> model.masks(Compute()).push(np.array([[1.0, 0.04]]), np.array([10.0]))
    array([[[0.85, 0.  ]],
    <BLANKLINE>
           [[0.15, 1.  ]]])
    """

    names: tuple[str, ...]
    audio: AudioSettings
    noise: NDArray[np.floating]

    def masks(self, compute: Compute) -> MaskStream:
        """Begin a stream of masks; see `Model`."""
        return HostMasks.where_needed(_SubtractionMasks(self.noise), compute)

    def variances(self, n_bins: int, compute: Compute) -> SourceVariances:
        """Refused: a mean spectrum says nothing of places."""
        raise ValueError("spatial needs dictionaries or a trained separator.")


class _SubtractionMasks:
    delay = 0

    def __init__(self, noise: NDArray[np.floating]) -> None:
        self._noise = OVERSUBTRACTION * noise

    def reset(self) -> None:
        """Forget everything pushed so far: nothing, every frame stands for itself."""

    def push(self, spectra: Real, amplitude: Real) -> Real:
        """Take the next frames and return their masks; see `MaskStream`."""
        magnitude = np.sqrt(spectra) * amplitude[:, None]
        is_louder = magnitude > self._noise
        share = np.divide(self._noise, magnitude, out=np.ones_like(magnitude), where=is_louder)
        return np.stack([1 - share, share])

    def flush(self) -> Real:
        """Return the last masks: none are left."""
        return np.zeros((2, 0, len(self._noise)), np.float32)
