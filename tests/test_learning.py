"""Learning from recordings depends on what is heard, and on nothing else."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ondes import OnlineISNMF, Solver, checkpoint, learning
from ondes.learning import divergence_of, go_on_learning, learn
from ondes.lessons import CheckpointPlan, Failures, run
from ondes.model_file import ModelFileError, load, save
from ondes.nmf.penalties import L1
from ondes.signal.audio import AudioError, RawFormat
from ondes.signal.batches import Batches
from ondes.signal.stft import Stft
from ondes.whole_file import FileInUseError

SR = 8000
SILENT_START = 1  # a seed that begins with a silent part of a recording


def tones(seed, seconds=4.0, sr=SR):
    """Notes that decay, with a little noise: 16-bit, so that wav and flac hold the same."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * sr)) / sr
    pitch = rng.choice([220, 330, 440, 550], size=8)[(time * 2).astype(int) % 8]
    samples = np.sin(2 * np.pi * pitch * time) * np.exp(-4 * (time % 0.5))
    return (8000 * (samples + 0.01 * rng.standard_normal(len(time)))).astype(np.int16)


@pytest.fixture
def album(tmp_path):
    for n in range(3):
        soundfile.write(tmp_path / f"{n}.wav", tones(n), SR)
        soundfile.write(tmp_path / f"{n}.flac", tones(n), SR)
    return tmp_path


def learn_small(inputs, **settings):
    return learn(inputs, 5, **{"sr": SR, "n_fft": 128, "backend": "reference", **settings})


def test_wav_or_flac_in_any_order_is_the_same_dictionary(album):
    expected = learn_small(str(album / "*.wav")).components_.tobytes()
    for order in itertools.permutations(range(3)):
        model = learn_small([album / f"{n}.flac" for n in order])
        assert model.components_.tobytes() == expected


def test_another_seed_is_another_dictionary(album):
    dictionaries = [learn_small(album / "0.wav", seed=seed).components_ for seed in (0, 1)]
    assert not np.array_equal(*dictionaries)


def test_learning_goes_on_from_a_file_as_if_it_had_never_stopped(album):
    model = learn_small(album / "0.wav")
    save(model, album / "m.ondes")
    again = load(album / "m.ondes")
    for each in (model, again):
        go_on_learning(each, album / "1.wav", passes=2)
    assert model.components_.tobytes() == again.components_.tobytes()
    assert model.provenance_.seconds == again.provenance_.seconds == pytest.approx(12, abs=0.1)
    assert model.provenance_.n_files == 2


def test_provenance_and_curve_tell_what_happened(album):
    seen = []
    model = learn_small(album.glob("*.wav"), passes=2, batch_size=50, progress=seen.append)
    provenance = model.provenance_
    assert provenance.files == tuple(str(album / f"{n}.wav") for n in range(3))
    assert (provenance.n_files, provenance.n_failed) == (3, 0)
    assert provenance.n_frames == model.n_frames_seen_ == seen[-1].n_frames
    assert provenance.seconds == pytest.approx(24, abs=0.1)
    assert provenance.divergence == seen[-1].divergence
    assert tuple(provenance.learning_curve[-1]) == (seen[-1].n_frames, seen[-1].divergence)
    assert seen[-1].seconds_done <= seen[-1].seconds_total == pytest.approx(24)


