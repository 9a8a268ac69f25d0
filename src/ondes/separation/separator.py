"""A mixture in, its sources out: they sum to the mixture, sample by sample.

Every frame of the mixture is explained by all dictionaries together, and each bin is parted as the
model says. Blocks of any size go in; what comes out does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF
from ondes.nmf.penalties import ActivationPenalty
from ondes.separation.adaptation import FreeComponents
from ondes.separation.masks import REST, Sources, source_masks
from ondes.signal.audio import AudioBlocks, AudioError, RawFormat, open_blocks
from ondes.signal.stft import Frames, power

__all__ = ["Separator", "Sources", "separate", "separate_file"]

Samples = NDArray[np.float32]
Models = Sources | OnlineISNMF | Mapping[str, OnlineISNMF]

LOUDEST_SAMPLE = 1e30  # beyond, the Fourier sums of float32 may overflow


class Separator:
    """Separate a stream at constant memory: samples in, samples of each source out.

    Masks come from the channels' mean power and are the same for each channel, so that a source
    keeps its place between the loudspeakers.

    Parameters
    ----------
    models : mapping of str to OnlineISNMF, or Sources, or one OnlineISNMF with groups
        The sources' dictionaries.
    residual : str, optional
        Name of a source of its own for what is ten times louder than the dictionaries explain.
        By default the sources share all in proportion.
    n_free : int
        Components learned from the mixture itself while it is separated, beside the given ones,
        which stay. They are one more source.
    rest : str
        The name of that source.
    penalty : ActivationPenalty, optional
        On the activations, sources as groups: `GroupLog` lets fewer sources sound at a time.
    batch_size : int
        Frames dealt with at a time, also between two updates of the free components. The delay
        of the output is so many frames.
    random_state : int
        Of the free components.
    backend, n_jobs
        As of `OnlineISNMF`.

    Attributes
    ----------
    names : tuple of str
        Of the sources, in the order of the output.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), 8000, Stft(4))
    >>> separator = Separator(sources, backend="reference")
    >>> first = separator.push(np.ones(1000))
    >>> last = separator.flush()
    >>> total = sum(np.concatenate([first[name], last[name]]) for name in separator.names)
    >>> bool(np.allclose(total, 1, atol=1e-5))
    True
    """

    def __init__(
        self,
        models: Models,
        *,
        residual: str | None = None,
        n_free: int = 0,
        rest: str = REST,
        penalty: ActivationPenalty | None = None,
        batch_size: int = 64,
        random_state: int = 0,
        backend: str = "auto",
        n_jobs: int = 1,
    ) -> None:
        if batch_size < 1 or n_free < 0:
            raise ValueError(
                f"batch_size={batch_size} must be 1 or more, and n_free={n_free} 0 or more."
            )
        self.sources = Sources.of(models)
        added = [*([rest] if n_free else []), *([] if residual is None else [residual])]
        self.names = (*self.sources.names, *added)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"Two sources would be called alike among {self.names}; rename one.")
        self.sources.stft.check_invertible()
        self._residual, self._penalty, self._batch_size = residual, penalty, batch_size
        self._solving: dict[str, Any] = {"backend": backend, "n_jobs": n_jobs}
        self._free = None
        if n_free:
            settings = {"batch_size": batch_size, "penalty": penalty, "random_state": random_state}
            self._free = FreeComponents(self.sources, n_free, rest, **settings, **self._solving)
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what free components have learned."""
        self._shape: tuple[int, ...] | None = None
        self._mixture = np.zeros(0, np.float32)  # what was not shared out among the sources yet
        if self._free is not None:
            self._free.reset()

    def push(self, samples: ArrayLike) -> dict[str, Samples]:
        """Take the next samples; return those of each source that are ready.

        Parameters
        ----------
        samples : array of shape (n,) or (n, n_channels)
            The same channels in every push.

        Returns
        -------
        dict of str to float32 array of shape (m,) or (m, n_channels)
        """
        block = _checked(samples)
        if self._shape is None:
            self._start(block.shape[1:])
        if block.shape[1:] != self._shape:
            raise ValueError(
                f"A block of shape {block.shape} came after blocks of (n, *{self._shape}); "
                "keep the channels, or flush first."
            )
        length = self._batch_size * self.sources.stft.hop_length
        parts = []
        for first in range(0, len(block), length):
            piece = block[first : first + length]
            self._mixture = np.concatenate([self._mixture, piece])
            parts += self._advance(self._forward.push(piece))
        return self._joined(parts)

    def flush(self) -> dict[str, Samples]:
        """Return the last samples of each source, and start anew."""
        if self._shape is None:
            self._start(())
        n_samples = self._forward.n_samples
        parts = self._advance(self._forward.flush())
        parts.append(self._separated(self._waiting))
        parts.append(self._with_last([inverse.flush(n_samples) for inverse in self._inverses]))
        joined = self._joined(parts)
        self.reset()
        return joined

    def _start(self, shape: tuple[int, ...]) -> None:
        stft = self.sources.stft
        n_channels = shape[0] if shape else None
        self._shape = shape
        self._forward = stft.stream(n_channels)
        self._inverses = [stft.inverse_stream(n_channels) for _ in self.names[1:]]
        self._mixture = np.zeros((0, *shape), np.float32)
        self._waiting = np.zeros((0, *shape, stft.n_bins), np.complex64)

    def _advance(self, frames: Frames) -> list[list[Samples]]:
        """Deal with whole batches only, so that the cut into blocks leaves no trace."""
        waiting = np.concatenate([self._waiting, frames])
        whole = len(waiting) - len(waiting) % self._batch_size
        self._waiting = waiting[whole:].copy()
        return [
            self._separated(waiting[first : first + self._batch_size])
            for first in range(0, whole, self._batch_size)
        ]

    def _separated(self, frames: Frames) -> list[Samples]:
        """The samples of each source that these frames complete."""
        masks = self._masks(frames)
        if frames.ndim == 3:
            masks = masks[:, :, None]
        pairs = zip(self._inverses, masks[:-1], strict=True)
        return self._with_last([inverse.push(mask * frames) for inverse, mask in pairs])

    def _with_last(self, others: list[Samples]) -> list[Samples]:
        """All sources: the last is what the others leave of the mixture, rounding and all."""
        n = len(others[0]) if others else len(self._mixture)
        last = self._mixture[:n].copy()
        self._mixture = self._mixture[n:].copy()
        for other in others:
            last -= other
        return [*others, last]

    def _masks(self, frames: Frames) -> Array:
        """Masks of shape (n_sources, n_frames, n_bins) that sum to one."""
        axes = tuple(range(1, frames.ndim))
        peak = np.maximum(np.abs(frames.real), np.abs(frames.imag)).max(axis=axes, initial=0)
        # Masks do not see volume, but squares of float32 overflow and vanish.
        gain = 1 / np.maximum(peak, 1 / LOUDEST_SAMPLE)
        spectra = power(frames * gain.reshape(-1, *(1 for _ in axes)))
        if spectra.ndim == 3:
            spectra = spectra.mean(axis=1)
        sources = self.sources if self._free is None else self._free.learn(spectra, peak)
        own = self._residual is not None
        return source_masks(spectra, sources, residual=own, penalty=self._penalty, **self._solving)

    def _joined(self, parts: list[list[Samples]]) -> dict[str, Samples]:
        nothing = np.zeros((0, *(self._shape or ())), np.float32)
        return {
            name: np.concatenate([nothing, *(part[source] for part in parts)])
            for source, name in enumerate(self.names)
        }


