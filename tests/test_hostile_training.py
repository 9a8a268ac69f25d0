"""`ondes train` on hostile files and names, broken off, and with forged checkpoints."""

from __future__ import annotations

import os
import signal
import stat

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hostile import (
    ENVIRONMENT,
    SR,
    Program,
    everything_under,
    forged,
    tree_of,
    write_sound,
)

import ondes
from ondes.demo_scene import make_scene

pytestmark = NEEDS_TORCH

N_UPDATES = 12
SMALL = ("-k", "2", "--sr", str(SR), "--n-fft", "512")
LIMITS = {"memory": 2**31, "patience": 120.0}
NAMES = ("strings", "drums")


@pytest.fixture(scope="module")
def program():
    loaded = ("trainer", "network", "pools", "training")
    started = Program(
        ENVIRONMENT,
        [
            "torch",
            *(f"ondes.learning.separator_training.{n}" for n in loaded),
        ],
    )
    yield started
    started.close()


def write_band(folder, change=lambda samples, name: samples):
    """Three short recordings of each of two sources."""
    for name in NAMES:
        for seed in (1, 2, 3):
            samples = make_scene(7.5, SR, random_state=seed).stems[name].astype(np.float32)
            write_sound(folder / name / f"{seed}.wav", change(samples, name), subtype="FLOAT")
    return folder


@pytest.fixture(scope="module")
def band(tmp_path_factory):
    return write_band(tmp_path_factory.mktemp("band"))