def test_the_first_dictionary_is_drawn_from_many_batches_then_learned_from_in_turn(
    album, monkeypatch
):
    monkeypatch.setattr(learning, "SEED_FRAMES", 120)
    model = learn_small(album / "0.wav", batch_size=50)
    how = {"batch_size": 50, "buffer_size": learning.SHUFFLED_BYTES // (4 * 65)}
    batches = list(Batches(album / "0.wav", Stft(128), SR, **how))
    expected = OnlineISNMF(5, batch_size=50, random_state=0, backend="reference")
    for frames in (np.concatenate(batches[:3]), *batches[3:]):
        expected.partial_fit(frames)
    assert len(batches) > 4
    assert model.components_.tobytes() == expected.components_.tobytes()


def test_the_learning_curve_stays_short(album, monkeypatch):
    monkeypatch.setattr(learning, "SEED_FRAMES", 1)
    model = learn_small(album / "0.wav", batch_size=1, solver=Solver(max_steps=1))
    frames = model.provenance_.learning_curve[:, 0]
    assert frames[-1] > 400
    assert len(frames) < 120
    assert (np.diff(frames) > 0).all()


def test_a_bad_recording_is_raised_or_passed_over(album):
    (album / "text.wav").write_text("not a sound")
    with pytest.raises(AudioError, match=r"text\.wav"):
        learn_small(album.glob("*.wav"))
    failures = []
    model = learn_small(album.glob("*.wav"), on_error=lambda path, error: failures.append(path))
    assert failures == [str(album / "text.wav")]
    assert model.provenance_.n_failed == 1
    (album / "text.wav").unlink()
    assert model.provenance_.n_frames == learn_small(album.glob("*.wav")).n_frames_seen_


def test_silence_alone_teaches_nothing(tmp_path):
    soundfile.write(tmp_path / "silence.wav", np.zeros(SR), SR)
    for silence in (-60.0, None):
        with pytest.raises(ValueError, match="no sound to learn from"):
            learn_small(tmp_path / "silence.wav", silence=silence)


def test_wrong_parameters_are_told_before_anything_is_read(album):
    with pytest.raises(ValueError, match="dictionary_exponent"):
        learn_small(album / "absent.wav", dictionary_exponent=3.0)
    with pytest.raises(TypeError, match="unheard_of"):
        learn_small(album / "0.wav", unheard_of=1)


def test_divergence_of_a_recording_is_the_models_score_of_its_frames(album):
    model = learn_small(album / "0.wav", silence=None)
    frames = np.abs(model.audio_.stft.forward(tones(1) / np.float32(2**15))) ** 2
    n_frames, divergence = divergence_of(model, album / "1.wav")
    assert n_frames == len(frames)
    assert divergence == pytest.approx(-model.score(frames), rel=1e-5)


class Endless:
    """A pipe that sends noise, and a signal after some reads, until the test ends."""

    name = "endless"

    def __init__(self, n_reads, action):
        self.rng, self.n_left, self.action = np.random.default_rng(0), n_reads, action
        self.silence = threading.Event()

    def read(self, n):
        self.n_left -= 1
        if self.n_left == 0:
            self.action()
        if self.n_left <= 0:
            self.silence.wait(3)
            return b""
        return self.rng.standard_normal(n // 4).astype("<f4").tobytes()


def test_ctrl_c_ends_the_wait_for_sound_and_returns_what_was_learned():
    pipe = Endless(10, lambda: os.kill(os.getpid(), signal.SIGINT))
    model = learn_small(pipe, raw=RawFormat(SR, 1, "f32le"))
    assert model.provenance_.stopped_by == "SIGINT"
    assert 0 < model.n_frames_seen_ <= 10 * 16384 // 64
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_during_an_update_waits_for_its_end(album, monkeypatch):
    whole_updates = []
    original = learning.OnlineISNMF._absorb

    def interrupted_update(self, *arguments):
        os.kill(os.getpid(), signal.SIGINT) if len(whole_updates) == 4 else None
        moved = original(self, *arguments)
        whole_updates.append(self.components_.copy())
        return moved

    monkeypatch.setattr(learning, "SEED_FRAMES", 1)
    monkeypatch.setattr(learning.OnlineISNMF, "_absorb", interrupted_update)
    model = learn_small(album / "0.wav", batch_size=50)
    assert len(whole_updates) == 5
    assert model.n_frames_seen_ == 250
    assert np.array_equal(model.components_, whole_updates[-1])


def test_ctrl_c_before_any_sound_is_an_ordinary_one():
    pipe = Endless(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        learn_small(pipe, raw=RawFormat(SR, 1, "f32le"))


# ---- Broken off and resumed ----


class BrokenOffError(Exception):
    """Stands for a power cut: nothing in `ondes` handles it."""


def broken_after(n_updates):
    """A progress hook that lets so many updates pass."""
    countdown = itertools.count(n_updates - 1, -1)

    def count_down(_):
        if next(countdown) == 0:
            raise BrokenOffError

    return count_down


def stopped_after(n_updates):
    """The same, by a signal that asks to leave."""
    countdown = itertools.count(n_updates - 1, -1)
    return lambda _: os.kill(os.getpid(), signal.SIGINT) if next(countdown) == 0 else None


class Course:
    """One run over an album, whose first dictionary takes three of the batches of a pass."""

    def __init__(self, album, **settings):
        self.inputs, self.checkpoint = album / "0.wav", album / "run.checkpoint"
        self.settings = {"batch_size": 100, "passes": 2, **settings}

    def learn(self, **how):
        return learn_small(self.inputs, **self.settings, **how)

    def kept(self, **how):
        return self.learn(checkpoint=self.checkpoint, **{"checkpoint_every": 0, **how})


def as_file(model, folder):
    save(model, folder / "as_file", force=True)
    return (folder / "as_file").read_bytes()


@pytest.fixture
def course(album, monkeypatch):
    monkeypatch.setattr(learning, "SEED_FRAMES", 250)
    return Course(album)


def test_broken_off_after_any_update_a_run_ends_with_the_bytes_of_the_unbroken_one(course, album):
    updates = []
    expected = as_file(course.learn(progress=updates.append), album)
    assert len(updates) == 12
    for n_updates in range(1, len(updates) + 1):
        with pytest.raises(BrokenOffError):
            course.kept(progress=broken_after(n_updates))
        # As long as not all is taught that the first dictionary is from, there is none.
        assert course.checkpoint.exists() == (n_updates > 3)
        assert as_file(course.kept(resume=True), album) == expected
        course.checkpoint.unlink()


def test_broken_off_again_and_again_it_still_does(course, album):
    expected = as_file(course.learn(), album)
    n_broken = 0
    while True:
        try:
            model = course.kept(resume=True, progress=broken_after(4))
            break
        except BrokenOffError:
            n_broken += 1
    assert n_broken == 3
    assert as_file(model, album) == expected


def test_stopped_by_a_signal_after_any_update_it_still_does(course, album):
    updates = []
    expected = as_file(course.learn(progress=updates.append), album)
    for n_updates in range(1, len(updates)):
        stopped = course.kept(progress=stopped_after(n_updates), checkpoint_every=3600)
        assert stopped.provenance_.stopped_by == "SIGINT"
        assert stopped.provenance_.n_frames < updates[-1].n_frames
        assert as_file(course.kept(resume=True), album) == expected
        course.checkpoint.unlink()


def test_a_signal_during_the_start_leaves_nothing_to_resume_but_the_beginning(course, monkeypatch):
    original = learning.OnlineISNMF.begin

    def interrupted_begin(self, frames):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, frames)

    monkeypatch.setattr(learning.OnlineISNMF, "begin", interrupted_begin)
    assert course.kept().provenance_.stopped_by == "SIGINT"
    assert not course.checkpoint.exists()


def test_silence_that_gave_no_dictionary_yet_may_be_where_it_breaks(course, album, monkeypatch):
    monkeypatch.setattr(learning, "SEED_FRAMES", 150)
    monkeypatch.setattr(learning, "SHUFFLED_BYTES", 4 * 65 * 100)  # silence stays in one piece
    soundfile.write(album / "0.wav", np.concatenate([np.zeros(9 * SR, np.int16), tones(0)]), SR)
    course.settings |= {"silence": None, "passes": 1, "seed": SILENT_START}
    expected = as_file(course.learn(), album)
    are_seeded = []
    for n_updates in range(4, 11):
        with pytest.raises(BrokenOffError):
            course.kept(progress=broken_after(n_updates))
        are_seeded.append(checkpoint.read(course.checkpoint).model.is_seeded_)
        assert as_file(course.kept(resume=True), album) == expected
        course.checkpoint.unlink()
    assert set(are_seeded) == {False, True}


def test_more_recordings_for_a_model_are_resumed_like_a_first_run(course, album):
    save(course.learn(), album / "first")
    how = {"checkpoint": album / "c", "checkpoint_every": 0}
    expected = as_file(go_on_learning(load(album / "first"), album / "1.wav"), album)
    with pytest.raises(BrokenOffError):
        go_on_learning(load(album / "first"), album / "1.wav", **how, progress=broken_after(3))
    resumed = go_on_learning(load(album / "first"), album / "1.wav", **how, resume=True)
    assert as_file(resumed, album) == expected
    assert resumed.provenance_.n_files == 2


def test_bad_recordings_are_told_again_and_counted_once(course, album):
    (album / "0.wav").write_bytes((album / "0.wav").read_bytes()[:30_000])
    (album / "text.wav").write_text("not a sound")
    course.inputs = [album / "0.wav", album / "1.wav", album / "text.wav"]
    told = []
    expected = as_file(course.learn(on_error=lambda path, _: told.append(path)), album)
    assert sorted(told) == [str(album / "0.wav"), str(album / "text.wav")]
    told_again = []
    with pytest.raises(BrokenOffError):
        course.kept(progress=broken_after(10), on_error=lambda *_: None)
    resumed = course.kept(resume=True, on_error=lambda path, _: told_again.append(path))
    assert sorted(told_again) == sorted(told)
    assert resumed.provenance_.n_failed == 2
    assert as_file(resumed, album) == expected


def test_a_finished_run_is_resumed_to_its_end_at_once(course, album):
    expected = as_file(course.kept(), album)
    updates = []
    assert as_file(course.kept(resume=True, progress=updates.append), album) == expected
    assert updates == []


def test_a_checkpoint_in_the_way_is_neither_lost_nor_resumed_unasked(course):
    with pytest.raises(BrokenOffError):
        course.kept(progress=broken_after(5))
    before = course.checkpoint.read_bytes()
    with pytest.raises(ModelFileError, match="did not end; resume it, or delete the file"):
        course.kept()
    course.settings["passes"] = 3
    with pytest.raises(ModelFileError, match="passes was 2 and is 3; give the same again"):
        course.kept(resume=True)
    assert course.checkpoint.read_bytes() == before


def test_a_run_may_go_on_with_another_backend_and_other_threads(course):
    with pytest.raises(BrokenOffError):
        course.kept(progress=broken_after(5))
    course.settings |= {"backend": "auto", "n_jobs": 2}
    model = course.kept(resume=True)
    assert (model.backend, model.n_jobs) == ("auto", 2)
    expected = Course(course.inputs.parent).learn()
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-5)


def grown(path):
    soundfile.write(path, np.concatenate([tones(1), tones(1)[:SR]]), SR)


def slower(path):
    soundfile.write(path, tones(1), SR // 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Path.unlink, "1.wav is gone since the position was saved: bring it back."),
        (
            lambda path: soundfile.write(path.with_name("new.wav"), tones(7), SR),
            "new.wav is new since the position was saved: leave it out for now.",
        ),
        (
            grown,
            "1.wav has 40000 samples at 8000 Hz, and had 32000 at 8000 Hz when the position was "
            "saved: bring it back as it was.",
        ),
        (
            slower,
            "1.wav has 32000 samples at 4000 Hz, and had 32000 at 8000 Hz when the position was "
            "saved: bring it back as it was.",
        ),
    ],
)
def test_changed_recordings_are_noticed_by_name_before_anything_is_learned(
    course, album, change, said
):
    course.inputs = str(album / "*.wav")
    with pytest.raises(BrokenOffError):
        course.kept(progress=broken_after(8))
    before = course.checkpoint.read_bytes()
    change(album / "1.wav")
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        course.kept(resume=True, progress=broken_after(1))
    assert course.checkpoint.read_bytes() == before


