"""The studio's parts without a browser: project, chunks, pictures, export, saved work, guard."""

import subprocess
import sys
import zipfile

import numpy as np
import pytest
import soundfile
from test_separation import speech_like

import ondes
from ondes.demo_scene import make_scene
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.separation import Separator, Sources, separate
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft
from ondes.studio.project import History, Mix, Project
from ondes.studio.recording import kind_of, open_recording

SR = 22050


def untrained(n_bins, n_sources=2, n_components=3):
    """Weights of a separator that has learned nothing."""
    rng = np.random.default_rng(0)
    rows = rng.gamma(0.5, size=(3, n_sources * n_components, n_bins)).astype(np.float32) + 1e-3
    decoder = rng.gamma(0.5, size=(n_sources, 5, n_components, n_bins)).astype(np.float32)
    mixing = np.zeros((1, n_sources * n_components), np.float32)
    return UnfoldedWeights(rows, rows.sum(axis=2) + 1, decoder, mixing, (3,), 6, 2.5, 1e-4)


@pytest.fixture(scope="module")
def song(tmp_path_factory):
    """Four seconds of a band in stereo, where left and right differ."""
    scene = make_scene(seconds=4.0, sr=SR)
    stereo = np.stack([scene.mixture, scene.mixture - 0.5 * scene.stems["bass"]], axis=1)
    path = tmp_path_factory.mktemp("song") / "band.wav"
    soundfile.write(path, stereo, SR, subtype="FLOAT")
    return path


@pytest.fixture(scope="module")
def recording(song, tmp_path_factory):
    return open_recording(song, "r1", "band.wav", tmp_path_factory.mktemp("copies"))


@pytest.fixture(scope="module")
def components(recording):
    from ondes.studio.components import discover

    return discover([recording], 6, progress=lambda *_: None)


# ---- the project ----


def test_every_action_leaves_each_component_in_at_most_one_group():
    rng = np.random.default_rng(0)
    history = History(Project(model=0))
    for _ in range(300):
        project = history.present
        ids = [group.id for group in project.groups]
        chosen = rng.choice(8, size=rng.integers(1, 4), replace=False).tolist()
        action = rng.integers(6)
        if action == 0 or not ids:
            history.do(project.with_new_group(chosen))
        elif action == 1:
            history.do(project.moved(chosen, int(rng.choice(ids))))
        elif action == 2 and len(ids) > 1:
            history.do(project.merged(ids[0], ids[-1]))
        elif action == 3:
            history.do(project.without(int(rng.choice(ids))))
        elif action == 4:
            history.undo()
        else:
            history.redo()
        members = [each for group in history.present.groups for each in group.components]
        assert len(members) == len(set(members))
        names = [group.name for group in history.present.groups]
        assert len(names) == len(set(names))


def test_undo_returns_to_the_very_same_project():
    first = Project(model=0).with_new_group([0, 1], "bass").with_new_group([2], "drums")
    history = History(first)
    history.do(first.split(1, [1]))
    history.do(history.present.merged(2, 1))
    assert [group.components for group in history.present.groups] == [(1,), (2, 0)]
    history.undo()
    history.undo()
    assert history.present == first
    history.redo()
    assert [group.name for group in history.present.groups] == ["bass", "bass 2", "drums"]


@pytest.mark.parametrize("name", ["", "   ", "rest", "Bass", "BASS "])
def test_a_group_needs_a_name_of_its_own(name):
    project = Project(model=0).with_new_group([0], "bass").with_new_group([1], "drums")
    with pytest.raises(ValueError, match=r"\.$"):
        project.renamed(2, name)


def test_a_cache_keeps_within_its_bytes():
    pytest.importorskip("starlette")
    from ondes.studio.routes import BytesCache

    cache = BytesCache(1000)
    for n in range(50):
        assert cache.get(n, lambda n=n: bytes([n]) * 100) == bytes([n]) * 100
        assert cache.n_bytes <= 1000
    assert cache.get(49, lambda: pytest.fail("was made again")) == bytes([49]) * 100


# ---- sound ----


def _unpacked(data, n_parts, channels):
    peaks = np.frombuffer(data, "<f4", n_parts)
    samples = np.frombuffer(data, "<i2", offset=4 * n_parts).reshape(n_parts, channels, -1)
    return samples * (peaks / 32767)[:, None, None]


