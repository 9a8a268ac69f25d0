"""Manifests: every line a recording, with its times; a million of them are a list."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from plain_settings import PLAIN

import ondes
from ondes.errors import FileError
from ondes.signal.locations import RemotePath, Span
from ondes.signal.recordings import find_recordings

SR = 8000
SMALL = {"sr": SR, "n_fft": 128, "hop_length": 64, **PLAIN}


@pytest.fixture
def album(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a.wav", "b c.flac", "sub/d,e.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, rng.uniform(-0.5, 0.5, 4 * SR), SR)
    return tmp_path


def listed(manifest, text, **how):
    manifest.write_text(text, **how)
    return find_recordings(f"@{manifest}")


TEXT = "#EXTM3U\n\n{0}\nb c.flac\n#EXTINF:1,A title\nsub/d,e.wav\nhttps://h/x.ogg\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_text_file_of_paths_and_urls(album, newline, encoding):
    text = TEXT.format(album / "a.wav")
    found = listed(album / "list.m3u", text, newline=newline, encoding=encoding)
    names = ["a.wav", "b c.flac", "sub/d,e.wav"]
    assert found == [*(album / name for name in names), RemotePath("https://h/x.ogg")]


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_a_csv_file_with_times(album, delimiter):
    rows = [
        ("Title", "start", "Path", "end"),
        ("one", "1.5", "a.wav", "3"),
        ("two", "", "b c.flac", ""),
        ("three", "2", '"sub/d,e.wav"', ""),
        ("four", "", "a.wav", "0.5"),
    ]
    text = "\n".join(delimiter.join(row) for row in rows)
    assert listed(album / "list.csv", text) == [
        Span(album / "a.wav", 0.0, 0.5),
        Span(album / "a.wav", 1.5, 3.0),
        album / "b c.flac",
        Span(album / "sub/d,e.wav", 2.0),
    ]


RAVEN = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)"


def test_a_selection_table_of_raven(album):
    """One sound, whose name the table has; a sequence, whose times go on; one made elsewhere."""
    rows = "1\tWaveform 1\t1\t0.5\t2\t100\t900\n1\tSpectrogram 1\t1\t0.5\t2\t100\t900\n"
    found = listed(album / "b c.Table.1.selections.txt", f"{RAVEN}\n{rows}")
    assert found == [Span(album / "b c.flac", 0.5, 2.0)]
    header = f"{RAVEN}\tBegin Path\tFile Offset (s)\n"
    rows = f"1\tSpectrogram 1\t1\t5\t6.5\t1\t2\t{album / 'sub/d,e.wav'}\t1\n"
    rows += "2\tSpectrogram 1\t1\t9\t10\t1\t2\tC:\\Users\\me\\a.wav\t1\n"
    assert listed(album / "all.txt", header + rows) == [
        Span(album / "a.wav", 1.0, 2.0), Span(album / "sub/d,e.wav", 1.0, 2.5)
    ]  # fmt: skip
    with pytest.raises(FileError, match="recording 1 has no path, or invalid times"):
        listed(album / "nothing.txt", f"{RAVEN}\n1\tSpectrogram 1\t1\t0\t1\t1\t2\n")


def test_a_relative_path_counts_from_the_manifest(album, monkeypatch):
    monkeypatch.chdir(album / "sub")
    assert listed(Path("..", "list.txt"), "a.wav\n")[0].resolve() == album / "a.wav"


def test_learning_from_a_manifest_is_learning_from_its_parts(album):
    text = "path,start,end\na.wav,0.5,2\nb c.flac,,\n"
    (album / "list.csv").write_text(text)
    from_list = ondes.learn(f"@{album / 'list.csv'}", 3, **SMALL)
    parts = [Span(album / "a.wav", 0.5, 2), album / "b c.flac"]
    assert from_list.components.tobytes() == ondes.learn(parts, 3, **SMALL).components.tobytes()


def test_commands_take_manifests_and_name_the_line_that_is_wrong(album):
    (album / "list.txt").write_text("a.wav\ngone.wav\n")
    command = [sys.executable, "-m", "ondes", "learn", f"@{album / 'list.txt'}"]
    command += ["-k", "2", "--sr", str(SR), "--n-fft", "128", "-o", str(album / "m.ondes")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "gone.wav: cannot be read (No such file" in done.stderr
    done = subprocess.run(
        [*command[:4], "@-", *command[5:], "--force"],
        input=str(album / "a.wav"),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lists no recordings"),
        ("# nothing\n\n", "lists no recordings"),
        ("path,start\na.wav,x\n", "recording 1 has no path, or invalid times"),
        ("path,start,end\na.wav,,\na.wav,5,4\n", "recording 2 has no path, or invalid times"),
        ("title,path\nonly a title\n", "recording 1 has no path"),
        ("path,end\na.wav,inf\n", "invalid times"),
        ("x" * 70_000, "is not a manifest"),
        ("a\0b\n", "is not a manifest"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_sentence(album, text, reason):
    with pytest.raises(FileError, match=reason) as caught:
        listed(album / "list.csv", text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_recording_or_nothing_in_place_of_a_manifest(album):
    for name, reason in {"b c.flac": "is not a manifest", "gone.txt": "No such file"}.items():
        with pytest.raises(FileError, match=reason):
            find_recordings(f"@{album / name}")


def test_a_file_whose_name_begins_with_an_at_sign_is_a_file(album, monkeypatch):
    monkeypatch.chdir(album)
    Path("a.wav").rename("@a.wav")
    assert find_recordings("@a.wav") == [Path("@a.wav")]


def test_many_lines_take_little_memory(tmp_path):
    """A hundred thousand here; a million take ten times as much."""
    code = """
import resource, sys
from ondes.signal.finding import find_recordings
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = find_recordings("@" + sys.argv[1])
print(len(found), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    lines = io.StringIO()
    for number in range(100_000):
        lines.write(f"/corpus/{number // 1000}/recording-{number}.flac\n")
    (tmp_path / "list.txt").write_text(lines.getvalue())
    command = [sys.executable, "-c", code, str(tmp_path / "list.txt")]
    n_found, n_bytes = map(int, subprocess.check_output(command).split())
    assert n_found == 100_000
    assert n_bytes < 1024 * n_found


def test_a_malformed_url_is_named_and_the_others_are_found(album):
    found = listed(album / "list.txt", f"{album / 'a.wav'}\nhttp://[not-an-address/b.wav\n")
    assert [each.name for each in found] == ["a.wav", "b.wav"]


def test_a_field_of_a_csv_that_never_ends_is_named(album):
    rows = "\n".join("x" * 60 for _ in range(4000))
    with pytest.raises(FileError, match=r"^@.*list\.csv: is not CSV after recording \d+: .*\.$"):
        listed(album / "list.csv", f'path,start\na.wav,1\n"{rows}')
