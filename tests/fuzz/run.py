"""Read many damaged files: each is accepted, or refused in one sentence, whatever it holds.

Never another error, a crash, a second of work, a lost descriptor, or memory beyond ten times the
file: what breaks this is kept in the corpus if it is small. File n depends only on the seed and
n, so a run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path

from reader import LARGE, File, Reader, Verdict
from targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
MAX_KEPT = 4096  # bytes
N_SHORTENINGS = 300


class DamagedFiles:
    """An endless sequence of damaged files, each found again by its number."""

    def __init__(self, seed: int, names: list[str]) -> None:
        self._seed = seed
        self.valid = {name: list(TARGETS[name].seeds().values()) for name in names}

    def __getitem__(self, number: int) -> File:
        rng = random.Random(f"{self._seed} {number}")
        name = list(self.valid)[number % len(self.valid)]
        return name, TARGETS[name].mutate(rng.choice(self.valid[name]), rng)


class Summary:
    """The results of a run so far."""

    def __init__(self) -> None:
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.worst_seconds, self.worst_memory = 0.0, 0
        self.wrong: dict[str, tuple[int, Verdict]] = {}
        self.n_wrong = 0

    def add(self, number: int, verdict: Verdict) -> bool:
        """Count a file; True if it is the first to break the guarantee in its way."""
        (self.accepted if verdict.is_accepted else self.refused)[verdict.target] += 1
        self.worst_seconds = max(self.worst_seconds, verdict.cpu_seconds)
        self.worst_memory = max(self.worst_memory, verdict.memory)
        self.n_wrong += bool(verdict.wrong)
        kind = f"{verdict.target} {_kind(verdict)}"
        if not verdict.wrong or kind in self.wrong:
            return False
        self.wrong[kind] = number, verdict
        return True

    def __str__(self) -> str:
        names = sorted({*self.accepted, *self.refused})
        kinds = [f"{n} {self.accepted[n]}+{self.refused[n]}" for n in names]
        return (
            f"{self.accepted.total() + self.refused.total()} files "
            f"(accepted+refused: {', '.join(kinds)}), worst {self.worst_seconds:.2f} s and "
            f"{self.worst_memory / 2**20:.1f} MiB, {self.n_wrong} break the guarantee"
        )


def _kind(verdict: Verdict) -> str:
    return re.sub(r"\d+|'.*'|\".*\"", "…", verdict.wrong)


def main() -> int:
    given = _arguments()
    if given.replay:
        return _replay(given.replay)
    files = DamagedFiles(given.seed, given.only or list(TARGETS))
    numbers = iter(range(given.first, given.first + given.files) if given.files else count())
    end = time.monotonic() + given.seconds if given.seconds else float("inf")
    summary = Summary()
    with Reader((name, data) for name, valid in files.valid.items() for data in valid) as reader:
        while time.monotonic() < end and (number := next(numbers, None)) is not None:
            file = files[number]
            verdict = reader.read(file)
            if summary.add(number, verdict):
                found = f"seed {given.seed} file {number}, {verdict.target}: {verdict.wrong}"
                print(found, flush=True)
                if len(file[1]) <= LARGE:
                    _keep(_shortened(file, verdict, reader), f"{given.seed}_{number}")
            if sys.stderr.isatty() and number % 500 == 0:
                print(f"file {number}", end="\r", file=sys.stderr)
    print(summary)
    return 1 if summary.n_wrong else 0


def _replay(paths: list[Path]) -> int:
    """Read files as they are, with a line of JSON for each; their folder is the target's name."""
    files = {path: (path.parent.name, path.read_bytes()) for path in paths}
    names = list({name for name, _ in files.values()})
    valid = DamagedFiles(0, names).valid
    is_wrong = False
    with Reader((name, data) for name in names for data in valid[name]) as reader:
        for path, file in files.items():
            verdict = reader.read(file)
            is_wrong = is_wrong or bool(verdict.wrong)
            print(json.dumps({"path": str(path), **asdict(verdict)}))
    return 1 if is_wrong else 0


def _shortened(file: File, verdict: Verdict, reader: Reader) -> File:
    """The file without parts that are not needed to break the guarantee in the same way."""
    name, data = file
    for _, (first, size) in zip(range(N_SHORTENINGS), _parts(len(data)), strict=False):
        shorter = data[:first] + data[first + size :]
        if size <= len(data) and _kind(reader.read((name, shorter))) == _kind(verdict):
            data = shorter
    return name, data


def _parts(length: int) -> Iterator[tuple[int, int]]:
    size = length // 2
    while size:
        yield from ((first, size) for first in reversed(range(0, length, size)))
        size //= 2


def _keep(file: File, label: str) -> None:
    name, data = file
    if len(data) <= MAX_KEPT:
        path = CORPUS / name / label
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"  kept as {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, help="stop after so many")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--only", action="append", choices=TARGETS, help="a kind of file")
    parser.add_argument("--replay", nargs="+", type=Path, help="read these files instead")
    given = parser.parse_args()
    if not (given.files or given.seconds or given.replay):
        parser.error("give --files, --seconds or both")
    return given


if __name__ == "__main__":
    sys.exit(main())
