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
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ondes.cli import main
from ondes.demo import run_demo
from ondes.model_file import ModelFileError, load, save
from ondes.scores import si_sdr

SR = 8000
SMALL = ("-k", "4", "--sr", str(SR), "--n-fft", "128")
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "ONDES_DEBUG"},
    "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
}


def run(*arguments, cwd=None, piped=b""):
    """The program in this process, which has long imported everything: the same but for speed."""
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


def test_learn_says_what_it_did_on_standard_output_alone(good, tmp_path):
    process = start("learn", good, "-o", tmp_path / "m.ondes", *SMALL)
    stdout, stderr = finish(process)
    assert (process.returncode, stderr) == (0, b"")
    assert len(lines(stdout)) == 1
    assert "m.ondes: 4 components from 3 s of sound" in stdout.decode()
    done = run("learn", good, "-o", tmp_path / "j.ondes", *SMALL, "--json")
    result = json.loads(done.stdout)
    assert result["seconds"] == pytest.approx(3)
    assert result["n_frames"] == load(tmp_path / "j.ondes").n_frames_seen_
    assert (tmp_path / "m.ondes").read_bytes() == (tmp_path / "j.ondes").read_bytes()


def test_learn_goes_on_from_a_model(good, tmp_path):
    run("learn", good, "-o", tmp_path / "a.ondes", *SMALL)
    done = run("learn", good, "-o", tmp_path / "b.ondes", "--continue", tmp_path / "a.ondes")
    assert done.returncode == 0
    once, twice = (load(tmp_path / f"{name}.ondes") for name in "ab")
    assert twice.n_frames_seen_ == 2 * once.n_frames_seen_
    done = run("learn", good, "-o", tmp_path / "c", "--continue", tmp_path / "a.ondes", "-k", "9")
    assert done.returncode == 2
    assert not (tmp_path / "c").exists()


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
    told = lines(done.stderr)
    assert len(told) == len(bad) + 1
    for name in [*bad, "absent"]:
        escaped = name.replace("\n", "\\n")
        assert sum(line.startswith("ondes: ") and escaped in line for line in told) == 1
    result = json.loads(done.stdout)
    assert (result["n_files"], result["n_failed"]) == (len(bad) + 3, len(bad) + 1)
    assert load(tmp_path / "m").provenance_.n_failed == len(bad)


@pytest.mark.parametrize("what", ["absent.wav", "empty folder", "text.wav", "*.flac"])
def test_nothing_to_learn_from_is_a_failure_without_traceback(tmp_path, what):
    (tmp_path / "empty folder").mkdir()
    (tmp_path / "text.wav").write_text("no sound")
    done = run("learn", tmp_path / what, "-o", tmp_path / "m", *SMALL)
    assert done.returncode == 1
    assert done.stdout == b""
    assert 1 <= len(lines(done.stderr)) <= 2
    assert what in lines(done.stderr)[0]
    assert not (tmp_path / "m").exists()


