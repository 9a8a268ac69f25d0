"""Learning from recordings depends on what is heard, and on nothing else."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import numpy as np
import pytest
import soundfile

from ondes import OnlineISNMF, Solver, learning
from ondes.learning import divergence_of, go_on_learning, learn
from ondes.model_file import load, save
from ondes.signal.audio import AudioError, RawFormat
from ondes.signal.batches import Batches
from ondes.signal.stft import Stft

SR = 8000


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
    pipe = Endless(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    model = learn_small(pipe, raw=RawFormat(SR, 1, "f32le"))
    assert model.provenance_.stopped_by == "SIGINT"
    assert 0 < model.n_frames_seen_ <= 5 * 32768 // 64
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
