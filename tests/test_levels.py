"""Tables of what sounds when: levels are those of the stems, and planted events are found."""

import csv
import io
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_constant_memory import LAUNCHER
from test_trained import weights

import ondes
from ondes.cli import main
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.encoding import Compute
from ondes.separation import Sources
from ondes.separation.energies import (
    ComponentEnergies,
    OverlapEnergy,
    SpanSums,
)
from ondes.separation.novelty import FRAMES_AVERAGED, MeasuredSources, Novelty
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft
from ondes.tables import (
    Event,
    EventFinder,
    LevelBlock,
    Rows,
    clock_time,
    find_events,
    rows_of_events,
    table_writer,
    write_labels,
)

SR = 8000


def tones(hertz, seconds, sr=SR, seed=0):
    """Notes with harmonics that begin and end, as stereo that is not the same on both sides."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * sr)) / sr
    loud = np.repeat(
        rng.uniform(0.1, 1, 2 * round(seconds) + 1), -(-len(t) // (2 * round(seconds)))
    )
    loud = np.convolve(loud, np.hanning(sr // 10) / np.hanning(sr // 10).sum(), "same")[: len(t)]
    sound = sum(
        np.sin(2 * np.pi * h * hertz * t + h) / h for h in range(1, 9) if h * hertz < sr / 2
    )
    fade = np.minimum(1, np.minimum(t, t[::-1]) / 0.3)
    sound = 0.1 * fade * loud * (sound + 0.02 * rng.standard_normal(len(t)))
    return np.stack([sound, 0.5 * np.roll(sound, 20)], axis=1).astype(np.float32)


def bursts(seconds, sr=SR, seed=1):
    """Noise around 2 kHz that comes and goes."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * sr)) / sr
    sound = 0.1 * rng.standard_normal(len(t)) * np.sin(2 * np.pi * 2000 * t)
    sound = sound * (0.05 + (np.sin(2 * np.pi * 0.4 * t) > 0.3)) * np.minimum(1, t[::-1] / 0.3)
    return np.stack([sound, sound], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models, one of both with groups, and a mixture at another sampling rate."""
    folder = tmp_path_factory.mktemp("tables")
    settings = {"sr": SR, "n_fft": 512}
    ondes.learn([tones(150, 8), tones(220, 8, seed=5)], 6, **settings).save(folder / "tones.ondes")
    ondes.learn(bursts(8), 5, **settings).save(folder / "bursts.ondes")
    both = [tones(190, 8) + bursts(8)]
    ondes.learn(both, 8, **settings, groups=list("aabbbaab")).save(folder / "groups.ondes")
    mixture = tones(200, 7, 11025) + bursts(7, 11025)
    soundfile.write(folder / "mix.wav", mixture, 11025, subtype="FLOAT")
    return folder


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        main(list(map(str, arguments)))
    return end.value.code


def table_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def decibels(energy):
    return 10 * np.log10(np.maximum(energy, 1e-300))


# ---- levels are what is heard -------------------------------------------------------------------


def test_levels_of_sources_are_those_of_the_separated_stems(folder, tmp_path):
    models = ("-d", folder / "tones.ondes", "-d", folder / "bursts.ondes")
    assert run("separate", folder / "mix.wav", *models, "-o", tmp_path) == 0
    table = tmp_path / "t.csv"
    assert run("levels", folder / "mix.wav", *models, "-o", table, "--every", 0.4) == 0
    rows = table_of(table)
    assert {row["source"] for row in rows} == {"tones", "bursts"}
    assert len(rows) == 2 * 18  # 7 s: the last cell is half as long
    for row in rows:
        stem, sr = soundfile.read(tmp_path / "mix" / f"{row['source']}.wav")
        first, last = round(float(row["start"]) * sr), round(float(row["end"]) * sr)
        expected = decibels(np.mean(stem[first:last] ** 2))
        assert float(row["level_db"]) == pytest.approx(expected, abs=0.1)
        assert row["file"] == str(folder / "mix.wav")


def sounds_of_components(dictionary, samples, sr):
    each = {str(k): [k] for k in range(dictionary.n_components)}
    sources = Sources.from_components(dictionary, each)
    return ondes.separate(samples, sources, sr=sr, spatial="none")


@pytest.mark.parametrize("sr", [SR, 6000, 11025, 16000])
@pytest.mark.parametrize("spectrum", ["magnitude", "power"])
def test_levels_of_components_are_those_of_their_sounds(sr, spectrum):
    is_power = spectrum == "power"
    settings = {"n_fft": 256, "hop_length": 128, "preset": "paper"} if is_power else {"n_fft": 512}
    dictionary = ondes.learn([tones(150, 6) + bursts(6)], 6, sr=SR, **settings)
    samples = tones(160, 6, sr) + bursts(6, sr)
    sounds = sounds_of_components(dictionary, samples, sr)
    sources = Sources.of({"all": dictionary})
    heard = ComponentEnergies(sources, sr=sr)
    energies = np.concatenate([heard.push(samples), heard.flush()]).sum(axis=0)
    total = np.mean(samples.astype(np.float64) ** 2) * len(samples)
    n_compared = 0
    for k, sound in sounds.items():
        expected = np.mean(sound.astype(np.float64) ** 2) * len(sound)
        if expected > 1e-5 * total:
            assert decibels(energies[int(k)]) == pytest.approx(decibels(expected), abs=0.1)
            n_compared += 1
    assert n_compared >= 3


@pytest.mark.parametrize(
    "stft",
    [Stft(512, 128), Stft(512), Stft(512, 256, "sine"), Stft(400, 100, "hamming"), Stft(513, 160)],
)
def test_overlap_energy_is_that_of_the_overlap_added_signals(stft):
    rng = np.random.default_rng(0)
    n_frames, n_signals = 60, 5
    samples = rng.standard_normal((stft.hop_length * n_frames, 2)) + 0.5  # with a constant part
    frames = stft.forward(samples)[: n_frames + 3]
    smooth = np.cumsum(rng.standard_normal((n_signals, stft.n_bins)), axis=1) / 10
    shapes = np.exp(smooth)
    gains = np.exp(np.cumsum(rng.standard_normal((len(frames), n_signals)), axis=0) / 4)
    found = OverlapEnergy(shapes, stft).of(gains, frames, n_threads=2)
    for k in range(n_signals):
        masked = gains[:, k, None, None] * shapes[k] * frames
        padded = np.concatenate([masked, np.zeros((4, *masked.shape[1:]))])
        signal = stft.inverse(np.concatenate([np.zeros((4, *masked.shape[1:])), padded]))
        expected = np.mean(np.sum(signal.astype(np.float64) ** 2, axis=0))
        assert decibels(found[:, k].sum()) == pytest.approx(decibels(expected), abs=0.05)


def test_overlap_energy_is_the_same_without_the_kernel(monkeypatch):
    stft, rng = Stft(512, 128), np.random.default_rng(0)
    frames = stft.forward(rng.standard_normal((4000, 2)))
    shapes, gains = rng.uniform(size=(5, stft.n_bins)), rng.uniform(size=(len(frames), 5))
    energy = OverlapEnergy(shapes, stft)
    expected = energy.of(gains, frames)
    monkeypatch.setitem(sys.modules, "ondes.nmf.backends._native", None)
    np.testing.assert_allclose(energy.of(gains, frames), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", [ComponentEnergies, Novelty])
def test_the_cut_into_blocks_does_not_matter(folder, kind):
    sources = Sources.of(ondes.load(folder / "groups.ondes"))
    samples = tones(200, 6) + bursts(6)
    whole = kind(sources)
    expected = np.concatenate([whole.push(samples), whole.flush()])
    for cut in (3000, 11):
        cut_up = kind(sources)
        parts = [cut_up.push(each) for each in np.array_split(samples, len(samples) // cut)[:400]]
        n = sum(map(len, np.array_split(samples, len(samples) // cut)[:400]))
        found = np.concatenate([*parts, cut_up.push(samples[n:]), cut_up.flush()])
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9 * expected.max())


def test_cells_are_sums_in_plain_loops():
    rng = np.random.default_rng(0)
    for length, first, step in ((2.5, 0.0, 1.0), (0.3, -1.7, 1.0), (7.0, -2.0, 3.0)):
        values = rng.exponential(size=(40, 2))
        end = first + 40 * step - 1.3
        n_cells = int(np.ceil(end / length))
        expected = np.zeros((n_cells, 2))
        fine = 1000  # parts of a value
        for i, value in enumerate(values):
            for part in range(fine):
                place = first + (i + (part + 0.5) / fine) * step
                expected[min(max(int(place // length), 0), n_cells - 1)] += value / fine
        sums = SpanSums(length, first, step)
        found = [sums.push(each) for each in np.array_split(values[:33], 9)]
        found.append(sums.finish(values[33:], end))
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=0.02, atol=0.01)


# ---- novelty ------------------------------------------------------------------------------------


def test_novelty_is_the_divergence_per_bin_of_eight_averaged_frames(folder):
    dictionary = ondes.load(folder / "tones.ondes")
    sources = Sources.of({"tones": dictionary})
    samples = tones(200, 4)
    novelty = Novelty(sources)
    found = np.concatenate([novelty.push(samples), novelty.flush()])
    power = dictionary.audio.stft.power(samples)[:, : dictionary.audio.n_bins]
    averaged = np.sqrt(power[FRAMES_AVERAGED : 2 * FRAMES_AVERAGED].mean(axis=0, keepdims=True))
    levelled = averaged.astype(np.float64) / averaged.mean()
    h = np.full((1, 6), levelled.sum() / 6)
    w = dictionary.components
    slope = dictionary.estimator.sparsity * np.sqrt((w**2).sum(axis=1))
    for _ in range(3000):
        h *= (levelled / (h @ w + 1e-6)) @ w.T / (w.sum(axis=1) + slope)
    model, target = h @ w + 1e-6, levelled + 1e-6
    expected = np.mean(target * np.log(target / model) - target + model)
    assert found[1] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("backend", ["auto", "reference", pytest.param("torch", id="torch")])
def test_novelty_beside_a_separation_is_that_of_the_samples(folder, backend):
    if backend == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    dictionary = ondes.load(folder / "tones.ondes")
    model = Sources.of({"a": dictionary, "b": dictionary})
    samples = tones(200, 4)
    compute = Compute(backend, "cpu" if backend == "torch" else None)
    measured = MeasuredSources(model, SR, compute)
    separator = ondes.Separator(measured, compute=compute)
    found = []
    for part in np.array_split(samples, [100, 5000, 20000]):
        separator.push(part)
        found.append(measured.taken())
    separator.flush()
    found += [measured.taken(), measured.novelty.flush()]
    alone = Novelty(model)
    expected = np.concatenate([alone.push(samples), alone.flush()])
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-3)


def test_a_planted_sound_is_the_most_novel_moment(folder, tmp_path):
    samples = tones(180, 12)
    t = np.arange(SR) / SR
    samples[7 * SR : 8 * SR] += 0.1 * np.sin(2 * np.pi * (1000 + 2000 * t) * t)[:, None]
    soundfile.write(tmp_path / "night.wav", samples, SR)
    dictionary = ondes.load(folder / "tones.ondes")
    blocks = list(ondes.levels(tmp_path / "night.wav", dictionary, every=0.5))
    novelty = np.concatenate([block.novelty for block in blocks])
    start = np.concatenate([block.start for block in blocks])
    assert 6.5 <= start[novelty.argmax()] <= 8
    assert np.all(np.diff(start) == 0.5)


# ---- events and clock time ----------------------------------------------------------------------


def test_planted_events_are_found(folder, tmp_path):
    rng = np.random.default_rng(3)
    planted = [(2.0, 3.0), (5.5, 6.0), (6.3, 7.5), (11.0, 11.1)]
    samples = 1e-4 * rng.standard_normal(15 * SR)
    t = np.arange(len(samples)) / SR
    for start, end in planted:
        inside = (t >= start) & (t < end)
        samples += inside * 0.1 * rng.standard_normal(len(t)) * np.sin(2 * np.pi * 2000 * t)
    path = tmp_path / "SM4_20240131_235950.wav"
    soundfile.write(path, samples, SR)
    table, labels = tmp_path / "e.csv", tmp_path / "labels.txt"
    models = ("-d", folder / "tones.ondes", "-d", folder / "bursts.ondes")
    events = ("--threshold", -45, "--min-length", 0.4, "--min-gap", 0.5, "--every", 0.1)
    assert run("levels", path, *models, *events, "-o", table, "--labels", labels) == 0
    rows = [row for row in table_of(table) if row["source"] == "bursts"]
    found = [(float(row["start"]), float(row["end"])) for row in rows]
    expected = [(2.0, 3.0), (5.5, 7.5)]  # the pause is too short, and so is the last one
    np.testing.assert_allclose(found, expected, atol=0.21)
    assert rows[0]["time"].startswith("2024-01-31T23:59:5")
    assert all(-30 < float(row["level_db"]) < -15 for row in rows)
    lines = [line.split("\t") for line in labels.read_text().splitlines()]
    of_bursts = [(float(a), float(b)) for a, b, name in lines if name.startswith("bursts ")]
    np.testing.assert_allclose(of_bursts, found, atol=1e-5)


def test_the_frequencies_of_an_event_enclose_nine_tenths_of_its_power(folder, tmp_path):
    """Of a sweep from 1,500 to 1,800 Hz in one source, and of each component alone."""
    t = np.arange(6 * SR) / SR
    sweep = 0.1 * np.sin(2 * np.pi * (1500 + 75 * (t - 2)) * (t - 2)) * ((t >= 2) & (t < 4))
    samples = 1e-4 * np.random.default_rng(0).standard_normal(len(t)) + sweep
    soundfile.write(tmp_path / "a.wav", samples, SR)
    models = ("-d", folder / "tones.ondes", "-d", folder / "bursts.ondes")
    given = ("levels", tmp_path / "a.wav", "--every", 0.1, "--threshold", -30, "-o")
    assert run(*given, tmp_path / "e.txt", *models) == 0
    lines = (tmp_path / "e.txt").read_text().splitlines()
    events = list(csv.DictReader(lines, delimiter="\t"))
    assert events
    for event in events:  # whichever source it is taken for
        begin, end = (float(event[f"{which} Time (s)"]) for which in ("Begin", "End"))
        assert float(event["Low Freq (Hz)"]) == pytest.approx(1500 + 150 * (begin - 2), abs=50)
        assert float(event["High Freq (Hz)"]) == pytest.approx(1500 + 150 * (end - 2), abs=50)
    assert run(*given, tmp_path / "e.csv", *models, "--by", "component") == 0
    sources = Sources.of(
        {name: ondes.load(folder / f"{name}.ondes") for name in ("tones", "bursts")}
    )
    for row in table_of(tmp_path / "e.csv"):
        spectrum = sources.dictionary[int(row["component"])] ** sources.exponent
        hertz = np.arange(len(spectrum)) * SR / 512
        low, high = float(row["low_hz"]), float(row["high_hz"])
        inside = spectrum[(hertz > low - SR / 512) & (hertz < high + SR / 512)].sum()
        outside = spectrum[(hertz < low - SR / 512) | (hertz > high + SR / 512)].sum()
        assert inside >= 0.9 * spectrum.sum()
        assert outside <= 0.1 * spectrum.sum()


@pytest.mark.parametrize("loud", [np.nan, np.inf, 3e38])
def test_nothing_but_numbers_is_written(folder, tmp_path, capfd, loud):
    samples = tones(200, 3)
    samples[2 * SR] = loud
    soundfile.write(tmp_path / "a.wav", samples, SR, subtype="FLOAT")
    for models in (("tones",), ("tones", "bursts")):
        given = [each for name in models for each in ("-d", folder / f"{name}.ondes")]
        given = ("levels", tmp_path / "a.wav", *given, "-o", tmp_path / "t.csv", "--force")
        assert run(*given) in (1, 3)
        assert "a.wav: " in capfd.readouterr().err
        if (tmp_path / "t.csv").exists():
            assert "nan" not in (tmp_path / "t.csv").read_text()


def block_of(levels, every=1.0, first=0.0, recording="a.wav"):
    start = first + every * np.arange(len(levels))
    table = np.array(levels, dtype=float)[:, None]
    return LevelBlock(recording, ("x",), start, start + every, table, np.zeros(len(levels)))


def test_events_do_not_depend_on_how_blocks_are_cut():
    rng = np.random.default_rng(0)
    levels = rng.choice([-60.0, -20.0, -10.0], size=200, p=[0.6, 0.2, 0.2])
    for min_length, min_gap in ((0, 0), (2, 0), (0, 3), (2.5, 2)):
        limits = {"min_length": min_length, "min_gap": min_gap}
        expected = []  # in plain loops
        for i in np.flatnonzero(levels > -40):
            if expected and (i - expected[-1][1] < min_gap or i == expected[-1][1]):
                expected[-1][1] = i + 1
            else:
                expected.append([i, i + 1])
        expected = [tuple(each) for each in expected if each[1] - each[0] >= min_length]
        for size in (200, 7, 1):
            blocks = [block_of(levels[i : i + size], first=i) for i in range(0, 200, size)]
            found = [(event.start, event.end) for event in find_events(blocks, -40, **limits)]
            assert found == expected
            assert all(e.level in (-20, -10) for e in find_events(blocks, -40, **limits))


def test_events_come_in_the_order_of_their_start():
    loud, quiet = -10.0, -80.0
    start = np.arange(4.0)
    levels = np.array([[loud, quiet], [loud, loud], [loud, quiet], [quiet, loud]])
    names = ("long", "short")
    whole = LevelBlock("a.wav", names, start, start + 1, levels, np.zeros(4))
    parts = [
        LevelBlock("a.wav", names, start[[i]], start[[i]] + 1, levels[[i]], np.zeros(1))
        for i in range(4)
    ]
    for blocks in ([whole], parts):
        found = [(event.name, event.start) for event in find_events(blocks, -40)]
        assert found == [("long", 0.0), ("short", 1.0), ("short", 3.0)]


def test_events_end_with_their_recording():
    blocks = [block_of([-10.0]), block_of([-10.0], recording="b.wav")]
    found = list(find_events(blocks, -40, min_gap=5))
    assert [(event.recording, event.end) for event in found] == [("a.wav", 1.0), ("b.wav", 1.0)]
    with pytest.raises(ValueError, match=r"threshold=nan must be a number"):
        EventFinder(float("nan"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("20240131_063000.WAV", datetime(2024, 1, 31, 6, 30)),
        ("20240131_063000T.WAV", datetime(2024, 1, 31, 6, 30)),
        ("pond/SMU03021_20240131_063000.wav", datetime(2024, 1, 31, 6, 30)),
        ("S4A01234_20191231_235959.wav", datetime(2019, 12, 31, 23, 59, 59)),
        ("2024-01-31T06-30-00.flac", datetime(2024, 1, 31, 6, 30)),
        ("site 2024-01-31 06-30-00.flac", datetime(2024, 1, 31, 6, 30)),
        ("2024_01_31_06_30_00_north.wav", datetime(2024, 1, 31, 6, 30)),
        ("2024-01-31T06:30:00+0100.wav", datetime(2024, 1, 31, 6, 30)),
        ("site_20240131T063000Z.wav", datetime(2024, 1, 31, 6, 30)),
        ("take_2.wav", None),
        ("20241331_063000.wav", None),
        ("20240131_250000.wav", None),
        ("1234567890123456.wav", None),
        ("stem.20240131.wav", None),
    ],
)
def test_clock_time_from_names(name, expected):
    assert clock_time(name) == expected


# ---- tables -------------------------------------------------------------------------------------


def test_all_formats_hold_the_same(folder, tmp_path, capfd):
    odd_name = tmp_path / 'a, "b"_20240131_063000.wav'
    odd_name.write_bytes((folder / "mix.wav").read_bytes())
    given = ("levels", odd_name, "-d", folder / "tones.ondes")
    assert run(*given, "-o", tmp_path / "t.csv") == 0
    assert run(*given, "-o", tmp_path / "t.npz") == 0
    capfd.readouterr()
    assert run(*given, "-o", "-") == 0
    text = capfd.readouterr().out
    assert text == (tmp_path / "t.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 7 * 6
    assert {row["file"] for row in rows} == {str(odd_name)}
    assert rows[6]["time"] == "2024-01-31T06:30:01.000"
    arrays = np.load(tmp_path / "t.npz")
    assert arrays["files"][arrays["file"]].tolist() == [row["file"] for row in rows]
    for name in ("start", "end", "level_db", "novelty", "component"):
        expected = [float(row[name]) for row in rows]
        np.testing.assert_allclose(arrays[name].astype(float), expected, atol=0.006)
    np.testing.assert_array_equal(arrays["time"], [np.datetime64(row["time"]) for row in rows])


def test_parquet(folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'tables' is not installed")
    for by, model in (("component", "groups"), ("source", "groups")):
        path, text = tmp_path / f"{by}.parquet", tmp_path / f"{by}.csv"
        given = ("levels", folder / "mix.wav", "-d", folder / f"{model}.ondes", "--by", by)
        assert run(*given, "-o", path) == run(*given, "-o", text) == 0
        columns, rows = parquet.read_table(path).to_pydict(), table_of(text)
        assert list(columns) == list(rows[0])
        assert list(map(str, columns[by])) == [row[by] for row in rows]
        assert set(columns["time"]) == {None}
        for name in ("start", "end", "level_db", "novelty"):
            np.testing.assert_allclose(columns[name], [float(r[name]) for r in rows], atol=0.006)


EVENTS = [
    Event("night/a.wav", "frog", 1.0, 2.5, -20.0, 0.5, 800.0, 1200.0),
    Event("night/a.wav", "=rain", 3.0, 4.0, -30.0),
]
NIGHT = datetime(2024, 1, 31, 23, 59, 58)


def written_events(path, layout=None, recordings=("night/a.wav",)):
    with table_writer(path, "source", events=True, layout=layout) as table:
        for recording in recordings:
            end = np.array([10.0])
            empty = np.zeros((1, 2))
            block = LevelBlock(recording, ("frog", "=rain"), end - 1, end, empty, end, NIGHT)
            table.write(rows_of_events(EVENTS, block))


def test_raven_reads_events_as_selections(tmp_path):
    written_events(tmp_path / "calls.txt", recordings=("night/a.wav", "night/b.wav"))
    lines = (tmp_path / "calls.txt").read_text().splitlines()
    rows = list(csv.DictReader(lines, delimiter="\t"))
    # The columns of the selection tables of Raven Pro 1.6; a sequence of files has one clock.
    assert lines[0].startswith(
        "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)"
    )
    assert [row["Selection"] for row in rows] == ["1", "2", "3", "4"]
    begins = [float(row["Begin Time (s)"]) for row in rows]
    np.testing.assert_allclose(begins, [1, 3, 11, 13])
    assert [float(row["File Offset (s)"]) for row in rows] == [1, 3, 1, 3]
    assert [row["Begin Path"] for row in rows[1:3]] == [
        str(Path(f"night/{name}.wav").absolute()) for name in "ab"
    ]
    first, second = rows[:2]
    assert (first["Low Freq (Hz)"], first["High Freq (Hz)"]) == ("800.0", "1200.0")
    assert (first["View"], first["Channel"]) == ("Spectrogram 1", "1")
    assert (first["Annotation"], second["Annotation"]) == ("frog", "=rain")
    assert second["Low Freq (Hz)"] == ""


def test_a_recording_without_a_folder_is_not_looked_for_where_the_program_runs(tmp_path):
    written_events(tmp_path / "calls.txt", recordings=("dropped.wav",))
    rows = csv.DictReader((tmp_path / "calls.txt").read_text().splitlines(), delimiter="\t")
    assert {row["Begin Path"] for row in rows} == {"dropped.wav"}
    written_events(tmp_path / "calls.csv", "kaleidoscope", recordings=("dropped.wav",))
    assert {(row["INDIR"], row["IN FILE"]) for row in table_of(tmp_path / "calls.csv")} == {
        ("", "dropped.wav")
    }


def test_kaleidoscope_reads_events(tmp_path):
    written_events(tmp_path / "calls.csv", "kaleidoscope")
    first, second = table_of(tmp_path / "calls.csv")
    assert (first["INDIR"], first["IN FILE"]) == (str(Path("night").absolute()), "a.wav")
    assert (float(first["OFFSET"]), float(first["DURATION"])) == (1, 1.5)
    assert (first["Fmin"], first["Fmax"], first["TOP1MATCH"]) == ("800", "1200", "frog")
    assert (second["DATE"], second["TIME"]) == ("2024-02-01", "00:00:01")


def test_audacity_reads_frequencies_as_spectral_selections(tmp_path):
    write_labels(tmp_path / "a.txt", EVENTS)
    assert (tmp_path / "a.txt").read_text().splitlines() == [
        "1.000000\t2.500000\tfrog −20.0 dB",
        "\\\t800.000000\t1200.000000",
        "3.000000\t4.000000\t=rain −30.0 dB",
    ]


def test_other_tables_of_events_have_frequencies_too(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'tables' is not installed")
    for suffix in ("csv", "npz", "parquet"):
        written_events(tmp_path / f"e.{suffix}")
    assert [row["high_hz"] for row in table_of(tmp_path / "e.csv")] == ["1200", ""]
    np.testing.assert_array_equal(np.load(tmp_path / "e.npz")["low_hz"], [800, np.nan])
    columns = parquet.read_table(tmp_path / "e.parquet").to_pydict()
    assert (columns["low_hz"][0], columns["source"]) == (800, ["frog", "=rain"])


def test_names_command_neither_a_terminal_nor_a_spreadsheet(tmp_path):
    one = np.ones(1)
    for recording in ("\x1b]0;owned\x07.wav", "=cmd|' /C calc'!A0", "-2+3.wav", "@SUM(A1)", "a\nb"):
        with table_writer(tmp_path / "t.csv", "source", force=True) as table:
            row = Rows(recording, None, (f"+{recording}",), np.zeros(1, int), *4 * [one])
            table.write(row)
        text = (tmp_path / "t.csv").read_text()
        assert text.replace("\n", "").isprintable()
        ((file, *_, source, _level, _novelty),) = list(csv.reader(io.StringIO(text)))[1:]
        assert not file.startswith(("=", "+", "-", "@"))
        assert not source.startswith(("=", "+", "-", "@"))
        assert file.lstrip("'") == "".join(
            c if c.isprintable() else ascii(c)[1:-1] for c in recording
        )


def test_one_source_alone(folder, tmp_path):
    models = ("-d", folder / "tones.ondes", "-d", folder / "bursts.ondes")
    given = ("levels", folder / "mix.wav", *models)
    assert run(*given, "-o", tmp_path / "all.csv") == 0
    assert run(*given, "--source", "bursts", "-o", tmp_path / "one.csv") == 0
    expected = [row for row in table_of(tmp_path / "all.csv") if row["source"] == "bursts"]
    assert table_of(tmp_path / "one.csv") == expected


def test_several_recordings_have_label_tracks_in_a_folder(folder, tmp_path, capfd):
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes((folder / "mix.wav").read_bytes())
    given = ("levels", tmp_path, "-d", folder / "tones.ondes", "--threshold", -60, "--labels")
    assert run(*given, tmp_path / "only.txt") == 2
    assert "is one file, and each of the 2 recordings gets its own; name a folder." in " ".join(
        capfd.readouterr().err.split()
    )
    assert run(*given, tmp_path / "tracks") == 0
    assert capfd.readouterr().out.split() == [
        str(tmp_path / "tracks" / name) for name in ("a.txt", "b.txt")
    ]


def test_a_missing_package_is_named(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("ondes.tables.writers.importlib.util.find_spec", lambda name: None)
    given = ("levels", folder / "mix.wav", "-d", folder / "tones.ondes")
    assert run(*given, "-o", tmp_path / "t.parquet") == 1
    assert capfd.readouterr().err == (
        "ondes: A Parquet table needs pyarrow: pip install 'ondes[tables]'.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_trained_separator_has_levels_of_its_sources(folder, tmp_path):
    separator = TrainedSeparator(
        ("a", "b"), AudioSettings(SR, Stft(32, 8), spectrum="magnitude"), weights()
    )
    separator.save(tmp_path / "t.ondes")
    model = ("-d", tmp_path / "t.ondes")
    assert run("separate", folder / "mix.wav", *model, "-o", tmp_path) == 0
    assert run("levels", folder / "mix.wav", *model, "-o", tmp_path / "t.csv") == 0
    for row in table_of(tmp_path / "t.csv"):
        stem, sr = soundfile.read(tmp_path / "mix" / f"{row['source']}.wav")
        first, last = round(float(row["start"]) * sr), round(float(row["end"]) * sr)
        expected = decibels(np.mean(stem[first:last] ** 2))
        assert float(row["level_db"]) == pytest.approx(expected, abs=0.1)
        assert row["novelty"] == ""
    assert run("levels", folder / "mix.wav", *model, "-o", "-", "--by", "component") == 2


# ---- what goes wrong ----------------------------------------------------------------------------


def test_files_that_fail_are_named_and_the_others_measured(folder, tmp_path, capfd):
    (tmp_path / "noise.wav").write_bytes(b"no sound at all")
    soundfile.write(tmp_path / "silence.wav", np.zeros(SR), SR)
    table = tmp_path / "t.csv"
    files = (tmp_path / "missing.wav", tmp_path / "noise.wav", tmp_path / "silence.wav")
    given = ("-d", folder / "tones.ondes", "-o", table, "--json")
    assert run("levels", *files, folder / "mix.wav", *given) == 3
    printed = capfd.readouterr()
    result = json.loads(printed.out)
    assert (result["n_files"], result["n_failed"], result["rows"]) == (4, 2, 48)
    assert "missing.wav: does not exist." in printed.err
    assert "noise.wav: " in printed.err
    rows = table_of(table)
    assert {row["level_db"] for row in rows if row["file"].endswith("silence.wav")} == {"-inf"}


def test_nothing_is_written_where_nothing_can_be_measured(folder, tmp_path, capfd):
    (tmp_path / "noise.wav").write_bytes(b"no sound at all")
    given = ("-d", folder / "tones.ondes", "-o", tmp_path / "t.csv")
    assert run("levels", tmp_path / "noise.wav", *given) == 1
    assert capfd.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["noise.wav"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((), "Nothing to write"),
        (("-o", "t.csv", "--min-gap", "1"), "--min-gap needs --threshold"),
        (("--labels", "l.txt"), "--labels needs --threshold"),
        (("-o", "-", "--json"), "-o - and --json both need standard output"),
        (("-o", "t.xlsx"), "t.xlsx: is not a table: choose one of .csv, .parquet, .npz, .txt."),
        (("-o", "t.txt"), "A table for Raven lists events: give --threshold"),
        (("-o", "t.csv", "--format", "kaleidoscope"), "A table for Kaleidoscope lists events"),
        (("-o", "t.csv", "--format", "raven"), "t.csv: is not a name for raven: it must end in"),
        (("-o", "-", "--format", "npz"), "takes text only; name a file that ends in .npz"),
        (("--format", "npz", "--labels", "l", "--threshold", "0"), "--format needs -o"),
        (("-o", "t.csv", "--source", "9"), "--source 9 is not one of the components: 0 to 5."),
        (("--labels", "-", "--threshold", "0"), "cannot be written to standard output"),
        (("-o", "t.txt", "--labels", "t.txt", "--threshold", "0"), "name the same file"),
        (("-o", "t.csv", "--every", "0"), "--every"),
        (("-o", "t.csv", "--every", "1e-9"), "--every"),
    ],
)
def test_wrong_usage_is_one_sentence(folder, tmp_path, monkeypatch, capfd, given, reason):
    monkeypatch.chdir(tmp_path)
    model = ("-d", folder / "tones.ondes")
    assert run("levels", folder / "mix.wav", *model, *given) in (1, 2)
    assert reason in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_table_needs_force(folder, tmp_path, capfd):
    table = tmp_path / "t.csv"
    table.write_text("precious")
    given = ("levels", folder / "mix.wav", "-d", folder / "tones.ondes", "-o", table)
    assert run(*given) == 1
    assert "t.csv: exists already" in capfd.readouterr().err
    assert table.read_text() == "precious"
    assert run(*given, "--force") == 0
    assert table.read_text().startswith("file,")


def test_arguments_are_checked_and_errors_raised(folder, tmp_path):
    model = ondes.load(folder / "tones.ondes")
    with pytest.raises(ValueError, match=r"every=0 must be a positive number of seconds\."):
        list(ondes.levels(folder / "mix.wav", model, every=0))
    with pytest.raises(ValueError, match=r"every=1e-09 must be at least 0\.001 seconds\."):
        list(ondes.levels(folder / "mix.wav", model, every=1e-9))
    with pytest.raises(ValueError, match=r"by='bin' must be 'component' or 'source'\."):
        list(ondes.levels(folder / "mix.wav", model, by="bin"))
    with pytest.raises(ondes.FileError, match=r"no\.wav: "):
        list(ondes.levels(tmp_path / "no.wav", model))
    errors = []
    files = [tmp_path / "no.wav", folder / "mix.wav"]
    blocks = list(ondes.levels(files, model, on_error=errors.append))
    assert len(errors) == 1
    assert sum(map(len, blocks)) == 7
    assert blocks[0].names == tuple("012345")


def test_a_part_of_a_recording(folder):
    model = ondes.load(folder / "tones.ondes")
    (block,) = ondes.levels(folder / "mix.wav", model, start=2, end=4.4, every=1)
    assert block.start.tolist() == [2, 3, 4]
    assert block.end.tolist() == [3, 4, 4.4]
    for end in (3.99, 4, 4.01):
        (block,) = ondes.levels(folder / "mix.wav", model, start=2, end=end, every=0.5)
        assert len(block) == 4 + (end > 4)
        assert np.all(block.levels[:, 0] < 0)


# ---- memory -------------------------------------------------------------------------------------


def peak_of(command):
    """Peak memory of a process, in KiB."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, *map(str, command)],
        capture_output=True, check=True, text=True, timeout=300,
    )  # fmt: skip
    measured = json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
    assert measured["status"] == 0, done.stderr
    return measured["peak_kib"]


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs a system that counts memory")
def test_memory_does_not_grow_with_the_recording(folder, tmp_path):
    peaks = {}
    for minutes in (1, 8):
        path = tmp_path / f"{minutes}.wav"
        rng = np.random.default_rng(0)
        with soundfile.SoundFile(path, "w", SR, 1) as file:
            for _ in range(minutes):
                file.write(0.1 * rng.standard_normal(60 * SR))
        command = [sys.executable, "-m", "ondes", "levels", path, "-d", folder / "tones.ondes"]
        command += ["-o", tmp_path / f"{minutes}.npz", "-j", 1, "--every", 0.02]
        peaks[minutes] = peak_of(command)
    assert peaks[8] < 1.15 * peaks[1], peaks


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs a system that counts memory")
def test_many_tiny_recordings_take_no_more_memory_as_parquet(folder, tmp_path):
    pytest.importorskip("pyarrow", reason="the extra 'tables' is not installed")
    recordings = tmp_path / "tiny"
    recordings.mkdir()
    for n in range(150):
        soundfile.write(recordings / f"{n}.wav", bursts(0.5, seed=n), SR)
    models = ("-d", folder / "tones.ondes", "-d", folder / "bursts.ondes")
    command = [sys.executable, "-m", "ondes", "levels", recordings, *models, "-j", 1]
    peaks = {
        suffix: peak_of([*command, "-o", tmp_path / f"t.{suffix}"]) for suffix in ("csv", "parquet")
    }
    assert peaks["parquet"] < peaks["csv"] + 130 * 1024, peaks  # of it, pyarrow itself takes 100


def test_threads_do_not_change_the_result(folder):
    sources = Sources.of(ondes.load(folder / "groups.ondes"))
    samples = tones(200, 6)
    each = []
    for n_jobs in (1, 3):
        heard = ComponentEnergies(sources, compute=Compute(n_jobs=n_jobs))
        each.append(np.concatenate([heard.push(samples), heard.flush()]))
    np.testing.assert_array_equal(*each)