def test_what_cannot_be_resumed_is_told_before_anything_is_learned(course, album):
    never = broken_after(1)
    with pytest.raises(ValueError, match="A stream can be heard only once, so no checkpoint"):
        learn_small(Endless(2, lambda: None), checkpoint=album / "c", progress=never)
    with pytest.raises(ValueError, match="resume=True needs the checkpoint"):
        course.learn(resume=True, progress=never)
    for every in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be a number of seconds"):
            course.kept(checkpoint_every=every, progress=never)
    with pytest.raises(ModelFileError, match="its folder does not exist"):
        course.learn(checkpoint=album / "absent" / "c", progress=never)

    class OwnPenalty(L1):
        pass

    course.settings["penalty"] = OwnPenalty(0.1)
    with pytest.raises(ModelFileError, match="penalty is a OwnPenalty"):
        course.kept(progress=never)


def test_one_checkpoint_has_one_writer_at_a_time(course):
    def try_again(_):
        with pytest.raises(FileInUseError, match=f"another process \\({os.getpid()} on"):
            course.kept(resume=True)

    course.kept(progress=try_again)
    course.kept(resume=True)


def test_a_disk_that_refuses_is_told_once_and_asked_again(course, album):
    expected = as_file(course.learn(), album)
    course.checkpoint = album / "folder" / "c"
    course.checkpoint.parent.mkdir()
    updates = []

    def take_the_folder_away(progress):
        updates.append(progress)
        if len(updates) == 6:
            (album / "folder").rename(album / "away")
        if len(updates) == 9:
            kept = checkpoint.read(album / "away" / "c").model
            assert kept.n_frames_seen_ == updates[4].n_frames
            (album / "away").rename(album / "folder")

    with pytest.warns(RuntimeWarning) as told:
        model = course.kept(progress=take_the_folder_away)
    assert [str(each.message) for each in told] == [
        f"{course.checkpoint}: cannot be written (its folder does not exist), so the last "
        "checkpoint stays; learning goes on and tries again every 0 s."
    ]
    assert checkpoint.read(course.checkpoint).model.n_frames_seen_ == updates[-1].n_frames
    assert as_file(model, album) == expected


