"""A model file gives back exactly what was saved, or one sentence."""

from __future__ import annotations

import io
import itertools
import json
import os
import zipfile

import numpy as np
import pytest
from conftest import spectrogram

import ondes
from ondes import archive, model_file
from ondes.archive import ModelFileError
from ondes.model_file import AudioSettings, Provenance, load, save
from ondes.nmf.estimator import OnlineISNMF
from ondes.signal.stft import Stft

N_BINS = 17
EVERY_KIND = {
    "forgetting": [None, ondes.GrowingMemory(3.0), ondes.HalfLife(70.5), ondes.PerPass(0.3, 400)],
    "penalty": [None, ondes.GroupLog(0.1), ondes.L1(0.2)],
    "dictionary_penalty": [None, ondes.LogSparsity(0.01), ondes.Smoothness(0.01)],
    "solver": [None, ondes.Solver.paper(3), ondes.Solver(max_steps=4, momentum=(0.0, 0.3))],
    "groups": [None, [0, 0, 1], np.array(["drums", "drums", "bass"])],
    "init": ["k-means++", "random", np.random.default_rng(1).exponential(size=(3, N_BINS))],
    "frozen": [None, np.arange(1.0, N_BINS + 1)],
    "background": [None, np.full(N_BINS, 0.01)],
    "random_state": [0, np.random.RandomState(3), None],
    "batch_size": [None, 50, np.int64(30)],
    "tol": [0.0, 1e-300],
}


def learned(**settings):
    """A small model that has begun to learn."""
    parameters = {"n_components": 3, "random_state": 0, "backend": "reference", **settings}
    return OnlineISNMF(**parameters).partial_fit(spectrogram(120, N_BINS, 3, seed=5))


def of_sound(**settings):
    model = learned(**settings)
    model.audio_ = AudioSettings(8000, Stft(2 * (N_BINS - 1), 8, "sine"), None)
    curve = np.array([[50, 0.1 + 0.2], [120, 1 / 3]])
    model.provenance_ = Provenance(curve, ("a b.wav", "d\n.wav"), 2, 1, 120, 4.5, 1 / 3, "SIGINT")
    return model


def assert_same(one, other):
    assert one.components_.tobytes() == other.components_.tobytes()
    assert one.statistics_.numerator.tobytes() == other.statistics_.numerator.tobytes()
    assert one.statistics_.denominator.tobytes() == other.statistics_.denominator.tobytes()
    assert one.statistics_.divergence == other.statistics_.divergence
    assert one.statistics_.n_frames == other.statistics_.n_frames
    assert one.n_frames_seen_ == other.n_frames_seen_
    states = [model.random_state_.get_state() for model in (one, other)]
    assert all(np.array_equal(*pair) for pair in zip(*states, strict=True))


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in EVERY_KIND.items() for v in values]
)
def test_learning_goes_on_bit_for_bit_after_any_setting_was_saved(tmp_path, name, value):
    model = learned(**{name: value})
    save(model, tmp_path / "m.ondes")
    again = load(tmp_path / "m.ondes")
    more = spectrogram(110, N_BINS, 3, seed=6)
    assert_same(model.partial_fit(more), again.partial_fit(more))
    assert np.array_equal(model.transform(more), again.transform(more))
    frames = spectrogram(60, N_BINS, 3, seed=7)
    if name != "random_state":
        model.set_params(n_passes=2), again.set_params(n_passes=2)
        assert_same(model.fit(frames), again.fit(frames))


def test_sound_and_provenance_come_back(tmp_path):
    model = of_sound()
    save(model, tmp_path / "m.ondes")
    again = load(tmp_path / "m.ondes")
    assert again.audio_ == model.audio_
    before, after = vars(model.provenance_), vars(again.provenance_)
    assert np.array_equal(before.pop("learning_curve"), after.pop("learning_curve"))
    assert before == after
    assert repr(again.get_params()) == repr(model.get_params())


def test_a_model_of_arrays_knows_no_sound(tmp_path):
    save(learned(), tmp_path / "m.ondes")
    assert load(tmp_path / "m.ondes").audio_ is None
    assert load(tmp_path / "m.ondes").provenance_ is None


def test_the_same_model_gives_the_same_bytes_and_any_npz_reader_opens_them(tmp_path):
    for name in ("one", "two"):
        save(of_sound(), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with np.load(tmp_path / "one", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["learned.components_"], of_sound().components_)


def test_a_file_does_not_depend_on_the_number_of_threads(tmp_path):
    for name, n_jobs in (("one", 1), ("two", 2), ("all", -1)):
        save(learned(n_jobs=n_jobs), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "all").read_bytes()
    assert load(tmp_path / "all").n_jobs is None


def test_an_arrays_order_in_memory_is_kept_since_sums_depend_on_it(tmp_path):
    model = learned()
    model.components_ = np.asfortranarray(model.components_)
    save(model, tmp_path / "m.ondes")
    again = load(tmp_path / "m.ondes").components_
    assert again.flags.f_contiguous
    assert np.array_equal(again, model.components_)
    assert again.flags.writeable


def test_every_flipped_byte_is_found(tmp_path):
    save(of_sound(), tmp_path / "m.ondes")
    data = (tmp_path / "m.ondes").read_bytes()
    for n, flip in itertools.product(range(len(data)), (0x01, 0xFF)):
        flipped = bytearray(data)
        flipped[n] ^= flip
        with pytest.raises(ModelFileError):
            archive.unpack(bytes(flipped), "m.ondes", model_file.CLASSES)


def test_every_cut_is_found(tmp_path):
    save(of_sound(), tmp_path / "m.ondes")
    data = (tmp_path / "m.ondes").read_bytes()
    for n in [*range(100), *range(100, len(data), 37), len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:n])
        with pytest.raises(ModelFileError, match=r"cut short|not an ondes model"):
            load(tmp_path / "cut")


