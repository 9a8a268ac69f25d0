"""Masks of a stream of frames, from dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.encoding import Compute
from ondes.nmf.penalties import ActivationPenalty
from ondes.rebatch import slices
from ondes.separation.adaptation import AdaptedSources, FreeComponents
from ondes.separation.masks import ROWS_AT_ONCE, source_masks
from ondes.separation.sources import Sources

__all__ = ["DictionaryMasks", "learner_of"]

Spectra = NDArray[np.float32]

BATCH_SIZE = ROWS_AT_ONCE
BATCH_SIZE_ADAPTING = 256  # more frames decide better how a dictionary moves


class DictionaryMasks:
    """Masks of one batch of frames after the other; see `Separator` for the parameters.

    Attributes
    ----------
    names : tuple of str
        Names of the sources, in the order of the masks.
    sr : int
    stft : Stft
    """

    def __init__(
        self,
        sources: Sources,
        *,
        residual: str | None = None,
        adapt: Sequence[str] = (),
        n_free: int = 0,
        rest: str,
        penalty: ActivationPenalty | None = None,
        batch_size: int | None = None,
        random_state: int = 0,
        compute: Compute,
    ) -> None:
        if batch_size is None:
            batch_size = BATCH_SIZE_ADAPTING if adapt or n_free else BATCH_SIZE
        if batch_size < 1 or n_free < 0:
            raise ValueError(
                f"batch_size={batch_size} must be 1 or more, and n_free={n_free} 0 or more."
            )
        self.sr, self.stft = sources.sr, sources.stft
        self._sources, self._residual, self._penalty = sources, residual, penalty
        self._batch_size, self._compute = batch_size, compute
        added = [*([rest] if n_free else []), *([] if residual is None else [residual])]
        self.names = (*sources.names, *added)
        self._learner = learner_of(
            sources,
            adapt=adapt,
            n_free=n_free,
            rest=rest,
            penalty=penalty,
            random_state=random_state,
            compute=compute,
        )
        backend = compute.backend_for(sources.problem(penalty=penalty))
        self._is_frame_by_frame = (
            self._learner is None
            and backend.NAME == "native"
            and sources.sparsity_weights is None
            and batch_size % ROWS_AT_ONCE == 0
        )
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what was learned from it."""
        self._spectra = np.zeros((0, self._sources.stft.n_bins), np.float32)
        self._amplitude = np.zeros(0, np.float32)
        if self._learner is not None:
            self._learner.reset()

    def push(self, spectra: Spectra, amplitude: Spectra) -> Spectra:
        """Take the next frames; return the masks of whole batches, so that the cut does not matter.

        Parameters
        ----------
        spectra : array of shape (n, n_bins)
            Power, relative to the square of each frame's amplitude.
        amplitude : array of shape (n,)

        Returns
        -------
        array of shape (n_sources, m, n_bins)
        """
        self._spectra = np.concatenate([self._spectra, self._sources.audio.from_power(spectra)])
        self._amplitude = np.concatenate([self._amplitude, amplitude])
        whole = len(self._spectra) - len(self._spectra) % self._batch_size
        # The kernel's answer for a frame depends on that frame alone, and many at once are faster.
        size = max(whole, 1) if self._is_frame_by_frame else self._batch_size
        masks = [self._masks(rows) for rows in slices(whole, size)]
        self._spectra, self._amplitude = self._spectra[whole:], self._amplitude[whole:]
        return self._joined(masks)

    def flush(self) -> Spectra:
        """Return the last masks, and reset."""
        masks = self._joined([self._masks(slice(None))])
        self.reset()
        return masks

    def _masks(self, rows: slice) -> Spectra:
        spectra, sources = self._spectra[rows], self._sources
        if self._learner is not None:
            sources = self._learner.learn(spectra, self._amplitude[rows])
        return source_masks(
            spectra,
            sources,
            residual=self._residual is not None,
            penalty=self._penalty,
            compute=self._compute,
        )

    def _joined(self, masks: list[Spectra]) -> Spectra:
        if len(masks) == 1:
            return masks[0]
        nothing = np.zeros((len(self.names), 0, self._sources.stft.n_bins), np.float32)
        return np.concatenate([nothing, *masks], axis=1)


def learner_of(
    sources: Sources,
    *,
    adapt: Sequence[str],
    n_free: int,
    rest: str,
    penalty: ActivationPenalty | None = None,
    random_state: int,
    compute: Compute,
) -> AdaptedSources | FreeComponents | None:
    """What learns from the mixture while it is separated, if anything; see `Separator`."""
    if adapt and n_free:
        raise ValueError("adapt and n_free cannot be combined; give one of them.")
    if adapt:
        return AdaptedSources(sources, adapt, compute)
    if n_free:
        return FreeComponents(
            sources, n_free, rest, compute, penalty=penalty, random_state=random_state
        )
    return None
