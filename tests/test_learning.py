"""Learning from recordings depends on their sound, and on nothing else."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import soundfile
from conftest import NEEDS_KERNEL
from plain_settings import PLAIN

import ondes
from ondes import AudioSettings, FileError, OnlineNMF, RawFormat, Solver, Stft
from ondes.cli import main
from ondes.learning import run as training_run
from ondes.nmf.host_trainer import HostTrainer
from ondes.signal.batches import frame_batches

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


def learn_small(recordings, **settings):
    how = {"sr": SR, "n_fft": 128, "hop_length": 64, "backend": "reference", **PLAIN, **settings}
    return ondes.learn(recordings, 5, **how)


def same_bytes(one, other):
    return one.components.tobytes() == other.components.tobytes()


# ---- what does not matter ----


def test_wav_or_flac_in_any_order_is_the_same_dictionary(album):
    expected = learn_small(str(album / "*.wav"))
    for order in itertools.permutations(range(3)):
        assert same_bytes(learn_small([album / f"{n}.flac" for n in order]), expected)


def test_samples_in_memory_are_learned_as_those_in_files(album):
    expected = learn_small(album.glob("*.wav"), n_passes=2)
    arrays = [tones(n) for n in range(3)]
    assert same_bytes(learn_small(arrays, n_passes=2), expected)
    as_floats = [array / 2**15 for array in arrays]
    assert as_floats[0].dtype == np.float64
    in_memory = learn_small(as_floats, n_passes=2)
    assert same_bytes(in_memory, expected)
    assert in_memory.history.n_files == 3
    assert same_bytes(learn_small(arrays[0]), learn_small(album / "0.wav"))


@pytest.mark.parametrize("backend", [pytest.param("native", marks=NEEDS_KERNEL), "reference"])
def test_the_number_of_threads_does_not_matter(album, backend):
    dictionaries = [
        learn_small(album.glob("*.flac"), backend=backend, n_jobs=n_jobs, n_passes=2)
        for n_jobs in (1, 2, 3, 8)  # the last one has four threads that read, too
    ]
    for each in dictionaries[1:]:
        assert same_bytes(each, dictionaries[0])
        assert each.history.divergence == dictionaries[0].history.divergence


@pytest.mark.parametrize("top_db", [60.0, None])
def test_any_volume_gives_the_same_dictionary(tmp_path, top_db):
    dictionaries = {}
    for gain in (1e-6, 1.0, 1e3):
        path = tmp_path / f"{gain:g}.wav"
        soundfile.write(path, gain * tones(0, seconds=8.0) / 2**15, SR, subtype="FLOAT")
        dictionaries[gain] = learn_small(path, top_db=top_db, backend="auto")
    expected = dictionaries[1.0]
    for each in dictionaries.values():
        np.testing.assert_allclose(each.components, expected.components, rtol=0, atol=1e-5)
        assert each.history.n_frames == expected.history.n_frames


def test_recordings_of_different_volume_count_alike(tmp_path):
    """Each recording at its own volume: the level of one does not silence another."""
    both = []
    for gains in ((1.0, 1.0), (1.0, 1e-4)):
        folder = tmp_path / f"{gains[1]:g}"
        folder.mkdir()
        for n, gain in enumerate(gains):
            samples = gain * tones(n) / 2**15
            soundfile.write(folder / f"{n}.wav", samples, SR, subtype="FLOAT")
        both.append(learn_small(folder))
    np.testing.assert_allclose(both[0].components, both[1].components, rtol=0, atol=1e-5)


def test_channels_in_opposite_phase_give_the_dictionary_of_one_of_them(tmp_path):
    one = tones(0, seconds=8.0)
    soundfile.write(tmp_path / "mono.wav", one, SR)
    for name, channels in {"opposite": (one, -one), "equal": (one, one)}.items():
        soundfile.write(tmp_path / f"{name}.wav", np.stack(channels, axis=1), SR)
    expected = learn_small(tmp_path / "mono.wav")
    for name in ("opposite", "equal"):
        assert same_bytes(learn_small(tmp_path / f"{name}.wav"), expected)


def test_channels_count_by_their_mean_power(tmp_path):
    left, right = (tones(n, seconds=8.0) for n in range(2))
    soundfile.write(tmp_path / "stereo.wav", np.stack([left, right], axis=1), SR)
    audio = AudioSettings(SR, Stft(128), None)
    frames = np.concatenate(list(frame_batches(tmp_path / "stereo.wav", audio)))
    expected = (audio.stft.power(left / 2**15) + audio.stft.power(right / 2**15)) / 2
    in_order = [each[np.argsort(each.sum(axis=1))] for each in (frames, expected)]
    np.testing.assert_allclose(*in_order, rtol=1e-4, atol=1e-9)
    assert learn_small(tmp_path / "stereo.wav", top_db=None).history.n_frames == len(expected)


# ---- what does matter ----


def test_another_seed_gives_another_dictionary(album):
    one, other = (learn_small(album / "0.wav", random_state=seed) for seed in (0, 1))
    assert not np.array_equal(one.components, other.components)


def test_the_best_of_several_seeds_is_kept(album):
    files = album.glob("*.wav")
    best = learn_small(files, n_init=3, random_state=4)
    alone = [learn_small(album.glob("*.wav"), random_state=seed) for seed in (4, 5, 6)]
    divergences = [each.history.divergence for each in alone]
    assert same_bytes(best, alone[int(np.argmin(divergences))])
    assert len(set(divergences)) == 3


def test_the_first_dictionary_is_drawn_from_several_batches_that_are_then_learned_from(
    album, monkeypatch
):
    monkeypatch.setattr(training_run, "INITIAL_FRAMES", 120)
    found = learn_small(album / "0.wav", batch_size=50)
    audio = found.audio
    n_shuffled = training_run.SHUFFLED_BYTES // (4 * audio.n_bins)
    batches = list(frame_batches(album / "0.wav", audio, 50, round_size=n_shuffled))
    expected = OnlineNMF(5, batch_size=50, random_state=0, backend="reference")
    for frames in (np.concatenate(batches[:3]), *batches[3:]):
        expected.partial_fit(frames)
    assert len(batches) > 4
    assert found.components.tobytes() == expected.components_.tobytes()


def test_learning_continues_from_a_file_as_if_it_had_never_stopped(album):
    dictionary = learn_small(album / "0.wav")
    dictionary.save(album / "m.ondes")
    loaded = ondes.load(album / "m.ondes")
    further = [
        ondes.learn(album / "1.wav", dictionary=each, n_passes=2) for each in (dictionary, loaded)
    ]
    assert same_bytes(dictionary, loaded)  # they stay as they were
    assert dictionary.history.seconds == pytest.approx(4, abs=0.1)
    dictionary, loaded = further
    assert same_bytes(dictionary, loaded)
    for each in further:
        assert each.history.seconds == pytest.approx(12, abs=0.1)
        assert each.history.n_files == 2
    assert dictionary.history.divergence == loaded.history.divergence


@NEEDS_KERNEL
def test_the_backend_of_the_last_update_is_reported(album):
    dictionary = learn_small(album / "0.wav", backend="native")
    assert dictionary.estimator.backend_ == "native"
    dictionary = ondes.learn(album / "1.wav", dictionary=dictionary, backend="reference")
    assert dictionary.estimator.backend_ == "reference"


# ---- the history ----


def test_the_history_and_its_curve_are_those_of_the_run(album):
    seen = []
    dictionary = learn_small(album.glob("*.wav"), n_passes=2, batch_size=50, progress=seen.append)
    history = dictionary.history
    assert history.files == tuple(str(album / f"{n}.wav") for n in range(3))
    assert (history.n_files, history.n_failed, history.stopped_by) == (3, 0, None)
    assert history.n_frames == dictionary.estimator.n_frames_seen_ == seen[-1].n_frames
    assert history.seconds == pytest.approx(24, abs=0.1)
    assert history.divergence == seen[-1].divergence
    assert tuple(history.learning_curve[-1]) == (seen[-1].n_frames, seen[-1].divergence)
    assert seen[-1].seconds_done <= seen[-1].seconds_total == pytest.approx(24)


def test_the_divergence_is_the_average_over_all_frames_with_weights_that_grow(album, monkeypatch):
    """Frame s of t weighs s / t, whatever the estimator's own memory is."""
    batches = []
    absorb = HostTrainer.absorb

    def recorded(self, statistics, *others):
        batches.append(
            (round(statistics.n_frames), statistics.divergence / statistics.numerator.shape[1])
        )
        return absorb(self, statistics, *others)

    monkeypatch.setattr(HostTrainer, "absorb", recorded)
    settings = {"batch_size": 50, "forgetting": ondes.HalfLife(20)}
    history = learn_small(album.glob("*.wav"), **settings).history
    mean = np.concatenate([np.full(n, total / n) for n, total in batches])
    # Within an update all frames have its mean; between updates, weight s grows continuously.
    ends = np.cumsum([n for n, _ in batches])
    weights = np.diff(np.concatenate([[0], ends]).astype(float) ** 2)
    expected = np.average([total / n for n, total in batches], weights=weights)
    assert history.n_frames == len(mean) == ends[-1]
    assert history.divergence == pytest.approx(expected, rel=1e-12)
    by_frame = np.average(mean, weights=np.arange(1, len(mean) + 1))
    assert history.divergence == pytest.approx(by_frame, rel=0.01)


