"""A part of a recording is what lies there, for every command and both kinds of spectra."""

import io
import json

import numpy as np
import pytest
import soundfile
from click import BadParameter
from test_cli import lines, models, run, sentence  # noqa: F401

import ondes
from ondes.cli.options import parse_time
from ondes.errors import FileError
from ondes.separation import StemLevels
from ondes.separation.denoising import denoise
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.frame_reader import active_frames, spectral_frames
from ondes.signal.recordings import RawFormat, open_span, read
from ondes.signal.stft import Stft

SR = 8000


@pytest.fixture
def recording(tmp_path):
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, (2 * SR, 2)).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, SR, subtype="FLOAT")
    return tmp_path / "a.wav", samples


@pytest.mark.parametrize("block_size", [7, 65536])
@pytest.mark.parametrize(("start", "end"), [(0, None), (0, 0.5), (0.25, None), (0.25, 9), (1, 1.1)])
def test_an_excerpt_is_the_part_of_the_whole(recording, start, end, block_size):
    path, samples = recording
    wanted = samples[round(start * SR) : None if end is None else round(end * SR)]
    raw = RawFormat(SR, 2, "f32le")
    for given, how in ((path, {}), (io.BytesIO(samples.tobytes()), {"raw": raw})):
        with open_span(given, start=start, end=end, block_size=block_size, **how) as blocks:
            assert blocks.n_samples in (None, len(wanted))
            np.testing.assert_array_equal(np.concatenate(list(blocks)), wanted)


def test_an_excerpt_behind_the_end_is_an_error(recording):
    with (
        pytest.raises(FileError, match="ends before 3 s"),
        open_span(recording[0], start=3) as blocks,
    ):
        list(blocks)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("75", 75), ("1:15", 75), ("0:01:15", 75), ("1.5", 1.5), ("90:00.25", 5400.25), ("0", 0)],
)
def test_times_are_seconds_or_as_on_a_clock(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1:60", "1:60:00", "a", "1:", "1e3", "1:2:3:4", "nan"])
def test_other_times_are_refused(text):
    with pytest.raises(BadParameter):
        parse_time(text)


# ---- power and magnitude ----


def test_magnitudes_are_the_square_root_of_power_everywhere(recording):
    path, samples = recording
    power, magnitude = (AudioSettings(SR, Stft(256), None, kind) for kind in ("power", "magnitude"))
    expected = np.sqrt(power.stft.power(samples))
    np.testing.assert_array_equal(power.frames(samples), power.stft.power(samples))
    np.testing.assert_array_equal(magnitude.frames(samples), expected)
    np.testing.assert_array_equal(
        np.concatenate(list(spectral_frames([samples], magnitude))), expected
    )
    read_back = np.concatenate(list(frame_batches(path, magnitude, 16)))
    order = [np.lexsort(each.T) for each in (read_back, expected)]
    np.testing.assert_array_equal(read_back[order[0]], expected[order[1]])
    given = np.ones((2, 129), np.float32)
    assert magnitude.from_power(given) is not given


def test_silence_is_judged_by_power_whatever_the_frames_hold(tmp_path):
    rng = np.random.default_rng(0)
    loudness = 10 ** (-np.repeat(np.arange(0, 80, 4), 1024)[:, None] / 20)
    samples = (loudness * rng.standard_normal((len(loudness), 1))).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, SR, subtype="FLOAT")
    counts = {
        kind: (
            sum(
                map(
                    len,
                    frame_batches(tmp_path / "a.wav", AudioSettings(SR, Stft(256), 40, kind), 16),
                )
            ),
            sum(map(len, active_frames([samples], AudioSettings(SR, Stft(256), 40, kind)))),
        )
        for kind in ("power", "magnitude")
    }
    assert counts["power"] == counts["magnitude"]
    assert 0 < counts["power"][0] < len(AudioSettings(SR, Stft(256)).frames(samples)) * 0.6


def test_an_unknown_spectrum_is_refused():
    with pytest.raises(ValueError, match=r"spectrum='decibels' must be 'power' or 'magnitude'\."):
        AudioSettings(SR, Stft(256), spectrum="decibels")


# ---- commands ----


NAMES = {"tones": "tones", "hiss": "noise"}  # of the sources, and of their files


def both(models):  # noqa: F811
    return ("-d", models / "tones.ondes", "-d", f"hiss={models / 'noise.ondes'}")


def test_a_part_of_a_mix_is_separated(models, tmp_path):  # noqa: F811
    mix, sr = read(models / "mix.wav")
    part = ("--start", "0:00.5", "--end", "1.25")
    done = run("separate", models / "mix.wav", *both(models), *part, "-o", tmp_path)
    assert done.returncode == 0
    stems = [read(tmp_path / "mix" / f"{name}.wav")[0] for name in ("tones", "hiss")]
    wanted = mix[round(0.5 * sr) : round(1.25 * sr)]
    np.testing.assert_allclose(sum(stems), wanted, atol=1e-5)


