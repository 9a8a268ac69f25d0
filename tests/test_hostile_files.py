"""What a file claims costs no memory, no time, and no other file.

Recordings of false length, samples of any size, rates that no sound has, forged models.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hostile import (
    SMALL,
    SR,
    by_ffmpeg,
    ending,
    everything_under,
    forged,
    node,
    noise,
    run,
    sound_bytes,
    start,
    tones,
    tree_of,
    wait_until,
    with_ogg_granule,
    write_sound,
)

import ondes
from ondes.errors import FileError
from ondes.nmf.learner import DictionaryLearner
from ondes.signal.audio_settings import AudioSettings

pytest.importorskip("av", reason="needs the extra `formats`")

ALLOWED = 2**29  # bytes of address space beside what a process starts with
PEAK = 2**27  # bytes in memory for a file of some kilobytes
PATIENCE_S = 10.0
LIMITS = {"memory": ALLOWED, "patience": PATIENCE_S}


# ---- false lengths ----


def patched(data, at, new):
    assert 0 <= at <= len(data) - len(new)
    return data[:at] + new + data[at + len(new) :]


def ogg(granule, subtype="VORBIS"):
    return with_ogg_granule(sound_bytes(tones(), format="OGG", subtype=subtype), granule)


def flac(n_samples):
    data = sound_bytes(tones(), format="FLAC")
    fields = int.from_bytes(data[18:26], "big") >> 36 << 36 | n_samples
    return patched(data, 18, fields.to_bytes(8, "big"))


def matroska_tag(duration):
    data = by_ffmpeg(tones(), "matroska", "flac")
    (found,) = re.finditer(rb"DURATIOND\x87.(\d\d:\d\d:\d\d\.\d{9})", data, re.DOTALL)
    return patched(data, found.start(1), duration)


def matroska_header(seconds):
    data = by_ffmpeg(tones(), "matroska", "flac")
    at = data.index(b"\x44\x89\x88") + 3
    return patched(data, at, np.array(1000 * seconds, ">f8").tobytes())


def mp4(duration):
    data = by_ffmpeg(tones(), "ipod", "aac")
    return patched(data, data.index(b"mdhd") + 20, duration.to_bytes(4, "big"))


def mp4_sample_count(n):
    """The table of durations says one entry is repeated so often."""
    data = by_ffmpeg(tones(), "ipod", "aac")
    return patched(data, data.index(b"stts") + 12, n.to_bytes(4, "big"))


def mp3(n_frames):
    data = sound_bytes(tones(), format="MP3")
    (found,) = re.finditer(rb"Xing|Info", data)
    return patched(data, found.end() + 4, n_frames.to_bytes(4, "big"))


def w64(n_bytes):
    data = sound_bytes(tones(), format="W64")
    return patched(data, data.index(b"data") + 16, n_bytes.to_bytes(8, "little"))


def caf(n_bytes):
    data = sound_bytes(tones(), format="CAF")
    return patched(data, data.index(b"data") + 4, n_bytes.to_bytes(8, "big"))


FALSE_LENGTHS = {
    "vorbis of 2^45 samples.ogg": lambda: ogg(2**45),
    "vorbis of 2^61 samples.ogg": lambda: ogg(2**61),
    "vorbis of 2^63-1 samples.ogg": lambda: ogg(2**63 - 1),
    "opus of 2^45 samples.opus": lambda: ogg(2**45, "OPUS"),
    "opus of 2^61 samples.opus": lambda: ogg(2**61, "OPUS"),
    "flac of 2^36 samples.flac": lambda: flac(2**36 - 1),
    "flac of 2^33 samples.flac": lambda: flac(2**33),
    "flac of 2^27 samples.flac": lambda: flac(2**27),
    "tag of 99 h.mkv": lambda: matroska_tag(b"99:59:59.000000000"),
    "tag of 2^55 s.mkv": lambda: matroska_tag(b"9999999:99:99.9999"),
    "header of 10^12 s.mka": lambda: matroska_header(1e12),
    "header of infinity.mka": lambda: matroska_header(np.inf),
    "duration of 149 h.m4a": lambda: mp4(2**32 - 2),
    "table of 2^32 packets.m4a": lambda: mp4_sample_count(2**32 - 1),
    "2^32 frames.mp3": lambda: mp3(2**32 - 1),
    "2^62 bytes.w64": lambda: w64(2**62),
    "2^62 bytes.caf": lambda: caf(2**62),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, samples in {"tones": tones(1), "noise": noise(1)}.items():
        write_sound(folder / f"{name}.wav", samples)
        done = run("learn", folder / f"{name}.wav", "-o", folder / f"{name}.ondes", *SMALL)
        assert done.returncode == 0
    return folder


@pytest.mark.parametrize("name", FALSE_LENGTHS)
def test_a_false_length_costs_neither_memory_nor_time_nor_the_files_beside_it(tmp_path, name):
    folder = tmp_path / "album"
    for n in range(2):
        write_sound(folder / f"good {n}.wav", tones(n))
    (folder / name).write_bytes(FALSE_LENGTHS[name]())
    done = run("learn", folder, "-o", tmp_path / "m.ondes", *SMALL, "--json", **LIMITS)
    assert done.returncode in (0, 3)
    assert done.peak < PEAK
    assert done.result["n_failed"] == len(done.lines) <= 1
    assert all(name in line for line in done.lines)
    assert done.result["seconds"] < 10
    assert done.result["n_frames"] >= 2 * 2 * SR // 64


def test_an_hour_of_silence_is_not_held_in_memory(tmp_path):
    silence = np.zeros(3600 * SR, np.int16)
    write_sound(tmp_path / "in" / "silence.flac", silence, format="FLAC")
    write_sound(tmp_path / "in" / "good.wav", tones(0, 0.5))
    done = run("learn", tmp_path / "in", "-o", tmp_path / "m.ondes", *SMALL, "--json")
    assert done.returncode == 0
    assert done.result["n_frames"] < 1000
    assert done.peak < PEAK


@pytest.mark.parametrize("place", [0, 1, 3, 4, 126])
def test_a_damaged_sample_dump_is_refused_and_nothing_else_is_printed(tmp_path, place):
    """libsndfile itself would print to standard output, into the JSON."""
    third_packet = 21 + 2 * 127
    data = sound_bytes(tones(), format="SDS")
    (tmp_path / "good.sds").write_bytes(data)
    value = bytes([data[third_packet + place] ^ 0x11])
    (tmp_path / "bad.sds").write_bytes(patched(data, third_packet + place, value))
    both = [tmp_path / "good.sds", tmp_path / "bad.sds"]
    done = run("learn", *both, "-o", tmp_path / "m.ondes", *SMALL, "--json")
    assert done.returncode == 3
    assert done.result["n_failed"] == len(done.lines) == 1
    assert "bad.sds" in done.lines[0]
    assert "packet 2" in done.lines[0]


@pytest.mark.parametrize("name", FALSE_LENGTHS)
def test_a_mix_of_false_length_is_separated_or_refused_and_so_is_the_next(tmp_path, models, name):
    write_sound(tmp_path / "z.wav")
    (tmp_path / name).write_bytes(FALSE_LENGTHS[name]())
    both = ["-d", models / "tones.ondes", "-d", models / "noise.ondes"]
    mixes = [tmp_path / name, tmp_path / "z.wav"]
    done = run("separate", *mixes, *both, "-o", tmp_path / "out", **LIMITS)
    assert done.returncode in (0, 3)
    assert done.peak < PEAK
    assert len(done.lines) <= 1
    stems = everything_under(tmp_path / "out" / "z")
    assert stems == ["noise.wav", "tones.wav"]


@pytest.mark.parametrize("name", ["vorbis of 2^45 samples.ogg", "flac of 2^36 samples.flac"])
def test_without_dictionaries_a_false_length_costs_no_more(tmp_path, name):
    (tmp_path / name).write_bytes(FALSE_LENGTHS[name]())
    how = ["--sources", "2", "-k", "4", "-j", "1", "-o", tmp_path / "out"]
    done = run("separate", tmp_path / name, *how, **LIMITS)
    assert done.returncode in (0, 1)
    assert done.peak < PEAK
    assert "bug" not in done.stderr.decode()
    assert done.returncode == 0 or name in done.lines[0]


# ---- samples of any size ----


def test_one_enormous_sample_does_not_make_a_recording_vanish_unseen(tmp_path):
    """It is learned from, or it is named and counted as failed."""
    write_sound(tmp_path / "a" / "good.wav", tones(0))
    spike = tones(1).astype(np.float32)
    spike[8000] = 1e20
    write_sound(tmp_path / "a" / "spike.wav", spike, subtype="FLOAT")
    done = run("learn", tmp_path / "a", "-o", tmp_path / "m.ondes", *SMALL, "--json")
    frames_of_one = 2 * SR // 64 + 1
    if done.returncode == 0:
        assert done.result["n_failed"] == 0
        assert done.result["n_frames"] > frames_of_one
    else:
        assert done.returncode == 3
        assert done.result["n_failed"] == 1
        assert "spike.wav" in done.lines[0]
        assert done.result["n_frames"] == frames_of_one


@pytest.mark.parametrize("exponent", [-83, -60, 60, 83])
def test_a_recording_at_any_volume_gives_the_same_dictionary(tmp_path, exponent):
    """2^83 is about 1e25: a power of two, so that the samples are the same but for their scale."""
    samples = tones(0).astype(np.float32) / 2**15
    learned = []
    for name, each in {"plain": samples, "scaled": np.ldexp(samples, exponent)}.items():
        sound = write_sound(tmp_path / f"{name}.wav", each, subtype="FLOAT")
        done = run("learn", sound, "-o", tmp_path / f"{name}.ondes", *SMALL, "--json")
        assert (done.returncode, done.stderr) == (0, b"")
        learned.append(ondes.load(tmp_path / f"{name}.ondes"))
    plain, scaled = learned
    assert scaled.history.n_frames == plain.history.n_frames
    np.testing.assert_allclose(scaled.components, plain.components, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("exponent", [-83, 83])
def test_a_mix_at_any_volume_is_separated_and_the_stems_sum_to_it(tmp_path, models, exponent):
    import soundfile

    samples = np.ldexp(tones(0).astype(np.float32) / 2**15, exponent)
    mix = write_sound(tmp_path / "mix.wav", samples, subtype="FLOAT")
    both = ["-d", models / "tones.ondes", "-d", models / "noise.ondes"]
    done = run("separate", mix, *both, "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, b"")
    stems = [soundfile.read(path)[0] for path in (tmp_path / "out" / "mix").iterdir()]
    peak = np.abs(samples).max().astype(np.float64)
    assert np.abs(sum(stems) - samples).max() < 1e-4 * peak
    assert all(np.abs(stem).max() > 1e-3 * peak for stem in stems)


@pytest.mark.parametrize("exponent", [-83, 83])
@pytest.mark.parametrize("spectrum", ["magnitude", "power"])
def test_levels_grow_with_the_volume_and_nothing_else_changes(tmp_path, spectrum, exponent):
    samples = tones(0).astype(np.float32) / 2**15
    how = {"sr": SR, "n_fft": 128, "spectrum": spectrum, "backend": "reference"}
    dictionary = ondes.learn(samples, 3, **how)
    plain, scaled = (
        write_sound(tmp_path / f"{n}.wav", np.ldexp(samples, n), subtype="FLOAT")
        for n in (0, exponent)
    )
    expected, found = dictionary.transform(plain), dictionary.transform(scaled)
    factor = exponent if spectrum == "magnitude" else 2 * exponent
    found = np.ldexp(found.astype(np.float64), -factor)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.max())
    assert dictionary.score(scaled) == pytest.approx(dictionary.score(plain), rel=1e-4)


def test_one_enormous_sample_costs_its_own_frames_alone(tmp_path):
    samples = tones(0).astype(np.float32) / 2**15
    # Without a tolerance: rounding may decide at which step a frame counts as converged.
    solver = ondes.Solver(max_steps=100)
    settings = {"n_fft": 128, "backend": "reference", "transform_solver": solver}
    dictionary = ondes.learn(samples, 3, sr=SR, **settings)
    spike = samples.copy()
    spike[8000] = 1e20
    expected, found = dictionary.transform(samples), dictionary.transform(spike)
    assert np.isfinite(found).all()
    is_other = np.abs(np.arange(len(found)) * 32 - 8000) > 256
    np.testing.assert_allclose(found[is_other], expected[is_other], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exponent", [-83, 83])
def test_a_part_at_any_volume_has_the_same_score(tmp_path, models, exponent):
    samples = tones(0).astype(np.float32) / 2**15
    results = []
    for n in (0, exponent):
        sound = write_sound(tmp_path / f"{n}.wav", np.ldexp(samples, n), subtype="FLOAT")
        part = ["--start", "0.5", "--end", "1.5", "--json"]
        done = run("score", sound, "-d", models / "tones.ondes", *part)
        assert (done.returncode, done.stderr) == (0, b"")
        results.append(done.result["divergence"])
    assert results[1] == pytest.approx(results[0], rel=1e-4)


def stems_of(folder):
    import soundfile

    return {path.name: soundfile.read(path)[0] for path in sorted(folder.glob("*.wav"))}


@pytest.mark.parametrize("exponent", [-83, 83])
def test_sources_are_found_blindly_at_any_volume(tmp_path, exponent):
    samples = (tones(0) + noise(1)).astype(np.float32) / 2**15
    found = []
    for n in (0, exponent):
        sound = write_sound(tmp_path / f"{n}.wav", np.ldexp(samples, n), subtype="FLOAT")
        how = ["--sources", "2", "-k", "4", "-j", "1", "-o", tmp_path / "out"]
        done = run("separate", sound, *how)
        assert (done.returncode, done.stderr) == (0, b"")
        found.append(stems_of(tmp_path / "out" / str(n)))
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        scaled = np.ldexp(found[1][name], -exponent)
        assert np.abs(scaled - expected).max() < 1e-3 * np.abs(samples).max()


@pytest.mark.parametrize("exponent", [-83, 83])
@pytest.mark.parametrize("with_model", [False, True])
def test_noise_is_reduced_at_any_volume(tmp_path, models, with_model, exponent):
    import soundfile

    samples = (tones(0) + noise(1)).astype(np.float32) / 2**15
    results = []
    for n in (0, exponent):
        sound = write_sound(tmp_path / f"{n}.wav", np.ldexp(samples, n), subtype="FLOAT")
        model = ["-d", models / "tones.ondes"] if with_model else []
        output = tmp_path / f"{n} out.wav"
        done = run("denoise", sound, "--noise", "0.5-1.2", *model, "-o", output)
        assert (done.returncode, done.stderr) == (0, b"")
        results.append(np.ldexp(soundfile.read(output)[0], -n))
    assert np.abs(results[1] - results[0]).max() < 2e-3 * np.abs(samples).max()
    assert np.abs(results[0]).max() > 0.1 * np.abs(samples).max()


@pytest.mark.parametrize("place", [0, 100, 9000, 15999])
def test_a_mix_with_an_invalid_sample_anywhere_costs_itself_alone(tmp_path, models, place):
    samples = tones(1).astype(np.float32)
    samples[place] = np.nan
    write_sound(tmp_path / "nan.wav", samples, subtype="FLOAT")
    write_sound(tmp_path / "z.wav")
    both = ["-d", models / "tones.ondes", "-d", models / "noise.ondes", "-o", tmp_path / "out"]
    done = run("separate", tmp_path / "nan.wav", tmp_path / "z.wav", *both)
    assert done.returncode == 3
    (line,) = done.lines
    assert "nan.wav: has NaN or infinite samples" in line
    assert everything_under(tmp_path / "out") == ["z", "z/noise.wav", "z/tones.wav"]


# ---- rates ----


@pytest.mark.parametrize("sr", [1_000_000_000, 1_500_000_000, 2**31 - 1, 2**31, 10**30])
def test_a_rate_that_no_sound_has_is_refused(tmp_path, sr):
    sound = write_sound(tmp_path / "a.wav")
    how = ["-k", "3", "--n-fft", "128", "-j", "1", "--sr", sr]
    done = run("learn", sound, "-o", tmp_path / "m.ondes", *how, **LIMITS)
    assert done.returncode in (1, 2)
    assert 1 <= len(done.lines) <= 5
    assert "bug" not in done.stderr.decode()
    assert re.search(r"\bsr\b|rate|samples per second", done.stderr.decode())
    assert everything_under(tmp_path) == ["a.wav"]


def test_a_raw_recording_of_such_a_rate_is_refused(tmp_path):
    (tmp_path / "a.raw").write_bytes(tones().tobytes())
    for rate in (1, 2**31 - 1, 2**40):
        how = [*SMALL, "--raw", f"{rate}:1:s16le"]
        done = run("learn", tmp_path / "a.raw", "-o", tmp_path / "m.ondes", *how, **LIMITS)
        assert done.returncode in (1, 2), rate
        assert "bug" not in done.stderr.decode()
        assert "alloc" not in done.stderr.decode()


# ---- hostile models ----


def command_with(model, sound, command):
    if command == "learn":
        return ["learn", sound, "-o", model.parent / "n.ondes", "--continue", model, "-j", "1"]
    if command == "separate":
        return ["separate", sound, "-d", model, "--free", "2", "-o", model.parent / "out"]
    return [command, sound, "-d", model]


HUGE_SOLVER = {"$": "Solver", "max_steps": 10**15, "exponent": 1.0, "momentum": [], "tol": 0.0}


@pytest.mark.parametrize("command", ["learn", "separate", "score"])
def test_a_model_that_asks_for_endless_steps_is_refused_or_can_be_interrupted(
    tmp_path, models, command
):
    def change(tree):
        part = node(tree, "transform_solver")
        part["solver"] = part["transform_solver"] = HUGE_SOLVER

    model = tmp_path / "hostile.ondes"
    model.write_bytes(forged((models / "tones.ondes").read_bytes(), change))
    given = command_with(model, models / "noise.wav", command)
    done = run(*given, interrupt_after=2.0, patience=5.0)
    assert done.returncode in (0, 1, 130)  # separation has steps of its own
    if done.returncode:
        assert len(done.lines) == 1
        assert everything_under(tmp_path) == ["hostile.ondes"]


HOSTILE_SETTINGS = {
    "steps of 1.5": ("solver", {**HUGE_SOLVER, "max_steps": 1.5}),
    "steps of 2^70": ("solver", {**HUGE_SOLVER, "max_steps": 2**70}),
    "steps that are true": ("solver", {**HUGE_SOLVER, "max_steps": True}),
    "tol of text": ("solver", {**HUGE_SOLVER, "max_steps": 5, "tol": "x"}),
    "endless batch": ("batch_size", 10**15),
    "negative batch": ("batch_size", -1),
}


@pytest.mark.parametrize("name", HOSTILE_SETTINGS)
@pytest.mark.parametrize("command", ["learn", "separate", "score"])
def test_a_model_with_hostile_settings_is_no_bug(tmp_path, models, name, command):
    key, value = HOSTILE_SETTINGS[name]

    def change(tree):
        part = node(tree, "transform_solver")
        part[key] = value
        if key == "solver":
            part["transform_solver"] = value

    model = tmp_path / "hostile.ondes"
    model.write_bytes(forged((models / "tones.ondes").read_bytes(), change))
    done = run(*command_with(model, models / "noise.wav", command), **LIMITS)
    assert done.returncode in (0, 1)
    assert "bug" not in done.stderr.decode()
    if done.returncode:
        assert len(done.lines) == 1
        assert "hostile.ondes" in done.lines[0]


@pytest.mark.parametrize("top_db", [1e308, -1e308, 1e-320, 0, -60, "60", [60]])
def test_a_model_with_a_hostile_silence_is_refused(tmp_path, models, top_db):
    model = tmp_path / "hostile.ondes"
    data = (models / "tones.ondes").read_bytes()
    model.write_bytes(forged(data, lambda t: node(t, "AudioSettings").update(top_db=top_db)))
    for command in ("learn", "score"):
        done = run(*command_with(model, models / "noise.wav", command), **LIMITS)
        assert "bug" not in done.stderr.decode()
        assert done.returncode in (0, 1)
    if top_db in (1e308, -1e308, "60", [60]):
        with pytest.raises(FileError):
            ondes.load(model)


def small_model(path, n_sources, n_fft, sr):
    """A dictionary with a component for each source."""
    audio = AudioSettings(sr, ondes.Stft(n_fft, n_fft // 4))
    start = np.random.default_rng(0).uniform(1, 2, (n_sources, audio.n_bins))
    labels = [f"source {n}" for n in range(n_sources)]
    learner = DictionaryLearner(n_sources, init=start, groups=labels, random_state=0)
    learner.initialise(np.ones((n_sources + 1, audio.n_bins)))
    ondes.Dictionary(learner, audio, None).save(path)


@pytest.mark.parametrize(
    ("n_sources", "n_fft", "said"),
    [
        (2, 2**13, "The model's frames have 393216 samples at 48000 Hz, more than 262144"),
        (400, 2**12, "400 sources with frames of 196608 samples need too much memory"),
    ],
)
@pytest.mark.parametrize("command", ["separate", "levels"])
def test_a_small_model_that_needs_much_memory_is_refused(tmp_path, command, n_sources, n_fft, said):
    write_sound(tmp_path / "mix.wav", noise(2), 48_000)
    model, out = tmp_path / "small.ondes", tmp_path / "out.csv"
    small_model(model, n_sources, n_fft, 1000)
    done = run(command, tmp_path / "mix.wav", "-d", model, "-o", out, **LIMITS)
    assert done.returncode in (1, 2)
    assert said in done.stderr.decode()
    assert "bug" not in done.stderr.decode()
    assert done.peak < PEAK
    assert everything_under(tmp_path) == ["mix.wav", "small.ondes"]


@pytest.mark.parametrize("sources", [(1, 200, 64), (2, 60, 2048)])
def test_a_small_model_that_is_used_takes_memory_within_the_bound(tmp_path, sources):
    n_channels, n_sources, n_fft = sources
    samples = np.repeat(noise(1)[:, None], n_channels, axis=1)
    write_sound(tmp_path / "mix.wav", samples)
    small_model(tmp_path / "small.ondes", n_sources, n_fft, SR)
    given = ("separate", tmp_path / "mix.wav", "-d", tmp_path / "small.ondes")
    done = run(*given, "-o", tmp_path / "out", memory=2**31, patience=60.0)
    assert done.returncode == 0
    assert done.peak < 2**28


@pytest.mark.parametrize("sr", [1_500_000_000, 2**31, 2**62, 0, -1, 1.5])
@pytest.mark.parametrize("command", ["learn", "separate", "score"])
def test_a_model_of_a_rate_that_no_sound_has_is_refused(tmp_path, models, sr, command):
    model = tmp_path / "hostile.ondes"
    data = (models / "tones.ondes").read_bytes()
    model.write_bytes(forged(data, lambda t: node(t, "AudioSettings").update(sr=sr)))
    done = run(*command_with(model, models / "noise.wav", command), **LIMITS)
    assert done.returncode == 1
    assert 1 <= len(done.lines) <= 2
    assert "bug" not in done.stderr.decode()
    assert "hostile.ondes" in done.stderr.decode() or "noise.wav" in done.stderr.decode()
    assert everything_under(tmp_path) == ["hostile.ondes"]


def test_a_sparse_file_of_100_gb_is_not_read(tmp_path, models):
    for name, head in {"model": (models / "tones.ondes").read_bytes(), "zeros": b""}.items():
        model = tmp_path / f"{name}.ondes"
        with model.open("wb") as file:
            file.write(head)
            file.truncate(100 * 10**9)
        for command in (["info", model], ["score", models / "tones.wav", "-d", model]):
            done = run(*command, **LIMITS)
            assert done.returncode == 1
            assert done.peak < PEAK
            (line,) = done.lines
            assert str(model) in line
            assert "bug" not in line


# ---- forged checkpoints ----


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The bytes of a checkpoint in the middle of a run, and the command to resume it."""
    folder = tmp_path_factory.mktemp("kept")
    write_sound(folder / "a.wav", tones(0, 20))
    output = folder / "m.ondes"
    command = ["learn", folder / "a.wav", "-o", output, *SMALL, "--passes", "20", "--resume"]
    checkpoint = folder / "m.ondes.checkpoint"
    with ending(start(*command, "--checkpoint-every", "0.02")) as process:
        wait_until(lambda: checkpoint.exists() or process.poll() is not None)
    data = checkpoint.read_bytes()
    output.unlink(missing_ok=True)
    return command, checkpoint, output, data


def numbers_of(tree, path=()):
    """Where a tree has numbers."""
    if isinstance(tree, (int, float)) and not isinstance(tree, bool):
        yield path
    if isinstance(tree, (dict, list)):
        for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from numbers_of(part, (*path, name))


def with_number(tree, path, value):
    for name in path[:-1]:
        tree = tree[name]
    tree[path[-1]] = value


@pytest.mark.parametrize("value", [-1, 2**62, 1.5, "x", None])
def test_a_forged_position_of_a_checkpoint_neither_hangs_nor_crashes(kept, value):
    command, checkpoint, output, data = kept
    checkpoint.write_bytes(data)
    places = list(numbers_of(tree_of(checkpoint)["run"]["position"]))
    assert places
    for place in places:
        checkpoint.write_bytes(
            forged(data, lambda tree: with_number(tree["run"]["position"], place, value))  # noqa: B023
        )
        done = run(*command, memory=ALLOWED, patience=15.0)
        assert done.returncode in (0, 1), (place, done)
        assert "bug" not in done.stderr.decode(), (place, done)
        assert done.returncode == 0 or len(done.lines) == 1, (place, done)
        output.unlink(missing_ok=True)
    checkpoint.unlink(missing_ok=True)