# ---- Lessons of any kind ----


class Arrays:
    """Frames in memory as lessons; something may happen when one of them is on its way."""

    seconds_total = None

    def __init__(self, happens=None):
        self.frames = np.random.default_rng(0).exponential(size=(9, 20, 7))
        self.n_given, self.happens = 0, happens or {}

    def __iter__(self):
        while self.n_given < len(self.frames):
            self.n_given += 1
            self.happens.get(self.n_given, lambda: None)()
            yield self.frames[self.n_given - 1]

    @property
    def seconds_done(self):
        return float(self.n_given)

    def state(self):
        return {"n_given": self.n_given}

    def restore(self, state):
        self.n_given = state["n_given"]


def teach_arrays(lessons, failures=None, **others):
    return run(
        OnlineISNMF(2, random_state=0, backend="reference"),
        lessons,
        OnlineISNMF.partial_fit,
        names=["arrays"],
        settings={},
        failures=failures or Failures(),
        **others,
    )


def test_lessons_may_be_of_any_kind(tmp_path):
    expected = teach_arrays(Arrays())
    assert expected.provenance_.seconds == 9
    plan = CheckpointPlan(tmp_path / "c", every=0)
    with pytest.raises(BrokenOffError):
        teach_arrays(Arrays(), plan=plan, progress=broken_after(4))
    resumed = teach_arrays(Arrays(), plan=CheckpointPlan(tmp_path / "c", resume=True))
    assert as_file(resumed, tmp_path) == as_file(expected, tmp_path)


