"""A process that reads damaged files, and what happened to each, even if the process crashes."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from targets import TARGETS

WALL_SECONDS = 60.0  # waiting forever takes no processor time
# Ten times the file, and what a tiny valid file takes too: the decoders' tables, the resamplers of
# up to 128 channels, and the buffers of one read.
MEMORY_FACTOR, MEMORY_BESIDE = 10, 32 * 2**20
LARGE = 2**16  # bytes: such a file raises the peak of the process, which would hide later ones
ADDRESS_SPACE = 8 * 2**30  # so that no machine runs out of memory
MAX_SENTENCE = 1000
M_ARENA_MAX = -8  # of mallopt(3)
OUT_OF_MEMORY = ("malloc", "allocat", "memoryerror", "out of memory")

File = tuple[str, bytes]  # the name of a target, and what is in the file


@dataclass(frozen=True)
class Verdict:
    """What happened to one file; `wrong` is how it broke the guarantee, or empty."""

    target: str
    is_accepted: bool
    cpu_seconds: float = 0.0
    memory: int = 0
    wrong: str = ""


class Reader:
    """Reads files in a process that is replaced where it crashes."""

    def __init__(self, valid: Iterable[File]) -> None:
        self._valid = list(valid)
        self._folder = tempfile.TemporaryDirectory(dir=_memory_folder())
        self._start()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def read(self, file: File) -> Verdict:
        """Read one file."""
        self._connection.send(file)
        try:
            verdict = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            verdict = self._verdict_on_crash(file[0])
        if not self._process.is_alive() or verdict.memory > MEMORY_BESIDE or len(file[1]) > LARGE:
            self._stop()
            self._start()
        return verdict

    def _verdict_on_crash(self, name: str) -> Verdict:
        code = self._process.exitcode
        is_hang = -code in (signal.SIGPROF, signal.SIGALRM)
        crash = f"exited with {code}" if code >= 0 else f"crashed by {signal.Signals(-code).name}"
        what, seconds = ("hung", TARGETS[name].seconds) if is_hang else (crash, 0.0)
        return Verdict(name, False, seconds, 0, f"{what} {self._last_place()}")

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")  # saves a second of imports
        self._connection, theirs = context.Pipe()
        self._trace = tempfile.TemporaryFile("w+")  # noqa: SIM115  the process writes there
        path = Path(self._folder.name, "damaged.file")
        arguments = (theirs, self._connection, self._trace, path, self._valid)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def _stop(self) -> None:
        self._connection.close()
        self._process.join()
        self._trace.close()

    def _last_place(self) -> str:
        self._trace.seek(0)
        places = [line.strip() for line in self._trace if line.startswith("  File")]
        return f"in {places[0]}" if places else "somewhere"


def _serve(
    connection: Connection, parents: Connection, trace: Any, path: Path, valid: list[File]
) -> None:
    parents.close()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # decoders print
        os.dup2(nowhere, number)
    warnings.simplefilter("error")
    # Threads reserve memory that they do not use: stacks, and each an arena of its own.
    threading.stack_size(2**18)
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(trace)
    for number in (signal.SIGPROF, signal.SIGALRM):
        faulthandler.register(number, trace, chain=True)
    for file in valid:  # so that what is loaded only once is not counted for any file
        _judged(file, path)
    connection.send("ready")
    while True:
        try:
            file = connection.recv()
        except EOFError:
            return
        connection.send(_judged(file, path))


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _judged(file: File, path: Path) -> Verdict:
    name, data = file
    path.write_bytes(data)
    n_descriptors = _n_descriptors()
    size_before, peak_before = _address_space()
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, TARGETS[name].seconds)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    is_accepted, wrong = _outcome(name, path)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    cpu_seconds = time.process_time() - began
    _, peak = _address_space()
    memory = peak - size_before if peak > peak_before else 0
    if not wrong and memory > MEMORY_FACTOR * len(data) + MEMORY_BESIDE:
        wrong = f"took {memory >> 20} MiB for {len(data)} bytes"
    if not wrong and _n_descriptors() > n_descriptors:
        wrong = "left a descriptor open"
    return Verdict(name, is_accepted, cpu_seconds, memory, wrong)


def _outcome(name: str, path: Path) -> tuple[bool, str]:
    try:
        TARGETS[name].read(path)
    except TARGETS[name].error as error:
        return False, _wrong_with(str(error), path)
    except Exception as error:  # what the fuzzer looks for
        return False, f"raised {type(error).__name__}: {str(error)[:200]!r}"
    return True, ""


def _wrong_with(sentence: str, path: Path) -> str:
    """What a refusal lacks to be one clear sentence; nothing if it lacks nothing."""
    name, _, reason = sentence.partition(": ")
    lacks = {
        "does not name the file": name in (str(path), f"@{path}", "stream"),
        "gives no reason": len(reason) > len("damaged") and reason.endswith("."),
        "is not one printable line": sentence.isprintable(),
        "is no short sentence": len(sentence) < MAX_SENTENCE,
        "had no memory": not any(word in sentence.lower() for word in OUT_OF_MEMORY),
    }
    missing = [what for what, holds in lacks.items() if not holds]
    return f"{missing[0]}: {sentence[:300]!r}" if missing else ""


def _address_space() -> tuple[int, int]:
    """Bytes of memory that this process has allocated: now, and at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return 1024 * int(fields["VmSize"].split()[0]), 1024 * int(fields["VmPeak"].split()[0])


def _n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
