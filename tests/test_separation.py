"""Sources sum to the mixture, blocks do not matter, memory is constant, and SI-SDR improves."""

import itertools
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import soxr
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from sklearn.base import clone

import ondes
from ondes.demo_scene import make_scene
from ondes.errors import DeviceError, FileError
from ondes.models.adaptation import AdaptedSources, FreeComponents
from ondes.models.dictionary import Dictionary
from ondes.models.masks import source_masks
from ondes.models.sources import FLOOR
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.encoding import Compute, encode
from ondes.nmf.estimator import OnlineNMF
from ondes.scores import si_sdr
from ondes.separation import Separator, Sources, separate, separate_file
from ondes.separation import separator as separator_module
from ondes.separation.discovery import (
    component_features,
    discover_sources,
    group_components,
    source_names,
)
from ondes.separation.separator import separator_of
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.audio_writer import write_audio
from ondes.signal.stft import Stft

SR = 22050
ONE_SENTENCE = re.compile(r"(?:[^.\n]|\.(?=\S))+\.")  # one line, and no period but the last
SHORT_FRAMES = Stft(32, 8)
LONG_FRAMES = AudioSettings(SR, Stft(2048, 512))


KULLBACK_LEIBLER = {"beta_loss": "kullback-leibler", "sparsity": 2.0}
# Every kind of models and of options; free components and adapting sources exclude each other.
KINDS = ["itakura-saito", "kullback-leibler"]
OPTIONS = [{}, {"n_free": 2}, {"adapt": "source 0"}]


def toy_sources(n_sources=2, stft=SHORT_FRAMES, kind="itakura-saito"):
    rng = np.random.default_rng(n_sources)
    rows = rng.gamma(0.5, size=(2 * n_sources, stft.n_bins)) + 1e-6
    rows /= rows.sum(axis=1, keepdims=True)
    names = tuple(f"source {i}" for i in range(n_sources))
    source_of = np.repeat(np.arange(n_sources), 2)
    if kind == "itakura-saito":
        return Sources(rows, source_of, names, AudioSettings(SR, stft))
    audio = AudioSettings(SR, stft, spectrum="magnitude")
    return Sources(rows, source_of, names, audio, BetaDivergence.of(kind), 2.0)


def learned(samples, audio, n_components, **settings):
    frames = audio.frames(samples)
    energy = frames.sum(axis=1)
    settings = {"weighting": "equal"} | settings  # as of `ondes.learn`
    estimator = OnlineNMF(n_components, n_passes=3, random_state=0, **settings)
    return Dictionary(estimator.fit(frames[energy > 1e-6 * energy.max()]), audio)


def streamed(separator, mixture, sizes):
    parts, first = [], 0
    for size in itertools.cycle(sizes):
        if first >= len(mixture):
            break
        parts.append(separator.push(mixture[first : first + size]))
        first += size
    parts.append(separator.flush())
    return {name: np.concatenate([part[name] for part in parts]) for name in separator.names}


def total_of(stems):
    return np.sum([stem.astype(np.float64) for stem in stems.values()], axis=0)


# ---- sources sum to the mixture ----


@given(
    n=st.integers(0, 400),
    channels=st.sampled_from([None, 1, 2, 5]),
    n_sources=st.integers(1, 4),
    volume=st.sampled_from([0.0, 1e-40, 1e-20, 1.0, 1e9, 9e29]),
    options=st.sampled_from(OPTIONS),
    kind=st.sampled_from(KINDS),
    rate=st.sampled_from([1.0, 1.0, 0.5, 2.7562]),
    seed=st.integers(0, 99),
)
def test_sources_sum_to_the_mixture(n, channels, n_sources, volume, options, kind, rate, seed):
    rng = np.random.default_rng(seed)
    shape = (n,) if channels is None else (n, channels)
    mixture = (volume * rng.uniform(-1, 1, shape)).astype(np.float32)
    sources = toy_sources(n_sources, kind=kind)
    stems = separate(mixture, sources, sr=round(SR * rate), batch_size=16, **options)
    peak = np.abs(mixture).max(initial=1e-38)
    for stem in stems.values():
        assert stem.shape == mixture.shape
        assert stem.dtype == np.float32
    np.testing.assert_allclose(total_of(stems) / peak, mixture / peak, atol=1e-5)


