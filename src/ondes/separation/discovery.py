"""Unsupervised separation: learn the sources of a mixture from the mixture alone.

Three features distinguish instruments whatever they play: how high a component lies, how tonal its
spectrum is, and how long it lasts. Components that are close in all three become one group, by
Ward's clustering with their energy as weight: a stem of a few quiet components would be nearly
silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ondes.learning.dictionary_learning import LearningProgress, learn
from ondes.models.dictionary import Dictionary
from ondes.models.sources import FLOOR
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute, Encoding, encode_blocks
from ondes.nmf.problem import TRANSFORM_SOLVER, Problem
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.frame_reader import spectral_frames
from ondes.signal.locations import Location, is_location
from ondes.signal.recordings import RawFormat, open_blocks, probe

__all__ = ["discover_sources", "group_components", "source_names"]

# The model of a mixture alone: measured no worse than magnitudes and Kullback-Leibler here.
SETTINGS: dict[str, Any] = {"spectrum": "power", "beta_loss": "itakura-saito", "sparsity": 0.0}

LINE_WIDTH = 270.0  # hertz: spectral lines are measured against the mean over this neighbourhood
LAG = 0.2  # seconds: drums have decayed by then, strings have not, and wind does not change
LOWEST = 20.0  # hertz


def discover_sources(
    mixture: str | Location | ArrayLike,
    n_sources: int,
    *,
    sr: int | None = None,
    n_components: int = 32,
    n_fft: int = 2048,
    hop_length: int = 512,
    n_passes: int = 10,
    random_state: int = 0,
    raw: RawFormat | None = None,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
    progress: Callable[[LearningProgress], object] | None = None,
) -> Dictionary:
    """Learn the sources of a mixture from the mixture alone, at constant memory.

    Parameters
    ----------
    mixture : str, Path, or array of shape (n,) or (n, n_channels)
        A recording, or its samples.
    n_sources : int
    sr : int, optional
        Sampling rate in Hz. It is required for samples; a recording is resampled to it if it is
        given.
    n_components : int
        Components of all sources together.
    n_fft, hop_length : int
        See `Stft`. Long frames distinguish a bass from a drum.
    n_passes : int
        Number of passes over the whole mixture.
    random_state : int
    raw : RawFormat, optional
        Format of samples without a header.
    backend, device, n_jobs
        As in `OnlineNMF`.
    progress : callable, optional
        As in `ondes.learn`.

    Returns
    -------
    Dictionary
        With `groups`, as `separate` needs them; the sources are named as in `source_names`.

    Examples
    --------
    >>> from ondes.demo_scene import make_scene
    >>> mixture = make_scene(seconds=3.0).mixture
    >>> found = discover_sources(mixture, 2, sr=22050, n_components=4, n_passes=1)
    >>> sorted(set(found.groups))
    ['source 1', 'source 2']
    """
    if not 1 <= n_sources <= n_components:
        raise ValueError(
            f"n_sources={n_sources} must lie between 1 and n_components={n_components}."
        )
    compute = Compute(backend, device, n_jobs=n_jobs)
    recording: Any = mixture if is_location(mixture) else np.asarray(mixture, np.float32)
    own = sr if isinstance(recording, np.ndarray) else probe(recording, raw).sr
    if own is None:
        raise ValueError("Samples in memory need their sampling rate; give sr.")
    sr = own if sr is None else sr
    fmax = sr / 2 if sr == own else None  # all there is, where nothing is resampled
    found = learn(
        recording, n_components, sr=sr, fmax=fmax, n_fft=n_fft, hop_length=hop_length, **SETTINGS,
        n_passes=n_passes, random_state=random_state, raw=raw, progress=progress,
        backend=backend, device=device, n_jobs=n_jobs,
    )  # fmt: skip
    assert found.audio is not None
    frames = _frames(recording, found.audio, raw)
    labels = group_components(found.components, found.audio, frames, n_sources, compute)
    groups = [source_names(n_sources)[label] for label in labels]
    return Dictionary(found.learner.with_parameters(groups=groups), found.audio, found.history)


def source_names(n_sources: int) -> tuple[str, ...]:
    """Names of discovered sources, the loudest first, which is also their alphabetical order.

    Examples
    --------
    >>> source_names(3)
    ('source 1', 'source 2', 'source 3')
    """
    n_digits = len(str(n_sources))
    return tuple(f"source {number:0{n_digits}}" for number in range(1, n_sources + 1))


def _frames(
    recording: str | Location | Array, audio: AudioSettings, raw: RawFormat | None
) -> Iterator[Array]:
    """Frames of the whole mixture in the order of time, silent ones included."""
    if isinstance(recording, np.ndarray):
        yield from spectral_frames([recording], audio)
    else:
        with open_blocks(recording, sr=audio.sr, raw=raw) as blocks:
            yield from spectral_frames(blocks, audio)


def group_components(
    components: Array,
    audio: AudioSettings,
    frames: Array | Iterable[Array],
    n_sources: int,
    compute: Compute | None = None,
) -> Array:
    """Divide the components of a dictionary into groups of similar sound.

    Parameters
    ----------
    components : array of shape (n_components, n_bins), rows sum to one
    audio : AudioSettings
        Sampling rate and STFT of the frames.
    frames : array of shape (n_frames, n_bins), or an iterable of such arrays
        Power frames of the mixture, in the order of time.
    n_sources : int
    compute : Compute, optional
        Backend, device and threads.

    Returns
    -------
    integer array of shape (n_components,)
        The group of each component, the loudest group first.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> rng = np.random.default_rng(0)
    >>> components = rng.dirichlet(np.ones(33), size=6)
    >>> frames = rng.exponential(size=(200, 33))
    >>> groups = group_components(components, AudioSettings(8000, Stft(64)), frames, 2)
    >>> sorted(set(groups.tolist()))
    [0, 1]
    """
    n_components = len(components)
    if not 1 <= n_sources <= n_components:
        raise ValueError(
            f"n_sources={n_sources} must lie between 1 and the {n_components} components."
        )
    arrays = [frames] if isinstance(frames, np.ndarray) else frames
    features, energy = component_features(components, audio, arrays, compute)
    if not energy.any():
        raise ValueError(
            "All frames are silent, so components cannot be grouped; give other frames."
        )
    weights = energy / energy.max() + 1e-6
    centred = features - np.average(features, axis=0, weights=weights)
    spread = np.sqrt(np.average(centred**2, axis=0, weights=weights))
    labels = _ward(centred / np.maximum(spread, 1e-12), weights, n_sources)
    loudness = np.bincount(labels, weights=energy, minlength=n_sources)
    ranks: Array = np.argsort(np.argsort(-loudness))
    return ranks[labels]


def component_features(
    components: Array,
    audio: AudioSettings,
    arrays: Iterable[Array],
    compute: Compute | None = None,
) -> tuple[Array, Array]:
    """Three features per component, (n_components, 3), and the energy that its mask would take."""
    hertz = np.arange(audio.n_bins) * audio.sr / audio.stft.n_fft
    lag = max(1, round(LAG * audio.sr / audio.stft.hop_length))
    problem = Problem(components, FLOOR, TRANSFORM_SOLVER)
    spectra = np.zeros(components.shape)
    energy, lasting = np.zeros(len(components)), np.zeros(len(components))
    before = np.zeros((lag, len(components)))
    for frames in arrays:
        for _, encoding in encode_blocks(frames, problem, compute):
            spectrum, amplitude = _masked_power(components, encoding)
            spectra += spectrum
            energy += np.square(amplitude).sum(axis=0)
            amplitude = np.concatenate([before, amplitude])
            lasting += (amplitude[lag:] * amplitude[:-lag]).sum(axis=0)
            before = amplitude[-lag:]
    spectra /= np.maximum(spectra.sum(axis=1, keepdims=True), 1e-300)
    height = spectra @ np.log2(hertz + LOWEST)
    width = max(1, round(LINE_WIDTH * audio.stft.n_fft / audio.sr))
    ratio = (spectra + FLOOR) / (_smoothed(spectra, width) + FLOOR)
    tonality = np.sum(spectra * np.log(ratio), axis=1)
    return np.stack([height, tonality, lasting / np.maximum(energy, 1e-300)], axis=1), energy


def _masked_power(components: Array, encoding: Encoding) -> tuple[Array, Array]:
    """The frames' power by component: summed over time, and amplitudes summed over bins.

    Masked power, not activations: where a component is inaudible, its activation means little.
    """
    levelled, activations = encoding.levelled, encoding.activations.astype(np.float64)
    ratio = levelled.values / (activations @ components + FLOOR) * levelled.level[:, None]
    spectrum = components * (activations.T @ ratio)
    envelope = activations * (ratio @ components.T)
    return spectrum, np.sqrt(levelled.spread(envelope))


def _smoothed(spectra: Array, width: int) -> Array:
    """The mean over `width` neighbouring bins, the outermost ones repeated."""
    before = width // 2
    padded = np.pad(spectra, ((0, 0), (before + 1, width - before - 1)), mode="edge")
    padded[:, 0] = 0
    summed = np.cumsum(padded, axis=1)
    means: Array = (summed[:, width:] - summed[:, :-width]) / width
    return means


def _ward(points: Array, weights: Array, n_groups: int) -> Array:
    """Merge the two nearest groups until `n_groups` are left (Ward 1963, weighted)."""
    members = [[point] for point in range(len(points))]
    centres, masses = points.copy(), weights.copy()
    while len(members) > n_groups:
        distance = np.square(centres[:, None] - centres[None]).sum(axis=2)
        cost = distance * masses[:, None] * masses / (masses[:, None] + masses)
        np.fill_diagonal(cost, np.inf)
        kept, merged = sorted(np.unravel_index(np.argmin(cost), cost.shape))
        pair = [kept, merged]
        centres[kept] = np.average(centres[pair], axis=0, weights=masses[pair])
        masses[kept] += masses[merged]
        members[kept] += members.pop(merged)
        centres, masses = np.delete(centres, merged, axis=0), np.delete(masses, merged)
    labels = np.empty(len(points), dtype=int)
    for label, group in enumerate(members):
        labels[group] = label
    return labels
