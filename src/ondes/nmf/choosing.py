"""The number of components: the one that describes best what was not learned from.

More components describe the frames that they are fitted to ever better, also held-out frames, since
activations are fitted to each. Entries that are neither learned from nor fitted to tell: beyond the
right number they are described worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import encode
from ondes.nmf.fitted import checked_weights, is_list_of_arrays
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.settings import Settings
from ondes.nmf.sparse import SparseFrames
from ondes.rebatch import slices

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ComponentChoice", "check_free", "choice_for", "choose_components", "held_out_parts"]

MOST_FRAMES, MOST_SPARSE_FRAMES = 2000, 10_000
N_MASKS, FRAMES_HELD_OUT, FOLDS = 4, 0.2, 4
GROWTH = 1.5  # from one candidate to the next, before the best is approached
N_FALLS, AT_LEAST = 2, 20  # falls in a row end the search, but those of a few components do not
FRAMES_PER_COMPONENT = 10  # at least, where candidates are not given
BLOCK = 2**22  # entries that are scored at a time
# What may have a row or label for each component, and what it must be where there is no number yet.
TIED: dict[str, tuple[Any, str]] = {
    "init": (str, "a name"),
    "start": (str, "a name"),
    "groups": (type(None), "None"),
    "prior": (Real, "a number"),
}


@dataclass(frozen=True, eq=False)
class ComponentChoice:
    """What `ondes.choose_components` found.

    Attributes
    ----------
    n_components : int
        The number that was chosen.
    candidates : array of shape (n_candidates,)
        The numbers that were compared, rising.
    mask_scores : array of shape (n_candidates, n_masks)
        Minus the divergence per held-out entry, for each mask.
    n_frames : int
        How many frames were used.

    Examples
    --------
    >>> import numpy as np
    >>> choice = ComponentChoice(3, np.array([2, 3]), np.array([[-2.0, -2.2], [-1.0, -1.2]]), 100)
    >>> print(choice)
    n_components=3, the largest of 2 candidates from 2 on, by entries held out of 100 frames
    >>> choice.scores.round(6), choice.spread.round(6)
    (array([-2.1, -1.1]), array([0.1, 0.1]))
    """

    n_components: int
    candidates: Array
    mask_scores: Array
    n_frames: int

    @property
    def scores(self) -> Array:
        """The mean over the masks: higher is better."""
        scores: Array = self.mask_scores.mean(axis=1)
        return scores

    @property
    def spread(self) -> Array:
        """The standard error of `scores`, from the differences between masks."""
        n_masks = self.mask_scores.shape[1]
        if n_masks == 1:
            return np.zeros(len(self.candidates))
        spread: Array = self.mask_scores.std(axis=1, ddof=1) / np.sqrt(n_masks)
        return spread

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the scores with their spread, and the number that was chosen; needs Matplotlib.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=(6, 3.5), layout="constrained")[1]
        ax.errorbar(self.candidates, self.scores, self.spread, fmt=".-", capsize=2)
        ax.axvline(self.n_components, color="gray", linestyle="--", linewidth=1)
        ax.set_xscale("log")
        ax.set_xticks(self.candidates, map(str, self.candidates), minor=False)
        ax.minorticks_off()
        ax.set(xlabel="components", ylabel="score of held-out entries")
        ax.set_title(f"{self.n_components} components")
        return ax

    def __str__(self) -> str:
        tried = self.candidates
        is_last = self.n_components == tried[-1] and len(tried) > 1
        which, end = ("the largest of", "on") if is_last else ("of", f"to {tried[-1]}")
        return (
            f"n_components={self.n_components}, {which} {len(tried)} candidates from {tried[0]} "
            f"{end}, by entries held out of {self.n_frames} frames"
        )


def choose_components(
    X: Any,
    candidates: Iterable[int] | None = None,
    *,
    n_masks: int = N_MASKS,
    max_frames: int | None = None,
    sample_weight: Any = None,
    random_state: Any = 0,
    **parameters: Any,
) -> ComponentChoice:
    """Choose the number of components by entries that are held out.

    With each candidate a dictionary is learned from four fifths of the frames, drawn at random. Of
    the other frames a quarter of the bins is predicted from the other bins, each quarter in turn:
    too few components describe these entries badly, and too many do so as well, since they describe
    the noise of the others. The choice is the smallest candidate whose score is within one standard
    error of the best.

    Data that are never exactly a sum of a few parts, such as the sound of an orchestra, have no
    true number: many components are chosen then, up to the largest candidate.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_frames, n_bins), or a list of arrays
        Missing entries are NaN.
    candidates : iterable of int, optional
        By default 2, 3, 4, 6, 9 and so on until the score falls, at most one for ten frames, and
        then numbers about the best.
    n_masks : int
        How often frames and bins are drawn; the choice is by the mean.
    max_frames : int, optional
        At most so many frames, drawn at random, are used: 2000 by default, 10,000 of a sparse
        matrix.
    sample_weight : array of shape (n_frames,), optional
        What each frame counts.
    random_state : int, RandomState or None
        What is drawn depends on this alone.
    **parameters
        Parameters of `OnlineNMF`, such as `beta_loss`: its divergence is the score.

    Returns
    -------
    ComponentChoice
        `n_components`, and for each of `candidates` the `scores` and their `spread`.

    Examples
    --------
    >>> import numpy as np
    >>> import ondes
    >>> rng = np.random.default_rng(0)
    >>> X = rng.poisson(rng.gamma(0.3, 9, size=(300, 3)) @ rng.gamma(0.3, size=(3, 30)))
    >>> ondes.choose_components(X, range(1, 6), beta_loss="kullback-leibler").n_components
    3
    """
    if "n_components" in parameters:
        raise TypeError("choose_components finds n_components: give candidates instead.")
    check_free(parameters)
    learner = DictionaryLearner(1, **parameters, random_state=random_state)
    frames = learner._validate(_floats(X), learner.settings, reset=True)
    weights = checked_weights(sample_weight, len(frames))
    return choice_for(learner.get_params(), frames, weights, candidates, n_masks, max_frames)


def check_free(parameters: Mapping[str, Any]) -> None:
    """Raise a ValueError for a parameter that fixes the number of components."""
    for name, (kind, instead) in TIED.items():
        if name in parameters and not isinstance(parameters[name], kind):
            raise ValueError(
                f"{name} of each component is for a known number of components: give {instead}, "
                "or n_components as a number."
            )


def choice_for(
    parameters: Mapping[str, Any],
    frames: Array,
    sample_weight: Array | None = None,
    candidates: Iterable[int] | None = None,
    n_masks: int = N_MASKS,
    max_frames: int | None = None,
) -> ComponentChoice:
    """Choose for a learner with these parameters; frames and weights are checked."""
    for name, value in {"n_masks": n_masks, "max_frames": max_frames}.items():
        if value is not None and (not isinstance(value, Integral) or value < 1):
            raise ValueError(f"{name}={value!r} must be a whole number from 1.")
    if min(frames.shape) < 2:
        raise ValueError(
            f"X of shape {tuple(frames.shape)} has nothing to hold out: give n_components as a "
            "number, or at least 2 frames of 2 bins."
        )
    seed = _seed(parameters["random_state"])
    frames, weights = _sample(frames, sample_weight, max_frames, seed)
    settings = Settings.from_parameters({**parameters, "n_components": 1})
    least = max(1, settings.n_fixed)
    most = max(least, min(len(frames) // FRAMES_PER_COMPONENT, frames.shape[1]))
    data = _Data(frames, weights, settings, parameters, n_masks, seed)
    if candidates is None:
        scores = _searched(data, least, most)
    else:
        scores = {k: data.scores(k) for k in _checked_candidates(candidates, least)}
    tried = np.array(sorted(scores))
    found = np.array([scores[k] for k in tried])
    return ComponentChoice(_chosen(tried, found), tried, found, len(frames))


def held_out_parts(shape: tuple[int, int], seed: int) -> tuple[Array, Array]:
    """Which frames are held out, and in which fold each bin is; nothing else decides it.

    Each fold of the bins of these frames is predicted from its other bins: every entry of these
    frames is held out once.

    Examples
    --------
    >>> held_out_parts((5, 8), seed=1)
    (array([False,  True, False, False, False]), array([3, 3, 1, 0, 0, 1, 2, 2]))
    """
    rng = np.random.default_rng(seed)
    n_tested = max(1, round(shape[0] * FRAMES_HELD_OUT))
    is_tested = np.arange(shape[0]) < n_tested
    rng.shuffle(is_tested)
    return is_tested, rng.permutation(shape[1]) % FOLDS


@dataclass(frozen=True)
class _Data:
    """The frames, and how candidates are compared on them."""

    frames: Any
    weights: Array | None
    settings: Settings
    parameters: Mapping[str, Any]
    n_masks: int
    seed: int

    def scores(self, n_components: int) -> list[float]:
        """The score for each mask."""
        own = {"n_components": n_components, "n_init": 1, "callback": None, "verbose": 0}
        return [
            self._score({**self.parameters, **own, "random_state": self.seed + n})
            for n in range(self.n_masks)
        ]

    def _score(self, parameters: Mapping[str, Any]) -> float:
        """Learn from some frames; of the others predict each fold of bins from the other bins."""
        is_tested, fold = held_out_parts(self.frames.shape, parameters["random_state"])
        learned, tested = np.flatnonzero(~is_tested), np.flatnonzero(is_tested)
        weights = None if self.weights is None else self.weights[learned]
        learner = DictionaryLearner(**parameters)
        learner.fit(_given(self.frames[learned]), sample_weight=weights)
        total, count = 0.0, 0.0
        for block in slices(len(tested), max(1, BLOCK // self.frames.shape[1])):
            for number in range(min(FOLDS, len(fold))):
                sums = self._sums(learner, tested[block], fold == number)
                total, count = total + sums[0], count + sums[1]
        return -total / count if count else 0.0

    def _sums(
        self, learner: DictionaryLearner, rows: Array, held_out: Array
    ) -> tuple[float, float]:
        """Σ of the divergences of the held-out bins of frames, and of what these entries count."""
        settings, n_bins = learner.settings, self.frames.shape[1]
        background, weights = settings.background(n_bins), settings.feature_weight(n_bins)
        kept = np.flatnonzero(~held_out)
        share = learner.components_[:, kept].sum(axis=1, keepdims=True)
        share = np.maximum(share, np.finfo(np.float64).tiny)
        problem = replace(
            settings.problem(learner.components_, settings.transform_solver),
            dictionary=learner.components_[:, kept] / share,
            background=None if background is None else background[kept],
            feature_weight=None if weights is None else weights[kept],
        )
        encoded = encode(_columns(self.frames[rows], kept), problem, settings.compute)
        levelled = encoded.levelled
        bins, rows = np.flatnonzero(held_out), rows[np.asarray(levelled.active)]
        level = np.asarray(levelled.level)[:, None]
        target = _dense(_columns(self.frames[rows], bins)) / level
        model = (encoded.activations / share.T) @ learner.components_[:, bins]
        if background is not None:
            target += settings.added / level
            model += background[bins] / level
        counts = (~np.isnan(target)).astype(np.float64)
        counts *= 1.0 if self.weights is None else self.weights[rows][:, None]
        counts *= 1.0 if weights is None else weights[bins]
        target = np.where(np.isnan(target), 1.0, target) + settings.floor
        each = settings.divergence.step_terms(target, model + settings.floor, cost=True).cost
        each *= level**settings.level_exponent
        return float(np.sum(each * counts)), float(counts.sum())


def _given(frames: Any) -> Any:
    return frames.matrix if isinstance(frames, SparseFrames) else frames


def _columns(frames: Any, bins: Array) -> Any:
    if isinstance(frames, SparseFrames):
        return SparseFrames.of(frames.matrix[:, bins])
    return np.ascontiguousarray(frames[:, bins])


def _dense(frames: Any) -> Array:
    array = frames.toarray() if isinstance(frames, SparseFrames) else frames
    floats: Array = array.astype(np.float64)
    return floats


def _searched(data: _Data, least: int, most: int) -> dict[int, list[float]]:
    """Candidates that grow until the score falls, and then those about the best one."""
    scores: dict[int, list[float]] = {}

    def best() -> int:
        return max(scores, key=lambda k: np.mean(scores[k]))

    n_components = min(most, max(2, least))
    while True:
        scores[n_components] = data.scores(n_components)
        tried = sorted(scores)
        has_fallen = n_components >= AT_LEAST and tried.index(best()) < len(tried) - N_FALLS
        if has_fallen or n_components >= most:
            break
        n_components = min(most, max(n_components + 1, int(n_components * GROWTH)))
    while True:
        tried = sorted(scores)
        at = tried.index(best())
        below = tried[at - 1] if at else least - 1
        above = tried[at + 1] if at + 1 < len(tried) else tried[at]
        between = {(below + tried[at]) // 2, (tried[at] + above + 1) // 2} - set(scores)
        between = {k for k in between if k >= least}
        if not between:
            return scores
        for k in between:
            scores[k] = data.scores(k)


def _chosen(candidates: Array, scores: Array) -> int:
    """The smallest that is not worse than the best by more than the standard error of that.

    Masks differ more than candidates do, so the error is that of the differences between the two.
    """
    best = int(scores.mean(axis=1).argmax())
    worse = scores[best] - scores
    error = np.zeros(len(scores))
    if scores.shape[1] > 1:
        error = worse.std(axis=1, ddof=1) / np.sqrt(scores.shape[1])
    return int(candidates[np.flatnonzero(worse.mean(axis=1) <= error)[0]])


def _checked_candidates(candidates: Iterable[int], least: int) -> list[int]:
    given = [candidates] if isinstance(candidates, (Integral, str)) else list(candidates)
    for each in given:
        if not isinstance(each, Integral) or isinstance(each, bool) or each < least:
            raise ValueError(f"candidates has {each!r}: give whole numbers from {least}.")
    if not given:
        raise ValueError("candidates is empty: give the numbers to compare, or None.")
    return sorted({int(each) for each in given})


def _sample(
    frames: Any, weights: Array | None, max_frames: int | None, seed: int
) -> tuple[Any, Array | None]:
    """Some of the frames that are not silent, as an array, and their weights."""
    most = max_frames or (MOST_SPARSE_FRAMES if isinstance(frames, SparseFrames) else MOST_FRAMES)
    is_there = tensors.active_rows(frames)
    if weights is not None:
        if not weights.any():
            raise ValueError("sample_weight is zero for all frames: nothing to choose by.")
        is_there = is_there & (weights > 0)
    rows = np.flatnonzero(is_there)
    if not len(rows):
        raise ValueError(
            "All frames are silent or count nothing, so there is nothing to choose by."
        )
    if len(rows) > most:
        rows = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
    some = tensors.rows_of(frames, rows)
    return some, None if weights is None else weights[rows]


def _seed(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        return int(random_state)
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _floats(X: Any) -> Any:
    """Numbers of other types, lists of rows and tables as an array of floats."""
    if hasattr(X, "nnz") or is_list_of_arrays(X) or isinstance(X, np.ma.MaskedArray):
        return X
    if tensors.is_foreign(X):
        return X
    array = np.asarray(X)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