def test_chunks_are_the_whole_separation_cut_in_pieces(recording, components):
    from ondes.studio.playback import Listening, chunk

    listening = Listening.to([recording])
    assert (listening.rate, listening.channels) == (SR, 2)
    parts = [_unpacked(chunk(recording, listening, n, components.model), 6, 2) for n in range(5)]
    heard = np.concatenate(parts, axis=2)
    mixture, _ = soundfile.read(recording.path)
    assert heard.shape == (6, 2, len(mixture))
    stems = separate(mixture, components.model, sr=SR, spatial="none")
    for index in range(6):
        np.testing.assert_allclose(heard[index].T, stems[str(index)], atol=1e-4)
    np.testing.assert_allclose(heard.sum(axis=0).T, mixture, atol=3e-4)


def test_without_a_model_a_chunk_is_the_recording(recording):
    from ondes.studio.playback import Listening, chunk

    (left_right,) = _unpacked(chunk(recording, Listening(SR, 2), 1), 1, 2)
    mixture, _ = soundfile.read(recording.path)
    np.testing.assert_allclose(left_right.T, mixture[SR : 2 * SR], atol=1e-4)


def test_a_fast_recording_is_heard_at_a_rate_that_browsers_have(tmp_path):
    from ondes.studio.playback import Listening, chunk

    time = np.arange(96_000 * 3) / 96_000
    tone = 0.3 * np.sin(2 * np.pi * 440 * time)
    soundfile.write(tmp_path / "fast.wav", tone, 96_000, subtype="FLOAT")
    recording = open_recording(tmp_path / "fast.wav", "r1", "fast", tmp_path)
    listening = Listening.to([recording])
    assert (listening.rate, listening.channels) == (48_000, 1)
    parts = [_unpacked(chunk(recording, listening, n), 1, 1) for n in range(3)]
    heard = np.concatenate(parts, axis=2)[0, 0]
    expected = 0.3 * np.sin(2 * np.pi * 440 * np.arange(len(heard)) / 48_000)
    inner = slice(500, len(heard) - 500)
    assert abs(len(heard) - 3 * 48_000) <= 1
    np.testing.assert_allclose(heard[inner], expected[inner], atol=1e-3)


@pytest.mark.parametrize("suffix", ["ogg", "mp3", "flac"])
def test_any_part_of_a_compressed_recording_can_be_read(song, suffix, tmp_path):
    if suffix.upper() not in soundfile.available_formats():
        pytest.skip(f"this libsndfile does not write {suffix}")
    samples, _ = soundfile.read(song)
    path = tmp_path / f"song.{suffix}"
    soundfile.write(path, samples, SR)
    recording = open_recording(path, "r1", path.name, tmp_path)
    decoded, _ = ondes.read(path)
    assert recording.n_samples == len(decoded)
    for start in (0, 30_000, len(decoded) - 500):
        part = recording.samples(start, start + 10_000)
        np.testing.assert_allclose(part, decoded[start : start + 10_000], atol=1e-4)


def test_shares_are_the_energies_of_the_sounds(recording, components):
    mixture, _ = soundfile.read(recording.path)
    stems = separate(mixture, components.model, sr=SR, spatial="none")
    energies = np.array([np.square(stems[str(index)]).sum() for index in range(6)])
    np.testing.assert_allclose(components.shares, energies / energies.sum(), rtol=0.05)


# ---- pictures ----


def test_a_tile_shows_a_tone_where_it_is(tmp_path):
    from ondes.studio.tiles import BASE, COLUMNS, ROWS, Scale, tile

    time = np.arange(8 * SR) / SR
    tone = np.where((time > 2) & (time < 3), 0.5 * np.sin(2 * np.pi * 1000 * time), 0)
    soundfile.write(tmp_path / "tone.wav", tone, SR, subtype="FLOAT")
    recording = open_recording(tmp_path / "tone.wav", "r1", "tone", tmp_path)
    scales = (Scale(SR / 2), Scale(SR / 2, 0, is_linear=True), Scale(1500, 500, is_linear=True))
    for level, scale in enumerate(scales):
        shown = tile(recording, scale, level, 0)
        assert shown.shape == (ROWS, COLUMNS)
        row, column = np.unravel_index(shown.argmax(), shown.shape)
        edges = scale.edges()
        assert edges[max(row - 1, 0)] < 1000 < edges[row + 2]
        seconds = BASE * 2**level
        assert 2 <= (column + 0.5) * seconds <= 3
        assert shown.max() / 2 - 120 == pytest.approx(20 * np.log10(0.5), abs=1.5)
        before = shown[:, : int(1.8 / seconds)]
        assert before.max() == 0
    far = tile(recording, Scale(SR / 2), 8, 0)  # 4 s per column: pieces of it are read
    assert far[:, :2].max() > 200
    assert far[:, 2:].max() == 0


