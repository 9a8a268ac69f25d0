"""`--resume` goes on with its own run alone, finished or not; nothing else is overwritten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hostile import SMALL, SR, everything_under, noise, run, tones, write_sound

import ondes

NOTHING_LEFT = "nothing is left to do"


@pytest.fixture
def finished(tmp_path):
    """The command of a run that has ended, its model, and that model's bytes."""
    write_sound(tmp_path / "a.wav", tones(0))
    write_sound(tmp_path / "b.wav", noise(0))
    output = tmp_path / "m.ondes"
    command = ["learn", tmp_path / "a.wav", "-o", output, *SMALL]
    assert run(*command).returncode == 0
    return command, output, output.read_bytes()


def is_refused(done, output, kept):
    assert done.returncode == 1
    (line,) = done.lines
    assert str(output) in line
    assert "bug" not in line
    assert done.stdout == b""
    assert output.read_bytes() == kept
    assert everything_under(output.parent) == ["a.wav", "b.wav", "m.ondes"]


@pytest.mark.parametrize(
    "others",
    [
        ["-k", "4"],
        ["--seed", "1"],
        ["--passes", "2"],
        ["--sr", "4000"],
        ["--n-fft", "256"],
        ["--hop-length", "16"],
        ["--batch-size", "64"],
        ["--top-db", "40"],
        ["--top-db", "off"],
        ["--raw", f"{SR}:1:s16le"],
    ],
    ids=" ".join,
)
def test_a_finished_run_is_not_resumed_with_another_setting(finished, others):
    command, output, kept = finished
    is_refused(run(*command, *others, "--resume"), output, kept)


@pytest.mark.parametrize("files", [["b.wav"], ["a.wav", "b.wav"], ["."]], ids=" ".join)
def test_a_finished_run_is_not_resumed_with_other_recordings(finished, files):
    command, output, kept = finished
    given = [output.parent / name for name in files]
    is_refused(run("learn", *given, *command[2:], "--resume"), output, kept)


def test_a_finished_run_of_several_recordings_is_not_resumed_with_fewer(tmp_path):
    for n, name in enumerate("ab"):
        write_sound(tmp_path / f"{name}.wav", tones(n))
    output = tmp_path / "m.ondes"
    how = ["-o", output, *SMALL]
    assert run("learn", tmp_path / "a.wav", tmp_path / "b.wav", *how).returncode == 0
    kept = output.read_bytes()
    is_refused(run("learn", tmp_path / "a.wav", *how, "--resume"), output, kept)


@pytest.mark.parametrize(
    "others",
    [[], ["-j", "2"], ["--backend", "reference"], ["--checkpoint-every", "1"]],
    ids=" ".join,
)
def test_a_finished_run_is_resumed_with_whatever_changes_no_result(finished, others):
    command, output, kept = finished
    done = run(*command, *others, "--resume")
    assert done.returncode == 0
    (line,) = done.lines
    assert NOTHING_LEFT in line
    assert output.read_bytes() == kept


def test_a_finished_run_is_the_same_whatever_its_recordings_are_called_by(finished):
    command, output, kept = finished
    done = run("learn", "a.wav", *command[2:], "--resume", cwd=output.parent)
    assert done.returncode == 0
    assert NOTHING_LEFT in done.lines[0]
    assert output.read_bytes() == kept


def test_an_interrupted_model_is_not_overwritten_by_another_run(finished):
    """A signal that came too early for a checkpoint leaves such a model behind."""
    command, output, _ = finished
    model = ondes.load(output)
    history = replace(model.history, stopped_by="SIGTERM")
    ondes.Dictionary(model.estimator, model.audio, history).save(output, force=True)
    kept = output.read_bytes()
    is_refused(run(*command, "-k", "4", "--resume"), output, kept)
    is_refused(run("learn", output.parent / "b.wav", *command[2:], "--resume"), output, kept)


def test_a_model_without_history_is_neither_resumed_nor_overwritten(finished):
    command, output, _ = finished
    model = ondes.load(output)
    ondes.Dictionary(model.estimator, model.audio).save(output, force=True)
    kept = output.read_bytes()
    is_refused(run(*command, "--resume"), output, kept)


def test_a_model_of_arrays_is_neither_resumed_nor_overwritten(finished):
    command, output, _ = finished
    model = ondes.load(output)
    ondes.Dictionary(model.estimator).save(output, force=True)
    kept = output.read_bytes()
    is_refused(run(*command, "--resume"), output, kept)


def test_a_file_that_is_no_model_is_not_overwritten_by_resume(finished):
    command, output, _ = finished
    output.write_text("precious")
    is_refused(run(*command, "--resume"), output, b"precious")


def test_force_begins_anew_where_resume_would_refuse(finished):
    command, output, kept = finished
    done = run(*command, "-k", "4", "--resume", "--force")
    assert done.returncode == 0
    assert output.read_bytes() != kept
    assert ondes.load(output).estimator.n_components == 4
