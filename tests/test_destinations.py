"""Where results go: full disks, links, devices, modes, long names, and what is said of failures."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hostile import (
    SMALL,
    SR,
    ending,
    everything_under,
    noise,
    run,
    start,
    tones,
    wait_until,
    write_sound,
)

import ondes
from ondes.atomic_file import write_atomically
from ondes.errors import FileError
from ondes.signal.audio_writer import write_audio

PAGE = 4096
FORMATS = ["flac", "wav", "aiff", "rf64"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, samples in {"tones": tones(1), "noise": noise(1)}.items():
        write_sound(folder / f"{name}.wav", samples)
        done = run("learn", folder / f"{name}.wav", "-o", folder / f"{name}.ondes", *SMALL)
        assert done.returncode == 0
    write_sound(folder / "mix.wav", noise(2) + tones(2))
    return folder


def both(models):
    return ["-d", models / "tones.ondes", "-d", models / "noise.ondes"]


# ---- full disks ----


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 pages."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={64 * PAGE}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder, n_free):
    """Fill a small disk but for so many pages."""
    disk = os.statvfs(folder)
    n_pages = disk.f_bavail * disk.f_bsize // PAGE - n_free
    (folder / "ballast").write_bytes(bytes(n_pages * PAGE))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_recording_on_a_full_disk_is_whole_or_refused_at_every_size(small_disk, suffix):
    fill(small_disk, 3)
    path = small_disk / f"a.{suffix}"
    sound = np.random.default_rng(0).uniform(-1, 1, 6000).astype(np.float32)
    n_whole = n_refused = 0
    for n_samples in range(2400, 4600, 23):  # 12288 bytes hold 3072 samples of 4 bytes
        try:
            write_audio(path, [sound[:n_samples]], SR)
        except FileError:
            n_refused += 1
        else:
            n_whole += 1
            written, _ = soundfile.read(path, dtype="float32")
            assert len(written) == n_samples
            assert np.abs(written - sound[:n_samples]).max() < 1e-6
            path.unlink()
        assert everything_under(small_disk) == ["ballast"], n_samples
    assert n_whole
    assert n_refused


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_recording_that_finds_no_room_says_so(small_disk, suffix):
    fill(small_disk, 3)
    sound = np.random.default_rng(0).uniform(-1, 1, 9000).astype(np.float32)
    for n_samples in (4500, 9000):
        with pytest.raises(FileError, match="No space left on device"):
            write_audio(small_disk / f"a.{suffix}", [sound[:n_samples]], SR)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_recording_of_many_blocks_on_a_full_disk_is_whole_or_refused(small_disk, suffix):
    fill(small_disk, 8)
    path = small_disk / f"a.{suffix}"
    sound = np.random.default_rng(0).uniform(-1, 1, 14000).astype(np.float32)
    for n_samples in range(7000, 14000, 211):
        blocks = [
            sound[first : min(first + 1000, n_samples)] for first in range(0, n_samples, 1000)
        ]
        try:
            write_audio(path, blocks, SR)
        except FileError:
            pass
        else:
            assert len(soundfile.read(path)[0]) == n_samples
            path.unlink()
        assert everything_under(small_disk) == ["ballast"], n_samples


@pytest.mark.parametrize("flac", [[], ["--flac"]])
def test_stems_that_a_size_limit_cuts_never_appear(models, tmp_path, flac):
    """The same without a disk of one's own: no file may be larger than so."""
    whole = tmp_path / "whole"
    assert run("separate", models / "mix.wav", *both(models), *flac, "-o", whole).returncode == 0
    sizes = {path.stat().st_size for path in (whole / "mix").iterdir()}
    n_done = 0
    for limit in range(min(sizes) - 1500, max(sizes) + 300, 300):
        output = tmp_path / f"out {limit}"
        done = run(
            *("separate", models / "mix.wav", *both(models), *flac, "-o", output), file_size=limit
        )
        if done.returncode == 0:
            n_done += 1
            assert len(everything_under(output / "mix")) == 2
            for path in (output / "mix").iterdir():
                assert len(soundfile.read(path)[0]) == 2 * SR
        else:
            assert done.returncode == 1
            (line,) = done.lines
            assert "cannot be written (File too large)" in line
            assert not output.exists()
    assert n_done


