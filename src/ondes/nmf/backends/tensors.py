"""Arrays and tensors: what may come in, how it gets to a device and back, and its levels there.

PyTorch is imported only where a tensor or a device is asked for.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.divergence import FRAME_WEIGHTS, Array, LevelledFrames
from ondes.rebatch import slices

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "Chain",
    "active_rows",
    "adopt",
    "check",
    "download",
    "fits",
    "has_missing",
    "is_foreign",
    "is_tensor",
    "level",
    "levelled",
    "levels",
    "numpy_dtype",
    "on_host",
    "refuse",
    "rows_of",
    "upload",
]

STAGED_BYTES = 2**22  # copied at a time from a device: it writes one part while another is read
RESIDENT_SHARE = 0.4  # of the free memory that frames may occupy: what is made of them needs more


class Chain:
    """Arrays one after the other as one array of their rows; rows are copied where they are taken.

    Examples
    --------
    >>> chain = Chain([np.zeros((2, 3)), np.ones((1, 3))])
    >>> len(chain), chain[np.array([2, 0])].sum(axis=1)
    (3, array([3., 0.]))
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays])
        self.shape = (len(self), *arrays[0].shape[1:])
        self.dtype = np.result_type(*arrays)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Array:
        numbers = np.arange(len(self))[rows]
        taken = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        where = np.searchsorted(self._ends, numbers, side="right")
        for each, array in enumerate(self._arrays):
            here = where == each
            taken[here] = array[numbers[here] - (self._ends[each] - len(array))]
        return taken

    def any(self, axis: int | None = None) -> Any:
        """As that of an array, for all numbers or for each row; a missing one is none."""
        found = [active_rows(array) for array in self._arrays]
        return any(map(np.any, found)) if axis is None else np.concatenate(found)

    def has_missing(self) -> bool:
        """Whether an entry is missing, NaN."""
        return any(map(has_missing, self._arrays))


def is_tensor(given: Any) -> bool:
    """Whether this is a PyTorch tensor, without importing PyTorch."""
    return "torch" in sys.modules and isinstance(given, sys.modules["torch"].Tensor)


def is_foreign(given: Any) -> bool:
    """Whether this is an array of another library than NumPy that can be shared through DLPack."""
    return hasattr(given, "__dlpack__") and not isinstance(given, (np.ndarray, np.generic))


def adopt(given: Any, device: torch.device) -> Tensor:
    """An array with DLPack as a float tensor on `device`; a copy only where it is not one there."""
    from ondes.nmf.backends.devices import torch

    tensor = given.detach() if is_tensor(given) else torch.utils.dlpack.from_dlpack(given)
    if tensor.is_complex():
        raise ValueError("Complex data not supported: give power or magnitude spectra.")
    if tensor.dtype not in (torch.float32, torch.float64):
        is_short = tensor.is_floating_point()
        tensor = tensor.to(torch.float32 if is_short or device.type == "mps" else torch.float64)
    return tensor.to(device).contiguous()


def fits(n_bytes: int, device: torch.device) -> bool:
    """Whether frames of this size should be held on a CUDA device as whole."""
    from ondes.nmf.backends.devices import torch

    return bool(n_bytes <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0])


def upload(array: Array, device: torch.device) -> Tensor:
    """A copy of an array on `device`."""
    from ondes.nmf.backends.devices import memory_errors, torch

    with memory_errors(device), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays that may not be written to
        return torch.from_numpy(array).to(device, copy=True)


def on_host(frames: Array) -> Array:
    """An array, from an array or a tensor."""
    tensor: Any = frames
    return download(tensor) if is_tensor(tensor) else frames


def numpy_dtype(frames: Array) -> np.dtype[Any]:
    """The type of an array, or of the array that a tensor would become."""
    return np.dtype(str(frames.dtype).removeprefix("torch."))


def active_rows(frames: Array) -> Array:
    """Which rows have a number that is neither zero nor missing."""
    found: Any
    if is_tensor(frames):
        found = cast(Any, frames > 0).any(dim=1).cpu().numpy()
    elif isinstance(frames, np.ndarray):
        found = np.fmax.reduce(frames, axis=1) > 0
    else:
        found = frames.any(axis=1)
    active: Array = found
    return active


def has_missing(frames: Array) -> bool:
    """Whether an entry is missing, NaN."""
    if is_tensor(frames):
        tensor: Any = frames
        return bool(tensor.isnan().any())
    if isinstance(frames, np.ndarray):
        return bool(np.isnan(frames.sum()))
    return isinstance(frames, Chain) and frames.has_missing()


