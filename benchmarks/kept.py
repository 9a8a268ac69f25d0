"""Results that are kept under version control: which code each measured, and which are older.

Every JSON file has the entry `measured`: for each of its parts (most have one) the version, commit,
date and machine, and a digest of the files that the result depends on.

    python benchmarks/kept.py        list the results that are older than the code
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ondes

ROOT = Path(__file__).parent.parent
SOURCE_SUFFIXES = {".py", ".cpp", ".hpp", ".h"}

LEARNING = ("native", "src/ondes/nmf")
FRAMES = ("src/ondes/signal/stft.py", "src/ondes/signal/audio_settings.py")
FROM_FILES = (*LEARNING, "src/ondes/signal", "src/ondes/learning")
SEPARATING = (*FROM_FILES, "src/ondes/models", "src/ondes/separation")
ON_DEVICES = (
    *(f"src/ondes/nmf/backends/{each}.py" for each in (
        "devices", "fused", "fused_solve", "fused_update", "torch",
    )),
    *("src/ondes/nmf/device_trainer.py", "src/ondes/learning/gpu.py"),
    *("src/ondes/models/device_masks.py", "src/ondes/separation/device.py"),
)  # fmt: skip
CLUSTER, SPATIAL = "src/ondes/learning/cluster", "src/ondes/separation/spatial"
TRAINING = "src/ondes/learning/separator_training"
# What few results run: left out of the folders above, unless a result names it.
LEFT_OUT = (*ON_DEVICES, CLUSTER, SPATIAL, TRAINING, "src/ondes/nmf/choosing.py")


@dataclass(frozen=True)
class Kept:
    """A JSON file of results.

    Attributes
    ----------
    path : str
        From the root of the repository.
    sources : tuple of str
        Files and folders whose change may change the results.
    command : str
        What measures again.
    """

    path: str
    sources: tuple[str, ...]
    command: str

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((ROOT / self.path).read_text())
        return found

    def write(
        self, results: dict[str, Any], parts: Iterable[str] = ("all",), path: Path | None = None
    ) -> Path:
        """Keep results, with what measured these parts; other parts keep what measured them.

        Parameters
        ----------
        results : dict
        parts : iterable of str
            What was measured now, where a file is measured in several runs.
        path : Path, optional
            Another file, which is not kept.
        """
        path = path or ROOT / self.path
        before = json.loads(path.read_text())["measured"] if path.exists() else {}
        now = dict.fromkeys(parts, self.provenance())
        if "all" in now:
            return _write(results | {"measured": now}, path)
        others = before.pop("others", before.pop("all", None))
        measured = before | now
        if others and results.keys() - {"measured"} - measured.keys():
            measured = {"others": others} | measured
        return _write(results | {"measured": measured}, path)

    def provenance(self) -> dict[str, Any]:
        """Version, commit, date, machine, and the digest of the sources."""
        return {
            "version": ondes.__version__,
            "commit": _commit(self.sources),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "digest": self.digest,
        }

    @property
    def digest(self) -> str:
        """A digest of the present sources."""
        return digest(self.sources, set(LEFT_OUT) - set(self.sources))

    def older_parts(self, results: dict[str, Any] | None = None) -> list[str]:
        """The parts that measured other code than the present; by default, of what is kept."""
        measured, present = (results or self.read())["measured"], self.digest
        return [
            part
            for part, each in measured.items()
            if present not in (each["digest"], each.get("confirmed", each)["digest"])
        ]

    def confirm(self) -> None:
        """Keep that the present code gives the same results: see `experiments/confirm.py`."""
        results = self.read()
        for each in results["measured"].values():
            each["confirmed"] = self.provenance()
        _write(results, ROOT / self.path)

    def stated(self, results: dict[str, Any]) -> str:
        """Which code the results measured, and whether it has changed since, for a page."""
        runs: dict[str, list[str]] = {}
        for part, each in results["measured"].items():
            said = f"commit {each['commit']}, {each['date']}"
            if again := each.get("confirmed"):
                said += f", and confirmed with commit {again['commit']}, {again['date']}"
            runs.setdefault(said, []).append(part)
        named = [f"{run} ({', '.join(parts)})" for run, parts in runs.items()]
        said = "; ".join(named if len(runs) > 1 else runs)
        older = self.older_parts(results)
        which = f" ({', '.join(older)})" if len(older) < len(results["measured"]) else ""
        changed = f"; the code has changed since then{which}" if older else ""
        return f"Measured with {said}{changed}."


def _write(results: dict[str, Any], path: Path) -> Path:
    """As JSON with one line per run: a change of one run is a change of one line."""
    lines = [f' "measured": {json.dumps(results["measured"])}']
    for key, value in results.items():
        if key == "measured":
            continue
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list):
            rows = [json.dumps(row, allow_nan=False) for row in value]
            text = "[\n  " + ",\n  ".join(rows) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path


def _benchmark(name: str, sources: tuple[str, ...], command: str, *scripts: str) -> Kept:
    files = tuple(f"benchmarks/{each}.py" for each in (name, *scripts))
    return Kept(f"benchmarks/results/{name}.json", (*sources, *files), command)


def _experiment(name: str, script: str, *scripts: str) -> Kept:
    files = ("curves", "recordings", script, *scripts)
    sources = (*LEARNING, *FRAMES, *(f"experiments/{each}.py" for each in files))
    command = f"python experiments/{script}.py --audio AUDIO"
    if script in ("small", "medium", "large"):
        confirm = f"python experiments/confirm.py --audio AUDIO --sizes {name}"
        command = f"{confirm}; where that differs, {command}"
    return Kept(f"experiments/results/{name}.json", sources, command)


KEPT: dict[str, Kept] = {
    "small": _experiment("small", "small", "grid"),
    "medium": _experiment("medium", "medium", "grid"),
    "large": _experiment("large", "large"),
    "first_dictionary": _experiment("first_dictionary", "first_dictionary"),
    "first_dictionary_kl": _experiment("first_dictionary_kl", "first_dictionary"),
    "why_the_default": _experiment("why_the_default", "why_the_default"),
    "race": _benchmark(
        "race", (*LEARNING, *FRAMES, "experiments/recordings.py"), "make race", "peers",
    ),
    "separation": _benchmark(
        "separation", (*SEPARATING, TRAINING), "python benchmarks/separation.py --audio AUDIO",
        "separation_methods", "separation_scenes", "separation_noise",
    ),
    "unseen": _benchmark(
        "unseen", (*SEPARATING, TRAINING), "python benchmarks/unseen.py --audio AUDIO"
    ),
    "denoising": _benchmark(
        "denoising", SEPARATING, "python benchmarks/denoising.py --audio AUDIO", "unseen"
    ),
    "live": _benchmark(
        "live", (*SEPARATING, "src/ondes/live", "src/ondes/cli/live.py"),
        "python benchmarks/live.py --audio AUDIO, and --devices", "unseen",
    ),
    "rooms": _benchmark(
        "rooms", (*SEPARATING, SPATIAL, TRAINING), "python benchmarks/rooms.py", "rooms_scenes"
    ),
    "growth": _benchmark(
        "growth",
        (*SEPARATING, SPATIAL, TRAINING, "src/ondes/tables", "src/ondes/report"),
        "python benchmarks/growth.py --music FOLDER", "command_runs",
    ),
    "cluster": _benchmark("cluster", (*FROM_FILES, CLUSTER), "make cluster", "command_runs"),
    "sparse": _benchmark("sparse", LEARNING, "python benchmarks/sparse.py"),
    "kernels": _benchmark("kernels", LEARNING[:1], "python benchmarks/kernels.py"),
    "tables": _benchmark(
        "tables", (*SEPARATING, "src/ondes/tables"), "python benchmarks/tables.py"
    ),
    "studio": _benchmark(
        "studio", (*SEPARATING, "src/ondes/studio"), "python benchmarks/studio.py"
    ),
    "gpu": _benchmark(
        "gpu", (*LEARNING, *ON_DEVICES), "python benchmarks/gpu.py, on a machine with a GPU"
    ),
    "gpu_arrays": _benchmark(
        "gpu_arrays", (*SEPARATING, *ON_DEVICES),
        "python benchmarks/gpu_arrays.py, on a machine with a GPU",
    ),
}  # fmt: skip


def digest(sources: Iterable[str], without: Iterable[str] = ()) -> str:
    """A digest of the source files under these paths, by name and content."""
    left_out = {ROOT / each for each in without}
    found = hashlib.sha256()
    for source in sorted(sources):
        path = ROOT / source
        files = [path] if path.is_file() else path.rglob("*")
        for file in sorted(files):
            if file.suffix not in SOURCE_SUFFIXES or left_out & {file, *file.parents}:
                continue
            code = python_code(file.read_text()) if file.suffix == ".py" else file.read_text()
            found.update(f"{file.relative_to(ROOT)}\0{code}\0".encode())
    return found.hexdigest()[:16]


def python_code(source: str) -> str:
    """Source without docstrings, comments and empty lines, which change no result.

    Examples
    --------
    >>> print(python_code('def f(x):  # twice\\n    "Two."\\n\\n    return 2 * x'))
    def f(x):
        return 2 * x
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if is_text and isinstance(first.value.value, str):
                lines[first.lineno - 1 : first.end_lineno] = [""] * (
                    first.end_lineno - first.lineno + 1
                )
    return "\n".join(line.rstrip() for line in lines if line.strip())


def machine() -> dict[str, Any]:
    """The processor, its cores, and the version of Python."""
    return {"cpu": _cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}


def _commit(sources: Iterable[str]) -> str:
    """The commit that is checked out, with a plus where one of the sources has changed since.

    A copy of the tree on another machine has no history: there ONDES_COMMIT says it.
    """
    if "ONDES_COMMIT" in os.environ:
        return os.environ["ONDES_COMMIT"]

    def git(*arguments: str) -> str:
        found = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return found.stdout.strip()

    commit = git("rev-parse", "--short=9", "HEAD") or "unknown"
    return commit + ("+" if git("status", "--porcelain", "--", *sources) else "")


def _cpu_name() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def report() -> str:
    """What is older than the code, and how to measure it again; one line where nothing is."""
    lines = []
    for each in KEPT.values():
        if not (ROOT / each.path).exists():
            lines.append(f"{each.path} is missing: {each.command}")
        elif older := each.older_parts():
            which = "" if older == ["all"] else f" ({', '.join(older)})"
            lines.append(f"{each.path}{which} is older than the code: {each.command}")
    return "\n".join(lines) or "nothing is older than the code"


if __name__ == "__main__":
    print(report())
    sys.exit(0)
