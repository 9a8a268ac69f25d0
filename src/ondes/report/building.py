"""Build a report: an excerpt of a recording, separated and described, at constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.cores import each, one_blas_thread
from ondes.models.dictionary import Dictionary
from ondes.models.model import Model
from ondes.models.sources import Sources
from ondes.nmf.encoding import Compute
from ondes.prefetch import prefetch
from ondes.report.content import Component, Explained, ReportContent, Sound, Track
from ondes.report.excerpts import ShownExcerpt
from ondes.report.sounds import Budget, budget_for, component_sounds
from ondes.report.tracks import PlaceMeter, TrackBuilder
from ondes.separation.energies import ComponentEnergies, SpanSums
from ondes.separation.novelty import Novelty
from ondes.separation.separator import Separator
from ondes.signal.recordings import RawFormat

__all__ = ["build_report", "describe_dictionaries", "describe_separator"]

Samples = NDArray[np.float32]
Array = NDArray[np.floating]

CURVE_POINTS = 200
BLOCKS_AHEAD = 2  # separated while those before are encoded


def build_report(
    mixture: str | Path | BinaryIO | ArrayLike,
    models: Model,
    *,
    title: str,
    sr: int | None = None,
    start: float = 0.0,
    end: float | None = None,
    raw: RawFormat | None = None,
    stems: Mapping[str, Samples] | None = None,
    scores: Mapping[str, tuple[float, float]] | None = None,
    options: Mapping[str, Any] | None = None,
    mic_distance: float | None = None,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
    **texts: Any,
) -> ReportContent:
    """Separate a mixture, and collect everything that a report shows of it.

    Parameters
    ----------
    mixture : str, Path, binary stream, or array of shape (n,) or (n, n_channels)
    models : Sources or TrainedSeparator
    title : str
    sr : int, optional
        Sampling rate of an array; by default that of the models.
    start, end : float
        The part of a recording to show, in seconds.
    raw : RawFormat, optional
        Format of samples without a header.
    stems : mapping of str to arrays of the mixture's shape, optional
        The separated sources, where they are known already.
    scores : mapping of str to (float, float), optional
        SI-SDR in dB of the mixture and of each source, where the true sources are known.
    options : mapping of str, optional
        Further parameters of `Separator`. With `spatial`, the page says where each source stands.
    mic_distance : float, optional
        In metres, between the first two microphones; see `PlaceMeter`.
    backend, device, n_jobs
        As in `OnlineNMF`.
    **texts
        `numbers`, `settings` and `excerpt` of `ReportContent`; `excerpt` may be a function of the
        `ShownExcerpt`.

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
    compute = Compute(backend, device, n_jobs=n_jobs)
    shown = ShownExcerpt(mixture, sr=sr or models.audio.sr, start=start, end=end, raw=raw)
    excerpt = texts.pop("excerpt", None)
    sources = models if isinstance(models, Sources) else None
    n_components = 0 if sources is None else sources.n_components
    separated: _Separated
    if stems is None:
        separator = Separator(models, sr=shown.sr, compute=compute, **(options or {}))
        separated = _Separated(separator, shown)
    else:
        separated = _Separated(None, shown, stems)
    places = _Places((options or {}).get("spatial", "none"), mic_distance)
    n_stems = 1 + len(separated.names)
    budget = budget_for(shown.n_samples / shown.sr, shown.channels, n_stems, n_components)
    gain = 1 / max(shown.peak, 1.0)
    tracks = separated.tracks(models, budget, gain, scores or {}, places, compute.n_threads)
    components: tuple[Component, ...] = ()
    explained = None
    if sources is not None:
        powers = _component_powers(shown, sources, compute)
        sounds = component_sounds(shown, sources, powers, budget, gain=gain, compute=compute)
        components = _components(sources, powers, sounds)
        explained = _explained(shown, sources, compute)
    return ReportContent(
        title=title,
        sr=shown.sr,
        model_sr=models.audio.sr,
        n_samples=shown.n_samples,
        mixture=tracks[0],
        sources=tracks[1:],
        components=components,
        explained=explained,
        excerpt=excerpt(shown) if callable(excerpt) else excerpt,
        **texts,
    )


@dataclass(frozen=True)
class _Places:
    """Whether and how to say where the sources stand."""

    spatial: str
    mic_distance: float | None

    def meter(self, shown: ShownExcerpt, n_fft: int) -> PlaceMeter | None:
        if self.spatial in ("none", "auto") or shown.channels < 2:
            return None
        return PlaceMeter(self.spatial, shown.sr, n_fft, self.mic_distance)


class _Separated:
    """The mixture and its sources, side by side, as tracks of the page."""

    def __init__(
        self,
        separator: Separator | None,
        shown: ShownExcerpt,
        stems: Mapping[str, Samples] | None = None,
    ) -> None:
        self._separator, self._shown, self._stems = separator, shown, stems
        self.names = tuple(stems or ()) if separator is None else separator.names

    def tracks(
        self,
        models: Any,
        budget: Budget,
        gain: float,
        scores: Mapping[str, tuple[float, float]],
        places: _Places,
        n_threads: int,
    ) -> tuple[Track, ...]:
        shown, stft = self._shown, models.audio.stft
        stft = stft.at_rate(shown.sr / models.audio.sr)
        meters = [None, *(places.meter(shown, stft.n_fft) for _ in self.names)]
        builders = [
            TrackBuilder(
                shown.sr, shown.channels, shown.n_samples, stft, budget.stem_bit_rate, gain, meter
            )
            for meter in meters
        ]
        with one_blas_thread():
            for mixture, stems in prefetch(self._blocks(), BLOCKS_AHEAD):
                blocks = [stems[name].reshape(-1, shown.channels) for name in self.names]
                pairs = zip(builders, (mixture, *blocks), strict=True)
                for _ in each(_write, pairs, n_threads):
                    pass
        tracks = [builders[0].finish("Mixture")]
        for name, builder in zip(self.names, builders[1:], strict=True):
            components = _components_of(models, name)
            tracks.append(builder.finish(name, scores=scores.get(name), components=components))
        return tuple(tracks)

    def _blocks(self) -> Iterator[tuple[Samples, Mapping[str, Samples]]]:
        nothing = np.zeros((0, self._shown.channels), np.float32)
        if self._separator is None:
            first = 0
            for block in self._shown.blocks():
                rows = slice(first, first + len(block))
                yield block, {name: stem[rows] for name, stem in (self._stems or {}).items()}
                first += len(block)
            return
        for block in self._shown.blocks():
            yield block, self._separator.push(block)
        yield nothing, self._separator.flush()


