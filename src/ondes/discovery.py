"""Unsupervised separation: learn the sources of a mixture from the mixture alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ondes.dictionary import Dictionary
from ondes.learning import LearningProgress, learn
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.nmf.penalties import GroupLog
from ondes.separation.grouping import group_components
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.locations import Location, is_location
from ondes.signal.recordings import RawFormat, open_blocks, probe
from ondes.signal.spectral_frames import spectral_frames
from ondes.signal.stft import Stft

__all__ = ["discover_sources", "source_names"]

# The model of a mixture alone: measured no worse than magnitudes and Kullback-Leibler here.
SETTINGS: dict[str, Any] = {"spectrum": "power", "beta_loss": "itakura-saito", "sparsity": 0.0}


def discover_sources(
    mixture: str | Location | ArrayLike,
    n_sources: int,
    *,
    sr: int | None = None,
    n_components: int = 32,
    n_fft: int = 2048,
    hop_length: int = 512,
    n_passes: int = 10,
    penalty: GroupLog | None = None,
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
    penalty : GroupLog, optional
        When the groups are known, learn again with this penalty, so that fewer sources are active
        at a time.
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
    >>> from ondes.scene import make_scene
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
    if sr is None:
        if isinstance(recording, np.ndarray):
            raise ValueError("Samples in memory need their sampling rate; give sr.")
        sr = probe(recording, raw).sr
    audio = AudioSettings(sr, Stft(n_fft, hop_length))
    learned = partial(
        learn, recording, n_components, sr=sr, n_fft=n_fft, hop_length=hop_length, **SETTINGS,
        n_passes=n_passes, random_state=random_state, raw=raw, progress=progress,
        backend=backend, device=device, n_jobs=n_jobs,
    )  # fmt: skip
    found = learned()
    frames = _frames(recording, audio, raw)
    labels = group_components(found.components, audio, frames, n_sources, compute)
    groups = [source_names(n_sources)[label] for label in labels]
    if penalty is not None:
        return learned(init=found.components, groups=groups, penalty=penalty)
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
