"""Build a report: an excerpt of a recording, separated and described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.history import TrainingHistory
from ondes.nmf.encoding import Compute, encode
from ondes.report.content import ReportContent, Source
from ondes.separation import Sources, separate
from ondes.separation.sources import SourceDictionary
from ondes.signal.excerpt import open_excerpt
from ondes.signal.recordings import RawFormat

__all__ = ["build_report", "describe_dictionaries", "read_excerpt"]

Samples = NDArray[np.float32]
MAX_PLAYERS = 64  # of components: more would make a page too heavy to open on a phone


class LearnedDictionary(SourceDictionary, Protocol):
    """What a report needs of an `ondes.Dictionary`."""

    @property
    def history(self) -> TrainingHistory | None:
        """How it was learned."""


def read_excerpt(
    path: str | Path, sr: int, *, start: float = 0.0, end: float, raw: RawFormat | None = None
) -> tuple[Samples, float | None]:
    """Read a part of a recording.

    Parameters
    ----------
    path : str or Path
    sr : int
        Sampling rate to resample to, in Hz.
    start, end : float
        In seconds; the recording may end earlier.
    raw : RawFormat, optional
        Format of samples without a header.

    Returns
    -------
    samples : float32 array of shape (n, n_channels)
    total : float or None
        Seconds of the whole recording, None where unknown.

    Raises
    ------
    FileError
        Where the recording cannot be read, or ends before `start`.
    """
    with open_excerpt(path, sr=sr, start=start, end=end, raw=raw) as blocks:
        total = None if blocks.n_samples_total is None else blocks.n_samples_total / sr
        parts = list(blocks)
    if not parts:
        raise FileError(path, "has no samples")
    return np.concatenate(parts), total


def build_report(
    mixture: Samples,
    sources: Sources,
    *,
    title: str,
    stems: Mapping[str, Samples] | None = None,
    scores: Mapping[str, float] | None = None,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
    **texts: Any,
) -> ReportContent:
    """Separate a mixture in memory, and collect everything that a report shows of it.

    Parameters
    ----------
    mixture : float32 array of shape (n,) or (n, n_channels)
        At the sampling rate of the sources.
    sources : Sources
    title : str
    stems : mapping of str to arrays of the mixture's shape, optional
        The separated sources, where they are known already.
    scores : mapping of str to float, optional
        SI-SDR of each source in dB, where the true sources are known.
    backend, device, n_jobs
        As in `OnlineNMF`.
    **texts
        `curves`, `numbers`, `settings` and `excerpt` of `ReportContent`.

    Examples
    --------
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> noise = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    >>> content = build_report(noise, sources, title="noise")
    >>> [source.name for source in content.sources]
    ['low', 'high']
    """
    compute: dict[str, Any] = {"backend": backend, "device": device, "n_jobs": n_jobs}
    if stems is None:
        stems = separate(mixture, sources, sr=sources.sr, **compute)
    shown = tuple(
        Source(name, stem, (scores or {}).get(name), _components_of(sources, name))
        for name, stem in stems.items()
    )
    frames = sources.audio.frames(mixture)
    return ReportContent(
        title=title,
        sr=sources.sr,
        hop_length=sources.stft.hop_length,
        n_fft=sources.stft.n_fft,
        mixture=mixture,
        sources=shown,
        dictionary=sources.dictionary,
        activations=encode(frames, sources.problem(), Compute(**compute)).full(),
        component_samples=_sounds_of_components(mixture, sources, compute),
        **texts,
    )


def describe_dictionaries(dictionaries: Mapping[str, LearnedDictionary]) -> dict[str, Any]:
    """What a report says of dictionaries: `curves`, `numbers` and `settings` of `ReportContent`."""
    audio = next(iter(dictionaries.values())).audio
    assert audio is not None
    numbers, curves = [], []
    settings = {
        "Sampling rate": f"{audio.sr} Hz",
        "Frame": f"{audio.stft.n_fft} samples, {audio.stft.window} window",
        "Hop": f"{audio.stft.hop_length} samples",
        "Spectrum": audio.spectrum,
        "Backend": ", ".join(sorted({each.estimator.backend_ for each in dictionaries.values()})),
    }
    for name, dictionary in dictionaries.items():
        n_frames, history = dictionary.estimator.n_frames_seen_, dictionary.history
        described = f"{len(dictionary.components)} components from {n_frames:,} frames"
        if history is not None:
            described += f", {history.seconds:,.0f} s of audio"
            curve = tuple((n, cost) for n, cost in history.learning_curve.tolist())
            curves.append((name, curve))
            numbers.append((f"divergence per bin, {name}", f"{history.divergence:.3f}"))
        settings[f"Dictionary of {name}"] = described
    return {
        "curves": tuple(curves),
        "numbers": tuple(numbers),
        "settings": tuple(settings.items()),
    }


def _components_of(sources: Sources, name: str) -> tuple[int, ...]:
    if name not in sources.names:
        return ()
    return tuple(np.flatnonzero(sources.source_of == sources.names.index(name)).tolist())


def _sounds_of_components(
    mixture: Samples, sources: Sources, compute: dict[str, Any]
) -> tuple[Samples, ...]:
    """Each component alone, in mono; none at all where there are too many."""
    n_components = sources.n_components
    if n_components > MAX_PLAYERS:
        return ()
    names = tuple(map(str, range(n_components)))
    each = replace(sources, source_of=np.arange(n_components), names=names)
    mono = mixture if mixture.ndim == 1 else mixture.mean(axis=1)
    return tuple(separate(mono, each, sr=sources.sr, **compute).values())
