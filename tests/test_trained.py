"""Separators trained from examples: the network, its NumPy twin, training, files and commands."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import NEEDS_TORCH

import ondes
from ondes.demo_scene import make_scene
from ondes.errors import DeviceError, FileError
from ondes.learning.separator_training.training import train
from ondes.models.history import SeparatorHistory
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.unfolded import BLOCK, UnfoldedMasks, UnfoldedWeights
from ondes.scores import si_sdr
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

SR = 8000


def weights(n_sources=2, n_components=3, n_bins=17, contexts=(3, 9, 31), seed=0, n_steps=6):
    rng = np.random.default_rng(seed)
    n_rows = n_sources * n_components
    dictionaries = rng.gamma(0.5, size=(3, n_rows, n_bins)) + 1e-3
    return UnfoldedWeights(
        dictionaries.astype(np.float32),
        (dictionaries.sum(axis=2) + 1).astype(np.float32),
        (rng.gamma(0.5, size=(n_sources, 5, n_components, n_bins)) + 1e-6).astype(np.float32),
        (0.1 * rng.standard_normal((len(contexts), n_rows))).astype(np.float32),
        contexts,
        n_steps,
        2.5,
        1e-4,
    )


def magnitudes(n_frames, n_bins=17, seed=0):
    return np.random.default_rng(seed).exponential(size=(n_frames, n_bins)).astype(np.float32)


def masks_in_plain_loops(given, frames):
    """The definition, frame by frame, in float64."""
    w = given
    n_sources, n_decoder, n_components, n_bins = w.decoder.shape
    frames = frames.astype(np.float64)
    level = frames.mean(axis=1)
    found = np.zeros((len(frames), n_sources * n_components))
    for t, frame in enumerate(frames):
        h = np.full(n_sources * n_components, 10 / (n_sources * n_components))
        for step in range(w.n_steps):
            own = max(0, step - (w.n_steps - (len(w.dictionaries) - 1)) + 1)
            rows = w.dictionaries[own].astype(np.float64)
            ratio = frame / max(level[t], 1e-30) / (h @ rows + 1e-6)
            h = h * (rows @ ratio) / w.denominators[own]
        found[t] = h * level[t]

    def mean(values, t, n):
        before = n // 2 if n <= 9 else n - 1
        return values[max(0, t - before) : t + n - before].mean(axis=0)

    weighed = np.empty_like(found)
    for t in range(len(frames)):
        long = max(mean(level, t, w.contexts[-1]), mean(level, t, 9) / w.contexts[-1], 1e-30)
        now = np.log(found[t] / long + w.floor)
        change = sum(
            e * (np.log(mean(found, t, n) / long + w.floor) - now)
            for e, n in zip(w.exponents.astype(np.float64), w.contexts, strict=True)
        )
        weighed[t] = found[t] * np.exp(np.clip(change, -12, 12))
    masks = np.empty((n_sources, len(frames), n_bins))
    for t in range(len(frames)):
        for source in range(n_sources):
            own = slice(source * n_components, (source + 1) * n_components)
            total = np.zeros(n_bins)
            for offset in range(n_decoder):
                at = t + offset - n_decoder // 2
                if 0 <= at < len(frames):
                    total += weighed[at, own] @ w.decoder[source, offset]
            masks[source, t] = total
    masks = (masks + 1e-30) ** w.mask_exponent
    return masks / masks.sum(axis=0)


def all_masks(stream, frames, cuts=()):
    parts = [stream.push(part) for part in np.split(frames, cuts)]
    return np.concatenate([*parts, stream.flush()], axis=1)


@pytest.mark.parametrize("n_frames", [1, 5, 31, 32, 33, 100])
def test_masks_are_what_the_definition_says_in_plain_loops(n_frames):
    given, frames = weights(), magnitudes(n_frames)
    found = all_masks(UnfoldedMasks(given), frames)
    np.testing.assert_allclose(found, masks_in_plain_loops(given, frames), atol=2e-4)


@pytest.mark.parametrize("cuts", [(1,), (31, 33), (7, 50, 51, 90), tuple(range(1, 130))])
def test_masks_do_not_depend_on_the_cut_and_come_in_time(cuts):
    frames = magnitudes(130)
    expected = all_masks(UnfoldedMasks(weights()), frames)
    assert np.array_equal(all_masks(UnfoldedMasks(weights()), frames, cuts), expected)
    assert np.array_equal(all_masks(UnfoldedMasks(weights(), n_threads=3), frames, cuts), expected)
    stream, n_out = UnfoldedMasks(weights()), 0
    for n_in, frame in enumerate(frames, 1):
        n_out += stream.push(frame[None]).shape[1]
        assert n_in - n_out <= stream.delay


def test_masks_sum_to_one_at_any_volume_and_in_silence():
    frames = magnitudes(100)
    frames[10:50] = 0
    expected = all_masks(UnfoldedMasks(weights()), frames)
    np.testing.assert_allclose(expected.sum(axis=0), 1, atol=1e-5)
    for volume in (1e-20, 1e20):
        scaled = all_masks(UnfoldedMasks(weights()), frames * np.float32(volume))
        np.testing.assert_allclose(scaled, expected, atol=1e-3)


def separator(**others):
    audio = AudioSettings(SR, Stft(32, 8), spectrum="magnitude")
    history = SeparatorHistory((3, 4), (10.0, 20.0), (9.5, 8.5), 100)
    return TrainedSeparator(("voice", "noise"), audio, weights(**others), history)


@pytest.mark.parametrize("shape", [(5000,), (5000, 2), (1,), (0,)])
@pytest.mark.parametrize("sr", [SR, 22050])
def test_stems_sum_to_the_mixture_and_do_not_depend_on_the_blocks(shape, sr):
    mixture = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    stems = ondes.separate(mixture, separator(), sr=sr)
    assert list(stems) == ["voice", "noise"]
    np.testing.assert_allclose(sum(stems.values()), mixture, atol=1e-5)
    stream = ondes.Separator(separator(), sr=sr, spatial="auto")
    parts = [stream.push(part) for part in np.array_split(mixture, 7)] + [stream.flush()]
    for name, stem in stems.items():
        assert np.array_equal(np.concatenate([part[name] for part in parts]), stem)


def test_a_file_brings_back_the_very_separator(tmp_path):
    saved, path = separator(), tmp_path / "talk.ondes"
    saved.save(path)
    with pytest.raises(FileError, match="exists already"):
        saved.save(path)
    loaded = ondes.load(path)
    assert (loaded.names, loaded.audio, loaded.history) == (
        saved.names,
        saved.audio,
        saved.history,
    )
    mixture = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    one, other = (ondes.separate(mixture, each, sr=SR)["voice"] for each in (saved, loaded))
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"n_steps": 1},
        {"n_steps": 10**9},
        {"contexts": (0,)},
        {"contexts": ()},
        {"mask_exponent": float("nan")},
        {"floor": 0.0},
        {"floor": 1e-300},  # which float32 cannot hold
        {"denominators": np.zeros((3, 6), np.float32)},
        {"dictionaries": -np.ones((3, 6, 17), np.float32)},
        {"decoder": np.ones((2, 4, 3, 17), np.float32)},
        {"exponents": np.full((3, 6), np.nan, np.float32)},
    ],
)
def test_weights_that_could_do_harm_are_refused(change):
    with pytest.raises(ValueError, match="its "):
        replace(weights(), **change)


def test_separation_needs_no_torch(tmp_path):
    separator().save(tmp_path / "talk.ondes")
    soundfile.write(tmp_path / "mix.wav", np.random.default_rng(0).standard_normal(9000) / 9, SR)
    code = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(name)

sys.meta_path.insert(0, NoTorch())
from ondes.cli import main
main(["separate", "mix.wav", "-d", "talk.ondes", "-o", "stems"])
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert sorted(each.name for each in (tmp_path / "stems/mix").iterdir()) == [
        "noise.wav",
        "voice.wav",
    ]


def test_a_separator_is_scored_on_mixtures_of_equal_levels(recordings):
    """One that divides every mixture in halves: its stems have the ratios of the mixture."""
    one = weights(n_sources=1, n_bins=17)
    both = replace(
        one,
        dictionaries=np.concatenate([one.dictionaries] * 2, axis=1),
        denominators=np.concatenate([one.denominators] * 2, axis=1),
        decoder=np.concatenate([one.decoder] * 2),
        exponents=np.concatenate([one.exponents] * 2, axis=1),
    )
    halving = TrainedSeparator(("strings", "drums"), separator().audio, both)
    known = ondes.score_separation(halving, sources(recordings), n_mixtures=3, seconds=5.0)
    for ratios in known.values():
        assert len(ratios) == 3
        np.testing.assert_allclose(ratios, 0, atol=1.0)  # of orthogonal sources of equal power
    with pytest.raises(ValueError, match="no 900 s of uninterrupted sound"):
        ondes.score_separation(halving, sources(recordings), seconds=900.0)
    with pytest.raises(ValueError, match="strings=FILES drums=FILES"):
        ondes.score_separation(halving, {"strings": recordings / "strings"})


@NEEDS_TORCH
def test_the_device_reaches_the_scores_of_a_separator(recordings, tmp_path):
    path = tmp_path / "separator.ondes"
    TrainedSeparator(("strings", "drums"), separator().audio, weights()).save(path)
    how = {"n_mixtures": 1, "seconds": 2.0}
    ratios = [
        ondes.score_separation(ondes.load(path), sources(recordings), **how, **compute)
        for compute in ({}, {"n_jobs": 2}, {"backend": "torch"})
    ]
    for name in ("strings", "drums"):
        assert ratios[0][name] == ratios[1][name]
        assert ratios[0][name] == pytest.approx(ratios[2][name], abs=1e-2)
        assert ratios[0][name] != ratios[2][name]  # it was another backend
    given = [f"{name}={folder}" for name, folder in sources(recordings).items()]
    command = [sys.executable, "-m", "ondes", "score", *given, "-d", str(path)]
    command += ["--backend", "torch", "--device", "cuda:99"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cuda" in done.stderr


# ---- training ----


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Two instruments of the built-in scene, each in several files; another tune is the test."""
    folder = tmp_path_factory.mktemp("recordings")
    for name in ("strings", "drums"):
        (folder / name).mkdir()
        for seed in (1, 2, 3, 4):
            stem = make_scene(12.0, SR, random_state=seed).stems[name]
            soundfile.write(folder / name / f"{seed}.flac", stem, SR)
    return folder


