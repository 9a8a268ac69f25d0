"""Commands on many damaged files under hostile names, each beside a good file.

Whatever the file holds and is called, the command ends by itself after two seconds of processor
time at most, asks for at most ten times the file and a fixed allowance of memory, says one
printable line about the bad file or none, does its work on the good file, and leaves nothing else
behind. File n depends on the seed and on n alone, so a run can be repeated:
`python tests/fuzz/commands.py --files 1000 --seed 1 --jobs 4`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import sounds  # noqa: E402
from hostile import (  # noqa: E402
    ENVIRONMENT,
    SMALL,
    Program,
    everything_under,
    noise,
    tones,
    with_ogg_granule,
    write_sound,
)

SECONDS = 2.0
PATIENCE_S = 60.0  # by the clock: waiting forever takes no processor time
MEMORY_FACTOR, MEMORY_BESIDE = 10, 96 * 2**20
ADDRESS_SPACE = 2 * 2**30  # nobody's machine is to suffer
MAX_LINE = 1000
HINT = "; --spatial room may separate better."
COMMANDS = ("learn", "separate", "denoise")
MPG123 = ("[src/libmpg123/", "Note: ")  # libsndfile lets it print what it notices in an MP3
SUFFIXES = {
    "wav24": "wav", "wavex": "wav", "wav float": "wav", "wav adpcm": "wav", "wav gsm": "wav",
    "wav ms adpcm": "wav", "aiff double": "aiff", "caf alac": "caf", "vorbis": "ogg",
    "chained ogg": "ogg", "mp4 video": "mp4", "mkv video": "mkv", "avi video": "avi",
}  # fmt: skip
KNOWN = ("wav", "rf64", "w64", "aiff", "au", "caf", "flac", "ogg", "opus", "mp3", "m4a", "aac")
KNOWN += ("mp2", "mka", "wma", "mp4", "mkv", "avi")
LENGTHS = (0, 1, 2**31, 2**33, 2**36 - 1, 2**45, 2**61, 2**62, 2**63 - 1)
PARTS = (
    *("a", "song", " ", ".", "..", "...", "-", "--", "-o", "~", "$HOME", "`id`", ";", "&", "%d"),
    *("%s", "{track}", "{stem}", "{0}", "{", "}", "[", "]", "[/x]", "[bold]", "*", "?", "**"),
    *("\\", "'", '"', "http:", "file:", "concat:", "subfile,,:", "pipe:0", "data:,", "Mozart: "),
    *("|", "=", "a=b", ",", "\n", "\r", "\t", "\x1b[31m", "\x1b]0;x\x07", "\x7f", "\x9b2J"),
    *("\u202e", "\u2028", "\ufeff", "é", "e\u0301", "声", "🎵", "\udcff", "\udce9", "CON", "nul"),
    *("x" * 100, "é" * 60, "声" * 40),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A damaged file: what is done with it, its name, and what is in it."""

    command: str
    name: str
    data: bytes


class Cases:
    """Endless, and each again by its number."""

    def __init__(self, seed, commands=COMMANDS):
        self._seed, self._commands = seed, commands
        self._valid = {
            suffix: [
                data for name, data in sounds.seeds().items() if SUFFIXES.get(name, name) == suffix
            ]
            for suffix in KNOWN
        }

    def __getitem__(self, number):
        rng = random.Random(f"{self._seed} {number}")
        suffix = rng.choice(KNOWN)
        data = damaged(rng.choice(self._valid[suffix]), rng)
        return Case(self._commands[number % len(self._commands)], a_name(suffix, rng), data)


def damaged(data, rng):
    """A recording that is damaged somewhere, or claims another length."""
    if rng.random() < 0.1 and data[:4] == b"OggS":
        return with_ogg_granule(data, rng.choice(LENGTHS))
    if rng.random() < 0.1 and data[:4] == b"fLaC":
        fields = int.from_bytes(data[18:26], "big") >> 36 << 36 | rng.choice(LENGTHS) % 2**36
        return data[:18] + fields.to_bytes(8, "big") + data[26:]
    return sounds.mutated(data, rng)


