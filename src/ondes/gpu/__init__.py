"""Training on a GPU: samples are copied there, and a dictionary comes back.

What `ondes.training_run` does with ``backend="torch"``, without a frame ever returning to the
host: samples are copied in rounds, as they were decoded; Fourier transform, shuffling, levels and
every update of the dictionary happen on the device. The next round is copied while this one is
learned from, so the recordings may be far larger than the device's memory. It is the same
training: the same batches in the same order, up to rounding.
"""

from ondes.gpu.batches import GpuBatches
from ondes.gpu.frames import FrameMaker, GpuFrameReader
from ondes.gpu.trainer import GpuTrainer, initialise, unsupported

__all__ = [
    "FrameMaker",
    "GpuBatches",
    "GpuFrameReader",
    "GpuTrainer",
    "initialise",
    "unsupported",
]