@pytest.fixture
def one_thread():
    """Two threads of PyTorch wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def command(band, output, *more, n_updates=N_UPDATES):
    both = [f"{name}={band / name}" for name in NAMES]
    return ["train", *both, "-o", output, *SMALL, "--updates", n_updates, *more]


@pytest.fixture(scope="module")
def unbroken(program, band, tmp_path_factory):
    """The bytes of a separator whose training nothing has disturbed."""
    output = tmp_path_factory.mktemp("unbroken") / "s.ondes"
    done = program(*command(band, output), **LIMITS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert everything_under(output.parent) == ["s.ondes"]
    return output.read_bytes()


# ---- broken off ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_broken_off_ends_with_the_bytes_of_the_unbroken_one(
    program, band, tmp_path, unbroken, number
):
    output, checkpoint = tmp_path / "s.ondes", tmp_path / "s.ondes.checkpoint"
    stop = ["hostile:send_signal_when_there", str(checkpoint), int(number)]
    done = program(*command(band, output), before=stop, **LIMITS)
    assert done.returncode == (130 if number == signal.SIGTERM else -number)
    assert 0 < ondes.load(checkpoint).history.n_updates < N_UPDATES
    if number == signal.SIGTERM:
        (line,) = done.lines
        assert "--resume continues" in line
        assert ondes.load(output).history.stopped_by == "SIGTERM"
    others = write_band(tmp_path / "others", lambda samples, _: samples[: -SR // 2])
    kept = checkpoint.read_bytes()
    reversed_band = write_band(tmp_path / "others2", lambda samples, _: samples[::-1])
    for given in (
        command(others, output),
        command(reversed_band, output),
        command(band, output, "--seed", 3),
    ):
        done = program(*given, "--resume", **LIMITS)
        assert done.returncode == 1
        (line,) = done.lines
        assert "recordings or settings are not those of this run" in line
    assert checkpoint.read_bytes() == kept
    done = program(*command(band, output, "--resume"), **LIMITS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert output.read_bytes() == unbroken
    left = [name for name in everything_under(tmp_path) if not name.startswith("others")]
    assert left == ["s.ondes"]


def test_recordings_that_do_not_fit_into_memory_are_resumed_to_the_same_bytes(
    band, tmp_path, monkeypatch, one_thread
):
    from ondes.learning.separator_training import pools, trainer

    monkeypatch.setattr(pools, "ROUND_S", 5.0)
    monkeypatch.setattr(trainer, "REFRESH_STEPS", 2)
    monkeypatch.setattr(pools.SamplePool.__init__, "__defaults__", (11.0, lambda *_: None))
    sources = {name: band / name for name in NAMES}
    settings = {"sr": SR, "n_fft": 512, "n_components": 2, "n_updates": 8}
    whole = ondes.train(sources, **settings)
    checkpoint = tmp_path / "c"
    state = trainer.SeparatorTrainer.state

    def interrupted(self):
        if self.n_updates == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return state(self)

    monkeypatch.setattr(trainer.SeparatorTrainer, "state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ondes.train(sources, **settings, checkpoint=checkpoint)
    monkeypatch.setattr(trainer.SeparatorTrainer, "state", state)
    assert 2 <= ondes.load(checkpoint).history.n_updates < settings["n_updates"]
    resumed = ondes.train(sources, **settings, checkpoint=checkpoint, resume=True)
    for each, other in ((whole, "whole"), (resumed, "resumed")):
        each.save(tmp_path / other)
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_finished_separator_is_not_replaced_by_resuming(program, band, tmp_path, unbroken):
    output = tmp_path / "s.ondes"
    output.write_bytes(unbroken)
    done = program(*command(band, output, "--resume"), **LIMITS)
    assert done.returncode == 0
    assert "is complete" in done.lines[0]
    assert output.read_bytes() == unbroken


# ---- forged checkpoints ----


def with_value(place, value):
    def change(tree):
        part = tree["training"]["state"]
        for name in place[:-1]:
            part = part[name]
        part[place[-1]] = value

    return change


FORGERIES = {
    "a count below zero": with_value(["n_updates"], -1),
    "a count that is none": with_value(["n_updates"], "x"),
    "a share beyond the end": with_value(["share_done"], 7.5),
    "moments of another kind": with_value(["moments"], [[1.5, None]]),
    "a network without a part": lambda tree: tree["training"]["state"]["network"].popitem(),
    "a best state of numbers": with_value(["best_network"], {"log_decoder": 3}),
    "no scores": with_value(["si_sdr"], {}),
    "a state that is none": lambda tree: tree["training"].update(state=None),
    "no state": lambda tree: tree["training"].pop("state"),
    "a run that is a number": lambda tree: tree.update(training=5),
}


@pytest.fixture(scope="module")
def kept(program, band, tmp_path_factory):
    """The bytes of a checkpoint in the middle of a run."""
    checkpoint = tmp_path_factory.mktemp("kept") / "s.ondes.checkpoint"
    stop = ["hostile:send_signal_when_there", str(checkpoint), int(signal.SIGKILL)]
    program(*command(band, checkpoint.with_suffix("")), before=stop, **LIMITS)
    return checkpoint.read_bytes()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_checkpoint_is_refused_in_one_sentence(program, band, tmp_path, kept, name):
    checkpoint = tmp_path / "s.ondes.checkpoint"
    data = forged(kept, FORGERIES[name])
    checkpoint.write_bytes(data)
    done = program(*command(band, tmp_path / "s.ondes", "--resume"), **LIMITS)
    assert done.returncode == 1
    (line,) = done.lines
    assert "s.ondes.checkpoint: cannot be resumed: " in line
    assert everything_under(tmp_path) == ["s.ondes.checkpoint"]
    assert checkpoint.read_bytes() == data


def test_no_damaged_checkpoint_or_separator_is_used(tmp_path, kept, unbroken):
    """200 of 200: a byte changed or bytes missing, anywhere."""
    rng = np.random.default_rng(0)
    path = tmp_path / "s.ondes"
    for data in (kept, unbroken):
        path.write_bytes(data)
        ondes.load(path)
        for n in range(100):
            at = int(rng.integers(len(data)))
            flipped = data[:at] + bytes([data[at] ^ 1 << n % 8]) + data[at + 1 :]
            path.write_bytes(flipped if n % 2 else data[:at])
            with pytest.raises(ondes.FileError):
                ondes.load(path)


# ---- files, names and places ----


def test_damaged_recordings_and_long_names_cost_no_run(program, band, tmp_path):
    bad = ["text.wav", "\x1b[31m[bold]\x07.wav"]
    write_band(tmp_path / "in")
    for name in bad:
        (tmp_path / "in" / "drums" / name).write_text("no recording")
    os.mkfifo(tmp_path / "pipe")
    output = tmp_path / ("x" * 249 + ".ondes")  # the longest name that there is
    given = command(tmp_path / "in", output, "--json", n_updates=2)
    done = program(*given, f"drums={tmp_path / 'pipe'}", **LIMITS)
    assert done.returncode == 3
    assert len(done.lines) == 3
    assert all(line.isprintable() for line in done.lines)
    assert sum("is not audio" in line for line in done.lines) == len(bad)
    assert sum("pipe: has no known length" in line for line in done.lines) == 1
    assert done.result["n_failed"] == len(done.result["failures"]) == 3
    written = [name for name in everything_under(tmp_path) if not name.startswith(("in", "pipe"))]
    assert written == [output.name]


def test_sources_at_extreme_volumes_are_trained_on(program, tmp_path):
    """2^83 is about 1e25."""
    exponents = {"strings": 83, "drums": -83}
    write_band(tmp_path / "in", lambda samples, name: np.ldexp(samples, exponents[name]))
    output = tmp_path / "s.ondes"
    done = program(*command(tmp_path / "in", output), **LIMITS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert min(ondes.load(output).history.si_sdr) > 0


def test_standard_output_is_no_file_called_minus(program, band, tmp_path):
    done = program(*command(band, "-"), cwd=tmp_path, **LIMITS)
    assert done.returncode == 2
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize("name", ["s.ondes", "s.ondes.checkpoint"])
def test_force_replaces_no_pipe(program, band, tmp_path, name):
    os.mkfifo(tmp_path / name)
    done = program(*command(band, tmp_path / "s.ondes", "--force"), **LIMITS)
    assert done.returncode == 1
    assert "is a device, pipe or socket" in done.lines[0]
    assert stat.S_ISFIFO((tmp_path / name).stat().st_mode)
    assert everything_under(tmp_path) == [name]


def test_the_names_of_sources_lead_nowhere(program, band, tmp_path):
    output = tmp_path / "s.ondes"
    both = [f"../../\x1b[31mup={band / 'strings'}", f"/etc/x={band / 'drums'}"]
    done = program("train", *both, "-o", output, *SMALL, "--updates", 1, **LIMITS)
    assert done.returncode == 0
    assert done.stdout.decode().strip().isprintable()
    mix = band / "strings" / "1.wav"
    done = program("separate", mix, "-d", output, "-o", tmp_path / "a" / "out", **LIMITS)
    assert (done.returncode, done.stderr) == (0, b"")
    stems = list(tmp_path.rglob("*.wav"))
    assert len(stems) == 2
    assert all(path.parent == tmp_path / "a" / "out" / "1" for path in stems)


def test_the_checkpoint_is_a_separator_too(tmp_path, kept):
    (tmp_path / "c").write_bytes(kept)
    assert tree_of(tmp_path / "c")["training"]["settings"]["names"] == list(NAMES)
    assert ondes.load(tmp_path / "c").names == NAMES
