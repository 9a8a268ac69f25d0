"""Training on a device is training: the same frames, batches and dictionary as on the host.

All of it runs on the CPU here; what a GPU adds is measured by `benchmarks/gpu.py`.
"""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
import soundfile
from plain_settings import PLAIN

import ondes
from ondes import AudioSettings, Dictionary, OnlineNMF, Stft
from ondes.learning import run as training_run
from ondes.nmf.forgetting import GrowingMemory, HalfLife
from ondes.nmf.penalties import GroupLog, LogSparsity
from ondes.nmf.problem import Solver
from ondes.nmf.statistics import Trained
from ondes.signal.batches import Rounds, frame_batches
from ondes.signal.schedule import Position, Schedule
from ondes.signal.segment_reader import MemoryReader
from ondes.signal.survey import describe

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch

from ondes.learning import gpu

SR, STFT = 8000, Stft(128)
FRAMES = {"sr": SR, "n_fft": 128, "hop_length": 64, "fmax": SR / 2, **PLAIN}


def recording(seconds=12.0, seed=0):
    """Bursts of tones in noise, with a silence in the middle."""
    rng = np.random.default_rng(seed)
    n = int(seconds * SR)
    pitch = np.repeat(rng.uniform(0.05, 1.5, size=1 + n // 1000), 1000)[:n]
    decay = np.exp(-(np.arange(n) % 1000) / 400)
    sound = 0.3 * decay * np.sin(np.cumsum(pitch)) + 0.05 * rng.standard_normal(n)
    sound[n // 2 : n // 2 + SR] = 0
    return (20000 * sound).astype(np.int16)


def untrained(n_components=4, top_db=60.0, stft=STFT, **settings):
    estimator = OnlineNMF(n_components, **{"backend": "torch", "random_state": 0, **settings})
    return Dictionary(estimator, AudioSettings(SR, stft, top_db))


def learn(samples, **settings):
    return ondes.learn(samples, dictionary=untrained(**settings))


def gpu_batches(dictionary, recordings, **schedule):
    """The rounds that a dictionary is trained on."""
    audio, estimator = dictionary.audio, dictionary.estimator
    sizes = {"batch_size": estimator.batch_size, "round_size": 100_000}
    schedule = Schedule(describe(recordings, audio), audio, **sizes | schedule)
    maker = gpu.FrameMaker(audio, "cpu")

    def open_reader():
        return gpu.GpuFrameReader(MemoryReader(recordings, audio.stft), maker)

    return gpu.DeviceRounds(Rounds(schedule, open_reader), maker)


def train(dictionary, batches):
    """The training loop without history, checkpoints and signals."""
    estimator, rounds = dictionary.estimator, iter(batches)
    first = training_run.initialise(estimator, rounds, estimator.batch_size)
    learned = itertools.chain(first, rounds)
    return [Trained(*estimator.learn_batches(each)) for each in learned if len(each)]


# ---- the same frames in the same order ----


@pytest.mark.parametrize("top_db", [60.0, 20.0, None])
@pytest.mark.parametrize("round_size", [300, 100_000])
def test_the_batches_are_those_of_the_host(tmp_path, top_db, round_size):
    recordings = [recording(seed=seed) for seed in range(3)]
    recordings[1] = recordings[1][:3217]
    recordings[2][5000:] //= 30  # most of it is silence beside its loudest part, once that is known
    for n, samples in enumerate(recordings):
        soundfile.write(tmp_path / f"{n}.wav", samples, SR)
    schedule = {"round_size": round_size, "segment_size": 60, "random_state": 3, "n_passes": 2}
    dictionary = untrained(top_db=top_db, batch_size=50)
    made = list(gpu_batches(dictionary, recordings, **schedule))
    expected = frame_batches(sorted(tmp_path.glob("*.wav")), dictionary.audio, 50, **schedule)
    batches = [batch for batch in expected if len(batch)]
    cut = [len(part) for each in made if len(each) for part in torch.split(each, 50)]
    assert cut == [len(batch) for batch in batches]
    found, wanted = np.concatenate(made), np.concatenate(batches)
    assert (np.abs(found - wanted) <= 1e-6 * wanted.max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize(("n_fft", "hop_length"), [(128, 32), (128, 50), (100, 100), (65, 33)])
@pytest.mark.parametrize("n_channels", [None, 1, 2, 3])
def test_frames_are_the_mean_power_of_the_transform(n_fft, hop_length, n_channels):
    stft = Stft(n_fft, hop_length)
    shape = (SR,) if n_channels is None else (SR, n_channels)
    samples = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    dictionary = untrained(top_db=None, stft=stft)
    (made,) = gpu_batches(dictionary, [samples], segment_size=20)
    channels = samples.reshape(SR, -1).T
    expected = np.mean([np.abs(stft.forward(channel)) ** 2 for channel in channels], axis=0)
    order = np.random.default_rng([0, 0, 1]).permutation(len(expected))
    largest = expected.max(axis=1, keepdims=True)
    assert (np.abs(made.numpy() - expected[order]) <= (1e-5 * largest)[order]).all()


def test_recordings_of_one_and_of_two_channels_may_be_mixed():
    mono, stereo = recording(seed=0), np.stack([recording(seed=1), recording(seed=2)], axis=1)
    dictionary = untrained(top_db=None, batch_size=50)
    schedule = {"segment_size": 60, "random_state": 3}
    made = list(gpu_batches(dictionary, [mono, stereo], **schedule))
    found = np.concatenate(made)
    as_floats = [each / np.float32(2**15) for each in (mono, stereo)]
    expected = np.concatenate([STFT.power(each) for each in as_floats])
    in_order = [each[np.argsort(each.sum(axis=1))] for each in (found, expected)]
    largest = expected.max()
    np.testing.assert_allclose(*in_order, rtol=1e-4, atol=1e-6 * largest)


def test_int16_and_float32_samples_are_one_sound():
    samples = recording()
    one = learn(samples)
    other = learn(samples.astype(np.float32) / 32768)
    np.testing.assert_array_equal(one.components, other.components)
    both = [samples[:30000], samples[30000:].astype(np.float32) / 32768]
    assert learn(both).history.n_frames > 0


# ---- the same dictionary ----

SETTINGS = {
    "the default": {},
    "the paper's steps": {"solver": Solver.paper(20), "dictionary_exponent": 0.5},
    "a stop per frame": {"solver": Solver(max_steps=30, tol=1e-2)},
    "a penalty": {"penalty": GroupLog(0.5), "groups": [0, 0, 1, 1]},
    "a background": {"background": np.full(65, 0.02)},
    "fixed components": {"fixed_components": np.random.default_rng(0).gamma(1.0, size=(2, 65))},
    "rows that miss some bins": {
        "init": np.vstack([np.tri(3, 65, 40), np.ones(65)]) * np.arange(1.0, 66)
    },
    "another memory": {"forgetting": HalfLife(500), "prior": 30.0},
    "short batches": {"batch_size": 17},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("top_db", [60.0, None])
def test_the_same_frames_give_the_dictionary_of_partial_fit(name, top_db):
    # So few frames are little for the default's memory, and rounding would be all it remembers.
    settings = {"batch_size": 50, "top_db": top_db, "forgetting": GrowingMemory(20.0)}
    settings |= SETTINGS[name]
    samples = [recording(30.0)]
    schedule = {"random_state": 5, "round_size": 700, "segment_size": 100}
    dictionary = untrained(**settings)
    updates = train(dictionary, gpu_batches(dictionary, samples, **schedule))

    expected = untrained(**settings)
    made = list(gpu_batches(expected, samples, **schedule))
    power = np.concatenate(made)
    size = settings["batch_size"]
    ends = np.cumsum([len(part) for each in made for part in torch.split(each, size)])
    estimator = expected.estimator.set_params(backend="reference")
    estimator.initialise(power[: ends[np.searchsorted(ends, 3000)]])
    n_frames, divergence = 0.0, 0.0
    for batch in np.split(power, ends[:-1]):
        if len(batch):
            statistics = estimator.summarise(batch)
            n_frames += statistics.n_frames
            divergence += statistics.divergence
            estimator.absorb(statistics)
    found = dictionary.estimator
    np.testing.assert_allclose(found.components_, estimator.components_, atol=1e-4)
    assert found.n_frames_seen_ == estimator.n_frames_seen_
    assert found.statistics_.n_frames == pytest.approx(estimator.statistics_.n_frames, rel=1e-12)
    assert found.statistics_.divergence_per_bin == pytest.approx(
        estimator.statistics_.divergence_per_bin, rel=1e-5
    )
    # What each update reports is the sum over its own frames, for the history.
    assert sum(each.n_frames for each in updates) == n_frames
    assert sum(each.divergence for each in updates) == pytest.approx(divergence, rel=1e-4)


def test_with_a_known_background_silence_is_a_frame_like_others():
    samples = recording()
    with_background = learn(samples, top_db=None, background=np.full(65, 0.02))
    assert with_background.history.n_frames == STFT.n_frames(len(samples))
    assert learn(samples, top_db=None).history.n_frames < with_background.history.n_frames


def test_recordings_in_memory_and_in_files_are_learned_alike(tmp_path):
    recordings = [recording(seed=seed) for seed in range(4)]
    for n, samples in enumerate(recordings):
        soundfile.write(tmp_path / f"{n}.wav", samples, SR)
    from_files = ondes.learn(tmp_path, 4, backend="reference", **FRAMES)
    dictionary = learn(recordings)
    np.testing.assert_allclose(dictionary.components, from_files.components, atol=1e-3)
    assert dictionary.history.n_frames == from_files.history.n_frames
    on_device = ondes.learn(tmp_path, 4, backend="torch", **FRAMES)
    np.testing.assert_array_equal(on_device.components, dictionary.components)


@pytest.mark.parametrize("suffix", ["wav", "ogg", "mp3"])
def test_files_are_learned_from_on_a_device(tmp_path, suffix):
    for seed in range(3):
        soundfile.write(tmp_path / f"{seed}.{suffix}", recording(8.0, seed) / 32768, SR)
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    reported = {"torch": [], "reference": []}
    how = {"sr": 6000, "n_fft": 128, "hop_length": 40, "n_passes": 2, **PLAIN}
    one, other = (
        ondes.learn(
            tmp_path, 4, backend=name, on_error=lambda _, error, to=to: to.append(str(error)), **how
        )
        for name, to in reported.items()
    )
    np.testing.assert_allclose(one.components, other.components, atol=1e-3)
    assert one.history.n_frames == other.history.n_frames
    # A device reports rounds, the host batches: within a round all frames weigh the same there.
    assert one.history.divergence == pytest.approx(other.history.divergence, rel=0.02)
    assert one.estimator.backend_ == "torch (cpu)"
    assert len(reported["torch"]) == 1
    assert reported["torch"] == reported["reference"]


def test_a_stereo_recording_in_opposite_phase_is_learned_as_one_of_its_channels(tmp_path):
    samples = recording()
    soundfile.write(tmp_path / "stereo.wav", np.stack([samples, -samples], axis=1), SR)
    found = ondes.learn(tmp_path / "stereo.wav", 4, backend="torch", **FRAMES)
    np.testing.assert_allclose(found.components, learn(samples).components, atol=1e-6)


def test_a_run_on_a_device_is_resumed_to_the_very_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(training_run, "SHUFFLED_BYTES", 2**18)
    for seed in range(3):
        soundfile.write(tmp_path / f"{seed}.wav", recording(30.0, seed), SR)
    settings = {"backend": "torch", **FRAMES}
    unbroken = ondes.learn(tmp_path, 4, **settings)

    def fail_later(progress):
        if progress.n_frames > 6000:
            raise OSError("power failure")

    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 0.0}
    with pytest.raises(OSError, match="power failure"):
        ondes.learn(tmp_path, 4, **settings, **kept, progress=fail_later)
    assert (tmp_path / "run").exists()
    resumed = ondes.learn(tmp_path, 4, **settings, **kept, resume=True)
    np.testing.assert_array_equal(resumed.components, unbroken.components)
    assert resumed.history.divergence == unbroken.history.divergence


def test_learning_continues_and_the_same_seed_gives_the_same_bits(tmp_path):
    parts = [recording(seed=seed) for seed in range(2)]
    runs = []
    for _ in range(2):
        half = tmp_path / "half.ondes"
        learn(parts[0]).save(half, force=True)
        runs.append(ondes.learn(parts[1], dictionary=ondes.load(half), backend="torch"))
    np.testing.assert_array_equal(runs[0].components, runs[1].components)
    assert runs[0].history.n_frames > learn(parts[0]).history.n_frames


# ---- rounds ----


def test_each_round_is_reported_and_its_estimator_is_complete(monkeypatch):
    monkeypatch.setattr(training_run, "SHUFFLED_BYTES", 4 * 65 * 700)
    seen = []
    run = training_run.Run(
        untrained(batch_size=50),
        recording(30.0),
        training_run.RunOptions(progress=lambda progress: look(progress)),
    )

    def look(progress):
        estimator = run.learner
        seen.append((progress.n_frames, progress.seconds_done))
        assert estimator.n_frames_seen_ == progress.n_frames
        np.testing.assert_allclose(estimator.components_.sum(axis=1), 1)
        assert np.isfinite(estimator.transform(np.ones((2, 65)))).all()

    dictionary = run.learn()
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert seen[-1] == (dictionary.estimator.n_frames_seen_, pytest.approx(30.0))
    assert dictionary.history.n_frames == dictionary.estimator.n_frames_seen_
    assert dictionary.estimator.backend_ == "torch (cpu)"


def test_a_position_is_found_again_even_within_a_round():
    schedule = {"round_size": 700, "segment_size": 100}
    unbroken, later, within = (
        gpu_batches(untrained(batch_size=50), [recording(30.0)], **schedule) for _ in range(3)
    )
    first, *others = ((frames, unbroken.schedule.state()) for frames in unbroken)
    later.schedule.restore(first[1])
    for (one, _), other in zip(others, later, strict=True):
        np.testing.assert_array_equal(one, other)
    # On the host batches are taken one by one, and a checkpoint may come between two of them.
    within.schedule.advance(Position(n_given=3))
    np.testing.assert_array_equal(next(iter(within)), first[0][150:])


@pytest.mark.parametrize("n_samples", [0, 1, SR])
@pytest.mark.parametrize("top_db", [60.0, None])
def test_silence_alone_is_an_error(n_samples, top_db):
    with pytest.raises(ValueError, match="The recordings are silent"):
        learn(np.zeros(n_samples, np.int16), top_db=top_db)


def test_a_penalty_on_the_dictionary_is_learned_with_on_the_host():
    samples = recording()
    penalty = {"dictionary_penalty": LogSparsity(0.01)}
    found = learn(samples, **penalty)
    expected = learn(samples, backend="reference", **penalty)
    np.testing.assert_allclose(found.components, expected.components, atol=1e-3)
    assert found.estimator.backend_ == "torch (cpu)"
