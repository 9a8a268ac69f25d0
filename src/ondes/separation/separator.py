"""A mixture in, its sources out: they sum to the mixture, sample by sample.

Between the Fourier transform of the mixture and its inverse stands a stream of images, which says
what each source contributes to each channel. The result does not depend on how samples are cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.errors import FileError
from ondes.nmf.encoding import Compute
from ondes.nmf.penalties import ActivationPenalty
from ondes.rebatch import slices
from ondes.separation.image_stream import ImageStream, image_stream
from ondes.separation.masked_frames import LOUDEST_SAMPLE, MaskedFrames, MaskStream
from ondes.separation.mixed_sources import AnyModels
from ondes.separation.sources import REST, Models
from ondes.separation.unfolded_masks import TrainedModel
from ondes.signal.excerpt import Excerpt, open_excerpt
from ondes.signal.recordings import PathOrStream, RawFormat
from ondes.signal.stft import Frames

if TYPE_CHECKING:
    from ondes.separation.device_stream import DeviceSeparation

__all__ = ["MaskStream", "Separator", "StemBlocks", "separate", "separate_file"]

Samples = NDArray[np.float32]

MOST_FRAMES_AT_ONCE, VALUES_AT_ONCE = 256, 2**18  # of a frame's channels and bins


class Separator:
    """Separate a stream at constant memory: samples in, samples of each source out.

    By default masks are computed from the mean power of the channels and are the same for each
    channel, so that a source keeps its place in the stereo image. Above the highest frequency of
    the models, the mask of a source is its mean over the octave below. With `spatial`, differences
    between the channels help to separate the sources.

    Parameters
    ----------
    models : mapping of str to Dictionary, one Dictionary with groups, Sources, or TrainedSeparator
        The dictionaries of the sources, or a separator that was trained for them. With `spatial`,
        one value of the mapping may be a trained separator, which adds all of its sources.
    sr : int, optional
        Sampling rate of the mixture; by default that of the models.
    spatial : {"none", "room", "pan"}
        What distinguishes the sources besides their spectra. "room": several microphones, as many
        as sources, from two to eight; a demixing matrix in every bin. "pan": stereo where each
        source is panned to a place of its own; there may be more sources than channels. Both
        work on blocks of 20 s, in which earlier blocks count with a half-life of 20 s.
    residual : str, optional
        Name of one more source, for power beyond ten times what the dictionaries explain. By
        default the sources share all power in proportion.
    adapt : str or sequence of str
        Names of sources whose dictionaries adapt to the mixture while it is separated, with what
        was learned before as a prior. Use it for the source that its dictionary describes less
        well, such as music under a voice.
    n_free : int
        Components learned from the mixture itself while it is separated. They are one more
        source; the given components stay fixed.
    rest : str
        Name of the source of these components.
    penalty : ActivationPenalty, optional
        On the activations, with the sources as groups: with `GroupLog` fewer sources are active
        at a time.
    batch_size : int, optional
        Frames separated at a time, and between two updates of dictionaries that adapt. The output
        is delayed by as many frames. By default 64, or 256 with `adapt` or `n_free`; with `spatial`
        20 s (choose 32 frames for a live stream); with ``backend="torch"``, where everything is
        computed on the device, a minute.
    random_state : int
        Decides the first dictionary of the free components.
    backend, device, n_jobs
        As in `OnlineNMF`.

    Attributes
    ----------
    names : tuple of str
        Names of the sources, in the order of the output.
    sr : int
        Sampling rate of the mixture and of the sources.

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
        models: AnyModels,
        *,
        sr: int | None = None,
        spatial: str = "none",
        residual: str | None = None,
        adapt: str | Sequence[str] = (),
        n_free: int = 0,
        rest: str = REST,
        penalty: ActivationPenalty | None = None,
        batch_size: int | None = None,
        random_state: int = 0,
        backend: str = "auto",
        device: str | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self._images: ImageStream
        compute = Compute(backend, device, n_jobs=n_jobs).in_full_precision()
        self._images, self._stft, model_sr = image_stream(
            models,
            sr,
            spatial=spatial,
            residual=residual,
            adapt=(adapt,) if isinstance(adapt, str) else tuple(adapt),
            n_free=n_free,
            rest=rest,
            penalty=penalty,
            batch_size=batch_size,
            random_state=random_state,
            compute=compute,
        )
        self.names = self._images.names
        self.sr = model_sr if sr is None else sr
        self._on_device: DeviceSeparation | None = None
        if backend == "torch" and isinstance(self._images, MaskedFrames):
            from ondes.separation.device_stream import on_device

            options: dict[str, Any] = {"residual": residual, "penalty": penalty}
            learns = bool(adapt) or n_free > 0
            self._on_device = on_device(
                cast("Models | TrainedModel | MaskStream", models),  # what masks alone are made of
                self._images.masks,
                self._stft,
                self.sr,
                learns,
                compute,
                batch_size,
                **options,
            )
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what was learned from it."""
        self._shape: tuple[int, ...] | None = None
        self._mixture = np.zeros(0, np.float32)  # samples not yet divided among the sources
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
        if self._on_device is not None:
            return self._joined([self._on_device.push(block)])
        parts = []
        n_values = self._stft.n_bins * math.prod(block.shape[1:])
        n_frames = max(1, min(MOST_FRAMES_AT_ONCE, VALUES_AT_ONCE // n_values))
        for rows in slices(len(block), n_frames * self._stft.hop_length):
            self._mixture = np.concatenate([self._mixture, block[rows]])
            parts.append(self._inverted(self._images.push(self._forward.push(block[rows]))))
        return self._joined(parts)

    def flush(self) -> dict[str, Samples]:
        """Return the last samples of each source, and reset."""
        if self._shape is None:
            self._start(())
        if self._on_device is not None:
            joined = self._joined([self._on_device.flush()])
            self.reset()
            return joined
        n_samples = self._forward.n_samples
        last = self._images.push(self._forward.flush())
        parts = [self._inverted(last), self._inverted(self._images.flush())]
        parts.append(self._with_last([inverse.flush(n_samples) for inverse in self._inverses]))
        joined = self._joined(parts)
        self.reset()
        return joined

    def _start(self, shape: tuple[int, ...]) -> None:
        n_channels = shape[0] if shape else None
        self._shape = shape
        if self._on_device is not None:
            self._on_device.start(shape)
        self._forward = self._stft.stream(n_channels)
        self._inverses = [self._stft.inverse_stream(n_channels) for _ in self.names[1:]]
        self._mixture = np.zeros((0, *shape), np.float32)

    def _inverted(self, images: Frames) -> list[Samples]:
        """The samples of each source that these images complete."""
        pairs = zip(self._inverses, images, strict=True)
        return self._with_last([inverse.push(image) for inverse, image in pairs])

    def _with_last(self, others: list[Samples]) -> list[Samples]:
        """All sources: the last is the mixture minus the others, with their rounding."""
        n = len(others[0]) if others else len(self._mixture)
        last = self._mixture[:n].copy()
        self._mixture = self._mixture[n:].copy()
        for other in others:
            last -= other
        return [*others, last]

    def _joined(self, parts: list[list[Samples]]) -> dict[str, Samples]:
        nothing = np.zeros((0, *(self._shape or ())), np.float32)
        return {
            name: np.concatenate([nothing, *(part[source] for part in parts)])
            for source, name in enumerate(self.names)
        }


def separate(
    mixture: ArrayLike, models: AnyModels, *, sr: int, **options: Any
) -> dict[str, Samples]:
    """Separate a mixture in memory.

    Parameters
    ----------
    mixture : array of shape (n,) or (n, n_channels)
    models : mapping of str to Dictionary, one Dictionary with groups, Sources, or TrainedSeparator
    sr : int
        Sampling rate of the mixture.
    **options
        Further parameters of `Separator`.

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
    separator = Separator(models, sr=sr, **options)
    first, last = separator.push(mixture), separator.flush()
    return {name: np.concatenate([first[name], last[name]]) for name in separator.names}