@pytest.mark.parametrize(
    "mixture",
    [
        np.zeros(3000),
        np.ones(3000),
        np.clip(30 * np.sin(np.arange(3000)), -1, 1),
        np.eye(1, 3000, 1500)[0],
        np.concatenate([np.zeros(2000), np.sin(np.arange(1000)), np.zeros(2000)]),
        (32767 * np.sin(np.arange(3000))).astype(np.int16),
    ],
    ids=["silence", "constant", "clipped", "one click", "sound between silences", "integers"],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sources_sum_to_unusual_mixtures(mixture, kind, options):
    stems = separate(mixture, toy_sources(3, kind=kind), sr=SR, **options)
    np.testing.assert_allclose(total_of(stems), mixture, atol=1e-5 * np.abs(mixture).max(initial=1))


@pytest.mark.parametrize("kind", KINDS)
def test_masks_lie_between_zero_and_one_and_sum_to_one(kind):
    frames = np.random.default_rng(0).exponential(size=(50, 17)).astype(np.float32) ** 3
    frames[7] = 0
    frames[:, 3] = 0
    masks = source_masks(frames, toy_sources(3, kind=kind))
    assert masks.shape == (3, 50, 17)
    assert masks.min() >= -1e-6
    np.testing.assert_allclose(masks.sum(axis=0), 1, atol=1e-6)


def test_input_is_not_written_to():
    mixture = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    mixture.flags.writeable = False
    separate(mixture, toy_sources(), sr=SR, n_free=2)


# ---- blocks do not matter ----


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    channels=st.sampled_from([None, 2]),
    options=st.sampled_from(OPTIONS),
    kind=st.sampled_from(KINDS),
)
def test_any_blocks_give_the_same_bits(sizes, channels, options, kind):
    rng = np.random.default_rng(0)
    mixture = rng.standard_normal((1500,) if channels is None else (1500, channels))
    sources, options = toy_sources(kind=kind), {"batch_size": 16, **options}
    whole = separate(mixture, sources, sr=SR, **options)
    pieces = streamed(separator_of(sources, **options), mixture, sizes)
    for name in whole:
        np.testing.assert_array_equal(whole[name], pieces[name])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_jobs", [2, 7])
def test_the_number_of_threads_changes_no_bit(options, n_jobs, monkeypatch):
    monkeypatch.setattr(separator_module, "VALUES_AT_A_TIME", 1)  # 16 frames for each thread
    mixture = np.random.default_rng(0).standard_normal((9000, 2)).astype(np.float32)
    sources = toy_sources(kind="kullback-leibler")
    alone = separate(mixture, sources, sr=SR, **options)
    pieces = streamed(separator_of(sources, n_jobs=n_jobs, **options), mixture, [5000, 77])
    for name, samples in alone.items():
        np.testing.assert_array_equal(pieces[name], samples)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_separator_can_be_used_again_after_flush(options):
    mixture = np.random.default_rng(0).standard_normal(1000)
    separator = separator_of(toy_sources(kind="kullback-leibler"), batch_size=16, **options)
    first = streamed(separator, mixture, [100])
    again = streamed(separator, mixture, [100])
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert separator.push(np.ones((10, 2)))["source 0"].shape[1:] == (2,)


@pytest.mark.parametrize("options", [{"n_free": 2}, {"adapt": "source 0", "batch_size": 64}])
def test_memory_does_not_grow_with_the_stream(options):
    block = np.random.default_rng(0).standard_normal((4096, 2)).astype(np.float32)
    separator = separator_of(toy_sources(stft=Stft(256)), **options)

    def peak_of(n_blocks):
        tracemalloc.reset_peak()
        for _ in range(n_blocks):
            separator.push(block)
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        peak_of(5)
        early, late = peak_of(10), peak_of(150)
    finally:
        tracemalloc.stop()
    assert late < early + 100_000


def test_one_long_block_costs_little_beyond_its_sources():
    mixture = np.zeros(1_000_000, np.float32)
    sources = toy_sources(stft=Stft(256))
    separate(mixture[:1000], sources, sr=SR)
    tracemalloc.start()
    try:
        separate(mixture, sources, sr=SR)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 7 * mixture.nbytes  # each of two sources in parts and joined, and the input


# ---- channels ----


