"""Levels of components or sources as they are heard, over cells of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ondes.errors import FileError
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.prefetch import prefetch
from ondes.separation.cells import Cells
from ondes.separation.heard import HeardComponents, HeardSources
from ondes.separation.oddness import Oddness
from ondes.separation.sources import Sources
from ondes.separation.unfolded_masks import TrainedModel
from ondes.signal.excerpt import open_excerpt
from ondes.signal.recordings import RawFormat
from ondes.tables.clock import clock_time
from ondes.tables.pieces import Piece, pieces_of

__all__ = ["LevelBlock", "activations", "recording_levels"]

BLOCK_SECONDS = 10.0
FRAMES_AT_ONCE = 256
PIECES_AHEAD = 4


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
    oddness : array of shape (n,)
        Divergence per bin: how badly the components explain the moment. NaN where there are none,
        as in a trained separator.
    clock : datetime or None
        Time of the recording's beginning, from its name.

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
    oddness: Array
    clock: datetime | None = None

    def __len__(self) -> int:
        return len(self.start)


def activations(
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
        Options of `ondes.tables.recording_levels`: `by`, `every`, `start`, `end`, `oddness`, `raw`,
        `backend`, `device` and `n_jobs`.

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
    ...     (block,) = ondes.activations(f"{folder}/20240131_063000.wav", dictionary, every=1.0)
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
    oddness: bool = True,
    raw: RawFormat | None = None,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
) -> Iterator[LevelBlock]:
    """What sounds when in one recording; see `activations`.

    Parameters
    ----------
    recording : str, Path or binary stream
    models : Dictionary, mapping of str to Dictionary, Sources, or TrainedSeparator
    by : {"component", "source"}, optional
        What has a level of its own; by default sources where there are several.
    every : float
        Seconds of a cell; the last one may be shorter.
    start, end : float
        The part to measure, in seconds; by default everything.
    oddness : bool
        Whether to measure that, too; otherwise it is NaN.
    raw : RawFormat, optional
        Format of samples without a header.
    backend, device, n_jobs
        As in `OnlineNMF`.

    Yields
    ------
    LevelBlock
        Of ten seconds or more; with oddness, of about a minute.

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
    if by not in (None, "component", "source"):
        raise ValueError(f"by={by!r} must be 'component' or 'source'.")
    compute = Compute(backend, device, n_jobs=n_jobs)
    with open_excerpt(recording, start=start, end=end, raw=raw) as blocks:
        heard = _heard(models, by, blocks.sr, compute)
        streams = [_CellStream(heard, every * blocks.sr)]
        if oddness and not isinstance(models, TrainedModel):
            odd = Oddness(_components(models), sr=blocks.sr, compute=compute)
            streams.append(_CellStream(odd, every * blocks.sr))
        table = _Table(_name(recording), heard.names, start, every, blocks.sr)
        stft = heard.stft if isinstance(heard, HeardComponents) else None
        damage = None
        try:
            for piece in prefetch(pieces_of(blocks, stft), PIECES_AHEAD):
                table.n_samples += piece.n_samples
                for stream in streams:
                    stream.push(piece)
                yield from table.rows(streams)
        except FileError as error:
            damage = error
        for stream in streams:
            stream.finish(table.n_samples)
        yield from table.rows(streams, is_last=True)
        if damage is not None:
            raise damage


class _CellStream:
    """Sums over cells of what a stream returns."""

    def __init__(self, stream: HeardComponents | HeardSources | Oddness, length: float) -> None:
        self._stream = stream
        self._cells = Cells(length, stream.first, stream.step)
        self._ready: list[Array] = []
        self._last: Array | None = None

    def push(self, piece: Piece) -> None:
        """Take the next samples or frames."""
        if piece.frames is not None and not isinstance(self._stream, HeardSources):
            values = self._stream.push_frames(piece.frames)
        else:
            assert piece.samples is not None
            values = self._stream.push(piece.samples)
        if piece.n_samples:
            self._ready.append(self._cells.push(_counted(values)))
        else:  # frames that reach beyond the end
            self._last = _counted(values)

    def finish(self, n_samples: int) -> None:
        """Take the end of the recording."""
        values = _counted(self._stream.flush())
        if n_samples:
            values = values if self._last is None else np.concatenate([self._last, values])
            self._ready.append(self._cells.finish(values, n_samples))

    def __len__(self) -> int:
        return sum(map(len, self._ready))

    def take(self, n_cells: int) -> Array:
        """The sums of the next cells."""
        ready = np.concatenate(self._ready)
        self._ready = [ready[n_cells:]]
        return ready[:n_cells]


def _counted(values: Array) -> Array:
    """Single values with how many they are, so that cells give their mean."""
    return values if values.ndim == 2 else np.stack([values, np.ones(len(values))], axis=1)


class _Table:
    """Cells of a recording as they become complete in all streams."""

    def __init__(
        self, recording: str, names: tuple[str, ...], start: float, every: float, sr: int
    ) -> None:
        self._recording, self._names, self._start = recording, names, start
        self._every, self._sr, self._clock = every, sr, clock_time(recording)
        self.n_samples = self._n_cells = 0

    def rows(self, streams: Sequence[_CellStream], is_last: bool = False) -> Iterator[LevelBlock]:
        """The block of all complete cells, where it is long enough."""
        n_cells = min(map(len, streams))
        if not n_cells or (n_cells * self._every < BLOCK_SECONDS and not is_last):
            return
        edges = self._every * np.arange(self._n_cells, self._n_cells + n_cells + 1.0)
        if is_last:
            edges[-1] = self.n_samples / self._sr
        self._n_cells += n_cells
        lengths = np.diff(edges) * self._sr
        energies, *odd = (stream.take(n_cells) for stream in streams)
        with np.errstate(divide="ignore"):
            levels = 10 * np.log10(np.maximum(energies / lengths[:, None], 0))
        oddness = odd[0][:, 0] / odd[0][:, 1] if odd else np.full(n_cells, np.nan)
        edges = edges + self._start
        yield LevelBlock(
            self._recording, self._names, edges[:-1], edges[1:], levels, oddness, self._clock
        )


def _components(models: Any) -> Sources:
    """All components of models, whether or not it is known which of them are a source."""
    if not isinstance(models, (Sources, Mapping)) and getattr(models, "groups", ()) is None:
        return Sources.of({"all": models})
    return Sources.of(models)


def _heard(
    models: Any, by: str | None, sr: int, compute: Compute
) -> HeardComponents | HeardSources:
    if isinstance(models, TrainedModel):
        if by == "component":
            raise ValueError("A trained separator has no components; measure its sources.")
        return HeardSources(models, sr=sr)
    sources = _components(models)
    if by == "component" or (by is None and len(sources.names) == 1):
        return HeardComponents(sources, sr=sr, compute=compute)
    options = {"backend": compute.backend, "device": compute.device, "n_jobs": compute.n_jobs}
    return HeardSources(sources, sr=sr, batch_size=FRAMES_AT_ONCE, **options)


def _name(recording: Any) -> str:
    return str(getattr(recording, "name", "stream") if hasattr(recording, "read") else recording)
