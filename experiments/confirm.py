"""Whether the present code still reaches the divergences that the paper's experiments keep.

    python experiments/confirm.py [--audio FOLDER] [--sizes small medium large]

Every setting is learned again with one seed, for a tenth of its time. If it has the divergences
that were recorded after as many frames, to five digits, the results are kept as confirmed, and are
not older than the code. Seconds are not measured again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import grid
import large
import numpy as np
from curves import Contestant, TimeUpError, every_fifth_second
from outputs import KEPT, parse_options
from recordings import Frontend, Recordings
from sklearn.base import clone
from threadpoolctl import threadpool_limits

SHARE = 0.1  # of the seconds of a run
N_POINTS = 4
CLOSE = 1e-5


def contestants(
    name: str, results: dict[str, Any], recordings: Recordings
) -> tuple[Iterable[Contestant], np.ndarray]:
    """Those of the first seed with the kept settings, and the frames that are held out."""
    kind: Any = large.Settings if name == "large" else grid.Settings
    stored = {each.name: results["settings"][each.name] for each in fields(kind)}
    settings = kind(**stored | {"frontend": Frontend(**stored["frontend"])})
    seed = settings.seeds[0]
    if name == "large":
        train, held_out, _ = large.frames(settings, recordings)
        return large.contestants(settings, train, seed), held_out
    frames, _ = grid.excerpt(settings, recordings)
    per_second = round(settings.frontend.sr / settings.frontend.hop_length)
    train, held_out = every_fifth_second(frames, per_second)
    return (
        (model, train, names | {"n_frames": len(train)})
        for model, names in grid.contestants(settings, train, seed)
    ), held_out


def points(run: dict[str, Any]) -> dict[int, float]:
    """Some of the divergences of a run, by the frames that were visited before."""
    end = np.searchsorted(run["seconds"], SHARE * run["seconds"][-1], side="right")
    chosen = np.unique(np.linspace(1, max(end - 1, 1), N_POINTS).round().astype(int))
    recorded = [run["divergence"][place] for place in chosen]
    values = [np.inf if value is None else value for value in recorded]
    return dict(zip((run["visited"][place] for place in chosen), values, strict=True))


def reached(contestant: Contestant, held_out: np.ndarray, visited: set[int]) -> dict[int, float]:
    """The divergence after so many frames."""
    model, frames, _ = contestant
    kept: dict[int, np.ndarray] = {}

    def after_update(watched: Any) -> None:
        if watched.n_frames_seen_ in visited:
            kept[watched.n_frames_seen_] = watched.components_
        if watched.n_frames_seen_ >= max(visited):
            raise TimeUpError

    found = {}
    first = frames if isinstance(frames, np.ndarray) else frames[0]
    with threadpool_limits(1), np.errstate(all="ignore"):
        try:
            clone(model).set_params(callback=after_update).fit(frames)
        except TimeUpError:
            scored = clone(model).initialise(first)
            for n_frames, dictionary in kept.items():
                found[n_frames] = np.inf
                if np.isfinite(dictionary).all():
                    scored.restore(replace(scored.state(), components=dictionary))
                    found[n_frames] = -scored.score(held_out)
    return found


def differences(
    results: dict[str, Any], every: Iterable[Contestant], held_out: np.ndarray
) -> Iterator[str]:
    """A sentence for every setting that is not what it was."""
    waiting = [run for run in results["runs"] if run["seed"] == results["settings"]["seeds"][0]]
    for contestant in every:
        names = contestant[2]
        runs = [run for run in waiting if run.items() >= names.items()]
        if not runs:
            yield f"{names} was not measured"
            continue
        (run,) = runs
        waiting.remove(run)
        expected = points(run)
        found = reached(contestant, held_out, set(expected))
        if found.keys() != expected.keys():
            yield f"{names} has updates after other numbers of frames"
        elif not np.allclose(list(found.values()), list(expected.values()), rtol=CLOSE):
            yield f"{names}: {found}, but {expected} was measured"
    for run in waiting:
        yield f"{run['algorithm']}, {run['n_frames']} frames, is no setting any more"


def main() -> None:
    options = parse_options(__doc__, sizes=("small", "medium", "large"))
    recordings, failed = Recordings(options.audio), False
    for name in options.sizes or ("small", "medium", "large"):
        results = KEPT[name].read()
        found = list(differences(results, *contestants(name, results, recordings)))
        print(*found, f"{name}: {len(found)} settings differ", sep="\n")
        failed |= bool(found)
        if not found:
            KEPT[name].confirm()
    sys.exit(failed)


if __name__ == "__main__":
    main()
