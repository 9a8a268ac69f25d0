"""Several microphones and panned stereo: what separation with `spatial` guarantees."""

from __future__ import annotations

import itertools
import re
import tracemalloc
import warnings

import numpy as np
import pytest
import soundfile
from test_cli import run

import ondes
from ondes.models.sources import Sources
from ondes.models.variances import TrainedVariances
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.estimator import OnlineNMF
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.scores import si_sdr
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

SR, STFT = 8000, Stft(512, 128)
KINDS = ("kullback-leibler", "itakura-saito")


def dry_sources(n_sources, seconds=6, seed=0):
    """Noise of changing colour: each source has three colours of its own, one at a time."""
    rng = np.random.default_rng(seed)
    n = int(seconds * SR)
    found = []
    for source in range(n_sources):
        samples = np.zeros(n)
        for colour in range(3):
            centre = 300 + 3300 * (3 * ((2 * colour + source) % 3) + source + 0.5 * colour) / 9
            noise = np.fft.rfft(rng.standard_normal(n))
            frequency = np.fft.rfftfreq(n, 1 / SR)
            noise *= 0.05 + np.exp(-0.5 * ((frequency - centre) / 250) ** 2)
            envelope = np.repeat(rng.random(n // 800 + 1) ** 4, 800)[:n]
            samples += np.fft.irfft(noise, n) * envelope
        found.append(samples / np.std(samples))
    return 0.1 * np.stack(found)


def in_a_room(dry, seed=1, n_channels=None):
    """Images at microphones: a direct path and a decaying tail, another for each pair."""
    rng = np.random.default_rng(seed)
    n_channels = n_channels or len(dry)
    images = np.zeros((*dry.shape, n_channels))
    for source, channel in itertools.product(range(len(dry)), range(n_channels)):
        response = rng.standard_normal(60) * 0.3 * 0.9 ** np.arange(60)
        response[2 + 3 * ((source + channel) % 3)] += 1
        images[source, :, channel] = np.convolve(dry[source], response)[: dry.shape[1]]
    return images


def sources_of(n_sources, kind="kullback-leibler", names=("a", "b", "c", "d")):
    spectrum = "magnitude" if kind == "kullback-leibler" else "power"
    audio = AudioSettings(SR, STFT, spectrum=spectrum)
    rows, source_of = [], []
    for source, samples in enumerate(dry_sources(n_sources, 8, seed=9)):
        how = {"weighting": "equal", "n_passes": 3, "batch_size": 64}  # as of `ondes.learn`
        model = OnlineNMF(4, beta_loss=kind, random_state=0, **how)
        rows.append(model.fit(audio.frames(samples)).components_)
        source_of += [source] * 4
    rows = np.concatenate(rows)
    return Sources(
        rows, np.array(source_of), names[:n_sources], audio, BetaDivergence.of(kind), 0.0
    )


def improvement(images, stems, mixture):
    pairs = zip(images, stems.values(), strict=True)
    gains = [si_sdr(i[:, 0], s[:, 0]) - si_sdr(i[:, 0], mixture[:, 0]) for i, s in pairs]
    return float(np.mean(gains))


@pytest.fixture(scope="module")
def scene():
    images = in_a_room(dry_sources(2))
    return images.sum(axis=0), images


# ---- quality ----


@pytest.mark.parametrize("kind", KINDS)
def test_two_microphones_separate_named_sources_better_than_masks(scene, kind):
    mixture, images = scene
    sources = sources_of(2, kind)
    masked = improvement(images, ondes.separate(mixture, sources, sr=SR), mixture)
    gained = improvement(images, ondes.separate(mixture, sources, sr=SR, spatial="room"), mixture)
    assert gained > max(12, masked + 4)


def test_three_microphones_separate_three_named_sources():
    images = in_a_room(dry_sources(3))
    mixture = images.sum(axis=0)
    stems = ondes.separate(mixture, sources_of(3), sr=SR, spatial="room")
    assert improvement(images, stems, mixture) > 9


def test_a_live_stream_is_nearly_as_good_as_a_batch():
    images = in_a_room(dry_sources(2, seconds=20))
    mixture = images.sum(axis=0)
    whole = ondes.separate(mixture, sources_of(2), sr=SR, spatial="room")
    live = ondes.separate(mixture, sources_of(2), sr=SR, spatial="room", batch_size=32)
    late = slice(10 * SR, None)
    gains = [
        improvement(images[:, late], {n: s[late] for n, s in stems.items()}, mixture[late])
        for stems in (whole, live)
    ]
    assert gains[1] > gains[0] - 2


def test_a_mixture_at_a_higher_rate_is_separated_in_all_bins(scene):
    dry = dry_sources(2)
    high = np.repeat(dry, 2, axis=1)  # has images of the spectrum above the models' band
    images = in_a_room(high)
    mixture = images.sum(axis=0)
    stems = ondes.separate(mixture, sources_of(2), sr=2 * SR, spatial="room")
    assert improvement(images, stems, mixture) > 8
    low = ondes.separate(mixture[::4], sources_of(2), sr=SR // 2, spatial="room")
    assert all(np.isfinite(stem).all() for stem in low.values())


@pytest.mark.parametrize(("angles", "least"), [((20, 65), 12), ((15, 45, 75), 7)])
def test_panned_sources_are_separated(angles, least):
    places = np.radians(angles)
    images = (
        dry_sources(len(angles))[:, :, None]
        * np.stack([np.cos(places), np.sin(places)], 1)[:, None]
    )
    mixture = images.sum(axis=0)
    stems = ondes.separate(mixture, sources_of(len(angles)), sr=SR, spatial="pan")
    flat = {name: stem.reshape(-1, 1) for name, stem in stems.items()}
    gain = improvement(images.reshape(len(angles), -1, 1), flat, mixture.reshape(-1, 1))
    assert gain > least


@pytest.mark.parametrize(("angles", "least"), [((45, 70), 8), ((15, 45, 75), 4)])
@pytest.mark.parametrize("batch_size", [None, 32])
def test_sources_that_lie_apart_in_stereo_gain_without_being_asked_for(angles, least, batch_size):
    dry, places = dry_sources(len(angles)), np.radians(angles)
    images = dry[:, :, None] * np.stack([np.cos(places), np.sin(places)], 1)[:, None]
    images[0, :, 1] += 0.1 * np.roll(dry[0], 40)  # an echo: not quite one place
    mixture, sources = images.sum(axis=0), sources_of(len(angles))

    def gained(**how):
        stems = ondes.separate(mixture, sources, sr=SR, **how)
        flat = {name: stem.reshape(-1, 1) for name, stem in stems.items()}
        return improvement(images.reshape(len(angles), -1, 1), flat, mixture.reshape(-1, 1))

    assert gained(batch_size=batch_size) > gained(spatial="none") + least


def test_produced_stereo_is_no_room():
    dry, places, sources = dry_sources(2), np.radians((45, 60)), sources_of(2)
    images = dry[:, :, None] * np.stack([np.cos(places), np.sin(places)], 1)[:, None]
    produced = images.sum(axis=0)
    with pytest.warns(UserWarning, match=r"^spatial='room' is not used where both channels.*\.$"):
        stems = ondes.separate(produced, sources, sr=SR, spatial="room")
    masked = ondes.separate(produced, sources, sr=SR, spatial="none")
    assert improvement(images, stems, produced) > improvement(images, masked, produced) - 0.5


def test_where_noise_at_the_microphones_hides_the_places_the_models_separate(scene):
    mixture, images = scene
    noise = 2 * np.random.default_rng(3).standard_normal(mixture.shape) * np.std(mixture)
    sources = sources_of(2)
    with pytest.warns(UserWarning, match=r"^spatial='room' is not used where demixing does not"):
        stems = ondes.separate(mixture + noise, sources, sr=SR, spatial="room")
    masked = ondes.separate(mixture + noise, sources, sr=SR, spatial="none")
    assert improvement(images, stems, mixture) > improvement(images, masked, mixture) - 0.5


def test_mono_that_was_recorded_as_stereo_is_masked():
    mono, sources = dry_sources(2).sum(axis=0), sources_of(2)
    mixture = np.stack([mono, mono], axis=1)
    stems = ondes.separate(mixture, sources, sr=SR)
    for name, masked in ondes.separate(mixture, sources, sr=SR, spatial="none").items():
        np.testing.assert_allclose(stems[name], masked, atol=2e-5)
    for odd in (hostile(mixture)["one dead channel"], -mixture * [1, -1], 1e-30 * mixture):
        found = ondes.separate(odd, sources, sr=SR)
        assert all(np.isfinite(stem).all() for stem in found.values())


def test_stereo_without_places_is_separated_by_the_dictionaries_alone():
    middle, sources = dry_sources(2).sum(axis=0), sources_of(2)
    hiss = 1e-3 * np.random.default_rng(0).standard_normal(len(middle))
    mixture = np.stack([middle, middle + hiss], axis=1)
    with pytest.warns(UserWarning, match=r"^spatial='pan' found no places .* as with 'none'\.$"):
        stems = ondes.separate(mixture, sources, sr=SR, spatial="pan")
    plain = ondes.separate(mixture, sources, sr=SR, spatial="none")
    for name in plain:
        np.testing.assert_allclose(stems[name], plain[name], atol=0.02)


def spread_out(dry):
    """Every source in bands, each panned to another angle: no places for it as a whole."""
    n = dry.shape[1]
    angles = np.radians(np.linspace(0, 90, 31))[np.random.default_rng(5).permutation(31)]
    spectra = np.fft.rfft(dry)
    bands = np.linspace(0, spectra.shape[1], len(angles) + 1).astype(int)
    both = np.zeros((*spectra.shape, 2), complex)
    for turn, angle in enumerate(angles):
        rows = slice(bands[turn], bands[turn + 1])
        both[0, rows], both[1, rows] = (
            np.outer(spectra[source, rows], (np.cos(at), np.sin(at)))
            for source, at in enumerate((angle, angles[turn - 9]))
        )
    return np.fft.irfft(both, n, axis=1).astype(np.float32)


def test_stereo_of_width_and_of_a_higher_rate_is_masked_as_without_places():
    sources = sources_of(2)
    mixture = spread_out(np.repeat(dry_sources(2), 2, axis=1)).sum(axis=0)
    with pytest.warns(UserWarning, match="found no places"):
        stems = ondes.separate(mixture, sources, sr=2 * SR, spatial="pan")
    plain = ondes.separate(mixture, sources, sr=2 * SR, spatial="none")
    for name in plain:
        assert si_sdr(plain[name].ravel(), stems[name].ravel()) > 30


def test_one_known_source_and_a_free_one(scene):
    mixture, images = scene
    known = sources_of(2)
    first = Sources(known.dictionary[:4], np.zeros(4, int), ("a",), known.audio, known.divergence)
    stems = ondes.separate(mixture, first, sr=SR, spatial="room", n_free=4)
    assert tuple(stems) == ("a", "rest")
    assert improvement(images, stems, mixture) > 6
    adapted = ondes.separate(mixture, known, sr=SR, spatial="room", adapt="b")
    assert improvement(images, adapted, mixture) > 10


# ---- guarantees ----


@pytest.mark.parametrize("spatial", ["room", "pan"])
@pytest.mark.parametrize("batch_size", [None, 32])
def test_the_result_does_not_depend_on_how_samples_are_pushed(scene, spatial, batch_size):
    mixture = scene[0][: 3 * SR]
    if spatial == "pan":
        mixture = dry_sources(2)[:, : 3 * SR].T @ [[0.9, 0.4], [0.4, 0.9]]
    whole = ondes.separate(mixture, sources_of(2), sr=SR, spatial=spatial, batch_size=batch_size)
    separator = ondes.Separator(sources_of(2), spatial=spatial, batch_size=batch_size)
    for _ in range(2):  # flushing starts over
        parts = [
            separator.push(mixture[a:b])
            for a, b in itertools.pairwise((0, 1, 5000, 5999, len(mixture)))
        ]
        parts.append(separator.flush())
        for name, samples in whole.items():
            np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), samples)


def hostile(mixture):
    dead = mixture.copy()
    dead[:, 1] = 0
    begins_late = mixture.copy()
    begins_late[: len(mixture) // 2] = 0
    loud = np.where(np.abs(mixture) > 0.1, 1e25 * np.sign(mixture), 0)
    return {
        "plain": mixture,
        "silent": 0 * mixture,
        "clipped": np.clip(20 * mixture, -1, 1),
        "one dead channel": dead,
        "identical channels": mixture[:, [0, 0]],
        "opposite channels": mixture[:, [0, 0]] * [1, -1],
        "begins late": begins_late,
        "huge": loud,
        "tiny": 1e-25 * mixture,
        "impulse": np.eye(1, len(mixture), 1000).T * [[1, 0.5]],
        "short": mixture[:7],
        "empty": mixture[:0],
    }


@pytest.mark.parametrize("spatial", ["room", "pan"])
@pytest.mark.parametrize("batch_size", [None, 16])
def test_stems_are_finite_and_sum_to_the_mixture(scene, spatial, batch_size):
    sources = sources_of(2)
    for name, mixture in hostile(scene[0][: 2 * SR]).items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Channel|spatial='(pan|room)' (found no|is not)")
            warnings.simplefilter("error", RuntimeWarning)
            stems = ondes.separate(mixture, sources, sr=SR, spatial=spatial, batch_size=batch_size)
        assert all(stem.shape == mixture.shape for stem in stems.values()), name
        assert all(np.isfinite(stem).all() for stem in stems.values()), name
        peak = np.abs(mixture).max(initial=0)
        total = np.sum([s.astype(np.float64) for s in stems.values()], axis=0)
        assert np.abs(total - mixture).max(initial=0) <= 1e-5 * peak, name


def test_memory_does_not_grow(scene):
    separator = ondes.Separator(sources_of(2), spatial="room", batch_size=32)
    block = scene[0][: 4 * SR]
    kept, peaks = [], []
    tracemalloc.start()
    for n_blocks in (6, 4, 4):  # the first are longer than the half-life
        tracemalloc.reset_peak()
        for _ in range(n_blocks):
            separator.push(block)
        found = tracemalloc.get_traced_memory()
        kept.append(found[0])
        peaks.append(found[1])
    tracemalloc.stop()
    assert max(kept[1:]) < 1.1 * kept[0]
    assert peaks[2] < 1.1 * peaks[1] < 1.1 * peaks[0]


def trained_separator():
    """Of the sources a and b, with what is known of them instead of what training finds."""
    rows = sources_of(2).dictionary.astype(np.float32)
    weights = UnfoldedWeights(
        rows[None], rows.sum(axis=1)[None], rows.reshape(2, 1, 4, -1), np.zeros((1, 8), np.float32),
        (1,), 12, 2.0, 1e-3,
    )  # fmt: skip
    return ondes.TrainedSeparator(
        ("a", "b"), AudioSettings(SR, STFT, spectrum="magnitude"), weights
    )


def test_a_trained_separator_gives_the_variances(scene):
    mixture, images = scene
    trained = trained_separator()
    masked = improvement(images, ondes.separate(mixture, trained, sr=SR), mixture)
    gained = improvement(images, ondes.separate(mixture, trained, sr=SR, spatial="room"), mixture)
    assert gained > masked + 3


def test_a_settled_variance_is_the_mean_of_the_masks_of_all_and_of_one():
    powers = np.random.default_rng(0).exponential(size=(2, STFT.n_bins, 40)).astype(np.float32)
    model = TrainedVariances(trained_separator().weights, STFT.n_bins)
    together = model.start(powers.sum(axis=0))
    alone = [model.start(power)[source] for source, power in enumerate(powers)]
    found = model.settle(powers)
    np.testing.assert_allclose(found, np.sqrt(together * np.stack(alone)), rtol=1e-5)
    np.testing.assert_array_equal(model.settled_step(powers), found)


@pytest.fixture(scope="module")
def third():
    """A dictionary of the third source."""
    samples = dry_sources(3, 8, seed=9)[2]
    return ondes.learn(samples, 4, sr=SR, n_fft=512, n_passes=3, fmax=SR / 2)


def test_a_trained_separator_is_mixed_with_a_dictionary(third):
    images = in_a_room(dry_sources(3))
    mixture = images.sum(axis=0)
    models = {"talk": trained_separator(), "c": third}
    stems = ondes.separate(mixture, models, sr=SR, spatial="room")
    assert list(stems) == ["a", "b", "c"]
    assert improvement(images, stems, mixture) > 5
    np.testing.assert_allclose(sum(stems.values()), mixture, atol=1e-5 * np.abs(mixture).max())


def test_a_trained_separator_is_mixed_with_free_components(tmp_path):
    images = in_a_room(dry_sources(3))
    mixture = images.sum(axis=0)
    trained_separator().save(tmp_path / "talk.ondes")
    soundfile.write(tmp_path / "mics.wav", mixture, SR, "FLOAT")
    options = ["-d", "talk.ondes", "--free", "4", "--spatial", "room", "-o", "out"]
    run("separate", "mics.wav", *options, cwd=tmp_path)
    names = ("a", "b", "rest")
    stems = {name: soundfile.read(tmp_path / f"out/mics/{name}.wav")[0] for name in names}
    assert improvement(images[:2], {name: stems[name] for name in names[:2]}, mixture) > 3
    np.testing.assert_allclose(sum(stems.values()), mixture, atol=1e-5 * np.abs(mixture).max())


def test_a_separator_and_a_dictionary_are_given_to_the_command(third, tmp_path):
    mixture = in_a_room(dry_sources(3)).sum(axis=0)
    trained_separator().save(tmp_path / "talk.ondes")
    third.save(tmp_path / "c.ondes")
    soundfile.write(tmp_path / "mics.wav", mixture, SR, "FLOAT")
    options = ["-d", "talk.ondes", "-d", "rain=c.ondes", "-o", "out"]
    run("separate", "mics.wav", *options, "--spatial", "room", cwd=tmp_path)
    assert {file.name for file in (tmp_path / "out/mics").iterdir()} == {
        "a.wav", "b.wav", "rain.wav"
    }  # fmt: skip
    refused = run("separate", "mics.wav", *options, "--force", cwd=tmp_path)
    assert refused.returncode == 1
    assert b"need spatial='room' or 'pan' (--spatial)" in refused.stderr


def test_what_cannot_be_mixed_is_refused_in_one_sentence(third):
    trained = trained_separator()
    both = {"talk": trained, "c": third}
    with pytest.raises(ValueError, match=r"^2 trained separators were given; give one.*\.$"):
        ondes.Separator({"x": trained, "y": trained, "c": third}, spatial="room")
    with pytest.raises(ValueError, match=r"^A trained separator and dictionaries.*of the two\.$"):
        ondes.Separator(both)
    with pytest.raises(ValueError, match=r"^adapt=.*do not adapt\.$"):
        ondes.separation.separator.separator_of(both, spatial="room", adapt="a")
    samples = dry_sources(1, 2)[0]
    other = ondes.learn(samples, 2, sr=SR, n_fft=1024)
    with pytest.raises(ValueError, match=r"n_fft 512, hop 128.*n_fft 1024, hop 256.*frames; .*"):
        ondes.Separator({"talk": trained, "c": other}, spatial="room")
    other = ondes.learn(samples, 2, sr=SR, n_fft=512, beta_loss="itakura-saito", fmax=SR / 2)
    with pytest.raises(ValueError, match=r"^A trained separator models magnitudes.*default\.$"):
        ondes.Separator({"talk": trained, "c": other}, spatial="room")
    adapted = ondes.separation.separator.separator_of(both, spatial="room", adapt="c")
    assert adapted.names == ("a", "b", "c")


# ---- sentences ----


def test_what_cannot_be_separated_is_warned_of(scene):
    mixture, sources = scene[0][:SR], sources_of(2)
    given = hostile(mixture)
    with pytest.warns(UserWarning, match=r"^Channel 2 is silent.*dictionaries are used\.$"):
        ondes.separate(given["one dead channel"], sources, sr=SR, spatial="room")
    with pytest.warns(UserWarning, match=r"^Channels 1 and 2 have.*dictionaries are used\.$"):
        ondes.separate(given["identical channels"], sources, sr=SR, spatial="room")
    twice = Sources(
        np.tile(sources.dictionary[:4], (2, 1)), np.repeat([0, 1], 4), ("a", "b"), sources.audio
    )
    with pytest.warns(UserWarning, match=r"'a' and 'b' have the same dictionary.*for each\.$"):
        ondes.Separator(twice, spatial="room")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ondes.separate(mixture, sources, sr=SR, spatial="room")


def test_what_cannot_work_is_refused_in_one_sentence(scene):
    two, three = sources_of(2), sources_of(3)
    mixture = scene[0][:SR]
    wide = np.tile(mixture, (1, 5))
    cases = [
        ("must be one of 'none', 'auto', 'room', 'pan'", two, mixture, {"spatial": "left"}),
        ("3 sources are more than 2 channels; .* 'pan'", three, mixture, {"spatial": "room"}),
        ("2 sources are fewer than 3 channels; .*n_free", two, wide[:, :3], {"spatial": "room"}),
        ("2 to 8 channels, not 1", two, mixture[:, :1], {"spatial": "room"}),
        ("2 to 8 channels, not 1", two, mixture[:, 0], {"spatial": "room"}),
        ("2 to 8 channels, not 10", two, wide, {"spatial": "room"}),
        ("two channels, not 3", three, wide[:, :3], {"spatial": "pan"}),
        ("batch_size=0", two, mixture, {"spatial": "room", "batch_size": 0}),
    ]
    for message, sources, samples, options in cases:
        with pytest.raises(ValueError, match=message + r".*\.$"):
            ondes.separate(samples, sources, sr=SR, **options)


# ---- the command ----


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A folder with a.ondes and b.ondes."""
    folder = tmp_path_factory.mktemp("learned")
    small = ("-k", "4", "--sr", SR, "--n-fft", "512", "--passes", "3", "--batch-size", "64")
    for name, samples in zip("ab", dry_sources(2, 8, seed=9), strict=True):
        soundfile.write(folder / f"{name}.wav", samples, SR)
        assert (
            run("learn", f"{name}.wav", "-o", f"{name}.ondes", *small, cwd=folder).returncode == 0
        )
    return folder


def delayed(*delays):
    """Images at two microphones: a source reaches the second so many samples later."""
    at = [
        (dry[8:-8], dry[8 - n : -8 - n]) for dry, n in zip(dry_sources(2, 8), delays, strict=True)
    ]
    return np.stack([np.stack(pair, axis=1) for pair in at])


def test_the_command_separates_a_room_and_hints_at_it(learned, tmp_path):
    images = delayed(2, 1)
    mixture = images.sum(axis=0)
    soundfile.write(tmp_path / "mics.wav", mixture, SR, subtype="FLOAT")
    models = ("-d", learned / "a.ondes", "-d", learned / "b.ondes")
    given = ("separate", "mics.wav", *models, "--force")
    plain = run(*given, cwd=tmp_path)
    assert plain.returncode == 0
    assert b"--spatial room may separate better." in plain.stderr
    done = run(*given, "--spatial", "room", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    stems = {n: soundfile.read(tmp_path / f"separated/mics/{n}.wav")[0] for n in "ab"}
    np.testing.assert_allclose(sum(stems.values()), mixture, atol=1e-5)
    assert improvement(images, stems, mixture) > 9
    third = run(*given, "--free", "4", "--spatial", "room", cwd=tmp_path)
    assert third.returncode == 1
    assert b"mics.wav: " in third.stderr
    assert b"3 sources are more than 2 channels" in third.stderr


def test_the_report_says_where_the_sources_stand(learned, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    pytest.importorskip("jinja2", reason="the extra 'report' is not installed")
    soundfile.write(tmp_path / "mics.wav", delayed(3, -1).sum(axis=0), SR, subtype="FLOAT")
    models = ("-d", learned / "a.ondes", "-d", learned / "b.ondes")
    given = ("report", "mics.wav", *models, "--force", "--seconds", "6")

    def notes(*options):
        done = run(*given, *options, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b"")
        page = (tmp_path / "report.html").read_text()
        return dict(re.findall(r'-name">([ab])</h3>\s*<p>(.*?)</p>', page))

    for options, distance in (((), 0.08), (("--mic-distance", "0.2"), 0.2)):
        found = notes("--spatial", "room", *options)
        for name, later, n_samples in (("a", 2, 3), ("b", 1, 1)):
            begin = r"arrives (\S+) ms later at microphone (\d): "
            end = r"(.*), with microphones (\S+) cm apart$"
            heard = re.search(begin + end, found[name]) or re.search(
                begin + r"(too late) for microphones (\S+) cm apart", found[name]
            )
            assert heard, found
            assert int(heard[2]) == later
            assert float(heard[1]) == pytest.approx(1000 * n_samples / SR, abs=0.02)
            assert float(heard[4]) == 100 * distance
            sine = n_samples / SR * 343 / distance
            if sine > 1:
                assert heard[3] == "too late"
            else:
                degrees = np.degrees(np.arcsin(sine))
                turn, side = re.match(r"(\d+)° towards microphone (\d)", heard[3]).groups()
                assert abs(int(turn) - degrees) < 5
                assert int(side) == 3 - later
    assert "microphone" not in "".join(notes().values())
    assert "panned to 45°" in notes("--spatial", "pan")["a"]
    wrong = run(*given, "--mic-distance", "0.2", cwd=tmp_path)
    assert wrong.returncode == 2
    assert b"--mic-distance is for --spatial room." in wrong.stderr


def test_the_number_of_threads_decides_no_bit(scene):
    mixture, _ = scene
    sources = sources_of(2)
    first, *others = (
        ondes.separate(mixture, sources, sr=SR, spatial="room", n_jobs=n_jobs)
        for n_jobs in (1, 2, 7)
    )
    for other in others:
        for name, stem in first.items():
            np.testing.assert_array_equal(other[name], stem)
