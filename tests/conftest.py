"""What many tests share: the backends to run over, and spectrograms made by a known model."""

from __future__ import annotations

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # else scikit-learn skips one of its checks

import numpy as np
import pytest
from hypothesis import settings

from ondes.nmf import backends

settings.register_profile("ondes", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("ondes")

NEEDS_KERNEL = pytest.mark.skipif(
    not backends.kernel_is_built(), reason="the compiled kernel was not built here"
)


@pytest.fixture(params=["reference", pytest.param("native", marks=NEEDS_KERNEL)])
def backend(request):
    return request.param


def spectrogram(n_frames=400, n_bins=33, n_components=5, seed=0, noise=True):
    """Frames of a sparse nonnegative model, with the exponential noise of power spectra."""
    rng = np.random.default_rng(seed)
    dictionary = rng.gamma(0.5, size=(n_components, n_bins)) + 1e-3
    activations = rng.gamma(0.3, size=(n_frames, n_components)) + 1e-3
    frames = activations @ dictionary
    return frames * rng.exponential(size=frames.shape) if noise else frames