def test_a_part_of_a_recording_is_scored(models, tmp_path):  # noqa: F811
    samples, sr = read(models / "mix.wav")
    soundfile.write(tmp_path / "part.wav", samples[sr // 2 : sr], sr, subtype="FLOAT")
    model = ("-d", models / "tones.ondes", "--json")
    part = run("score", models / "mix.wav", *model, "--start", "0.5", "--end", "1")
    whole = run("score", tmp_path / "part.wav", *model)
    costs = [json.loads(done.stdout)["divergence"] for done in (part, whole)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-5)


@pytest.mark.parametrize("name", ["hiss", "hiss.ondes"])
def test_adaptation_through_the_command(models, tmp_path, name):  # noqa: F811
    done = run("separate", models / "mix.wav", *both(models), "--adapt", name, "-o", tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    mixture, sr = read(models / "mix.wav")
    known = {name: ondes.load(models / f"{file}.ondes") for name, file in NAMES.items()}
    expected = ondes.separate(mixture, known, sr=sr, adapt="hiss")
    for name, stem in expected.items():
        np.testing.assert_array_equal(read(tmp_path / "mix" / f"{name}.wav")[0], stem)
    fixed = ondes.separate(mixture, known, sr=sr)
    assert np.abs(fixed["hiss"] - expected["hiss"]).max() > 1e-3


def test_noise_is_reduced_through_the_command(models, tmp_path):  # noqa: F811
    samples, sr = read(models / "mix.wav")
    how = ("--noise", "0:00-0:01", "--amount", "12", "-o", tmp_path / "clean.wav")
    done = run("denoise", models / "mix.wav", *how)
    assert lines(done.stdout) == [str(tmp_path / "clean.wav")]
    expected = denoise(samples, sr, noise=(0.0, 1.0), amount=12.0)
    found, found_sr = read(tmp_path / "clean.wav")
    assert found_sr == sr
    np.testing.assert_array_equal(found, expected)
    assert run("denoise", models / "mix.wav", *how).returncode == 1  # it exists already
    done = run("denoise", models / "mix.wav", "-d", models / "tones.ondes", *how, "--force")
    assert done.returncode == 0


def test_wrong_usage_is_one_sentence(models, tmp_path):  # noqa: F811
    mix, to = models / "mix.wav", ("-o", tmp_path / "out.wav")
    cases = [
        (2, ("separate", mix, *both(models), "--adapt", "guitar"), "guitar"),
        (2, ("separate", mix, *both(models), "--adapt", "hiss", "--free", "2"), "--free"),
        (2, ("separate", mix, *both(models), "--start", "2", "--end", "1"), "--end"),
        (2, ("separate", mix, *both(models), "--start", "1:99"), "1:99"),
        (2, ("report", mix, *both(models), "--end", "1", "--seconds", "1"), "--seconds"),
        (2, ("denoise", mix, "--noise", "0:02-0:01", *to), "0:02-0:01"),
        (2, ("denoise", "-", "--noise", "0-1", *to), "Standard input"),
        (1, ("denoise", mix, "--noise", "0-0.01", *to), "too short"),
        (1, ("denoise", mix, "--noise", tmp_path / "absent.wav", *to), "absent.wav"),
        (1, ("denoise", tmp_path / "absent.wav", "--noise", "0-1", *to), "absent.wav"),
        (1, ("denoise", mix, "--noise", "1:00-2:00", *to), "ends before"),
    ]
    for status, arguments, words in cases:
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == status, arguments
        assert words in done.stderr.decode(), arguments
        if status == 1:
            assert sentence(done, words)
    assert not list(tmp_path.iterdir())


def test_nearly_silent_sources_are_reported(tmp_path):
    time = np.arange(3 * SR) / SR
    loud = 0.5 * (time < 1.5) * np.sin(2 * np.pi * 440 * time)
    quiet_one = 0.01 * (time >= 1.5) * np.sin(2 * np.pi * 2500 * time)
    soundfile.write(tmp_path / "mix.wav", loud + quiet_one, SR, subtype="FLOAT")
    how = ("--sources", "2", "-k", "2", "--json", "-o", tmp_path / "out")
    done = run("separate", tmp_path / "mix.wav", *how)
    levels = json.loads(done.stdout)["tracks"][0]["levels"]
    quiet = {name: level for name, level in levels.items() if level < -20}
    said = lines(done.stderr)
    assert len(said) == len(quiet)
    for name, level in quiet.items():
        below = f"nearly silent, {-level:.0f} dB below the mixture"
        assert f"ondes: mix.wav: {name} is {below}; try fewer --sources." in said
    assert quiet


def test_levels_of_stems_are_relative_to_their_sum():
    levels = StemLevels()
    assert levels.decibels() == {}
    for _ in range(3):
        levels.add({"a": np.ones((5, 2)), "b": np.full((5, 2), 0.01), "c": np.zeros((5, 2))})
    found = levels.decibels()
    assert found["a"] == pytest.approx(0, abs=0.1)
    assert found["b"] == pytest.approx(-40, abs=0.1)
    assert found["c"] == -np.inf
