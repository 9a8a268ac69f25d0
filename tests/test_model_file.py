"""Reading a model file gives exactly what was saved, or an error of one sentence."""

from __future__ import annotations

import io
import itertools
import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from conftest import spectrogram

import ondes
from ondes import AudioSettings, Dictionary, FileError, OnlineNMF, Stft
from ondes.models import archive, model_file
from ondes.models.history import TrainingHistory
from ondes.nmf.forgetting import ConstantFactor
from ondes.nmf.problem import AbsoluteFloor
from ondes.nmf.statistics import Statistics

N_BINS = 17
EVERY_KIND = {
    "forgetting": [
        *(None, ondes.GrowingMemory(3.0), ondes.HalfLife(70.5), ondes.PerPass(0.3, 400)),
        ConstantFactor(0.25),
    ],
    "noise_floor": [1e-6, AbsoluteFloor(1e-3)],
    "prior": [20.0, Statistics(np.ones((3, N_BINS)), np.ones((3, N_BINS)), 0.0, 9.0)],
    "remainder": ["update", "carry"],
    "restarts": ["fresh", "warm"],
    "start": ["even", "random"],
    "penalty": [None, ondes.GroupLog(0.1), ondes.L1(0.2)],
    "dictionary_penalty": [None, ondes.LogSparsity(0.01), ondes.Smoothness(0.01)],
    "solver": [None, ondes.Solver.paper(3), ondes.Solver(max_steps=4, momentum=(0.0, 0.3))],
    "groups": [None, [0, 0, 1], np.array(["drums", "drums", "bass"])],
    "init": [
        "auto",
        "k-means++",
        "parts",
        "random",
        np.random.default_rng(1).exponential(size=(3, N_BINS)),
    ],
    "fixed_components": [None, np.arange(1.0, N_BINS + 1)],
    "background": [None, np.full(N_BINS, 0.01)],
    "random_state": [0, np.random.RandomState(3), None],
    "batch_size": [None, 50, np.int64(30)],
    "tol": [0.0, 1e-300],
    "beta_loss": ["itakura-saito"],
}


def learned(**settings):
    """A small dictionary of arrays."""
    parameters = {"n_components": 3, "random_state": 0, "backend": "reference", **settings}
    frames = spectrogram(120, N_BINS, 3, seed=5)
    return Dictionary(continued(OnlineNMF(**parameters), frames))


def continued(estimator, frames):
    """What `partial_fit` does, also with parameters that it refuses because only `fit` has them."""
    estimator.learn_batches(frames)
    return estimator


def of_recordings(**settings):
    """The same, as if learned from recordings."""
    curve = np.array([[50, 0.1 + 0.2], [120, 1 / 3]])
    return Dictionary(
        learned(**settings).estimator,
        AudioSettings(8000, Stft(2 * (N_BINS - 1), 8, "sine"), None),
        TrainingHistory(curve, ("a b.wav", "d\n.wav"), 2, 1, 120, 4.5, 1 / 3, "SIGINT"),
    )


def assert_same(one, other):
    assert one.components_.tobytes() == other.components_.tobytes()
    assert one.statistics_.numerator.tobytes() == other.statistics_.numerator.tobytes()
    assert one.statistics_.denominator.tobytes() == other.statistics_.denominator.tobytes()
    assert one.statistics_.divergence == other.statistics_.divergence
    assert one.statistics_.n_frames == other.statistics_.n_frames
    assert one.n_frames_seen_ == other.n_frames_seen_
    states = [estimator.random_state_.get_state() for estimator in (one, other)]
    assert all(np.array_equal(*pair) for pair in zip(*states, strict=True))


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in EVERY_KIND.items() for v in values]
)
def test_learning_continues_bit_for_bit_after_any_setting_was_saved(tmp_path, name, value):
    dictionary = learned(**{name: value})
    dictionary.save(tmp_path / "m.ondes")
    one, other = dictionary.estimator, ondes.load(tmp_path / "m.ondes").estimator
    more = spectrogram(110, N_BINS, 3, seed=6)
    assert_same(continued(one, more), continued(other, more))
    assert np.array_equal(one.transform(more), other.transform(more))
    frames = spectrogram(60, N_BINS, 3, seed=7)
    if name != "random_state":
        one.set_params(n_passes=2), other.set_params(n_passes=2)
        assert_same(one.fit(frames), other.fit(frames))


