"""Learning on a device is learning: the same frames, batches and dictionary as anywhere else.

All of it runs on the CPU here; what a card adds is measured by `benchmarks/gpu.py`.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import soundfile

import ondes
import ondes.learning
from ondes import OnlineISNMF
from ondes.model_file import AudioSettings
from ondes.nmf.forgetting import GrowingMemory, HalfLife
from ondes.nmf.penalties import GroupLog, LogSparsity
from ondes.nmf.problem import Solver
from ondes.signal.batches import Batches
from ondes.signal.stft import Stft

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

from ondes import card
from ondes.card.rounds import RoundsInMemory

SR, STFT = 8000, Stft(128)


def recording(seconds=12.0, seed=0):
    """Bursts of tones in noise, with a silence in the middle."""
    rng = np.random.default_rng(seed)
    n = int(seconds * SR)
    pitch = np.repeat(rng.uniform(0.05, 1.5, size=1 + n // 1000), 1000)[:n]
    decay = np.exp(-(np.arange(n) % 1000) / 400)
    sound = 0.3 * decay * np.sin(np.cumsum(pitch)) + 0.05 * rng.standard_normal(n)
    sound[n // 2 : n // 2 + SR] = 0
    return (20000 * sound).astype(np.int16)


def model_for(n_components=4, silence=-60.0, **settings):
    model = OnlineISNMF(n_components, **{"backend": "torch", "random_state": 0, **settings})
    model.audio_ = AudioSettings(SR, STFT, silence)
    return model


def mixed_frames(model, recordings, stft=STFT, **cuts):
    """What the model learns from, round by round."""
    maker = card.maker_for(model)
    silence = model.audio_.silence
    return list(
        RoundsInMemory(maker, recordings, stft, SR, model.batch_size, silence=silence, **cuts)
    )


# ---- The same frames in the same order ----


@pytest.mark.parametrize("silence", [-60.0, -20.0, None])
@pytest.mark.parametrize("buffer_size", [300, 100_000])
def test_the_batches_are_those_of_the_recordings(tmp_path, silence, buffer_size):
    recordings = [recording(seed=seed) for seed in range(3)]
    recordings[1] = recordings[1][:3217]
    recordings[2][5000:] //= 30  # most of it is silence beside its loudest part, once that is known
    for n, samples in enumerate(recordings):
        soundfile.write(tmp_path / f"{n}.wav", samples, SR)
    cuts = {"buffer_size": buffer_size, "segment_size": 60, "seed": 3, "n_passes": 2}
    made = mixed_frames(model_for(silence=silence, batch_size=50), recordings, **cuts)
    files = sorted(tmp_path.glob("*.wav"))
    expected = Batches(files, STFT, SR, 50, silence=silence, **cuts)
    batches = [batch[batch.any(axis=1)] for batch in expected]
    assert [n for each in made for n in each.batch_sizes] == [len(batch) for batch in batches]
    found, wanted = np.concatenate([each.power for each in made]), np.concatenate(batches)
    assert (np.abs(found - wanted) <= 1e-6 * wanted.max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize(("n_fft", "hop_length"), [(128, 32), (128, 50), (100, 100), (65, 33)])
def test_frames_span_what_the_transform_says(n_fft, hop_length):
    stft = Stft(n_fft, hop_length)
    samples = np.random.default_rng(0).standard_normal(SR).astype(np.float32)
    model = model_for(silence=None)
    model.audio_ = AudioSettings(SR, stft, None)
    (made,) = mixed_frames(model, [samples], stft, segment_size=20)
    expected = np.abs(stft.forward(samples)) ** 2
    order = np.random.default_rng([0, 0, 1]).permutation(len(expected))
    largest = expected.max(axis=1, keepdims=True)
    assert (np.abs(made.power.numpy() - expected[order]) <= (1e-5 * largest)[order]).all()


def test_int16_and_float32_samples_are_one_sound():
    samples = recording()
    one = card.learn_samples(model_for(), samples)
    other = card.learn_samples(model_for(), samples.astype(np.float32) / 32768)
    np.testing.assert_array_equal(one.components_, other.components_)
    both = [samples[:30000], samples[30000:].astype(np.float32) / 32768]
    assert card.learn_samples(model_for(), both).n_frames_seen_ > 0


# ---- The same dictionary ----

SETTINGS = {
    "the default": {},
    "the paper's steps": {"solver": Solver.paper(20), "dictionary_exponent": 0.5},
    "a stop per frame": {"solver": Solver(max_steps=30, tol=1e-2)},
    "a penalty": {"penalty": GroupLog(0.5), "groups": [0, 0, 1, 1]},
    "a background": {"background": np.full(65, 0.02)},
    "frozen rows": {"frozen": np.random.default_rng(0).gamma(1.0, size=(2, 65))},
    "rows that miss some bins": {
        "init": np.vstack([np.tri(3, 65, 40), np.ones(65)]) * np.arange(1.0, 66)
    },
    "another memory": {"forgetting": HalfLife(500), "prior_frames": 30.0},
    "short batches": {"batch_size": 17},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("silence", [-60.0, None])
def test_the_same_frames_give_the_dictionary_of_partial_fit(name, silence):
    # So few frames are little for the default's memory, and rounding would be all it remembers.
    settings = {"batch_size": 50, "silence": silence, "forgetting": GrowingMemory(20.0)}
    settings |= SETTINGS[name]
    samples, cuts = recording(30.0), {"seed": 5, "buffer_size": 700, "segment_size": 100}
    model = card.learn_samples(model_for(**settings), samples, **cuts)

    expected = model_for(**settings)
    made = mixed_frames(expected, [samples], **cuts)
    power = np.concatenate([each.power for each in made])
    ends = np.cumsum(np.concatenate([each.batch_sizes for each in made]))
    expected.set_params(backend="reference")
    expected.begin(power[: ends[np.searchsorted(ends, 3000)]])
    for batch in np.split(power, ends[:-1]):
        if len(batch):
            expected.partial_fit(batch)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-4)
    assert model.n_frames_seen_ == expected.n_frames_seen_
    assert model.statistics_.n_frames == pytest.approx(expected.statistics_.n_frames, rel=1e-12)
    assert model.statistics_.divergence_per_bin == pytest.approx(
        expected.statistics_.divergence_per_bin, rel=1e-5
    )


def test_over_a_known_background_silence_is_a_frame_like_others():
    samples = recording()
    model = card.learn_samples(model_for(silence=None, background=np.full(65, 0.02)), samples)
    assert model.n_frames_seen_ == STFT.n_frames(len(samples))
    assert (
        card.learn_samples(model_for(silence=None), samples).n_frames_seen_ < model.n_frames_seen_
    )


def test_recordings_in_memory_and_in_files_are_learned_alike(tmp_path):
    recordings = [recording(seed=seed) for seed in range(4)]
    for n, samples in enumerate(recordings):
        soundfile.write(tmp_path / f"{n}.wav", samples, SR)
    from_files = ondes.learn(tmp_path, 4, sr=SR, n_fft=128, backend="reference", seed=0)
    model = card.learn_samples(model_for(), recordings)
    np.testing.assert_allclose(model.components_, from_files.components_, atol=1e-3)
    assert model.n_frames_seen_ == from_files.n_frames_seen_


@pytest.mark.parametrize("suffix", ["wav", "ogg", "mp3"])
def test_files_are_learned_from_on_a_device(tmp_path, suffix):
    for seed in range(3):
        soundfile.write(tmp_path / f"{seed}.{suffix}", recording(8.0, seed) / 32768, SR)
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    told = {"torch": [], "reference": []}
    one, other = (
        ondes.learn(
            tmp_path, 4, sr=6000, n_fft=128, hop_length=40, passes=2, backend=backend,
            on_error=lambda path, error, told=told[backend]: told.append(str(error)),
        )
        for backend in told
    )  # fmt: skip
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-3)
    assert one.n_frames_seen_ == other.n_frames_seen_
    assert one.backend_ == "torch (cpu)"
    assert len(told["torch"]) == 1
    assert told["torch"] == told["reference"]


def test_a_run_on_a_device_is_resumed_to_the_very_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(ondes.learning, "SHUFFLED_BYTES", 2**18)
    for seed in range(3):
        soundfile.write(tmp_path / f"{seed}.wav", recording(30.0, seed), SR)
    settings = {"sr": SR, "n_fft": 128, "backend": "torch"}
    unbroken = ondes.learn(tmp_path, 4, **settings)

    def fail_later(progress):
        if progress.n_frames > 6000:
            raise OSError("the power went out")

    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 0.0}
    with pytest.raises(OSError, match="the power"):
        ondes.learn(tmp_path, 4, **settings, **kept, progress=fail_later)
    assert (tmp_path / "run").exists()
    resumed = ondes.learn(tmp_path, 4, **settings, **kept, resume=True)
    np.testing.assert_array_equal(resumed.components_, unbroken.components_)


def test_learning_goes_on_and_the_same_seed_gives_the_same_bits(tmp_path):
    parts = [recording(seed=seed) for seed in range(2)]
    runs = []
    for _ in range(2):
        model = card.learn_samples(model_for(), parts[0])
        ondes.save(model, tmp_path / "half.ondes", force=True)
        model = ondes.load(tmp_path / "half.ondes").set_params(backend="torch")
        runs.append(card.learn_samples(model, parts[1]))
    np.testing.assert_array_equal(runs[0].components_, runs[1].components_)
    assert runs[0].n_frames_seen_ > card.learn_samples(model_for(), parts[0]).n_frames_seen_


# ---- Rounds ----


def test_each_round_is_told_and_its_model_is_whole():
    told = []
    model = model_for(batch_size=50)

    def look(progress):
        told.append((progress.n_frames, progress.seconds_done))
        assert model.n_frames_seen_ == progress.n_frames
        np.testing.assert_allclose(model.components_.sum(axis=1), 1)
        assert np.isfinite(model.transform(np.ones((2, 65)))).all()

    card.learn_samples(model, recording(30.0), buffer_size=700, segment_size=100, progress=look)
    assert len(told) > 3
    assert told == sorted(told)
    assert told[-1] == (model.n_frames_seen_, pytest.approx(30.0))
    assert model.provenance_.n_frames == model.n_frames_seen_
    assert model.backend_ == "torch (cpu)"


def test_a_position_is_found_again_even_amid_a_round():
    cuts = {"buffer_size": 700, "segment_size": 100, "silence": -60.0}
    maker = card.maker_for(model_for(batch_size=50))
    unbroken, later, amid = (
        RoundsInMemory(maker, [recording(30.0)], STFT, SR, 50, **cuts) for _ in range(3)
    )
    first, *others = ((frames, unbroken.state()) for frames in unbroken)
    later.restore(first[1])
    for (one, _), other in zip(others, later, strict=True):
        np.testing.assert_array_equal(one.power, other.power)
    # Batches on the host are taken one by one, and a checkpoint may come between two of them.
    state = later.state() | {"position": [0, 0, 0, 0, 0, 3], "loudest": []}
    amid.restore(state)
    np.testing.assert_array_equal(next(iter(amid)).power, first[0].power[150:])


@pytest.mark.parametrize("n_samples", [0, 1, SR])
@pytest.mark.parametrize("silence", [-60.0, None])
def test_silence_teaches_nothing(n_samples, silence):
    with pytest.raises(ValueError, match="no sound to learn from"):
        card.learn_samples(model_for(silence=silence), np.zeros(n_samples, np.int16))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dictionary_penalty": LogSparsity(0.1)}, "Use `partial_fit` for this"),
        ({"batch_size": None}, "needs all frames at once"),
        ({"backend": "reference"}, "backend='reference' works on no device"),
    ],
)
def test_what_cannot_be_learned_here_is_said(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        card.learn_samples(model_for(**wrong), recording(1.0))


@pytest.mark.parametrize("samples", [np.zeros((4, 2), np.float32), np.zeros(4, np.float64)])
def test_samples_of_another_kind_are_refused(samples):
    with pytest.raises(ValueError, match="must be one row of int16 or float32"):
        card.learn_samples(model_for(), samples)
