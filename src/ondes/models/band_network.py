"""A recurrent network over time and bands at work, in NumPy: the separators on the shelf.

Magnitudes of some seconds, relative to their level, become a vector x of each band and frame.
Sweeps add to it what lies before and after, along time and along the bands in turn,

    z, c, g = x / |x| · A + b,     h(t) = z h(t − 1) + (1 − z) c,     x ← x + (h · max(g, 0)) B,

with z between 0 and 1, half of the numbers from the first to the last and half from the last to the
first. Then each band's vector gives a mask for each source and bin, which sum to one.

On live sound every frame comes out at once, from the past alone: along time, half of the numbers
remember what came before, and the other half, which hear what comes after in a recording, hear one
frame. Power is relative to its running mean. Frames of live sound come more often than the 30 ms
that the network was trained with: several streams take turns, each with a memory of its own.

It is made on a GPU by packaging/shelf.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ondes.cores import each, one_blas_thread
from ondes.nmf.backends import native
from ondes.rebatch import slices

__all__ = ["FRAME_SECONDS", "BandMasks", "BandWeights", "LiveBandMasks"]

Real = NDArray[np.float32]
Half = NDArray[np.float16]

PART = 200  # frames whose masks are found at a time,
AROUND = 24  # with so many heard before and after
FRAMES_AT_ONCE = 64  # whose numbers stay in the cache of a core
FLOOR = 1e-10  # of power relative to its mean
SMALL = 1e-5  # of the mean square of a vector
LARGEST_WEIGHT = 1e3
MOST_NUMBERS = 2**22  # of all weights
FRAME_SECONDS = 0.03  # from one frame to the next, in training
LEVEL_HALF_LIFE = 100  # of these


@dataclass(frozen=True, eq=False)
class BandWeights:
    """What training finds; groups of bands with as many bins have arrays of their own.

    Attributes
    ----------
    embedding : tuple of float16 arrays of shape (n_bands, n_bins, n_channels)
    place : float16 array of shape (n_all_bands, n_channels)
    inwards : float16 array of shape (n_sweeps, n_channels, 6 * n_states)
    bias : float16 array of shape (n_sweeps, 6 * n_states)
    outwards : float16 array of shape (n_sweeps, 2 * n_states, n_channels)
    hidden, hidden_bias : tuple of float16 arrays of shape (n_bands, n_channels, n_hidden)
        The bias has shape (n_bands, 1, n_hidden).
    mask, mask_bias : tuple of float16 arrays of shape (n_bands, n_hidden, n_sources * n_bins)
        The bias has shape (n_bands, 1, n_sources * n_bins).
    """

    embedding: tuple[Half, ...]
    place: Half
    inwards: Half
    bias: Half
    outwards: Half
    hidden: tuple[Half, ...]
    hidden_bias: tuple[Half, ...]
    mask: tuple[Half, ...]
    mask_bias: tuple[Half, ...]

    def __post_init__(self) -> None:
        groups = (self.embedding, self.hidden, self.hidden_bias, self.mask, self.mask_bias)
        if not all(type(group) is tuple and group for group in groups):
            raise ValueError("its bands are not groups of arrays")
        arrays = [self.place, self.inwards, self.bias, self.outwards, *sum(groups, ())]
        if not all(isinstance(each, np.ndarray) and each.dtype == np.float16 for each in arrays):
            raise ValueError("its weights are not float16 arrays")
        if sum(each.size for each in arrays) > MOST_NUMBERS:
            raise ValueError(f"it has more than {MOST_NUMBERS} weights")
        if not all((np.abs(each) <= LARGEST_WEIGHT).all() for each in arrays):  # not so for NaN
            raise ValueError("its weights are not finite, or much too large")
        n_bands, n_channels = self.place.shape
        n_sweeps, _, n_states = self.inwards.shape
        n_hidden, n_sources = self.hidden[0].shape[-1], self.n_sources
        if n_states % 6 or n_states == 0 or n_sources < 1:
            raise ValueError("its sweeps or its masks have no valid shape")
        shapes = {
            "sweeps": [
                (self.inwards, (n_sweeps, n_channels, n_states)),
                (self.bias, (n_sweeps, n_states)),
                (self.outwards, (n_sweeps, n_states // 3, n_channels)),
            ]
        }
        for number, rows in enumerate(zip(*groups, strict=True)):
            n, n_bins, _ = rows[0].shape
            n_out = n_sources * n_bins
            expected = [
                *[(n, n_bins, n_channels), (n, n_channels, n_hidden), (n, 1, n_hidden)],
                *[(n, n_hidden, n_out), (n, 1, n_out)],
            ]
            shapes[f"bands of group {number + 1}"] = list(zip(rows, expected, strict=True))
        for name, pairs in shapes.items():
            if any(array.shape != shape or 0 in shape for array, shape in pairs):
                raise ValueError(f"the shapes of its {name} do not fit together")
        if sum(map(len, self.embedding)) != n_bands:
            raise ValueError("the number of its bands is not that of their places")

    @property
    def n_sources(self) -> int:
        """The number of sources."""
        return int(self.mask[0].shape[-1] // self.embedding[0].shape[1])

    @property
    def n_bins(self) -> int:
        """The number of bins."""
        return sum(each.shape[0] * each.shape[1] for each in self.embedding)

    @cached_property
    def single(self) -> dict[str, tuple[Real, ...]]:
        """The weights in single precision, made once for all recordings."""
        return {
            name: tuple(each.astype(np.float32) for each in getattr(self, name))
            for name in self.__dataclass_fields__
        }


class BandMasks:
    """Masks of a stream of magnitude frames, part after part of some seconds.

    What comes out does not depend on how the frames are cut, bit for bit: parts begin at multiples
    of `PART`, and each is computed with the frames around it and nothing else.

    Parameters
    ----------
    weights : BandWeights
    n_threads : int
        Parts computed at a time, each with one thread of the BLAS.

    Attributes
    ----------
    delay : int
        Frames that the masks are late by, at most.
    """

    def __init__(self, weights: BandWeights, n_threads: int = 1) -> None:
        self._weights, self._n_threads = weights, n_threads
        self.delay = n_threads * PART + AROUND - 1
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._frames = np.zeros((0, self._weights.n_bins), np.float32)
        self._first = 0  # number of the first of these
        self._n_out = 0

    def push(self, magnitudes: Real) -> Real:
        """Take frames, (n, n_bins); return the masks that are ready, (n_sources, m, n_bins)."""
        self._frames = np.concatenate([self._frames, magnitudes])
        n_ready = (self._first + len(self._frames) - self._n_out - AROUND) // PART
        return self._masks(n_ready - n_ready % self._n_threads if n_ready > 0 else 0, 0)

    def flush(self) -> Real:
        """Return the last masks, and start anew."""
        n_left = self._first + len(self._frames) - self._n_out
        masks = self._masks(n_left // PART, n_left % PART)
        self.reset()
        return masks

    @one_blas_thread()
    def _masks(self, n_parts: int, n_last: int) -> Real:
        """Masks of the next whole parts, and of the last frames."""
        parts = []
        for n_frames in [PART] * n_parts + [n_last] * (n_last > 0):
            begin = max(self._n_out - AROUND, 0)
            rows = slice(begin - self._first, self._n_out + n_frames + AROUND - self._first)
            parts.append((self._frames[rows], slice(self._n_out - begin, None), n_frames))
            self._n_out += n_frames
        found = each(self._part, parts, self._n_threads)
        nothing = np.zeros((self._weights.n_sources, 0, self._weights.n_bins), np.float32)
        masks = np.concatenate([nothing, *found], axis=1)
        first = max(self._n_out - AROUND, 0)
        self._frames, self._first = self._frames[first - self._first :].copy(), first
        return masks

    def _part(self, given: tuple[Real, slice, int]) -> Real:
        frames, rows, n_frames = given
        single = self._weights.single
        x = embedded(_levelled(frames), single)
        sweeps = zip(single["inwards"], single["bias"], single["outwards"], strict=True)
        for number, (inwards, bias, outwards) in enumerate(sweeps):
            _sweep(x, inwards, bias, outwards, along_bands=number % 2 == 1)
        return decoded(x[rows][:n_frames], single, self._weights.n_sources)


def _levelled(frames: Real) -> Real:
    """Power relative to its mean."""
    power = frames / np.maximum(frames.max(), np.float32(1e-30))  # squares may overflow
    np.square(power, out=power)
    power /= np.maximum(power.mean(), np.float32(1e-30))
    levelled: Real = power
    return levelled


def embedded(power: Real, single: dict[str, tuple[Real, ...]]) -> Real:
    """A vector for each frame and band, (n_frames, n_bands, n_channels), from relative power."""
    power += np.float32(FLOOR)
    for _ in range(3):
        np.sqrt(power, out=power)
    parts, first = [], 0
    for weights in single["embedding"]:
        n, width, _ = weights.shape
        bands = power[:, first : first + n * width].reshape(-1, n, width).transpose(1, 0, 2)
        parts.append((bands @ weights).transpose(1, 0, 2))
        first += n * width
    return np.concatenate(parts, axis=1) + np.stack(single["place"])


def _sweep(x: Real, inwards: Real, bias: Real, outwards: Real, *, along_bands: bool) -> None:
    """Add to the vectors what lies before and after along time or along the bands."""
    n_frames, n_bands, n_channels = x.shape
    n_states = len(outwards)
    gates = np.empty((n_frames, n_bands, 3, n_states), np.float32)
    for rows in slices(n_frames, FRAMES_AT_ONCE):
        vectors = normal(x[rows]).reshape(-1, n_channels)
        np.matmul(vectors, inwards, out=gates[rows].reshape(-1, 3 * n_states))
    recur = native.recur if native.available() else _recur
    h = recur(gates, bias.reshape(3, n_states), along_bands)
    for rows in slices(n_frames, FRAMES_AT_ONCE):
        x[rows] += (h[rows].reshape(-1, n_states) @ outwards).reshape(-1, n_bands, n_channels)


def _recur(gates: Real, bias: Real, along_bands: bool) -> Real:
    """What `native.recur` computes, by NumPy."""
    gates += bias
    keep, new, gain = np.moveaxis(gates, 2, 0)
    np.negative(keep, out=keep)
    np.exp(keep, out=keep)
    keep += 1
    np.reciprocal(keep, out=keep)
    h: Real = (1 - keep) * new
    half = h.shape[-1] // 2
    steps, keeps = (h.transpose(1, 0, 2), keep.transpose(1, 0, 2)) if along_bands else (h, keep)
    for n in range(1, len(steps)):
        steps[n, :, :half] += keeps[n, :, :half] * steps[n - 1, :, :half]
        m = len(steps) - 1 - n
        steps[m, :, half:] += keeps[m, :, half:] * steps[m + 1, :, half:]
    h *= np.maximum(gain, 0)
    return h


def normal(x: Real) -> Real:
    """Vectors of unit mean square."""
    scale = np.einsum("tkc,tkc->tk", x, x)
    scale *= np.float32(1 / x.shape[-1])
    scale += np.float32(SMALL)
    normal: Real = x * (1 / np.sqrt(scale))[..., None]
    return normal


def decoded(x: Real, single: dict[str, tuple[Real, ...]], n_sources: int) -> Real:
    """Masks, (n_sources, n_frames, n_bins)."""
    n_frames, first, parts = len(x), 0, []
    x = normal(x)
    names = ("hidden", "hidden_bias", "mask", "mask_bias")
    for hidden, hidden_bias, mask, mask_bias in zip(*map(single.__getitem__, names), strict=True):
        n = len(hidden)
        bands = np.ascontiguousarray(x[:, first : first + n].transpose(1, 0, 2))
        between = bands @ hidden
        between += hidden_bias
        np.maximum(between, 0, out=between)
        masks = between @ mask
        masks += mask_bias
        by_source = masks.reshape(n, n_frames, n_sources, -1).transpose(2, 1, 0, 3)
        parts.append(by_source.reshape(n_sources, n_frames, -1))
        first += n
    masks = np.concatenate(parts, axis=-1)
    masks -= masks.max(axis=0)
    np.exp(masks, out=masks)
    masks /= masks.sum(axis=0)
    return masks


class LiveBandMasks:
    """Masks of a stream of magnitude frames, each as soon as it comes.

    Parameters
    ----------
    weights : BandWeights
    n_turns : int
        Streams that take turns.

    Attributes
    ----------
    delay : int
        None: 0.
    """

    delay = 0

    def __init__(self, weights: BandWeights, n_turns: int) -> None:
        self._weights, self._n_turns = weights, n_turns
        self._keep = 0.5 ** (1 / (LEVEL_HALF_LIFE * n_turns))
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        single = self._weights.single
        n_sweeps, n_states, _ = self._weights.outwards.shape
        shape = self._n_turns, n_sweeps, len(single["place"]), n_states // 2
        self._memory = np.zeros(shape, np.float32)
        self._turn, self._energy, self._count = 0, 0.0, 0.0

    def push(self, magnitudes: Real) -> Real:
        """Take frames, (n, n_bins); return their masks, (n_sources, n, n_bins)."""
        masks = np.empty((self._weights.n_sources, *magnitudes.shape), np.float32)
        with one_blas_thread():
            for number, frame in enumerate(magnitudes):
                masks[:, number] = self._frame(frame)
        return masks

    def flush(self) -> Real:
        """Return the last masks, none, and start anew."""
        self.reset()
        return np.zeros((self._weights.n_sources, 0, self._weights.n_bins), np.float32)

    def _frame(self, frame: Real) -> Real:
        single = self._weights.single
        power = np.square(frame, dtype=np.float64)
        self._energy = self._keep * self._energy + float(power.mean())
        self._count = self._keep * self._count + 1
        power /= max(self._energy / self._count, 1e-60)
        (x,) = embedded(power.astype(np.float32)[None], single)
        memory = self._memory[self._turn]
        self._turn = (self._turn + 1) % self._n_turns
        sweeps = zip(single["inwards"], single["bias"], single["outwards"], strict=True)
        for number, (inwards, bias, outwards) in enumerate(sweeps):
            gates = normal(x[None])[0] @ inwards
            gates += bias
            keep, new, gain = np.split(gates, 3, axis=1)
            keep = 1 / (1 + np.exp(-keep))
            new *= 1 - keep
            if number % 2:
                new = _along_bands(new, keep)
            else:
                half = new.shape[1] // 2
                new[:, :half] += keep[:, :half] * memory[number]
                memory[number] = new[:, :half]
            x += (new * np.maximum(gain, 0)) @ outwards
        return decoded(x[None], single, self._weights.n_sources)[:, 0]


def _along_bands(new: Real, keep: Real) -> Real:
    """h(n) = new(n) + keep(n) h(n - 1), half of the numbers from the last band to the first.

    By doubling: six steps of all bands in place of one step of each.
    """
    half = new.shape[1] // 2
    h, k = (np.concatenate([each[:, :half], each[::-1, half:]], axis=1) for each in (new, keep))
    reach = 1
    while reach < len(h):
        h[reach:] += k[reach:] * h[:-reach]
        k[reach:] *= k[:-reach]
        reach *= 2
    return np.concatenate([h[:, :half], h[::-1, half:]], axis=1)
