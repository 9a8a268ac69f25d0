"""Whatever happens to `ondes learn`, nothing is lost: real processes, signals, disks and files.

`python tests/test_faults.py --kills 50` kills one run at 50 random moments.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

import ondes
from ondes import FileError
from ondes.atomic_file import exclusive_writer
from ondes.learning import checkpoint

SR = 8000
SETTINGS = ("-k", "6", "--sr", str(SR), "--n-fft", "128", "-j", "1", "--checkpoint-every", "0.02")
N_PASSES = 16
PATIENCE_S = 300
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "ONDES_DEBUG"},
    "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
    "OMP_NUM_THREADS": "1",
}


# ---- runs ----


def make_album(folder, n_files=4, seconds=12):
    folder.mkdir()
    for n in range(n_files):
        rng = np.random.default_rng(n)
        notes = np.repeat(rng.choice([220, 330, 440, 550], size=2 * seconds), SR // 2)
        times = np.arange(len(notes)) / SR
        sound = np.sin(2 * np.pi * notes * times) * np.exp(-4 * (times % 0.5))
        samples = 8000 * (sound + 0.01 * rng.standard_normal(len(times)))
        soundfile.write(folder / f"{n}.flac", samples.astype(np.int16), SR)


class Run:
    """One `ondes learn` in a folder of its own, started as often as it takes."""

    def __init__(self, folder, album, *options, n_passes=N_PASSES):
        self.folder, self.output = folder, folder / "m.ondes"
        self.checkpoint = folder / "m.ondes.checkpoint"
        self.command = ["learn", album, "-o", self.output, *SETTINGS, "--passes", n_passes]
        self.command += options

    def start(self, *options, **settings):
        arguments = [*self.command, *options]
        return subprocess.Popen(
            [sys.executable, "-m", "ondes", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **{"env": ENVIRONMENT, **settings},
        )

    def finish(self, *options, **settings):
        """The exit status, and the lines on standard error."""
        with ending(self.start(*options, **settings)) as process:
            return ended(process)

    def wait_for_checkpoint(self, process):
        """Until the process has written a checkpoint."""
        path, before = self.checkpoint, time.time_ns()
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists() or path.stat().st_mtime_ns < before:
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def left_behind(self):
        return sorted(path.name for path in self.folder.iterdir())


def ended(process):
    _, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stderr.decode().splitlines()


@contextmanager
def ending(process):
    """A process that does not outlive the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults") / "album"
    make_album(folder)
    return folder


@pytest.fixture(scope="module")
def unbroken(album, tmp_path_factory):
    """The bytes of the model that every broken run must end with."""
    run = Run(tmp_path_factory.mktemp("unbroken"), album)
    assert run.finish("--checkpoint-every", "3600") == (0, [])
    assert run.left_behind() == ["m.ondes"]
    return run.output.read_bytes()


# ---- killed ----


def frames_in(path):
    return checkpoint.read(path).dictionary.learner.n_frames_seen_


def kill_at_random_moments(run, n_kills, seed, longest=0.3):
    """SIGKILL a run again and again; the number of frames in the checkpoint each time.

    A fifth of the moments are anywhere from the start of the process on, the others after its
    first checkpoint.
    """
    moments = random.Random(seed)
    frames = []
    while len(frames) < n_kills:
        process = run.start("--resume")
        with ending(process):
            if moments.random() < 0.2:
                time.sleep(moments.uniform(0, 0.7))
            else:
                run.wait_for_checkpoint(process)
                time.sleep(moments.uniform(0, longest))
            if process.poll() is not None:
                break
            process.kill()
        if run.output.exists():  # it had finished before
            break
        drafts = [name for name in run.left_behind() if name.endswith(".part")]
        assert len(drafts) <= 1, drafts
        is_there = run.checkpoint.exists()
        frames.append(frames_in(run.checkpoint) if is_there else 0)
        assert frames == sorted(frames)
    return frames


