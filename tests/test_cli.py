"""The command line, as real processes on real files."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import NEEDS_TORCH

from ondes.cli import main
from ondes.errors import FileError
from ondes.models.dictionary import Dictionary
from ondes.models.loading import load
from ondes.nmf.estimator import OnlineNMF
from ondes.scores import si_sdr

SR = 8000
SMALL = ("-k", "4", "--sr", str(SR), "--n-fft", "128")
ON_CPU = ("--backend", "torch", "--device", "cpu")
ON_MISSING_GPU = ("--backend", "torch", "--device", "cuda:99")
# One line that ends with its only period at the end of a word.
ONE_SENTENCE = re.compile(r"ondes: (?:[^.\n]|\.(?=\S))+\.")
INTERRUPTED = "ondes: interrupted; no unfinished files were left behind."
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "ONDES_DEBUG"},
    "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
}


def run(*arguments, cwd=None, piped=b""):
    """The program in this process, which has imported everything already: the same, but faster."""
    streams = [io.TextIOWrapper(io.BytesIO(data)) for data in (piped, b"", b"")]
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        patch.delenv("ONDES_DEBUG", raising=False)
        if cwd is not None:
            patch.chdir(cwd)
        with pytest.raises(SystemExit) as end:
            main(list(map(str, arguments)))
    for number, handler in handlers.items():
        signal.signal(number, handler)
    outputs = []
    for stream in streams[1:]:
        stream.flush()
        outputs.append(stream.buffer.getvalue())
    return subprocess.CompletedProcess(arguments, end.value.code, *outputs)


def start(*arguments):
    """The program as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ondes", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )


def finish(process):
    """Wait for a process without closing its standard input."""
    process.wait(30)
    with process.stdin, process.stdout, process.stderr:
        return process.stdout.read(), process.stderr.read()


def lines(data):
    return data.decode().splitlines()


def sentence(done, *names):
    """The one line on standard error, checked to be one sentence that contains `names`."""
    (line,) = lines(done.stderr)
    assert ONE_SENTENCE.fullmatch(line), line
    for name in names:
        assert str(name) in line
    return line.removeprefix("ondes: ")


def tones(seed=0, seconds=3.0):
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * SR)) / SR
    pitch = rng.choice([220, 330, 440, 550], size=8)[(time * 2).astype(int) % 8]
    samples = np.sin(2 * np.pi * pitch * time) * np.exp(-4 * (time % 0.5))
    return (8000 * (samples + 0.01 * rng.standard_normal(len(time)))).astype(np.int16)


