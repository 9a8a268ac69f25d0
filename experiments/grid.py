"""The paper's first two experiments: every (β, r) of a grid, batch, and the default, on one track.

Warm restarts with one step per visit, as in the paper. small.py and medium.py set the length of the
excerpt; the rest is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from curves import (
    ENDLESS,
    Run,
    Spread,
    every_fifth_second,
    first_dictionary,
    record_all,
    times_faster,
)
from outputs import facts
from recordings import Frontend

import ondes

IDENTITY_PASSES = 20
PAPER_BETA, PAPER_R = 1000, 0.7  # the paper's choice


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


def run(settings: Settings, frames: np.ndarray, n_jobs: int = 1) -> dict[str, Any]:
    """All runs on these frames, as the JSON keeps them."""
    per_second = round(settings.frontend.sr / settings.frontend.hop_length)
    train, held_out = every_fifth_second(frames, per_second)
    together = [
        (model, train, names | {"n_frames": len(train), "seed": seed})
        for seed in settings.seeds
        for model, names in contestants(settings, train, seed)
    ]
    runs = record_all(together, held_out, settings.seconds, n_jobs)
    return {
        "settings": asdict(settings),
        "machine": facts(n_jobs) | {"backend": runs[-1].backend},
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


def setting_name(beta: int, r: float) -> str:
    return f"β = {beta:,}, r = {r:g}"


class Grid:
    """The results of one set, as figures and claims need them."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.name: str = results["settings"]["name"]
        self.n_train: int = results["n_train"]
        self.betas: list[int] = [beta or self.n_train for beta in results["settings"]["betas"]]
        self.rs: list[float] = results["settings"]["rs"]
        self._cells: dict[tuple[Any, ...], list[Run]] = {}
        for each in (Run(**stored) for stored in results["runs"]):
            self._cells.setdefault((each.algorithm, each.beta, each.r), []).append(each)

    @cached_property
    def batch(self) -> list[Run]:
        return self._cells["batch", None, None]

    @cached_property
    def default(self) -> list[Run]:
        return self._cells["default", None, None]

    def cell(self, beta: int, r: float) -> list[Run]:
        return self._cells["online", beta, r]

    @cached_property
    def cells(self) -> list[tuple[int, float]]:
        return [(beta, r) for beta in self.betas for r in self.rs]

    @property
    def online_betas(self) -> list[int]:
        """Those with at least two updates in a pass: N and what is close to it is batch."""
        return [beta for beta in self.betas if 2 * beta <= self.n_train]

    @property
    def online_cells(self) -> list[tuple[int, float]]:
        return [(beta, r) for beta, r in self.cells if beta in self.online_betas]

    @property
    def ends(self) -> dict[str, float]:
        """Where batch and every cell end, by name."""
        cells = {setting_name(beta, r): self.end(beta, r) for beta, r in self.cells}
        return {"batch": Spread.of(self.batch).end} | cells

    def end(self, beta: int, r: float) -> float:
        return Spread.of(self.cell(beta, r)).end

    def is_unstable(self, beta: int, r: float) -> bool:
        """Whether any seed is."""
        return any(run.is_unstable for run in self.cell(beta, r))

    def times_faster(self, runs: Sequence[Run]) -> float:
        return times_faster(self.batch, runs)

    def beta_name(self, beta: int) -> str:
        return "N" if beta == self.n_train else f"{beta:,}"
