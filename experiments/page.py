"""Write docs/results.md whole, from the JSON that experiments and benchmarks keep.

    python experiments/page.py [--quick]

Each section is a script with a function `section(results)`, its text, and a JSON file of the same
name under `results` beside it; without that file it is left out. It may also have
`summary(results)`: a sentence for the first paragraph. With --quick everything is read from and
written to out/quick.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import claims
from outputs import ROOT, Outputs, parse_options

PAPER = ("experiments/small.py", "experiments/medium.py", "experiments/large.py")
OTHERS = (
    *("benchmarks/race.py", "benchmarks/separation.py", "benchmarks/scale.py"),
    *("benchmarks/gpu_page.py", "benchmarks/gpu_arrays_page.py", "benchmarks/cluster.py"),
)
HOW_TO_READ = """\
Divergence is Itakura-Saito, per bin, at converged activations, on frames that were not learned \
from: lower is better. “The paper” is Lefèvre, Bach and Févotte (2011), and “the default” is \
`OnlineNMF()` with its default parameters. As in the paper, β is the number of frames per update, \
N the number of all frames, and r the factor by which one pass scales the past. This page is \
written by `experiments/page.py` from measurements, which `make paper` and `make race` repeat."""


def measured(
    scripts: tuple[str, ...], quick: Path | None = None
) -> list[tuple[ModuleType, dict[str, Any]]]:
    """The modules that have a JSON file, each with its content; `quick` is another folder."""
    found = []
    for script in (ROOT / script for script in scripts):
        name = script.stem.removesuffix("_page")  # of a script that needs a GPU to run
        results = (quick or script.parent / "results") / f"{name}.json"
        if results.exists():
            sys.path.insert(0, str(script.parent))
            module = importlib.import_module(script.stem)
            found.append((module, json.loads(results.read_text())))
    return found


def assemble(
    paper: list[tuple[ModuleType, dict[str, Any]]],
    others: list[tuple[ModuleType, dict[str, Any]]],
) -> str:
    of_paper = {module.__name__: results for module, results in paper}
    summaries = [claims.summary(of_paper)] if paper else []
    summaries += [
        module.summary(results) for module, results in others if hasattr(module, "summary")
    ]
    parts = ["# Results", " ".join(summaries), HOW_TO_READ]
    parts += [claims.section(of_paper)] if paper else []
    parts += [module.section(results) for module, results in paper + others]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def main() -> None:
    options = parse_options(__doc__)
    outputs = Outputs.quick() if options.quick else Outputs.kept()
    quick = outputs.results if options.quick else None
    outputs.page.parent.mkdir(parents=True, exist_ok=True)
    outputs.page.write_text(assemble(measured(PAPER, quick), measured(OTHERS, quick)))
    print(outputs.page)


if __name__ == "__main__":
    main()