def test_audio_settings_and_history_come_back(tmp_path):
    dictionary = of_recordings()
    dictionary.save(tmp_path / "m.ondes")
    again = ondes.load(tmp_path / "m.ondes")
    assert again.audio == dictionary.audio
    before, after = vars(dictionary.history), vars(again.history)
    assert np.array_equal(before.pop("learning_curve"), after.pop("learning_curve"))
    assert before == after
    assert repr(again.estimator.get_params()) == repr(dictionary.estimator.get_params())


def test_a_dictionary_of_arrays_has_neither(tmp_path):
    learned().save(tmp_path / "m.ondes")
    again = ondes.load(tmp_path / "m.ondes")
    assert (again.audio, again.history) == (None, None)


def test_names_of_features_come_back(tmp_path):
    pandas = pytest.importorskip("pandas")
    frames = spectrogram(120, N_BINS, 3, seed=5)
    table = pandas.DataFrame(frames, columns=[f"{100 * n} Hz" for n in range(N_BINS)])
    estimator = OnlineNMF(3, random_state=0).partial_fit(table)
    Dictionary(estimator).save(tmp_path / "m.ondes")
    again = ondes.load(tmp_path / "m.ondes").estimator
    assert list(again.feature_names_in_) == list(estimator.feature_names_in_)
    assert np.array_equal(again.transform(table), estimator.transform(table))


def test_the_same_dictionary_gives_the_same_bytes_and_any_npz_reader_opens_them(tmp_path):
    for name in ("one", "two"):
        of_recordings().save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with np.load(tmp_path / "one", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["fitted.components"], of_recordings().components)


def test_a_file_does_not_depend_on_what_changes_no_result(tmp_path):
    free = {"n_jobs": (1, 2, -1), "verbose": (0, 1), "callback": (None, print)}
    assert set(free) == set(model_file.NOT_SAVED)
    for name, values in free.items():
        files = []
        for value in values:
            dictionary = learned()
            dictionary.estimator.set_params(**{name: value})
            dictionary.save(tmp_path / "m.ondes", force=True)
            files.append((tmp_path / "m.ondes").read_bytes())
        assert len(set(files)) == 1
        default = OnlineNMF().get_params()[name]
        assert ondes.load(tmp_path / "m.ondes").estimator.get_params()[name] == default


def test_an_arrays_order_in_memory_is_kept_since_sums_depend_on_it(tmp_path):
    dictionary = learned()
    state = dictionary.estimator.state()
    dictionary.estimator.restore(replace(state, components=np.asfortranarray(state.components)))
    dictionary.save(tmp_path / "m.ondes")
    again = ondes.load(tmp_path / "m.ondes").components
    assert again.flags.f_contiguous
    assert np.array_equal(again, state.components)
    assert again.flags.writeable


def test_every_flipped_byte_is_found(tmp_path):
    of_recordings().save(tmp_path / "m.ondes")
    data = (tmp_path / "m.ondes").read_bytes()
    for n, flip in itertools.product(range(len(data)), (0x01, 0xFF)):
        flipped = bytearray(data)
        flipped[n] ^= flip
        with pytest.raises(FileError):
            archive.unpack(bytes(flipped), "m.ondes", model_file.CLASSES)


def test_every_cut_is_found(tmp_path):
    of_recordings().save(tmp_path / "m.ondes")
    data = (tmp_path / "m.ondes").read_bytes()
    for n in [*range(100), *range(100, len(data), 37), len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:n])
        with pytest.raises(FileError, match=r"damaged or truncated|not an ondes model"):
            ondes.load(tmp_path / "cut")


