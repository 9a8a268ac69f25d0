"""The studio on real songs, where they have been fetched."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

import ondes
from ondes.studio.components import discover, propose
from ondes.studio.project import Project
from ondes.studio.recording import kind_of, open_recording

RECORDINGS = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"))
SONGS = RECORDINGS / "music" / "wesnoth"
PROMPTS = RECORDINGS / "speech" / "asterisk_ru"


@pytest.mark.parametrize("name", ["sad.ogg", "battle-epic.ogg"])
def test_every_sound_of_a_song_is_heard_and_none_is_nearly_all_of_it(name, tmp_path):
    if not (SONGS / name).is_file():
        pytest.skip(f"no {SONGS / name}: set ONDES_RECORDINGS to a folder of recordings")
    recording = open_recording(SONGS / name, "r1", name, tmp_path)
    components = discover([recording], progress=lambda *_: None)
    assert components.shares.max() < 0.5
    assert (components.shares > 0.01).sum() >= components.n_parts / 2
    project = propose(components, [recording], 4, Project(model=0), progress=lambda *_: None)
    heard = [components.shares[list(group.components)].sum() for group in project.groups]
    assert heard == sorted(heard, reverse=True)
    assert np.sum(heard) == pytest.approx(1)


def _mono(path, sr):
    samples, own = ondes.read(path)
    return soxr.resample(samples.mean(axis=1) if samples.ndim > 1 else samples, own, sr)


@pytest.mark.parametrize("noise", ["ship.ogg", "campfire.ogg", "night.ogg", "birds1.ogg"])
@pytest.mark.parametrize("snr", [20, 5])
def test_a_talk_under_noise_is_speech(noise, snr, tmp_path):
    noise = RECORDINGS / "noise" / "wesnoth" / noise
    if not (PROMPTS.is_dir() and noise.is_file()):
        pytest.skip(f"no {PROMPTS} or {noise}: set ONDES_RECORDINGS to a folder of recordings")
    prompts = sorted(PROMPTS.rglob("*.flac"), key=lambda each: -each.stat().st_size)[:6]
    voice = np.concatenate([np.append(_mono(each, 16000), np.zeros(8000)) for each in prompts])
    around = np.resize(_mono(noise, 16000), len(voice))
    around *= np.std(voice) / np.std(around) * 10 ** (-snr / 20)
    soundfile.write(tmp_path / "talk.wav", 0.2 * (voice + around), 16000)
    recording = open_recording(tmp_path / "talk.wav", "r1", "talk.wav", tmp_path)
    assert kind_of([recording]) == "speech"


@pytest.mark.parametrize(
    "name", ["wesnoth/sad.ogg", "wesnoth/into_the_shadows.ogg", "ufoai/PsymongR4.ogg"]
)
def test_a_song_with_silences_is_music(name, tmp_path):
    song = SONGS.parent / name
    if not song.is_file():
        pytest.skip(f"no {song}: set ONDES_RECORDINGS to a folder of recordings")
    assert kind_of([open_recording(song, "r1", song.name, tmp_path)]) == "music"
