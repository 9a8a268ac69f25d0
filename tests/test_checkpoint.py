"""A checkpoint gives back exactly what was kept, or one sentence."""

from __future__ import annotations

import itertools
import json
import zipfile

import numpy as np
import pytest
from conftest import spectrogram
from hypothesis import given
from hypothesis import strategies as st

import ondes
from ondes import archive, checkpoint
from ondes.archive import ModelFileError
from ondes.checkpoint import Checkpoint
from ondes.model_file import CLASSES, AudioSettings, Provenance, load, save
from ondes.signal.batches import Batches
from ondes.signal.segments import Recording
from ondes.signal.stft import Stft

N_BINS = 17
CURVE = np.array([[50.0, 0.1 + 0.2], [120.0, 1 / 3]])


def of_sound(**settings):
    parameters = {"n_components": 3, "random_state": 0, "backend": "reference", **settings}
    model = ondes.OnlineISNMF(**parameters).partial_fit(spectrogram(120, N_BINS, 3, seed=5))
    model.audio_ = AudioSettings(8000, Stft(2 * (N_BINS - 1), 8, "sine"), None)
    model.provenance_ = Provenance(CURVE, ("a b.wav", "d\n.wav"), 2, 1, 120, 4.5, 1 / 3)
    return model


MODEL = of_sound()
RUN = {"passes": 2, "seed": 0, "raw": (44100, 2, "s16le")}
POSITION = {"recordings": [["a.wav", 8000, 96000], ["b", 0, None]], "loudest": [[0, 1 / 3]]}


def kept(model=MODEL, position=POSITION, settings=RUN, **others):
    return Checkpoint(model, position, settings, **others)


# ---- There and back ----

words = st.text(max_size=8) | st.just("ä\n\0\udcff")
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
names = st.text("abcdefghij_", min_size=1, max_size=8)
trees = st.recursive(
    plain | words,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(names, part, max_size=3),
    max_leaves=12,
)


@given(
    position=st.dictionaries(names, trees, max_size=4),
    settings=st.dictionaries(names, plain | words, max_size=4),
    failures=st.dictionaries(words, words, max_size=3),
    has_before=st.booleans(),
)
def test_all_of_a_run_comes_back_exactly(
    tmp_path_factory, position, settings, failures, has_before
):
    path = tmp_path_factory.mktemp("kept") / "c"
    before = Provenance(CURVE[:1], ("c.wav",), 1, 0, 50, 1.5, 0.25) if has_before else None
    checkpoint.write(path, kept(MODEL, position, settings, failures=failures, before=before))
    again = checkpoint.read(path)
    assert (again.position, again.settings) == (position, settings)
    assert list(again.failures.items()) == list(failures.items())
    assert (again.before is None) == (before is None)
    for one, other in ((before, again.before), (MODEL.provenance_, again.model.provenance_)):
        if one is not None:
            told = [dict(vars(each), learning_curve=None) for each in (one, other)]
            assert told[0] == told[1]
            assert one.learning_curve.tobytes() == other.learning_curve.tobytes()


def test_a_checkpoint_is_a_model_that_goes_on_bit_for_bit(tmp_path):
    model = of_sound()
    checkpoint.write(tmp_path / "c", kept(model))
    more = spectrogram(110, N_BINS, 3, seed=6)
    model.partial_fit(more)
    for again in (load(tmp_path / "c"), checkpoint.read(tmp_path / "c").model):
        again.partial_fit(more)
        assert again.components_.tobytes() == model.components_.tobytes()
        assert again.statistics_.numerator.tobytes() == model.statistics_.numerator.tobytes()


def test_the_position_in_very_many_recordings_is_kept(tmp_path):
    batches = Batches([], Stft(), 8000)
    batches.recordings = [Recording(f"{n}.wav", 8000, 16000, 63, mark="0") for n in range(300_000)]
    loudest = np.random.default_rng(0).exponential(size=300_000).astype(np.float32)
    state = batches.state() | {"loudest": [[n, float(each)] for n, each in enumerate(loudest)]}
    checkpoint.write(tmp_path / "c", kept(position=state))
    position = checkpoint.read(tmp_path / "c").position
    assert position == state
    batches.restore(position)
    batches.recordings[77_777] = Recording("77777.wav", 8000, 16001, 63, mark="0")
    del batches._inventory
    with pytest.raises(ValueError, match=r"^77777\.wav has 16001 samples .* had 16000"):
        batches.restore(position)


