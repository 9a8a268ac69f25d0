"""Reading a checkpoint gives exactly what was written, or an error of one sentence."""

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
from ondes import AudioSettings, Dictionary, FileError, Stft
from ondes.learning import checkpoint
from ondes.learning.checkpoint import Checkpoint
from ondes.models import archive
from ondes.models.history import TrainingHistory
from ondes.models.model_file import CLASSES
from ondes.signal.schedule import Position, Schedule
from ondes.signal.survey import Recording

N_BINS = 17
CURVE = np.array([[50.0, 0.1 + 0.2], [120.0, 1 / 3]])


def learned(hop_length=8, **settings):
    """A small model of recordings."""
    parameters = {"n_components": 3, "random_state": 0, "backend": "reference", **settings}
    estimator = ondes.OnlineNMF(**parameters).partial_fit(spectrogram(120, N_BINS, 3, seed=5))
    audio = AudioSettings(8000, Stft(2 * (N_BINS - 1), hop_length, "sine"), None)
    history = TrainingHistory(CURVE, ("a b.wav", "d\n.wav"), 2, 1, 120, 4.5, 1 / 3)
    return Dictionary(estimator, audio, history)


MODEL = learned()
RUN = {"n_passes": 2, "random_state": 0, "raw": (44100, 2, "s16le")}
POSITION = {"recordings": [["a.wav", 8000, 96000], ["b", 0, None]], "loudest": [[0, 1 / 3]]}


def kept(model=MODEL, position=POSITION, settings=RUN, **others):
    return Checkpoint(model, position, settings, **others).document()


# ---- written and read ----

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
    before = TrainingHistory(CURVE[:1], ("c.wav",), 1, 0, 50, 1.5, 0.25) if has_before else None
    checkpoint.write(path, kept(MODEL, position, settings, failures=failures, before=before))
    again = checkpoint.read(path)
    assert (again.position, again.settings) == (position, settings)
    assert list(again.failures.items()) == list(failures.items())
    assert (again.before is None) == (before is None)
    for one, other in ((before, again.before), (MODEL.history, again.dictionary.history)):
        if one is not None:
            facts = [dict(vars(each), learning_curve=None) for each in (one, other)]
            assert facts[0] == facts[1]
            assert one.learning_curve.tobytes() == other.learning_curve.tobytes()


def test_a_checkpoint_is_a_model_that_continues_bit_for_bit(tmp_path):
    model = learned()
    checkpoint.write(tmp_path / "c", kept(model))
    more = spectrogram(110, N_BINS, 3, seed=6)
    expected = model.estimator.partial_fit(more)
    for again in (ondes.load(tmp_path / "c"), checkpoint.read(tmp_path / "c").dictionary):
        found = again.estimator.partial_fit(more)
        assert found.components_.tobytes() == expected.components_.tobytes()
        assert found.statistics_.numerator.tobytes() == expected.statistics_.numerator.tobytes()


def test_the_position_in_very_many_recordings_is_kept(tmp_path):
    n = 300_000
    recordings = [Recording(f"{each}.wav", 8000, 16000, 63, True, mark="0") for each in range(n)]
    audio = AudioSettings(8000, Stft())
    schedule, later = (
        Schedule(recordings, audio, batch_size=100, round_size=1000) for _ in range(2)
    )
    energies = np.random.default_rng(0).exponential(size=n).astype(np.float32).tolist()
    schedule.advance(Position(0, 3, n_read=3000, n_given=2, loudest=dict(enumerate(energies))))
    checkpoint.write(tmp_path / "c", kept(position=schedule.state()))
    assert (tmp_path / "c").stat().st_size < 100 * n
    position = checkpoint.read(tmp_path / "c").position
    later.restore(position)
    assert later.position == schedule.position
    recordings[77_777] = Recording("77777.wav", 8000, 16001, 63, True, mark="0")
    later = Schedule(recordings, audio, batch_size=100, round_size=1000)
    with pytest.raises(ValueError, match=r"^77777\.wav has 16001 samples .* had 16000"):
        later.restore(position)


