"""The network of `band_network` on live sound: every frame at once, from the past alone.

Along time, half of the numbers remember what came before, and the other half, which hear what comes
after in a recording, hear one frame. Power is relative to its running mean. Frames of live sound
come more often than those that the network was trained with, every 30 ms: several streams take
turns, each with a memory of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ondes.cores import one_blas_thread
from ondes.models.band_network import BandWeights, decoded, embedded, normal

__all__ = ["FRAME_SECONDS", "LiveBandMasks"]

Real = NDArray[np.float32]

FRAME_SECONDS = 0.03  # from one frame to the next, in training
LEVEL_HALF_LIFE = 100  # of these


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
