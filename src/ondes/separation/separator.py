"""A mixture in, its sources out: they sum to the mixture, sample by sample.

Between the Fourier transform of the mixture and its inverse, a model says what each source
contributes to each channel. The result does not depend on how samples are cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.cores import each, one_blas_thread
from ondes.errors import FileError
from ondes.models import model as on_host
from ondes.models.adaptation import REST
from ondes.models.combined import Combined, model_of
from ondes.models.dictionary import Dictionary
from ondes.models.loading import from_shelf
from ondes.models.model import LOUDEST_SAMPLE, Images, Model
from ondes.models.sources import Sources
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.encoding import Compute
from ondes.prefetch import prefetch
from ondes.rebatch import slices, taken
from ondes.separation.spatial.stereo import StereoFilter, stereo_images
from ondes.signal.recordings import AudioBlocks, PathOrStream, RawFormat, open_span
from ondes.signal.stft import ROW_GROUP, Stft
from ondes.signal.survey import is_stream

__all__ = [
    "MaskedFrames",
    "Separator",
    "StemBlocks",
    "StemLevels",
    "separate",
    "separate_file",
    "separator_of",
]

Samples = NDArray[np.float32]
Models = Model | Dictionary | Mapping[str, Any]

BLOCKS_AHEAD = 1  # decoded while those before are separated
BLOCK_SIZE = 2**19  # samples: five hundred frames at 16 kHz
SPATIAL = ("none", "auto", "room", "pan")
STEREO_BLOCK, STEREO_HALF_LIFE = 128, 20.0  # frames; seconds
MOST_IN_STEREO = 32  # sources: blocks of the masks of more would fill the memory
MOST_FRAMES_AT_ONCE, VALUES_AT_ONCE = 1024, 2**22  # of a frame's channels and bins
MOST_HELD = 2**26  # samples of all sources under one frame, which are held
VALUES_AT_A_TIME = 2**18  # by each thread: more would leave the caches
# Of a device: what is made of the values stays under a few gigabytes.
DEVICE_SECONDS, DEVICE_VALUES_AT_ONCE = 60.0, 2**24


class ImageStream(Protocol):
    """What each source contributes to each channel: `MaskedFrames`, `SpatialImages`."""

    delay: int  # frames that the images are late by, at most

    def reset(self) -> None:
        """Forget everything pushed so far."""

    def look(self, frames: Any) -> Any:
        """What `push` needs of some frames beside them, found in any thread."""

    def push(self, frames: Any, looked: Sequence[Any]) -> Images:
        """Take the next frames and what `look` found; return the images that are ready."""

    def flush(self) -> Images:
        """Return the last images, and reset."""


class MaskedFrames:
    """An `ImageStream` of masks, which are the same for each channel.

    Parameters
    ----------
    model : Model
    stft : Stft
        Of the mixture; the model's own at another sampling rate.
    compute : Compute
        Of PyTorch, where frames and images are tensors.

    Examples
    --------
    >>> from ondes.models.masks import NoiseSubtraction
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> audio = AudioSettings(8000, Stft(2), fmax=4000)
    >>> model = NoiseSubtraction(("speech", "noise"), audio, np.array([1.0, 2.0]))
    >>> stream = MaskedFrames(model, audio.stft, Compute())
    >>> frames = np.array([[10.0, 2.0]], np.complex64)
    >>> images = stream.push(frames, [stream.look(frames)])
    >>> images.of(slice(0, 1)).real.tolist()
    [[[8.5, 0.0]]]
    """

    def __init__(self, model: Model, stft: Stft, compute: Compute) -> None:
        self._masks = model.masks(compute)
        self.delay = self._masks.delay
        self._audio = model.audio
        self._n_known, self._n_bins = model.audio.n_bins, stft.n_bins
        self._on: Any = on_host
        self._join: Callable[..., Any] = np.concatenate
        if compute.backend == "torch":
            from ondes.separation import device

            self._on, self._join = device, device.concatenate
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._waiting: list[Any] = []
        self._masks.reset()

    def look(self, frames: Any) -> Any:
        """The power of frames in the bins that the model knows, and their amplitudes."""
        scaled, peak = self._on.levelled(frames)
        return self._on.known_power(scaled, self._audio), peak

    def push(self, frames: Any, looked: Sequence[Any]) -> Images:
        """Take the next frames; return images; see `ImageStream`."""
        if len(frames) or not self._waiting:
            self._waiting.append(frames)
        power, peak = (self._join(parts) for parts in zip(*looked, strict=True))
        return self._images(self._masks.push(power, peak))

    def flush(self) -> Images:
        """Return the last images, and reset."""
        images = self._images(self._masks.flush(), is_last=True)
        self.reset()
        return images

    def _images(self, masks: Any, is_last: bool = False) -> Images:
        n_frames = masks.shape[1]
        frames_at = self._next_frames(n_frames)

        def of(rows: slice) -> Any:
            frames, own = frames_at(rows), self._on.with_above(masks[:-1, rows], self._n_bins)
            return self._on.scaled(frames, own[:, :, None] if frames.ndim == 3 else own)

        return Images(n_frames if self._waiting else 0, of)

    def _next_frames(self, n: int) -> Callable[[slice], Any]:
        """Some rows of the next `n` frames, which then wait no longer."""
        parts = self._waiting
        if parts:
            self._waiting = [taken(parts, slice(n, sum(map(len, parts))), self._join)]
        return lambda rows: taken(parts, rows, self._join)


class StereoFrames(MaskedFrames):
    """Masks and, where there are two channels, how the sources lie between them: `StereoFilter`.

    With frames for live sound, images do not wait: what was found in earlier blocks is used.

    Parameters
    ----------
    model, stft, compute
        As of `MaskedFrames`.
    batch_size : int, optional
        Frames in a block, by which the images are late unless the frames are for live sound.
    """

    def __init__(
        self, model: Model, stft: Stft, compute: Compute, batch_size: int | None = None
    ) -> None:
        self._block = batch_size or STEREO_BLOCK
        self._half_life = STEREO_HALF_LIFE * model.audio.sr / model.audio.stft.hop_length
        self._is_live = stft.n_synthesis is not None
        super().__init__(model, stft, compute)
        self.delay += 0 if self._is_live else self._block - 1

    def reset(self) -> None:
        """Forget everything pushed so far."""
        super().reset()
        self._filter = StereoFilter(self._half_life)
        self._late: Any = None  # masks of frames that wait for the end of their block
        self._heard: Any = None  # live: frames and masks of a block that has begun

    def _images(self, masks: Any, is_last: bool = False) -> Images:
        is_stereo = bool(self._waiting) and self._waiting[0].shape[1:-1] == (2,)
        if not is_stereo or not 2 <= len(masks) <= MOST_IN_STEREO:
            return super()._images(masks)
        if self._is_live:
            return self._live_images(masks)
        if self._late is not None:
            masks = self._join([self._late, masks], 1)
        n_frames = masks.shape[1] if is_last else masks.shape[1] // self._block * self._block
        frames_at, self._late = self._next_frames(n_frames), masks[:, n_frames:]
        n_known = min(self._n_known, self._n_bins)
        blocks = list(slices(n_frames, self._block))
        places = []
        for rows in blocks:
            self._filter.learn(frames_at(rows)[..., :n_known], masks[:, rows, :n_known])
            places.append(self._filter.covariances)

        return self._placed(frames_at, masks, n_frames, blocks, places)

    def _live_images(self, masks: Any) -> Images:
        """Images of all frames, by what was found in the blocks before theirs."""
        n_frames, n_known = masks.shape[1], min(self._n_known, self._n_bins)
        frames_at = self._next_frames(n_frames)
        first, blocks, places = 0, [], []
        while first < n_frames:
            n_heard = 0 if self._heard is None else len(self._heard[0])
            rows = slice(first, min(n_frames, first + self._block - n_heard))
            blocks.append(rows)
            places.append(self._filter.covariances)
            now = frames_at(rows)[..., :n_known], masks[:, rows, :n_known]
            if self._heard is not None:
                before = self._heard
                now = self._join([before[0], now[0]]), self._join([before[1], now[1]], 1)
            self._heard = now
            if len(now[0]) == self._block:
                self._filter.learn(*now)
                self._heard = None
            first = rows.stop
        return self._placed(frames_at, masks, n_frames, blocks, places)

    def _placed(
        self,
        frames_at: Callable[[slice], Any],
        masks: Any,
        n_frames: int,
        blocks: list[slice],
        places: list[Any],
    ) -> Images:
        """Images of rows in blocks, each with covariances of its own."""

        def image(rows: slice, covariances: Any) -> Any:
            shares = self._on.with_above(masks[:, rows], self._n_bins)
            return stereo_images(covariances, frames_at(rows), shares)

        def of(rows: slice) -> Any:
            parts = []
            for block, covariances in zip(blocks, places, strict=True):
                own = slice(max(rows.start, block.start), min(rows.stop, block.stop))
                if own.start < own.stop:
                    parts.append(image(own, covariances))
            return self._join(parts, 1) if parts else image(rows, None)

        return Images(n_frames, of)


class Separator:
    """Separate a stream at constant memory: samples in, samples of each source out.

    By default masks are computed from the mean power of the channels and are the same for each
    channel, so that a source keeps its place in the stereo image. Above the highest frequency of
    the model, the mask of a source is its mean over the octave below. With `spatial`, differences
    between the channels help to separate the sources.

    Parameters
    ----------
    model : mapping of str to Dictionary, one Dictionary with groups, Sources, or TrainedSeparator
        The dictionaries of the sources, or a separator that was trained for them. `Sources` may
        adapt to the mixture, or have free components beside them: ``sources.adapting("music")``,
        ``sources.with_free(16)``.
    sr : int, optional
        Sampling rate of the mixture; by default that of the model.
    spatial : {"none", "auto", "room", "pan"}
        What distinguishes the sources besides their spectra. "auto": in stereo, how each source
        lies between left and right, the same at all frequencies; where they lie alike, and for any
        other number of channels, nothing. "room": several microphones, as many as sources, from two
        to eight; a demixing matrix in every bin. "pan": stereo where each source is panned to a
        place of its own; there may be more sources than channels. Earlier blocks count with a
        half-life of 20 s.
    batch_size : int, optional
        Frames separated at a time; the output is delayed by as many. By default as they come; with
        "auto" 128 in stereo, without their delay where the frames are for live sound; with "room"
        and "pan" 20 s (choose 32 frames for a live stream); with ``backend="torch"``, where
        everything is computed on the device, a minute.
    compute : Compute, optional
        Backend, device and threads.

    Attributes
    ----------
    names : tuple of str
        Names of the sources, in the order of the output.
    sr : int
        Sampling rate of the mixture and of the sources.
    delay : int
        Samples that the output of `push` is late by, at most.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.separation import Sources
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> separator = Separator(sources)
    >>> first = separator.push(np.ones(1000))
    >>> last = separator.flush()
    >>> total = sum(np.concatenate([first[name], last[name]]) for name in separator.names)
    >>> bool(np.allclose(total, 1, atol=1e-5))
    True
    """

    def __init__(
        self,
        model: Models,
        *,
        sr: int | None = None,
        spatial: str = "none",
        batch_size: int | None = None,
        compute: Compute | None = None,
    ) -> None:
        if spatial not in SPATIAL:
            raise ValueError(f"spatial={spatial!r} must be one of {', '.join(map(repr, SPATIAL))}.")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be 1 or more.")
        known = model_of(model)
        if len(set(known.names)) < len(known.names):
            raise ValueError(f"Two sources have the same name among {known.names}; rename one.")
        self.names, self.sr = known.names, sr or known.audio.sr
        self._stft = on_host.mixture_stft(known.audio, self.sr)
        compute = (compute or Compute()).in_full_precision()
        self._images: ImageStream
        self._device: str | None = None
        self._n_threads = compute.n_threads
        n_waited = 1 if batch_size is None else batch_size * self._stft.hop_length
        if spatial in ("room", "pan"):
            from ondes.separation.spatial.stream import SpatialImages

            self._images = SpatialImages(spatial, known, self._stft, batch_size, compute)
            n_waited = 1
        else:
            self._images = MaskedFrames(known, self._stft, compute)
            if spatial == "auto":
                self._images = StereoFrames(known, self._stft, compute, batch_size)
            if compute.backend == "torch":
                from ondes.nmf.backends.devices import ready

                self._device = compute.device or "cpu"
                ready(self._device)
                n_waited = round(DEVICE_SECONDS * self.sr) if batch_size is None else n_waited
        self._n_waited = n_waited
        self.delay = self._stft.delay + self._images.delay * self._stft.hop_length + n_waited - 1
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what was learned from it."""
        self._shape: tuple[int, ...] | None = None
        self._mixture = np.zeros(0, np.float32)  # samples not yet divided among the sources
        self._waiting: list[Samples] = []
        self._images.reset()

    def push(self, samples: ArrayLike) -> dict[str, Samples]:
        """Separate the next samples; return those samples of each source that are ready.

        Parameters
        ----------
        samples : array of shape (n,) or (n, n_channels)
            The same channels in every push.

        Returns
        -------
        dict of str to float32 array of shape (m,) or (m, n_channels)
        """
        block = _checked(samples)
        if self._shape is None:
            self._start(block.shape[1:])
        if block.shape[1:] != self._shape:
            raise ValueError(
                f"A block of shape {block.shape} follows blocks of shape (n, *{self._shape}); "
                "keep the number of channels, or flush first."
            )
        self._waiting.append(block)
        if sum(map(len, self._waiting)) < self._n_waited:
            return self._joined([])
        return self._joined(self._advance())

    def flush(self) -> dict[str, Samples]:
        """Return the last samples of each source, and reset."""
        if self._shape is None:
            self._start(())
        parts = self._advance()
        n_samples = self._forward.n_samples
        with one_blas_thread():
            parts.append(self._inverted(self._images_of(self._forward.last_windows())))
            parts.append(self._inverted(self._images.flush()))
        parts.append(self._with_last([inverse.flush(n_samples) for inverse in self._inverses]))
        joined = self._joined(parts)
        self.reset()
        return joined

    def _start(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._mixture = np.zeros((0, *shape), np.float32)
        self._n_values = self._stft.n_bins * math.prod(shape)
        n_held = len(self.names) * math.prod(shape) * self._stft.n_fft
        if n_held > MOST_HELD:
            raise ValueError(
                f"{len(self.names)} sources with frames of {self._stft.n_fft} samples need too "
                "much memory; use fewer of them, or shorter frames."
            )
        self._forward: Any
        self._inverses: list[Any]
        if self._device is None:
            n_channels = shape[0] if shape else None
            self._forward = self._stft.stream(n_channels)
            self._inverses = [self._stft.inverse_stream(n_channels) for _ in self.names[1:]]
            return
        from ondes.separation.device import TensorInverse, TensorTransform

        there = self._stft, shape, self._device
        self._forward = TensorTransform(*there)
        self._inverses = [TensorInverse(*there) for _ in self.names[1:]]

    @one_blas_thread()
    def _advance(self) -> list[list[Samples]]:
        """Separate all samples that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return []
        block = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        most, n_values = MOST_FRAMES_AT_ONCE, VALUES_AT_ONCE
        if self._device is not None:
            most = n_values = DEVICE_VALUES_AT_ONCE
        largest = max(self._n_values, len(self.names) * self._stft.n_bins)
        n_frames = max(1, min(most, n_values // largest))
        parts = []
        for rows in slices(len(block), n_frames * self._stft.hop_length):
            self._mixture = np.concatenate([self._mixture, block[rows]])
            parts.append(self._inverted(self._images_of(self._forward.windows(block[rows]))))
        return parts

    def _images_of(self, windows: Any) -> Images:
        if self._device is not None:
            frames = self._forward.transform(windows)
            return self._images.push(frames, [self._images.look(frames)])
        frames = np.empty((*windows.shape[:-1], self._stft.n_bins), np.complex64)

        def look(rows: slice) -> Any:
            frames[rows] = self._forward.transform(windows[rows])
            return self._images.look(frames[rows])

        return self._images.push(frames, [*self._each(look, len(windows))])

    def _inverted(self, images: Images) -> list[Samples]:
        """The samples of each source that these images complete."""

        def segments(rows: slice) -> list[Any]:
            pairs = zip(self._inverses, images.of(rows), strict=True)
            return [inverse.segments(image) for inverse, image in pairs]

        empty = np.zeros((0, *(self._shape or ())), np.float32)
        added = [[empty] for _ in self._inverses]
        for each_of_source in self._each(segments, images.n_frames):
            for own, inverse, part in zip(added, self._inverses, each_of_source, strict=True):
                own.append(inverse.add(part, self._forward.n_samples))
        return self._with_last([np.concatenate(own) for own in added])

    def _each(self, act: Callable[[slice], Any], n_frames: int) -> Iterator[Any]:
        """What `act` makes of some rows after the other; of no frames, of no rows."""
        size = n_frames
        if self._device is None:
            n_values = self._n_values * max(1, len(self._inverses))
            size = max(1, VALUES_AT_A_TIME // (ROW_GROUP * n_values)) * ROW_GROUP
        parts = list(slices(n_frames, max(1, size))) or [slice(0, 0)]
        return each(act, parts, self._n_threads if len(parts) > 1 else 1)

    def _with_last(self, others: list[Samples]) -> list[Samples]:
        """All sources: the last is the mixture minus the others, with their rounding."""
        n = len(others[0]) if others else len(self._mixture)
        last = self._mixture[:n].copy()
        self._mixture = self._mixture[n:].copy()
        for other in others:
            last -= other
        return [*others, last]

    def _joined(self, parts: list[list[Samples]]) -> dict[str, Samples]:
        if len(parts) == 1:
            return dict(zip(self.names, parts[0], strict=True))
        nothing = np.zeros((0, *(self._shape or ())), np.float32)
        return {
            name: np.concatenate([nothing, *(part[source] for part in parts)])
            for source, name in enumerate(self.names)
        }


def separator_of(
    models: Models,
    *,
    sr: int | None = None,
    spatial: str = "auto",
    adapt: str | Sequence[str] = (),
    n_free: int = 0,
    rest: str = REST,
    random_state: int = 0,
    batch_size: int | None = None,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
) -> Separator:
    """A separator from options; those of `Separator`, and how its model follows the mixture.

    Parameters
    ----------
    models, sr, spatial, batch_size
        As of `Separator`, but `spatial` is "auto" by default. `batch_size` is also how often
        dictionaries that adapt move, by default every 256 frames.
    adapt : str or sequence of str
        Names of sources whose dictionaries adapt to the mixture while it is separated, with what
        was learned before as a prior. Use it for the source that its dictionary describes less
        well, such as music under a voice.
    n_free : int
        Components learned from the mixture itself while it is separated. They are one more
        source; the given components stay fixed.
    rest : str
        Name of the source of these components.
    random_state : int
        Decides the first dictionary of the free components.
    backend, device, n_jobs
        As in `OnlineNMF`.
    """
    if n_free < 0:
        raise ValueError(f"n_free={n_free} must be 0 or more.")
    if adapt and n_free:
        raise ValueError("adapt and n_free cannot be combined; give one of them.")
    model = model_of(models)
    if adapt or n_free:
        if not isinstance(model, (Sources, TrainedSeparator, Combined)):
            raise ValueError("Only dictionaries take adapt or n_free.")
        if adapt:
            names = (adapt,) if isinstance(adapt, str) else tuple(adapt)
            model = model.adapting(*names, batch_size=batch_size)
        else:
            model = model.with_free(n_free, rest, random_state=random_state, batch_size=batch_size)
    compute = Compute(backend, device, n_jobs=n_jobs)
    return Separator(model, sr=sr, spatial=spatial, batch_size=batch_size, compute=compute)


def separate(
    mixture: ArrayLike, models: Models | None = None, *, sr: int, **options: Any
) -> dict[str, Samples]:
    """Separate a mixture in memory.

    Parameters
    ----------
    mixture : array of shape (n,) or (n, n_channels)
    models : mapping of str to Dictionary, one Dictionary with groups, Sources, or TrainedSeparator
        By default the separator ``ondes.load("talk")``, of speech, music and effects.
    sr : int
        Sampling rate of the mixture.
    **options
        `spatial`, `adapt`, `n_free`, `rest`, `random_state`, `batch_size`, `backend`, `device`,
        `n_jobs`: see `ondes.separation.separator.separator_of`.

    Returns
    -------
    dict of str to float32 array of the mixture's shape
        They sum to the mixture.

    Examples
    --------
    >>> import numpy as np
    >>> from ondes.separation import Sources
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.stft import Stft
    >>> rows = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    >>> sources = Sources(rows, np.arange(2), ("low", "high"), AudioSettings(8000, Stft(4)))
    >>> stems = separate(np.ones((10, 2)), sources, sr=8000)
    >>> stems["low"].shape
    (10, 2)
    """
    separator = separator_of(_given(models), sr=sr, **options)
    first, last = separator.push(mixture), separator.flush()
    return {name: np.concatenate([first[name], last[name]]) for name in separator.names}


def _given(models: Models | None) -> Models:
    return from_shelf("talk") if models is None else models


def separate_file(
    path: PathOrStream,
    models: Models | None = None,
    *,
    start: float = 0.0,
    end: float | None = None,
    block_size: int | None = None,
    raw: RawFormat | None = None,
    **options: Any,
) -> StemBlocks:
    """Separate a recording of any length at constant memory, at its own sampling rate.

    Parameters
    ----------
    path : str, Path, RemotePath, Span or binary stream
        As in `ondes.signal.recordings.open_blocks`.
    models : mapping of str to Dictionary, one Dictionary with groups, Sources, or TrainedSeparator
        By default ``ondes.load("talk")``.
    start, end : float
        The part to separate, in seconds; by default everything.
    block_size : int, optional
        Samples read at a time; by default many of a file, and of a stream, for which somebody
        waits, as they come. The result does not depend on it.
    raw : RawFormat, optional
        Format of samples without a header.
    **options
        `spatial`, `adapt`, `n_free`, `rest`, `random_state`, `batch_size`, `backend`, `device`,
        `n_jobs`: see `ondes.separation.separator.separator_of`.

    Returns
    -------
    StemBlocks
        Iterates over dicts of str to float32 array of shape (m, n_channels), the next samples of
        each source.

    Raises
    ------
    FileError
        At once if the recording cannot be opened; if it is damaged later on, after everything
        before the damage has been separated.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from ondes.separation import Sources
    >>> from ondes.signal.audio_settings import AudioSettings
    >>> from ondes.signal.recordings import PathOrStream, RawFormat
    >>> from ondes.signal.stft import Stft
    >>> audio = AudioSettings(8000, Stft(4))
    >>> sources = Sources(np.full((2, 3), 1 / 3), np.arange(2), ("a", "b"), audio)
    >>> blocks = separate_file(io.BytesIO(bytes(2000)), sources, raw=RawFormat(8000))
    >>> sum(len(block["a"]) for block in blocks)
    1000
    """
    if block_size is None and not is_stream(path):
        block_size = BLOCK_SIZE
    blocks = open_span(path, start=start, end=end, block_size=block_size, raw=raw)
    return StemBlocks(separator_of(_given(models), sr=blocks.sr, **options), blocks)


class StemBlocks:
    """Iterator over the stems of a recording, block by block; made by `separate_file`.

    Attributes
    ----------
    names : tuple of str
    sr : int
        Sampling rate of the recording and of its stems.
    channels : int
    """

    def __init__(self, separator: Separator, blocks: AudioBlocks) -> None:
        self.names, self.sr, self.channels = separator.names, separator.sr, blocks.channels
        self._stems = self._separated(separator, blocks)

    def __iter__(self) -> Iterator[dict[str, Samples]]:
        return self._stems

    def __next__(self) -> dict[str, Samples]:
        return next(self._stems)

    @staticmethod
    def _separated(separator: Separator, blocks: AudioBlocks) -> Iterator[dict[str, Samples]]:
        damage = None
        with blocks:
            try:
                n_at_once = max(1, 2 * BLOCK_SIZE // len(separator.names))
                for block in prefetch(blocks, BLOCKS_AHEAD):
                    for rows in slices(len(block), n_at_once):
                        yield separator.push(block[rows])
            except FileError as error:
                damage = error
        yield separator.flush()
        if damage is not None:
            raise damage


def _checked(samples: ArrayLike) -> Samples:
    block = np.asarray(samples)
    if block.ndim not in (1, 2) or block.shape[-1] == 0 < block.ndim - 1:
        raise ValueError(
            f"Samples of shape {block.shape} must be of shape (n,) or (n, n_channels)."
        )
    extremes = (block.min(initial=0), block.max(initial=0))
    if not (extremes[0] > -LOUDEST_SAMPLE and extremes[1] < LOUDEST_SAMPLE):  # also for NaN
        good = np.abs(block) < LOUDEST_SAMPLE
        row = int(np.argmin(good.reshape(len(block), -1).all(axis=1)))
        raise ValueError(
            f"Sample {row} of the block is NaN, infinite or larger than {LOUDEST_SAMPLE:g}; "
            "repair it before separating."
        )
    return block.astype(np.float32)


class StemLevels:
    """Levels of stems relative to their mixture, from one block after the other.

    Examples
    --------
    >>> levels = StemLevels()
    >>> levels.add({"a": np.ones(5), "b": np.full(5, -0.9)})
    >>> {name: round(level) for name, level in levels.decibels().items()}
    {'a': 20, 'b': 19}
    """

    def __init__(self) -> None:
        self._energies: dict[str, float] = {}
        self._total = 0.0

    def add(self, stems: Mapping[str, NDArray[np.floating]]) -> None:
        """Take the next samples of all stems, which sum to the mixture."""
        for name, samples in stems.items():
            self._energies[name] = self._energies.get(name, 0.0) + _energy(samples)
        first, *others = stems.values()
        self._total += _energy(sum(others, first))

    def decibels(self) -> dict[str, float]:
        """Power of each stem relative to that of the mixture, in decibels; NaN for silence."""
        if not self._total:
            return dict.fromkeys(self._energies, float("nan"))
        with np.errstate(divide="ignore"):
            return {
                name: float(10 * np.log10(energy / self._total))
                for name, energy in self._energies.items()
            }


def _energy(samples: NDArray[np.floating]) -> float:
    return float(np.square(samples, dtype=np.float64).sum())
