"""Where results are written, how the machine is described, and the options of every script."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from curves import Journal

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from kept import KEPT, machine  # noqa: E402


@dataclass(frozen=True)
class Outputs:
    """Kept results are under version control; quick ones never overwrite them."""

    results: Path
    pages: Path

    @classmethod
    def kept(cls) -> Outputs:
        return cls(ROOT / "experiments" / "results", ROOT / "docs" / "results")

    @classmethod
    def quick(cls) -> Outputs:
        return cls(ROOT / "out" / "quick", ROOT / "out" / "quick" / "results")

    @property
    def figures(self) -> Path:
        return self.pages.parent / "figures"

    def write(self, name: str, results: dict[str, Any], parts: Sequence[str] = ("all",)) -> Path:
        """Keep results with what measured them; see `Kept.write`."""
        return KEPT[name].write(results, parts, self.results / f"{name}.json")

    def journal(self, name: str, settings: Any, about: dict[str, Any]) -> Journal:
        """The runs that an interrupted experiment has finished; seeds may be added to it."""
        same = {key: value for key, value in asdict(settings).items() if key != "seeds"}
        conditions = {"digest": KEPT[name].digest, "settings": same, **about}
        folder = ROOT / "out" / "runs" / self.results.parent.name
        return Journal(folder / f"{name}.jsonl", conditions)


def parse_options(
    description: str | None, sizes: Sequence[str] = (), *, has_jobs: bool = False
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--audio", type=Path, default=Path("audio"), help="where fetch_audio.sh put the recordings"
    )
    parser.add_argument("--quick", action="store_true", help="a short run into out/quick")
    parser.add_argument("--seeds", type=int, help="number of seeds, instead of the script's own")
    parser.add_argument("--seconds", type=float, help="of learning, for each run of the paper's")
    if has_jobs:
        parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a core for each")
    if sizes:
        parser.add_argument(
            "--sizes", nargs="+", choices=sizes, help="only these sets; kept runs of others stay"
        )
    return parser.parse_args()


def changed(settings: Any, options: argparse.Namespace) -> Any:
    """Settings with the seeds and the seconds that were asked for."""
    if options.seeds:
        settings = replace(settings, seeds=tuple(range(options.seeds)))
    return replace(settings, seconds=options.seconds) if options.seconds else settings


def facts(n_jobs: int = 1) -> dict[str, Any]:
    """The machine, and how many runs it made at a time, each on one thread."""
    return machine() | {"threads": 1, "at_a_time": n_jobs}


def conditions(settings: dict[str, Any], machine: dict[str, Any]) -> str:
    """What the paper does not state, in one sentence for the page."""
    frontend = settings["frontend"]
    n_seeds = len(settings["seeds"])
    n_at_a_time = machine.get("at_a_time", 1)
    at_a_time = f"{n_at_a_time} runs at a time, " if n_at_a_time > 1 else ""
    return (
        f"K = {settings['n_components']}, {frontend['sr']} Hz, window {frontend['n_fft']}, hop "
        f"{frontend['n_fft'] // 2}; frames {frontend['top_db']:g} dB below the loudest frame "
        f"of the recording are left out as silent. {n_seeds} "
        f"{'seed' if n_seeds == 1 else 'seeds'}, "
        f"{settings['seconds']:g} processor seconds of learning for each run, scoring not counted; "
        f"backend {machine['backend']}, float32, one thread, {at_a_time}"
        f"{machine['cpu']}, {machine['cores']} cores."
    )