def sources(folder):
    return {name: folder / name for name in ("strings", "drums")}


SETTINGS = {"sr": SR, "n_fft": 512, "n_components": 8}


@NEEDS_TORCH
@pytest.mark.parametrize("volume", [1.0, 1e-12])
def test_the_network_and_its_twin_in_numpy_agree(volume):
    import torch

    from ondes.learning.separator_training.network import Network, NetworkSettings

    rng = np.random.default_rng(0)
    dictionaries = [rng.gamma(0.5, size=(4, 17)) + 1e-3 for _ in range(3)]
    network = Network(dictionaries, NetworkSettings())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
        frames = np.float32(volume) * magnitudes(80)
        expected = network(torch.tensor(frames)[None])[0].numpy()
    found = all_masks(UnfoldedMasks(network.weights()), frames)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@NEEDS_TORCH
@pytest.mark.parametrize("exponent", [1.0, 30.0])
def test_silence_gives_finite_masks_and_gradients_at_any_exponent(exponent):
    import torch

    from ondes.learning.separator_training.network import Network, NetworkSettings

    network = Network(list(np.random.default_rng(0).random((2, 4, 17))), NetworkSettings())
    with torch.no_grad():
        network.mask_exponent.fill_(exponent)
    frames = torch.rand(1, 60, 17)
    frames[:, 10:50] = 0
    masks = network(frames)
    masks.square().sum().backward()
    assert torch.isfinite(masks).all()
    assert all(torch.isfinite(each.grad).all() for each in network.parameters())


