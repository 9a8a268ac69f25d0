"""Where results are written, how the machine is described, and the options of every script."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ondes

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Outputs:
    """Kept results are under version control; quick ones never overwrite them."""

    results: Path
    page: Path

    @classmethod
    def kept(cls) -> Outputs:
        return cls(ROOT / "experiments" / "results", ROOT / "docs" / "results.md")

    @classmethod
    def quick(cls) -> Outputs:
        return cls(ROOT / "out" / "quick", ROOT / "out" / "quick" / "results.md")

    @property
    def figures(self) -> Path:
        return self.page.parent / "figures"

    def write(self, name: str, results: dict[str, Any]) -> Path:
        self.results.mkdir(parents=True, exist_ok=True)
        path = self.results / f"{name}.json"
        # One line per run: short enough to keep, and a change of one run is a change of one line.
        parts = {key: json.dumps(value, allow_nan=False) for key, value in results.items()}
        if "runs" in results:
            runs = [json.dumps(run, allow_nan=False) for run in results["runs"]]
            parts["runs"] = "[\n  " + ",\n  ".join(runs) + "\n ]"
        body = ",\n".join(f' "{key}": {value}' for key, value in parts.items())
        path.write_text(f"{{\n{body}\n}}\n")
        return path


def parse_options(description: str | None, sizes: Sequence[str] = ()) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--audio", type=Path, default=Path("audio"), help="where fetch_audio.sh put the recordings"
    )
    parser.add_argument("--quick", action="store_true", help="a short run into out/quick")
    parser.add_argument("--seeds", type=int, help="number of seeds, instead of the script's own")
    if sizes:
        parser.add_argument(
            "--sizes", nargs="+", choices=sizes, help="only these sets; kept runs of others stay"
        )
    return parser.parse_args()


def facts() -> dict[str, Any]:
    """The machine and the day; one thread is used on any machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": 1,
        "python": platform.python_version(),
        "ondes": ondes.__version__,
    }


def conditions(settings: dict[str, Any], machine: dict[str, Any]) -> str:
    """What the paper does not state, in one sentence for the page."""
    frontend = settings["frontend"]
    n_seeds = len(settings["seeds"])
    return (
        f"K = {settings['n_components']}, {frontend['sr']} Hz, window {frontend['n_fft']}, hop "
        f"{frontend['n_fft'] // 2}; frames {frontend['top_db']:g} dB below the loudest frame "
        f"of the recording are left out as silent. {n_seeds} "
        f"{'seed' if n_seeds == 1 else 'seeds'}, "
        f"{settings['seconds']:g} processor seconds of learning for each run, scoring not counted; "
        f"backend {machine['backend']}, float32, one thread, "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}."
    )


def _cpu_name() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
