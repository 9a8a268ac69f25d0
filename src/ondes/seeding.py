"""The first dictionary: frames of the data, drawn at random or far apart from each other."""

from __future__ import annotations

import numpy as np

from ondes.divergence import Array

CANDIDATES = 3000  # frames that k-means++ looks at; more cost time and change little
_SPREAD = 0.5  # log-normal width of the variations made where frames are too few


def random_frames(frames: Array, n_components: int, rng: np.random.RandomState) -> Array:
    """Draw frames without replacement; variations of them once there are no more.

    Parameters
    ----------
    frames : array of shape (n_frames, n_bins), positive
    n_components : int
    rng : numpy RandomState

    Returns
    -------
    array of shape (n_components, n_bins), float64, rows sum to one
    """
    chosen = rng.permutation(len(frames))[:n_components]
    return _unit_rows(_fill(frames[chosen].astype(np.float64), n_components, rng))


def distant_frames(frames: Array, n_components: int, rng: np.random.RandomState) -> Array:
    """k-means++ in the Itakura-Saito divergence, whatever the gain between two frames.

    Each next row is a frame drawn in proportion to its divergence from the nearest row so far,
    at the best gain: n_bins · (log mean(v/w) − mean log(v/w)).

    Takes and returns what `random_frames` does.
    """
    if len(frames) > CANDIDATES:
        frames = frames[rng.permutation(len(frames))[:CANDIDATES]]
    frames = frames.astype(np.float64)
    logs = np.log(frames).mean(axis=1)
    chosen: list[int] = []
    nearest = np.ones(len(frames))
    while len(chosen) < min(n_components, len(frames)) and nearest.sum() > 0:
        cumulated = np.cumsum(nearest)
        draw = rng.uniform() * cumulated[-1]
        row = int(np.searchsorted(cumulated, draw, side="right"))
        row = min(row, len(frames) - 1)
        gain = frames @ (1 / frames[row]) / frames.shape[1]
        divergence = np.maximum(np.log(gain) - (logs - logs[row]), 0)
        nearest = divergence if not chosen else np.minimum(nearest, divergence)
        nearest[row] = 0
        chosen.append(row)
    return _unit_rows(_fill(frames[chosen], n_components, rng))


def _fill(rows: Array, n_components: int, rng: np.random.RandomState) -> Array:
    missing = n_components - len(rows)
    if missing <= 0:
        return rows
    if not len(rows):  # nothing but silence: flat spectra, each a little different
        rows = np.ones((1, rows.shape[1]))
    variations = np.exp(_SPREAD * rng.standard_normal((missing, rows.shape[1])))
    return np.concatenate([rows, rows[np.arange(missing) % len(rows)] * variations])[:n_components]


def _unit_rows(rows: Array) -> Array:
    unit: Array = rows / rows.sum(axis=1, keepdims=True)
    return unit


DRAWS = {"k-means++": distant_frames, "random": random_frames}