@pytest.mark.parametrize("flac", [[], ["--flac"]])
def test_a_full_disk_under_stems_is_called_so(models, small_disk, flac):
    fill(small_disk, 4)
    done = run("separate", models / "mix.wav", *both(models), *flac, "-o", small_disk / "out")
    assert done.returncode == 1
    (line,) = done.lines
    assert "cannot be written (No space left on device)" in line
    assert everything_under(small_disk) == ["ballast"]


# ---- links, devices, pipes ----


@pytest.mark.parametrize("target", ["file", "absent"])
def test_the_lock_follows_no_link(models, tmp_path, target):
    folder, precious = tmp_path / "folder", tmp_path / "precious"
    folder.mkdir()
    if target == "file":
        precious.write_text("precious")
    (folder / ".m.ondes.lock").symlink_to(precious)
    done = run("learn", models / "tones.wav", "-o", folder / "m.ondes", *SMALL)
    assert done.returncode in (0, 1)
    assert len(done.lines) == done.returncode
    if target == "file":
        assert precious.read_text() == "precious"
    else:
        assert not precious.exists()


def make_special(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_force_replaces_files_alone(models, tmp_path, kind):
    special = tmp_path / "special.ondes"
    make_special(special, kind)
    before = special.stat()
    done = run("learn", models / "tones.wav", "-o", special, *SMALL, "--force", patience=5.0)
    assert done.returncode == 1
    assert len(done.lines) == 1
    assert special.stat().st_mode == before.st_mode
    with pytest.raises(FileError):
        write_atomically(special, b"data", force=True)
    assert special.stat().st_mode == before.st_mode


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_force_replaces_no_device_with_a_stem(models, tmp_path, kind):
    special = tmp_path / "out" / "mix" / "noise.wav"
    special.parent.mkdir(parents=True)
    make_special(special, kind)
    before = special.stat()
    how = ["-o", tmp_path / "out", "--force"]
    done = run("separate", models / "mix.wav", *both(models), *how, patience=5.0)
    assert done.returncode == 1
    assert special.stat().st_mode == before.st_mode
    assert everything_under(tmp_path / "out" / "mix") == ["noise.wav"]


def test_force_replaces_no_device_with_a_checkpoint(models, tmp_path):
    special = tmp_path / "c"
    os.mkfifo(special)
    how = ["--checkpoint", special, "--force", "--checkpoint-every", "0"]
    output = ["-o", tmp_path / "m.ondes"]
    done = run("learn", models / "tones.wav", *output, *SMALL, *how, patience=5.0)
    assert done.returncode == 1
    assert stat.S_ISFIFO(special.stat().st_mode)


def test_a_link_to_nothing_is_replaced_by_force_alone(models, tmp_path):
    link = tmp_path / "m.ondes"
    link.symlink_to(tmp_path / "absent")
    command = ["learn", models / "tones.wav", "-o", link, *SMALL]
    done = run(*command)
    assert done.returncode == 1
    (line,) = done.lines
    assert "m.ondes: exists already" in line
    assert link.is_symlink()
    assert everything_under(tmp_path) == ["m.ondes"]


def test_a_stem_replaces_no_link_to_nothing(models, tmp_path):
    link = tmp_path / "out" / "mix" / "noise.wav"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "absent")
    done = run("separate", models / "mix.wav", *both(models), "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "noise.wav: exists already" in done.lines[0]
    assert everything_under(tmp_path) == ["out", "out/mix", "out/mix/noise.wav"]


# ---- modes ----


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_that_the_umask_leaves(models, tmp_path, umask):
    done = run("learn", models / "tones.wav", "-o", tmp_path / "m", *SMALL, umask=umask)
    assert done.returncode == 0
    assert mode_of(tmp_path / "m") == 0o666 & ~umask
    done = run("separate", models / "mix.wav", *both(models), "-o", tmp_path / "out", umask=umask)
    assert done.returncode == 0
    for path in (tmp_path / "out" / "mix").iterdir():
        assert mode_of(path) == 0o666 & ~umask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_that_is_replaced_keeps_its_mode(models, tmp_path, mode):
    model, stem = tmp_path / "m.ondes", tmp_path / "out" / "mix" / "noise.wav"
    stem.parent.mkdir(parents=True)
    for path in (model, stem):
        path.write_text("old")
        path.chmod(mode)
    assert run("learn", models / "tones.wav", "-o", model, *SMALL, "--force").returncode == 0
    output = ["-o", tmp_path / "out", "--force"]
    assert run("separate", models / "mix.wav", *both(models), *output).returncode == 0
    assert mode_of(model) == mode
    assert mode_of(stem) == mode


# ---- long names ----


@pytest.mark.parametrize(
    "name",
    ["x" * 249 + ".ondes", "é" * 124 + ".ondes", "声" * 83 + ".ondes", "x" * 240 + ".ondes"],
    ids=["255 bytes", "254 bytes of two", "255 bytes of three", "246 bytes"],
)
def test_a_model_may_have_any_name_that_the_disk_takes(models, tmp_path, name):
    command = ["learn", models / "tones.wav", "-o", tmp_path / name, *SMALL]
    done = run(*command)
    assert (done.returncode, done.stderr) == (0, b"")
    assert run(*command, "--force", "--checkpoint-every", "0").returncode == 0
    assert everything_under(tmp_path) == [name]
    ondes.load(tmp_path / name)


@pytest.mark.parametrize("letter", ["x", "é", "声"])
def test_a_stem_may_have_any_name_that_the_disk_takes(models, tmp_path, letter):
    n = 245 // len(letter.encode())
    mix = write_sound(tmp_path / f"{letter * n}.wav")
    pattern = ["--filename", "{track}-{stem}.{ext}"]
    done = run("separate", mix, *both(models), *pattern, "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(everything_under(tmp_path / "out")) == 2


def test_a_name_that_no_disk_takes_is_refused_before_any_work(models, tmp_path):
    done = run("learn", models / "tones.wav", "-o", tmp_path / ("x" * 256), *SMALL)
    assert done.returncode == 1
    (line,) = done.lines
    assert "File name too long" in line
    assert "bug" not in line


# ---- what a killed process leaves ----


def test_a_killed_separation_is_cleared_away_by_the_next(models, tmp_path):
    output = ["-o", tmp_path / "out", "--filename", "{stem}.{ext}"]
    command = ["separate", "-", *both(models), "--raw", f"{SR}:1:s16le", *output]
    parts = lambda: list((tmp_path / "out").glob(".*.part"))  # noqa: E731
    with ending(start(*command, stdin=subprocess.PIPE)) as process:
        for _ in range(200):
            process.stdin.write(noise(0, 1).tobytes())
            process.stdin.flush()
            if len(parts()) == 2:
                break
        wait_until(lambda: len(parts()) == 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(parts()) == 2
    done = run("separate", models / "mix.wav", *both(models), *output)
    assert done.returncode == 0
    assert everything_under(tmp_path / "out") == ["noise.wav", "tones.wav"]


# ---- what is said ----


@pytest.mark.parametrize("how", ["dictionaries", "none"])
def test_a_silent_mix_is_named(models, tmp_path, how):
    for name, samples in {"a": tones(0), "silent": np.zeros(SR, np.int16), "b": tones(1)}.items():
        write_sound(tmp_path / f"{name}.wav", samples)
    mixes = [tmp_path / f"{name}.wav" for name in ("a", "silent", "b")]
    sources = both(models) if how == "dictionaries" else ["--sources", "2", "-k", "4", "-j", "1"]
    done = run("separate", *mixes, *sources, "-o", tmp_path / "out", "--json")
    assert done.returncode in (0, 3)
    tracks = {Path(track["track"]).name: track["stems"] for track in done.result["tracks"]}
    assert {"a.wav", "b.wav"} <= set(tracks)
    for stems in tracks.values():
        assert all(Path(stem).is_file() for stem in stems.values())
    if "silent.wav" not in tracks:
        assert done.returncode == 3
        assert len(done.lines) == 1
        assert "silent.wav" in done.lines[0]


def test_standard_output_is_no_file_called_minus(models, tmp_path):
    done = run("learn", models / "tones.wav", "-o", "-", *SMALL, cwd=tmp_path)
    assert everything_under(tmp_path) == []
    if done.returncode == 0:
        (tmp_path / "m.ondes").write_bytes(done.stdout)
        ondes.load(tmp_path / "m.ondes")
    else:
        assert done.returncode == 2
        assert "Usage: ondes learn" in done.stderr.decode()


def test_separate_makes_no_folder_called_minus(models, tmp_path):
    done = run("separate", models / "mix.wav", *both(models), "-o", "-", cwd=tmp_path)
    assert done.returncode == 2
    assert everything_under(tmp_path) == []


def bad_recordings(folder):
    """One good recording, and one of each way to fail: absent, at once, while it is read."""
    write_sound(folder / "good.wav")
    (folder / "text.wav").write_text("no recording")
    samples = tones(1).astype(np.float32)
    samples[9000] = np.nan
    write_sound(folder / "nan.wav", samples, subtype="FLOAT")
    return ["absent.wav", "text.wav", "nan.wav"]


@pytest.mark.parametrize("command", ["learn", "score", "separate"])
def test_json_names_every_failure_and_why(models, tmp_path, command):
    bad = bad_recordings(tmp_path)
    given = {
        "learn": ["-o", tmp_path / "m.ondes", *SMALL],
        "score": ["-d", models / "tones.ondes"],
        "separate": [*both(models), "-o", tmp_path / "out"],
    }
    files = [tmp_path / name for name in ("good.wav", *bad)]
    done = run(command, *files, *given[command], "--json")
    assert done.returncode == 3
    assert done.result["n_failed"] == 3
    failures = done.result["failures"]
    assert len(failures) == 3
    for name in bad:
        (entry,) = [each for each in failures if name in str(each)]
        (line,) = [line for line in done.lines if name in line]
        reason = line.partition(f"{name}: ")[2].rstrip(".")
        assert reason
        assert reason in str(entry)


@pytest.mark.parametrize(
    "failing", [["absent.wav"], ["text.wav"], ["nan.wav"], ["absent.wav", "text.wav"]]
)
def test_the_number_of_files_counts_each_kind_of_failure_alike(tmp_path, failing):
    """All that were named, as the number of those that failed does: the rest was learned from."""
    bad_recordings(tmp_path)
    files = [tmp_path / name for name in ("good.wav", *failing)]
    done = run("learn", *files, "-o", tmp_path / "m.ondes", *SMALL, "--json")
    assert done.returncode == 3
    history = ondes.load(tmp_path / "m.ondes").history
    expected = (1 + len(failing), len(failing))
    assert (done.result["n_files"], done.result["n_failed"]) == expected
    assert (history.n_files, history.n_failed) == expected


def test_more_components_than_the_sound_can_fill_bring_a_warning(tmp_path):
    sound = write_sound(tmp_path / "short.wav", tones(0, 0.1))
    how = ["-k", "64", "--sr", SR, "--n-fft", "128", "-j", "1"]
    done = run("learn", sound, "-o", tmp_path / "m.ondes", *how)
    assert done.returncode == 0
    (line,) = done.lines
    assert "64" in line
    plenty = write_sound(tmp_path / "long.wav", tones(0, 20))
    done = run("learn", plenty, "-o", tmp_path / "n.ondes", *SMALL)
    assert (done.returncode, done.stderr) == (0, b"")