def _write(pair: tuple[TrackBuilder, Samples]) -> None:
    builder, block = pair
    builder.write(block)


def _component_powers(shown: ShownExcerpt, sources: Sources, compute: Compute) -> Array:
    """What is heard of each component over equal spans of time, (n_columns, n_components)."""
    heard = ComponentEnergies(sources, sr=shown.sr, compute=compute)
    n_columns = max(1, min(CURVE_POINTS, shown.n_samples // heard.step))
    length = shown.n_samples / n_columns
    cells = SpanSums(length, heard.first, heard.step)
    sums = [cells.push(heard.push(block)) for block in shown.blocks()]
    sums.append(cells.finish(heard.flush(), shown.n_samples))
    powers: Array = np.concatenate(sums) / length
    return powers


def _components(
    sources: Sources, powers: Array, sounds: Mapping[int, Sound]
) -> tuple[Component, ...]:
    spectra = sources.dictionary**sources.exponent
    return tuple(
        Component(index, spectrum, powers[:, index], sounds.get(index))
        for index, spectrum in enumerate(spectra)
    )


def _explained(shown: ShownExcerpt, sources: Sources, compute: Compute) -> Explained | None:
    """How much better all components are than one spectrum, and than none."""
    stft = sources.stft.at_rate(shown.sr / sources.sr)
    transform, total = stft.stream(shown.channels), np.zeros(stft.n_bins)
    for block in shown.blocks():
        power = np.square(np.abs(transform.push(block))).mean(axis=1)
        total += sources.audio.from_power(power.astype(np.float32)).sum(axis=0)
    mean = np.zeros(sources.audio.n_bins)
    n_shared = min(len(mean), len(total))
    mean[:n_shared] = total[:n_shared]
    if not mean.any():
        return None
    one, flat = mean[None] / mean.sum(), np.full((1, len(mean)), 1 / len(mean))
    models = [sources, *(_one_component(sources, row) for row in (one, flat))]
    streams = [Novelty(model, sr=shown.sr, compute=compute) for model in models]
    values: list[list[Array]] = [[] for _ in streams]
    for block in shown.blocks():
        for stream, found in zip(streams, values, strict=True):
            found.append(stream.push(block))
    means = [
        float(np.concatenate([*found, stream.flush()]).mean())
        for stream, found in zip(streams, values, strict=True)
    ]
    return Explained(*means)


def _one_component(sources: Sources, row: Array) -> Sources:
    return Sources(row, np.zeros(1, int), ("all",), sources.audio, sources.divergence)


def describe_dictionaries(dictionaries: Mapping[str, Dictionary]) -> dict[str, Any]:
    """What a report says of dictionaries: `numbers` and `settings` of `ReportContent`."""
    audio = next(iter(dictionaries.values())).audio
    assert audio is not None
    settings = {
        "Sampling rate": f"{audio.sr} Hz",
        "Frame": f"{audio.stft.n_fft} samples, {audio.stft.window} window",
        "Hop": f"{audio.stft.hop_length} samples",
        "Spectrum": audio.spectrum,
        "Backend": ", ".join(sorted({each.learner.backend_ for each in dictionaries.values()})),
    }
    for name, dictionary in dictionaries.items():
        n_frames, history = dictionary.learner.n_frames_seen_, dictionary.history
        described = f"{len(dictionary.components)} components from {n_frames:,} frames"
        if history is not None:
            n_passes = dictionary.learner.n_passes or 1
            passes = f" in all {n_passes} passes" if n_passes > 1 else ""
            described += f", {history.seconds:,.0f} s of audio{passes}"
        settings[f"Dictionary of {name}"] = described
    return {"settings": tuple(settings.items())}


def describe_separator(separator: Any) -> dict[str, Any]:
    """What a report says of a trained separator; see `describe_dictionaries`."""
    audio, history = separator.audio, separator.history
    settings = {
        "Sampling rate": f"{audio.sr} Hz",
        "Frame": f"{audio.stft.n_fft} samples, {audio.stft.window} window",
        "Hop": f"{audio.stft.hop_length} samples",
    }
    numbers = []
    if history is not None:
        settings["Training"] = f"{history.n_updates:,} updates"
        for name, n_files, seconds in zip(
            separator.names, history.n_files, history.seconds, strict=False
        ):
            settings[f"Recordings of {name}"] = f"{n_files}, {seconds:,.0f} s in use"
        pairs = zip(separator.names, history.si_sdr, strict=False)
        numbers = [(f"SI-SDR of {name}, held out", _in_db(value)) for name, value in pairs]
    return {"numbers": tuple(numbers), "settings": tuple(settings.items())}


def _in_db(value: float) -> str:
    return f"{value:.1f} dB".replace("-", "−")


def _components_of(models: Any, name: str) -> tuple[int, ...]:
    if not isinstance(models, Sources) or name not in models.names:
        return ()
    return tuple(np.flatnonzero(models.rows_of(name)).tolist())