def test_every_channel_gets_the_same_mask():
    mono = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    image = np.array([0.8, -0.3, 0.0], np.float32)
    flat = separate(mono, toy_sources(), sr=SR)
    wide = separate(mono[:, None] * image, toy_sources(), sr=SR)
    for name in flat:
        np.testing.assert_allclose(wide[name], flat[name][:, None] * image, atol=1e-4)


def test_sources_keep_their_stereo_position():
    stereo_scene = make_scene(seconds=8.0)
    places = {"strings": (1.0, 0.2), "bass": (0.7, 0.7), "drums": (0.3, 1.0), "wind": (0.5, 0.9)}
    stereo = {n: np.outer(s, places[n]).astype(np.float32) for n, s in stereo_scene.stems.items()}
    models = {n: learned(s, LONG_FRAMES, 16) for n, s in stereo_scene.stems.items()}
    found = separate(sum(stereo.values()), models, sr=SR)
    for name in ("strings", "drums"):
        left, right = np.sqrt(np.mean(found[name] ** 2, axis=0))
        wanted = np.log2(places[name][1] / places[name][0])
        assert abs(np.log2(right / left) - wanted) < 0.5


# ---- SI-SDR ----


@pytest.fixture(scope="module")
def scene():
    return make_scene()


def gain(source, found, mixture):
    return si_sdr(source, found) - si_sdr(source, mixture)


@pytest.mark.parametrize("seed", [0, 1], ids=["the same tune", "another tune"])
def test_supervised_separation_gains_8_db_on_every_source(scene, seed):
    stems = make_scene(random_state=seed).stems
    models = {name: learned(stem, LONG_FRAMES, 32) for name, stem in stems.items()}
    found = separate(scene.mixture, models, sr=SR)
    gains = {n: gain(s, found[n], scene.mixture) for n, s in scene.stems.items()}
    assert min(gains.values()) >= 8, gains


def best_mean_gain(scene, found):
    gains = np.array(
        [[gain(s, f, scene.mixture) for f in found.values()] for s in scene.stems.values()]
    )
    orders = itertools.permutations(range(len(gains)))
    return max(np.mean([gains[i, j] for i, j in enumerate(order)]) for order in orders)


def test_unsupervised_separation_gains_4_db_on_average_over_sources_and_seeds(scene):
    gains = []
    for seed in range(3):  # a single seed may gain less
        found = discover_sources(scene.mixture, 4, sr=SR, random_state=seed)
        gains.append(best_mean_gain(scene, separate(scene.mixture, found, sr=SR)))
    assert np.mean(gains) >= 4, gains


def test_sources_of_a_file_are_those_of_its_samples(tmp_path):
    mixture = make_scene(seconds=3.0).mixture
    stereo = np.stack([mixture, 0.5 * mixture[::-1]], axis=1)
    write_audio(tmp_path / "mix.wav", [stereo], SR, channels=2, subtype="FLOAT")
    settings = {"n_components": 6, "n_passes": 2, "n_fft": 1024}
    of_file = discover_sources(tmp_path / "mix.wav", 2, **settings)
    of_samples = discover_sources(stereo, 2, sr=SR, **settings)
    np.testing.assert_array_equal(of_file.components, of_samples.components)
    assert of_file.groups == of_samples.groups
    assert set(of_file.groups) == set(source_names(2))
    assert of_file.audio == of_samples.audio == AudioSettings(SR, Stft(1024, 512), fmax=SR / 2)


def test_names_of_discovered_sources_sort_by_loudness():
    assert list(source_names(12)) == sorted(source_names(12))
    assert source_names(2) == ("source 1", "source 2")


def speech_like(seconds, seed, sr=16000):
    """Syllables: glottal pulses through the formants of three vowels, with pauses."""
    rng = np.random.default_rng(seed)
    vowels = np.array([[700, 1200, 2600], [300, 2200, 3000], [450, 900, 2400]])
    syllables = []
    while sum(map(len, syllables)) < seconds * sr:
        n = int(sr * rng.uniform(0.15, 0.35))
        pitch = rng.uniform(90, 160) * (1 + 0.15 * np.sin(np.linspace(0, 3, n)))
        sound = np.diff(np.floor(np.cumsum(pitch / sr)), prepend=0) + 0.01 * rng.normal(size=n)
        for hertz, width in zip(rng.choice(vowels), (80, 110, 160), strict=True):
            radius = np.exp(-np.pi * width / sr)
            turn = 2 * radius * np.cos(2 * np.pi * hertz / sr)
            sound = lfilter([1 - radius], [1, -turn, radius**2], sound)
        syllables += [sound * np.hanning(n), np.zeros(int(sr * rng.uniform(0.03, 0.2)))]
    joined = np.concatenate(syllables)[: int(seconds * sr)]
    return (0.1 * joined / joined.std()).astype(np.float32)


