"""The Itakura-Saito divergence, and the one place where a frame's level and floor are defined.

The divergence is invariant to scale: d(c·v, c·y) = d(v, y). So every frame is divided by its own
level, and the noise floor ε is relative to that level. The same sound at any volume is then the
same problem, float32 is safe, and a frame's floor depends on that frame alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def itakura_saito(target: Array, model: Array) -> Array:
    """d(target, model) = Σ_bins target/model − log(target/model) − 1, one value per frame.

    Parameters
    ----------
    target, model : arrays of shape (n_frames, n_bins), positive everywhere

    Returns
    -------
    array of shape (n_frames,), float64

    Examples
    --------
    >>> import numpy as np
    >>> itakura_saito(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0]]))
    array([0.])
    """
    ratio = target / model
    each: Array = ratio - np.log(ratio) - 1
    summed: Array = each.sum(axis=1, dtype=np.float64)
    return summed


@dataclass(frozen=True)
class LevelledFrames:
    """The non-silent frames, each divided by its level: what a backend works on.

    Attributes
    ----------
    values : array of shape (n_active, n_bins), float32 or float64, mean near one
    level : array of shape (n_active,), float64; activations times this are in the data's units
    active : boolean array of shape (n_frames,), which of the given frames these are
    """

    values: Array
    level: Array
    active: Array

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Array) -> LevelledFrames:
        level = self.level[rows]
        everything = np.ones(len(level), dtype=bool)
        return LevelledFrames(self.values[rows], level, everything)

    def spread(self, rows: Array) -> Array:
        """One row per given frame, from one per active frame; silent frames get zeros."""
        whole = np.zeros((len(self.active), *rows.shape[1:]), dtype=rows.dtype)
        whole[self.active] = rows
        return whole


def level_frames(frames: Array, background: Array | None = None) -> LevelledFrames:
    """Divide each frame by its level: its mean power, plus that of the known background.

    A frame whose level is zero is silent: there is nothing to explain, and it is left out.

    Parameters
    ----------
    frames : array of shape (n_frames, n_bins), nonnegative
    background : array of shape (n_bins,), optional
        A known variance that the model adds to every frame.
    """
    level = np.sum(frames, axis=1, dtype=np.float64) / frames.shape[1]
    if background is not None:
        level = level + background.mean()
    active = level > 0
    if not active.all():
        frames, level = frames[active], level[active]
    values = np.divide(frames, level[:, None], dtype=np.float64).astype(frames.dtype)
    return LevelledFrames(values, level, active)
