"""What the tests of hostile input share: the program as real processes, sounds, forged archives.

`run` forks a process that has imported ondes already, so a command costs its work and no more; the
process is a real one, with limits of its own, and may crash. `start` is the program from scratch.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import hashlib
import importlib
import io
import json
import mmap
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

SR = 8000
SMALL = ("-k", "3", "--sr", str(SR), "--n-fft", "128", "-j", "1")
PATIENCE_S = 30.0
MEMORY = 2**30  # bytes that a process may ask for beyond what it starts with
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "ONDES_DEBUG"},
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    ),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
HEAVY = (
    *(
        "ondes.cli",
        "ondes.learning.dictionary_learning",
        "ondes.separation",
        "ondes.models.model_file",
        "ondes.models.dictionary",
    ),
    *("sklearn.utils.validation", "soundfile", "soxr", "rich.progress", "rich.console", "av"),
)


# ---- the program ----


@dataclass(frozen=True)
class Ended:
    """A process that ended.

    `peak` is the memory it used beyond what it started with, and `allocated` what it asked for,
    used or not (0 if it crashed); `seconds` is by the clock, `cpu_seconds` of processor time.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    peak: int
    allocated: int
    seconds: float
    cpu_seconds: float

    @property
    def lines(self) -> list[str]:
        return self.stderr.decode(errors="surrogateescape").splitlines()

    @property
    def result(self):
        return json.loads(self.stdout)


def as_strings(arguments):
    return [
        os.fsdecode(each) if isinstance(each, (bytes, Path)) else str(each) for each in arguments
    ]


class Program:
    """Forks a process for each command."""

    def __init__(self, environment=ENVIRONMENT, loaded=()):
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno()), *loaded],
                pass_fds=[there.fileno()],
                env=environment,
            )
        self._here.recv(100)

    def close(self):
        self._here.close()
        self._process.wait(PATIENCE_S)

    def __call__(
        self,
        *arguments,
        cwd=None,
        piped=b"",
        stdin=None,
        stderr=None,
        memory=MEMORY,
        file_size=None,
        umask=0o022,
        patience=PATIENCE_S,
        interrupt_after=None,
        environment=None,
        before=None,
    ):
        """Run a command to its end; `before` is "module:function" and its arguments, called first.

        `interrupt_after` so many seconds there is one SIGINT, if it has not ended by then. Raises
        TimeoutError where it does not end; the process is killed then.
        """
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(piped)
            files[0].seek(0)
            descriptors = [file.fileno() for file in files]
            if stdin is not None:
                descriptors[0] = stdin
            if stderr is not None:
                descriptors[2] = stderr
            order = {
                "arguments": as_strings(arguments),
                "cwd": str(cwd or Path.cwd()),
                "memory": memory,
                "file_size": file_size,
                "umask": umask,
                "environment": environment or {},
                "before": before,
            }
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "order")
            path.write_text(json.dumps(order))  # arguments may be longer than a packet
            began = time.monotonic()
            socket.send_fds(self._here, [str(path).encode()], descriptors)
            pid = int(self._here.recv(100))
            if interrupt_after is not None and not self._has_ended(interrupt_after):
                os.kill(pid, signal.SIGINT)
            if not self._has_ended(patience):
                os.kill(pid, signal.SIGKILL)
                self._here.recv(1000)
                shown = b" ".join(_content(file) for file in files[1:])
                raise TimeoutError(f"{as_strings(arguments)} did not end: {shown!r}")
            end = json.loads(self._here.recv(1000))
            took = time.monotonic() - began
            shown = map(_content, files[1:])
            return Ended(
                end["code"], *shown, end["peak"], end["allocated"], took, end["cpu_seconds"]
            )

    def _has_ended(self, patience):
        return bool(select.select([self._here], [], [], patience)[0])


def _content(file):
    file.seek(0)
    return file.read()


_program = None


def run(*arguments, **how):
    """Run a command in a process of its own; see `Program`."""
    global _program
    if _program is None:
        _program = Program()
        atexit.register(_program.close)
    return _program(*arguments, **how)


def run_in_terminal(*arguments, **how):
    """Run a command whose standard error is a terminal; all that the terminal got is `stderr`."""
    ours, theirs = os.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # of a terminal whose other side is closed
            while data := os.read(ours, 65536):
                shown.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        environment = {"TERM": "xterm", "COLUMNS": "200", **how.pop("environment", {})}
        done = run(*arguments, stderr=theirs, environment=environment, **how)
    finally:
        os.close(theirs)
        reader.join(PATIENCE_S)
        os.close(ours)
    return replace(done, stderr=b"".join(shown))


def start(*arguments, **settings):
    """The program from scratch, as a process that is still running."""
    return subprocess.Popen(
        [sys.executable, "-m", "ondes", *as_strings(arguments)],
        **{
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": ENVIRONMENT,
            **settings,
        },
    )


@contextlib.contextmanager
def ending(process):
    """A process that does not outlive the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def is_over(process, patience=PATIENCE_S):
    """Whether a process ends by itself in a while."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        return False
    return True


def wait_until(condition, patience=PATIENCE_S):
    """Until a condition holds; an AssertionError if it never does."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def wait_until_idle(process, patience=PATIENCE_S):
    """Until a process that was started does nothing: it waits for something."""

    def is_idle():
        before = _processor_time(process.pid)
        time.sleep(0.8)
        return before > 15 and _processor_time(process.pid) == before

    wait_until(is_idle, patience)


def _processor_time(pid):
    """In hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---- the forking process ----