def a_name(suffix, rng):
    """A name that a file can have, half of them ordinary."""
    stem = "damaged"
    if rng.random() < 0.5:
        stem = "".join(rng.choice(PARTS) for _ in range(rng.choice((1, 1, 2, 3))))
        while len(os.fsencode(f"{stem}.{suffix}")) > 250:
            stem = stem[:-1]
    return f"{stem}.{suffix}"


class Judge:
    """Runs the commands, and says what is wrong with what they do."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(
            dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
        self._base = Path(self._folder.name)
        # One arena: that of another thread would reserve 128 MiB, of which it uses next to nothing.
        self._program = Program({**ENVIRONMENT, "MALLOC_ARENA_MAX": "1"})
        self.worst = Worst()
        for name, samples in {"tones": tones(1), "noise": noise(1)}.items():
            write_sound(self._base / f"{name}.wav", samples)
            how = ["-o", self._base / f"{name}.ondes", *SMALL]
            assert self._program("learn", self._base / f"{name}.wav", *how).returncode == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._program.close()
        self._folder.cleanup()

    def wrong_with(self, case):
        """How a case broke the guarantee, in words; nothing if it did not."""
        return self._once([case])

    def wrong_ones(self, cases):
        """Those that broke the guarantee and how; `learn` reads many at a time, if all is well."""
        is_learned = len(cases) > 1 and {case.command for case in cases} == {"learn"}
        if is_learned and not self._once(cases):
            return {}
        found = {n: self.wrong_with(case) for n, case in enumerate(cases)}
        return {n: wrong for n, wrong in found.items() if wrong}

    def _once(self, cases):
        folder = self._base / "run"
        shutil.rmtree(folder, ignore_errors=True)
        sound = folder / "in"
        write_sound(sound / "zz good.wav", tones(0, 0.5))
        for n, case in enumerate(cases):
            path = sound / str(n) / case.name
            path.parent.mkdir(parents=True)  # brackets may close in another folder
            path.write_bytes(case.data)
        if cases[0].command == "learn":
            given = ["learn", "in", "-o", "m.ondes", *SMALL, "--json"]
        elif cases[0].command == "denoise":
            noise = ["--noise", self._base / "noise.wav"]
            given = ["denoise", f"in/0/{cases[0].name}", *noise, "-o", "out.wav", "--json"]
        else:
            both = [f"-d{self._base / name}.ondes" for name in ("tones", "noise")]
            given = ["separate", "in", *both, "-o", "out", "-j", "1", "--json"]
        try:
            done = self._program(*given, cwd=folder, memory=ADDRESS_SPACE, patience=PATIENCE_S)
        except TimeoutError:
            return "hung"
        self.worst.add(done)
        return _wrong_with_end(cases, done) or _wrong_with_files(cases, folder)


@dataclass
class Worst:
    """The most that one process took, and how many of them refused a file."""

    cpu_seconds: float = 0.0
    allocated: int = 0
    n_refused: int = 0

    def add(self, done):
        self.cpu_seconds = max(self.cpu_seconds, done.cpu_seconds)
        self.allocated = max(self.allocated, done.allocated)
        self.n_refused += done.returncode != 0


def _wrong_with_end(cases, done):
    is_alone = cases[0].command == "denoise"  # no good file is beside it
    refused = 1 if is_alone else 3
    if done.returncode not in (0, refused):
        kind = "crashed" if done.returncode < 0 else "ended"
        return f"{kind} with {done.returncode}: {done.stderr[-200:]!r}"
    try:
        lines = done.stderr.decode().splitlines()
        lines = [line for line in lines if not line.startswith(MPG123) and HINT not in line]
        result = {"n_failed": 1} if is_alone and done.returncode else json.loads(done.stdout)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        return f"said what nobody can read: {error}"
    if bool(lines) != (done.returncode == refused) or len(lines) > len(cases):
        return f"said {len(lines)} lines and ended with {done.returncode}: {lines}"
    if any(not line.isprintable() or len(line) > MAX_LINE for line in lines):
        return f"said no printable line: {lines}"
    if any(word in line for line in lines for word in ("(a bug", "MemoryError", "alloc")):
        return f"gave no reason: {lines}"
    if result.get("n_failed", 0) != len(lines):
        return f"counted {result['n_failed']} failures: {lines}"
    largest = max(len(case.data) for case in cases)
    memory = max(done.allocated, done.peak)
    if memory > MEMORY_FACTOR * largest + MEMORY_BESIDE:
        return f"took {memory >> 20} MiB for {largest} bytes"
    if done.cpu_seconds > SECONDS * len(cases):
        return f"took {done.cpu_seconds:.1f} s"
    return ""


def _wrong_with_files(cases, folder):
    left = everything_under(folder)
    hidden = [name for name in left if name.endswith((".part", ".lock", ".checkpoint"))]
    if hidden:
        return f"left {hidden}"
    names = [Path("in", str(n), case.name) for n, case in enumerate(cases)]
    allowed = {str(each) for name in names for each in (name, *name.parents)}
    allowed = (allowed | {"in/zz good.wav"}) - {"."}
    if cases[0].command == "learn":
        allowed |= {"m.ondes"}
        return "" if set(left) == allowed else f"left {sorted(set(left) ^ allowed)}"
    if cases[0].command == "denoise":
        return "" if set(left) <= allowed | {"out.wav"} else f"left {sorted(set(left) - allowed)}"
    good = {"out", "out/zz good", "out/zz good/noise.wav", "out/zz good/tones.wav"}
    if not good <= set(left):
        return "did not separate the good file"
    outside = [name for name in left if name not in allowed and not name.startswith("out")]
    return f"wrote {outside}" if outside else ""


def kind_of(wrong):
    """Alike for what breaks in the same way."""
    return re.sub(r"in/.*?: |\d+(\.\d+)?", "…", wrong)[:100]


def fuzz(
    judge,
    files=None,
    seconds=None,
    seed=0,
    first=0,
    commands=COMMANDS,
    together=1,
    show=print,
):
    """Try so many files or so long; the number of files, and the wrong ones by their kind.

    With `together`, one process learns from so many files, as long as all is well.
    """
    cases, end = Cases(seed, commands), time.monotonic() + (seconds or float("inf"))
    wrong, n_files = Counter(), 0
    while (files is None or n_files < files) and time.monotonic() < end:
        n_left = together if files is None else min(together, files - n_files)
        tried = [cases[first + n_files + n] for n in range(n_left)]
        for n, found in judge.wrong_ones(tried).items():
            kind = f"{tried[n].command}: {kind_of(found)}"
            wrong[kind] += 1
            if wrong[kind] == 1:
                where = f"seed {seed} file {first + n_files + n}"
                show(f"{where}, {tried[n].command} {tried[n].name!a}: {found}")
        n_files += n_left
    return n_files, wrong


def _job(limits):
    """A part of the files, with a judge of its own."""
    with Judge() as judge:
        n_files, wrong = fuzz(judge, **limits, show=lambda line: print(line, flush=True))
        return n_files, wrong, judge.worst


def main():
    given = _arguments()
    limits = {
        "seconds": given.seconds,
        "seed": given.seed,
        "commands": tuple(given.command or COMMANDS),
        "together": given.together,
    }
    share = -(-given.files // given.jobs) if given.files else None
    parts = [limits | {"files": share, "first": given.first} for _ in range(given.jobs)]
    for n, part in enumerate(parts):
        part["first"] += n * (share or 10**9)
    began = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool:
        each = list(pool.map(_job, parts))
    wrong = sum((kinds for _, kinds, _ in each), Counter())
    worst = [one for _, _, one in each]
    result = {
        "files": sum(n for n, _, _ in each),
        "refused": sum(one.n_refused for one in worst),
        "broken": wrong.total(),
        "worst_cpu_seconds": round(max(one.cpu_seconds for one in worst), 2),
        "worst_mebibytes": round(max(one.allocated for one in worst) / 2**20, 1),
        "elapsed": round(time.monotonic() - began),
        "kinds": dict(wrong.most_common()),
    }
    print(json.dumps(result, indent=2))
    return 1 if wrong else 0


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, help="stop after so many")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--command", action="append", choices=COMMANDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes that try files")
    parser.add_argument("--together", type=int, default=1, help="files that one process reads")
    given = parser.parse_args()
    if not (given.files or given.seconds):
        parser.error("give --files, --seconds or both")
    return given


if __name__ == "__main__":
    sys.exit(main())