def machine(seconds, seed, sr=16000):
    """A throbbing rumble and a whine."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * sr)) / sr
    rumble = lfilter([1], [1, -1.6, 0.8], rng.standard_normal(len(time)))
    rumble *= (1 + 0.6 * np.sin(2 * np.pi * 3 * time)) / rumble.std()
    sound = rumble + 0.7 * sum(np.sin(2 * np.pi * k * 410 * time) for k in (1, 2, 3))
    return (0.1 * sound / sound.std()).astype(np.float32)


def test_free_components_learn_a_noise_without_a_dictionary():
    audio = AudioSettings(16000, Stft(1024, 256))
    hiss = np.random.default_rng(5).standard_normal(32000).astype(np.float32)
    known = {"speech": learned(speech_like(10, 1), audio, 24)}
    guess = known | {"hiss": learned(hiss, audio, 2)}
    for seed in (2, 4, 6):
        speech, noise = speech_like(10, seed), machine(10, seed + 1)
        fixed = separate(speech + noise, guess, sr=16000)
        adaptive = separate(speech + noise, known, sr=16000, n_free=2)
        gains = [gain(speech, x["speech"], speech + noise) for x in (fixed, adaptive)]
        assert gains[1] > gains[0] + 2, (seed, gains)
        assert gain(noise, adaptive["rest"], speech + noise) > 2


def test_free_components_follow_a_noise_that_changes():
    rng = np.random.default_rng(0)
    known, before, after = rng.gamma(0.5, size=(3, 17)) + 1e-3
    sources = Sources(
        known[None] / known.sum(), np.zeros(1, int), ("a",), AudioSettings(800, SHORT_FRAMES)
    )
    free = FreeComponents(sources, 1, "rest", random_state=0)

    def learn(unknown):
        loudness = rng.gamma(0.5, size=(400, 2))
        frames = (loudness @ np.stack([known, unknown])) * rng.exponential(size=(400, 17))
        found = free.learn(frames, np.ones(400))
        np.testing.assert_array_equal(found.dictionary[0], sources.dictionary[0])
        return np.corrcoef(np.log(found.dictionary[1]), np.log(unknown))[0, 1]

    assert learn(before) > 0.9
    assert [learn(after) for _ in range(20)][-1] > 0.9


# ---- adaptation ----


@pytest.fixture(scope="module")
def unseen():
    """Dictionaries of one tune, and the mixture and the stems of another: drums and strings."""
    audio = AudioSettings(SR, Stft(4096, 1024), spectrum="magnitude")
    known, scene = make_scene(12.0, random_state=1).stems, make_scene(12.0).stems
    names = ("drums", "strings")
    models = {name: learned(known[name], audio, 12, **KULLBACK_LEIBLER) for name in names}
    return models, {name: scene[name] for name in names}


def scores_of(unseen, **options):
    models, stems = unseen
    found = separate(stems["drums"] + stems["strings"], models, sr=SR, **options)
    return np.array([si_sdr(stem, found[name]) for name, stem in stems.items()])


@pytest.mark.parametrize("batch_size", [None, 32])
def test_adaptation_improves_a_dictionary_of_another_tune(unseen, batch_size):
    gain = scores_of(unseen, adapt="strings", batch_size=batch_size) - scores_of(unseen)
    assert gain.min() > 0.1, gain


@pytest.mark.parametrize("adapt", ["strings", "drums", ("drums", "strings")])
def test_adaptation_costs_little_where_it_does_not_help(unseen, adapt):
    loss = scores_of(unseen) - scores_of(unseen, adapt=adapt)
    assert loss.max() < 0.5, loss


def test_only_the_named_source_adapts_and_an_unused_component_stays():
    rng = np.random.default_rng(0)
    rows = np.eye(4, 17) + 1e-6
    rows /= rows.sum(axis=1, keepdims=True)
    audio = AudioSettings(SR, SHORT_FRAMES, spectrum="magnitude")
    kl = BetaDivergence.of("kullback-leibler")
    sources = Sources(rows, np.array([0, 1, 1, 1]), ("fixed", "moving"), audio, kl, 2.0)
    adapted = AdaptedSources(sources, ["moving"])
    sound = np.zeros(17)
    sound[[0, 1, 9]] = 1, 1, 0.5  # the first moving component has a new line, two are not used
    for _ in range(20):
        moved = adapted.learn(rng.uniform(0.5, 1, (64, 1)) * sound, np.ones(64)).dictionary
    np.testing.assert_array_equal(moved[0], rows[0])
    assert moved[1, 9] > 0.02
    np.testing.assert_allclose(moved[2:], rows[2:], atol=1e-4)


def test_adaptation_never_collapses_on_noise_or_silence():
    rng = np.random.default_rng(0)
    for kind in KINDS:
        sources = toy_sources(kind=kind)
        adapted = AdaptedSources(sources, sources.names)
        for amplitude in (1.0, 0.0, 1e-30, 1.0):
            frames = amplitude * rng.exponential(size=(64, 17)).astype(np.float32)
            moved = adapted.learn(frames, np.full(64, amplitude, np.float32)).dictionary
            assert np.isfinite(moved).all()
            np.testing.assert_allclose(moved.sum(axis=1), 1)
        cosine = (moved * sources.dictionary).sum(axis=1)
        cosine /= np.linalg.norm(moved, axis=1) * np.linalg.norm(sources.dictionary, axis=1)
        assert cosine.min() > 0.8


def test_the_masks_of_any_volume_are_the_same():
    mixture = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    for options in OPTIONS:
        sources = toy_sources(kind="kullback-leibler")
        loud, quiet = (
            separate(np.float32(volume) * mixture, sources, sr=SR, batch_size=16, **options)
            for volume in (1.0, 2.0**-40)
        )
        for name in loud:
            np.testing.assert_allclose(quiet[name] * 2.0**40, loud[name], atol=1e-4)


def test_squared_magnitudes_make_the_masks_of_magnitude_models():
    sources = toy_sources(kind="kullback-leibler")
    frames = np.random.default_rng(0).exponential(size=(20, 17))
    activations = encode(frames, sources.problem()).full()
    own = np.stack([activations[:, 2 * i : 2 * i + 2] @ sources.dictionary[2 * i : 2 * i + 2]
                    for i in range(2)])  # fmt: skip
    power = (own / frames.mean(axis=1)[:, None]) ** 2 + FLOOR / 2
    np.testing.assert_allclose(source_masks(frames, sources), power / power.sum(0), rtol=1e-4)


# ---- sources of a dictionary ----


@pytest.fixture(scope="module")
def toy():
    frames = np.random.default_rng(0).exponential(size=(300, 17))
    estimator = OnlineNMF(6, groups=[1, 1, 0, 0, 2, 2], random_state=0)
    return Dictionary(estimator.fit(frames), AudioSettings(SR, SHORT_FRAMES))


def with_settings(dictionary, **settings):
    estimator = clone(dictionary.estimator).set_params(**settings)
    return Dictionary(estimator.restore(dictionary.estimator.state()), dictionary.audio)


def test_groups_names_and_lists_of_components_are_the_same_sources(toy):
    mixture = np.random.default_rng(1).standard_normal(800)
    by_group = separate(mixture, toy, sr=SR)
    named = Sources.from_groups(toy, ("a", "b", "c"))
    listed = Sources.from_components(toy, {"b": [0, 1], "a": [2, 3]})
    assert list(by_group) == ["0", "1", "2"]
    assert listed.names == ("b", "a", "rest")
    by_name, by_list = (separate(mixture, each, sr=SR) for each in (named, listed))
    for label, name in (("0", "a"), ("1", "b")):
        np.testing.assert_allclose(by_group[label], by_name[name], atol=1e-5)
        np.testing.assert_allclose(by_group[label], by_list[name], atol=1e-5)
    np.testing.assert_allclose(by_group["2"], by_list["rest"], atol=1e-5)


def test_grouping_depends_neither_on_the_cut_nor_on_the_volume(toy):
    frames = np.random.default_rng(2).exponential(size=(300, 17))
    given = toy.components, AudioSettings(200, SHORT_FRAMES)  # a lag of five frames
    whole = group_components(*given, frames, 3)
    assert sorted(set(whole)) == [0, 1, 2]
    np.testing.assert_array_equal(whole, group_components(*given, 1e-9 * frames, 3))
    for size in (1, 7, 100):
        cut = [frames[i : i + size] for i in range(0, 300, size)]
        np.testing.assert_array_equal(whole, group_components(*given, iter(cut), 3))
        features = [component_features(*given, each) for each in (cut, [frames])]
        for one, other in zip(*features, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


# ---- backend and device ----


@NEEDS_TORCH
@pytest.mark.parametrize("n_free", [0, 2])
def test_torch_gives_the_stems_of_the_reference(n_free):
    mixture = np.random.default_rng(0).standard_normal((3000, 2)).astype(np.float32)
    reference = separate(mixture, toy_sources(), sr=SR, n_free=n_free, backend="reference")
    compute = {"backend": "torch", "device": "cpu"}
    stems = separate(mixture, toy_sources(), sr=SR, n_free=n_free, **compute)
    for name in reference:
        np.testing.assert_allclose(stems[name], reference[name], atol=1e-3)


@NEEDS_TORCH
def test_a_missing_gpu_is_an_error_wherever_frames_are_encoded(toy):
    mixture = np.random.default_rng(0).standard_normal(3000)
    gpu = {"backend": "torch", "device": "cuda:99"}
    frames = np.ones((5, 17))
    for act in (
        lambda: separate(mixture, toy, sr=SR, **gpu),
        lambda: separate(mixture, toy, sr=SR, n_free=2, **gpu),
        lambda: group_components(toy.components, toy.audio, frames, 2, Compute(**gpu)),
        lambda: discover_sources(mixture, 2, sr=SR, n_components=4, **gpu),
    ):
        with pytest.raises(DeviceError):
            act()


# ---- files ----


@pytest.mark.parametrize("block_size", [999, 65536])
def test_a_file_is_separated_like_its_samples(tmp_path, block_size):
    mixture = np.random.default_rng(0).uniform(-0.5, 0.5, (5000, 2)).astype(np.float32)
    write_audio(tmp_path / "mix.wav", [mixture], SR, channels=2, subtype="FLOAT")
    blocks = list(separate_file(tmp_path / "mix.wav", toy_sources(), block_size=block_size))
    expected = separate(mixture, toy_sources(), sr=SR)
    for name in expected:
        joined = np.concatenate([block[name] for block in blocks])
        np.testing.assert_array_equal(joined, expected[name])


def test_a_damaged_file_is_separated_up_to_the_damage_and_then_an_error(monkeypatch):
    class Damaged:
        sr, channels = SR, 1

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            yield np.ones((3000, 1), np.float32)
            raise FileError("mix.wav", "is cut short")

    monkeypatch.setattr("ondes.separation.separator.open_span", lambda *_, **__: Damaged())
    lengths = []
    blocks = (len(block["source 0"]) for block in separate_file("mix.wav", toy_sources()))
    with pytest.raises(FileError, match="cut short"):
        lengths.extend(blocks)
    assert sum(lengths) == 3000


@pytest.mark.parametrize("rate", [0.5, 0.75, 2.0, 2.7562])
def test_stems_have_the_mixtures_own_sampling_rate_and_sum_to_it(rate):
    sources = toy_sources()
    rng = np.random.default_rng(0)
    mixture = rng.standard_normal((5000, 2)).astype(np.float32)
    stems = separate(mixture, sources, sr=round(SR * rate))
    assert all(stem.shape == mixture.shape for stem in stems.values())
    np.testing.assert_allclose(sum(stems.values()), mixture, atol=1e-5)


def test_a_mixture_at_twice_the_rate_is_separated_alike():
    sources, rng = toy_sources(stft=Stft(512, 128)), np.random.default_rng(1)
    mixture = rng.standard_normal(20000).astype(np.float32)
    twice = soxr.resample(mixture, SR, 2 * SR)
    expected = separate(mixture, sources, sr=SR)
    found = separate(twice, sources, sr=2 * SR)
    for name, stem in expected.items():
        back = soxr.resample(found[name], 2 * SR, SR)[: len(stem)]
        assert si_sdr(stem, back) > 10  # masks of the wrong bins give less than 3


def test_ctrl_c_on_a_stream_keeps_what_is_finished(tmp_path):
    rng = np.random.default_rng(0)
    for name, tilt in (("a", 0.9), ("b", -0.9)):
        samples = lfilter([1], [1, -tilt], rng.standard_normal(20000)).astype(np.float32)
        ondes.learn(samples, 2, sr=8000, n_fft=256).save(tmp_path / f"{name}.ondes")
    command = [sys.executable, "-m", "ondes", "separate", "-", "-d", "a.ondes", "-d", "b.ondes"]
    sound = rng.integers(-9000, 9000, 400_000).astype("<i2")
    with subprocess.Popen(
        [*command, "--raw", "8000:1:s16le"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdin.write(sound.tobytes())
        process.stdin.flush()  # and it stays open
        for _ in range(600):
            found = [file.stat().st_size for file in tmp_path.glob("separated/*/*")]
            if len(found) == 2 and min(found) > 2**18:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert b"interrupted; what was separated so far is saved." in process.stderr.read()
    stems = [soundfile.read(tmp_path / f"separated/stdin/{name}.wav")[0] for name in "ab"]
    assert len(stems[0]) == len(stems[1]) > 30_000
    expected = sound[: len(stems[0])] / 2**15
    np.testing.assert_allclose(sum(stems), expected, atol=1e-5)


# ---- errors ----


def test_a_small_model_cannot_need_much_memory():
    rows = np.full((2, 2**17), 2.0**-17)
    audio = AudioSettings(16000, Stft(2**18 - 2, 2**17), fmax=8000)
    long = Sources(rows, np.arange(2), ("a", "b"), audio)
    assert Separator(long).sr == 16000
    with pytest.raises(ValueError, match=r"^The model's frames have .* shorter ones\.$"):
        Separator(long, sr=48000)
    many = Sources(
        np.full((3000, 2049), 1 / 2049), np.arange(3000), tuple(map(str, range(3000))),
        AudioSettings(8000, Stft(4096, 1024), fmax=4000),
    )  # fmt: skip
    separator = Separator(many)
    with pytest.raises(ValueError, match=r"^3000 sources .* need too much memory; .*\.$"):
        separator.push(np.ones((8, 8)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e31])
def test_samples_that_are_not_finite_are_refused(bad):
    mixture = np.zeros((100, 2))
    mixture[42, 1] = bad
    with pytest.raises(ValueError, match="Sample 42 of the block"):
        separate(mixture, toy_sources(), sr=SR)


def test_what_cannot_be_separated_is_refused_in_one_sentence(toy):
    elsewhere = Dictionary(toy.estimator, AudioSettings(8000, SHORT_FRAMES))
    untrained = Dictionary(OnlineNMF(), toy.audio)
    magnitudes = Dictionary(toy.estimator, replace(toy.audio, spectrum="magnitude"))
    frames = np.ones((5, 17))
    other_loss, squares = (
        Dictionary(OnlineNMF(6, beta_loss=beta).fit(frames), toy.audio) for beta in (1, 2)
    )
    sparse = with_settings(toy, sparsity=1.0)
    both = {"a": toy, "b": toy}
    cases = [
        ("'a' and 'b' differ in ", lambda: Separator({"a": toy, "b": elsewhere})),
        (
            r"differ in spectrum \(power and magnitude\)",
            lambda: Separator({"a": toy, "b": magnitudes}),
        ),
        (
            r"differ in beta_loss \(β = 0 and β = 1\)",
            lambda: Separator({"a": toy, "b": other_loss}),
        ),
        (r"differ in sparsity \(0 and 1\);", lambda: Separator({"a": toy, "b": sparse})),
        ("No source has the name 'c'", lambda: separator_of(both, adapt="c")),
        ("adapt and n_free cannot be combined", lambda: separator_of(both, adapt="a", n_free=2)),
        ("β = 2 cannot adapt", lambda: separator_of({"a": squares}, adapt="a")),
        ("end=0.5 after it", lambda: separate_file("mix.wav", both, start=1.0, end=0.5)),
        ("at least one", lambda: Separator({})),
        ("'a' has not been learned", lambda: Separator({"a": untrained})),
        ("'a' was learned from arrays", lambda: Separator({"a": Dictionary(toy.estimator)})),
        ("background", lambda: Separator({"a": with_settings(toy, background=np.ones(17))})),
        ("no groups", lambda: Separator(with_settings(toy, groups=None))),
        ("2 names .* 3 groups", lambda: Sources.from_groups(toy, ("a", "b"))),
        ("Component 6 of 'a'", lambda: Sources.from_components(toy, {"a": [6]})),
        ("listed twice", lambda: Sources.from_components(toy, {"a": [1], "b": [1]})),
        ("same name", lambda: separator_of({"rest": toy}, n_free=1)),
        ("none of them twice", lambda: Sources.from_groups(toy, ("a", "a", "b"))),
        (
            "17 bins and its frames 9",
            lambda: replace(toy_sources(), audio=AudioSettings(SR, Stft(16))),
        ),
        ("cannot be inverted", lambda: Separator(toy_sources(stft=Stft(32, 32)))),
        (r"\(n, n_channels\)", lambda: separate(np.zeros((2, 2, 2)), toy_sources(), sr=SR)),
        (r"\(n, n_channels\)", lambda: separate(np.zeros((2, 0)), toy_sources(), sr=SR)),
        ("batch_size=0", lambda: Separator(toy_sources(), batch_size=0)),
        ("backend='abacus'", lambda: separator_of(toy_sources(), backend="abacus")),
        ("device='cpu' needs", lambda: separator_of(toy_sources(), device="cpu")),
        ("n_sources=9", lambda: group_components(toy.components, toy.audio, frames, 9)),
        ("silent", lambda: group_components(toy.components, toy.audio, 0 * frames, 2)),
        ("n_sources=9", lambda: discover_sources(np.ones(5000), 9, sr=SR, n_components=8)),
        ("give sr", lambda: discover_sources(np.ones(5000), 2)),
        ("sound|silent", lambda: discover_sources(np.zeros(5000), 2, sr=SR)),
    ]
    for sentence, act in cases:
        with pytest.raises(ValueError, match=sentence) as caught:
            act()
        assert ONE_SENTENCE.fullmatch(str(caught.value)), str(caught.value)


def test_the_number_of_channels_may_not_change():
    separator = Separator(toy_sources())
    separator.push(np.zeros((10, 2)))
    with pytest.raises(ValueError, match="keep the number of channels"):
        separator.push(np.zeros(10))


# ---- delay ----


def live_dictionaries(sr=16000):
    rng = np.random.default_rng(0)
    samples = {name: rng.standard_normal(sr).astype(np.float32) for name in ("a", "b")}
    return {name: ondes.learn(each, 4, sr=sr, delay=0.032) for name, each in samples.items()}


@pytest.mark.parametrize("sr", [16000, 44100, 48000])
@pytest.mark.parametrize("size", [160, 441, 1000])
def test_a_live_separation_is_late_by_no_more_than_it_says(sr, size):
    """Clicks come out of `push` at their place within 32 ms, at any rate, however they are cut."""
    separator = ondes.Separator(live_dictionaries(), sr=sr)
    assert separator.delay <= 0.032 * sr
    clicks = np.zeros(sr, np.float32)
    clicks[777::4321] = 1.0
    total, heard_at = np.zeros(0, np.float32), {}
    for first in range(0, len(clicks), size):
        out = separator.push(clicks[first : first + size])
        for place in np.flatnonzero(sum(out.values()) > 0.5):
            heard_at[len(total) + int(place)] = first + size
        total = np.concatenate([total, sum(out.values())])
    heard = range(777, len(total), 4321)
    assert len(heard) >= len(clicks) // 4321
    for place in heard:
        assert heard_at[place] - place <= separator.delay + size
    last = sum(separator.flush().values())
    np.testing.assert_allclose(np.concatenate([total, last]), clicks, atol=1e-6)


def test_a_delay_and_frames_exclude_each_other():
    noise = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    assert ondes.learn(noise, 2, sr=8000, delay=0.03).audio.stft.delay == 240
    for other in ({"n_fft": 512}, {"hop_length": 80}, {"window": "sine"}):
        with pytest.raises(ValueError, match="delay exclude each other"):
            ondes.learn(noise, 2, sr=8000, delay=0.03, **other)
    for wrong in (0.001, 0.5, -1, float("nan")):
        with pytest.raises(ValueError, match="delay="):
            ondes.learn(noise, 2, sr=8000, delay=wrong)
