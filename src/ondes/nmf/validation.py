"""Frames as they are given, checked once: arrays stay arrays, and what is on a device stays there.

Arrays that a CUDA device will work on cross to it here, whole, and are checked there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ondes.nmf.backends import tensors
from ondes.nmf.divergence import Array
from ondes.nmf.settings import Settings

__all__ = ["validate"]

_CPU = 1  # of DLPack


def validate(estimator: Any, X: Any, settings: Settings, reset: bool) -> Array:
    """Nonnegative finite frames, as a C-ordered array or, with PyTorch, maybe as a tensor.

    Parameters
    ----------
    estimator : DictionaryLearner
        Its number of bins is set where `reset`, else compared.
    X : array of shape (n_frames, n_bins), or anything like one
    settings : Settings
    reset : bool

    Examples
    --------
    >>> import ondes
    >>> model = ondes.OnlineNMF(2)
    >>> validate(model, [[1, 2], [3, 4]], model.settings, reset=True).dtype
    dtype('float64')
    """
    name = type(estimator).__name__
    n_bins = settings.n_bins if reset else estimator.n_features_in_
    shape: tuple[int, ...] = tuple(X.shape) if hasattr(X, "shape") else ()
    if len(shape) == 2 and n_bins == shape[0] != shape[1]:
        raise ValueError(
            f"X has {shape[1]} features, but {name} is expecting {n_bins} features as input: its "
            f"shape {shape} looks like (frequency, time); give X.T, one frame per row."
        )
    uses_torch = settings.compute.backend == "torch"
    if tensors.is_foreign(X):
        if uses_torch:
            return _adopted(estimator, X, settings, reset)
        if X.__dlpack_device__()[0] != _CPU:
            raise ValueError(
                f"X is on a GPU, where backend={settings.compute.backend!r} cannot work: give "
                "backend='torch' and device='cuda', or a copy of X on the host."
            )
    frames: Array = estimator.as_frames(X, reset, dtype=[np.float64, np.float32], order="C")
    place = settings.compute.device or "cpu"
    if uses_torch and place.startswith("cuda"):
        from ondes.nmf.backends.devices import ready, torch

        device = torch.device(place)
        ready(place)
        if tensors.fits(frames.nbytes, device):
            there: Any = tensors.upload(frames, device)
            tensors.check(there, name)
            on_device: Array = there
            return on_device
    _check_values(frames, name)
    return frames


def _check_values(frames: Array, name: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(frames.sum()) and frames.min() >= 0:
            return
    from sklearn.utils import assert_all_finite
    from sklearn.utils.validation import check_non_negative

    assert_all_finite(frames, input_name="X", estimator_name=name)
    check_non_negative(frames, name)


def _adopted(estimator: Any, X: Any, settings: Settings, reset: bool) -> Array:
    from ondes.nmf.backends.devices import memory_errors, ready, torch

    device = torch.device(settings.compute.device or "cpu")
    ready(str(device))
    with memory_errors(device):
        frames: Any = tensors.adopt(X, device)
        # An array of the same shape that occupies one number: scikit-learn checks the shape.
        shape = np.broadcast_to(np.zeros(1), tuple(frames.shape))
        estimator.as_frames(shape, reset, dtype=None)
        tensors.check(frames, type(estimator).__name__)
    adopted: Array = frames
    return adopted