def separate(mixture: ArrayLike, models: Models, *, sr: int, **options: Any) -> dict[str, Samples]:
    """Separate a mixture in memory.

    Parameters
    ----------
    mixture : array of shape (n,) or (n, n_channels)
    models : mapping of str to OnlineISNMF, or Sources, or one OnlineISNMF with groups
    sr : int
        Samples a second of the mixture; those of the models.
    **options
        Of `Separator`.

    Returns
    -------
    dict of str to float32 array of the mixture's shape
        They sum to the mixture.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), 8000, Stft(4))
    >>> stems = separate(np.ones((10, 2)), sources, sr=8000, backend="reference")
    >>> stems["low"].shape
    (10, 2)
    """
    separator = Separator(models, **options)
    if sr != separator.sources.sr:
        raise ValueError(
            f"The mixture has {sr} samples a second and the dictionaries know "
            f"{separator.sources.sr}; resample the mixture."
        )
    first, last = separator.push(mixture), separator.flush()
    return {name: np.concatenate([first[name], last[name]]) for name in separator.names}


def separate_file(
    path: str | Path | BinaryIO,
    models: Models,
    *,
    block_size: int = 65536,
    raw: RawFormat | None = None,
    **options: Any,
) -> Iterator[dict[str, Samples]]:
    """Separate a recording of any length at constant memory, resampled to the models' rate.

    Parameters
    ----------
    path : str, Path or binary stream
        As of `ondes.signal.audio.open_blocks`.
    models : mapping of str to OnlineISNMF, or Sources, or one OnlineISNMF with groups
    block_size : int
        Samples read at a time. The result does not depend on it.
    raw : RawFormat, optional
        What the samples are where no header says.
    **options
        Of `Separator`.

    Yields
    ------
    dict of str to float32 array of shape (m, n_channels)
        The next samples of each source.

    Raises
    ------
    AudioError
        Here where the recording cannot be opened; after all that could be read and separated
        where it is damaged further on.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from ondes.signal.audio import RawFormat
    >>> from ondes.signal.stft import Stft
    >>> sources = Sources(np.full((2, 3), 1 / 3), np.arange(2), ("a", "b"), 8000, Stft(4))
    >>> blocks = separate_file(io.BytesIO(bytes(2000)), sources, raw=RawFormat(8000))
    >>> sum(len(block["a"]) for block in blocks)
    1000
    """
    separator = Separator(models, **options)
    sr = separator.sources.sr
    return _drained(separator, open_blocks(path, sr=sr, mono=False, block_size=block_size, raw=raw))


def _drained(separator: Separator, blocks: AudioBlocks) -> Iterator[dict[str, Samples]]:
    damage = None
    with blocks:
        try:
            for block in blocks:
                yield separator.push(block)
        except AudioError as error:
            damage = error
    yield separator.flush()
    if damage is not None:
        raise damage


def _checked(samples: ArrayLike) -> Samples:
    block = np.asarray(samples)
    if block.ndim not in (1, 2) or block.shape[-1] == 0 < block.ndim - 1:
        raise ValueError(
            f"Samples of shape {block.shape} must be of shape (n,) or (n, n_channels)."
        )
    good = np.abs(block) < LOUDEST_SAMPLE  # not so for NaN
    if not good.all():
        row = int(np.argmin(good.reshape(len(block), -1).all(axis=1)))
        raise ValueError(
            f"Sample {row} of the block is NaN, infinite or beyond {LOUDEST_SAMPLE:g}; repair it "
            "before separating."
        )
    return block.astype(np.float32)
