"""The passes of `fit`: over one array or an iterable of arrays, followed by callbacks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.host_trainer import HostTrainer
from ondes.nmf.settings import Settings
from ondes.nmf.statistics import Statistics, Trained
from ondes.nmf.warm_restarts import StoredActivations
from ondes.rebatch import slices

__all__ = [
    "Trainer",
    "at_once",
    "check_iterable",
    "is_iterable_of_arrays",
    "portions",
    "run",
    "stored_activations",
    "trainer",
]


BATCHES_AT_ONCE = 64  # of an iterable, that a device is given


class Trainer(Protocol):
    """What makes the updates: a `HostTrainer` or a `DeviceTrainer`."""

    backend: str
    n_frames_seen: int

    def load(self, components: Array, statistics: Statistics, n_frames_seen: int) -> None:
        """Go on from here."""

    def fetch(self) -> tuple[Array, Statistics]:
        """The dictionary and the statistics."""

    def train(
        self, frames: Array, order: NDArray[np.intp] | None, n_frames_in_set: int | None, /
    ) -> Trained:
        """Make updates from frames, in order."""


def trainer(
    settings: Settings,
    frames: Array,
    before: Trainer | None = None,
    stored: StoredActivations | None = None,
) -> Trainer:
    """The trainer for these frames; the one of before, with its recorded graphs, where it can be.

    Parameters
    ----------
    settings : Settings
    frames : array or tensor of shape (n_frames, n_bins)
    before : Trainer, optional
    stored : StoredActivations, optional
        For warm restarts, which the host makes.
    """
    if stored is not None or not settings.trains_on_device:
        return HostTrainer(settings, stored)
    from ondes.nmf.device_trainer import DeviceTrainer, trainer_for

    return trainer_for(settings, frames, before if isinstance(before, DeviceTrainer) else None)


def portions(
    trainer: Trainer, frames: Array, order: NDArray[np.intp] | None, size: int | None, watched: bool
) -> Iterator[tuple[Array, NDArray[np.intp] | None]]:
    """The frames, and the order of them, that a trainer is given at a time.

    A device needs the host no more until all is done, unless someone looks at each update.
    """
    if not isinstance(trainer, HostTrainer) and not watched:
        size = None
    for rows in slices(len(frames), size or len(frames)):
        yield (frames[rows], None) if order is None else (frames, order[rows])


def stored_activations(frames: Array, settings: Settings) -> StoredActivations | None:
    """Where warm restarts keep the activations of all frames."""
    if settings.restarts != "warm":
        return None
    dtype = tensors.numpy_dtype(frames)
    return StoredActivations(len(frames), settings.n_components, dtype)


def at_once(settings: Settings) -> int:
    """How many frames of an iterable are trained on at a time: whole batches."""
    return (settings.batch_size or 1) * (BATCHES_AT_ONCE if settings.trains_on_device else 1)


def is_iterable_of_arrays(X: Any) -> bool:
    """Tell an iterable of two-dimensional arrays from anything that is one array itself.

    Examples
    --------
    >>> is_iterable_of_arrays([[1.0, 2.0]]), is_iterable_of_arrays(iter([]))
    (False, True)
    """
    if isinstance(X, (str, bytes)) or hasattr(X, "shape") or hasattr(X, "__array__"):
        return False
    if isinstance(X, (list, tuple)):
        return len(X) > 0 and getattr(X[0], "ndim", 0) == 2
    return isinstance(X, Iterable)


def check_iterable(arrays: Iterable[Any], settings: Settings) -> None:
    """Raise a ValueError where these settings cannot be used with an iterable."""
    if settings.restarts == "warm":
        raise ValueError("restarts='warm' needs all frames in one array; use 'fresh'.")
    if settings.n_passes > 1 and iter(arrays) is arrays:
        raise ValueError(
            f"n_passes={settings.n_passes} needs an iterable that can be read again, and this "
            "iterator cannot; give a list of arrays, or n_passes=1."
        )
    if settings.batch_size is None:
        raise ValueError("batch_size=None needs all frames in one array; give a number.")


def run(estimator: Any, one_pass: Callable[[int], bool], n_passes: int, X: Any, y: Any) -> None:
    """Call `one_pass` with 1, 2, … until it returns True.

    Each pass is a task of the callbacks set by `set_callbacks`, which may also end `fit`.
    """

    def is_last(number: int) -> bool:
        is_converged = one_pass(number)
        if estimator.verbose:
            print(
                f"[ondes] pass {number}/{n_passes}, {estimator.n_frames_seen_} frames, divergence "
                f"{estimator.statistics_.divergence_per_bin:.4f} per bin, backend "
                f"{estimator.backend_}",
                file=sys.stderr,
            )
        return is_converged or number == n_passes

    if getattr(estimator, "_skl_callbacks", None):
        from sklearn.callback import with_callbacks

        with_callbacks(_run_tasks)(estimator, is_last, n_passes, {"X": X, "y": y})
        return
    number = 1
    while not is_last(number):
        number += 1


def _run_tasks(
    estimator: Any, is_last: Callable[[int], bool], n_passes: int, data: dict[str, Any]
) -> None:
    fit = estimator._init_callback_context(max_subtasks=n_passes)
    fit.call_on_fit_task_begin(estimator=estimator, **data)
    data = data | {"reconstruction_attributes": {}}  # the estimator is whole after every pass
    for number in itertools.count(1):
        task = fit.subcontext(task_name="pass")
        task.call_on_fit_task_begin(estimator=estimator, **data)
        is_over = is_last(number)
        if task.call_on_fit_task_end(estimator=estimator, **data) or is_over:
            break
    fit.call_on_fit_task_end(estimator=estimator, **data)