def rows_of(frames: Array, numbers: NDArray[np.intp]) -> Array:
    """Rows of an array or a tensor, as an array."""
    if not is_tensor(frames):
        return frames[numbers]
    from ondes.nmf.backends.devices import torch

    tensor: Any = frames
    return download(tensor[torch.tensor(numbers, device=tensor.device)])


def download(tensor: Tensor) -> Array:
    """A tensor as an array of its own."""
    if tensor.device.type != "cuda":
        return np.array(tensor.numpy(force=True))
    from ondes.nmf.backends.devices import torch

    found: Array = np.empty(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
    row_bytes = max(1, tensor[:1].nbytes)
    waiting: list[tuple[slice, Tensor, torch.cuda.Event]] = []
    for rows in [*slices(len(tensor), max(1, STAGED_BYTES // row_bytes)), None]:
        if rows is not None:
            staged = torch.empty(tensor[rows].shape, dtype=tensor.dtype, pin_memory=True)
            staged.copy_(tensor[rows], non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()  # type: ignore[no-untyped-call]
            waiting.append((rows, staged, event))
        while waiting and (rows is None or len(waiting) > 1):
            done, part, copied = waiting.pop(0)
            copied.synchronize()  # type: ignore[no-untyped-call]
            found[done] = part.numpy()
    return found


def check(frames: Tensor, name: str) -> None:
    """Raise scikit-learn's ValueError for numbers that are not finite or negative."""
    if frames.numel():
        from ondes.nmf.backends.devices import torch

        lowest, highest = torch.stack(frames.aminmax()).tolist()
        if lowest >= 0 and highest < np.inf:
            return
        lowest, highest = torch.stack(frames.nan_to_num(nan=0.0, posinf=np.inf).aminmax()).tolist()
        if lowest >= 0 and highest < np.inf:
            return
        refuse(frames.cpu().numpy(), name)


def refuse(frames: Array, name: str) -> None:
    """Raise scikit-learn's ValueError for numbers that are infinite or negative."""
    from sklearn.utils import assert_all_finite
    from sklearn.utils.validation import check_non_negative

    assert_all_finite(frames, allow_nan=True, input_name="X", estimator_name=name)
    check_non_negative(np.where(np.isnan(frames), 0, frames), name)


def levels(
    frames: Tensor, background: Array | None = None, feature_weight: Array | None = None
) -> Tensor:
    """The level of each frame, as `ondes.nmf.divergence.levels` defines it."""
    from ondes.nmf.backends.devices import widest

    wide = widest(frames.device)
    if feature_weight is None:
        level = frames.sum(dim=1, dtype=wide) / frames.shape[1]
        if not bool(level.isnan().any()):
            return level if background is None else level + float(background.mean())
    weights = entry_weights(frames, feature_weight)
    totals = weights.sum(dim=1, dtype=wide)
    sums = (frames.nan_to_num(nan=0.0) * weights).sum(dim=1, dtype=wide)
    if background is not None:
        sums += (weights @ weights.new_tensor(background)).to(wide)
    return (sums / totals).where(totals > 0, 0.0)


def entry_weights(frames: Tensor, feature_weight: Array | None = None) -> Tensor:
    """What `ondes.nmf.divergence.entry_weights` does."""
    weights = (~frames.isnan()).to(frames.dtype)
    return weights if feature_weight is None else weights * weights.new_tensor(feature_weight)


def levelled(frames: Tensor, level: Tensor) -> Tensor:
    """Frames divided by their levels, which are positive."""
    return (frames / level[:, None]).to(frames.dtype)


def level(
    frames: Tensor,
    background: Array | None = None,
    feature_weight: Array | None = None,
    exponent: float = 0.0,
) -> LevelledFrames:
    """What `ondes.nmf.divergence.level_frames` does, with tensors in the place of arrays."""
    level = levels(frames, background, feature_weight)
    active = level > 0
    if not bool(active.all()):
        frames, level = frames[active], level[active]
    values, weights = levelled(frames, level), None
    if feature_weight is not None or has_missing(cast(Any, values)):
        weights = entry_weights(frames, feature_weight)
        values = values.nan_to_num(nan=1.0)
    each = None if exponent == 0 else (level**exponent).clamp(*FRAME_WEIGHTS)
    parts: Any = values, level, active, weights, None, each
    return LevelledFrames(*parts)
