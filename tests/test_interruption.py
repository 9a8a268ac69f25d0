"""A run that is stopped or broken off loses nothing: it ends with the bytes of an unbroken one."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import NEEDS_KERNEL
from test_learning import SR, learn_small, tones

import ondes
from ondes import AudioSettings, Dictionary, FileError, OnlineNMF, RawFormat, Stft
from ondes.learning import checkpoint
from ondes.learning import run as training_run
from ondes.learning.cluster.rounds import WorkerFrames
from ondes.learning.run import Batches, RunOptions
from ondes.nmf.learner import DictionaryLearner
from ondes.nmf.penalties import L1
from ondes.signal.frame_reader import HostFrameReader

SILENT_START = 1  # a seed that begins with a silent part of a recording
RAW = RawFormat(SR, 1, "f32le")
IN_SECONDS = 10.0  # how soon a wait must end, on a busy machine; the wait itself is far longer


@pytest.fixture
def album(tmp_path):
    for n in range(3):
        soundfile.write(tmp_path / f"{n}.wav", tones(n), SR)
    return tmp_path


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


class BrokenOffError(Exception):
    """Stands for a power cut: nothing in `ondes` handles it."""


def after(n_updates, action):
    """A progress callback that does something once so many updates are done."""
    countdown = itertools.count(n_updates - 1, -1)
    return lambda _: action() if next(countdown) == 0 else None


def broken_after(n_updates):
    def break_off():
        raise BrokenOffError

    return after(n_updates, break_off)


# ---- signals ----


class BlockedPipe:
    """Noise for some reads; then something happens, and nothing more comes until it is closed."""

    name = "blocked"

    def __init__(self, n_reads, action):
        self.rng, self.n_left, self.action = np.random.default_rng(0), n_reads, action
        self.closed_now = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed_now.set()

    def read(self, n):
        self.n_left -= 1
        if self.n_left == 0:
            self.action()
        if self.n_left <= 0:
            self.closed_now.wait(60)
            return b""
        return self.rng.standard_normal(n // 4).astype("<f4").tobytes()


def test_ctrl_c_ends_the_wait_for_audio_and_returns_what_was_learned():
    with BlockedPipe(10, interrupt) as pipe:
        start = time.monotonic()
        dictionary = learn_small(pipe, raw=RAW, return_on_interrupt=True)
        assert time.monotonic() - start < IN_SECONDS
    assert dictionary.history.stopped_by == "SIGINT"
    assert 0 < dictionary.estimator.n_frames_seen_ <= 10 * 16384 // 64
    assert dictionary.history.n_frames == dictionary.estimator.n_frames_seen_
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_anything_was_learned_is_an_ordinary_one():
    with BlockedPipe(1, interrupt) as pipe, pytest.raises(KeyboardInterrupt):
        learn_small(pipe, raw=RAW, return_on_interrupt=True)


def test_by_default_ctrl_c_is_the_ordinary_one_at_once(album):
    handlers = []

    def look(_):
        handlers.append(signal.getsignal(signal.SIGINT))
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        learn_small(album / "0.wav", progress=look)
    assert handlers == [signal.default_int_handler]
    with BlockedPipe(10, interrupt) as pipe:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            learn_small(pipe, raw=RAW)
        assert time.monotonic() - start < IN_SECONDS


def test_a_second_signal_is_not_waited_for(album):
    reached = []

    def insist():
        interrupt()
        reached.append("first")
        interrupt()
        reached.append("second")

    with pytest.raises(KeyboardInterrupt):
        learn_small(album / "0.wav", progress=after(2, insist), return_on_interrupt=True)
    assert reached == ["first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_only_signals_with_pythons_handler_of_ctrl_c_end_training(album, monkeypatch):
    received = []
    was = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    how = {"batch_size": 50, "return_on_interrupt": True}
    terminate = after(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        dictionary = learn_small(album / "0.wav", progress=terminate, **how)
        assert dictionary.history.stopped_by is None
        assert received == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        terminate = after(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        dictionary = learn_small(album / "0.wav", progress=terminate, **how)
        assert dictionary.history.stopped_by == "SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, was)


def test_other_threads_learn_without_handling_signals(album):
    found = []
    worker = threading.Thread(
        target=lambda: found.append(learn_small(album / "0.wav", return_on_interrupt=True))
    )
    worker.start()
    worker.join()
    assert found[0].components.tobytes() == learn_small(album / "0.wav").components.tobytes()


def test_ctrl_c_during_an_update_waits_for_its_end(album, monkeypatch):
    complete_updates = []
    original = DictionaryLearner.learn_batches

    def interrupted_update(self, *arguments):
        interrupt() if len(complete_updates) == 4 else None
        learned = original(self, *arguments)
        complete_updates.append(self.components_.copy())
        return learned

    monkeypatch.setattr(training_run, "INITIAL_FRAMES", 1)
    monkeypatch.setattr(DictionaryLearner, "learn_batches", interrupted_update)
    dictionary = learn_small(album / "0.wav", batch_size=50, return_on_interrupt=True)
    assert len(complete_updates) == 5
    assert dictionary.estimator.n_frames_seen_ == 250
    assert np.array_equal(dictionary.components, complete_updates[-1])


# ---- broken off and resumed ----


class Run:
    """One run on a recording, whose first dictionary takes three of the batches of a pass."""

    def __init__(self, album, **settings):
        self.recordings, self.checkpoint = album / "0.wav", album / "run.checkpoint"
        self.settings = {"batch_size": 100, "n_passes": 2, **settings}

    def learn(self, **how):
        return learn_small(self.recordings, **self.settings, **how)

    def checkpointed(self, **how):
        return self.learn(checkpoint=self.checkpoint, **{"checkpoint_every": 0, **how})


def as_file(dictionary, folder):
    dictionary.save(folder / "as_file", force=True)
    return (folder / "as_file").read_bytes()


@pytest.fixture
def run(album, monkeypatch):
    monkeypatch.setattr(training_run, "INITIAL_FRAMES", 250)
    return Run(album)


def test_broken_off_after_any_update_it_ends_with_the_bytes_of_the_unbroken_run(run, album):
    updates = []
    expected = as_file(run.learn(progress=updates.append), album)
    assert len(updates) == 12
    for n_updates in range(1, len(updates) + 1):
        with pytest.raises(BrokenOffError):
            run.checkpointed(progress=broken_after(n_updates))
        # There is none until all batches are learned from that the first dictionary was drawn from.
        assert run.checkpoint.exists() == (n_updates > 3)
        assert as_file(run.checkpointed(resume=True), album) == expected
        run.checkpoint.unlink()


def test_broken_off_again_and_again_it_still_does(run, album):
    expected = as_file(run.learn(), album)
    n_broken = 0
    while True:
        try:
            dictionary = run.checkpointed(resume=True, progress=broken_after(4))
            break
        except BrokenOffError:
            n_broken += 1
    assert n_broken == 3
    assert as_file(dictionary, album) == expected


def test_stopped_by_a_signal_after_any_update_it_still_does(run, album):
    updates = []
    expected = as_file(run.learn(progress=updates.append), album)
    for n_updates in range(1, len(updates)):
        stopped = run.checkpointed(
            progress=after(n_updates, interrupt), checkpoint_every=3600, return_on_interrupt=True
        )
        assert stopped.history.stopped_by == "SIGINT"
        assert stopped.history.n_frames < updates[-1].n_frames
        assert as_file(run.checkpointed(resume=True), album) == expected
        run.checkpoint.unlink()


def test_with_a_checkpoint_ctrl_c_is_raised_once_that_is_written(run, album):
    updates = []
    expected = as_file(run.learn(progress=updates.append), album)
    with pytest.raises(KeyboardInterrupt):
        run.checkpointed(progress=after(6, interrupt), checkpoint_every=3600)
    kept = checkpoint.read(run.checkpoint)
    assert kept.dictionary.learner.n_frames_seen_ == updates[5].n_frames
    assert as_file(run.checkpointed(resume=True), album) == expected


def test_a_signal_while_the_first_dictionary_is_drawn_leaves_no_checkpoint(run, monkeypatch):
    original = DictionaryLearner.initialise

    def interrupted(self, frames):
        interrupt()
        return original(self, frames)

    monkeypatch.setattr(DictionaryLearner, "initialise", interrupted)
    assert run.checkpointed(return_on_interrupt=True).history.stopped_by == "SIGINT"
    assert not run.checkpoint.exists()


@pytest.mark.parametrize("cluster", [None, "in-process"])
def test_a_signal_while_frames_are_awaited_loses_no_batch(run, album, monkeypatch, cluster):
    """A disk that does not answer: the run ends where it is, and continues there."""
    run.recordings = album
    run.settings |= {"cluster": cluster, "top_db": None}
    monkeypatch.setattr(training_run, "SHUFFLED_BYTES", 4 * 65 * 400)
    if cluster is not None:
        run.settings |= {"round_size": 1600, "n_shards": 2}
    expected = as_file(run.learn(), album)
    reader = HostFrameReader if cluster is None else WorkerFrames
    original, n_reads, answers = reader.read, itertools.count(), threading.Event()

    def blocked(self, *arguments):
        if next(n_reads) == 4:
            answers.wait(1)  # until all batches so far have been learned from
            interrupt()
            answers.wait(60)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", blocked)
        start = time.monotonic()
        stopped = run.checkpointed(return_on_interrupt=True, checkpoint_every=3600)
        assert time.monotonic() - start < IN_SECONDS
        answers.set()
    assert 0 < stopped.history.n_frames < 2 * 3 * 501
    assert as_file(run.checkpointed(resume=True), album) == expected


def test_signals_and_checkpoints_are_served_during_long_silence(run, album, monkeypatch):
    monkeypatch.setattr(training_run, "SHUFFLED_BYTES", 4 * 65 * 100)
    silence = np.zeros(60 * SR, np.int16)
    soundfile.write(album / "0.wav", np.concatenate([tones(0), silence]), SR)
    expected = as_file(run.learn(), album)
    silent, kept = [], []
    last = None

    def look(progress):
        nonlocal last
        if run.checkpoint.exists() and last.n_frames == progress.n_frames:
            silent.append(progress)
            kept.append(checkpoint.read(run.checkpoint).dictionary.history.seconds)
            if len(silent) == 20:
                interrupt()
        last = progress

    stopped = run.checkpointed(progress=look, return_on_interrupt=True)
    assert stopped.history.stopped_by == "SIGINT"
    assert len(silent) == 20
    # Each checkpoint was written in the silence too: at most one batch before what was reported.
    assert kept == sorted(kept)
    assert len(set(kept)) > 10
    assert as_file(run.checkpointed(resume=True), album) == expected


def test_ctrl_c_ends_a_run_on_a_recording_that_has_fallen_silent(run, album, monkeypatch):
    """The signal comes after the last sound: nothing is learned any more, and yet it is served."""
    monkeypatch.setattr(training_run, "STREAM_FRAMES", 100)
    n_silent = itertools.count()

    class Falling:
        name, rest = "falling", tones(0).tobytes()

        def read(self, n):
            data, self.rest = self.rest[:n], self.rest[n:]
            if not data and next(n_silent) == 50:
                interrupt()
            return data or bytes(n)

    start = time.monotonic()
    raw = RawFormat(SR, 1, "s16le")
    dictionary = learn_small(Falling(), raw=raw, return_on_interrupt=True)
    assert time.monotonic() - start < IN_SECONDS
    assert dictionary.history.stopped_by == "SIGINT"
    assert 300 < dictionary.history.n_frames <= 502
    assert dictionary.history.seconds > 8


def test_silence_that_gave_no_dictionary_yet_may_be_where_it_breaks(run, album, monkeypatch):
    monkeypatch.setattr(training_run, "INITIAL_FRAMES", 150)
    monkeypatch.setattr(training_run, "SHUFFLED_BYTES", 4 * 65 * 100)  # silence stays in one piece
    soundfile.write(album / "0.wav", np.concatenate([np.zeros(9 * SR, np.int16), tones(0)]), SR)
    run.settings |= {"top_db": None, "n_passes": 1, "random_state": SILENT_START}
    expected = as_file(run.learn(), album)
    are_initialised = []
    for n_updates in range(4, 11):
        with pytest.raises(BrokenOffError):
            run.checkpointed(progress=broken_after(n_updates))
        kept = checkpoint.read(run.checkpoint).dictionary
        are_initialised.append(kept.estimator.is_initialised_)
        assert as_file(run.checkpointed(resume=True), album) == expected
        run.checkpoint.unlink()
    assert set(are_initialised) == {False, True}


def test_more_recordings_for_a_dictionary_are_resumed_like_a_first_run(run, album):
    run.learn().save(album / "first")
    how = {"checkpoint": album / "c", "checkpoint_every": 0}
    first = ondes.load(album / "first")
    expected = as_file(ondes.learn(album / "1.wav", dictionary=first), album)
    with pytest.raises(BrokenOffError):
        ondes.learn(album / "1.wav", dictionary=first, **how, progress=broken_after(3))
    resumed = ondes.learn(album / "1.wav", dictionary=first, **how, resume=True)
    assert as_file(resumed, album) == expected
    assert resumed.history.n_files == 2


def test_bad_recordings_are_reported_again_and_counted_once(run, album):
    (album / "0.wav").write_bytes((album / "0.wav").read_bytes()[:30_000])
    (album / "text.wav").write_text("not a sound")
    run.recordings = [album / "0.wav", album / "1.wav", album / "text.wav"]
    reported = []
    expected = as_file(run.learn(on_error=lambda path, _: reported.append(path)), album)
    assert sorted(reported) == [str(album / "0.wav"), str(album / "text.wav")]
    again = []
    with pytest.raises(BrokenOffError):
        run.checkpointed(progress=broken_after(10), on_error=lambda *_: None)
    resumed = run.checkpointed(resume=True, on_error=lambda path, _: again.append(path))
    assert sorted(again) == sorted(reported)
    assert resumed.history.n_failed == 2
    assert as_file(resumed, album) == expected


def test_a_finished_run_is_resumed_to_its_end_at_once(run, album):
    expected = as_file(run.checkpointed(), album)
    updates = []
    assert as_file(run.checkpointed(resume=True, progress=updates.append), album) == expected
    assert updates == []


@NEEDS_KERNEL
def test_a_run_may_continue_with_another_backend_and_other_threads(run):
    with pytest.raises(BrokenOffError):
        run.checkpointed(progress=broken_after(5))
    run.settings |= {"backend": "native", "n_jobs": 2}
    estimator = run.checkpointed(resume=True).estimator
    assert (estimator.backend, estimator.n_jobs, estimator.backend_) == ("native", 2, "native")
    expected = Run(run.recordings.parent).learn()
    np.testing.assert_allclose(estimator.components_, expected.components, atol=1e-5)


# ---- what cannot be resumed ----


def test_an_existing_checkpoint_is_neither_lost_nor_resumed_without_being_asked(run):
    with pytest.raises(BrokenOffError):
        run.checkpointed(progress=broken_after(5))
    before = run.checkpoint.read_bytes()
    with pytest.raises(FileError, match="belongs to an unfinished run; resume it, or delete"):
        run.checkpointed()
    run.settings["n_passes"] = 3
    with pytest.raises(FileError, match="n_passes was 2 and is 3; give the same again"):
        run.checkpointed(resume=True)
    assert run.checkpoint.read_bytes() == before


def longer(path):
    soundfile.write(path, np.concatenate([tones(1), tones(1)[:SR]]), SR)


def slower(path):
    soundfile.write(path, tones(1), SR // 2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (Path.unlink, "1.wav is missing since the position was saved: restore it."),
        (
            lambda path: soundfile.write(path.with_name("new.wav"), tones(7), SR),
            "new.wav is new since the position was saved: leave it out for now.",
        ),
        (
            longer,
            "1.wav has 40000 samples at 8000 Hz, and had 32000 at 8000 Hz when the position was "
            "saved: restore it as it was.",
        ),
        (
            slower,
            "1.wav has 32000 samples at 4000 Hz, and had 32000 at 8000 Hz when the position was "
            "saved: restore it as it was.",
        ),
    ],
)
def test_changed_recordings_are_noticed_by_name_before_anything_is_learned(
    run, album, change, sentence
):
    run.recordings = str(album / "*.wav")
    with pytest.raises(BrokenOffError):
        run.checkpointed(progress=broken_after(8))
    before = run.checkpoint.read_bytes()
    change(album / "1.wav")
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        run.checkpointed(resume=True, progress=broken_after(1))
    assert run.checkpoint.read_bytes() == before


def test_what_cannot_be_resumed_is_reported_before_anything_is_learned(run, album):
    never = broken_after(1)
    with pytest.raises(ValueError, match="A stream can be read only once and not resumed"):
        learn_small(BlockedPipe(2, None), checkpoint=album / "c", progress=never)
    with pytest.raises(ValueError, match="resume=True needs the checkpoint"):
        run.learn(resume=True, progress=never)
    for every in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be a number of seconds"):
            run.checkpointed(checkpoint_every=every, progress=never)
    with pytest.raises(FileError, match="its folder does not exist"):
        run.learn(checkpoint=album / "absent" / "c", progress=never)

    class OwnPenalty(L1):
        pass

    run.settings["penalty"] = OwnPenalty(0.1)
    with pytest.raises(FileError, match="penalty is a OwnPenalty"):
        run.checkpointed(progress=never)


def test_one_checkpoint_has_one_writer_at_a_time(run):
    def try_again(_):
        with pytest.raises(FileError, match=f"by another process \\({os.getpid()} on"):
            run.checkpointed(resume=True)

    run.checkpointed(progress=try_again)
    run.checkpointed(resume=True)


def test_a_failing_disk_is_reported_once_and_tried_again(run, album):
    expected = as_file(run.learn(), album)
    run.checkpoint = album / "folder" / "c"
    run.checkpoint.parent.mkdir()
    updates = []

    def move_the_folder(progress):
        updates.append(progress)
        if len(updates) == 6:
            (album / "folder").rename(album / "away")
        if len(updates) == 9:
            kept = checkpoint.read(album / "away" / "c").dictionary
            assert kept.learner.n_frames_seen_ == updates[4].n_frames
            (album / "away").rename(album / "folder")

    with pytest.warns(RuntimeWarning) as warned:
        dictionary = run.checkpointed(progress=move_the_folder)
    assert [str(each.message) for each in warned] == [
        f"{run.checkpoint}: cannot be written (its folder does not exist), so the previous "
        "checkpoint stays; training goes on and tries again every 0 s."
    ]
    kept = checkpoint.read(run.checkpoint).dictionary
    assert kept.learner.n_frames_seen_ == updates[-1].n_frames
    assert as_file(dictionary, album) == expected


# ---- batches from anywhere ----


class Arrays:
    """Frames in memory as a source of batches; something may happen when one of them comes."""

    seconds_total = None

    def __init__(self, actions=None):
        self.frames = np.random.default_rng(0).exponential(size=(9, 20, 7))
        self.n_given, self.actions = 0, {} if actions is None else actions

    def __iter__(self):
        while self.n_given < len(self.frames):
            self.n_given += 1
            self.actions.get(self.n_given, lambda: None)()
            yield self.frames[self.n_given - 1]

    @property
    def seconds_done(self):
        return float(self.n_given)

    def state(self):
        return {"n_given": self.n_given}

    def restore(self, state):
        self.n_given = state["n_given"]


class FromArrays(training_run.Run):
    """A run on such a source instead of recordings."""

    @contextlib.contextmanager
    def open_batches(self):
        yield Batches(self.source, self.source, lambda _: [])


def train_on(source, fail=lambda _: None, **options):
    estimator = OnlineNMF(2, random_state=0, backend="reference", batch_size=20)
    untrained = Dictionary(estimator, AudioSettings(8000, Stft(12)))
    run = FromArrays(
        untrained, np.zeros(9, np.float32), RunOptions(**{"return_on_interrupt": True, **options})
    )
    run.source = source
    fail(run)
    return run.learn()


def test_batches_may_come_from_anywhere(tmp_path):
    expected = train_on(Arrays())
    assert expected.history.seconds == 9
    often = {"checkpoint": tmp_path / "c", "checkpoint_every": 0}
    with pytest.raises(BrokenOffError):
        train_on(Arrays(), **often, progress=broken_after(4))
    resumed = train_on(Arrays(), checkpoint=tmp_path / "c", resume=True)
    assert as_file(resumed, tmp_path) == as_file(expected, tmp_path)


def test_no_batch_that_comes_together_with_a_signal_is_lost(tmp_path):
    expected = train_on(Arrays())
    stopped = train_on(Arrays({5: interrupt}), checkpoint=tmp_path / "c")
    assert (stopped.history.n_frames, stopped.history.stopped_by) == (100, "SIGINT")
    resumed = train_on(Arrays(), checkpoint=tmp_path / "c", resume=True)
    assert as_file(resumed, tmp_path) == as_file(expected, tmp_path)


def test_recordings_that_failed_before_the_break_are_reported_again(tmp_path):
    reported = []
    often = {"checkpoint": tmp_path / "c", "checkpoint_every": 0, "resume": True}
    error = FileError("a.wav", "was away")

    def fail(run):
        run.source.actions[3] = lambda: run.failures(error.path, error)

    for n_updates in (5, 99):
        with contextlib.suppress(BrokenOffError):
            dictionary = train_on(
                Arrays({}),
                fail,
                on_error=lambda path, error: reported.append((path, error.reason)),
                progress=broken_after(n_updates),
                **often,
            )
    assert reported == [("a.wav", "was away")] * 2
    assert dictionary.history.n_failed == 1


@pytest.mark.parametrize("position", [{"page": 5}, {"n_given": [1]}])
def test_a_position_of_another_kind_of_source_is_reported(tmp_path, position):
    class Others(Arrays):
        def state(self):
            return position

    train_on(Others({5: interrupt}), checkpoint=tmp_path / "c")

    class Strict(Arrays):
        def restore(self, state):
            self.n_given = 0 + state["n_given"]

    with pytest.raises(FileError, match=r"has an invalid position .*; delete the file to start"):
        train_on(Strict(), checkpoint=tmp_path / "c", resume=True)


def test_what_was_learned_is_kept_where_a_cluster_is_lost(tmp_path):
    def fail():
        raise ondes.ClusterError("no workers")

    expected = train_on(Arrays())
    with pytest.raises(ondes.ClusterError):
        train_on(Arrays({6: fail}), checkpoint=tmp_path / "c")
    kept = checkpoint.read(tmp_path / "c")
    assert kept.dictionary.learner.n_frames_seen_ == 100
    kept_position = kept.position["n_given"]
    assert kept_position == 6  # this source counts a batch before it is given
    assert expected.history.n_frames == 180
