"""PyTorch and its devices, or one sentence on why there is none."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from ondes.nmf.backends import DeviceError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise ImportError(
        "backend='torch' needs PyTorch, which is not installed: pip install 'ondes[torch]', or use "
        "backend='native', which needs no card."
    ) from error

__all__ = ["Tensor", "out_of_memory_said", "ready", "torch", "widest"]


def widest(device: torch.device) -> torch.dtype:
    """What sums are kept in: float64, but where the device has none."""
    return torch.float32 if device.type == "mps" else torch.float64


@functools.cache
def ready(device: str) -> str:
    """What `device` is, in words, once a first number was put on it; DeviceError where none can.

    Examples
    --------
    >>> ready("cpu")
    'cpu'
    """
    kind = torch.device(device).type
    instead = "use device='cpu', or backend='native', which works without a card."
    is_there = kind == "cpu" or getattr(torch, kind).is_available()
    if not is_there:
        raise DeviceError(
            f"device={device!r} was asked for, but PyTorch finds none here: {instead}"
        )
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DeviceError(
            f"device={device!r} cannot be used, it may be taken by another process ({reason}): "
            f"free it, or {instead}"
        ) from error
    return f"{device}: {torch.cuda.get_device_name(device)}" if kind == "cuda" else device


@contextlib.contextmanager
def out_of_memory_said(device: torch.device) -> Iterator[None]:
    """Turn PyTorch's page about full memory into one sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"device='{device}' has too little free memory for this: free some, give fewer frames "
            "at a time, or use backend='native', which works without a card."
        ) from error