def test_no_lesson_that_is_on_its_way_when_a_signal_comes_is_lost(tmp_path):
    expected = teach_arrays(Arrays())
    stop = {5: lambda: os.kill(os.getpid(), signal.SIGINT)}
    stopped = teach_arrays(Arrays(stop), plan=CheckpointPlan(tmp_path / "c"))
    assert (stopped.n_frames_seen_, stopped.provenance_.stopped_by) == (100, "SIGINT")
    resumed = teach_arrays(Arrays(), plan=CheckpointPlan(tmp_path / "c", resume=True))
    assert as_file(resumed, tmp_path) == as_file(expected, tmp_path)


def test_what_failed_before_the_break_is_told_again(tmp_path):
    told, plan = [], CheckpointPlan(tmp_path / "c", every=0, resume=True)
    for n_updates in (5, 99):
        failures = Failures(lambda path, error: told.append((path, error.reason)))
        error = AudioError("a.wav", "was away")
        fail = {3: lambda failures=failures, error=error: failures(error.path, error)}
        with contextlib.suppress(BrokenOffError):
            model = teach_arrays(
                Arrays(fail), failures, plan=plan, progress=broken_after(n_updates)
            )
    assert told == [("a.wav", "was away")] * 2
    assert model.provenance_.n_failed == 1


def test_a_position_that_the_lessons_do_not_understand_is_told(tmp_path):
    class Others(Arrays):
        def state(self):
            return {"page": self.n_given}

    stop = {5: lambda: os.kill(os.getpid(), signal.SIGINT)}
    teach_arrays(Others(stop), plan=CheckpointPlan(tmp_path / "c"))
    with pytest.raises(ModelFileError, match="is of lessons of another kind"):
        teach_arrays(Arrays(), plan=CheckpointPlan(tmp_path / "c", resume=True))