def test_killed_at_random_moments_it_ends_with_the_bytes_of_the_unbroken_run(
    album, unbroken, tmp_path
):
    run = Run(tmp_path, album)
    frames = kill_at_random_moments(run, 6, seed=1, longest=0.04)
    assert len(frames) == 6
    assert run.finish("--resume")[0] == 0
    assert run.output.read_bytes() == unbroken
    assert run.left_behind() == ["m.ondes"]


def test_a_signal_saves_and_ends_and_the_run_can_be_resumed(album, unbroken, tmp_path):
    run = Run(tmp_path, album)
    for number, options in ((signal.SIGINT, ()), (signal.SIGTERM, ("--resume",))):
        with ending(run.start(*options)) as process:
            run.wait_for_checkpoint(process)
            process.send_signal(number)
            status, lines = ended(process)
        assert status == 130
        assert lines == [
            f"ondes: interrupted; what was learned so far is in {run.output}; --resume continues."
        ]
        saved, kept = ondes.load(run.output), checkpoint.read(run.checkpoint)
        assert saved.history.stopped_by == number.name
        assert saved.components.tobytes() == kept.dictionary.components.tobytes()
    assert run.finish("--resume") == (0, [])
    assert run.output.read_bytes() == unbroken
    assert run.left_behind() == ["m.ondes"]


@pytest.mark.parametrize("how", ["bar", "no bar"])
def test_a_terminal_that_is_closed_saves_and_ends_the_run(album, tmp_path, how):
    import fcntl
    import pty
    import termios

    run = Run(tmp_path, album, n_passes=100_000)
    mine, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ondes", *map(str, run.command)],
        stdin=its,
        stdout=its,
        stderr=its if how == "bar" else subprocess.DEVNULL,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(its)
    try:
        shown = b""
        while how == "bar" and b"divergence" not in shown:
            shown += os.read(mine, 2**16)
        if how == "no bar":
            run.wait_for_checkpoint(process)
        os.close(mine)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
    assert ondes.load(run.output).history.stopped_by == "SIGHUP"


def test_resume_starts_where_there_is_no_checkpoint_and_does_nothing_when_all_is_done(
    album, tmp_path
):
    run = Run(tmp_path, album, "--resume", n_passes=1)
    starting = f"ondes: there is no {run.checkpoint} to resume from; starting from the beginning."
    assert run.finish() == (0, [starting])
    finished = run.output.read_bytes()
    complete = f"ondes: {run.output} is complete; nothing is left to do."
    assert run.finish() == (0, [complete])

    # A signal that came too early for a checkpoint leaves such a model behind.
    dictionary = ondes.load(run.output)
    dictionary.history = replace(dictionary.history, stopped_by="SIGTERM")
    dictionary.save(run.output, force=True)
    assert run.finish() == (0, [starting])
    assert run.output.read_bytes() == finished


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-", "--resume"], "Standard input can be read only once; leave out --resume"),
        (
            ["-", "--checkpoint", "c"],
            "Standard input can be read only once; leave out --checkpoint",
        ),
        ([".", "--checkpoint", "m"], "--checkpoint and --output are the same file; name another"),
        ([".", "--checkpoint-every", "-1"], "Invalid value for '--checkpoint-every'"),
    ],
)
def test_what_can_never_be_resumed_is_misuse(tmp_path, arguments, sentence):
    command = [sys.executable, "-m", "ondes", "learn", "-o", "m", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True)
    assert done.returncode == 2
    assert sentence in done.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_an_existing_checkpoint_is_replaced_by_force_alone(album, tmp_path):
    run = Run(tmp_path, album)
    with ending(run.start()) as process:
        run.wait_for_checkpoint(process)
    kept = run.checkpoint.read_bytes()
    reason = "belongs to an unfinished run; resume it, or delete the file to start over"
    assert run.finish() == (1, [f"ondes: {run.checkpoint}: {reason}."])
    assert run.checkpoint.read_bytes() == kept
    assert run.finish("--force", "--seed", "7", "--passes", "1") == (0, [])
    assert ondes.load(run.output).estimator.random_state == 7
    assert run.left_behind() == ["m.ondes"]


