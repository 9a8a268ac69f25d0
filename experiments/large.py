"""The paper's third comparison: an hour and a half of music, online on all of it, batch on subsets.

    python experiments/large.py [--audio FOLDER] [--quick] [--seeds N] [--seconds S] [--jobs N]

Fresh restarts with 100 steps, nothing stored. Writes experiments/results/large.json and
docs/figures/large.svg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import large_report
import numpy as np
from curves import ENDLESS, Journal, every_fifth_second, first_dictionary, record_all
from outputs import Outputs, changed, facts, parse_options
from recordings import Frontend, Recordings, shuffled_frames

import ondes
from ondes.signal.recordings import probe


@dataclass(frozen=True)
class Settings:
    n_components: int = 32
    online: tuple[tuple[int, float], ...] = ((1000, 0.7), (1000, 0.0))  # (β, r), the paper's first
    subsets: tuple[int | None, ...] = (1_000, 10_000, 100_000, None)  # None: all, where it fits
    n_held_out: int = 2_000
    seconds: float = 60.0  # of learning, for each run
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    buffer: int = 10_000  # frames given to `fit` at a time
    frontend: Frontend = field(default_factory=Frontend)


SETTINGS = Settings()
QUICK = replace(SETTINGS, subsets=(1_000, 10_000), seconds=4.0, seeds=(0,), n_held_out=1_000)
NAME = "large"


def run(
    settings: Settings,
    train: np.ndarray,
    held_out: np.ndarray,
    n_jobs: int = 1,
    journal: Journal | None = None,
    **about: Any,
) -> dict[str, Any]:
    """All runs on these frames, which are in random order."""
    together = [
        (model, frames, names | {"seed": seed})
        for seed in settings.seeds
        for model, frames, names in contestants(settings, train, seed)
    ]
    runs = record_all(together, held_out, settings.seconds, n_jobs, journal)
    return {
        "settings": asdict(settings),
        "machine": facts(n_jobs) | {"backend": runs[-1].backend},
        **about,
        "n_train": len(train),
        "n_held_out": len(held_out),
        "n_bins": train.shape[1],
        "runs": [asdict(each) for each in runs],
    }


def contestants(
    settings: Settings, train: np.ndarray, seed: int
) -> Iterator[tuple[ondes.OnlineNMF, Any, dict[str, Any]]]:
    """The online algorithms read one buffer after the other; batch has its subset in one array."""
    buffers = np.array_split(train, -(-len(train) // settings.buffer))
    common: dict[str, Any] = {"random_state": seed, "n_jobs": 1, "n_passes": ENDLESS}
    shared = common | {"init": first_dictionary(buffers[0], settings.n_components, seed)}
    names: dict[str, Any] = {"n_frames": len(train)}
    model = ondes.OnlineNMF(settings.n_components, **common)
    yield model, buffers, names | {"algorithm": "default"}
    for beta, r in settings.online:
        forgetting = ondes.PerPass(r, n_frames=len(train))
        model = ondes.OnlineNMF.paper(
            settings.n_components, batch_size=beta, forgetting=forgetting, **shared
        )
        yield model, buffers, names | {"algorithm": "online", "beta": beta, "r": r}
    for size in settings.subsets:
        subset = train[:size]
        model = ondes.OnlineNMF.batch(settings.n_components, **shared)
        yield model, subset, {"algorithm": "batch", "n_frames": len(subset)}


def frames(settings: Settings, recordings: Recordings) -> tuple[Any, ...]:
    """Frames to learn from and held-out ones, in random order, and what they are.

    Where no recording is held out, because there are few, every fifth second of each is.
    """
    tracks, other_tracks = (recordings.music(held_out) for held_out in (False, True))
    minutes = round(sum(probe(track).seconds or 0 for track in tracks) / 60)
    about = {"minutes": minutes, "n_tracks": len(tracks), "n_other_tracks": len(other_tracks)}
    front = settings.frontend
    if other_tracks:
        train = shuffled_frames(tracks, front)
        return train, shuffled_frames(other_tracks, front, settings.n_held_out), about
    per_second = round(front.sr / front.hop_length)
    parts = [every_fifth_second(front.frames(track), per_second) for track in tracks]
    train, held_out = (np.concatenate(each) for each in zip(*parts, strict=True))
    rng = np.random.default_rng(0)
    held_out = held_out[rng.permutation(len(held_out))[: settings.n_held_out]]
    return train[rng.permutation(len(train))], held_out, about


def main() -> None:
    options = parse_options(__doc__, has_jobs=True)
    settings, outputs = (QUICK, Outputs.quick()) if options.quick else (SETTINGS, Outputs.kept())
    settings = changed(settings, options)
    train, held_out, about = frames(settings, Recordings(options.audio))
    journal = outputs.journal(NAME, settings, about)
    results = run(settings, train, held_out, options.jobs, journal, **about)
    print(outputs.write(NAME, results))
    for path in large_report.draw(results, outputs.figures):
        print(path)


if __name__ == "__main__":
    main()
