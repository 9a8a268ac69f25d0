"""The trained separator at work: unfolded steps, temporal exponents and a decoder, in NumPy.

Each frame of magnitudes v, divided by its mean, is encoded by a fixed number of multiplicative
Kullback-Leibler steps, the last of them with dictionaries of their own,

    h ← h · ((v / (h W)) Wᵀ) / (Σ w + λ),

then every activation is weighed against its own means over some frames,

    h ← h · Π_c (mean_c(h) / h)^e_c,

and each source's magnitudes are decoded from its activations in the frames around,

    s(t) = Σ_τ h(t + τ) D_τ,    mask = s^p / Σ s^p.

Hershey, Le Roux and Weninger (2014); Wisdom et al. (2017). It is trained by
`ondes.learning.separator_training`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ondes.cores import each, one_blas_thread
from ondes.rebatch import slices

__all__ = ["UnfoldedMasks", "UnfoldedWeights"]

Magnitudes = NDArray[np.float32]

BLOCK = 32  # frames per product: streaming and one-shot cut alike, so they agree bit for bit
TINY = 1e-6  # added to every model spectrum
LONGEST_CENTRED = 9  # means over more frames than this look at the past alone
LARGEST_WEIGHT = 1e12  # training stays far below; products of larger ones could leave float32
LEAST_FLOOR = 1e-30  # float32 has nothing much smaller
LARGEST_CHANGE = 12.0  # of an activation by the temporal exponents, in nepers


@dataclass(frozen=True, eq=False)
class UnfoldedWeights:
    """What training finds.

    Attributes
    ----------
    dictionaries : array of shape (n_dictionaries, n_sources * n_components, n_bins)
        The first is used for all steps but the last ones, which have one each.
    denominators : array of shape (n_dictionaries, n_sources * n_components)
        Σ w + λ of each row.
    decoder : array of shape (n_sources, n_decoder, n_components, n_bins)
        An odd number of frames, the present one in the middle.
    exponents : array of shape (n_contexts, n_sources * n_components)
    contexts : tuple of int
        Frames of the temporal means, ascending.
    n_steps : int
    mask_exponent : float
    floor : float
        Of the temporal means, relative to the level of the longest context.
    """

    dictionaries: Magnitudes
    denominators: Magnitudes
    decoder: Magnitudes
    exponents: Magnitudes
    contexts: tuple[int, ...]
    n_steps: int
    mask_exponent: float
    floor: float

    def __post_init__(self) -> None:
        arrays = [getattr(self, field.name) for field in fields(self)][:4]
        if not all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in arrays):
            raise ValueError("its weights are not float32 arrays")
        if not all((np.abs(array) <= LARGEST_WEIGHT).all() for array in arrays):  # not so for NaN
            raise ValueError("its weights are not finite, or much too large")
        if any((array < 0).any() for array in (self.dictionaries, self.decoder)):
            raise ValueError("its weights are negative")
        if not (self.denominators >= 1 / LARGEST_WEIGHT).all():
            raise ValueError("its denominators are not positive, or much too small")
        n_sources, n_decoder, n_components, n_bins = self.decoder.shape
        n_rows, n_dictionaries = n_sources * n_components, len(self.dictionaries)
        shapes = {
            "dictionaries": (self.dictionaries, (n_dictionaries, n_rows, n_bins)),
            "denominators": (self.denominators, (n_dictionaries, n_rows)),
            "exponents": (self.exponents, (len(self.contexts), n_rows)),
        }
        for name, (array, shape) in shapes.items():
            if array.shape != shape:
                raise ValueError(f"its {name} have shape {array.shape} in place of {shape}")
        counts, ratios = (self.n_steps, *self.contexts), (self.mask_exponent, self.floor)
        if not all(type(n) is int and 1 <= n <= 1000 for n in counts) or not self.contexts:
            raise ValueError("its steps or temporal contexts are not numbers of frames")
        if n_decoder % 2 == 0 or not n_rows or not 1 <= n_dictionaries <= self.n_steps:
            raise ValueError("its steps and dictionaries do not fit together")
        if not all(isinstance(each, float) for each in ratios):
            raise ValueError("its mask exponent or floor is not a number")
        if not 0 < self.mask_exponent < 100 or not LEAST_FLOOR <= self.floor < 1:
            raise ValueError("its mask exponent or floor is out of range")

    @cached_property
    def columns(self) -> Magnitudes:
        """The dictionaries transposed, made once for all recordings."""
        return np.ascontiguousarray(self.dictionaries.transpose(0, 2, 1))

    @property
    def n_sources(self) -> int:
        """The number of sources."""
        return len(self.decoder)

    @property
    def n_bins(self) -> int:
        """The number of bins."""
        return int(self.decoder.shape[-1])


class UnfoldedMasks:
    """Masks of a stream of magnitude frames; they come some frames later than their frames.

    What comes out does not depend on how the frames are cut, bit for bit.

    Parameters
    ----------
    weights : UnfoldedWeights
    n_threads : int
        Blocks of frames computed at a time, each with one thread of the BLAS. The masks do not
        depend on it.

    Attributes
    ----------
    delay : int
        Frames that the masks are late by, at most.
    """

    def __init__(self, weights: UnfoldedWeights, n_threads: int = 1) -> None:
        self._weights, self._n_threads = weights, n_threads
        self._rows, self._columns = np.ascontiguousarray(weights.dictionaries), weights.columns
        self._decoders = [each.reshape(-1, weights.n_bins) for each in weights.decoder]
        n_rows = weights.dictionaries.shape[1]
        # The first step starts from equal activations, whose model is the same for every frame.
        even = np.full((1, n_rows), 10 / n_rows, np.float32)
        self._first_inverse = 1 / (even @ self._rows[0] + np.float32(TINY))
        self._first_scale = even / weights.denominators[0]
        self._ahead = LONGEST_CENTRED // 2
        self._past = max(*weights.contexts, LONGEST_CENTRED) - 1
        self._reach = weights.decoder.shape[1] // 2
        self.delay = self._ahead + self._reach + BLOCK - 1
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        n_rows, n_bins = self._weights.dictionaries.shape[1:]
        self._waiting = np.zeros((0, n_bins), np.float32)
        self._encoded = _Window(n_rows)
        self._levels = _Window(1)
        self._weighed = _Window(n_rows)
        self._n_out = 0

    def push(self, magnitudes: Magnitudes) -> Magnitudes:
        """Take frames, (n, n_bins); return the masks that are ready, (n_sources, m, n_bins)."""
        self._waiting = np.concatenate([self._waiting, magnitudes])
        n_whole = len(self._waiting) - len(self._waiting) % BLOCK
        blocks = [self._waiting[rows] for rows in slices(n_whole, BLOCK)]
        self._waiting = self._waiting[n_whole:].copy()
        return self._masks(blocks, [BLOCK] * len(blocks), is_end=False)

    def flush(self) -> Magnitudes:
        """Return the last masks, and start anew."""
        n_left = len(self._waiting)
        padding = np.zeros((BLOCK - n_left, self._weights.n_bins), np.float32)
        block = np.concatenate([self._waiting, padding])
        masks = self._masks([block] if n_left else [], [n_left], is_end=True)
        self.reset()
        return masks

    def _masks(self, blocks: list[Magnitudes], n_frames: list[int], *, is_end: bool) -> Magnitudes:
        """Masks that these blocks complete; of each, the first `n_frames` frames count."""
        around: list[tuple[Magnitudes, int]] = []
        with one_blas_thread():
            encoded = each(self._encode, blocks, self._n_threads)
            for (found, level), n in zip(encoded, n_frames, strict=False):
                self._encoded.append(found[:n])
                self._levels.append(level[:n])
                around += self._advance(is_end=False)
            if is_end:
                around += self._advance(is_end=True)
            nothing = np.zeros((self._weights.n_sources, 0, self._weights.n_bins), np.float32)
            masks = each(self._decode, around, self._n_threads)
            return np.concatenate([nothing, *masks], axis=1)

    def _encode(self, block: Magnitudes) -> tuple[Magnitudes, Magnitudes]:
        """Activations of a block of BLOCK frames, and their levels."""
        weights = self._weights
        level = block.mean(axis=1, keepdims=True, dtype=np.float32)
        target = block / np.maximum(level, np.float32(1e-30))
        found = ((target * self._first_inverse) @ self._columns[0]) * self._first_scale
        ratio = np.empty_like(target)
        n_own = len(self._rows) - 1
        for step in range(1, weights.n_steps):
            own = max(0, step - (weights.n_steps - n_own) + 1)
            np.matmul(found, self._rows[own], out=ratio)
            ratio += np.float32(TINY)
            np.divide(target, ratio, out=ratio)
            found *= ratio @ self._columns[own]
            found /= weights.denominators[own]
        return found * level, level

    def _advance(self, is_end: bool) -> list[tuple[Magnitudes, int]]:
        """Weigh whatever has all the neighbours it needs, and return what can be decoded.

        Called after every block, so the rows of each product are the same however frames are cut.
        """
        first, last = self._weighed.end, self._encoded.end - (0 if is_end else self._ahead)
        if last > first:
            self._weighed.append(self._weigh(first, last))
            for window in (self._encoded, self._levels):
                window.forget(last - self._past)
        first, last = self._n_out, self._weighed.end - (0 if is_end else self._reach)
        around = [
            (self._around(first + rows.start, first + rows.stop), rows.stop - rows.start)
            for rows in slices(max(0, last - first), BLOCK)
        ]
        self._n_out = max(first, last)
        self._weighed.forget(self._n_out - self._reach)
        return around

    def _weigh(self, first: int, last: int) -> Magnitudes:
        weights, floor = self._weights, np.float32(self._weights.floor)
        here = self._encoded[first:last]
        longest = weights.contexts[-1]
        level = self._levels.means(first, last, longest)
        # After a silence longer than that, the frames ahead alone have a level.
        around = self._levels.means(first, last, LONGEST_CENTRED) / np.float32(longest)
        level = np.maximum(np.maximum(level, around), np.float32(1e-30))
        now = np.log(here / level + floor)
        change = np.zeros_like(here)
        for exponent, n_frames in zip(weights.exponents, weights.contexts, strict=True):
            mean = self._encoded.means(first, last, n_frames)
            change += exponent * (np.log(mean / level + floor) - now)
        weighed: Magnitudes = here * np.exp(np.clip(change, -LARGEST_CHANGE, LARGEST_CHANGE))
        return weighed

    def _around(self, first: int, last: int) -> Magnitudes:
        """The activations in the frames around each, (BLOCK, n_decoder, n_sources, K)."""
        n_sources, n_decoder, n_components, _ = self._weights.decoder.shape
        around = np.zeros((BLOCK, n_decoder, n_sources, n_components), np.float32)
        for offset in range(n_decoder):
            shift = offset - self._reach
            begin, end = max(first + shift, 0), min(last + shift, self._weighed.end)
            if end > begin:
                rows = self._weighed[begin:end].reshape(-1, n_sources, n_components)
                around[begin - first - shift : end - first - shift, offset] = rows
        return around

    def _decode(self, given: tuple[Magnitudes, int]) -> Magnitudes:
        """The masks of the first frames of a block, so many as are given beside it."""
        (around, n_frames), weights = given, self._weights
        n_sources, _, _, n_bins = weights.decoder.shape
        masks = np.empty((n_sources, BLOCK, n_bins), np.float32)
        for source, decoder in enumerate(self._decoders):
            own = np.ascontiguousarray(around[:, :, source]).reshape(BLOCK, -1)
            np.matmul(own, decoder, out=masks[source])
        masks += np.float32(1e-30)
        masks /= masks.max(axis=0)
        np.power(masks, np.float32(weights.mask_exponent), out=masks)
        masks /= masks.sum(axis=0)
        return masks[:, :n_frames]


class _Window:
    """The last rows of a stream, addressed by their number from its beginning."""

    def __init__(self, width: int) -> None:
        self._rows = np.zeros((0, width), np.float32)
        self._first = 0

    @property
    def end(self) -> int:
        return self._first + len(self._rows)

    def __getitem__(self, rows: slice) -> Magnitudes:
        return self._rows[rows.start - self._first : rows.stop - self._first]

    def append(self, rows: Magnitudes) -> None:
        self._rows = np.concatenate([self._rows, rows])

    def forget(self, before: int) -> None:
        n_dropped = max(0, before - self._first)
        self._rows, self._first = self._rows[n_dropped:], self._first + n_dropped

    def means(self, first: int, last: int, n_frames: int) -> Magnitudes:
        """Of each row, the mean over `n_frames` around it; over those that exist, at the ends."""
        before = n_frames // 2 if n_frames <= LONGEST_CENTRED else n_frames - 1
        after = n_frames - 1 - before
        total = np.zeros((last - first, self._rows.shape[1]), np.float32)
        for shift in range(-before, after + 1):
            begin, end = max(first + shift, 0), min(last + shift, self.end)
            if end > begin:
                total[begin - first - shift : end - first - shift] += self[begin:end]
        at = np.arange(first, last)
        count = np.minimum(at + after, self.end - 1) - np.maximum(at - before, 0) + 1
        total /= count[:, None].astype(np.float32)
        return total
