"""What every decoder is, whatever it decodes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["DURATION_SLACK_S", "Decoder"]

# A container's duration is rounded, and counts the encoder's padding.
DURATION_SLACK_S = 0.5


class Decoder(Protocol):
    """What every decoder has."""

    sr: int
    channels: int
    n_samples: int | None
    format: str
    is_seek_exact: bool

    def read(self) -> NDArray[np.float32]:
        """Next samples, (n, channels), valid until the next read; empty at the end."""

    def seek(self, sample: int) -> None:
        """Go to a sample; allowed where `is_seek_exact`."""

    def close(self) -> None:
        """Release the file."""