def test_component_tiles_are_parts_of_the_picture(recording, components):
    from ondes.studio.tiles import Scale, part_tiles, tile

    whole = tile(recording, Scale(SR / 2), 0, 0).astype(int)
    parts = part_tiles(recording, Scale(SR / 2), 0, 0, components.model).astype(int)
    assert parts.shape == (6, *whole.shape)
    assert (parts.max(axis=0) <= whole + 2).mean() > 0.99
    loud = whole > whole.max() - 60
    assert np.abs(parts.max(axis=0) - whole)[loud].mean() < 20


# ---- export and saved work ----


def test_stems_and_the_rest_sum_to_the_original(recording, components, tmp_path):
    from ondes.studio.export import Export, export_stems

    project = Project(model=0).with_new_group([0, 3], "a/b").with_new_group([1], "<b>")
    export = Export([recording], "wav", tmp_path, lambda *_: None)
    made = export_stems(export, components, project, [1, 2])
    assert made.name == "band - groups.zip"
    with zipfile.ZipFile(made.path) as archive:
        assert archive.namelist() == ["band - a_b.wav", "band - _b_.wav", "band - rest.wav"]
        archive.extractall(tmp_path)
    stems = [soundfile.read(tmp_path / name) for name in archive.namelist()]
    mixture, _ = soundfile.read(recording.path)
    assert {sr for _, sr in stems} == {SR}
    assert np.abs(sum(samples for samples, _ in stems) - mixture).max() < 1e-5
    expected = Sources.from_components(components.dictionary, {"a": [0, 3], "b": [1]})
    np.testing.assert_allclose(
        stems[0][0], separate(mixture, expected, sr=SR, spatial="none")["a"], atol=1e-6
    )


def test_the_mix_is_what_gains_mutes_and_solos_say(recording, components, tmp_path):
    from ondes.studio.export import Export, export_mix, gains_of

    project = Project(model=0).with_new_group([0, 1], "bass").with_new_group([2, 3], "drums")
    mix = Mix().changed("g1", gain=-6.0).changed("c1", mute=True).changed("g1", solo=True)
    mix = mix.changed("c5", solo=True)
    gains = gains_of(project, mix, 6)
    expected = [10 ** (-6 / 20), 0, 0, 0, 0, 1]
    np.testing.assert_allclose([gains[n] for n in range(6)], expected, rtol=1e-6)
    export = Export([recording], "flac", tmp_path, lambda *_: None)
    made = export_mix(export, components, gains)
    heard, _ = soundfile.read(made.path)
    mixture, _ = soundfile.read(recording.path)
    stems = separate(mixture, components.model, sr=SR, spatial="none")
    wanted = sum(gain * stems[str(n)] for n, gain in enumerate(expected))
    np.testing.assert_allclose(heard, wanted, atol=1e-5)


def test_saved_work_comes_back_and_separates_on_the_command_line(
    recording, components, song, tmp_path
):
    from ondes.studio.work_file import pack_work, read_work

    project = Project(model=0).with_new_group([0, 2], "bass & <co>").with_new_group([4], "ø")
    mix = Mix(amount=12.0).changed("g2", gain=-3.0, mute=True).changed("c1", solo=True)
    data = pack_work(project, mix, components, {"r1": recording}, {})
    path = tmp_path / "mine.ondes"
    path.write_bytes(data)
    work = read_work(path)
    assert work.on([recording]) == project
    assert work.mix == mix
    assert work.recordings[0]["path"] is None
    np.testing.assert_array_equal(work.dictionary.components, components.dictionary.components)
    assert sorted(set(ondes.load(path).groups)) == ["bass & <co>", "rest", "ø"]
    out = tmp_path / "out"
    command = [sys.executable, "-m", "ondes", "separate", song, "-d", path, "-o", out]
    subprocess.run(command, check=True, capture_output=True)
    assert sorted(each.name for each in out.rglob("*.wav")) == [
        "bass & <co>.wav", "rest.wav", "ø.wav",
    ]  # fmt: skip


