"""An excerpt of a recording, separated and described: what a report is made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.model_file import AudioSettings
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF
from ondes.report import ReportContent, Source
from ondes.separation import Sources, separate
from ondes.separation.grouping import power_frames
from ondes.signal.audio import AudioError, RawFormat, open_blocks

__all__ = ["describe", "facts", "read_excerpt"]

Samples = NDArray[np.float32]
MAX_PLAYERS = 64  # of components: more would make a page too heavy to open on a phone


def read_excerpt(
    path: str | Path, sr: int, *, start: float = 0.0, seconds: float, raw: RawFormat | None = None
) -> tuple[Samples, float | None]:
    """Read a part of a recording.

    Parameters
    ----------
    path : str or Path
    sr : int
        Samples a second of what is returned.
    start, seconds : float
        Where the excerpt begins, and how long it may be.
    raw : RawFormat, optional
        What the samples are where no header says.

    Returns
    -------
    samples : float32 array of shape (n, n_channels)
    total : float or None
        Seconds of the whole recording, None where unknown.

    Raises
    ------
    AudioError
        Where it cannot be read, or ends before `start`.
    """
    wanted = max(1, round(seconds * sr))
    parts: list[Samples] = []
    with open_blocks(path, sr=sr, mono=False, start=round(start * sr), raw=raw) as blocks:
        total = None if blocks.n_samples is None else blocks.n_samples / sr
        while sum(map(len, parts)) < wanted and (block := next(blocks, None)) is not None:
            parts.append(block)
    if not parts:
        raise AudioError(path, f"ends before {start:g} s")
    return np.concatenate(parts)[:wanted], total


def describe(
    mixture: Samples,
    sources: Sources,
    *,
    title: str,
    stems: Mapping[str, Samples] | None = None,
    scores: Mapping[str, float] | None = None,
    backend: str = "auto",
    n_jobs: int = 1,
    **texts: Any,
) -> ReportContent:
    """Everything that a report shows of a mixture in memory.

    Parameters
    ----------
    mixture : float32 array of shape (n,) or (n, n_channels)
        At the sources' rate.
    sources : Sources
    title : str
    stems : mapping of str to arrays of the mixture's shape, optional
        The separated sources, where they are at hand already.
    scores : mapping of str to float, optional
        SI-SDR of each source in dB, where the truth is known.
    backend, n_jobs
        As of `OnlineISNMF`.
    **texts
        `curves`, `numbers`, `settings` and `excerpt` of `ReportContent`.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), 8000, Stft(4))
    >>> noise = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    >>> content = describe(noise, sources, title="noise", backend="reference")
    >>> [source.name for source in content.sources]
    ['low', 'high']
    """
    how: dict[str, Any] = {"backend": backend, "n_jobs": n_jobs}
    if stems is None:
        stems = separate(mixture, sources, sr=sources.sr, **how)
    shown = tuple(
        Source(name, stem, (scores or {}).get(name), _components_of(sources, name))
        for name, stem in stems.items()
    )
    return ReportContent(
        title=title,
        sr=sources.sr,
        hop_length=sources.stft.hop_length,
        n_fft=sources.stft.n_fft,
        mixture=mixture,
        sources=shown,
        dictionary=sources.dictionary,
        activations=_activations(mixture, sources, how),
        component_samples=_sounds_of_components(mixture, sources, how),
        **texts,
    )


def facts(models: Mapping[str, OnlineISNMF]) -> dict[str, Any]:
    """What a report says of models: `curves`, `numbers` and `settings` of `ReportContent`."""
    audio = next(iter(models.values())).audio_
    numbers, curves = [], []
    settings = {
        "Sampling rate": f"{audio.sr} Hz",
        "Frame": f"{audio.stft.n_fft} samples, {audio.stft.window} window",
        "Hop": f"{audio.stft.hop_length} samples",
        "Backend": ", ".join(sorted({model.backend_ for model in models.values()})),
    }
    for name, model in models.items():
        described = f"{len(model.components_)} components from {model.n_frames_seen_:,} frames"
        provenance = getattr(model, "provenance_", None)
        if provenance is not None:
            described += f", {provenance.seconds:,.0f} s of sound"
            curve = tuple((n, cost) for n, cost in provenance.learning_curve.tolist())
            curves.append((name, curve))
            numbers.append((f"divergence per bin, {name}", f"{provenance.divergence:.3f}"))
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


def _activations(mixture: Samples, sources: Sources, how: dict[str, Any]) -> Array:
    audio = AudioSettings(sources.sr, sources.stft)
    frames = np.concatenate(list(power_frames([mixture], audio)))
    rows = sources.dictionary
    model = OnlineISNMF(len(rows), init=rows, **how).begin(frames)
    return model.transform(frames)


def _sounds_of_components(
    mixture: Samples, sources: Sources, how: dict[str, Any]
) -> tuple[Samples, ...]:
    """Each component alone, in mono; none at all where they are too many."""
    n_components = sources.n_components
    if n_components > MAX_PLAYERS:
        return ()
    names = tuple(map(str, range(n_components)))
    each = Sources(sources.dictionary, np.arange(n_components), names, sources.sr, sources.stft)
    mono = mixture if mixture.ndim == 1 else mixture.mean(axis=1)
    return tuple(separate(mono, each, sr=sources.sr, **how).values())