def test_the_last_one_is_replaced_and_nothing_else_is_left(tmp_path):
    for seed in range(3):
        checkpoint.write(tmp_path / "c", kept(settings={"random_state": seed}))
    assert checkpoint.read(tmp_path / "c").settings == {"random_state": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


# ---- what is not a checkpoint ----


def test_every_flipped_byte_and_every_cut_is_found(tmp_path):
    path = tmp_path / "c"
    checkpoint.write(path, kept())
    whole = path.read_bytes()
    flipped = (bytes([*whole[:n], whole[n] ^ 16, *whole[n + 1 :]]) for n in range(len(whole)))
    for data in itertools.chain(
        itertools.islice(flipped, 0, None, 197), (whole[:n] for n in range(0, len(whole), 311))
    ):
        path.write_bytes(data)
        with pytest.raises(FileError) as refusal:
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
        with pytest.raises(FileError, match=r"^.*c: is not a valid checkpoint: .*\.$"):
            checkpoint.read(path)


def test_a_model_and_other_files_are_not_checkpoints(tmp_path):
    MODEL.save(tmp_path / "model")
    (tmp_path / "text").write_text("hello")
    for name, reason in {
        "model": "is a model, not a checkpoint; name another file",
        "text": "is not an ondes model",
        "absent": "cannot be read (No such file or directory)",
    }.items():
        with pytest.raises(FileError) as refusal:
            checkpoint.read(tmp_path / name)
        assert refusal.value.reason == reason


def test_the_run_is_plain_json_in_a_plain_zip(tmp_path):
    checkpoint.write(tmp_path / "c", kept())
    with zipfile.ZipFile(tmp_path / "c") as file:
        tree = json.loads(file.read("ondes.json"))
    assert tree["run"]["position"] == POSITION
    assert tree["run"]["settings"] == {**RUN, "raw": list(RUN["raw"])}


# ---- the same run ----


@pytest.mark.parametrize(
    "settings",
    [
        {"init": np.ones((3, N_BINS)), "background": np.full(N_BINS, 0.1)},
        {"penalty": ondes.L1(0.2), "solver": ondes.Solver(max_steps=4)},
    ],
)
@pytest.mark.parametrize(
    "compute",
    [{}, {"backend": "auto", "n_jobs": 2, "verbose": 1, "random_state": 3, "callback": print}],
)
def test_a_run_is_the_same_whatever_computes_it(tmp_path, settings, compute):
    checkpoint.write(tmp_path / "c", kept(learned(**settings)))
    again = checkpoint.read(tmp_path / "c")
    now = learned(**settings, **compute), RUN
    checkpoint.check_same_run(tmp_path / "c", (again.dictionary, again.settings), now)


@pytest.mark.parametrize(
    ("settings", "run", "change"),
    [
        ({"batch_size": 99}, {}, "batch_size was 128 and is 99"),
        ({"penalty": ondes.L1(0.2)}, {}, "penalty was None and is L1(strength=0.2)"),
        ({"init": np.ones((3, N_BINS))}, {}, "init has changed"),
        ({"hop_length": 4}, {}, "hop_length was 8 and is 4"),
        ({}, {"n_passes": 3}, "n_passes was 2 and is 3"),
        ({}, {"raw": None}, "raw was [44100, 2, 's16le'] and is None"),
        ({}, {"n_shards": 8}, "n_shards was None and is 8"),
    ],
)
def test_another_setting_is_named(tmp_path, settings, run, change):
    checkpoint.write(tmp_path / "c", kept())
    again = checkpoint.read(tmp_path / "c")
    before, now = (again.dictionary, again.settings), (learned(**settings), RUN | run)
    with pytest.raises(FileError) as refusal:
        checkpoint.check_same_run(tmp_path / "c", before, now)
    assert refusal.value.reason == (
        f"belongs to a run with another setting, {change}; give the same again, or delete the "
        "file to start over"
    )
