"""The first dictionary: given rows, random frames, centres of clusters of frames, or parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ondes.cores import one_blas_thread
from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array, LevelledFrames, level_frames
from ondes.nmf.settings import Settings
from ondes.nmf.sparse import SparseFrames
from ondes.nmf.statistics import Statistics

__all__ = [
    "cluster_centres",
    "common_weight",
    "first_dictionary",
    "frames_for_parts",
    "parts",
    "random_frames",
]

# Frames to draw from: for k-means++ more take longer and change nothing.
LEAST_CANDIDATES, CANDIDATES_PER_ROW = 1000, 16
# For parts so many values; of a large set a sixteenth, where that leaves less to chance: with few
# components, of which each matters more.
PARTS_VALUES, PARTS_SHARE, PARTS_VALUES_TIMES_ROWS = 2**20, 16, 2**26
# Fewer do not tell which bins move together, and leave no time to recover from a poor start.
FEW_FRAMES = 2000
_KMEANS_ROUNDS = 2
_SPREAD = 0.5  # log-normal width of the variations made where frames are too few
_MOST_BINS = 512  # bins to choose those of `parts` from: the time grows with their number
_ELSEWHERE = 0.05  # what a part has of bins that do not move with it: a zero could never grow
_LITTLE = 0.05  # of the mean in each centre of data that have zeros
_STILL = 1e-6  # a bin that changes by less is constant
_SAME = 1e-5  # a bin that is nearer is the same: float32 has no more digits


@one_blas_thread()
def first_dictionary(
    frames: Array,
    settings: Settings,
    rng: np.random.RandomState,
    sample_weight: Array | None = None,
) -> Array:
    """The fixed rows, then those of `init`; a frame is drawn as often as its weight says."""
    n_bins = frames.shape[1]
    fixed, given = settings.known_rows(n_bins)
    if given is not None:
        return np.concatenate([fixed, given])
    n_drawn = settings.n_components - len(fixed)
    n_candidates = max(LEAST_CANDIDATES, CANDIDATES_PER_ROW * n_drawn)
    order, counts = _candidates(frames, sample_weight, n_candidates, rng)
    n_frames = len(order) if counts is None else max(len(order), float(counts.sum()))

    init = settings.init
    background, bins = settings.background(n_bins), settings.feature_weight(n_bins)
    exponent = settings.level_exponent
    if isinstance(frames, SparseFrames):
        some, counts = order[:n_candidates], None if counts is None else counts[:n_candidates]
        sparse = level_frames(frames[some], background, None, counts, exponent)
        return np.concatenate([fixed, frames_and_mean(sparse, n_drawn, rng)])
    if init == "auto" and n_frames < FEW_FRAMES:
        init = "k-means++"
    elif init == "auto":
        init = "parts" if settings.divergence.beta == 0 else "random"
    if init == "parts":
        n_candidates = max(n_candidates, frames_for_parts(len(order), n_bins, n_drawn))
    candidates = tensors.rows_of(frames, order[:n_candidates])
    if settings.added:
        candidates = candidates + settings.added
    counts = None if counts is None else counts[:n_candidates]
    levelled = level_frames(candidates, background, bins, counts, exponent)
    is_missing, counts = np.isnan(candidates[levelled.active]), levelled.counts
    values = _without_holes(levelled.values, is_missing)
    positive = values + values.dtype.type(settings.floor)
    levelled = replace(levelled, values=positive)
    if init == "random" and exponent and len(positive):
        return np.concatenate([fixed, frames_and_mean(levelled, n_drawn, rng)])
    if not len(order) or init == "random":
        return np.concatenate([fixed, random_frames(positive, n_drawn, rng, counts)])
    if init == "parts":
        return np.concatenate([fixed, parts(positive, n_drawn, rng, counts)])
    centres = cluster_centres(positive, n_drawn, rng, levelled.frame_weights, bins)
    if exponent and len(positive):
        centres = _unit_rows(centres + _LITTLE * _unit_rows(_mean(levelled)[None]))
    return np.concatenate([fixed, centres])


def common_weight(frames: Array, settings: Settings, sample_weight: Array | None = None) -> float:
    """What a frame like these counts in sums over frames, where a prior is measured in frames."""
    if not settings.level_exponent or isinstance(settings.prior, Statistics) or not settings.prior:
        return 1.0
    rows = np.flatnonzero(tensors.active_rows(frames))
    rows = rows[:: len(rows) // LEAST_CANDIDATES + 1]
    some = tensors.on_host(frames[rows]) if len(rows) else None
    if some is None:
        return 1.0
    given = None if sample_weight is None else sample_weight[rows]
    n_bins = frames.shape[1]
    levelled = level_frames(
        some,
        settings.background(n_bins),
        settings.feature_weight(n_bins),
        given,
        settings.level_exponent,
    )
    total = float(levelled.frame_weights.sum())
    return total / levelled.n_frames if total else 1.0


def _candidates(
    frames: Array, sample_weight: Array | None, n: int, rng: np.random.RandomState
) -> tuple[Array, Array | None]:
    """Frames that are not silent in the order to draw them in, and how often each is there.

    Of so few that all are drawn from, equal ones are one with their number, so that a frame with
    the weight 2 is a frame given twice.
    """
    is_there = tensors.active_rows(frames)
    if sample_weight is not None:
        is_there &= sample_weight > 0
    rows = np.flatnonzero(is_there)
    weights = None if sample_weight is None else sample_weight[rows]
    if len(rows) <= n:
        first, counts = _distinct(tensors.rows_of(frames, rows), weights)
        if (counts != 1).any():
            order = np.argsort(rng.exponential(size=len(first)) / counts)
            return rows[first[order]], counts[order]
    if weights is None:
        return rng.permutation(rows), None
    return rows[np.argsort(rng.exponential(size=len(rows)) / weights)], None


def _distinct(frames: Array, weights: Array | None) -> tuple[Array, Array]:
    """The first of each set of equal frames, in an order of their own, and what the set counts."""
    counted: dict[bytes, list[float]] = {}
    for number in range(len(frames)):
        row = frames[number : number + 1]
        key = row.tobytes()
        weight = 1.0 if weights is None else float(weights[number])
        counted.setdefault(key, [number, 0.0])[1] += weight
    found = np.array([counted[key] for key in sorted(counted)]).reshape(-1, 2)
    return found[:, 0].astype(np.intp), found[:, 1]


def _without_holes(frames: Array, is_missing: Array) -> Array:
    """Missing entries have the mean of the other frames in their bin."""
    if not is_missing.any():
        return frames
    n_there = (~is_missing).sum(axis=0)
    sums = np.sum(frames, axis=0, where=~is_missing, dtype=np.float64)
    means = np.divide(sums, n_there, out=np.ones(frames.shape[1]), where=n_there > 0)
    filled: Array = np.where(is_missing, means.astype(frames.dtype), frames)
    return filled


def random_frames(
    frames: Array, n_components: int, rng: np.random.RandomState, counts: Array | None = None
) -> Array:
    """Draw frames without replacement; variations of them where there are too few.

    Parameters
    ----------
    frames : array of shape (n_frames, n_bins), positive
    n_components : int
    rng : numpy RandomState
    counts : array of shape (n_frames,), optional
        How often each frame is there; the frames are in random order then.

    Returns
    -------
    array of shape (n_components, n_bins), float64, rows sum to one
    """
    chosen = (rng.permutation(len(frames)) if counts is None else np.arange(len(frames)))[
        :n_components
    ]
    return _unit_rows(_fill(frames[chosen].astype(np.float64), n_components, rng))


def cluster_centres(
    frames: Array,
    n_components: int,
    rng: np.random.RandomState,
    counts: Array | None = None,
    bins: Array | None = None,
) -> Array:
    """Greedy k-means++, then a few rounds of k-means, in the divergence at the best gain.

    Each next centre is a frame, the best of several that are drawn in proportion to their
    divergence from the nearest centre so far. The mean is the centroid in any Bregman divergence.

    Parameters and result are those of `random_frames`; `bins` has what each bin counts.
    """
    logs = np.log(frames)  # float32 in half the time
    mean_logs = logs.mean(axis=1, dtype=np.float64)
    if bins is not None:
        mean_logs = np.average(logs, axis=1, weights=bins)
    n_trials = 2 + int(np.log(n_components)) if n_components > 1 else 1
    chosen: list[int] = []
    nearest = np.ones(len(frames))
    while len(chosen) < min(n_components, len(frames)) and nearest.any():
        cumulated = np.cumsum(nearest if counts is None else nearest * counts)
        draws = rng.uniform(size=n_trials) * cumulated[-1]
        trials = np.minimum(np.searchsorted(cumulated, draws, side="right"), len(frames) - 1)
        distances = _gain_free_divergence(frames, mean_logs, frames[trials], bins)
        if chosen:
            distances = np.minimum(distances, nearest[:, None])
        totals = distances.sum(axis=0) if counts is None else counts @ distances
        best = int(totals.argmin())
        nearest = distances[:, best]
        nearest[trials[best]] = 0
        chosen.append(int(trials[best]))
    centres = frames[chosen]
    for _ in range(_KMEANS_ROUNDS if 0 < len(chosen) < len(frames) else 0):
        label = _gain_free_divergence(frames, mean_logs, centres, bins).argmin(axis=1)
        for k in np.unique(label):
            members = frames[label == k]
            ratios = members / centres[k]
            if counts is None and bins is None:
                gain = ratios.mean(axis=1, keepdims=True)
                centres[k] = (members / gain).mean(axis=0)
                continue
            gain = np.average(ratios, axis=1, weights=bins)[:, None]
            each = None if counts is None else counts[label == k]
            centres[k] = np.average(members / gain, axis=0, weights=each)
    return _unit_rows(_fill(centres.astype(np.float64), n_components, rng))


def frames_and_mean(frames: LevelledFrames, n_components: int, rng: np.random.RandomState) -> Array:
    """Random frames, half and half with the mean of all: an entry of zero could not grow.

    A frame is drawn as often as it counts. Where loud frames decide the result, those that count
    little would be far from it, and the mini-batches that have the others are few.

    Parameters
    ----------
    frames : LevelledFrames
    n_components : int
    rng : numpy RandomState

    Returns
    -------
    array of shape (n_components, n_bins), float64, rows sum to one
    """
    if frames.frame_weights is None:
        order = rng.permutation(len(frames))
    else:
        order = np.argsort(rng.exponential(size=len(frames)) / frames.frame_weights)
    chosen = frames.values[order[:n_components]]
    if isinstance(chosen, SparseFrames):
        chosen = chosen.toarray()
    rows = chosen.astype(np.float64) + _mean(frames) + _STILL
    return _unit_rows(_fill(rows, n_components, rng))


def _mean(frames: LevelledFrames) -> Array:
    """Of the frames, each as often as it counts."""
    values, weights = frames.values, frames.frame_weights
    matrix = values.matrix if isinstance(values, SparseFrames) else values
    if weights is None:
        mean: Array = matrix.sum(axis=0) / max(1, len(frames))
        return mean
    weighted: Array = matrix.T @ (weights / weights.sum())
    return weighted


def frames_for_parts(n_frames: int, n_bins: int, n_components: int) -> int:
    """How many of the frames to find parts in; of a small set it may be more than there are.

    Examples
    --------
    >>> [frames_for_parts(n, 257, 16) for n in (1000, 100_000, 10**6)]
    [4080, 6250, 16320]
    >>> frames_for_parts(10**6, 257, 64)
    4080
    """
    most = PARTS_VALUES_TIMES_ROWS // max(n_components, 1)
    return max(PARTS_VALUES, min(n_frames * n_bins // PARTS_SHARE, most)) // n_bins


def parts(
    frames: Array, n_components: int, rng: np.random.RandomState, counts: Array | None = None
) -> Array:
    """Sets of bins that move together: clusters of bins, where `cluster_centres` has frames.

    A bin is its logarithm over the frames, less its mean; bins are as near as they correlate.
    Bins are chosen one after the other, each time the one that leaves all bins nearest to those
    chosen; then a few rounds of k-means. A row is the geometric mean of the frames, times the
    correlation of each bin with its centre where that is positive, plus a little.

    Parameters and result are those of `random_frames`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.RandomState(0)
    >>> frames = rng.exponential(size=(100, 2)).repeat(3, axis=1)  # two parts of three bins
    >>> parts(frames, 2, rng).round(1)
    array([[0.3, 0.3, 0.3, 0. , 0. , 0. ],
           [0. , 0. , 0. , 0.3, 0.3, 0.3]])
    """
    logs = np.log(frames)  # float32 where the frames are, in half the time
    mean = logs.mean(axis=0, dtype=np.float64)
    if counts is not None:
        mean = np.average(logs, axis=0, weights=counts)
    logs -= mean.astype(logs.dtype)
    if counts is not None:
        logs *= np.sqrt(counts / counts.mean())[:, None].astype(logs.dtype)
    norms = np.sqrt(np.einsum("tf,tf->f", logs, logs))
    moving = np.flatnonzero(norms > _STILL * np.sqrt(len(frames)))
    among = moving[:: len(moving) // _MOST_BINS + 1]
    if len(moving) == 0:  # nothing to tell bins apart by
        return _unit_rows(_fill(np.exp(mean)[None], n_components, rng))
    bins = logs if len(among) == len(mean) else logs[:, among]
    lengths = norms[among]
    near = bins.T @ bins / (lengths * lengths[:, None])
    weights = _bins_together(near, n_components)
    correlations = np.zeros((weights.shape[1], len(mean)))
    correlations[:, among] = (near @ weights).T
    if len(among) < len(moving):
        centres = bins @ (weights / lengths[:, None])
        correlations[:, moving] = (centres.T @ logs)[:, moving] / norms[moving]
    correlations = np.maximum(correlations, 0)
    return _unit_rows(_fill(np.exp(mean) * (correlations + _ELSEWHERE), n_components, rng))


def _bins_together(near: Array, n: int) -> Array:
    """Up to n clusters of bins, as the weights that bins have in their centres."""
    chosen = _far_bins(near, n)
    weights = np.zeros((len(near), len(chosen)), near.dtype)
    weights[chosen, range(len(chosen))] = 1
    for _ in range(_KMEANS_ROUNDS):
        label = (near @ weights).argmax(axis=1)
        members = (label[:, None] == range(len(chosen))).astype(near.dtype)
        norms = np.sqrt(np.maximum((members * (near @ members)).sum(axis=0), _STILL**2))
        weights = np.where(members.any(axis=0), members / norms, weights)
    return weights


def _far_bins(near: Array, n: int) -> list[int]:
    """Up to n bins, each the one that leaves all bins nearest to those chosen so far."""
    distances = 1 - near
    distances[distances < _SAME] = 0
    nearest = np.full(len(near), 2, near.dtype)
    chosen: list[int] = []
    while len(chosen) < n:
        best = int(np.minimum(distances, nearest[:, None]).sum(axis=0).argmin())
        nearer = np.minimum(distances[:, best], nearest)
        if np.array_equal(nearer, nearest):
            break
        nearest = nearer
        chosen.append(best)
    return chosen


def _gain_free_divergence(
    frames: Array, mean_logs: Array, centres: Array, bins: Array | None = None
) -> Array:
    """log mean(v/c) − mean log(v/c): the divergence per bin of each frame from each centre."""
    if bins is None:
        mean_ratio = frames @ (1 / centres).T / frames.shape[1]
        centre_logs = np.log(centres).mean(axis=1)
    else:
        mean_ratio = frames @ (bins / centres).T / bins.sum()
        centre_logs = np.average(np.log(centres), axis=1, weights=bins)
    divergence: Array = np.log(mean_ratio) - mean_logs[:, None] + centre_logs
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
