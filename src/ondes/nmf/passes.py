"""The passes of `fit`: over one array or an iterable of arrays, followed by callbacks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ondes.nmf.settings import Settings

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """There are no callbacks to support."""


__all__ = ["CallbackSupportMixin", "check_iterable", "is_iterable_of_arrays", "run"]


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
