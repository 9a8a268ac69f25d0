"""Spatial separation of a stream: frames in, images of the sources out, block by block."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.divergence import Array
from ondes.separation.masked_frames import known_power, levelled
from ondes.separation.mixed_sources import MixedSources
from ondes.separation.sources import Sources
from ondes.separation.spatial.pan import PanSolver
from ondes.separation.spatial.room import RoomSolver
from ondes.separation.spatial.variances import (
    DictionaryVariances,
    MixedVariances,
    SourceVariances,
    TrainedVariances,
)
from ondes.separation.unfolded_masks import TrainedModel
from ondes.signal.stft import Frames, Stft

__all__ = ["SpatialImages"]

BLOCK, HALF_LIFE = 20.0, 20.0  # seconds
MOST_CHANNELS = 8
ALIKE = 0.9999  # cosine between two dictionaries, row by row
DEAD, SAME = 1e-8, 1 - 1e-5  # power relative to the loudest channel; squared coherence


class BlockSolver(Protocol):
    """`RoomSolver`, `PanSolver`."""

    def images(self, frames: Frames, model: SourceVariances) -> Frames:
        """The images of all sources but the last in the next block."""


class Learner(Protocol):
    """`AdaptedSources`, `FreeComponents`."""

    def reset(self) -> None:
        """Forget everything learned."""

    def learn(self, spectra: Array, amplitude: Array) -> Sources:
        """Learn from the next frames, and return all sources as they are known now."""


class SpatialImages:
    """An `ImageStream` of sources that are told apart by where they are, too.

    Frames are collected into blocks, so the result does not depend on how they are pushed.

    Parameters
    ----------
    spatial : {"room", "pan"}
    models : Sources, TrainedModel or MixedSources
    names : tuple of str
        Of the sources, with one that is learned from the mixture.
    stft : Stft
        Of the mixture; the models' own at another sampling rate.
    frames_per_second : float
    learner : AdaptedSources or FreeComponents, optional
        Changes the sources from block to block.
    batch_size : int, optional
        Frames in a block; by default 20 s. The output is delayed by as many.
    """

    def __init__(
        self,
        spatial: str,
        models: Sources | TrainedModel | MixedSources,
        names: tuple[str, ...],
        stft: Stft,
        frames_per_second: float,
        *,
        learner: Learner | None = None,
        batch_size: int | None = None,
    ) -> None:
        if batch_size is None:
            batch_size = max(1, round(BLOCK * frames_per_second))
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be 1 or more.")
        self._trained = None
        if isinstance(models, MixedSources):
            self._trained, models = models.trained, models.sources
        if isinstance(models, Sources):
            _warn_of_dictionaries_alike(models, spatial)
        self.names = names
        self._spatial, self._models, self._n_bins = spatial, models, stft.n_bins
        self._learner, self._batch_size = learner, batch_size
        self._fixed = None if learner is not None else self._variances(models)
        half_life = HALF_LIFE * frames_per_second
        solvers: dict[str, Callable[[], BlockSolver]] = {
            "room": lambda: RoomSolver(len(names), half_life),
            "pan": lambda: PanSolver(len(names), half_life),
        }
        self._new_solver = solvers[spatial]
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far, and what was learned from it."""
        self._waiting: Frames | None = None
        self._solver = self._new_solver()
        self._is_checked = False
        if self._learner is not None:
            self._learner.reset()

    def push(self, frames: Frames) -> Frames:
        """Take the next frames; return the images that are ready of all sources but the last.

        Parameters
        ----------
        frames : complex64 array of shape (n, n_channels, n_bins)

        Returns
        -------
        complex64 array of shape (n_sources - 1, m, n_channels, n_bins)
        """
        if self._waiting is None:
            self._check_channels(frames)
        waiting = frames if self._waiting is None else np.concatenate([self._waiting, frames])
        n_whole = len(waiting) - len(waiting) % self._batch_size
        blocks = np.split(waiting[:n_whole], max(1, n_whole // self._batch_size))
        self._waiting = waiting[n_whole:].copy()
        return np.concatenate([self._images(block) for block in blocks], axis=1)

    def flush(self) -> Frames:
        """Return the last images, and reset."""
        waiting = self._waiting
        if waiting is None:
            waiting = np.zeros((0, len(self.names), self._n_bins), np.complex64)
        images = self._images(waiting)
        self.reset()
        return images

    def _images(self, block: Frames) -> Frames:
        if not len(block):
            return np.zeros((len(self.names) - 1, *block.shape), np.complex64)
        if not self._is_checked:
            self._is_checked = _warn_of_channels(block, self._spatial)
        model = self._model(block)
        images = self._solver.images(np.ascontiguousarray(np.transpose(block, (2, 1, 0))), model)
        return np.transpose(images, (0, 3, 2, 1))

    def _model(self, block: Frames) -> SourceVariances:
        if self._learner is None:
            assert self._fixed is not None
            return self._fixed
        assert isinstance(self._models, Sources)
        scaled, peak = levelled(block)
        spectra = known_power(scaled, self._models.stft.n_bins)
        return self._variances(self._learner.learn(self._models.audio.from_power(spectra), peak))

    def _variances(self, models: Sources | TrainedModel) -> SourceVariances:
        if not isinstance(models, Sources):
            return TrainedVariances(models, self._n_bins)
        together = len(models.names) == len(self._models.names)  # none of them is free
        dictionaries = DictionaryVariances(models, self._n_bins, together=together)
        if self._trained is None:
            return dictionaries
        return MixedVariances(self._trained, dictionaries, self._n_bins)

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


def _warn_of_dictionaries_alike(sources: Sources, spatial: str) -> None:
    rows = sources.dictionary / np.linalg.norm(sources.dictionary, axis=1, keepdims=True)
    own = [rows[sources.source_of == source] for source in range(len(sources.names))]
    for i, j in combinations(range(len(own)), 2):
        same = own[i].shape == own[j].shape and bool(
            (np.sum(own[i] * own[j], axis=1) > ALIKE).all()
        )
        if same:
            warnings.warn(
                f"The sources {sources.names[i]!r} and {sources.names[j]!r} have the same "
                f"dictionary, so spatial={spatial!r} cannot know which is which, and may exchange "
                "them; learn a dictionary for each.",
                stacklevel=4,
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
