"""A file's name is a name: it opens no other file, leads nowhere, and cannot draw on a terminal."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest
from hostile import (
    SMALL,
    by_ffmpeg,
    everything_under,
    noise,
    run,
    run_in_terminal,
    tones,
    write_sound,
)

import ondes

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J"
NEEDS_AV = pytest.importorskip("av", reason="needs the extra `formats`")


@pytest.fixture(scope="module")
def m4a():
    return by_ffmpeg(tones(), "ipod", "aac")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, samples in {"tones": tones(1), "noise": noise(1)}.items():
        write_sound(folder / f"{name}.wav", samples)
        done = run("learn", folder / f"{name}.wav", "-o", folder / f"{name}.ondes", *SMALL)
        assert done.returncode == 0
    return ["-d", folder / "tones.ondes", "-d", folder / "noise.ondes"]


@pytest.fixture
def listener():
    """A server on this machine, and whether anybody came."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        visits = []

        def accept():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                visits.append(connection)
                connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], visits
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def has_control_characters(data):
    """Whether anything but plain lines reached a stream that is no terminal."""
    text = data.decode(errors="surrogateescape")
    return not all(line.isprintable() for line in text.splitlines())


# ---- names that FFmpeg takes for protocols ----


@pytest.mark.parametrize(
    "name",
    [
        "Mozart: Requiem.m4a",
        "http:song.m4a",
        "concat:a|b.m4a",
        "subfile,,start,0,end,9,,:a.m4a",
        "file:song.m4a",
        "pipe:0.m4a",
        "data:audio,x.m4a",
        "cache:song.m4a",
        "-i.m4a",
        "%d.m4a",
    ],
)
def test_any_name_can_be_the_name_of_a_recording(tmp_path, m4a, name):
    (tmp_path / name).write_bytes(m4a)
    done = run("learn", ".", "-o", "m.ondes", *SMALL, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert ondes.load(tmp_path / "m.ondes").history.n_failed == 0


def test_a_folder_called_http_is_a_folder_and_nobody_is_asked(tmp_path, m4a, listener):
    port, visits = listener
    song = tmp_path / "http:" / f"127.0.0.1:{port}" / "song.m4a"
    song.parent.mkdir(parents=True)
    song.write_bytes(m4a)
    (song.parent / "other.mkv").write_bytes(b"no recording at all, so every reader is tried")
    done = run("learn", ".", "-o", "m.ondes", *SMALL, cwd=tmp_path)
    assert not visits
    assert done.returncode == 3
    assert len(done.lines) == 1
    assert "other.mkv" in done.lines[0]


@pytest.mark.parametrize(
    "name", ["concat:secret", "subfile,,start,0,end,0,,:secret", "file:secret"]
)
@pytest.mark.parametrize("command", ["learn", "separate"])
def test_a_name_cannot_make_the_program_read_another_file(tmp_path, m4a, models, name, command):
    (tmp_path / "secret").write_bytes(m4a)
    (tmp_path / name).write_text("no recording")
    how = ["-o", "m.ondes", *SMALL] if command == "learn" else ["-o", "out", *models]
    done = run(command, name, *how, cwd=tmp_path)
    assert done.returncode == 1
    assert everything_under(tmp_path) == sorted(["secret", name])


def test_a_recording_cannot_name_other_files_to_read(tmp_path):
    """A playlist's entries: no protocol but the file's own may be opened by what a file holds."""
    shutil.copy(write_sound(tmp_path / "secret.wav"), tmp_path / "copy.wav")
    lists = {
        "list.m4a": "ffconcat version 1.0\nfile secret.wav\n",
        "list.mp4": "#EXTM3U\n#EXTINF:2,\nsecret.wav\n#EXT-X-ENDLIST\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        done = run("learn", name, "-o", "m.ondes", *SMALL, cwd=tmp_path)
        assert done.returncode == 1
        assert not (tmp_path / "m.ondes").exists()


# ---- names that lead somewhere ----


@pytest.mark.parametrize(
    "name", ["...wav", "..wav", "....wav", "~.wav", "..%2f..wav", "a\\..\\b.wav"]
)
def test_stems_stay_in_the_output_folder_whatever_the_mix_is_called(tmp_path, models, name):
    write_sound(tmp_path / name)
    output = tmp_path / "x" / "y" / "out"
    done = run("separate", f"./{name}", "-o", output, *models, cwd=tmp_path)
    assert done.returncode == 0
    written = {path for path in tmp_path.rglob("*.wav") if path != tmp_path / name}
    assert len(written) == 2
    for path in written:
        assert path.parent.parent == output
        assert path.parent.resolve().parent == output.resolve()


def test_tracks_of_dots_alone_do_not_share_a_folder(tmp_path, models):
    names = ["..wav", "...wav", "....wav"]
    for name in names:
        write_sound(tmp_path / name)
    done = run("separate", *(f"./{name}" for name in names), "-o", "out", *models, cwd=tmp_path)
    assert done.returncode == 0
    assert len({path.parent.resolve() for path in (tmp_path / "out").rglob("*.wav")}) == 3


def test_recordings_of_one_name_are_told_apart_by_their_folder(tmp_path, models):
    for folder in ("one", "two"):
        write_sound(tmp_path / folder / "take.wav", tones(len(folder)))
    mixes = ["one/take.wav", "two/take.wav"]
    done = run("separate", *mixes, "-o", "out", *models, cwd=tmp_path)
    assert done.returncode == 2
    assert "{folder}" in done.stderr.decode()
    pattern = ["--filename", "{folder}/{track}/{stem}.{ext}"]
    done = run("separate", *mixes, "-o", "out", *pattern, *models, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    stems = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.wav")}
    expected = {f"{f}/take/{s}.wav" for f in ("one", "two") for s in ("tones", "noise")}
    assert stems == expected


@pytest.mark.parametrize("mix", ["../outside.wav", "./here.wav", "{absolute}", "deep/../here.wav"])
def test_the_folder_of_a_recording_leads_nowhere_else(tmp_path, models, mix):
    work = tmp_path / "work"
    (work / "deep").mkdir(parents=True)
    for path in (tmp_path / "outside.wav", work / "here.wav"):
        write_sound(path)
    given = mix.format(absolute=work / "here.wav")
    pattern = ["--filename", "{folder}/{track}-{stem}.{ext}"]
    done = run("separate", given, "-o", "out", *pattern, *models, cwd=work)
    assert done.returncode == 0
    assert len(list((work / "out").rglob("*.wav"))) == 2
    assert len(list(tmp_path.rglob("*.wav"))) == 4


# ---- names that a terminal would obey ----


@pytest.mark.parametrize("command", ["score", "separate", "learn"])
def test_a_name_in_the_progress_bar_cannot_draw_on_the_terminal(tmp_path, models, command):
    write_sound(tmp_path / f"{ESCAPES}.wav")
    given = {
        "score": ["score", ".", *models[:2]],
        "separate": ["separate", ".", "-o", "out", *models],
        "learn": ["learn", ".", "-o", "m.ondes", *SMALL],
    }
    done = run_in_terminal(*given[command], cwd=tmp_path)
    assert done.returncode == 0
    for sequence in (b"\x1b]0;", b"\x07", "\x9b".encode()):
        assert sequence not in done.stderr
    assert not has_control_characters(done.stdout)


def test_a_bad_recording_is_named_without_its_escape_sequences(tmp_path):
    (tmp_path / f"{ESCAPES}.wav").write_text("no recording")
    for done in (
        run_in_terminal("learn", ".", "-o", "m.ondes", *SMALL, cwd=tmp_path),
        run("learn", ".", "-o", "m.ondes", *SMALL, cwd=tmp_path),
    ):
        assert done.returncode == 1
        assert b"\x1b]0;" not in done.stderr
        assert "\x9b".encode() not in done.stderr


@pytest.mark.parametrize("name", [f"{ESCAPES}.ondes", "a\nondes: all is well.ondes"])
def test_what_is_printed_of_a_model_s_name_is_printable(tmp_path, name):
    sound = write_sound(tmp_path / "a.wav")
    command = ["learn", sound, "-o", tmp_path / name, *SMALL]
    for more in ([], [], ["--resume"]):  # done, refused, nothing left to do
        done = run(*command, *more)
        assert not has_control_characters(done.stdout)
        assert not has_control_characters(done.stderr)
        assert len((done.stdout + done.stderr).decode().splitlines()) <= 2


def test_a_source_is_printed_without_its_escape_sequences(tmp_path, models):
    mix = write_sound(tmp_path / "mix.wav")
    renamed = ["-d", f"{ESCAPES}={models[1]}", *models[2:]]
    done = run("separate", mix, "-o", tmp_path / "out", *renamed)
    assert not has_control_characters(done.stdout)
    assert not has_control_characters(done.stderr)


@pytest.mark.parametrize("name", ["mk[/x].wav", "[bold]loud.wav", "[link=http://x]y[/link].wav"])
@pytest.mark.parametrize("command", ["score", "separate"])
def test_brackets_in_a_name_are_no_markup(tmp_path, models, name, command):
    path = write_sound(tmp_path / name)
    given = ["score", path, *models[:2]]
    if command == "separate":
        given = ["separate", path, "-o", tmp_path / "out", *models]
    done = run_in_terminal(*given)
    assert done.returncode == 0
    assert path.name.encode() in done.stderr


def test_text_from_a_foreign_lock_file_is_printable(tmp_path):
    sound, lock = write_sound(tmp_path / "a.wav"), tmp_path / ".m.ondes.lock"
    lock.write_text(f"{ESCAPES} it says, \nondes: done")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run("learn", sound, "-o", tmp_path / "m.ondes", *SMALL)
    assert done.returncode == 1
    assert len(done.lines) == 1
    assert done.lines[0].isprintable()


def test_a_name_that_is_not_utf_8_is_a_name(tmp_path, models):
    for name in (b"caf\xe9.wav", b"\xff\xfe.wav"):
        write_sound(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    (tmp_path / os.fsdecode(b"bad\xe9.wav")).write_text("no recording")
    done = run("learn", ".", "-o", "m.ondes", *SMALL, "--json", cwd=tmp_path)
    assert done.returncode == 3
    assert len(done.lines) == 1
    assert done.result["n_failed"] == 1
    assert ondes.load(tmp_path / "m.ondes").history.n_failed == 1
    done = run(
        "separate", *(p for p in Path(tmp_path).glob("*.wav")), "-o", tmp_path / "o", *models
    )
    assert done.returncode == 3
    assert len(list((tmp_path / "o").rglob("*.wav"))) == 4
    done = run("levels", b"caf\xe9.wav", "-o", "-", *models, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\ncaf\xe9.wav," in done.stdout
