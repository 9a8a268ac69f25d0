"""The studio on real songs, where they have been fetched."""

import os
from pathlib import Path

import numpy as np
import pytest

from ondes.studio.components import discover, propose
from ondes.studio.project import Project
from ondes.studio.recording import open_recording

SONGS = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"), "music", "wesnoth")


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