def test_the_last_one_is_replaced_and_nothing_else_is_left(tmp_path):
    for seed in range(3):
        checkpoint.write(tmp_path / "c", kept(settings={"seed": seed}))
    assert checkpoint.read(tmp_path / "c").settings == {"seed": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


# ---- What is no checkpoint ----


def test_every_flipped_byte_and_every_cut_is_found(tmp_path):
    path = tmp_path / "c"
    checkpoint.write(path, kept())
    whole = path.read_bytes()
    flipped = (bytes([*whole[:n], whole[n] ^ 16, *whole[n + 1 :]]) for n in range(len(whole)))
    for data in itertools.chain(
        itertools.islice(flipped, 0, None, 197), (whole[:n] for n in range(0, len(whole), 311))
    ):
        path.write_bytes(data)
        with pytest.raises(ModelFileError) as refusal:
            checkpoint.read(path)
        assert refusal.value.reason in (archive.DAMAGED, "is not an ondes model")


def forged(path, change):
    """Another valid archive, whose run was changed by hand."""
    checkpoint.write(path, kept(failures={"a.wav": "is gone"}))
    document = archive.unpack(path.read_bytes(), path, CLASSES)
    change(document["run"])
    path.write_bytes(archive.pack(document, CLASSES))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("position", [0, 1]),
        ("position", None),
        ("settings", "none"),
        ("failures", {"a.wav": 3}),
        ("failures", [["a.wav"]]),
        ("failures", [["a.wav", 3]]),
        ("failures", 7),
        ("before", CURVE),
        ("before", Stft(16)),
    ],
)
def test_a_run_made_by_hand_is_refused(tmp_path, name, value):
    path = tmp_path / "c"
    forged(path, lambda run: None)
    checkpoint.read(path)
    for change in (lambda run: run.update({name: value}), lambda run: run.pop(name)):
        forged(path, change)
        with pytest.raises(ModelFileError, match=r"^.*c: holds no valid checkpoint: .*\.$"):
            checkpoint.read(path)


def test_a_model_or_another_file_or_none_is_no_checkpoint(tmp_path):
    save(MODEL, tmp_path / "model")
    (tmp_path / "text").write_text("hello")
    for name, reason in {
        "model": "is a model and no checkpoint; name another file",
        "text": "is not an ondes model",
        "absent": "cannot be read (No such file or directory)",
    }.items():
        with pytest.raises(ModelFileError) as refusal:
            checkpoint.read(tmp_path / name)
        assert refusal.value.reason == reason


def test_the_run_is_plain_json_in_a_plain_zip(tmp_path):
    checkpoint.write(tmp_path / "c", kept())
    with zipfile.ZipFile(tmp_path / "c") as file:
        tree = json.loads(file.read("ondes.json"))
    assert tree["run"]["position"] == POSITION
    assert tree["run"]["settings"] == {**RUN, "raw": list(RUN["raw"])}


# ---- The same run ----


@pytest.mark.parametrize(
    "settings",
    [
        {"init": np.ones((3, N_BINS)), "background": np.full(N_BINS, 0.1)},
        {"penalty": ondes.L1(0.2), "solver": ondes.Solver(max_steps=4)},
    ],
)
@pytest.mark.parametrize(
    "workers", [{}, {"backend": "auto", "n_jobs": 2, "verbose": 1, "random_state": 3}]
)
def test_a_run_is_the_same_whoever_does_the_work(tmp_path, settings, workers):
    checkpoint.write(tmp_path / "c", kept(of_sound(**settings)))
    again = checkpoint.read(tmp_path / "c")
    checkpoint.check_same_run(tmp_path / "c", again, of_sound(**settings, **workers), RUN)


@pytest.mark.parametrize(
    ("settings", "run", "said"),
    [
        ({"batch_size": 99}, {}, "batch_size was 128 and is 99"),
        ({"penalty": ondes.L1(0.2)}, {}, "penalty was None and is L1(strength=0.2)"),
        ({"init": np.ones((3, N_BINS))}, {}, "init is not what it was"),
        ({}, {"passes": 3}, "passes was 2 and is 3"),
        ({}, {"raw": None}, "raw was [44100, 2, 's16le'] and is None"),
        ({}, {"n_shards": 8}, "n_shards was None and is 8"),
    ],
)
def test_another_setting_is_named(tmp_path, settings, run, said):
    checkpoint.write(tmp_path / "c", kept())
    again = checkpoint.read(tmp_path / "c")
    with pytest.raises(ModelFileError) as refusal:
        checkpoint.check_same_run(tmp_path / "c", again, of_sound(**settings), RUN | run)
    assert refusal.value.reason == (
        f"is of a run with another setting, {said}; give the same again, or delete the file to "
        "begin anew"
    )


def test_other_sound_is_named(tmp_path):
    checkpoint.write(tmp_path / "c", kept())
    again, other = checkpoint.read(tmp_path / "c"), of_sound()
    other.audio_ = AudioSettings(8000, Stft(2 * (N_BINS - 1), 4, "sine"), None)
    with pytest.raises(ModelFileError, match="hop_length was 8 and is 4"):
        checkpoint.check_same_run(tmp_path / "c", again, other, RUN)