def test_the_divergence_says_how_well_all_of_the_sound_is_explained(tmp_path):
    """Noise, then equal frames, both far longer than the memory: both of them count."""
    noise = np.random.default_rng(0).standard_normal(30 * SR)
    clicks = np.arange(10 * SR) % 64 == 0
    sound = (3000 * np.concatenate([noise, clicks])).astype("<i2").tobytes()
    raw = RawFormat(SR, 1, "s16le")
    short = {"forgetting": ondes.HalfLife(30)}
    dictionary = learn_small(io.BytesIO(sound), raw=raw, **short)
    noise_alone = learn_small(io.BytesIO(sound[: 2 * len(noise)]), raw=raw, **short)
    recent = dictionary.estimator.statistics_.divergence_per_bin
    share = (30 / 40) ** 2
    expected = share * noise_alone.history.divergence + (1 - share) * recent
    assert recent < 0.3 * noise_alone.history.divergence
    assert dictionary.history.divergence == pytest.approx(expected, rel=0.1)


def test_the_learning_curve_stays_short(album, monkeypatch):
    monkeypatch.setattr(training_run, "INITIAL_FRAMES", 1)
    dictionary = learn_small(album / "0.wav", batch_size=1, solver=Solver(max_steps=1))
    frames = dictionary.history.learning_curve[:, 0]
    assert frames[-1] > 400
    assert len(frames) < 120
    assert (np.diff(frames) > 0).all()


