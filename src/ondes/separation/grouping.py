"""Which components are one source, when nobody says: those that sound alike.

Three traits tell instruments apart whatever they play: how high a component lies, how much its
spectrum consists of lines, and how long it lasts once it sounds. Components near each other in all
three become one group, by Ward's clustering with the square root of their energy as weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ondes.model_file import AudioSettings
from ondes.nmf import backends
from ondes.nmf.divergence import Array, level_frames
from ondes.nmf.estimator import TRANSFORM_SOLVER, OnlineISNMF
from ondes.nmf.penalties import GroupLog
from ondes.nmf.problem import Problem
from ondes.separation.masks import FLOOR
from ondes.signal.stft import Frames, Stft, power

__all__ = ["discover_sources", "group_components", "power_frames"]

LINE_WIDTH = 270.0  # hertz: a spectrum's lines stand out of its mean over such a neighbourhood
LASTING = 0.2  # seconds: drums are gone by then, strings are not, and wind does not change
LOWEST = 20.0  # hertz
SILENCE = 1e-6  # of the loudest frame's power: nothing is learned from quieter ones
AT_ONCE = 4096  # frames looked at together


def group_components(model: OnlineISNMF, frames: Array | Iterable[Array], n_sources: int) -> Array:
    """Part a model's components into groups that sound alike.

    Parameters
    ----------
    model : OnlineISNMF
        Fitted, with `audio_`.
    frames : array of shape (n_frames, n_bins), or an iterable of such arrays
        Power frames of the mixture, in the order of time.
    n_sources : int

    Returns
    -------
    integer array of shape (n_components,)
        The group of each component, the loudest group first.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes import OnlineISNMF
    >>> from ondes.model_file import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> frames = np.random.default_rng(0).exponential(size=(200, 33))
    >>> model = OnlineISNMF(6, random_state=0, backend="reference").fit(frames)
    >>> model.audio_ = AudioSettings(8000, Stft(64))
    >>> sorted(set(group_components(model, frames, 2).tolist()))
    [0, 1]
    """
    n_components = len(model.components_)
    if not 1 <= n_sources <= n_components:
        raise ValueError(
            f"n_sources={n_sources} must lie between 1 and the model's {n_components} components."
        )
    traits, energy = _traits(model, [frames] if isinstance(frames, np.ndarray) else frames)
    if not energy.any():
        raise ValueError("The frames are silent, so nothing tells the sources; give others.")
    weights = np.sqrt(energy / energy.max()) + 1e-6
    centred = traits - np.average(traits, axis=0, weights=weights)
    spread = np.sqrt(np.average(centred**2, axis=0, weights=weights))
    labels = _ward(centred / np.maximum(spread, 1e-12), weights, n_sources)
    loudness = np.bincount(labels, weights=energy, minlength=n_sources)
    ranks: Array = np.argsort(np.argsort(-loudness))
    return ranks[labels]


def _traits(model: OnlineISNMF, arrays: Iterable[Array]) -> tuple[Array, Array]:
    """Three traits a component, (n_components, 3), and the energy that its mask would take."""
    audio = model.audio_
    hertz = np.arange(audio.stft.n_bins) * audio.sr / audio.stft.n_fft
    lag = max(1, round(LASTING * audio.sr / audio.stft.hop_length))
    n_components = len(model.components_)
    spectra = np.zeros((n_components, audio.stft.n_bins))
    energy, lasting = np.zeros(n_components), np.zeros(n_components)
    before = np.zeros((lag, n_components))
    for frames in _cut(arrays):
        spectrum, amplitude = _parts(model, frames)
        spectra += spectrum
        energy += np.square(amplitude).sum(axis=0)
        amplitude = np.concatenate([before, amplitude])
        lasting += (amplitude[lag:] * amplitude[:-lag]).sum(axis=0)
        before = amplitude[-lag:]
    spectra /= np.maximum(spectra.sum(axis=1, keepdims=True), 1e-300)
    height = spectra @ np.log2(hertz + LOWEST)
    width = max(1, round(LINE_WIDTH * audio.stft.n_fft / audio.sr))
    ratio = (spectra + FLOOR) / (_smoothed(spectra, width) + FLOOR)
    lines = np.sum(spectra * np.log(ratio), axis=1)
    return np.stack([height, lines, lasting / np.maximum(energy, 1e-300)], axis=1), energy


def _parts(model: OnlineISNMF, frames: Array) -> tuple[Array, Array]:
    """The frames' power by component: summed over time, and amplitudes summed over bins.

    Masked power, not activations: where a component is inaudible, its activation says little.
    """
    levelled = level_frames(frames)
    problem = Problem(model.components_, FLOOR, TRANSFORM_SOLVER)
    backend = backends.choose(model.backend, problem, len(frames), model.device, model.precision)
    activations = backend.encode(levelled, problem).astype(np.float64)
    ratio = levelled.values / (activations @ model.components_ + FLOOR) * levelled.level[:, None]
    spectrum = model.components_ * (activations.T @ ratio)
    envelope = activations * (ratio @ model.components_.T)
    return spectrum, np.sqrt(levelled.spread(envelope))


def _cut(arrays: Iterable[Array]) -> Iterator[Array]:
    for array in arrays:
        for first in range(0, len(array), AT_ONCE):
            yield array[first : first + AT_ONCE]


def _smoothed(spectra: Array, width: int) -> Array:
    """The mean over `width` neighbouring bins, the outermost ones repeated."""
    before = width // 2
    padded = np.pad(spectra, ((0, 0), (before + 1, width - before - 1)), mode="edge")
    padded[:, 0] = 0
    summed = np.cumsum(padded, axis=1)
    means: Array = (summed[:, width:] - summed[:, :-width]) / width
    return means


def _ward(points: Array, weights: Array, n_groups: int) -> Array:
    """Merge the two groups that lie nearest until `n_groups` are left (Ward 1963, weighted)."""
    members = [[point] for point in range(len(points))]
    centres, masses = points.copy(), weights.copy()
    while len(members) > n_groups:
        apart = np.square(centres[:, None] - centres[None]).sum(axis=2)
        cost = apart * masses[:, None] * masses / (masses[:, None] + masses)
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


def discover_sources(
    mixture: ArrayLike,
    n_sources: int,
    *,
    sr: int,
    n_components: int = 32,
    n_fft: int = 2048,
    hop_length: int = 512,
    n_passes: int = 10,
    penalty: GroupLog | None = None,
    random_state: int = 0,
    backend: str = "auto",
) -> OnlineISNMF:
    """Learn from a mixture in memory what it consists of, with no example of any source.

    Parameters
    ----------
    mixture : array of shape (n,) or (n, n_channels)
    n_sources : int
    sr : int
        Samples a second.
    n_components : int
        Of all sources together.
    n_fft, hop_length : int
        Of the STFT. Long frames tell a bass from a drum.
    n_passes : int
        How often learning goes over the mixture.
    penalty : GroupLog, optional
        Once the groups are known, go on learning with it: fewer sources sound at a time.
    random_state : int
    backend : str
        As of `OnlineISNMF`.

    Returns
    -------
    OnlineISNMF
        With `groups` and `audio_`: ready for `separate`.

    Examples
    --------
    >>> from ondes.scene import make_scene
    >>> mixture = make_scene(seconds=3.0).mixture
    >>> model = discover_sources(mixture, 2, sr=22050, n_components=4, n_passes=1)
    >>> model.groups.shape
    (4,)
    """
    audio = AudioSettings(sr, Stft(n_fft, hop_length))
    samples = np.asarray(mixture, dtype=np.float32)
    frames = np.concatenate(list(power_frames([samples], audio)))
    energy = frames.sum(axis=1)
    heard = frames[energy > SILENCE * energy.max(initial=0)]
    if not len(heard):
        raise ValueError("The mixture is silent, so there is nothing to learn; give another.")
    settings: dict[str, Any] = {
        "n_passes": n_passes,
        "random_state": random_state,
        "backend": backend,
    }
    model = OnlineISNMF(n_components, **settings).fit(heard)
    model.audio_ = audio
    model.groups = group_components(model, frames, n_sources)
    if penalty is not None:
        settings |= {"init": model.components_, "groups": model.groups, "penalty": penalty}
        model = OnlineISNMF(n_components, **settings).fit(heard)
        model.audio_ = audio
    return model


def power_frames(blocks: Iterable[ArrayLike], audio: AudioSettings) -> Iterator[Array]:
    """The channels' mean power, frame by frame, of a recording that comes in blocks.

    Parameters
    ----------
    blocks : iterable of arrays of shape (n,) or (n, n_channels)
        At `audio.sr`, for instance from `ondes.signal.audio.open_blocks`.
    audio : AudioSettings

    Yields
    ------
    float32 array of shape (n_frames, n_bins)

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(8))
    >>> [frames.shape for frames in power_frames([np.ones(6), np.ones(6)], audio)]
    [(1, 5), (2, 5), (1, 5)]
    """
    stream = None
    for block in map(np.asarray, blocks):
        if stream is None:
            stream = audio.stft.stream(block.shape[1] if block.ndim == 2 else None)
        length = AT_ONCE * audio.stft.hop_length
        for first in range(0, len(block), length):
            yield _mean_power(stream.push(block[first : first + length]))
    if stream is not None:
        yield _mean_power(stream.flush())


def _mean_power(frames: Frames) -> Array:
    spectra = power(frames)
    return spectra.mean(axis=1) if spectra.ndim == 3 else spectra
