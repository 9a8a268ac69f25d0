"""The paper's first two experiments: every (β, r) of a grid, batch, and the default, on one track.

Warm restarts with one step per visit, as in the paper. small.py and medium.py set the length of the
excerpt; the rest is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from curves import ENDLESS, Journal, every_fifth_second, first_dictionary, record_all
from outputs import facts
from recordings import Frontend, Recordings

import ondes
from ondes.signal.recordings import probe

IDENTITY_PASSES = 20


@dataclass(frozen=True)
class Settings:
    name: str
    start_s: float
    end_s: float
    n_components: int
    seconds: float  # of learning, for each run
    seeds: tuple[int, ...]
    betas: tuple[int | None, ...] = (1, 10, 100, 1000, None)  # None: all N frames
    rs: tuple[float, ...] = (0.0, 0.25, 0.5, 0.7, 0.9, 1.0)
    frontend: Frontend = field(default_factory=Frontend)


def excerpt(settings: Settings, recordings: Recordings) -> tuple[np.ndarray, dict[str, Any]]:
    """Frames of the excerpt, and where it lies; of a shorter recording, its end or all of it."""
    path = recordings.excerpt
    start_s, end_s = settings.start_s, settings.end_s
    length_s = probe(path).seconds or end_s
    if length_s < end_s:
        start_s, end_s = max(0.0, start_s - (end_s - length_s)), length_s
    about = {"recording": path.stem, "start_s": round(start_s), "end_s": round(end_s)}
    return settings.frontend.frames(path, start_s, end_s), about


def run(
    settings: Settings,
    frames: np.ndarray,
    n_jobs: int = 1,
    journal: Journal | None = None,
    **about: Any,
) -> dict[str, Any]:
    """All runs on these frames, as the JSON keeps them."""
    per_second = round(settings.frontend.sr / settings.frontend.hop_length)
    train, held_out = every_fifth_second(frames, per_second)
    together = [
        (model, train, names | {"n_frames": len(train), "seed": seed})
        for seed in settings.seeds
        for model, names in contestants(settings, train, seed)
    ]
    runs = record_all(together, held_out, settings.seconds, n_jobs, journal)
    return {
        "settings": asdict(settings),
        "machine": facts(n_jobs) | {"backend": runs[-1].backend},
        **about,
        "n_train": len(train),
        "n_held_out": len(held_out),
        "n_bins": train.shape[1],
        "batch_identity": batch_identity(settings, train),
        "runs": [asdict(each) for each in runs],
    }


def contestants(
    settings: Settings, train: np.ndarray, seed: int
) -> Iterator[tuple[ondes.OnlineNMF, dict[str, Any]]]:
    """Batch and the paper's algorithm from the same first dictionary; the default as it is."""
    common: dict[str, Any] = {"random_state": seed, "n_jobs": 1, "n_passes": ENDLESS}
    shared = common | {"init": first_dictionary(train, settings.n_components, seed)}
    yield ondes.OnlineNMF(settings.n_components, **common), {"algorithm": "default"}
    yield ondes.OnlineNMF.batch(settings.n_components, **shared), {"algorithm": "batch"}
    for beta in (size or len(train) for size in settings.betas):
        for r in settings.rs:
            model = ondes.OnlineNMF.paper(
                settings.n_components, batch_size=beta, r=r, restarts="warm", **shared
            )
            yield model, {"algorithm": "online", "beta": beta, "r": r}


def batch_identity(settings: Settings, train: np.ndarray) -> float:
    """How far β = N, r = 0 ends from batch, as a share of the largest dictionary entry."""
    common: dict[str, Any] = {
        "n_components": settings.n_components,
        "init": first_dictionary(train, settings.n_components, settings.seeds[0]),
        "random_state": 0,
        "n_passes": IDENTITY_PASSES,
    }
    batch = ondes.OnlineNMF.batch(**common).fit(train).components_
    online = ondes.OnlineNMF.paper(**common, batch_size=len(train), r=0.0, restarts="warm")
    return float(np.abs(online.fit(train).components_ - batch).max() / batch.max())