def forge(tmp_path, change=None, members=None, compression=zipfile.ZIP_STORED):
    """A model file made by hand, with a valid digest: it must be refused for its content."""
    of_recordings().save(tmp_path / "honest")
    with zipfile.ZipFile(tmp_path / "honest") as honest:
        parts = {name: honest.read(name) for name in honest.namelist()}
    if change is not None:
        tree = json.loads(parts[archive.JSON_MEMBER])
        change(tree)
        parts[archive.JSON_MEMBER] = json.dumps(tree).encode()
    parts |= members or {}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as forged:
        for name, data in parts.items():
            forged.writestr(name, data)
        forged.comment = b"sha256:" + bytes(64)
    hashed = buffer.getvalue()[:-64]
    digest = archive.hashlib.sha256(hashed).hexdigest().encode()
    (tmp_path / "forged.ondes").write_bytes(hashed + digest)
    return tmp_path / "forged.ondes"


def npy(array, **header):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    if header:
        buffer = io.BytesIO()
        real = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(buffer, real | header)
        buffer.write(array.tobytes())
    return buffer.getvalue()


def test_forging_without_a_change_is_accepted(tmp_path):
    assert_same(ondes.load(forge(tmp_path)).estimator, of_recordings().estimator)


def assign(*path, value):
    def change(tree):
        *way, last = path
        for name in way:
            tree = tree[name]
        tree[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        assign("parameters", "n_components", value=4),
        assign("parameters", "n_components", value=10**12),
        assign("parameters", "n_components", value="many"),
        assign("parameters", "no_such_setting", value=1),
        assign("parameters", "penalty", value={"$": "system", "command": "true"}),
        assign("parameters", "penalty", value={"$": "GroupLog", "strength": -1}),
        assign("parameters", "penalty", value={"$": "GroupLog", "power": 1}),
        assign("parameters", "forgetting", value={"$": "OnlineNMF"}),
        assign("parameters", "fixed_components", value=[1, 2]),
        assign("parameters", value=[]),
        assign("fitted", "n_features_in", value=18),
        assign("fitted", "n_frames_seen", value=-1),
        assign("fitted", "n_frames_seen", value="1"),
        assign("fitted", "components", value=None),
        assign("fitted", "partial_fit", value=None),
        assign("fitted", "is_initialised", value="yes"),
        assign("fitted", "backend", value=7),
        assign("fitted", "n_passes", value=-1),
        assign("fitted", "feature_names_in", value=["a"]),
        assign("fitted", value=None),
        assign("fitted", value={"$": "Solver"}),
        assign("fitted", "random_state", "position", value=10**6),
        assign("fitted", "random_state", "position", value=-1),
        assign("fitted", "random_state", value=0),
        assign("fitted", "statistics", "divergence", value=None),
        assign("fitted", "components", "member", value="absent.npy"),
        assign("fitted", "components", "member", value="history.learning_curve.npy"),
        assign("audio", "stft", "n_fft", value=64),
        assign("audio", "sr", value=0),
        assign("audio", "top_db", value=-60),
        assign("audio", "top_db", value="quiet"),
        assign("audio", value={"$": "Solver"}),
        assign("history", "learning_curve", value=None),
        assign("history", "divergence", value=None),
        assign("history", "files", value=[3]),
        assign("history", value={"$": "Solver"}),
        assign("format", value=0),
        assign("format", value="1"),
        lambda tree: tree.pop("fitted"),
        lambda tree: tree.pop("format"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path, change):
    with pytest.raises(FileError) as caught:
        ondes.load(forge(tmp_path, change))
    assert str(caught.value).count("\n") == 0


COMPONENTS = "fitted.components.npy"


@pytest.mark.parametrize(
    "member",
    [
        npy(np.full((3, N_BINS), np.nan)),
        npy(np.full((3, N_BINS), -1.0)),
        npy(np.ones((3, N_BINS + 1))),
        npy(np.ones((3, N_BINS), np.float32)),
        npy(np.array([{"a": 1}], dtype=object)),
        npy(np.ones((3, N_BINS)), shape=(10**9, 10**9)),
        npy(np.ones((3, N_BINS)), shape=(-3, -N_BINS)),
        npy(np.ones((0,)), shape=(0, 10**30)),
        npy(np.ones((3, N_BINS)))[:-8],
        npy(np.ones((3, N_BINS))) + b"more",
        b"",
        b"\x93NUMPY\x01\x00\xff\xff{",
    ],
)
def test_arrays_that_are_not_what_they_claim_are_refused(tmp_path, member):
    with pytest.raises(FileError) as caught:
        ondes.load(forge(tmp_path, members={COMPONENTS: member}))
    assert str(caught.value).count("\n") == 0


def test_a_compressed_member_is_refused_before_it_grows(tmp_path):
    bomb = {"bomb.npy": bytes(10**7)}
    with pytest.raises(FileError, match="compressed"):
        ondes.load(forge(tmp_path, members=bomb, compression=zipfile.ZIP_DEFLATED))


def test_a_newer_format_says_to_upgrade_even_if_it_has_classes_unknown_here(tmp_path):
    def change(tree):
        tree["format"] = archive.FORMAT_VERSION + 1
        tree["parameters"]["penalty"] = {"$": "FromTheFuture"}

    with pytest.raises(FileError, match=r"newer ondes .* upgrade"):
        ondes.load(forge(tmp_path, change))


@pytest.mark.parametrize("content", [b"", b"RIFF", b"PK\x03\x04", bytes(10**4), b"PK\x05\x06"])
def test_other_files_are_not_models(tmp_path, content):
    (tmp_path / "x.ondes").write_bytes(content)
    with pytest.raises(FileError, match="is not an ondes model"):
        ondes.load(tmp_path / "x.ondes")


def test_a_file_larger_than_any_model_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "m.ondes"
    of_recordings().save(path)
    size = path.stat().st_size
    monkeypatch.setattr(archive, "MAX_BYTES", size)
    ondes.load(path)
    monkeypatch.setattr(archive, "MAX_BYTES", size - 1)
    with pytest.raises(FileError, match="more than any model"):
        ondes.load(path)


def test_paths_that_cannot_be_read_or_written_say_why(tmp_path):
    with pytest.raises(FileError, match="No such file"):
        ondes.load(tmp_path / "nothing.ondes")
    with pytest.raises(FileError, match="directory"):
        ondes.load(tmp_path)
    with pytest.raises(FileError, match="is a folder"):
        learned().save(tmp_path)
    with pytest.raises(FileError, match="folder does not exist"):
        learned().save(tmp_path / "no" / "m.ondes")


def test_an_existing_file_needs_force_and_a_failed_write_leaves_it_alone(tmp_path, monkeypatch):
    path = tmp_path / "m.ondes"
    learned().save(path)
    before = path.read_bytes()
    with pytest.raises(FileError, match="exists already"):
        of_recordings().save(path)

    def fail(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(FileError, match="No space left"):
            of_recordings().save(path, force=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    of_recordings().save(path, force=True)
    assert ondes.load(path).audio is not None


class OwnPenalty:
    def value(self, share):
        return share

    def slope(self, share):
        return np.ones_like(share)


class OwnForgetting(ondes.HalfLife):
    pass


@pytest.mark.parametrize(
    "settings",
    [{"penalty": OwnPenalty()}, {"forgetting": OwnForgetting(9)}],
    ids=["penalty", "forgetting"],
)
def test_a_class_of_the_users_own_cannot_be_saved(tmp_path, settings):
    (name,) = settings
    with pytest.raises(FileError, match=rf"parameters.{name} is a Own\w+, which"):
        learned(**settings).save(tmp_path / "m.ondes")
    assert not list(tmp_path.iterdir())


def test_nothing_is_saved_of_a_dictionary_gone_wrong(tmp_path):
    dictionary = learned()
    dictionary.components[0, 0] = np.nan
    with pytest.raises(ValueError, match="components must be finite"):
        dictionary.save(tmp_path / "m.ondes")
    dictionary = of_recordings()
    dictionary.audio = AudioSettings(8000, Stft(512))
    with pytest.raises(FileError, match="17 bins, its STFT 257"):
        dictionary.save(tmp_path / "m.ondes")
    assert not list(tmp_path.iterdir())


def test_nothing_is_saved_of_an_estimator_that_has_not_learned(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        Dictionary(OnlineNMF()).save(tmp_path / "m.ondes")
    assert not list(tmp_path.iterdir())
