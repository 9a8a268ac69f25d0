"""Spatial separation of a stream: frames in, images of the sources out, block by block."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ondes.models.model import Images, Model, SourceVariances, known_power, levelled
from ondes.nmf.encoding import Compute
from ondes.separation.spatial.confidence import THINNED, Confidence, model_shares
from ondes.separation.spatial.pan import PanSolver
from ondes.separation.spatial.places import IN_PHASE, in_phase_share
from ondes.separation.spatial.room import RoomSolver
from ondes.signal.stft import Frames, Stft

__all__ = ["SpatialImages"]

BLOCK, HALF_LIFE = 20.0, 20.0  # seconds
MOST_CHANNELS = 8
DEAD, SAME = 1e-8, 1 - 1e-5  # power relative to the loudest channel; squared coherence


class BlockSolver(Protocol):
    """`RoomSolver`, `PanSolver`."""

    def images(self, frames: Frames, model: SourceVariances) -> Frames:
        """The images of all sources but the last in the next block."""


class SpatialImages:
    """An `ImageStream` of sources that are told apart by where they are, too.

    Frames are collected into blocks, so the result does not depend on how they are pushed.

    Parameters
    ----------
    spatial : {"room", "pan"}
    model : Model
    stft : Stft
        Of the mixture; the model's own at another sampling rate.
    batch_size : int, optional
        Frames in a block; by default 20 s. The output is delayed by as many.
    compute : Compute, optional
        Of the dictionaries that follow the mixture.
    """

    def __init__(
        self,
        spatial: str,
        model: Model,
        stft: Stft,
        batch_size: int | None = None,
        compute: Compute | None = None,
    ) -> None:
        frames_per_second = model.audio.sr / model.audio.stft.hop_length
        if batch_size is None:
            batch_size = max(1, round(BLOCK * frames_per_second))
        self.names, self._audio = model.names, model.audio
        self._spatial, self._n_bins, self._batch_size = spatial, stft.n_bins, batch_size
        self.delay = batch_size - 1
        compute = compute or Compute()
        self._variances = model.variances(stft.n_bins, compute)
        self._half_life = half_life = HALF_LIFE * frames_per_second
        solvers: dict[str, Callable[[], BlockSolver]] = {
            "room": lambda: RoomSolver(len(model.names), half_life, compute.n_threads),
            "pan": lambda: PanSolver(len(model.names), half_life),
        }
        self._new_solver = solvers[spatial]
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what was learned from it."""
        self._waiting: Frames | None = None
        self._solver = self._new_solver()
        self._is_checked = self._has_doubted = False
        self._confidence = Confidence(len(self.names), self._half_life)
        self._variances.reset()

    def look(self, frames: Frames) -> None:
        """Nothing that could be found before a block is complete; see `ImageStream`."""

    def push(self, frames: Frames, looked: Sequence[None]) -> Images:
        """Take the next frames; return the images that are ready; see `ImageStream`."""
        if self._waiting is None:
            self._check_channels(frames)
        waiting = frames if self._waiting is None else np.concatenate([self._waiting, frames])
        n_whole = len(waiting) - len(waiting) % self._batch_size
        blocks = np.split(waiting[:n_whole], max(1, n_whole // self._batch_size))
        self._waiting = waiting[n_whole:].copy()
        images = np.concatenate([self._separated(block) for block in blocks], axis=1)
        return Images(n_whole, lambda rows: images[:, rows])

    def flush(self) -> Images:
        """Return the last images, and reset."""
        waiting = self._waiting
        if waiting is None:
            waiting = np.zeros((0, len(self.names), self._n_bins), np.complex64)
        images = self._separated(waiting)
        self.reset()
        return Images(len(waiting), lambda rows: images[:, rows])

    def _separated(self, block: Frames) -> Frames:
        if not len(block):
            return np.zeros((len(self.names) - 1, *block.shape), np.complex64)
        if not self._is_checked:
            self._is_checked = _warn_of_channels(block, self._spatial)
        scaled, peak = levelled(block)
        power = np.nan_to_num(known_power(scaled, self._audio), copy=False)
        self._variances.follow(power, peak)
        frames = np.ascontiguousarray(np.transpose(block, (2, 1, 0)))
        if self._spatial == "pan":
            images = self._solver.images(frames, self._variances)
        else:
            images = self._demixed(frames)
        return np.transpose(images, (0, 3, 2, 1))

    def _demixed(self, frames: Frames) -> Frames:
        """Images in a room, by the masks of the models where demixing is not to be believed.

        Where most of the sound is in phase, it was produced, and not recorded by microphones.
        """
        if frames.shape[1] == 2 and _are_in_phase(frames[..., ::THINNED]):
            self._doubt("both channels are in phase, as in produced stereo")
        else:
            images = self._solver.images(frames, self._variances)
            if self._confidence.is_demixed(frames, images, self._variances):
                return images
            self._doubt("demixing does not tell the sources apart")
        scaled = frames / max(float(np.abs(frames).max()), 1e-30)
        power = np.square(np.abs(scaled)).mean(axis=1)
        masked: Frames = model_shares(self._variances, power)[:-1, :, None] * frames
        return masked

    def _doubt(self, why: str) -> None:
        """Say once that the models alone separate somewhere."""
        if not self._has_doubted:
            self._has_doubted = True
            warnings.warn(
                f"spatial='room' is not used where {why}; the models alone separate there.",
                stacklevel=5,
            )

    def _check_channels(self, frames: Frames) -> None:
        n_sources, n_channels = len(self.names), frames.shape[1] if frames.ndim == 3 else 1
        if self._spatial == "pan" and n_channels != 2:
            raise ValueError(
                f"spatial='pan' is for two channels, not {n_channels}; use 'room' for several "
                "microphones, or 'none'."
            )
        if self._spatial == "room" and not 2 <= n_channels <= MOST_CHANNELS:
            raise ValueError(
                f"spatial='room' needs 2 to {MOST_CHANNELS} channels, not {n_channels}; use 'none'."
            )
        if self._spatial == "room" and n_sources > n_channels:
            raise ValueError(
                f"spatial='room' separates as many sources as there are channels, and {n_sources} "
                f"sources are more than {n_channels} channels; leave sources out, record with more "
                "microphones, or use 'none' or, for panned stereo, 'pan'."
            )
        if self._spatial == "room" and n_sources < n_channels:
            raise ValueError(
                f"spatial='room' separates as many sources as there are channels, and {n_sources} "
                f"sources are fewer than {n_channels} channels; keep {n_sources} channels, or add "
                "a source with n_free (--free), such as the noise of the room."
            )


def _warn_of_channels(block: Frames, spatial: str) -> bool:
    """Warn where channels do not differ; whether there was sound to tell."""
    scaled: NDArray[np.complex64] = block / max(float(np.abs(block).max()), 1e-30)
    power = np.square(np.abs(scaled)).sum(axis=(0, 2), dtype=np.float64)
    if not power.max() > 0:
        return False
    dead = [str(n + 1) for n in np.flatnonzero(power <= DEAD * power.max())]
    if dead:
        warnings.warn(
            f"Channel {', '.join(dead)} is silent, so spatial={spatial!r} cannot use it; "
            "only the dictionaries are used.",
            stacklevel=4,
        )
        return True
    for i, j in combinations(range(len(power)), 2):
        product = np.abs(np.sum(scaled[:, i] * scaled[:, j].conj(), dtype=np.complex128)) ** 2
        if product > SAME * power[i] * power[j]:
            warnings.warn(
                f"Channels {i + 1} and {j + 1} have the same signal, so spatial={spatial!r} cannot "
                "distinguish places; only the dictionaries are used.",
                stacklevel=4,
            )
            break
    return True


def _are_in_phase(frames: Frames) -> bool:
    left, right = np.moveaxis(frames, 1, 0)
    is_mono = np.array_equal(left, right)  # of which there is a warning already
    return not is_mono and in_phase_share(left, right) > IN_PHASE