def noise(seed=0, seconds=3.0):
    rng = np.random.default_rng(seed)
    return (3000 * rng.standard_normal(round(seconds * SR))).astype(np.int16)


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.wav"
    soundfile.write(path, tones(), SR)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two sources, their models, and their mixture."""
    folder = tmp_path_factory.mktemp("models")
    for name, samples in {"tones": tones(1), "noise": noise(1)}.items():
        soundfile.write(folder / f"{name}.wav", samples, SR)
        done = run("learn", folder / f"{name}.wav", "-o", folder / f"{name}.ondes", *SMALL)
        assert done.returncode == 0
    soundfile.write(folder / "mix.wav", tones(2) + noise(2), SR)
    return folder


# ---- learn ----


def test_learn_prints_its_result_to_standard_output_only(good, tmp_path):
    process = start("learn", good, "-o", tmp_path / "m.ondes", *SMALL)
    stdout, stderr = finish(process)
    assert (process.returncode, stderr) == (0, b"")
    assert len(lines(stdout)) == 1
    assert "m.ondes: 4 components from 3 s of audio" in stdout.decode()
    done = run("learn", good, "-o", tmp_path / "j.ondes", *SMALL, "--json")
    result = json.loads(done.stdout)
    assert result["seconds"] == pytest.approx(3)
    assert result["n_frames"] == load(tmp_path / "j.ondes").estimator.n_frames_seen_
    assert (tmp_path / "m.ondes").read_bytes() == (tmp_path / "j.ondes").read_bytes()


def test_learn_continues_from_a_model(good, tmp_path):
    run("learn", good, "-o", tmp_path / "a.ondes", *SMALL)
    done = run("learn", good, "-o", tmp_path / "b.ondes", "--continue", tmp_path / "a.ondes")
    assert done.returncode == 0
    once, twice = (load(tmp_path / f"{name}.ondes") for name in "ab")
    assert twice.estimator.n_frames_seen_ == 2 * once.estimator.n_frames_seen_
    for option in (("-k", "9"), ("--top-db", "50")):
        again = ("--continue", tmp_path / "a.ondes", *option)
        done = run("learn", good, "-o", tmp_path / "c", *again)
        assert done.returncode == 2
        assert "the model determines" in done.stderr.decode()
        assert not (tmp_path / "c").exists()


def test_top_db_and_the_seed_reach_the_model(good, tmp_path):
    run("learn", good, "-o", tmp_path / "a", *SMALL, "--top-db", "10", "--seed", "3")
    run("learn", good, "-o", tmp_path / "b", *SMALL, "--top-db", "off", "--passes", "2")
    few, all_frames = load(tmp_path / "a"), load(tmp_path / "b")
    assert (few.audio.top_db, all_frames.audio.top_db) == (10.0, None)
    assert few.estimator.random_state == 3
    assert all_frames.estimator.n_passes == 2
    assert few.history.n_frames < all_frames.history.n_frames / 2


def bad_recordings(folder):
    """Every kind of bad file, by name."""
    wav = Path(folder, "whole.wav")
    soundfile.write(wav, tones(3), SR)
    data = wav.read_bytes()
    wav.unlink()
    contents = {
        "empty.wav": b"",
        "no samples.wav": data[:40] + bytes(4),
        "text.wav": b"This is not a sound.\n" * 9,
        "cut.wav": data[: len(data) // 2],
        "cut.flac": b"fLaC" + bytes(20),
        "a name with\na newline.wav": b"?",
    }
    for name, content in contents.items():
        Path(folder, name).write_bytes(content)
    with_nan = tones(4).astype(np.float32)
    with_nan[5000] = np.nan
    soundfile.write(Path(folder, "nan.wav"), with_nan, SR, subtype="FLOAT")
    return [*contents, "nan.wav"]


def test_every_bad_recording_gets_one_line_and_the_rest_is_learned(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    bad = bad_recordings(folder)
    soundfile.write(folder / "one sample.wav", tones()[:1], SR)
    soundfile.write(folder / "32 channels.wav", np.tile(tones()[:, None], 32), SR)
    soundfile.write(folder / "other rate.wav", tones(), 11025)
    done = run("learn", folder, tmp_path / "absent", "-o", tmp_path / "m", *SMALL, "--json")
    assert done.returncode == 3
    messages = lines(done.stderr)
    assert len(messages) == len(bad) + 1
    for name in [*bad, "absent"]:
        escaped = name.replace("\n", "\\n")
        (message,) = [message for message in messages if escaped in message]
        assert ONE_SENTENCE.fullmatch(message), message
    result = json.loads(done.stdout)
    assert (result["n_files"], result["n_failed"]) == (len(bad) + 4, len(bad) + 1)
    assert load(tmp_path / "m").history.n_failed == len(bad) + 1


@pytest.mark.parametrize("what", ["absent.wav", "empty folder", "text.wav", "*.flac"])
def test_nothing_to_learn_from_is_a_failure_without_traceback(tmp_path, what):
    (tmp_path / "empty folder").mkdir()
    (tmp_path / "text.wav").write_text("no sound")
    done = run("learn", tmp_path / what, "-o", tmp_path / "m", *SMALL)
    assert done.returncode == 1
    assert done.stdout == b""
    messages = lines(done.stderr)
    assert 1 <= len(messages) <= 2
    assert all(map(ONE_SENTENCE.fullmatch, messages)), messages
    assert what in messages[0]
    assert not (tmp_path / "m").exists()


def test_an_existing_model_needs_force_and_is_noticed_before_any_work(good, tmp_path):
    output = tmp_path / "m.ondes"
    output.write_text("precious")
    done = run("learn", tmp_path / "absent.wav", "-o", output)
    assert done.returncode == 1
    assert (
        sentence(done) == f"{output}: exists already; choose another name, or replace it (--force)."
    )
    assert output.read_text() == "precious"
    assert run("learn", good, "-o", output, *SMALL, "--force").returncode == 0
    assert load(output).n_components == 4


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("x.wav",),
        ("x.wav", "-o", "m", "-k", "0"),
        ("x.wav", "-o", "m", "--backend", "abacus"),
        ("-", "-o", "m", "--raw", "44100:2:s17"),
        ("x.wav", "-o", "m", "-j", "0"),
        ("x.wav", "-o", "m", "--top-db", "much"),
        ("x.wav", "-o", "m", "--top-db", "-60"),
        ("x.wav", "-o", "m", "--top-db", "nan"),
        ("x.wav", "-o", "m", "--shards", "4"),
        ("x.wav", "-o", "m", "--device", "cpu"),
        ("x.wav", "-o", "m", "--backend", "torch", "--device", "tpu"),
        ("x.wav", "-o", "x.wav", "--checkpoint", "x.wav"),
        ("-", "-o", "m", "--passes", "2"),
        ("x.wav", "-o", "m", "--no-such-option"),
        ("x.wav", "-o", "m", "--silence", "60"),
        ("x.wav", "-o", "m", "--scheduler", "local"),
    ],
)
def test_misuse_is_exit_2_with_a_hint(arguments, tmp_path):
    done = run("learn", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Usage: ondes learn" in done.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_standard_input_is_learned_like_the_file(good, tmp_path):
    run("learn", "-", "-o", tmp_path / "wav", *SMALL, piped=good.read_bytes())
    raw = ("--raw", f"{SR}:1:s16le")
    done = run("learn", "-", "-o", tmp_path / "raw", *SMALL, *raw, piped=tones().tobytes())
    assert done.returncode == 0
    piped = [load(tmp_path / name).components.tobytes() for name in ("wav", "raw")]
    assert piped[0] == piped[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_stream_is_saved_first(tmp_path, number):
    output = tmp_path / "m.ondes"
    process = start("learn", "-", "-o", output, *SMALL, "--raw", f"{SR}:1:s16le", "--json")
    # A pipe holds 64 KiB: once all of this is written, the program has begun to read.
    process.stdin.write(noise(0, 60).tobytes())
    process.stdin.flush()
    time.sleep(0.2)
    process.send_signal(number)
    stdout, stderr = finish(process)
    assert process.returncode == 130
    assert lines(stderr) == [f"ondes: interrupted; what was learned so far is in {output}."]
    model = load(output)
    assert json.loads(stdout)["stopped_by"] == model.history.stopped_by == number.name
    assert model.history.n_frames > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["m.ondes"]


def test_a_run_interrupted_during_silence_saves_nothing(tmp_path):
    process = start("learn", "-", "-o", tmp_path / "m", *SMALL, "--raw", str(SR))
    process.stdin.write(bytes(70_000))  # silence, more than a pipe holds: wait until it reads
    process.stdin.flush()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    stdout, stderr = finish(process)
    assert process.returncode == 130
    assert (stdout, lines(stderr)) == (b"", [INTERRUPTED])
    assert not list(tmp_path.iterdir())


# ---- separate, report, demo ----


def read(path):
    samples, sr = soundfile.read(path, dtype="float32", always_2d=True)
    assert sr == SR
    return samples


def test_stems_sum_to_the_mix_and_standard_output_lists_them(models, tmp_path):
    dictionaries = ("-d", models / "tones.ondes", "-d", f"hiss={models / 'noise.ondes'}")
    done = run("separate", models / "mix.wav", *dictionaries, "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, b"")
    files = [tmp_path / "out" / "mix" / f"{name}.wav" for name in ("tones", "hiss")]
    assert lines(done.stdout) == list(map(str, files))
    stems = [read(file) for file in files]
    assert np.abs(sum(stems) - read(models / "mix.wav")).max() < 1e-5
    truth = tones(2).astype(np.float64) / 2**15
    assert si_sdr(truth, stems[0][:, 0]) > 5 + si_sdr(truth, read(models / "mix.wav")[:, 0])


@pytest.mark.parametrize("command", ["separate", "report", "score", "levels", "info"])
def test_each_model_is_read_once(models, tmp_path, command):
    """Whatever the command does with them; a hook counts how often a process opens each."""
    names = ["tones", "noise"] if command in ("separate", "levels") else ["tones"]
    given = [f"-d{models / name}.ondes" for name in names]
    if command == "info":
        given = [str(models / "tones.ondes")]
    else:
        given.append(str(models / "mix.wav"))
    if command != "score" and command != "info":
        given.append(f"-o{tmp_path / 'out'}.{'csv' if command == 'levels' else 'html'}")
    script = (
        "import sys\nopened = []\n"
        "sys.addaudithook(lambda event, given: opened.append(str(given[0])) "
        "if event == 'open' else None)\n"
        "from ondes.cli import main\n"
        f"try: main({[command, *given]!r})\n"
        "except SystemExit as end: status = end.code\n"
        "print(status, sum(path.endswith('.ondes') for path in opened))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, check=True
    )
    assert lines(done.stdout)[-1] == f"0 {len(names)}"


def test_channels_and_names_are_kept_and_the_rest_is_learned(models, tmp_path):
    stereo = np.stack([tones(2), noise(2)], axis=1)
    for track in ("one", "two"):
        soundfile.write(tmp_path / f"{track}.wav", stereo, SR)
    how = ("--free", "4", "--filename", "{stem}-of-{track}.{ext}", "--flac", "--json")
    mixes = (tmp_path / "one.wav", tmp_path / "absent.wav", tmp_path / "two.wav")
    output = ("-o", tmp_path / "out")
    done = run("separate", *mixes, "-d", models / "tones.ondes", *output, *how)
    assert done.returncode == 3
    assert sentence(done, "absent.wav")
    result = json.loads(done.stdout)
    assert [sorted(track["stems"]) for track in result["tracks"]] == [["rest", "tones"]] * 2
    names = {f"{stem}-of-{track}.flac" for stem in ("tones", "rest") for track in ("one", "two")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    stems = [read(path) for path in (tmp_path / "out").glob("*-of-one.flac")]
    assert np.abs(sum(stems) - stereo / 2**15).max() < 1e-5


def test_without_dictionaries_sources_are_learned_from_the_mix(models, tmp_path):
    found = ("--sources", "3", "-k", "6", "-o", tmp_path)
    done = run("separate", models / "mix.wav", *found)
    assert done.returncode == 0
    names = {path.name for path in (tmp_path / "mix").iterdir()}
    assert names == {f"source {number}.wav" for number in (1, 2, 3)}
    stems = [read(path) for path in (tmp_path / "mix").iterdir()]
    assert np.abs(sum(stems) - read(models / "mix.wav")).max() < 1e-5


def test_the_command_and_the_library_discover_the_same_sources(models, tmp_path):
    from ondes.separation import separate
    from ondes.separation.discovery import discover_sources

    run("separate", models / "mix.wav", "--sources", "2", "-o", tmp_path)
    mixture = read(models / "mix.wav")
    found = discover_sources(models / "mix.wav", 2)
    assert found.n_components == 32
    for name, stem in separate(mixture, found, sr=SR).items():
        np.testing.assert_array_equal(stem, read(tmp_path / "mix" / f"{name}.wav"))


@NEEDS_TORCH
@pytest.mark.parametrize("adapt", [(), ("--free", "2")])
def test_the_device_reaches_separation(models, tmp_path, adapt):
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes", *adapt)
    for folder, how in (("cpu", ON_CPU), ("reference", ("--backend", "reference"))):
        output = ("-o", tmp_path / folder)
        assert run("separate", models / "mix.wav", *both, *output, *how).returncode == 0
    for path in (tmp_path / "reference" / "mix").iterdir():
        on_cpu = read(tmp_path / "cpu" / "mix" / path.name)
        np.testing.assert_allclose(on_cpu, read(path), atol=1e-4)
    two_mixes = (models / "mix.wav", models / "tones.wav")
    done = run("separate", *two_mixes, *both, *ON_MISSING_GPU, "-o", tmp_path / "none")
    assert done.returncode == 1
    assert sentence(done, "cuda")
    assert not (tmp_path / "none").exists()


@NEEDS_TORCH
def test_the_device_reaches_discovery_report_and_score(models, tmp_path):
    (tmp_path / "out").mkdir()
    mix, tones_model = models / "mix.wav", ("-d", models / "tones.ondes")
    page = ("-o", tmp_path / "out" / "r.html", "--seconds", "0.5")
    for command in (
        ("separate", mix, "-k", "4", "-o", tmp_path / "out" / "stems"),
        ("report", mix, *tones_model, *page),
        ("report", mix, "-k", "4", *page),
        ("score", mix, *tones_model),
        ("learn", mix, "-o", tmp_path / "out" / "m", *SMALL),
    ):
        done = run(*command, *ON_MISSING_GPU)
        assert done.returncode == 1
        assert sentence(done, "cuda")
        assert not list((tmp_path / "out").iterdir())
    assert run("report", mix, *tones_model, *page, *ON_CPU).returncode == 0
    costs = [
        json.loads(run("score", mix, *tones_model, "--json", *how).stdout)["divergence"]
        for how in (ON_CPU, ("--backend", "reference"))
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-4)


@pytest.mark.parametrize("command", ["separate", "report", "score"])
def test_a_device_without_torch_is_a_usage_error(models, tmp_path, command):
    arguments = (models / "mix.wav", "-d", models / "tones.ondes", "--device", "cuda")
    done = run(command, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "device='cuda' needs backend='torch'" in " ".join(lines(done.stderr))
    assert not list(tmp_path.iterdir())


def test_existing_stems_are_noticed_before_any_work(models, tmp_path):
    precious = tmp_path / "mix" / "noise.wav"
    precious.parent.mkdir()
    precious.write_text("precious")
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes", "-o", tmp_path)
    (tmp_path / "bad.wav").write_text("would be reported, if work had begun")
    done = run("separate", tmp_path / "bad.wav", models / "mix.wav", *both)
    assert done.returncode == 1
    assert sentence(done, "noise.wav: exists already")
    assert [path.name for path in precious.parent.iterdir()] == ["noise.wav"]
    assert run("separate", models / "mix.wav", *both, "--force").returncode == 0
    assert len(read(precious)) == len(read(models / "mix.wav"))


def test_a_mix_that_fails_midway_leaves_nothing(models, tmp_path):
    samples = tones(2).astype(np.float32)
    samples[20000] = np.nan
    soundfile.write(tmp_path / "nan.wav", samples, SR, subtype="FLOAT")
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes")
    done = run("separate", tmp_path / "nan.wav", *both, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert sentence(done, "nan.wav")
    assert [path.name for path in tmp_path.iterdir()] == ["nan.wav"]


def test_an_interrupted_separation_of_a_file_leaves_nothing(models, tmp_path):
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes")
    long = tmp_path / "hours.raw"
    with long.open("wb") as file:
        file.truncate(2 * SR * 36_000)
    process = start("separate", long, *both, "--raw", str(SR), "-o", tmp_path / "out")
    for _ in range(600):
        if (tmp_path / "out").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, stderr = finish(process)
    assert process.returncode == 130
    assert lines(stderr) == [INTERRUPTED]
    assert list(tmp_path.iterdir()) == [long]


def test_labels_of_a_model_cannot_lead_out_of_the_folder(models, tmp_path):
    model = load(models / "tones.ondes")
    model.estimator.set_params(groups=["../../a", "../../a", "/b", "/b"])
    model.save(tmp_path / "m.ondes")
    output = ("-o", tmp_path / "x" / "out")
    done = run("separate", models / "mix.wav", "-d", tmp_path / "m.ondes", *output)
    assert done.returncode == 0
    written = set(tmp_path.rglob("*.wav"))
    assert len(written) == 2
    assert all(path.parent == tmp_path / "x" / "out" / "mix" for path in written)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-d", "{models}/tones.ondes"),
        ("-d", "{models}/tones.ondes", "-d", "{models}/tones.ondes"),
        ("--filename", "{{track}}.wav"),
        ("--filename", "{{artist}}/{{stem}}.wav"),
        ("--sources", "33"),
        ("--sources", "2", "-k", "1"),
    ],
)
def test_separate_explains_misuse(models, tmp_path, arguments):
    arguments = [argument.format(models=models) for argument in arguments]
    done = run("separate", models / "mix.wav", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Usage: ondes separate" in done.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_dictionaries_that_do_not_fit_together_are_refused(models, tmp_path):
    run("learn", models / "noise.wav", "-o", tmp_path / "m.ondes", "-k", "2", "--sr", SR)
    both = ("-d", models / "tones.ondes", "-d", tmp_path / "m.ondes")
    done = run("separate", models / "mix.wav", *both, cwd=tmp_path)
    assert done.returncode == 1
    assert sentence(done, "'tones'", "'m'", "differ in n_fft (")


def test_a_model_learned_from_arrays_cannot_separate(models, tmp_path):
    frames = np.random.default_rng(0).exponential(size=(50, 65))
    Dictionary(OnlineNMF(2, n_passes=1).fit(frames)).save(tmp_path / "arrays.ondes")
    for command in ("separate", "report", "score"):
        done = run(command, models / "mix.wav", "-d", tmp_path / "arrays.ondes", cwd=tmp_path)
        assert done.returncode == 1
        assert sentence(done, "arrays.ondes: was learned from arrays")
    facts = json.loads(run("info", tmp_path / "arrays.ondes", "--json").stdout)
    assert (facts["n_bins"], "sr" in facts, "files" in facts) == (65, False, False)


def test_standard_input_is_separated_with_models_only(models, tmp_path):
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes")
    piped = (models / "mix.wav").read_bytes()
    assert run("separate", "-", *both, "-o", tmp_path, piped=piped).returncode == 0
    stems = [read(path) for path in (tmp_path / "stdin").iterdir()]
    assert np.abs(sum(stems) - read(models / "mix.wav")).max() < 1e-5
    for command in (("separate", "-", "--sources", "2"), ("report", "-")):
        done = run(*command, "--force", piped=piped, cwd=tmp_path)
        assert done.returncode == 2
        assert "Standard input can be read only once" in done.stderr.decode()


def test_a_raw_mix_needs_no_dictionaries(models, tmp_path):
    samples = tones(2) + noise(2)
    (tmp_path / "mix.pcm").write_bytes(samples.tobytes())
    raw = ("--raw", f"{SR}:1:s16le", "-k", "4", "-o", tmp_path / "out")
    assert run("separate", tmp_path / "mix.pcm", *raw).returncode == 0
    stems = [read(path) for path in (tmp_path / "out" / "mix").iterdir()]
    assert np.abs(sum(stems)[:, 0] - samples / 2**15).max() < 1e-5


def test_file_names_are_printed_on_one_line_without_control_characters(models, tmp_path):
    odd = tmp_path / "odd\n\x1b[31mname.wav"
    odd.write_bytes((models / "mix.wav").read_bytes())
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes")
    for n_lines, command in (
        (2, ("separate", odd, *both, "-o", tmp_path / "new\nfolder")),
        (1, ("report", odd, *both, "--seconds", "0.2", "-o", tmp_path / "new\npage.html")),
        (3, ("score", odd, "-d", models / "tones.ondes")),
        (1, ("learn", odd, "-o", tmp_path / "new\nmodel", *SMALL)),
        (1, ("learn", tmp_path / "not\nthere.wav", odd, "-o", tmp_path / "a\nb", *SMALL)),
    ):
        done = run(*command)
        assert done.returncode in (0, 3)
        assert len(lines(done.stdout)) == n_lines
        assert "\\n" in done.stdout.decode()
        assert all(map(ONE_SENTENCE.fullmatch, lines(done.stderr)))
        assert b"\x1b" not in done.stdout + done.stderr
    assert b"\\n" in run("info", tmp_path / "new\nmodel").stdout


def test_report_is_one_page_of_an_excerpt(models, tmp_path):
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes")
    page = ("-o", tmp_path / "r.html", "--start", "1", "--seconds", "0.5")
    done = run("report", models / "mix.wav", *both, *page)
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done.stdout) == [str(tmp_path / "r.html")]
    html = (tmp_path / "r.html").read_text()
    assert "Shown: 0:01 to 0:02 of 0:03" in html
    assert {"tones", "noise"} <= set(re.findall(r"tones|noise", html))
    done = run("report", models / "mix.wav", *both, *page)
    assert done.returncode == 1
    assert sentence(done, "r.html: exists already")


def test_report_of_a_folder_names_a_recording_in_it(models, tmp_path):
    done = run("report", models, "-d", models / "tones.ondes", "-o", tmp_path / "r.html")
    assert done.returncode == 1
    several = len(list(models.glob("*.wav")))
    assert sentence(done, f"is a folder of {several} recordings; name one, such as {models}")


def test_demo_prints_its_scores_and_writes_recordings_models_and_a_report(tmp_path, monkeypatch):
    # A light page; scores have their own test.
    monkeypatch.setattr(sys.modules["ondes.cli.demo"], "N_COMPONENTS", 3)
    done = run("demo", "-o", tmp_path / "demo", "--seconds", "3", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    result = json.loads(done.stdout)
    for scores in result["si_sdr"].values():
        assert scores["gain"] == pytest.approx(scores["separated"] - scores["mixture"])
    assert Path(result["report"]).stat().st_size > 10**5
    stems = [soundfile.read(path)[0] for path in (tmp_path / "demo" / "stems").iterdir()]
    mixture = soundfile.read(tmp_path / "demo" / "mixture.wav")[0]
    assert np.abs(sum(stems) - mixture).max() < 1e-5
    assert load(tmp_path / "demo" / "bass.ondes").n_components == 3
    done = run("demo", "-o", tmp_path / "demo")
    assert done.returncode == 1
    assert sentence(done, "exists already")


def test_demo_gains_8_db_on_every_source_of_a_tune_it_did_not_learn_from(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["ondes.cli.demo"], "find_spec", lambda _: None)
    result = json.loads(run("demo", "-o", tmp_path / "demo", "--json").stdout)
    assert result["report"] is None  # without the page
    assert len(result["si_sdr"]) == 4
    assert all(scores["gain"] > 8 for scores in result["si_sdr"].values())


# ---- score, info, help ----


def test_score_ranks_models_by_how_well_they_explain(models):
    costs = {}
    for name in ("tones", "noise"):
        soundfile.write(models / "held-out.wav", tones(9), SR)
        done = run("score", models / "held-out.wav", "-d", models / f"{name}.ondes", "--json")
        assert (done.returncode, done.stderr) == (0, b"")
        costs[name] = json.loads(done.stdout)["divergence"]
    assert costs["tones"] < costs["noise"]


def test_score_weighs_files_by_their_frames_and_reports_bad_ones(models, tmp_path):
    soundfile.write(tmp_path / "long.wav", tones(1), SR)
    soundfile.write(tmp_path / "short.wav", noise(1, 0.5), SR)
    (tmp_path / "text.wav").write_text("no sound")
    files = [tmp_path / name for name in ("long.wav", "short.wav", "text.wav")]
    done = run("score", *files, "-d", models / "tones.ondes", "--json")
    assert done.returncode == 3
    assert sentence(done, "text.wav")
    result = json.loads(done.stdout)
    rows = result["files"]
    assert [Path(row["file"]).name for row in rows] == ["long.wav", "short.wav"]
    total = sum(row["n_frames"] * row["divergence"] for row in rows)
    assert result["divergence"] == pytest.approx(total / sum(row["n_frames"] for row in rows))
    table = lines(run("score", *files, "-d", models / "tones.ondes").stdout)
    assert table[-1].split() == ["all", str(result["n_frames"]), f"{result['divergence']:.4f}"]


def test_info_describes_models_and_the_system(models):
    facts = json.loads(run("info", models / "tones.ondes", "--json").stdout)
    assert (facts["n_components"], facts["sr"], facts["n_fft"]) == (4, SR, 128)
    assert (facts["top_db"], facts["files"]) == (60.0, [str(models / "tones.wav")])
    facts = json.loads(run("info", "--system", "--json").stdout)
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    name = re.compile(r"[\w-]+")
    assert {name.match(each)[0] for each in project["dependencies"]} <= set(facts)
    for extra, packages in project["optional-dependencies"].items():
        assert set(facts[f"extra_{extra}"]) == {name.match(each)[0] for each in packages}
    assert {"ondes", "python", "native_kernel"} <= set(facts)
    assert run("info").returncode == 2
    done = run("info", models / "tones.wav")
    assert done.returncode == 1
    assert sentence(done) == f"{models / 'tones.wav'}: is not an ondes model."


def test_help_and_completion_load_nothing_heavy():
    heavy = ("sklearn", "torch", "matplotlib", "scipy", "numpy", "rich", "soundfile", "av")
    for arguments in (["--help"], ["learn", "--help"], ["completion", "zsh"], ["--version"]):
        script = (
            "import sys, ondes.cli\n"
            f"try: ondes.cli.main({arguments!r})\n"
            f"except SystemExit as end: print(end.code, sorted(set({heavy!r}) & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, check=True
        )
        assert lines(done.stdout)[-1] == "0 []"


def test_every_command_has_help_and_the_module_is_the_program():
    overview = run("--help").stdout.decode()
    for command in ("demo", "learn", "separate", "report", "score", "info", "completion"):
        assert f"\n  {command} " in overview
        shown = run(command, "--help")
        assert shown.returncode == 0
        assert "\\b" not in overview + shown.stdout.decode()


@pytest.mark.parametrize("command", ["demo", "learn", "separate", "report", "score"])
def test_every_command_that_computes_has_a_backend_a_device_and_threads(command):
    shown = run(command, "--help").stdout.decode()
    assert all(option in shown for option in ("--backend", "--device", "-j, --jobs"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_the_program(shell):
    done = run("completion", shell)
    assert done.returncode == 0
    assert "_ONDES_COMPLETE" in done.stdout.decode()


def test_the_traceback_is_shown_on_request_only(models, monkeypatch):
    assert run("info", models / "mix.wav").returncode == 1
    monkeypatch.setenv("ONDES_DEBUG", "1")
    with pytest.raises(FileError, match="not an ondes model"):
        main(["info", str(models / "mix.wav")])


CLOSED = ("<&- >&- 2>&-", "2>&-", "| true", "2>&1 | true")


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_streams_do_not_turn_success_into_failure(models, tmp_path, closed):
    """Nor does a file of ours take the number of a closed stream, and messages go into it."""
    learn = f"{sys.executable} -m ondes learn {models / 'tones.wav'} {tmp_path / 'no.wav'}"
    command = f"{learn} -o {tmp_path / 'm.ondes'} {' '.join(SMALL)} {closed}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=ENVIRONMENT, capture_output=True, check=False
    )
    assert done.returncode == 3, done.stderr  # one of the two recordings does not exist
    assert b"Traceback" not in done.stderr
    assert b"bug" not in done.stderr
    assert load(tmp_path / "m.ondes").n_components == 4


def test_a_table_whose_reader_has_left_ends_the_run(models):
    given = f"{models / 'mix.wav'} -d {models / 'tones.ondes'} -o - --every 0.001"
    command = f"{sys.executable} -m ondes levels {given} | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=ENVIRONMENT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.startswith(b"file,start,end")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_standard_output_is_one_sentence(models):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "ondes", "info", models / "tones.ondes"]
        done = subprocess.run(
            command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    reason = "Standard output cannot be written (No space left on device)"
    assert sentence(done, reason)
