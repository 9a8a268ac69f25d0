"""How loud each component or source is when it is heard alone.

Energies are those of the sounds themselves: a source's is that of its stem, sample by sample; a
component's is that of its stem, too, but counted frame by frame. Activations are not what is heard:
they overlap, and overshoot wherever another component explains the same sound.

A component that is heard alone is the inverse STFT of its masked frames, and its energy is less
than that of the frames: what neighbouring frames disagree on cancels when they are added. All
components share one array: component k's frames are g_k(t) · u_k(f) · G(t, f). The energy is then
a sum over pairs of neighbouring frames and bins in which the components are one matrix product.

With x(n) = Σ_t d(n − tH) z_t(n − tH) and N bins around the circle,

    Σ_n x(n)² = N⁻² Σ_{t, Δ, f, q} Q_Δ(q) conj(Z_t(f)) Z_{t+Δ}(f + q) · phase,

where Q_Δ is the Fourier transform of d(n) d(n − ΔH). For smooth windows it is negligible but for a
few q, and the phase is one when time is counted from the centre of what two frames share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.cores import each, one_blas_thread
from ondes.errors import FileError
from ondes.models.component_masks import ComponentMasks, EncodedFrames
from ondes.models.sources import Sources
from ondes.nmf.backends import native
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.rebatch import slices
from ondes.signal.stft import Frames, Stft, StftStream, mean_power

__all__ = [
    "ComponentEnergies",
    "OverlapEnergy",
    "SpanSums",
    "check_loudness",
    "stem_energies",
]

Samples = NDArray[np.float32]
Spectra = NDArray[np.complex64]

FRAMES_AT_ONCE = 512  # the kernel prepares the dictionary for every call
VALUES_AT_ONCE = 2**20  # complex, so 8 MiB
NEGLIGIBLE = 3e-2  # of the largest coefficient; together they change energies by 0.04 dB
MAX_BINS = 12  # apart; only windows that are not smooth reach this
ROWS_AT_ONCE = 64
LOUDEST = 1e15  # of samples, full scale being 1


def stem_energies(stems: Sequence[Samples]) -> Array:
    """The energy of each sample of each stem, (n, n_stems), the mean of its channels."""
    channels = [stem[:, None] if stem.ndim == 1 else stem for stem in stems]
    each = [np.einsum("nc,nc->n", stem, stem) / stem.shape[1] for stem in channels]
    return np.stack(each, axis=1)


def check_loudness(samples: Samples, recording: object, first: int, sr: int) -> None:
    """Raise FileError where a sample is no number, or its square would overflow in sums."""
    if max(samples.max(initial=0), -samples.min(initial=0)) < LOUDEST:  # nor a NaN
        return
    is_bad = ~(np.abs(samples) < LOUDEST)
    at = (first + int(is_bad.reshape(len(samples), -1).any(axis=1).argmax())) / sr
    reason = (
        f"has a sample after {at:.3f} s that is no number or above {LOUDEST:g} times full scale"
    )
    raise FileError(recording, f"{reason}; repair it first")


class ComponentEnergies:
    """The energy of each component as it is heard alone, frame by frame: samples in, energies out.

    Row i of all that `push` and `flush` return belongs to the samples from ``first + i * step`` to
    ``first + (i + 1) * step``; what lies before the first sample or after the last belongs to it.

    Parameters
    ----------
    sources : Sources
        Its components are heard one by one, whichever source they belong to.
    sr : int, optional
        Sampling rate of the samples; by default that of the sources.
    compute : Compute, optional
        Backend, device and threads.

    Attributes
    ----------
    stft : Stft
        Of the frames at `sr`.

    Examples
    --------
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> stream = ComponentEnergies(sources)
    >>> energies = np.concatenate([stream.push(np.ones(1000)), stream.flush()])
    >>> bool(energies[:, 0].sum() > 100 * energies[:, 1].sum())
    True
    """

    def __init__(
        self, sources: Sources, *, sr: int | None = None, compute: Compute | None = None
    ) -> None:
        self.names = tuple(map(str, range(sources.n_components)))
        self._masks = ComponentMasks(sources, sr=sr, compute=compute)
        self.stft = stft = self._masks.stft
        self._n_threads = 1 if compute is None else compute.n_threads
        self.step, self.first = stft.hop_length, -stft.n_padding / 2
        self._energy = OverlapEnergy(self._masks.shapes[:, : stft.n_bins], stft)
        self._weights = np.full(stft.n_bins, 2.0, np.float32)
        self._weights[0] = 1
        self._weights[-1] = 1 if stft.n_fft % 2 == 0 else 2
        self._hops = _hop_weights(stft)
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._stream: StftStream | None = None
        self._waiting: list[Frames] = []
        self._before: EncodedFrames | None = None
        self._n_returned = 0  # of the frames before

    def push(self, samples: ArrayLike) -> Array:
        """Take the next samples; return the energies of the frames that are complete."""
        block = np.asarray(samples, dtype=np.float32)
        if self._stream is None:
            self._stream = self.stft.stream(block.shape[1] if block.ndim == 2 else None)
        return self.push_frames(self._stream.push(block))

    def push_frames(self, frames: Frames) -> Array:
        """The same of frames that are transformed already, by `stft`."""
        energies = [np.zeros((0, len(self.names)))]
        n_at_once = max(16, min(FRAMES_AT_ONCE, VALUES_AT_ONCE // max(1, frames[:1].size)))
        for rows in slices(len(frames), n_at_once):
            self._waiting.append(frames[rows])
            if sum(map(len, self._waiting)) >= n_at_once:
                energies.append(self._advance(is_last=False))
        return np.concatenate(energies)

    def flush(self) -> Array:
        """Return the last energies, and reset."""
        if self._stream is not None:
            self._waiting.append(self._stream.flush())
        if self._waiting or self._before is not None:
            energies = self._advance(is_last=True)
        else:
            energies = np.zeros((0, len(self.names)))
        self.reset()
        return energies

    @one_blas_thread()
    def _advance(self, is_last: bool) -> Array:
        encoded = self._before
        if self._waiting:
            new = self._masks.encode(np.concatenate(self._waiting))
            encoded = new if encoded is None else encoded.followed_by(new)
        assert encoded is not None
        self._waiting = []
        reach = self._energy.reach
        end = len(encoded.peak) if is_last else max(self._n_returned, len(encoded.peak) - reach)
        energies = self._energies(encoded)[self._n_returned : end]
        kept = max(0, end - reach)
        self._before, self._n_returned = encoded.after(kept), end - kept
        return energies

    def _energies(self, encoded: EncodedFrames) -> Array:
        scaled, peak, gains = encoded.scaled, encoded.peak.astype(np.float64), encoded.gains
        inverse = self._masks.inverse_model(gains)
        n_shared = min(self.stft.n_bins, inverse.shape[1])
        shared = scaled[..., :n_shared] * inverse[:, None, :n_shared]
        energies = self._energy.of(gains * peak[:, None], shared, self._n_threads)
        if n_shared < self.stft.n_bins:
            energies += self._energies_above(scaled, peak, gains, inverse)
        return np.maximum(energies, 0)

    def _energies_above(self, scaled: Frames, peak: Array, gains: Array, inverse: Array) -> Array:
        """Of the bins above the known ones, where a component's mask is one number per frame."""
        n_known = inverse.shape[1]
        octave = slice(n_known // 2, None)
        shares = gains * (inverse[:, octave] @ self._masks.shapes[:, octave].T)
        shares /= n_known - n_known // 2
        reach = len(self._hops) // 2
        padded = np.pad(shares, ((reach, reach), (0, 0)))
        heard = sum(weight * padded[i : i + len(shares)] for i, weight in enumerate(self._hops))
        power = mean_power(scaled[..., n_known:]) @ self._weights[n_known:]
        window = np.square(self.stft.window_array, dtype=np.float64).sum()
        energy = power * peak**2 * self.stft.hop_length / (self.stft.n_fft * window)
        energies: Array = np.square(heard) * energy[:, None]
        return energies


def _hop_weights(stft: Stft) -> Array:
    """How much the frames around it decide what is heard at the centre of a frame."""
    centre, n_fft, hop = stft.n_fft // 2, stft.n_fft, stft.hop_length
    reach = (n_fft - 1 - centre) // hop
    places = centre + hop * np.arange(-reach, reach + 1)
    weights: Array = (stft.window_array * stft.dual_window_array)[places]
    normalised: Array = weights / weights.sum()
    return normalised


class OverlapEnergy:
    """Energies of the signals whose frames are g_k(t) · u_k(f) · G(t, f), frame by frame.

    Parameters
    ----------
    shapes : array of shape (n_signals, n_bins), nonnegative
        u; where they are fewer than the transform's bins, G is zero in the others.
    stft : Stft

    Attributes
    ----------
    reach : int
        How many frames before and after it decide a frame's energy.

    Examples
    --------
    >>> samples = np.random.default_rng(0).standard_normal(1000)
    >>> stft = Stft(64, 16)
    >>> frames = stft.forward(samples)
    >>> energies = OverlapEnergy(np.ones((1, 33)), stft).of(np.ones((len(frames), 1)), frames)
    >>> bool(np.isclose(energies.sum(), np.sum(samples**2), rtol=1e-2))
    True
    """

    def __init__(self, shapes: Array, stft: Stft) -> None:
        n_fft, hop = stft.n_fft, stft.hop_length
        self._n_bins = shapes.shape[1]
        self._largest = np.maximum(shapes.max(axis=1, initial=0), 1e-300)
        kernel = [each[: self._n_bins] for each in _kernel(stft)]
        self.reach = len(kernel) - 1
        self._pad = max(len(each) for each in kernel) - 1
        normalised = (shapes.T / self._largest).astype(np.float32, order="C")
        padded = np.pad(normalised, ((self._pad, 0), (0, 0)), mode="reflect")
        bins = np.arange(self._n_bins)
        weights = np.full(self._n_bins, 2.0)
        weights[0] = 1
        if n_fft % 2 == 0 and self._n_bins == stft.n_bins:
            weights[-1] = 1
        self._terms = []
        for delta, coefficients in enumerate(kernel):
            # Time is counted from the centre of what the two frames share.
            turn = np.exp(1j * np.pi * bins * (1 + delta * hop / n_fft))
            turn_later = np.exp(1j * np.pi * bins * (1 - delta * hop / n_fft))
            scale = (2 if delta else 1) / n_fft**2
            factors = (scale * coefficients).astype(np.float32)
            pairs = [padded[self._pad - q :][: self._n_bins] for q in range(len(factors))]
            products = np.stack(
                [c * each * pairs[0] for c, each in zip(factors, pairs, strict=True)]
            )
            turns = ((weights * turn).astype(np.complex64), turn_later.astype(np.complex64))
            self._terms.append((*turns, products))

    def of(self, gains: Array, frames: Array, n_threads: int = 1) -> Array:
        """The energy of each frame of each signal; those of two frames together are halved.

        Parameters
        ----------
        gains : array of shape (n_frames, n_signals)
            g.
        frames : complex array of shape (n_frames, n_bins) or (n_frames, n_channels, n_bins)
            G.
        n_threads : int

        Returns
        -------
        float64 array of shape (n_frames, n_signals)
            Mean over the channels. Summed over all frames, the energy of the signals.
        """
        frames = frames[:, None] if frames.ndim == 2 else frames
        frames = np.ascontiguousarray(frames, np.complex64)
        sum_pairs = native.sum_pairs if native.available() else _sum_pairs
        gains = gains * self._largest
        energies = np.zeros(gains.shape)
        pairs = [
            (delta, rows)
            for delta in range(self.reach + 1)
            for rows in slices(max(0, len(gains) - delta), ROWS_AT_ONCE)
        ]

        def of_pair(pair: tuple[int, slice]) -> Array:
            delta, rows = pair
            later = slice(rows.start + delta, rows.stop + delta)
            sums = sum_pairs(frames[rows], frames[later], *self._terms[delta])
            found: Array = gains[rows] * gains[later] * sums
            return found

        with one_blas_thread():
            for (delta, rows), found in zip(pairs, each(of_pair, pairs, n_threads), strict=True):
                energies[rows] += found
                energies[rows.start + delta : rows.stop + delta] += found
        energies /= 2 * frames.shape[1]
        return energies


def _sum_pairs(
    earlier: Spectra, later: Spectra, turn: Spectra, turn_later: Spectra, shapes: Array
) -> Array:
    """What `native.sum_pairs` computes, by NumPy."""
    products = _products(earlier * turn, later * turn_later, len(shapes))
    sums: Array = sum(p @ s for p, s in zip(products, shapes, strict=True))
    return sums


def _products(earlier: Spectra, later: Spectra, n_distances: int) -> NDArray[np.float32]:
    """Re conj(Z_t(f)) Z_t'(f') summed over the channels, (n_distances, n_rows, n_bins).

    For every distance q of two bins, f' is f − q and the other way round. Below the first bin are
    the conjugates of those above.
    """
    n_rows, n_channels, n_bins = earlier.shape
    products = np.zeros((n_distances, n_rows, n_bins), np.float32)
    work = np.empty(n_rows * n_bins, np.float32)
    for channel in range(n_channels):
        for part, mirrored in ((np.real, 1), (np.imag, -1)):
            a = np.ascontiguousarray(part(earlier[:, channel]))
            b = np.ascontiguousarray(part(later[:, channel]))
            for q in range(n_distances):
                lowest = products[q, :, :q] + mirrored * a[:, :q] * b[:, q:0:-1]
                # All rows as one: long loops, and what crosses from row to row is replaced.
                total, n = products[q].reshape(-1)[q:], a.size - q
                total += np.multiply(a.reshape(-1)[q:], b.reshape(-1)[:n], out=work[:n])
                if q:
                    total += np.multiply(a.reshape(-1)[:n], b.reshape(-1)[q:], out=work[:n])
                    products[q, :, :q] = lowest
    return products


def _kernel(stft: Stft) -> list[Array]:
    """For each distance of two frames, Q of the distances 0, 1, ... of two bins that matter."""
    n_fft, hop, dual = stft.n_fft, stft.hop_length, stft.dual_window_array
    kernel = []
    for delta in range(-(-n_fft // hop)):
        shared = dual[delta * hop :] * dual[: n_fft - delta * hop]
        times = np.arange(len(shared)) - len(shared) / 2
        distances = np.arange(min(MAX_BINS, n_fft // 2) + 1)
        kernel.append(np.cos(2 * np.pi * np.outer(distances, times) / n_fft) @ shared)
    matters = [np.abs(each) > NEGLIGIBLE * kernel[0][0] for each in kernel]
    lengths = [int(np.flatnonzero(each)[-1]) + 1 if each.any() else 0 for each in matters]
    n_deltas = 1 + max(delta for delta, length in enumerate(lengths) if length)
    return [each[:length] for each, length in zip(kernel[:n_deltas], lengths, strict=False)]


class SpanSums:
    """Values of a stream, summed over the spans from 0 to `length`, to twice that, and so on.

    A value is spread evenly over its span; what lies before 0 belongs to the first span.

    Parameters
    ----------
    length : float
        Of a span.
    first, step : float
        Value i spans from ``first + i * step`` to ``first + (i + 1) * step``.

    Examples
    --------
    >>> sums = SpanSums(length=2.5, first=0.0, step=1.0)
    >>> sums.push(np.ones((4, 1)))
    array([[2.5]])
    >>> sums.finish(np.ones((2, 1)), end=5.5)
    array([[2.5],
           [1. ]])
    """

    def __init__(self, length: float, first: float, step: float) -> None:
        self._length, self._position, self._step = length, first, step
        self._n_spans = 0  # that are full
        self._open: Array | float = 0.0  # the sum of the next one

    def push(self, values: Array) -> Array:
        """Take the next values, (n,) or (n, m); return the sums of the spans that are full."""
        end = self._position + len(values) * self._step
        n_spans = max(self._n_spans, int(np.floor(end / self._length)))
        *full, self._open = self._sums(values, n_spans)
        self._n_spans = n_spans
        return np.array(full).reshape(-1, *values.shape[1:])

    def finish(self, values: Array, end: float) -> Array:
        """Take the last values; return the sums of all spans left, the last of which ends there."""
        n_spans = max(1, int(np.ceil(round(end / self._length, 9))))
        return np.array(self._sums(values, max(self._n_spans, n_spans - 1)))

    def _sums(self, values: Array, n_spans: int) -> list[Array]:
        """The sums up to the end of span `n_spans`, and that of everything after it."""
        start, self._position = self._position, self._position + len(values) * self._step
        total = np.zeros((len(values) + 1, *values.shape[1:]))
        np.cumsum(values, axis=0, dtype=np.float64, out=total[1:])
        edges = self._length * np.arange(self._n_spans + 1, n_spans + 1)
        places = np.clip((edges - start) / self._step, 0, len(values))
        below = np.clip(places.astype(int), 0, max(0, len(values) - 1))
        share = (places - below).reshape(-1, *(1 for _ in values.shape[1:]))
        above = np.minimum(below + 1, len(values))
        at_edges = total[below] * (1 - share) + total[above] * share
        sums = np.diff(np.concatenate([total[:1], at_edges, total[-1:]]), axis=0)
        sums[0] += self._open
        return list(sums)
