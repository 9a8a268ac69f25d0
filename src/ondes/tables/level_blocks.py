"""Levels of components or sources as they are heard, over cells of time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.models.combined import model_of
from ondes.models.model import Model
from ondes.models.sources import Sources
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.prefetch import prefetch
from ondes.separation.energies import (
    ComponentEnergies,
    SpanSums,
    check_loudness,
    stem_energies,
)
from ondes.separation.novelty import MeasuredSources, Novelty
from ondes.separation.separator import BLOCK_SIZE, Separator
from ondes.signal.recordings import AudioBlocks, RawFormat, open_span
from ondes.signal.stft import Frames, Stft, mean_power
from ondes.signal.survey import is_stream

__all__ = ["LevelBlock", "clock_time", "frequency_bounds", "levels", "recording_levels"]

BLOCK_SECONDS = 10.0
LEAST_SECONDS = 1e-3  # of a cell: a block has ten thousand of them, and so many spectra
SMALL_BLOCK = 2**16  # samples: components are measured frame by frame, and streams as they come
AHEAD = {SMALL_BLOCK: 4, BLOCK_SIZE: 1}  # blocks
SHARE = 0.9  # of the power, between the bounds
BOUNDS_HZ = 30.0  # resolution of the bounds

# AudioMoth 20240131_063000, Song Meter SITE_20240131_063000, ISO 2024-01-31T06-30-00 and the like.
WRITTEN = re.compile(
    r"(?<!\d)(\d{4})([-_.]?)(\d\d)\2(\d\d)(?:[T_ -]|__)?(\d\d)([-_.:h]?)(\d\d)(?:\6|m)?(\d\d)(?!\d)"
)
# AudioMoth before 2019: seconds since 1970 in UTC, as eight hexadecimal digits.
HEXADECIMAL = re.compile(r"[0-9A-F]{8}")
EARLIEST, LATEST = 1990, 2100


@dataclass(frozen=True, eq=False)
class LevelBlock:
    """What is heard in some consecutive cells of time of one recording.

    Attributes
    ----------
    recording : str
    names : tuple of str
        The components, ``"0"``, ``"1"`` and so on, or the sources.
    start, end : arrays of shape (n,)
        Seconds from the beginning of the recording.
    levels : array of shape (n, n_names)
        Power in dB re full scale, the mean of time and channels, of each component or source when
        it is heard alone; −inf for silence.
    novelty : array of shape (n,)
        Divergence per bin: how badly the components explain the moment. NaN where there are none,
        as in a trained separator.
    clock : datetime or None
        Time of the recording's beginning, from its name.
    low, high : arrays of shape (n, n_names) or None
        Hertz: nine tenths of the power of each lie between them; NaN for silence.

    Examples
    --------
    >>> start = np.arange(3.0)
    >>> LevelBlock("a.wav", ("0",), start, start + 1, np.full((3, 1), -20.0), np.ones(3)).end
    array([1., 2., 3.])
    """

    recording: str
    names: tuple[str, ...]
    start: Array
    end: Array
    levels: Array
    novelty: Array
    clock: datetime | None = None
    low: Array | None = None
    high: Array | None = None

    def __len__(self) -> int:
        return len(self.start)

    def only(self, names: Sequence[str]) -> LevelBlock:
        """The same of some components or sources."""
        columns = [self.names.index(name) for name in names]
        low, high = (None if each is None else each[:, columns] for each in (self.low, self.high))
        return replace(self, names=tuple(names), levels=self.levels[:, columns], low=low, high=high)


def levels(
    recordings: Any,
    models: Any,
    *,
    on_error: Callable[[FileError], object] | None = None,
    **options: Any,
) -> Iterator[LevelBlock]:
    """Measure what sounds when in recordings of any length, block by block, at constant memory.

    Parameters
    ----------
    recordings : str, Path, or iterable of these
        Files; see `ondes.read` for what they may be.
    models : Dictionary, mapping of str to Dictionary, Sources, or TrainedSeparator
    on_error : callable, optional
        Called with the `FileError` of a recording that cannot be read to its end; then the other
        recordings follow. Without it the error is raised.
    **options
        Options of `ondes.tables.recording_levels`: `by`, `every`, `start`, `end`, `novelty`,
        `bounds`, `raw`, `backend`, `device` and `n_jobs`.

    Yields
    ------
    LevelBlock

    Examples
    --------
    >>> import tempfile, soundfile
    >>> import ondes
    >>> noise = np.random.default_rng(0).standard_normal(24000).astype(np.float32) / 10
    >>> dictionary = ondes.learn(noise, 4, sr=8000)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(f"{folder}/20240131_063000.wav", noise, 8000)
    ...     (block,) = ondes.levels(f"{folder}/20240131_063000.wav", dictionary, every=1.0)
    >>> block.levels.shape, str(block.clock)
    ((3, 4), '2024-01-31 06:30:00')
    """
    if isinstance(recordings, (str, Path)) or not isinstance(recordings, Iterable):
        recordings = [recordings]
    for recording in recordings:
        try:
            yield from recording_levels(recording, models, **options)
        except FileError as error:
            if on_error is None:
                raise
            on_error(error)


def recording_levels(
    recording: str | Path | BinaryIO,
    models: Any,
    *,
    by: str | None = None,
    every: float = 1.0,
    start: float = 0.0,
    end: float | None = None,
    novelty: bool = True,
    bounds: bool = False,
    raw: RawFormat | None = None,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
) -> Iterator[LevelBlock]:
    """What sounds when in one recording; see `levels`.

    Parameters
    ----------
    recording : str, Path or binary stream
    models : Dictionary, mapping of str to Dictionary, Sources, or TrainedSeparator
    by : {"component", "source"}, optional
        What has a level of its own; by default sources where there are several.
    every : float
        Seconds of a cell, 0.001 at least; the last one may be shorter.
    start, end : float
        The part to measure, in seconds; by default everything.
    novelty : bool
        Whether to measure that, too; otherwise it is NaN.
    bounds : bool
        Whether to measure where the sound of each source lies; for components it is known.
    raw : RawFormat, optional
        Format of samples without a header.
    backend, device, n_jobs
        As in `OnlineNMF`.

    Yields
    ------
    LevelBlock
        Of ten seconds or more; with novelty, of about a minute.

    Raises
    ------
    FileError
        Where the recording cannot be opened, and where it is damaged, after everything before.

    Examples
    --------
    >>> import io
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(4))
    >>> sources = Sources(np.full((2, 3), 1 / 3), np.arange(2), ("a", "b"), audio)
    >>> stream = io.BytesIO(bytes(16000))
    >>> (block,) = recording_levels(stream, sources, every=0.5, raw=RawFormat(8000))
    >>> block.start
    array([0. , 0.5])
    """
    if not 0 < every < float("inf"):
        raise ValueError(f"every={every!r} must be a positive number of seconds.")
    if every < LEAST_SECONDS:
        raise ValueError(f"every={every!r} must be at least {LEAST_SECONDS:g} seconds.")
    if by not in (None, "component", "source"):
        raise ValueError(f"by={by!r} must be 'component' or 'source'.")
    compute = Compute(backend, device, n_jobs=n_jobs)
    model, name = _model(models), _name(recording)
    if by == "component" and not isinstance(model, Sources):
        raise ValueError("A trained separator has no components; measure its sources.")
    of_components = by == "component" or (by is None and len(model.names) == 1)
    size = SMALL_BLOCK if of_components or is_stream(recording) else BLOCK_SIZE
    with open_span(recording, start=start, end=end, block_size=size, raw=raw) as blocks:
        meters: _ComponentMeters | _SourceMeters
        if of_components and isinstance(model, Sources):
            meters = _ComponentMeters(model, blocks.sr, compute, novelty)
        else:
            meters = _SourceMeters(model, blocks.sr, compute, novelty, bounds)
        table = _Table(name, meters, start, every, blocks.sr)
        damage, ahead = None, AHEAD[size]
        try:
            for n_samples, prepared in prefetch(meters.prepared(_checked(blocks, name)), ahead):
                table.n_samples += n_samples
                table.add(meters.push(prepared))
                yield from table.rows(bounds)
        except FileError as error:
            damage = error
        table.finish(meters.flush())
        yield from table.rows(bounds, is_last=True)
        if damage is not None:
            raise damage


def _model(given: Any) -> Model:
    """All components of models, whether or not it is known which of them are a source."""
    return model_of({"all": given} if getattr(given, "groups", ()) is None else given)


def _name(recording: Any) -> str:
    return str(getattr(recording, "name", "stream") if hasattr(recording, "read") else recording)


def _checked(blocks: AudioBlocks, name: str) -> Iterator[Samples]:
    n_before = 0
    for block in blocks:
        check_loudness(block, name, n_before, blocks.sr)
        n_before += len(block)
        yield block


# ---- what is measured of the same samples: a list of values, each with its place in time ----


class _ComponentMeters:
    """Energies of components and novelty, from frames that both share."""

    def __init__(self, model: Sources, sr: int, compute: Compute, novelty: bool) -> None:
        self._energies = ComponentEnergies(model, sr=sr, compute=compute)
        self._novelty = Novelty(model, sr=sr, compute=compute) if novelty else None
        self.names, self.has_novelty = self._energies.names, novelty
        self.spans = [(self._energies.first, self._energies.step)]
        if self._novelty is not None:
            self.spans.append((self._novelty.first, self._novelty.step))
        spectra = model.dictionary**model.exponent
        low, high = frequency_bounds(spectra, model.audio.sr / model.audio.stft.n_fft)
        self.static_bounds = np.stack([low, high])

    def prepared(self, blocks: Iterable[Samples]) -> Iterator[tuple[int, Any]]:
        """What a thread may do ahead: frames, and the novelty of these; last those of the end."""
        stream, damage = None, None
        try:
            for block in blocks:
                stream = stream or self._energies.stft.stream(block.shape[1])
                yield len(block), self._with_novelty(stream.push(block))
        except FileError as error:
            damage = error
        if stream is not None:
            yield 0, self._with_novelty(stream.flush())
        if damage is not None:
            raise damage

    def _with_novelty(self, frames: Frames) -> tuple[Frames, list[Array]]:
        if self._novelty is None:
            return frames, []
        return frames, [_counted(self._novelty.push_frames(frames))]

    def push(self, prepared: tuple[Frames, list[Array]]) -> list[Array]:
        frames, novelty = prepared
        return [self._energies.push_frames(frames), *novelty]

    def flush(self) -> list[Array]:
        novelty = [] if self._novelty is None else [_counted(self._novelty.flush())]
        return [self._energies.flush(), *novelty]


class _SourceMeters:
    """Energies and spectra of stems, and novelty."""

    static_bounds = None

    def __init__(
        self, model: Model, sr: int, compute: Compute, novelty: bool, bounds: bool
    ) -> None:
        self.spans: list[tuple[float, float]] = [(0.0, 1)]
        self._measured = None
        if novelty and isinstance(model, Sources):
            model = self._measured = MeasuredSources(model, sr, compute)
            self.spans.append((self._measured.novelty.first, self._measured.novelty.step))
        self.has_novelty = self._measured is not None
        self._separator = Separator(model, sr=sr, spatial="auto", compute=compute)
        self.names = self._separator.names
        self._spectra = None
        if bounds:
            self._spectra = _StemSpectra(len(self.names), sr)
            self.spans.append((self._spectra.first, self._spectra.step))

    def prepared(self, blocks: Iterable[Samples]) -> Iterator[tuple[int, Any]]:
        """What a thread may do ahead: stems, while the energies of those before are summed."""
        for block in prefetch(blocks, 1):
            stems = self._stems(self._separator.push(block))
            yield len(block), (stems, self._novelty())

    def push(self, prepared: tuple[list[Samples], list[Array]]) -> list[Array]:
        stems, novelty = prepared
        spectra = [] if self._spectra is None else [self._spectra.push(stems)]
        return [stem_energies(stems), *novelty, *spectra]

    def flush(self) -> list[Array]:
        stems = self._stems(self._separator.flush())
        spectra = []
        if self._spectra is not None:
            spectra = [np.concatenate([self._spectra.push(stems), self._spectra.flush()])]
        return [stem_energies(stems), *self._novelty(is_last=True), *spectra]

    def _novelty(self, is_last: bool = False) -> list[Array]:
        if self._measured is None:
            return []
        values = self._measured.taken()
        if is_last:
            values = np.append(values, self._measured.novelty.flush())
        return [_counted(values)]

    def _stems(self, separated: Mapping[str, Samples]) -> list[Samples]:
        return [separated[name] for name in self.names]


class _StemSpectra:
    """Mean power of short frames of each stem, (m, n_stems, n_bins)."""

    def __init__(self, n_stems: int, sr: int) -> None:
        n_fft = 2 ** max(4, round(math.log2(sr / BOUNDS_HZ)))
        self._stft = Stft(n_fft, n_fft // 2)
        self._streams: list[Any] = [None] * n_stems
        self.first, self.step = -self._stft.n_padding / 2, self._stft.hop_length

    def push(self, stems: Sequence[Samples]) -> Array:
        for i, stem in enumerate(stems):
            if self._streams[i] is None:
                self._streams[i] = self._stft.stream(stem.shape[1] if stem.ndim == 2 else None)
        return self._powers([s.push(stem) for s, stem in zip(self._streams, stems, strict=True)])

    def flush(self) -> Array:
        return self._powers([stream.flush() for stream in self._streams])

    def _powers(self, frames: Sequence[Frames]) -> Array:
        powers = [mean_power(each) if each.ndim == 3 else np.abs(each) ** 2 for each in frames]
        return np.stack(powers, axis=1)


def _counted(values: Array) -> Array:
    """Single values with how many they are, so that cells give their mean."""
    return values if values.ndim == 2 else np.stack([values, np.ones(len(values))], axis=1)


def frequency_bounds(spectra: Array, spacing: float) -> tuple[Array, Array]:
    """Hertz between which nine tenths of the power lie, of spectra (..., n_bins); NaN for silence.

    Parameters
    ----------
    spectra : array of shape (..., n_bins)
        Power.
    spacing : float
        Hertz from one bin to the next.

    Examples
    --------
    >>> low, high = frequency_bounds(np.array([0.0, 0.0, 1.0, 0.0]), 100)
    >>> round(float(low)), round(float(high))
    (155, 245)
    """
    sums = np.cumsum(spectra, axis=-1, dtype=np.float64)
    total = sums[..., -1:]
    shares = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
    found = []
    for share in ((1 - SHARE) / 2, (1 + SHARE) / 2):
        above = np.argmax(shares >= share, axis=-1)[..., None]
        at = np.take_along_axis(shares, above, axis=-1)
        before = np.where(above > 0, np.take_along_axis(shares, np.maximum(above - 1, 0), -1), 0.0)
        part = np.divide(share - before, at - before, out=np.zeros_like(at), where=at > before)
        hertz = np.clip((above - 0.5 + part) * spacing, 0, (spectra.shape[-1] - 1) * spacing)
        found.append(np.where(total > 0, hertz, np.nan)[..., 0])
    return found[0], found[1]


# ---- cells ----


class _Table:
    """Cells of a recording as they become complete in all streams."""

    def __init__(
        self,
        recording: str,
        meters: _ComponentMeters | _SourceMeters,
        start: float,
        every: float,
        sr: int,
    ) -> None:
        self._recording, self._meters, self._start = recording, meters, start
        self._every, self._sr, self._clock = every, sr, clock_time(recording)
        self._sums = [SpanSums(every * sr, first, step) for first, step in meters.spans]
        self._ready: list[list[Array]] = [[] for _ in self._sums]
        self.n_samples = self._n_pushed = self._n_cells = 0
        self._last: list[Array] | None = None

    def add(self, values: Sequence[Array]) -> None:
        """Take the next values of each stream."""
        if self.n_samples == self._n_pushed:  # frames that reach beyond the end
            self._last = list(values)
            return
        self._n_pushed = self.n_samples
        for ready, sums, each in zip(self._ready, self._sums, values, strict=True):
            ready.append(sums.push(each))

    def finish(self, values: Sequence[Array]) -> None:
        """Take the end of the recording."""
        if not self.n_samples:
            return
        if self._last is not None:
            values = [np.concatenate(pair) for pair in zip(self._last, values, strict=True)]
        for ready, sums, each in zip(self._ready, self._sums, values, strict=True):
            ready.append(sums.finish(each, self.n_samples))

    def rows(self, bounds: bool, is_last: bool = False) -> Iterator[LevelBlock]:
        """The block of all complete cells, where it is long enough."""
        n_cells = min(sum(map(len, ready)) for ready in self._ready)
        if not n_cells or (n_cells * self._every < BLOCK_SECONDS and not is_last):
            return
        edges = self._every * np.arange(self._n_cells, self._n_cells + n_cells + 1.0)
        if is_last:
            edges[-1] = self.n_samples / self._sr
        self._n_cells += n_cells
        lengths = np.diff(edges) * self._sr
        energies, *others = map(self._take, range(len(self._ready)), repeat(n_cells))
        with np.errstate(divide="ignore"):
            levels = 10 * np.log10(np.maximum(energies / lengths[:, None], 0))
        novelty = np.full(n_cells, np.nan)
        if self._meters.has_novelty:
            divergences, *others = others
            novelty = np.divide(*divergences.T)
        low = high = None
        if self._meters.static_bounds is not None:
            low, high = (np.tile(each, (n_cells, 1)) for each in self._meters.static_bounds)
        elif bounds:
            spacing = self._sr / 2 / (others[0].shape[-1] - 1)
            low, high = frequency_bounds(others[0], spacing)
        edges = edges + self._start
        yield LevelBlock(
            self._recording, self._meters.names, edges[:-1], edges[1:], levels, novelty,
            self._clock, low, high,
        )  # fmt: skip

    def _take(self, stream: int, n_cells: int) -> Array:
        """The sums of the next cells."""
        ready = np.concatenate(self._ready[stream])
        self._ready[stream] = [ready[n_cells:]]
        return ready[:n_cells]


def clock_time(path: str | Path) -> datetime | None:
    """The time of a recording's first sample, where its name has it.

    Parameters
    ----------
    path : str or Path
        Such as ``20240131_063000.WAV``, ``SM4_20240131_063000.wav`` or
        ``2024-01-31T06-30-00.flac``. The time zone is the recorder's, so it has none.

    Returns
    -------
    datetime or None

    Examples
    --------
    >>> clock_time("pond/SMU00123_20240131_063000.wav")
    datetime.datetime(2024, 1, 31, 6, 30)
    >>> clock_time("take_2.wav")
    """
    stem = Path(path).stem
    for found in WRITTEN.finditer(stem):
        year, _, month, day, hour, _, minute, second = found.groups()
        try:
            time = datetime(*map(int, (year, month, day, hour, minute, second)))  # type: ignore[arg-type]
        except ValueError:
            continue
        if EARLIEST <= time.year < LATEST:
            return time
    if HEXADECIMAL.fullmatch(stem) and not stem.isdigit():
        time = datetime.fromtimestamp(int(stem, 16))
        if EARLIEST <= time.year < LATEST:
            return time
    return None


Samples = NDArray[np.float32]
