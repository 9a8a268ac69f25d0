"""The first dictionary: given rows, random frames of the data, or centres of clusters of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array, level_frames
from ondes.nmf.settings import Settings

__all__ = ["cluster_centres", "first_dictionary", "random_frames"]

# Frames to draw from: for k-means++ more take longer and change nothing.
LEAST_CANDIDATES, CANDIDATES_PER_ROW = 1000, 16
_KMEANS_ROUNDS = 2
_SPREAD = 0.5  # log-normal width of the variations made where frames are too few


def first_dictionary(frames: Array, settings: Settings, rng: np.random.RandomState) -> Array:
    """The fixed rows, then those of `init`.

    Parameters
    ----------
    frames : array or tensor of shape (n_frames, n_bins), nonnegative
        Silent ones are not drawn.
    settings : Settings
    rng : numpy RandomState

    Returns
    -------
    array of shape (n_components, n_bins), float64, rows sum to one
    """
    fixed, given = settings.known_rows(frames.shape[1])
    if given is not None:
        return np.concatenate([fixed, given])
    n_drawn = settings.n_components - len(fixed)
    n_candidates = max(LEAST_CANDIDATES, CANDIDATES_PER_ROW * n_drawn)
    is_active: Any = frames.any(axis=1)
    active = np.flatnonzero(is_active.cpu() if tensors.is_tensor(is_active) else is_active)
    candidates = tensors.rows_of(frames, rng.permutation(active)[:n_candidates])
    levelled = level_frames(candidates, settings.background(frames.shape[1])).values
    positive = levelled + levelled.dtype.type(settings.noise_floor)
    draw = random_frames if settings.init == "random" else cluster_centres
    return np.concatenate([fixed, draw(positive, n_drawn, rng)])


def random_frames(frames: Array, n_components: int, rng: np.random.RandomState) -> Array:
    """Draw frames without replacement; variations of them where there are too few.

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


def cluster_centres(frames: Array, n_components: int, rng: np.random.RandomState) -> Array:
    """Greedy k-means++, then a few rounds of k-means, in the divergence at the best gain.

    Each next centre is a frame, the best of several that are drawn in proportion to their
    divergence from the nearest centre so far. The mean is the centroid in any Bregman divergence.

    Parameters and result are those of `random_frames`.
    """
    frames = frames.astype(np.float64)
    mean_logs = np.log(frames).mean(axis=1)
    n_trials = 2 + int(np.log(n_components)) if n_components > 1 else 1
    chosen: list[int] = []
    nearest = np.ones(len(frames))
    while len(chosen) < min(n_components, len(frames)) and nearest.any():
        cumulated = np.cumsum(nearest)
        draws = rng.uniform(size=n_trials) * cumulated[-1]
        trials = np.minimum(np.searchsorted(cumulated, draws, side="right"), len(frames) - 1)
        distances = _gain_free_divergence(frames, mean_logs, frames[trials])
        if chosen:
            distances = np.minimum(distances, nearest[:, None])
        best = int(distances.sum(axis=0).argmin())
        nearest = distances[:, best]
        nearest[trials[best]] = 0
        chosen.append(int(trials[best]))
    centres = frames[chosen]
    for _ in range(_KMEANS_ROUNDS if 0 < len(chosen) < len(frames) else 0):
        label = _gain_free_divergence(frames, mean_logs, centres).argmin(axis=1)
        for k in np.unique(label):
            members = frames[label == k]
            gain = (members / centres[k]).mean(axis=1, keepdims=True)
            centres[k] = (members / gain).mean(axis=0)
    return _unit_rows(_fill(centres, n_components, rng))


def _gain_free_divergence(frames: Array, mean_logs: Array, centres: Array) -> Array:
    """log mean(v/c) − mean log(v/c): the divergence per bin of each frame from each centre."""
    mean_ratio = frames @ (1 / centres).T / frames.shape[1]
    divergence: Array = np.log(mean_ratio) - mean_logs[:, None] + np.log(centres).mean(axis=1)
    return np.maximum(divergence, 0)


def _fill(rows: Array, n_components: int, rng: np.random.RandomState) -> Array:
    missing = n_components - len(rows)
    if missing <= 0:
        return rows
    if not len(rows):  # silence only: flat spectra, each slightly different
        rows = np.ones((1, rows.shape[1]))
    variations = np.exp(_SPREAD * rng.standard_normal((missing, rows.shape[1])))
    return np.concatenate([rows, rows[np.arange(missing) % len(rows)] * variations])[:n_components]


def _unit_rows(rows: Array) -> Array:
    unit: Array = rows / rows.sum(axis=1, keepdims=True)
    return unit
