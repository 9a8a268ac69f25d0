"""Audio embedded in a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

__all__ = ["sound_uris"]

Samples = NDArray[np.float32]

# MP3 is the one compact format that libsndfile writes and every browser plays, Safari included.
MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


def sound_uris(recordings: Sequence[Samples], sr: int) -> list[str]:
    """Encode recordings of shape (n,) or (n, n_channels) as data URIs, all with the same gain.

    The gain is 1, or less where a peak would be clipped, so that levels remain comparable.
    """
    peak = max((float(np.abs(samples).max()) for samples in recordings if samples.size), default=0)
    gain = np.float32(1 / max(peak, 1))
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda samples: _data_uri(gain * samples, sr), recordings))


def _data_uri(samples: Samples, sr: int) -> str:
    import soundfile
    import soxr

    if samples.ndim > 1 and samples.shape[1] > 2:
        samples = samples.mean(axis=1)
    rate = min((rate for rate in MP3_RATES if rate >= sr), default=MP3_RATES[-1])
    if rate != sr:
        samples = soxr.resample(samples, sr, rate)
    # A libsndfile older than 1.1 cannot write MP3; FLAC is ten times larger but plays as widely.
    file_format = "MP3" if "MP3" in soundfile.available_formats() else "FLAC"
    kind = {"MP3": "mpeg", "FLAC": "flac"}[file_format]
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=file_format)
    return f"data:audio/{kind};base64," + base64.b64encode(file.getvalue()).decode("ascii")
