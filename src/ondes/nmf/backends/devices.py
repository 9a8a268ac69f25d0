"""PyTorch and its devices, and one-sentence errors where they cannot be used."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from ondes.errors import DeviceError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise ImportError(
        "This needs PyTorch, which is not installed: pip install 'ondes[torch]'; learning and "
        "separating on the CPU do not need it."
    ) from error

__all__ = ["Tensor", "constants", "memory_errors", "ready", "torch", "widest"]


def widest(device: torch.device) -> torch.dtype:
    """The type of sums: float64, or float32 on a device that has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@functools.lru_cache(maxsize=64)
def constants(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor, copied to the device once."""
    return torch.tensor(numbers, dtype=dtype, device=device)


@functools.cache
def ready(device: str) -> str:
    """The name of `device`, once a number has been stored on it; DeviceError where that fails.

    Examples
    --------
    >>> ready("cpu")
    'cpu'
    """
    kind = torch.device(device).type
    instead = "use device='cpu', or backend='native', which needs no GPU."
    is_there = kind == "cpu" or getattr(torch, kind).is_available()
    if not is_there:
        raise DeviceError(
            f"device={device!r} was requested, but PyTorch finds no such device: {instead}"
        )
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DeviceError(
            f"device={device!r} cannot be used; another process may occupy it ({reason}): "
            f"free it, or {instead}"
        ) from error
    return f"{device}: {torch.cuda.get_device_name(device)}" if kind == "cuda" else device


@contextlib.contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Turn PyTorch's long message about full memory into a MemoryError of one sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"device='{device}' has too little free memory for this: free some, give fewer frames "
            "at a time, or use backend='native', which needs no GPU."
        ) from error
