"""Limit the kernel's number of instructions: repeatable on a loaded machine, unlike seconds.

    python benchmarks/gate.py            fail where a count rose by more than 5 %
    python benchmarks/gate.py --update   keep today's counts as the new limit

Counts depend on the compiler, whose version is kept with them; with another they are printed, not
judged. Valgrind has no AVX-512, so v4, the same source at twice the width of v3, is not counted.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = Path(__file__).parent / "gate.json"
TOLERANCE = 0.05


def build() -> Path:
    folder = ROOT / "build" / "gate"
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder)]
    subprocess.run(
        [*configure, f"-DPython_EXECUTABLE={sys.executable}"], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(
        ["cmake", "--build", str(folder), "--target", "driver", "-j2"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder / "driver"


def instructions(*command: str) -> int:
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    run = subprocess.run([*valgrind, *command], check=True, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if found is None:
        raise RuntimeError(f"valgrind counted nothing:\n{run.stderr}")
    return int(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="keep today's counts")
    options = parser.parse_args()

    driver = build()
    isas = ("v2", "v3") if platform.machine() in ("x86_64", "AMD64") else ("baseline",)
    counts = {
        f"{isa} {dtype} {solver}": instructions(str(driver), isa, dtype, solver, "1")
        for isa in isas
        for dtype in ("float32", "float64")
        for solver in ("plain", "default", "kullback-leibler")
    }
    compiler = subprocess.run(["c++", "--version"], check=True, capture_output=True, text=True)
    version = compiler.stdout.splitlines()[0]
    if options.update:
        KEPT.write_text(json.dumps({"compiler": version, "counts": counts}, indent=1) + "\n")
    kept = json.loads(KEPT.read_text())
    comparable = kept["compiler"] == version
    if not comparable:
        print(f"Not judged: the counts kept are of {kept['compiler']}, these of {version}.")
    risen = False
    for name, count in counts.items():
        change = count / kept["counts"][name] - 1 if name in kept["counts"] else 0.0
        too_many = comparable and change > TOLERANCE
        risen |= too_many
        print(f"{name:28} {count:12,} {change:+7.1%}{'  too many' if too_many else ''}")
    return int(risen)


if __name__ == "__main__":
    sys.exit(main())
