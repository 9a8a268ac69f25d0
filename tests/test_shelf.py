"""The separators that come with ondes: the network in NumPy, the files, and commands without -d."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from hostile_server import hostile_server
from loopback import serving

import ondes
from ondes.models.band_network import AROUND, PART, BandMasks, BandWeights
from ondes.models.loading import FOLDER, SHELF, from_shelf

SR = 16000


def weights(n_sources=2, seed=0):
    """Three bands of two bins and one of five, four sweeps."""
    rng = np.random.default_rng(seed)

    def some(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float16)

    widths, n_channels, n_states, n_hidden = ((3, 2), (1, 5)), 4, 3, 6
    return BandWeights(
        tuple(some(n, width, n_channels) for n, width in widths),
        some(4, n_channels),
        some(4, n_channels, 6 * n_states),
        some(4, 6 * n_states),
        some(4, 2 * n_states, n_channels),
        tuple(some(n, n_channels, n_hidden) for n, _ in widths),
        tuple(some(n, 1, n_hidden) for n, _ in widths),
        tuple(some(n, n_hidden, n_sources * width) for n, width in widths),
        tuple(some(n, 1, n_sources * width) for n, width in widths),
    )


def magnitudes(n_frames, n_bins=11, seed=0):
    return np.random.default_rng(seed).exponential(size=(n_frames, n_bins)).astype(np.float32)


def masks_in_plain_loops(given, frames):
    """The definition, number by number, in float64; one part."""
    frames = frames.astype(np.float64)
    power = frames**2 / np.mean(frames**2) + 1e-10
    n_frames, n_bands = len(frames), len(given.place)
    x = np.zeros((n_frames, n_bands, given.place.shape[1]))
    bands, first = [], 0
    for group, rows in enumerate(given.embedding):
        for number, matrix in enumerate(rows.astype(float)):
            bins = slice(first, first + len(matrix))
            x[:, len(bands)] = power[:, bins] ** 0.125 @ matrix + given.place[len(bands)]
            bands.append((group, number, bins))
            first += len(matrix)

    def normal(vector):
        return vector / np.sqrt(np.mean(vector**2) + 1e-5)

    n_states = given.outwards.shape[1]
    for sweep in range(len(given.inwards)):
        a, b, c = (w[sweep].astype(float) for w in (given.inwards, given.bias, given.outwards))
        lines = [[(t, k) for t in range(n_frames)] for k in range(n_bands)]
        if sweep % 2:
            lines = [[(t, k) for k in range(n_bands)] for t in range(n_frames)]
        change = np.zeros_like(x)
        for line in lines:
            gates = np.array([normal(x[place]) @ a + b for place in line])
            keep = 1 / (1 + np.exp(-gates[:, :n_states]))
            new, gain = gates[:, n_states : 2 * n_states], np.maximum(gates[:, 2 * n_states :], 0)
            state = np.zeros_like(new)
            for i in range(n_states):
                order = range(len(line)) if i < n_states // 2 else reversed(range(len(line)))
                h = 0.0
                for n in order:
                    h = keep[n, i] * h + (1 - keep[n, i]) * new[n, i]
                    state[n, i] = h
            for n, place in enumerate(line):
                change[place] = (state[n] * gain[n]) @ c
        x += change
    masks = np.zeros((given.n_sources, n_frames, given.n_bins))
    for k, (group, number, bins) in enumerate(bands):
        for t in range(n_frames):
            between = normal(x[t, k]) @ given.hidden[group][number].astype(float)
            between = np.maximum(between + given.hidden_bias[group][number, 0], 0)
            logits = between @ given.mask[group][number].astype(float)
            logits += given.mask_bias[group][number, 0]
            each = np.exp(logits.reshape(given.n_sources, -1))
            masks[:, t, bins] = each / each.sum(axis=0)
    return masks


def all_masks(stream, frames, cuts=()):
    parts = [stream.push(part) for part in np.split(frames, cuts)]
    return np.concatenate([*parts, stream.flush()], axis=1)


def test_masks_are_what_the_definition_says_in_plain_loops():
    frames = magnitudes(40)
    found = all_masks(BandMasks(weights()), frames)
    np.testing.assert_allclose(found, masks_in_plain_loops(weights(), frames), atol=1e-5)


def test_later_parts_are_computed_from_the_frames_around_them_alone():
    frames = magnitudes(2 * PART + 50)
    found = all_masks(BandMasks(weights()), frames)
    around = frames[PART - AROUND : 2 * PART + AROUND]
    expected = masks_in_plain_loops(weights(), around)[:, AROUND : AROUND + PART]
    np.testing.assert_allclose(found[:, PART : 2 * PART], expected, atol=1e-5)


@pytest.mark.parametrize("n_frames", [0, 1, PART, PART + AROUND, 3 * PART + 7])
def test_masks_do_not_depend_on_the_cut_or_the_threads_and_come_in_time(n_frames):
    frames = magnitudes(n_frames)
    expected = all_masks(BandMasks(weights()), frames)
    assert expected.shape[1] == n_frames
    for n_threads in (1, 2, 3):
        stream, n_out, parts = BandMasks(weights(), n_threads), 0, []
        for first in range(0, n_frames, 61):
            parts.append(stream.push(frames[first : first + 61]))
            n_out += parts[-1].shape[1]
            assert min(first + 61, n_frames) - n_out <= stream.delay
        parts.append(stream.flush())
        assert np.array_equal(np.concatenate(parts, axis=1), expected)


def test_masks_sum_to_one_at_any_volume_and_in_silence():
    frames = magnitudes(100)
    frames[10:50] = 0
    expected = all_masks(BandMasks(weights()), frames)
    np.testing.assert_allclose(expected.sum(axis=0), 1, atol=1e-5)
    for volume in (1e-20, 1e30):
        scaled = all_masks(BandMasks(weights()), frames * np.float32(volume))
        np.testing.assert_allclose(scaled, expected, atol=1e-3)
    silent = all_masks(BandMasks(weights()), np.zeros_like(frames))
    np.testing.assert_allclose(silent.sum(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"place": np.zeros((3, 4), np.float16)},
        {"place": np.zeros((4, 4), np.float32)},
        {"bias": np.full((4, 18), np.nan, np.float16)},
        {"inwards": np.zeros((4, 4, 17), np.float16)},
        {"outwards": np.zeros((4, 5, 4), np.float16)},
        {"mask": ()},
        {"mask": weights().mask[::-1]},
        {"embedding": weights().embedding[:1]},
    ],
)
def test_weights_that_could_do_harm_are_refused(change):
    with pytest.raises(ValueError, match=r"its |it has|argument"):
        replace(weights(), **change)


# ---- the shelf ----


def test_the_shelf_is_small_and_says_what_it_was_made_from():
    files = sorted(FOLDER.glob("*.ondes"))
    assert [file.stem for file in files] == sorted(SHELF)
    assert sum(file.stat().st_size for file in files) <= 8e6
    text = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in text for name in SHELF)
    assert "GPL" in text


@pytest.mark.parametrize("sr", [16000, 22050])
@pytest.mark.parametrize("shape", [(30000,), (30000, 2), (0,)])
def test_stems_of_the_shelf_sum_to_the_mixture(shape, sr):
    mixture = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    stems = ondes.separate(mixture, sr=sr)
    assert list(stems) == ["speech", "music", "effects"]
    np.testing.assert_allclose(sum(stems.values()), mixture, atol=1e-5)


def test_a_steady_hiss_is_no_voice():
    hiss = 0.1 * np.random.default_rng(0).standard_normal(2 * SR).astype(np.float32)
    assert np.sum(ondes.denoise(hiss, SR) ** 2) < 0.01 * np.sum(hiss**2)


def run(folder, *arguments, status=0):
    command = [sys.executable, "-m", "ondes", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    samples = 0.1 * np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    soundfile.write(tmp_path / "mix.wav", samples, SR, subtype="FLOAT")
    return tmp_path


def test_commands_without_a_model_use_the_shelf_and_say_so(folder):
    done = run(folder, "separate", "mix.wav", "-o", "stems")
    (line,) = done.stderr.splitlines()
    assert "'talk'" in line
    assert "ondes train" in line
    stems = [soundfile.read(file)[0] for file in sorted((folder / "stems/mix").iterdir())]
    np.testing.assert_allclose(sum(stems), soundfile.read(folder / "mix.wav")[0], atol=1e-5)
    run(folder, "separate", "mix.wav", "-d", "talk", "-o", "named")
    for file in (folder / "stems/mix").iterdir():
        named, _ = soundfile.read(folder / "named/mix" / file.name)
        assert np.array_equal(named, soundfile.read(file)[0])
    done = run(folder, "denoise", "mix.wav", "-o", "clean.wav")
    (line,) = done.stderr.splitlines()
    assert "'denoise'" in line
    assert "--noise" in line
    run(folder, "denoise", "mix.wav", "-d", "talk", "-o", "other.wav")
    assert soundfile.info(folder / "other.wav").frames == 20000


def test_several_recordings_are_denoised_into_a_folder_and_a_bad_one_is_named(folder):
    for name in ("a/one.wav", "a/two.wav", "b/one.wav", "bad.wav"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((folder / "mix.wav").read_bytes() if "bad" not in name else b"")
    done = run(folder, "denoise", "a", "bad.wav", "mi*.wav", "-o", "clean", "--json", status=3)
    found = json.loads(done.stdout)
    files = [each["file"] for each in found["recordings"]]
    assert files == [f"clean/{name}-denoised.wav" for name in ("one", "two", "mix")]
    assert (found["n_files"], found["n_failed"]) == (4, 1)
    assert found["failures"][0]["file"] == "bad.wav"
    assert sum("bad.wav" in line for line in done.stderr.splitlines()) == 1
    run(folder, "denoise", "mix.wav", "-o", "alone.wav")
    alone, _ = soundfile.read(folder / "alone.wav")
    assert all(np.array_equal(soundfile.read(folder / file)[0], alone) for file in files)
    run(folder, "denoise", "mix.wav", "-o", "slash/")
    run(folder, "denoise", "b", "-o", "slash")
    assert sorted(file.name for file in (folder / "slash").iterdir()) == [
        "mix-denoised.wav",
        "one-denoised.wav",
    ]
    (line,) = run(folder, "denoise", "bad.wav", "-o", "new/", status=1).stderr.splitlines()[1:]
    assert "bad.wav" in line
    assert not (folder / "new").exists()


def test_two_recordings_never_become_one_file(folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "mix.wav").write_bytes((folder / "mix.wav").read_bytes())
    done = run(folder, "denoise", "a", "b", "-o", "clean", status=2)
    assert "clean/mix-denoised.wav" in done.stderr
    assert not (folder / "clean").exists()
    ondes.learn(np.ones(8000, np.float32), 1, sr=8000).save(folder / "speech.ondes")
    done = run(folder, "denoise", "a", "-d", "speech.ondes", "-o", "x", status=1)
    (line,) = done.stderr.splitlines()
    assert "called 'speech'" in line


def test_the_models_are_listed_and_a_wrong_name_names_them(folder):
    listed = json.loads(run(folder, "models", "--json").stdout)["models"]
    assert listed == {name: list(from_shelf(name).names) for name in SHELF}
    (line,) = run(folder, "separate", "mix.wav", "-d", "tlak", status=1).stderr.splitlines()
    assert "talk, denoise" in line
    assert not (folder / "separated").exists()


def test_a_file_goes_before_the_shelf(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ondes.learn(np.ones(8000, np.float32), 1, sr=8000).save("talk")
    assert isinstance(ondes.load("talk"), ondes.Dictionary)
    assert list(ondes.separate(np.ones(100), sr=8000)) == ["speech", "music", "effects"]


# ---- models at URLs ----


@pytest.fixture
def served(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp", reason="needs the extra `remote`")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    (tmp_path / "www").mkdir()
    with serving(tmp_path / "www") as server:
        yield server.url, tmp_path / "www"


def test_a_model_at_a_url_is_that_of_the_file(folder, served):
    url, www = served
    for name, n in (("speech", 2), ("music", 3)):
        noise = np.random.default_rng(n).standard_normal(8000).astype(np.float32)
        ondes.learn(noise, n, sr=8000).save(www / f"{name}.ondes")
    assert np.array_equal(
        ondes.load(f"{url}/music.ondes").components, ondes.load(www / "music.ondes").components
    )
    both = ["-d", f"{url}/speech.ondes?download=true", "-d", f"tune={url}/music.ondes?a=b"]
    run(folder, "separate", "mix.wav", *both, "-o", "stems")
    assert sorted(file.name for file in (folder / "stems/mix").iterdir()) == [
        "speech.wav",
        "tune.wav",
    ]


def test_a_model_at_a_url_that_is_gone_damaged_or_none_is_one_sentence(folder, served):
    url, www = served
    kept = (FOLDER / "talk.ondes").read_bytes()
    (www / "damaged.ondes").write_bytes(kept[:-5000] + bytes(5000))
    (www / "cut.ondes").write_bytes(kept[: len(kept) // 2])
    (www / "flipped.ondes").write_bytes(kept[:99999] + b"!" + kept[100000:])
    (www / "page.ondes").write_text("<html>not found</html>")
    (www / "empty.ondes").write_bytes(b"")
    before = sorted(folder.iterdir())
    for name, reason in {
        "gone": "was not found on its server",
        "damaged": "is damaged or truncated",
        "cut": "is damaged or truncated",
        "flipped": "is damaged or truncated",
        "page": "is not an ondes model",
        "empty": "is not an ondes model",
    }.items():
        for command in ("separate", "denoise"):
            model = f"{url.replace('://', '://me:secret@')}/{name}.ondes"
            done = run(folder, command, "mix.wav", "-d", model, status=1)
            (line,) = done.stderr.splitlines()
            assert f"{name}.ondes: {reason}" in line
            assert "secret" not in line
    assert sorted(folder.iterdir()) == before


def test_no_answer_of_a_server_makes_a_model_or_fills_the_memory(monkeypatch):
    pytest.importorskip("aiohttp", reason="needs the extra `remote`")
    monkeypatch.setenv("no_proxy", "*")
    kept = (FOLDER / "denoise.ondes").read_bytes()
    for how in ("403", "longer", "shorter", "gzip", "another range", "nothing"):
        with hostile_server(kept, how) as server, pytest.raises(ondes.FileError) as caught:
            ondes.load(f"{server.url}/denoise.ondes")
        assert "\n" not in str(caught.value)


def test_silence_is_named_and_nothing_is_written(folder):
    soundfile.write(folder / "silent.wav", np.zeros((SR, 2)), SR, subtype="FLOAT")
    for command, output in (("separate", "stems"), ("denoise", "clean.wav")):
        done = run(folder, command, "silent.wav", "-o", output, status=1)
        assert "silent.wav: is silent" in done.stderr.splitlines()[-1]
    assert sorted(file.name for file in folder.iterdir()) == ["mix.wav", "silent.wav"]
    run(folder, "separate", "silent.wav", "mix.wav", "-o", "stems", status=3)
    assert [file.name for file in (folder / "stems").iterdir()] == ["mix"]
