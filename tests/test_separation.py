"""Sources sum to the mixture, the cut leaves no trace, memory stays, and decibels are won."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from sklearn.base import clone

from ondes import GroupLog, OnlineISNMF
from ondes.model_file import AudioSettings
from ondes.scene import make_scene
from ondes.scores import si_sdr_gain
from ondes.separation import Separator, Sources, separate, separate_file
from ondes.separation.adaptation import FreeComponents
from ondes.separation.grouping import _traits, discover_sources, group_components, power_frames
from ondes.separation.masks import source_masks
from ondes.signal.audio import AudioError, write_audio
from ondes.signal.stft import Stft

SR = 22050
SHORT_FRAMES = Stft(32, 8)
LONG_FRAMES = AudioSettings(SR, Stft(2048, 512))


def toy_sources(n_sources=2, stft=SHORT_FRAMES):
    rng = np.random.default_rng(n_sources)
    rows = rng.gamma(0.5, size=(2 * n_sources, stft.n_bins)) + 1e-6
    rows /= rows.sum(axis=1, keepdims=True)
    names = tuple(f"source {i}" for i in range(n_sources))
    return Sources(rows, np.repeat(np.arange(n_sources), 2), names, SR, stft)


def learned(samples, audio, n_components):
    frames = np.concatenate(list(power_frames([samples], audio)))
    energy = frames.sum(axis=1)
    model = OnlineISNMF(n_components, n_passes=3, random_state=0)
    model.fit(frames[energy > 1e-6 * energy.max()])
    model.audio_ = audio
    return model


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
    residual=st.sampled_from([None, "residual"]),
    n_free=st.sampled_from([0, 2]),
    seed=st.integers(0, 99),
)
def test_sources_sum_to_the_mixture(n, channels, n_sources, volume, residual, n_free, seed):
    rng = np.random.default_rng(seed)
    shape = (n,) if channels is None else (n, channels)
    mixture = (volume * rng.uniform(-1, 1, shape)).astype(np.float32)
    stems = separate(
        mixture, toy_sources(n_sources), sr=SR, residual=residual, n_free=n_free, batch_size=16
    )
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
def test_sources_sum_to_unusual_mixtures(mixture):
    stems = separate(mixture, toy_sources(3), sr=SR, n_free=2)
    np.testing.assert_allclose(total_of(stems), mixture, atol=1e-5 * np.abs(mixture).max(initial=1))


@pytest.mark.parametrize("residual", [False, True])
def test_masks_lie_between_zero_and_one_and_sum_to_one(residual):
    frames = np.random.default_rng(0).exponential(size=(50, 17)).astype(np.float32) ** 3
    frames[7] = 0
    frames[:, 3] = 0
    masks = source_masks(frames, toy_sources(3), residual=residual)
    assert masks.shape == (4 if residual else 3, 50, 17)
    assert masks.min() >= -1e-6
    np.testing.assert_allclose(masks.sum(axis=0), 1, atol=1e-6)


def test_input_is_not_written_to():
    mixture = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    mixture.flags.writeable = False
    separate(mixture, toy_sources(), sr=SR, n_free=2)


# ---- the cut does not matter ----


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    channels=st.sampled_from([None, 2]),
    n_free=st.sampled_from([0, 2]),
)
def test_any_blocks_give_the_same_bits(sizes, channels, n_free):
    rng = np.random.default_rng(0)
    mixture = rng.standard_normal((1500,) if channels is None else (1500, channels))
    options = {"n_free": n_free, "batch_size": 16, "residual": "residual"}
    whole = separate(mixture, toy_sources(), sr=SR, **options)
    pieces = streamed(Separator(toy_sources(), **options), mixture, sizes)
    for name in whole:
        np.testing.assert_array_equal(whole[name], pieces[name])


def test_a_separator_starts_anew_after_flush():
    mixture = np.random.default_rng(0).standard_normal(1000)
    separator = Separator(toy_sources(), n_free=2, batch_size=16)
    first = streamed(separator, mixture, [100])
    again = streamed(separator, mixture, [100])
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert separator.push(np.ones((10, 2)))["rest"].shape[1:] == (2,)


def test_memory_does_not_grow_with_the_stream():
    block = np.random.default_rng(0).standard_normal((4096, 2)).astype(np.float32)
    separator = Separator(toy_sources(stft=Stft(256)), n_free=2)

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


def test_sources_keep_their_places():
    stereo_scene = make_scene(seconds=8.0)
    places = {"strings": (1.0, 0.2), "bass": (0.7, 0.7), "drums": (0.3, 1.0), "wind": (0.5, 0.9)}
    stereo = {n: np.outer(s, places[n]).astype(np.float32) for n, s in stereo_scene.stems.items()}
    models = {n: learned(s, LONG_FRAMES, 16) for n, s in stereo_scene.stems.items()}
    found = separate(sum(stereo.values()), models, sr=SR)
    for name in ("strings", "drums"):
        left, right = np.sqrt(np.mean(found[name] ** 2, axis=0))
        wanted = np.log2(places[name][1] / places[name][0])
        assert abs(np.log2(right / left) - wanted) < 0.5


# ---- decibels ----


@pytest.fixture(scope="module")
def scene():
    return make_scene()


@pytest.mark.parametrize("seed", [0, 1], ids=["the same tune", "another tune"])
def test_supervised_gains_eight_decibels_on_every_source(scene, seed):
    stems = make_scene(seed=seed).stems
    models = {name: learned(stem, LONG_FRAMES, 32) for name, stem in stems.items()}
    found = separate(scene.mixture, models, sr=SR)
    gains = {n: si_sdr_gain(s, found[n], scene.mixture) for n, s in scene.stems.items()}
    assert min(gains.values()) >= 8, gains


def best_mean_gain(scene, found):
    gains = np.array(
        [[si_sdr_gain(s, f, scene.mixture) for f in found.values()] for s in scene.stems.values()]
    )
    orders = itertools.permutations(range(len(gains)))
    return max(np.mean([gains[i, j] for i, j in enumerate(order)]) for order in orders)


def test_unsupervised_gains_four_decibels_on_average(scene):
    model = discover_sources(scene.mixture, 4, sr=SR)
    assert best_mean_gain(scene, separate(scene.mixture, model, sr=SR)) >= 4


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


def test_free_components_learn_a_noise_that_no_dictionary_knows():
    audio = AudioSettings(16000, Stft(1024, 256))
    hiss = np.random.default_rng(5).standard_normal(32000).astype(np.float32)
    known = {"speech": learned(speech_like(10, 1), audio, 24)}
    guess = known | {"hiss": learned(hiss, audio, 2)}
    for seed in (2, 4, 6):
        speech, noise = speech_like(10, seed), machine(10, seed + 1)
        fixed = separate(speech + noise, guess, sr=16000)
        adaptive = separate(speech + noise, known, sr=16000, n_free=2)
        gains = [si_sdr_gain(speech, x["speech"], speech + noise) for x in (fixed, adaptive)]
        assert gains[1] > gains[0] + 2, (seed, gains)
        assert si_sdr_gain(noise, adaptive["rest"], speech + noise) > 2


def test_free_components_follow_a_noise_that_changes():
    rng = np.random.default_rng(0)
    known, before, after = rng.gamma(0.5, size=(3, 17)) + 1e-3
    sources = Sources(known[None] / known.sum(), np.zeros(1, int), ("a",), 800, SHORT_FRAMES)
    free = FreeComponents(sources, 1, "rest", random_state=0)

    def learn(unknown):
        loudness = rng.gamma(0.5, size=(400, 2))
        frames = (loudness @ np.stack([known, unknown])) * rng.exponential(size=(400, 17))
        found = free.learn(frames, np.ones(400))
        np.testing.assert_array_equal(found.dictionary[0], sources.dictionary[0])
        return np.corrcoef(np.log(found.dictionary[1]), np.log(unknown))[0, 1]

    assert learn(before) > 0.9
    assert [learn(after) for _ in range(20)][-1] > 0.9


def test_residual_takes_what_no_dictionary_explains():
    audio = AudioSettings(SR, Stft(512, 128))
    rng = np.random.default_rng(0)
    known, rumble = (lfilter([1], [1, -0.9], rng.standard_normal(20000)) for _ in range(2))
    whistle = 2 * np.sin(2 * np.pi * 0.3 * np.arange(20000))
    models = {"rumble": learned(known, audio, 4)}
    found = separate(rumble + whistle, models, sr=SR, residual="residual")
    assert si_sdr_gain(whistle, found["residual"], rumble + whistle) > 10
    assert si_sdr_gain(rumble, found["rumble"], rumble + whistle) > 5
    alone = separate(rumble, models, sr=SR, residual="residual")
    assert alone["residual"].std() < 0.05 * rumble.std()


# ---- who is a source ----


@pytest.fixture(scope="module")
def toy_model():
    frames = np.random.default_rng(0).exponential(size=(300, 17))
    model = OnlineISNMF(6, groups=[1, 1, 0, 0, 2, 2], random_state=0).fit(frames)
    model.audio_ = AudioSettings(SR, Stft(32, 8))
    return model


def copy_of(model, **changes):
    other = clone(model)
    other.components_, other.audio_ = model.components_, model.audio_
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def test_models_groups_and_lists_say_the_same(toy_model):
    mixture = np.random.default_rng(1).standard_normal(800)
    by_group = separate(mixture, toy_model, sr=SR)
    named = Sources.from_groups(toy_model, ("a", "b", "c"))
    listed = Sources.from_components(toy_model, {"b": [0, 1], "a": [2, 3]})
    assert list(by_group) == ["0", "1", "2"]
    assert listed.names == ("b", "a", "rest")
    by_name, by_list = (separate(mixture, each, sr=SR) for each in (named, listed))
    for label, name in (("0", "a"), ("1", "b")):
        np.testing.assert_allclose(by_group[label], by_name[name], atol=1e-5)
        np.testing.assert_allclose(by_group[label], by_list[name], atol=1e-5)
    np.testing.assert_allclose(by_group["2"], by_list["rest"], atol=1e-5)


def test_grouping_does_not_depend_on_the_cut_nor_the_volume(toy_model):
    frames = np.random.default_rng(2).exponential(size=(300, 17))
    slow = copy_of(toy_model, audio_=AudioSettings(200, SHORT_FRAMES))  # looks back five frames
    whole = group_components(slow, frames, 3)
    assert sorted(set(whole)) == [0, 1, 2]
    np.testing.assert_array_equal(whole, group_components(slow, 1e-9 * frames, 3))
    for size in (1, 7, 100):
        cut = [frames[i : i + size] for i in range(0, 300, size)]
        np.testing.assert_array_equal(whole, group_components(slow, iter(cut), 3))
        for one, other in zip(_traits(slow, cut), _traits(slow, [frames]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_penalty_may_sharpen_the_groups():
    mixture = make_scene(seconds=3.0).mixture
    model = discover_sources(
        mixture, 2, sr=SR, n_components=6, n_passes=2, penalty=GroupLog(5.0), n_fft=1024
    )
    assert model.penalty == GroupLog(5.0)
    stems = separate(mixture, model, sr=SR, penalty=model.penalty)
    np.testing.assert_allclose(total_of(stems), mixture, atol=1e-5)


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


def test_a_damaged_file_gives_all_that_could_be_read_and_then_says_so(monkeypatch):
    class Damaged:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            yield np.ones((3000, 1), np.float32)
            raise AudioError("mix.wav", "is cut short")

    monkeypatch.setattr("ondes.separation.separator.open_blocks", lambda *_, **__: Damaged())
    lengths = []
    blocks = (len(block["source 0"]) for block in separate_file("mix.wav", toy_sources()))
    with pytest.raises(AudioError, match="cut short"):
        lengths.extend(blocks)
    assert sum(lengths) == 3000


# ---- errors ----


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e31])
def test_samples_that_are_no_numbers_are_refused(bad):
    mixture = np.zeros((100, 2))
    mixture[42, 1] = bad
    with pytest.raises(ValueError, match="Sample 42 of the block"):
        separate(mixture, toy_sources(), sr=SR)


def test_what_cannot_be_separated_is_refused_in_a_sentence(toy_model):
    elsewhere = copy_of(toy_model, audio_=AudioSettings(8000, Stft(32, 8)))
    cases = [
        ("'a' .* and 'b' .* different frames", lambda: Separator({"a": toy_model, "b": elsewhere})),
        ("at least one", lambda: Separator({})),
        ("learned nothing", lambda: Separator({"a": OnlineISNMF()})),
        ("what sound it knows", lambda: Separator({"a": copy_of(toy_model, audio_=None)})),
        ("background", lambda: Separator({"a": copy_of(toy_model, background=np.ones(17))})),
        ("no groups", lambda: Separator(copy_of(toy_model, groups=None))),
        ("2 names .* 3 groups", lambda: Sources.from_groups(toy_model, ("a", "b"))),
        ("Component 6 of 'a'", lambda: Sources.from_components(toy_model, {"a": [6]})),
        ("listed twice", lambda: Sources.from_components(toy_model, {"a": [1], "b": [1]})),
        ("called alike", lambda: Separator({"rest": toy_model}, n_free=1)),
        ("called alike", lambda: Separator({"a": toy_model}, residual="a")),
        ("cannot be inverted", lambda: Separator(toy_sources(stft=Stft(32, 32)))),
        ("resample", lambda: separate(np.zeros(9), toy_sources(), sr=8000)),
        (r"\(n, n_channels\)", lambda: separate(np.zeros((2, 2, 2)), toy_sources(), sr=SR)),
        (r"\(n, n_channels\)", lambda: separate(np.zeros((2, 0)), toy_sources(), sr=SR)),
        ("batch_size=0", lambda: Separator(toy_sources(), batch_size=0)),
        ("n_sources=9", lambda: group_components(toy_model, np.ones((5, 17)), 9)),
        ("silent", lambda: group_components(toy_model, np.zeros((5, 17)), 2)),
        ("silent", lambda: discover_sources(np.zeros(5000), 2, sr=SR)),
    ]
    for sentence, act in cases:
        with pytest.raises(ValueError, match=sentence) as caught:
            act()
        assert "\n" not in str(caught.value)


def test_channels_may_not_change_in_the_middle():
    separator = Separator(toy_sources())
    separator.push(np.zeros((10, 2)))
    with pytest.raises(ValueError, match="keep the channels"):
        separator.push(np.zeros(10))
