"""Sounds of single components: each plays where it is loudest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.encoding import Compute
from ondes.rebatch import slices
from ondes.report.budget import Budget
from ondes.report.content import Sound
from ondes.report.excerpts import ShownExcerpt
from ondes.report.sounds import EncodedSound
from ondes.separation.component_masks import ComponentMasks
from ondes.separation.sources import Sources
from ondes.signal.stft import Frames

__all__ = ["component_sounds"]

Array = NDArray[np.floating]

FRAMES_AT_ONCE = 64


def component_sounds(
    excerpt: ShownExcerpt,
    sources: Sources,
    powers: Array,
    budget: Budget,
    *,
    gain: float,
    compute: Compute | None = None,
) -> dict[int, Sound]:
    """The sounds of the loudest components by their index, as many as the budget allows.

    Parameters
    ----------
    excerpt : ShownExcerpt
    sources : Sources
    powers : array of shape (n_columns, n_components)
        Over equal spans of time.
    budget : Budget
    gain : float
        Of all sounds.
    compute : Compute, optional
        Backend, device and threads.
    """
    players = np.argsort(-powers.sum(axis=0), kind="stable")[: budget.n_players].tolist()
    masks = ComponentMasks(sources, sr=excerpt.sr, compute=compute)
    seconds = excerpt.n_samples / excerpt.sr
    n_windows = max(1, int(np.ceil(seconds / budget.component_seconds - 1e-9))) if players else 0
    edges = np.linspace(0, excerpt.n_samples, n_windows + 1).round().astype(int)
    sounds: dict[int, Sound] = {}
    for window, players_there in enumerate(_loudest_windows(powers, players, n_windows)):
        if players_there:
            first, last = int(edges[window]), int(edges[window + 1])
            found = _sounds(excerpt, masks, players_there, first, last, budget, gain)
            sounds |= dict(zip(players_there, found, strict=True))
    return sounds


def _loudest_windows(powers: Array, players: Sequence[int], n_windows: int) -> list[list[int]]:
    """The components that are loudest in each window of time."""
    windows = np.minimum(np.arange(len(powers)) * n_windows // max(1, len(powers)), n_windows - 1)
    loudest: list[list[int]] = [[] for _ in range(n_windows)]
    for player in players:
        sums = np.bincount(windows, weights=powers[:, player], minlength=n_windows)
        loudest[int(sums.argmax())].append(player)
    return loudest


def _sounds(
    excerpt: ShownExcerpt,
    masks: ComponentMasks,
    players: Sequence[int],
    first: int,
    last: int,
    budget: Budget,
    gain: float,
) -> list[Sound]:
    """In mono, which is half as much to encode."""
    stft, sr = masks.stft, excerpt.sr
    begin = max(0, first - stft.n_fft)
    samples = excerpt.part(begin, min(excerpt.n_samples, last + stft.n_fft))
    frames = stft.forward(samples)
    sounds = [EncodedSound(sr, 1, bit_rate=budget.component_bit_rate, gain=gain) for _ in players]
    inverses = [stft.inverse_stream() for _ in players]
    n_skipped, n_left = [first - begin] * len(players), [last - first] * len(players)

    def write(i: int, heard: NDArray[np.float32]) -> None:
        part = heard[n_skipped[i] :][: n_left[i]]
        n_skipped[i] -= min(n_skipped[i], len(heard))
        n_left[i] -= len(part)
        sounds[i].write(part)

    for rows in slices(len(frames), FRAMES_AT_ONCE):
        encoded, mono = masks.encode(frames[rows]), _in_mono(frames[rows])
        for i, player in enumerate(players):
            write(i, inverses[i].push(masks.mask(encoded, player) * mono))
    for i in range(len(players)):
        write(i, inverses[i].flush(len(samples)))
    start, seconds = first / sr, (last - first) / sr
    return [Sound(sound.finish(), sound.media_type, start, seconds) for sound in sounds]


def _in_mono(frames: Frames) -> Frames:
    """The mean of the channels, or the first one where they would cancel each other."""
    mono: Frames = frames.mean(axis=1)
    is_lost = (
        np.square(np.abs(mono)).sum() < 0.1 * np.square(np.abs(frames)).sum(axis=(0, 2)).mean()
    )
    return frames[:, 0] if is_lost else mono