# ---- two at once ----


def test_the_second_of_two_processes_is_refused_until_the_first_is_gone(album, unbroken, tmp_path):
    run = Run(tmp_path, album)
    elsewhere = ["-o", tmp_path / "other.ondes", "--checkpoint", run.checkpoint]
    with ending(run.start()) as first:
        run.wait_for_checkpoint(first)
        first.send_signal(signal.SIGSTOP)  # it will not end before the others have tried
        for options, name in (((), run.output), (elsewhere, run.checkpoint)):
            status, lines = run.finish("--resume", *options)
            assert status == 1
            (line,) = lines
            assert line.startswith(
                f"ondes: {name}: is being written by another process ({first.pid}"
            )
    assert run.finish("--resume") == (0, [])
    assert run.output.read_bytes() == unbroken
    assert run.left_behind() == ["m.ondes"]


def test_of_many_processes_that_lock_a_file_one_at_a_time_succeeds(tmp_path):
    """Each worker adds one to a number under the lock: none may be lost, no lock left over."""
    script = """if True:
        import sys
        from pathlib import Path
        from ondes import FileError
        from ondes.atomic_file import exclusive_writer
        path, n_left = Path(sys.argv[1]), 60
        while n_left:
            try:
                with exclusive_writer(path):
                    path.write_text(str(int(path.read_text()) + 1))
                    n_left -= 1
            except FileError:
                pass
        """
    path = tmp_path / "number"
    path.write_text("0")
    command = [sys.executable, "-c", script, path]
    workers = [subprocess.Popen(command, env=ENVIRONMENT) for _ in range(4)]
    assert [worker.wait(PATIENCE_S) for worker in workers] == [0] * 4
    assert path.read_text() == "240"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_removes_the_temporary_files_of_its_own_file_alone(tmp_path):
    others = [".n.0123abcd.part", ".m.ondes.part", ".m.ondes.0123abcd.part.wav", "m.0123abcd.part"]
    for name in (".m.0123abcd.part", ".m.ffffffff.part", *others):
        (tmp_path / name).write_text("a part")
    with exclusive_writer(tmp_path / "m"):
        with pytest.raises(FileError, match=f"another process \\({os.getpid()} on "):
            exclusive_writer(tmp_path / "m").__enter__()
        with exclusive_writer(tmp_path / "other"):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


# ---- failing disks ----