def separate_file(
    path: PathOrStream,
    models: AnyModels,
    *,
    start: float = 0.0,
    end: float | None = None,
    block_size: int = 2**18,
    raw: RawFormat | None = None,
    **options: Any,
) -> StemBlocks:
    """Separate a recording of any length at constant memory, at its own sampling rate.

    Parameters
    ----------
    path : str, Path, RemotePath, Part or binary stream
        As in `ondes.signal.recordings.open_blocks`.
    models : mapping of str to Dictionary, one Dictionary with groups, Sources, or TrainedSeparator
    start, end : float
        The part to separate, in seconds; by default everything.
    block_size : int
        Samples read at a time. The result does not depend on it.
    raw : RawFormat, optional
        Format of samples without a header.
    **options
        Further parameters of `Separator`.

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
    blocks = open_excerpt(path, start=start, end=end, block_size=block_size, raw=raw)
    return StemBlocks(Separator(models, sr=blocks.sr, **options), blocks)


class StemBlocks:
    """Iterator over the stems of a recording, block by block; made by `separate_file`.

    Attributes
    ----------
    names : tuple of str
    sr : int
        Sampling rate of the recording and of its stems.
    channels : int
    """

    def __init__(self, separator: Separator, blocks: Excerpt) -> None:
        self.names, self.sr, self.channels = separator.names, separator.sr, blocks.channels
        self._stems = self._separated(separator, blocks)

    def __iter__(self) -> Iterator[dict[str, Samples]]:
        return self._stems

    def __next__(self) -> dict[str, Samples]:
        return next(self._stems)

    @staticmethod
    def _separated(separator: Separator, blocks: Excerpt) -> Iterator[dict[str, Samples]]:
        damage = None
        with blocks:
            try:
                for block in blocks:
                    yield separator.push(block)
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