# ---- what cannot be learned from ----


def test_a_bad_recording_is_raised_or_reported_and_left_out(album):
    (album / "text.wav").write_text("not a sound")
    with pytest.raises(FileError, match=r"text\.wav"):
        learn_small(album.glob("*.wav"))
    failures = []
    dictionary = learn_small(
        album.glob("*.wav"), on_error=lambda path, error: failures.append((path, error))
    )
    ((path, error),) = failures
    assert path == error.path == str(album / "text.wav")
    assert dictionary.history.n_failed == 1
    (album / "text.wav").unlink()
    assert same_bytes(dictionary, learn_small(album.glob("*.wav")))


@pytest.mark.parametrize("top_db", [60.0, None])
def test_silence_alone_is_an_error(tmp_path, top_db):
    soundfile.write(tmp_path / "silence.wav", np.zeros(SR), SR)
    with pytest.raises(ValueError, match="The recordings are silent"):
        learn_small(tmp_path / "silence.wav", top_db=top_db)
    with pytest.raises(ValueError, match="The recordings are silent"):
        learn_small(np.zeros(SR, np.int16), top_db=top_db)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dictionary_exponent": 3.0}, "dictionary_exponent"),
        ({"random_state": None}, "random_state=None must be a whole number"),
        ({"random_state": -1}, "random_state=-1 must be a whole number"),
        ({"sr": 0}, "sr=0 must be a whole number"),
        ({"top_db": -60.0}, "top_db=-60.0 must be a positive number"),
    ],
)
def test_wrong_parameters_are_reported_before_anything_is_read(album, wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        learn_small(album / "absent.wav", **wrong)


def test_all_frames_at_once_need_an_array(album):
    untrained = ondes.Dictionary(OnlineNMF(2, batch_size=None), AudioSettings(SR, Stft(128)))
    with pytest.raises(ValueError, match="batch_size=None needs all frames in one array"):
        ondes.learn(album / "absent.wav", dictionary=untrained)


def test_unknown_parameters_are_reported(album):
    with pytest.raises(TypeError, match="no_such_setting"):
        learn_small(album / "0.wav", no_such_setting=1)


@pytest.mark.parametrize(
    "samples", [np.zeros(4, np.complex64), np.zeros((4, 2, 2), np.float32), np.zeros(4, np.int32)]
)
def test_samples_of_another_kind_are_refused(samples):
    with pytest.raises(ValueError, match=r"must be \(n_samples,\) or \(n_samples, n_channels\)"):
        learn_small(samples)


def test_a_stream_is_read_once(album):
    raw = RawFormat(SR, 1, "s16le")
    with pytest.raises(ValueError, match="A stream can be read only once: n_passes must be 1"):
        learn_small(io.BytesIO(tones(0).tobytes()), raw=raw, n_passes=2)
    dictionary = learn_small(io.BytesIO(tones(0).tobytes()), raw=raw)
    assert dictionary.history.files == ("stream",)
    assert dictionary.history.seconds == pytest.approx(4, abs=0.1)


# ---- what a dictionary does with recordings ----


def test_the_divergence_of_a_recording_is_minus_the_score_of_its_frames(album):
    dictionary = learn_small(album / "0.wav", top_db=None)
    frames = dictionary.audio.frames(tones(1) / np.float32(2**15))
    n_frames, divergence = dictionary.divergence(album / "1.wav")
    assert n_frames == len(frames)
    assert divergence == pytest.approx(-dictionary.estimator.score(frames), rel=1e-5)


def test_the_score_is_the_mean_over_the_frames_of_all_recordings(album):
    dictionary = learn_small(album / "0.wav")
    each = [dictionary.divergence(album / f"{n}.wav") for n in range(3)]
    expected = -np.average([value for _, value in each], weights=[n for n, _ in each])
    assert dictionary.score(str(album / "*.wav")) == pytest.approx(expected, rel=1e-12)
    assert dictionary.score(album / "0.wav") > dictionary.score(album / "1.wav")


def test_a_recording_and_its_samples_have_the_same_activations(album):
    dictionary = learn_small(album / "0.wav")
    samples = tones(1) / np.float32(2**15)
    expected = dictionary.estimator.transform(dictionary.audio.frames(samples))
    for given in (album / "1.wav", str(album / "1.flac"), samples):
        np.testing.assert_allclose(dictionary.transform(given), expected, rtol=1e-4, atol=1e-9)
    twice = np.stack([samples, -samples], axis=1)
    np.testing.assert_allclose(dictionary.transform(twice), expected, rtol=1e-4, atol=1e-9)
    resampled = dictionary.transform(tones(1, sr=2 * SR) / np.float32(2**15), sr=2 * SR)
    assert len(resampled) == len(expected)
    assert dictionary.transform(np.empty(0, np.float32)).shape[1] == 5


def test_a_dictionary_of_arrays_has_no_audio_settings(album):
    frames = np.random.default_rng(0).exponential(size=(50, 65))
    dictionary = ondes.Dictionary(OnlineNMF(2, random_state=0).fit(frames))
    assert (dictionary.audio, dictionary.history) == (None, None)

    def learn_more(path):
        ondes.learn(path, dictionary=dictionary)

    for use in (dictionary.transform, learn_more, dictionary.score):
        with pytest.raises(ValueError, match="has no audio settings"):
            use(album / "0.wav")


# ---- the paper's preset ----


class Passes:
    """The frames of one pass after the other, in the order in which `learn` reads them."""

    def __init__(self, path, audio, n_passes):
        sizes = {"round_size": 2**20, "n_passes": n_passes, "segment_size": 1024}
        batches = [each for each in frame_batches(path, audio, 100, **sizes) if len(each)]
        self.passes = np.split(np.concatenate(batches), n_passes)

    def __iter__(self):
        yield self.passes.pop(0)


@pytest.mark.parametrize("n_passes", [1, 3])
def test_the_preset_of_the_paper_learns_what_its_estimator_learns(tmp_path, n_passes):
    soundfile.write(tmp_path / "a.wav", tones(0), SR)
    audio, found = AudioSettings(SR, Stft(128), None, fmax=SR / 2), {}
    for r in (0.0, 0.7, 1.0):
        how = {"sr": SR, "n_fft": 128, "fmax": SR / 2, "top_db": None, "batch_size": 100}
        how |= {"solver": Solver.paper(10), "forgetting": ondes.PerPass(r), "n_passes": n_passes}
        found[r] = ondes.learn(tmp_path / "a.wav", 5, preset="paper", **how)
        frames = Passes(tmp_path / "a.wav", audio, n_passes)
        expected = OnlineNMF.paper(
            5,
            batch_size=100,
            solver=Solver.paper(10),
            forgetting=ondes.PerPass(r, n_frames=len(frames.passes[0])),
            shuffle=False,
            n_passes=n_passes,
            random_state=0,
        ).fit(frames)
        np.testing.assert_allclose(found[r].components, expected.components_, rtol=1e-9, atol=0)
    assert not np.allclose(found[0.0].components, found[0.7].components, rtol=1e-3)
    assert not np.allclose(found[0.7].components, found[1.0].components, rtol=1e-3)


# ---- used or refused ----


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"n_components": 5}, "n_components=5 cannot be chosen where learning continues"),
        ({"preset": "separation"}, "preset='separation' cannot be chosen where learning"),
        ({"window": "hann"}, "window='hann' cannot be chosen where learning continues"),
        ({"top_db": None}, "top_db=None cannot be chosen where learning continues"),
        ({"forgetting": ondes.HalfLife(9)}, "forgetting=.* cannot be chosen where learning"),
    ],
)
def test_settings_of_the_dictionary_are_refused_where_learning_continues(album, given, sentence):
    dictionary = learn_small(album / "0.wav")
    with pytest.raises(ValueError, match=sentence):
        ondes.learn(album / "absent.wav", dictionary=dictionary, **given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"checkpoint_every": 5}, "checkpoint_every=5 needs checkpoint"),
        ({"n_workers": 2}, "n_workers=2 needs cluster='local'"),
        ({"n_workers": 2, "cluster": "in-process"}, "n_workers=2 needs cluster='local'"),
        ({"n_shards": 2}, "n_shards=2 needs cluster"),
        ({"round_size": 99}, "round_size=99 needs cluster"),
        ({"n_passes": 0}, "n_passes=0 must be a whole number from 1"),
        ({"raw": RawFormat(SR)}, "raw= is for samples in files and streams"),
        ({"n_init": 0}, "n_init=0 must be a whole number from 1"),
        ({"n_init": 2, "checkpoint": "a"}, "n_init=2 and checkpoint exclude each other"),
    ],
)
def test_options_that_would_change_nothing_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        learn_small(tones(0), **given)