def forge(tmp_path, change=None, members=None, compression=zipfile.ZIP_STORED):
    """A model file made by hand, with a right digest: it must be refused by what it says."""
    save(of_sound(), tmp_path / "honest")
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
    assert_same(load(forge(tmp_path)), of_sound())


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
        assign("parameters", "unheard_of", value=1),
        assign("parameters", "penalty", value={"$": "system", "command": "true"}),
        assign("parameters", "penalty", value={"$": "GroupLog", "strength": -1}),
        assign("parameters", "penalty", value={"$": "GroupLog", "power": 1}),
        assign("parameters", "forgetting", value={"$": "OnlineISNMF"}),
        assign("parameters", "frozen", value=[1, 2]),
        assign("parameters", value=[]),
        assign("learned", "n_features_in_", value=18),
        assign("learned", "n_frames_seen_", value=-1),
        assign("learned", "n_frames_seen_", value="1"),
        assign("learned", "components_", value=None),
        assign("learned", "partial_fit", value=None),
        assign("learned", "random_state_", "position", value=10**6),
        assign("learned", "random_state_", "position", value=-1),
        assign("learned", "random_state_", value=0),
        assign("learned", "statistics_", "divergence", value=None),
        assign("learned", "components_", "member", value="absent.npy"),
        assign("learned", "components_", "member", value="provenance.learning_curve.npy"),
        assign("audio", "stft", "n_fft", value=64),
        assign("audio", "sr", value=0),
        assign("audio", value={"$": "Solver"}),
        assign("provenance", "learning_curve", value=None),
        assign("format", value=0),
        assign("format", value="1"),
        lambda tree: tree.pop("learned"),
        lambda tree: tree.pop("format"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path, change):
    with pytest.raises(ModelFileError) as caught:
        load(forge(tmp_path, change))
    assert str(caught.value).count("\n") == 0


COMPONENTS = "learned.components_.npy"


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
    with pytest.raises(ModelFileError) as caught:
        load(forge(tmp_path, members={COMPONENTS: member}))
    assert str(caught.value).count("\n") == 0


def test_a_compressed_member_is_refused_before_it_grows(tmp_path):
    bomb = {"bomb.npy": bytes(10**7)}
    with pytest.raises(ModelFileError, match="compressed"):
        load(forge(tmp_path, members=bomb, compression=zipfile.ZIP_DEFLATED))


def test_a_newer_format_says_to_upgrade_even_if_it_has_classes_unknown_here(tmp_path):
    def change(tree):
        tree["format"] = archive.FORMAT_VERSION + 1
        tree["parameters"]["penalty"] = {"$": "FromTheFuture"}

    with pytest.raises(ModelFileError, match=r"newer ondes .* upgrade"):
        load(forge(tmp_path, change))


@pytest.mark.parametrize("content", [b"", b"RIFF", b"PK\x03\x04", bytes(10**4), b"PK\x05\x06"])
def test_other_files_are_no_models(tmp_path, content):
    (tmp_path / "x.ondes").write_bytes(content)
    with pytest.raises(ModelFileError, match="is not an ondes model"):
        load(tmp_path / "x.ondes")


def test_paths_that_cannot_be_read_or_written_say_why(tmp_path):
    with pytest.raises(ModelFileError, match="No such file"):
        load(tmp_path / "nothing.ondes")
    with pytest.raises(ModelFileError, match="directory"):
        load(tmp_path)
    with pytest.raises(ModelFileError, match="is a folder"):
        save(learned(), tmp_path)
    with pytest.raises(ModelFileError, match="folder does not exist"):
        save(learned(), tmp_path / "no" / "m.ondes")


def test_an_existing_file_needs_force_and_a_failed_write_leaves_it_alone(tmp_path, monkeypatch):
    path = tmp_path / "m.ondes"
    save(learned(), path)
    before = path.read_bytes()
    with pytest.raises(ModelFileError, match="exists already"):
        save(of_sound(), path)

    def fail(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(ModelFileError, match="No space left"):
            save(of_sound(), path, force=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    save(of_sound(), path, force=True)
    assert load(path).audio_ is not None


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
def test_a_class_of_ones_own_cannot_be_saved(tmp_path, settings):
    (name,) = settings
    with pytest.raises(ModelFileError, match=rf"parameters.{name} is a Own\w+, which"):
        save(learned(**settings), tmp_path / "m.ondes")
    assert not list(tmp_path.iterdir())


def test_nothing_is_saved_of_a_model_gone_wrong(tmp_path):
    model = learned()
    model.components_[0, 0] = np.nan
    with pytest.raises(ModelFileError, match="NaN"):
        save(model, tmp_path / "m.ondes")
    model = of_sound()
    model.audio_ = AudioSettings(8000, Stft(512))
    with pytest.raises(ModelFileError, match="17 bins, its STFT 257"):
        save(model, tmp_path / "m.ondes")


def test_nothing_is_saved_of_a_model_that_has_not_learned(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        save(OnlineISNMF(), tmp_path / "m.ondes")