@contextmanager
def full_disk(folder, process):
    """Fill the small disk that is mounted as the folder."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1024)):
                pass
        except OSError:
            pass
    yield "No space left on device"
    ballast.unlink()


@contextmanager
def size_limit(folder, process):
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    yield "File too large"


@contextmanager
def read_only_folder(folder, process):
    folder.chmod(0o555)
    yield "its folder is read-only"
    folder.chmod(0o755)


def obey_permissions():
    """Even as root: the next program loses CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    for capability in (1, 2) if os.geteuid() == 0 else ():
        if ctypes.CDLL(None, use_errno=True).prctl(24, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("fault", [full_disk, size_limit, read_only_folder])
def test_a_failing_disk_does_not_end_learning_nor_lose_the_model(
    album, unbroken, tmp_path, fault, request
):
    folder = tmp_path
    if fault is full_disk:
        folder = request.getfixturevalue("small_disk")
    run, refuge = Run(folder, album), tmp_path / "refuge"
    refuge.mkdir()
    environment = {**ENVIRONMENT, "TMPDIR": str(refuge)}
    with ending(run.start(preexec_fn=obey_permissions, env=environment)) as process:
        run.wait_for_checkpoint(process)
        with fault(folder, process) as reason:
            status, lines = ended(process)
            assert frames_in(run.checkpoint) > 0
    assert status == 1
    warned, failed = lines
    assert warned == (
        f"ondes: {run.checkpoint}: cannot be written ({reason}), so the previous checkpoint "
        "stays; training goes on and tries again every 0.02 s."
    )
    failure = f"ondes: {run.output}: cannot be written ({reason})"
    if fault is size_limit:  # which is everywhere
        assert failed == f"{failure}."
        assert not list(refuge.iterdir())
    else:
        (rescued,) = refuge.glob("*/m.ondes")
        assert failed == f"{failure}, so the model was saved as {rescued}."
        assert rescued.read_bytes() == unbroken
    assert run.finish("--resume") == (0, [])
    assert run.output.read_bytes() == unbroken


def test_a_user_without_rights_is_told_before_any_work_and_reads_what_may_be_read(album, tmp_path):
    sounds, closed = Path(shutil.copytree(album, tmp_path / "album")), tmp_path / "closed"
    (sounds / "1.flac").chmod(0)
    closed.mkdir(mode=0o555)
    for option in ("-o", "--checkpoint"):
        run = Run(tmp_path, sounds, option, closed / "m", n_passes=1)
        status, (line,) = run.finish(preexec_fn=obey_permissions)
        assert status == 1
        assert line == f"ondes: {closed / 'm'}: cannot be written (its folder is read-only)."
    run = Run(tmp_path, sounds, n_passes=1)
    status, (line,) = run.finish(preexec_fn=obey_permissions)
    assert status == 3
    assert line == f"ondes: {sounds / '1.flac'}: cannot be read (Permission denied)."
    history = ondes.load(run.output).history
    assert (history.n_files, history.n_failed) == (4, 1)
    assert not list(closed.iterdir())


# ---- clocks ----


def test_a_wall_clock_that_is_set_back_changes_nothing(album, unbroken, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library, source = tmp_path / "clock.so", Path(__file__).parent / "stepping_clock.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    folder = tmp_path / "run"
    folder.mkdir()
    run, environment = Run(folder, album), {**ENVIRONMENT, "LD_PRELOAD": str(library)}
    with ending(run.start(env=environment)) as process:
        run.wait_for_checkpoint(process)
    assert run.finish("--resume", env=environment) == (0, [])
    assert run.output.read_bytes() == unbroken
    assert run.left_behind() == ["m.ondes"]


# ---- files that vanish ----


def test_a_recording_that_vanishes_during_the_run_is_reported_and_the_rest_is_learned(
    album, tmp_path
):
    sounds = Path(shutil.copytree(album, tmp_path / "album"))
    run = Run(tmp_path, sounds)
    with ending(run.start()) as process:
        run.wait_for_checkpoint(process)
        (sounds / "2.flac").unlink()
        status, lines = ended(process)
    assert status == 3
    (line,) = lines
    assert line.startswith(f"ondes: {sounds / '2.flac'}: ")
    history = ondes.load(run.output).history
    assert (history.n_files, history.n_failed, history.stopped_by) == (4, 1, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_album(folder / "album")
        n_passes = 4 * given.kills
        runs = {}
        for title in ("unbroken", "broken"):
            (folder / title).mkdir()
            runs[title] = Run(folder / title, folder / "album", n_passes=n_passes)
        start = time.monotonic()
        assert runs["unbroken"].finish("--checkpoint-every", "3600") == (0, [])
        share = (time.monotonic() - start) / given.kills  # so that they cover all of the run
        frames = kill_at_random_moments(runs["broken"], given.kills, given.seed, share)
        status, lines = runs["broken"].finish("--resume")
        same = runs["broken"].output.read_bytes() == runs["unbroken"].output.read_bytes()
        model = ondes.load(runs["unbroken"].output)
        result = {
            "kills": len(frames),
            "frames_at_kills": frames,
            "frames_in_all": model.history.n_frames,
            "unreadable_checkpoints": 0,  # the first one would have ended this
            "status": status,
            "lines": lines,
            "same_bytes": same,
            "left_behind": runs["broken"].left_behind(),
        }
        print(json.dumps(result, indent=1))
        sys.exit(not same)


if __name__ == "__main__":
    main()