def test_what_only_computes_may_be_chosen_where_learning_continues(album):
    dictionary = learn_small(album / "0.wav")
    seen = []
    chosen = {"backend": "reference", "n_jobs": 2, "callback": seen.append}
    more = ondes.learn(album / "1.wav", dictionary=dictionary, **chosen)
    assert seen
    assert all(each is more.learner for each in seen)
    assert same_bytes(more, ondes.learn(album / "1.wav", dictionary=dictionary))


def test_recordings_that_cannot_be_read_are_not_called_silent(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"no sound")
    with pytest.raises(ValueError, match=r"^The recordings could not be read, so there is .*\.$"):
        learn_small(tmp_path / "a.wav", on_error=lambda *_: None)


def test_the_command_with_the_preset_of_the_paper_learns_what_its_estimator_learns(tmp_path):
    """As a user types it: r, β, the steps and all else are those of `OnlineNMF.paper()`."""
    paths = [tmp_path / "a.wav", tmp_path / "b.wav"]
    for number, path in enumerate(paths):
        soundfile.write(path, tones(number, 8.0, 22050), 22050)
    model = tmp_path / "x.ondes"
    given = [*map(str, paths), "--preset", "paper", "--passes", "3", "-o", str(model)]
    with pytest.raises(SystemExit) as end:
        main(["learn", *given])
    assert not end.value.code
    found = ondes.load(model)
    frames = Passes(paths, found.audio, n_passes=3)
    n_frames = len(frames.passes[0])
    assert n_frames > 1000  # more than one update in a pass
    expected = OnlineNMF.paper(
        forgetting=ondes.PerPass(n_frames=n_frames), shuffle=False, n_passes=3, random_state=0
    ).fit(frames)
    np.testing.assert_allclose(found.components, expected.components_, rtol=1e-9, atol=1e-15)