def test_an_existing_model_needs_force_and_is_asked_for_before_any_work(good, tmp_path):
    output = tmp_path / "m.ondes"
    output.write_text("precious")
    done = run("learn", tmp_path / "absent.wav", "-o", output)
    assert done.returncode == 1
    (line,) = lines(done.stderr)
    assert line == f"ondes: {output}: exists already; choose another name, or force."
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
        ("x.wav", "-o", "m", "--silence", "much"),
        ("x.wav", "-o", "m", "--unheard-of"),
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
    piped = [load(tmp_path / name).components_.tobytes() for name in ("wav", "raw")]
    assert piped[0] == piped[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_stream_is_saved_first(tmp_path, number):
    output = tmp_path / "m.ondes"
    process = start("learn", "-", "-o", output, *SMALL, "--raw", f"{SR}:1:s16le", "--json")
    # A pipe holds 64 KiB: once it took all of this, the program has begun to listen.
    process.stdin.write(noise(0, 60).tobytes())
    process.stdin.flush()
    time.sleep(0.2)
    process.send_signal(number)
    stdout, stderr = finish(process)
    assert process.returncode == 130
    assert lines(stderr) == [f"ondes: interrupted; what was learned so far is in {output}."]
    model = load(output)
    assert json.loads(stdout)["stopped_by"] == model.provenance_.stopped_by == number.name
    assert model.n_frames_seen_ > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["m.ondes"]


def test_interrupted_before_any_sound_there_is_nothing_to_save(tmp_path):
    process = start("learn", "-", "-o", tmp_path / "m", *SMALL, "--raw", str(SR))
    process.stdin.write(bytes(70_000))  # silence, more than a pipe holds: wait until it listens
    process.stdin.flush()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    stdout, stderr = finish(process)
    assert process.returncode == 130
    assert (stdout, lines(stderr)) == (b"", ["ondes: interrupted; nothing unfinished was kept."])
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


def test_channels_and_names_are_kept_and_the_rest_is_learned(models, tmp_path):
    stereo = np.stack([tones(2), noise(2)], axis=1)
    for track in ("one", "two"):
        soundfile.write(tmp_path / f"{track}.wav", stereo, SR)
    how = ("--adapt", "4", "--filename", "{stem}-of-{track}.{ext}", "--flac", "--json")
    mixes = (tmp_path / "one.wav", tmp_path / "absent.wav", tmp_path / "two.wav")
    output = ("-o", tmp_path / "out")
    done = run("separate", *mixes, "-d", models / "tones.ondes", *output, *how)
    assert done.returncode == 3
    assert len(lines(done.stderr)) == 1
    result = json.loads(done.stdout)
    assert [sorted(track["stems"]) for track in result["tracks"]] == [["rest", "tones"]] * 2
    names = {f"{stem}-of-{track}.flac" for stem in ("tones", "rest") for track in ("one", "two")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    stems = [read(path) for path in (tmp_path / "out").glob("*-of-one.flac")]
    assert np.abs(sum(stems) - stereo / 2**15).max() < 1e-5


def test_without_dictionaries_the_mix_teaches_its_sources(models, tmp_path):
    found = ("--sources", "3", "-k", "6", "-o", tmp_path)
    done = run("separate", models / "mix.wav", *found)
    assert done.returncode == 0
    stems = [read(path) for path in (tmp_path / "mix").iterdir()]
    assert len(stems) == 3
    assert np.abs(sum(stems) - read(models / "mix.wav")).max() < 1e-5


def test_existing_stems_are_noticed_before_any_work(models, tmp_path):
    precious = tmp_path / "mix" / "noise.wav"
    precious.parent.mkdir()
    precious.write_text("precious")
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes", "-o", tmp_path)
    (tmp_path / "bad.wav").write_text("would be told of, if work had begun")
    done = run("separate", tmp_path / "bad.wav", models / "mix.wav", *both)
    assert done.returncode == 1
    (line,) = lines(done.stderr)
    assert "noise.wav: exists already" in line
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
    assert len(lines(done.stderr)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["nan.wav"]


def test_an_interrupted_separation_leaves_nothing(models, tmp_path):
    both = ("-d", models / "tones.ondes", "-d", models / "noise.ondes")
    process = start("separate", "-", *both, "--raw", str(SR), "-o", tmp_path / "out")
    process.stdin.write(noise(0, 20).tobytes())
    process.stdin.flush()
    process.send_signal(signal.SIGTERM)
    _, stderr = finish(process)
    assert process.returncode == 130
    assert lines(stderr) == ["ondes: interrupted; nothing unfinished was kept."]
    assert not list(tmp_path.iterdir())


def test_labels_of_a_model_cannot_lead_out_of_the_folder(models, tmp_path):
    model = load(models / "tones.ondes")
    model.groups = ["../../a", "../../a", "/b", "/b"]
    save(model, tmp_path / "m.ondes")
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
        ("--sources", "30"),
    ],
)
def test_separate_explains_misuse(models, tmp_path, arguments):
    arguments = [argument.format(models=models) for argument in arguments]
    done = run("separate", models / "mix.wav", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Usage: ondes separate" in done.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_dictionaries_that_do_not_fit_together_are_told(models, tmp_path):
    run("learn", models / "noise.wav", "-o", tmp_path / "m.ondes", "-k", "2", "--sr", SR)
    both = ("-d", models / "tones.ondes", "-d", tmp_path / "m.ondes")
    done = run("separate", models / "mix.wav", *both, cwd=tmp_path)
    assert done.returncode == 1
    assert "know different frames" in lines(done.stderr)[0]


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
    assert "exists already" in lines(done.stderr)[0]


def test_demo_prints_its_scores_and_writes_sounds_models_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr("ondes.demo.N_COMPONENTS", 3)  # a light page; scores have their own test
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
    assert run("demo", "-o", tmp_path / "demo").returncode == 1


def test_demo_gains_8_db_on_every_source_of_a_tune_it_did_not_learn_from(tmp_path, monkeypatch):
    monkeypatch.setattr("ondes.demo.find_spec", lambda _: None)  # without the page
    result = run_demo(tmp_path / "demo")
    assert result.report is None
    for name, before in result.mixture_scores.items():
        assert result.separated_scores[name] - before > 8


# ---- score, info, help ----


def test_score_ranks_models_by_how_well_they_explain(models):
    costs = {}
    for name in ("tones", "noise"):
        soundfile.write(models / "held-out.wav", tones(9), SR)
        done = run("score", models / "held-out.wav", "-d", models / f"{name}.ondes", "--json")
        assert (done.returncode, done.stderr) == (0, b"")
        costs[name] = json.loads(done.stdout)["divergence"]
    assert costs["tones"] < costs["noise"]


def test_score_weighs_files_by_their_frames_and_tells_of_the_bad(models, tmp_path):
    soundfile.write(tmp_path / "long.wav", tones(1), SR)
    soundfile.write(tmp_path / "short.wav", noise(1, 0.5), SR)
    (tmp_path / "text.wav").write_text("no sound")
    files = [tmp_path / name for name in ("long.wav", "short.wav", "text.wav")]
    done = run("score", *files, "-d", models / "tones.ondes", "--json")
    assert done.returncode == 3
    assert len(lines(done.stderr)) == 1
    result = json.loads(done.stdout)
    rows = result["files"]
    assert [Path(row["file"]).name for row in rows] == ["long.wav", "short.wav"]
    total = sum(row["n_frames"] * row["divergence"] for row in rows)
    assert result["divergence"] == pytest.approx(total / sum(row["n_frames"] for row in rows))
    table = lines(run("score", *files, "-d", models / "tones.ondes").stdout)
    assert table[-1].split() == ["all", str(result["n_frames"]), f"{result['divergence']:.4f}"]


def test_info_tells_of_models_and_of_the_system(models, tmp_path):
    told = json.loads(run("info", models / "tones.ondes", "--json").stdout)
    assert (told["n_components"], told["sr"], told["n_fft"]) == (4, SR, 128)
    assert told["files"] == [str(models / "tones.wav")]
    told = json.loads(run("info", "--system", "--json").stdout)
    assert {"ondes", "python", "native_kernel", "numpy", "extra_report"} <= set(told)
    assert run("info").returncode == 2
    done = run("info", models / "tones.wav")
    assert done.returncode == 1
    assert lines(done.stderr) == [f"ondes: {models / 'tones.wav'}: is not an ondes model."]


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
    told = run("--help").stdout.decode()
    for command in ("demo", "learn", "separate", "report", "score", "info", "completion"):
        assert f"\n  {command} " in told
        shown = run(command, "--help")
        assert shown.returncode == 0
        assert "\\b" not in told + shown.stdout.decode()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_program(shell):
    done = run("completion", shell)
    assert done.returncode == 0
    assert "_ONDES_COMPLETE" in done.stdout.decode()


def test_the_exception_is_shown_only_where_asked_for(models, monkeypatch):
    assert run("info", models / "mix.wav").returncode == 1
    monkeypatch.setenv("ONDES_DEBUG", "1")
    with pytest.raises(ModelFileError, match="not an ondes model"):
        main(["info", str(models / "mix.wav")])


def test_a_reader_that_leaves_early_gets_no_traceback(models):
    command = f"{sys.executable} -m ondes info {models / 'tones.ondes'} | true"
    done = subprocess.run(command, shell=True, env=ENVIRONMENT, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr
