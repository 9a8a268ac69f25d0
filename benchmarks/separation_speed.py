"""How fast separation is on all cores, and how much memory hours of it take; one line of JSON."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SR = 16000
SECONDS = 120


class NoiseStream(io.RawIOBase):
    """So many bytes of int16 noise, made as they are read."""

    def __init__(self, n_bytes: int) -> None:
        self._left = n_bytes
        noise = np.random.default_rng(0).standard_normal(2**20) * 3000
        self._block = noise.astype("<i2").tobytes()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        n = min(self._left, len(self._block), size if size > 0 else len(self._block))
        self._left -= n
        return self._block[:n]


def trained() -> Any:
    """A separator of 128 components for each of two sources, 2048 / 512, with random weights."""
    from ondes.models.trained_separator import TrainedSeparator
    from ondes.nmf.unfolded import UnfoldedWeights
    from ondes.signal.audio_settings import AudioSettings
    from ondes.signal.stft import Stft

    rng = np.random.default_rng(0)
    n_bins, n_rows, contexts = 1025, 256, (3, 9, 31)
    rows = (rng.gamma(0.3, size=(5, n_rows, n_bins)) + 1e-4).astype(np.float32)
    decoder = (rng.gamma(0.3, size=(2, 5, 128, n_bins)) + 1e-4).astype(np.float32)
    weights = UnfoldedWeights(
        rows,
        rows.sum(axis=2) + 2,
        decoder,
        np.zeros((3, n_rows), np.float32),
        contexts,
        12,
        2.5,
        1e-4,
    )
    audio = AudioSettings(SR, Stft(2048, 512), spectrum="magnitude")
    return TrainedSeparator(("speech", "music"), audio, weights)


def dictionaries() -> dict[str, Any]:
    """Two dictionaries as `ondes learn` makes them, from noise."""
    import ondes

    rng = np.random.default_rng(0)
    noise = [(rng.standard_normal(20 * SR) * 0.1).astype(np.float32) for _ in range(2)]
    noise[1] = np.cumsum(noise[1]).astype(np.float32) * 0.01
    return {
        name: ondes.learn(each, sr=SR, n_jobs=-1)
        for name, each in zip(("speech", "music"), noise, strict=True)
    }


def rate(models: Any, **options: Any) -> float:
    """× real time, the best of three."""
    import ondes

    mixture = (np.random.default_rng(1).standard_normal(SECONDS * SR) * 0.1).astype(np.float32)
    best = np.inf
    for _ in range(3):
        begin = time.perf_counter()
        ondes.separate(mixture, models, sr=SR, **options)
        best = min(best, time.perf_counter() - begin)
    return round(SECONDS / best, 1)


def peak_mb(how: str, hours: float) -> float:
    """Peak memory of a process that loads models and separates so many hours, in megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        models = {"talk": trained()} if how == "trained" else dictionaries()
        for name, model in models.items():
            model.save(Path(folder) / f"{name}.ondes")
        call = f"separation_speed.separate_hours({how!r}, {hours}, {folder!r})"
        done = subprocess.run(
            [sys.executable, "-c", f"import separation_speed; {call}"],
            cwd=Path(__file__).resolve().parent,
            check=True,
            capture_output=True,
            text=True,
        )
        return float(done.stdout.split()[-1])


def separate_hours(how: str, hours: float, folder: str) -> None:
    import ondes
    from ondes.separation import separate_file
    from ondes.signal.recordings import RawFormat

    models: Any = {path.stem: ondes.load(path) for path in Path(folder).glob("*.ondes")}
    options = {"n_jobs": -1} | ({"adapt": "music"} if how == "adapted" else {})
    stream = NoiseStream(2 * int(hours * 3600 * SR))
    chosen = models["talk"] if how == "trained" else models
    for _ in separate_file(stream, chosen, raw=RawFormat(SR), **options):
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure(hours: float) -> dict[str, Any]:
    models = dictionaries()
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "trained": rate(trained(), n_jobs=-1),
        "dictionaries": rate(models, n_jobs=-1),
        "adapted": rate(models, adapt="music", n_jobs=-1),
        "free": rate({"speech": models["speech"]}, n_free=8, n_jobs=-1),
    }
    if hours:
        found["peak_mb"] = {how: peak_mb(how, hours) for how in ("trained", "adapted")}
        found["hours"] = hours
    return found