def _serve(descriptor, *loaded):
    for name in (*HEAVY, *loaded):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    connection = socket.socket(fileno=descriptor)
    connection.send(b"ready")
    allocated = mmap.mmap(-1, 8)  # shared with every process that is forked
    gc.freeze()  # a collection would copy all that was imported into every process
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1000, 3)
        if not message:
            return
        gate, opener = os.pipe()
        allocated[:] = bytes(8)
        pid = os.fork()
        if pid == 0:
            os.read(gate, 1)
            order = json.loads(Path(os.fsdecode(message)).read_text())
            _become(order, descriptors, allocated)
        before = _resident(pid)
        os.write(opener, b"x")
        for each in (gate, opener, *descriptors):
            os.close(each)
        connection.send(str(pid).encode())
        _, status, usage = os.wait4(pid, 0)
        end = {
            "code": os.waitstatus_to_exitcode(status),
            "peak": max(0, 1024 * usage.ru_maxrss - before),
            "allocated": int.from_bytes(allocated[:], "little"),
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
        }
        connection.send(json.dumps(end).encode())


def _become(order, descriptors, allocated):
    """Be the program, in a process that was just forked."""
    code, before = 70, _address_space()
    try:
        for number, each in enumerate(descriptors):
            os.dup2(each, number)
        os.closerange(3, 1000)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # not to outlive the test
        os.chdir(order["cwd"])
        os.umask(order["umask"])
        os.environ.update(order["environment"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if order["memory"] is not None:
            limit = _address_space() + order["memory"]
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if order["file_size"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"],) * 2)
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(
                io.FileIO(n, "r" if n == 0 else "w", closefd=False), write_through=True
            )
            for n in range(3)
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if order["before"] is not None:
            name, *given = order["before"]
            module, function = name.split(":")
            getattr(importlib.import_module(module), function)(*given)
        from ondes.cli import main

        try:
            main(order["arguments"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        allocated[:] = max(0, _largest_address_space() - before).to_bytes(8, "little")
        os._exit(code & 0xFF)


def arm(library, folder, n, error_number, persists, log):
    """Let the n-th call that writes under a folder fail, see failing_calls.c."""
    preloaded = ctypes.CDLL(library)
    preloaded.arm(os.fsencode(folder), n, error_number, int(persists), os.fsencode(log))


def send_signal_when_there(path, number):
    """Let this process get a signal as soon as a file exists."""

    def wait():
        while not Path(path).exists():
            time.sleep(0.002)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


def waste(n_bytes, seconds):
    """Ask for memory without using it, and compute for so long."""
    ctypes.CDLL(None).malloc(ctypes.c_size_t(n_bytes))
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def _address_space():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _largest_address_space():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmPeak")).split()[1])


def _resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


# ---- sounds ----


def tones(seed=0, seconds=2.0, sr=SR):
    """Decaying tones and a little noise, int16."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * sr)) / sr
    pitch = rng.choice([220, 330, 440, 550], size=8)[(time * 2).astype(int) % 8]
    samples = np.sin(2 * np.pi * pitch * time) * np.exp(-4 * (time % 0.5))
    return (8000 * (samples + 0.01 * rng.standard_normal(len(time)))).astype(np.int16)


def noise(seed=0, seconds=2.0, sr=SR):
    rng = np.random.default_rng(seed)
    return (3000 * rng.standard_normal(round(seconds * sr))).astype(np.int16)


def write_sound(path, samples=None, sr=SR, **how):
    """A real recording under a name, whatever the name says."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sound_bytes(tones() if samples is None else samples, sr, **how))
    return path


def sound_bytes(samples, sr=SR, format="WAV", subtype=None):  # noqa: A002
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sr, format=format, subtype=subtype)
    return buffer.getvalue()


def by_ffmpeg(samples, container, codec, **options):
    """The bytes of what only FFmpeg writes."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=options) as file:
        stream = file.add_stream(codec, rate=SR, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts = SR, 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def with_ogg_granule(data, granule):
    """An Ogg file whose last page claims another position, under a valid checksum."""
    *others, last = [b"OggS" + page for page in data.split(b"OggS")[1:]]
    last = last[:6] + granule.to_bytes(8, "little") + last[14:22] + bytes(4) + last[26:]
    checksum = 0
    for byte in last:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1 ^ (0x04C11DB7 if checksum >> 31 else 0)) & 0xFFFFFFFF
    return b"".join([*others, last[:22] + checksum.to_bytes(4, "little") + last[26:]])


# ---- archives ----


def forged(data, change):
    """The bytes of a model whose tree is changed by a function, sealed with a valid digest."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(member.filename, file.read(member)) for member in file.infolist()]
    (name, text), *arrays = members
    tree = json.loads(text)
    change(tree)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for member, content in [(name, json.dumps(tree).encode()), *arrays]:
            file.writestr(zipfile.ZipInfo(member), content)
        file.comment = b"sha256:" + bytes(64)
    hashed = buffer.getvalue()[:-64]
    return hashed + hashlib.sha256(hashed).hexdigest().encode()


def node(tree, name):
    """The part of a tree that is an object of this class, or that has such an entry."""
    if isinstance(tree, dict):
        if tree.get("$") == name or name in tree:
            return tree
        tree = list(tree.values())
    found = [node(part, name) for part in tree] if isinstance(tree, list) else []
    return next((each for each in found if each is not None), None)


def tree_of(path):
    """What a model file says in JSON."""
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read(file.infolist()[0]))


def everything_under(folder):
    """Every name under a folder, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *sys.argv[2:])