def test_split_further_changes_one_group_alone(recording, components):
    from ondes.studio.components import split_further

    split, members = split_further(components, [1, 4], [recording], progress=lambda *_: None)
    assert members == (1, 4, 6, 7)
    others = [0, 2, 3, 5]
    np.testing.assert_array_equal(
        split.dictionary.components[others], components.dictionary.components[others]
    )
    assert split.n_parts == 8
    mixture, _ = soundfile.read(recording.path)
    before = separate(mixture, components.model, sr=SR, spatial="none")
    after = separate(mixture, split.model, sr=SR, spatial="none")
    group = sum(before[str(n)] for n in (1, 4))
    again = sum(after[str(n)] for n in members)
    assert np.square(again - group).sum() < 0.5 * np.square(group).sum()


def test_what_the_studio_computes_has_all_cores(recording, components, monkeypatch):
    from ondes.nmf import encoding
    from ondes.studio.components import learn_sound, propose, split_further
    from ondes.studio.project import Span

    asked = []

    def n_threads(n_jobs):
        asked.append(n_jobs)
        return 1

    monkeypatch.setattr(encoding, "n_threads", n_threads)
    quiet = {"progress": lambda *_: None}
    split_further(components, [1], [recording], **quiet)
    propose(components, [recording], 2, Project(model=0), **quiet)
    span = Span(recording.id, 0.5, 1.0)
    learn_sound(components, recording, span, (200.0, 2000.0), [recording], **quiet)
    assert set(asked) == {-1}


def test_a_voice_is_divided_from_the_noise_of_its_pauses(tmp_path):
    from ondes.studio.cleaning import by_noise, quietest
    from ondes.studio.project import Span

    rng = np.random.default_rng(0)
    time = np.arange(8 * 16000) / 16000
    syllables = np.sin(2 * np.pi * 3 * time) > 0
    tones = sum(np.sin(2 * np.pi * 150 * k * time) / k for k in range(1, 12))
    voice = np.where((time > 2) & syllables, 0.2 * tones, 0)
    noise = 0.05 * rng.standard_normal(len(time))
    soundfile.write(tmp_path / "talk.wav", voice + noise, 16000, subtype="FLOAT")
    recording = open_recording(tmp_path / "talk.wav", "r1", "talk", tmp_path)
    found = quietest(recording)
    assert found.end <= 2.05
    for pause in (Span("r1", 0.0, 2.0), found):
        separator = Separator(by_noise(recording, pause).model, sr=16000)
        pushed, flushed = separator.push(voice + noise), separator.flush()
        kept, removed = (np.concatenate([pushed[n], flushed[n]]) for n in separator.names)
        np.testing.assert_allclose(kept + removed, voice + noise, atol=1e-5)
        assert np.square(kept - voice).sum() < 0.7 * np.square(noise).sum()


def test_a_talk_a_song_and_recordings_of_the_field_are_told_apart(song, tmp_path):
    soundfile.write(tmp_path / "talk.wav", speech_like(20, 0), 16000)
    opened = {
        name: open_recording(path, "r1", name, tmp_path)
        for name, path in {
            "talk.wav": tmp_path / "talk.wav", "song.wav": song, "S4_20240131_060000.wav": song,
        }.items()
    }  # fmt: skip
    assert [kind_of([each]) for each in opened.values()] == ["speech", "music", "field"]
    assert kind_of([opened["song.wav"]] * 2) == "field"


def test_a_separator_cleans_where_one_of_its_sources_is_a_voice(tmp_path):
    from ondes.models.trained_separator import TrainedSeparator
    from ondes.studio.cleaning import by_separator
    from ondes.studio.work_file import read_work

    weights = untrained(n_bins=AudioSettings(8000, Stft(64)).n_bins)
    for names in (("music", "Speech"), ("music", "drums")):
        path = tmp_path / f"{names[1]}.ondes"
        TrainedSeparator(names, AudioSettings(8000, Stft(64)), weights).save(path)
        opened = read_work(path)
        assert opened.names == names
        if names[1] == "drums":
            with pytest.raises(ValueError, match="music, drums, but no speech"):
                by_separator(opened, path.name)
        else:
            assert by_separator(opened, path.name).voice == 1