@NEEDS_TORCH
def test_training_separates_another_tune_better_and_repeats_bit_for_bit(recordings):
    first = train(sources(recordings), n_updates=30, random_state=1, **SETTINGS)
    again = train(sources(recordings), n_updates=30, random_state=1, **SETTINGS)
    assert np.array_equal(first.weights.decoder, again.weights.decoder)
    start = train(sources(recordings), n_updates=1, random_state=1, **SETTINGS)
    scene = make_scene(8.0, SR, random_state=0)
    truth = {name: scene.stems[name] for name in ("strings", "drums")}
    mixture = sum(truth.values())

    def mean_si_sdr(trained):
        stems = ondes.separate(mixture, trained, sr=SR)
        return np.mean([si_sdr(each, stems[name]) for name, each in truth.items()])

    assert mean_si_sdr(first) > mean_si_sdr(start) + 0.5
    assert first.history.si_sdr[0] > start.history.si_sdr[0]


@NEEDS_TORCH
def test_silence_and_clipping_in_training_give_no_nan(recordings, tmp_path):
    for name in ("strings", "drums"):
        (tmp_path / name).mkdir()
        for path in (recordings / name).iterdir():
            samples, _ = soundfile.read(path)
            samples[: len(samples) // 2] = 0
            soundfile.write(tmp_path / name / path.name, np.clip(30 * samples, -1, 1), SR)
        soundfile.write(tmp_path / name / "silent.wav", np.zeros(4 * SR), SR)
    trained = train(sources(tmp_path), n_updates=10, **SETTINGS)
    assert np.isfinite(trained.weights.decoder).all()
    assert all(np.isfinite(trained.history.si_sdr))


@NEEDS_TORCH
def test_an_interrupted_run_is_resumed_from_its_checkpoint(recordings, tmp_path):
    path = tmp_path / "run.checkpoint"
    seen = []

    def stop_soon(progress):
        seen.append(progress.n_updates)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(sources(recordings), minutes=5, checkpoint=path, progress=stop_soon, **SETTINGS)
    assert isinstance(ondes.load(path), TrainedSeparator)
    with pytest.raises(FileError, match="unfinished run"):
        train(sources(recordings), n_updates=5, checkpoint=path, **SETTINGS)
    other = SETTINGS | {"n_components": 9}
    with pytest.raises(FileError, match="cannot be resumed"):
        train(sources(recordings), n_updates=5, checkpoint=path, resume=True, **other)
    resumed = train(
        sources(recordings), n_updates=seen[0] + 3, checkpoint=path, resume=True, **SETTINGS
    )
    assert resumed.history.n_updates >= seen[0] + 3


@NEEDS_TORCH
def test_a_failing_disk_is_reported_once_and_training_goes_on(recordings, tmp_path, monkeypatch):
    monkeypatch.setattr("ondes.learning.separator_training.trainer.EVERY_S", 0.0)
    path = tmp_path / "folder" / "c"
    path.parent.mkdir()

    def take_the_folder_away(progress):
        if path.parent.exists():
            assert path.exists()
            path.parent.rename(tmp_path / "away")

    settings = SETTINGS | {"checkpoint": path, "progress": take_the_folder_away}
    with pytest.warns(RuntimeWarning) as warned:
        trained = train(sources(recordings), n_updates=24, **settings)
    assert [str(each.message) for each in warned] == [
        f"{path}: cannot be written (its folder does not exist), so the previous checkpoint stays; "
        "training goes on and tries again every 60 s."
    ]
    assert trained.history.n_updates == 24


@NEEDS_TORCH
def test_bad_input_is_one_sentence(recordings, tmp_path):
    soundfile.write(tmp_path / "one.wav", np.ones(SR), SR)
    (tmp_path / "silent").mkdir()
    for number in range(3):
        soundfile.write(tmp_path / "silent" / f"{number}.wav", np.zeros(20 * SR), SR)
    both = sources(recordings)
    cases = [
        (ValueError, "at least two sources", {"strings": recordings / "strings"}, {}),
        (ValueError, "too little", both | {"drums": tmp_path / "one.wav"}, {}),
        (ValueError, "belongs to both", both | {"drums": recordings / "strings"}, {}),
        (FileError, "silent", both | {"drums": tmp_path / "silent"}, {}),
        (FileError, "does not exist", both | {"drums": tmp_path / "nowhere"}, {}),
        (DeviceError, "cuda", both, {"device": "cuda"}),
        (ValueError, "positive", both, {"minutes": 0}),
    ]
    for kind, sentence, given, others in cases:
        with pytest.raises(kind, match=sentence) as caught:
            train(given, **SETTINGS | {"n_updates": 2} | others)
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(".")


def trained_scores(path, recordings):
    return ondes.score_separation(ondes.load(path), sources(recordings))


@NEEDS_TORCH
def test_train_and_separate_on_the_command_line(recordings, tmp_path):
    def run(*arguments, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "ondes", *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done

    both = [f"{name}={recordings / name}" for name in ("strings", "drums")]
    small = ("-k", 8, "--sr", SR, "--n-fft", 512)
    done = run("train", *both, "-o", "band.ondes", "--updates", 20, "--json", *small)
    result = json.loads(done.stdout)
    assert result["n_updates"] == 20
    assert set(result["sources"]) == {"strings", "drums"}
    assert not (tmp_path / "band.ondes.checkpoint").exists()
    mixture = make_scene(4.0, 22050, random_state=0).mixture
    soundfile.write(tmp_path / "mix.wav", mixture, 22050, subtype="FLOAT")
    run("separate", "mix.wav", "-d", "band.ondes", "-o", "stems")
    total = 0
    for name in ("strings", "drums"):
        stem, rate = soundfile.read(tmp_path / "stems/mix" / f"{name}.wav", dtype="float32")
        assert rate == 22050
        total = total + stem
    np.testing.assert_allclose(total, mixture, atol=1e-5)
    assert "held_out_si_sdr" in run("info", "band.ondes").stdout
    assert "strings=FILES" in run("score", "mix.wav", "-d", "band.ondes", status=2).stderr
    scored = json.loads(run("score", *both, "-d", "band.ondes", "--json").stdout)
    assert scored["n_mixtures"] == 4
    for name, known in trained_scores(tmp_path / "band.ondes", recordings).items():
        np.testing.assert_allclose(scored["si_sdr"][name]["all"], known)
        assert scored["si_sdr"][name]["median"] == pytest.approx(np.median(known))
    assert "strings" in run("score", *both, "-d", "band.ondes").stdout
    assert (
        "trained for strings, drums" in run("score", both[0], "-d", "band.ondes", status=2).stderr
    )
    assert "NAME=FILES" in run("train", "strings", "-o", "x.ondes", status=2).stderr
    assert "exists already" in run("train", *both, "-o", "band.ondes", status=1).stderr


def processor_seconds(pid):
    """What a process has computed: on a busy machine that takes longer."""
    *_, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")


@NEEDS_TORCH
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_signal_saves_the_best_so_far(recordings, tmp_path):
    both = [f"{name}={recordings / name}" for name in ("strings", "drums")]
    command = [sys.executable, "-m", "ondes", "train", *both, "-o", "band.ondes", "--minutes", "9"]
    command += ["-k", "8", "--sr", str(SR), "--n-fft", "512"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as started:
        deadline = time.monotonic() + 300
        while processor_seconds(started.pid) < 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=120)
    assert started.returncode == 130, errors
    assert "--resume continues" in errors
    assert isinstance(ondes.load(tmp_path / "band.ondes"), TrainedSeparator)


def test_the_delay_is_small():
    assert UnfoldedMasks(weights()).delay <= BLOCK + 10


ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def settings_of_torch():
    """What a process has once, and a caller may have chosen."""
    import torch

    products = torch.backends.cuda.matmul
    return {
        "random numbers": torch.random.get_rng_state().tolist(),
        "precision": (products.allow_tf32, torch.backends.cudnn.allow_tf32),
        "reductions": products.allow_bf16_reduced_precision_reduction,
        "threads": torch.get_num_threads(),
        "type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "benchmarks": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "allocator": {name: os.environ.get(name) for name in ALLOCATORS},
    }


@NEEDS_TORCH
def test_the_settings_of_torch_are_the_callers(recordings):
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.backends.cuda.matmul.allow_tf32 = True
    before = settings_of_torch()
    trained = train(sources(recordings), n_updates=1, **SETTINGS)
    ondes.OnlineNMF(2, backend="torch", n_passes=1).fit(np.ones((9, 5), np.float32))
    mixture = np.random.default_rng(0).standard_normal(SR).astype(np.float32)
    ondes.separate(mixture, trained, sr=SR, backend="torch")
    after = settings_of_torch()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(n_threads)
    assert after == before


# ---- starting from a separator that comes with ondes ----


@pytest.fixture
def few_checks(monkeypatch):
    """Four held-out mixtures are enough here."""
    from ondes.learning.separator_training import trainer

    monkeypatch.setattr(trainer, "N_HELD_OUT", 4)
    monkeypatch.setattr(trainer, "N_CHECKS", 2)


@pytest.fixture(scope="module")
def spoken(recordings, tmp_path_factory):
    """The same recordings under names that a separator on the shelf has, and one that none has."""
    folder = tmp_path_factory.mktemp("spoken")
    for name, new in (("strings", "music"), ("drums", "drums")):
        (folder / new).symlink_to(recordings / name)
    return {name: folder / name for name in ("music", "drums")}


@NEEDS_TORCH
def test_the_network_of_the_shelf_and_its_twin_in_numpy_agree():
    import torch

    from ondes.learning.separator_training.recurrent_network import BandNetwork
    from ondes.models.band_network import BandMasks

    given = ondes.load("talk").weights
    network = BandNetwork(given)
    frames = magnitudes(60, given.n_bins)
    with torch.no_grad():
        expected = network(torch.tensor(frames)[None])[0].numpy()
    np.testing.assert_allclose(all_masks(BandMasks(given), frames), expected, atol=1e-4)
    again = network.weights()
    for name in given.__dataclass_fields__:
        kept, found = getattr(given, name), getattr(again, name)
        pairs = zip(kept, found, strict=True) if isinstance(kept, tuple) else [(kept, found)]
        assert all(np.array_equal(*pair) for pair in pairs)


@NEEDS_TORCH
@pytest.mark.parametrize("axis", [1, 2])
def test_the_gradient_of_a_sweep_is_the_slope_of_its_definition(axis):
    import torch

    from ondes.learning.separator_training.recurrent_network import _Sweep

    gates = torch.randn((2, 5, 4, 12), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: _Sweep.apply(x, axis), (gates,))


@NEEDS_TORCH
def test_the_start_has_the_masks_of_the_shelf_for_sources_of_the_same_name():
    from ondes.learning.separator_training.recurrent_network import with_sources
    from ondes.models.band_network import BandMasks

    talk = ondes.load("talk")
    frames = magnitudes(30, talk.weights.n_bins)
    own = all_masks(BandMasks(talk.weights), frames)
    order = all_masks(BandMasks(with_sources(talk, ("effects", "music", "speech"))), frames)
    np.testing.assert_allclose(order, own[::-1], atol=1e-6)
    two = all_masks(BandMasks(with_sources(talk, ("speech", "effects"))), frames)
    np.testing.assert_allclose(two[0] / two[1], own[0] / own[2], rtol=1e-3)
    other = all_masks(BandMasks(with_sources(talk, ("speech", "music", "birds"))), frames)
    np.testing.assert_allclose(other, own, atol=2e-3)  # birds begin as effects


@NEEDS_TORCH
@pytest.mark.usefixtures("few_checks")
def test_training_starts_from_the_shelf_and_its_result_needs_no_torch(spoken, tmp_path):
    begin = train(spoken, n_updates=1)
    trained = train(spoken, n_updates=3)
    again = train(spoken, n_updates=3, start="talk")
    assert trained.names == ("music", "drums")
    assert np.mean(trained.history.si_sdr) > np.mean(begin.history.si_sdr)
    trained.save(tmp_path / "first.ondes")
    again.save(tmp_path / "again.ondes")
    assert (tmp_path / "first.ondes").read_bytes() == (tmp_path / "again.ondes").read_bytes()
    mixture = make_scene(3.0, SR, random_state=0).mixture
    stems = ondes.separate(mixture, ondes.load(tmp_path / "first.ondes"), sr=SR)
    np.testing.assert_allclose(sum(stems.values()), mixture, atol=1e-5)
    more = train(spoken, n_updates=1, start=tmp_path / "first.ondes")
    assert np.mean(more.history.si_sdr) >= np.mean(trained.history.si_sdr) - 0.5


@NEEDS_TORCH
@pytest.mark.usefixtures("few_checks")
def test_a_run_from_the_shelf_is_resumed_to_the_same_bytes(spoken, tmp_path):
    whole = train(spoken, n_updates=4)

    def stop(progress):
        os.kill(os.getpid(), signal.SIGINT)

    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        train(spoken, n_updates=4, checkpoint=path, progress=stop)
    assert ondes.load(path).history.n_updates < 4
    with pytest.raises(FileError, match="not those of this run"):
        train(spoken, n_updates=4, checkpoint=path, resume=True, start="denoise")
    resumed = train(spoken, n_updates=4, checkpoint=path, resume=True)
    for each, name in ((whole, "whole"), (resumed, "resumed")):
        each.save(tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "resumed").read_bytes()


@NEEDS_TORCH
@pytest.mark.usefixtures("few_checks")
def test_a_start_that_cannot_be_one_is_refused_in_one_sentence(spoken, tmp_path):
    separator().save(tmp_path / "unfolded.ondes")
    for given, kind, reason in (
        ({"start": tmp_path / "unfolded.ondes"}, ValueError, "no separator to start from"),
        ({"start": tmp_path / "gone.ondes"}, FileError, "cannot be read"),
        ({"start": "tlak"}, FileError, "talk, denoise"),
        ({"start": "talk", "n_components": 8}, ValueError, "leave them out"),
        ({"start": "talk", "sr": 44100}, ValueError, "leave them out"),
    ):
        with pytest.raises(kind, match=reason):
            train(spoken, n_updates=1, **given)
    scratch = train(spoken, n_updates=1, sr=SR, n_fft=512, n_components=4)
    assert isinstance(scratch.weights, UnfoldedWeights)
