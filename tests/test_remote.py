"""Recordings at URLs: what they give is what the same files give on a disk."""

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hostile import ending, start, wait_until
from hostile_server import ANSWERS, FOLDERS, SILENT_TO_ALL, hostile_server
from loopback import serving, without_proxies
from plain_settings import PLAIN

import ondes
from ondes.errors import FileError
from ondes.signal import remote
from ondes.signal.locations import RemotePath, Span
from ondes.signal.recordings import RawFormat, find_recordings, open_blocks, probe, read

pytest.importorskip("aiohttp", reason="needs the extra `remote`")
HTTPFileSystem = pytest.importorskip("fsspec.implementations.http").HTTPFileSystem

SR = 8000
SMALL = {"sr": SR, "n_fft": 128, "hop_length": 64, **PLAIN}
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
FORMATS = {
    "a.wav": {},
    "b/c d.flac": {},
    "b/e.ogg": {},
    "f.opus": {"format": "OGG", "subtype": "OPUS"},
    "g.mp3": {"format": "MP3"},
}


def sound(seed, seconds=40):
    rng = np.random.default_rng(seed)
    tone = np.sin(np.arange(seconds * SR) * rng.uniform(0.1, 2)) * 0.3
    return tone[:, None] * [1, 0.5] + rng.uniform(-0.1, 0.1, (seconds * SR, 2))


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    folder = tmp_path_factory.mktemp("album")
    for seed, (name, how) in enumerate(FORMATS.items()):
        (folder / name).parent.mkdir(exist_ok=True)
        soundfile.write(folder / name, sound(seed), SR, **how)
    (folder / "notes.txt").write_text("not a recording")
    return folder


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No proxy, no waiting, and no file known from another server on the same port."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    remote._facts.cache_clear()
    remote._silences = remote._Silences()


@pytest.fixture(scope="module")
def learned(album):
    return ondes.learn(album, 4, n_passes=2, **SMALL).components.tobytes()


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ondes", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=without_proxies(),
    )


# ---- the same samples, the same dictionary ----


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_samples_of_the_file(album, name):
    with serving(album) as server:
        path = RemotePath(f"{server.url}/{name.replace(' ', '%20')}")
        here, there = probe(album / name), probe(path)
        facts = ("sr", "channels", "n_samples", "format", "seekable")
        assert [getattr(there, each) for each in facts] == [getattr(here, each) for each in facts]
        assert np.array_equal(read(path)[0], read(album / name)[0])
        with open_blocks(path, start=100_001) as blocks:
            assert np.array_equal(np.concatenate(list(blocks)), read(album / name)[0][100_001:])
        part = Span(path, 3, 4)
        assert np.array_equal(read(part)[0], read(Span(album / name, 3, 4))[0])


def test_a_folder_on_a_web_server_gives_the_dictionary_of_the_disk(album, learned):
    with serving(album) as server:
        given = ondes.learn(f"{server.url}/", 4, n_passes=2, **SMALL)
        assert given.components.tobytes() == learned
        assert all(asked for _, _, asked in server.requests if asked is not None)
        n_bytes = sum(path.stat().st_size for path in album.rglob("*.*"))
        assert len(server.requests) < 100 + 6 * n_bytes / remote.BLOCK_BYTES


def test_every_tenth_request_may_fail(album, learned):
    with serving(album, drop_every=10) as server:
        assert ondes.learn(f"{server.url}/", 4, n_passes=2, **SMALL).components.tobytes() == learned
        assert len(server.requests) > 20


@pytest.fixture(scope="module")
def bucket(album):
    """A folder on a store as Amazon's; the workers below know where it is."""
    for name in ("moto", "s3fs", "flask"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed here: it is of the group `peers`")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in PROXIES:
            patch.delenv(name, raising=False)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            patch.setenv(name, value)
        import s3fs

        store = s3fs.S3FileSystem(skip_instance_cache=True)
        store.mkdir("music")
        for path in (path for path in album.rglob("*.*") if path.is_file()):
            store.put_file(str(path), f"music/album/{path.relative_to(album).as_posix()}")
        yield "s3://music/album"
    server.stop()


def test_a_bucket_gives_the_dictionary_of_the_disk(album, learned, bucket):
    assert ondes.learn(bucket, 4, n_passes=2, **SMALL).components.tobytes() == learned
    globbed = find_recordings(f"{bucket}/**/*.ogg")
    assert [str(path) for path in globbed] == [f"{bucket}/b/e.ogg"]
    with pytest.raises(FileError, match=r"gone\.wav: was not found on its server"):
        probe(f"{bucket}/gone.wav")


@pytest.fixture
def workers(request):
    """Two worker processes, which inherit where the bucket is."""
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**how) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_two_workers_read_from_a_web_server_and_from_a_bucket(album, bucket, workers):
    how = {"n_shards": 2, "round_size": 4096, **SMALL}
    names = ["a.wav", "b/e.ogg"]
    here = ondes.learn([album / name for name in names], 4, cluster="in-process", **how)
    with serving(album, drop_every=10) as server:
        there = ondes.learn([f"{server.url}/{name}" for name in names], 4, cluster=workers, **how)
        n_ranges = sum(asked is not None for _, _, asked in server.requests)
    assert n_ranges > len(names)
    assert there.components.tobytes() == here.components.tobytes()
    there = ondes.learn([f"{bucket}/{name}" for name in names], 4, cluster=workers, **how)
    assert there.components.tobytes() == here.components.tobytes()


def test_recordings_in_an_archive(album, tmp_path, learned):
    archive = tmp_path / "album.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in FORMATS:
            file.write(album / name, f"album/{name}")
    assert ondes.learn(f"zip://album::{archive}", 4, n_passes=2, **SMALL).components.tobytes() == (
        learned
    )
    with serving(tmp_path) as server:
        path = f"zip://album/b/e.ogg::{server.url}/album.zip"
        assert np.array_equal(read(path)[0], read(album / "b" / "e.ogg")[0])


def test_raw_samples_from_a_url(tmp_path):
    samples = (sound(0) * 2**14).astype("<i2")
    (tmp_path / "a.raw").write_bytes(samples.tobytes())
    raw = RawFormat(SR, 2)
    with serving(tmp_path) as server:
        path = f"{server.url}/a.raw"
        assert probe(path, raw).n_samples == len(samples)
        assert np.array_equal(read(path, raw=raw)[0], samples / np.float32(2**15))


def test_commands_take_urls(album, tmp_path):
    with serving(album) as server:
        urls = [f"{server.url}/a.wav", f"{server.url}/b/e.ogg"]
        how = ["-k", "4", "--sr", SR, "--n-fft", "256", "-o", tmp_path / "m.ondes", "--json"]
        done = command("learn", *urls, *how)
        assert (done.returncode, done.stderr) == (0, "")
        done = command("score", *urls, "-d", tmp_path / "m.ondes", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert [each["file"] for each in json.loads(done.stdout)["files"]] == urls
        both = ["-d", f"a={tmp_path / 'm.ondes'}", "-d", f"b={tmp_path / 'm.ondes'}"]
        done = command("separate", f"{server.url}/a.wav", *both, "-o", tmp_path / "out")
        assert done.returncode == 0
    stems = [soundfile.read(path)[0] for path in sorted((tmp_path / "out" / "a").iterdir())]
    np.testing.assert_allclose(sum(stems), soundfile.read(album / "a.wav")[0], atol=1e-4)


# ---- what cannot be read ----


def test_what_is_gone_is_named_in_one_sentence(album, tmp_path):
    with serving(album) as server:
        gone = f"{server.url}/gone.wav"
        done = command("learn", gone, f"{server.url}/a.wav", "-k", "2", "-o", tmp_path / "m.ondes")
        assert done.returncode == 3
        assert done.stderr == f"ondes: {gone}: was not found on its server.\n"
    done = command("score", gone, "-d", tmp_path / "m.ondes")
    first, *_ = done.stderr.splitlines()
    assert done.returncode == 1
    assert "Connect" in first
    assert first.startswith(f"ondes: {gone}: cannot be read (")
    assert first.endswith("); check the address and the connection.")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("name", "raw"), [("a.wav", None), ("a.wav", RawFormat(SR, 2))])
def test_a_server_that_dies_midway_costs_the_rest_of_its_recordings(album, monkeypatch, name, raw):
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    with serving(album) as server:
        blocks = open_blocks(f"{server.url}/{name}", block_size=None, raw=raw)
        given = [next(blocks)]
        server.drop_every = 1
        with pytest.raises(FileError, match="check the address and the connection"):
            given.extend(blocks)
    samples = np.concatenate(given)
    assert np.array_equal(samples, read(album / name, raw=raw)[0][: len(samples)])


def test_a_server_without_ranges_is_named(album):
    expected = pytest.raises(FileError, match="range requests")
    with serving(album, has_ranges=False) as server, expected:
        probe(f"{server.url}/a.wav")


@pytest.mark.parametrize(
    ("url", "hidden", "reason"),
    [
        ("https://h/a.wav", "fsspec.core", r"pip install 'ondes\[remote\]'"),
        ("gs://bucket/a.wav", "gcsfs", "pip install gcsfs"),
        ("reference://a.wav", None, "has the protocol reference, which is not one of"),
        ("file:///etc/passwd.wav", None, "has the protocol file"),
        ("zip://a.wav::simplecache::https://h/b.zip", None, "has the protocol simplecache"),
    ],
)
def test_what_is_missing_or_not_allowed_is_named(monkeypatch, url, hidden, reason):
    if hidden is not None:
        monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(FileError, match=reason) as caught:
        probe(url)
    assert "\n" not in str(caught.value)


# ---- what is never a URL ----


def test_a_listing_leads_to_no_other_server(album, tmp_path):
    shutil.copy(album / "a.wav", tmp_path / "own.wav")
    with serving(album) as other:
        links = f'<a href="{other.url}/a.wav">x</a><a href="/../a.wav">y</a>'
        (tmp_path / "folder").mkdir()
        shutil.move(tmp_path / "own.wav", tmp_path / "folder" / "own.wav")
        with serving(tmp_path, more_links=links) as server:
            found = find_recordings(f"{server.url}/folder/")
            assert [str(path) for path in found] == [f"{server.url}/folder/own.wav"]
        assert other.requests == []


def test_a_file_in_a_folder_is_never_a_url(tmp_path, monkeypatch):
    with serving(tmp_path) as server:
        hostile = tmp_path / "songs" / server.url.replace("//", "")
        hostile.parent.mkdir()
        hostile = hostile.with_name(hostile.name + "a.wav")
        soundfile.write(hostile, sound(0, 2), SR)
        monkeypatch.chdir(tmp_path / "songs")
        assert find_recordings(".") == [Path(hostile.name)]
        assert np.array_equal(read(hostile.name)[0], read(hostile)[0])
        assert server.requests == []


def test_neither_a_password_nor_a_key_is_printed_or_kept():
    path = RemotePath("https://me:secret@example.org/a.wav?signature=secret")
    assert str(path) == "https://example.org/a.wav"
    assert str(Span(path, 1)) == "https://example.org/a.wav#t=1"


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("https://me:p@secret@h/a.wav", "https://h/a.wav"),
        ("https://me:p::secret@h/a.wav", "https://h/a.wav"),
        ("https://me:p/secret@h/a.wav", "https://h/a.wav"),
        ("https://me:p?secret@h/a.wav", "https://h/a.wav"),
        ("https://h/a.wav?key=p::secret", "https://h/a.wav"),
        ("https://h/a.wav?key=p\nkey=secret", "https://h/a.wav"),
        ("zip://a.wav::https://me:p@secret@h/b.zip?k=secret", "zip://a.wav::https://h/b.zip"),
        ("zip://a.wav::https://h/b.zip?k=p::secret", "zip://a.wav::https://h/b.zip"),
        ("https://h:8000/@user/a.wav", "https://h:8000/@user/a.wav"),
        ("https://[::1]:80/@user/a.wav?k=secret", "https://[::1]:80/@user/a.wav"),
        ("zip://a.wav::s3://bucket/@b.zip", "zip://a.wav::s3://bucket/@b.zip"),
    ],
)
def test_no_part_of_a_secret_is_printed_whatever_it_holds(url, printed):
    assert str(RemotePath(url)) == printed


# ---- hostile servers ----


@pytest.mark.parametrize("how", ANSWERS)
def test_no_answer_gives_wrong_sound_much_memory_or_a_secret(album, monkeypatch, how):
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(remote, "DEADLINE_S", 1.0)
    HTTPFileSystem.clear_instance_cache()  # sessions of other tests have another deadline
    tracemalloc.start()
    begin = time.monotonic()
    with hostile_server((album / "a.wav").read_bytes(), how) as server:
        url = f"{server.url}/a.wav?X-Signature=a-secret-key"
        with pytest.raises(FileError) as caught:
            read(url)
        assert all(each.get("Accept-Encoding") == "identity" for each in server.requests)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "a-secret-key" not in "".join(traceback.format_exception(caught.value))
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/a\.wav: [^:]+( \(.+\).*)?\.", str(caught.value))
    assert peak < 16 * 2**20
    assert time.monotonic() - begin < 20
    HTTPFileSystem.clear_instance_cache()


def test_a_silent_server_is_named_and_soon_left_out_and_the_others_are_learned_from(
    album, monkeypatch
):
    monkeypatch.setattr(remote, "DEADLINE_S", 0.5)
    monkeypatch.setattr(remote, "SLOW_S", 0.1)
    HTTPFileSystem.clear_instance_cache()
    with hostile_server(b"", SILENT_TO_ALL) as server, serving(album) as other:
        urls = [f"{server.url}/{n}.wav?key=a-secret" for n in range(200)]
        failures = {}
        with pytest.warns(RuntimeWarning) as warned:
            ondes.learn(
                [*urls, f"{other.url}/a.wav", album / "b" / "e.ogg"],
                4,
                on_error=lambda name, error: failures.update({str(name): error.reason}),
                **SMALL,
            )
        said = {str(each.message) for each in warned}
        assert len(server.requests) <= 3 * 32  # of one round of threads, and a few more
    assert len(failures) == len(urls)
    left_out = "was left out: its server did not answer"
    assert any(left_out in each for each in failures.values()), set(failures.values())
    assert any(re.fullmatch(rf"{server.url}/\d+\.wav: .* still waiting\.", each) for each in said)
    assert not any("a-secret" in each for each in (*said, *failures, *failures.values()))
    HTTPFileSystem.clear_instance_cache()


@pytest.mark.parametrize("n_urls", [1, 3])
def test_ctrl_c_does_not_wait_for_a_silent_server(album, tmp_path, n_urls):
    with hostile_server(b"", SILENT_TO_ALL) as server:
        urls = [f"{server.url}/{n}.wav" for n in range(n_urls)]
        given = ["learn", album / "a.wav", *urls, "-k", "2", "-o", tmp_path / "m.ondes"]
        process = start(*given, env=without_proxies())
        with ending(process):
            wait_until(lambda: server.connected)
            process.send_signal(signal.SIGINT)
            assert process.wait(remote.SILENCE_S / 2) == 130
            assert process.stderr.read().decode().splitlines()[-1].endswith("left behind.")


def test_an_endless_listing_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(remote, "MAX_ANSWER_BYTES", 2**20)
    tracemalloc.start()
    expected = pytest.raises(FileError, match="sends more than was asked for")
    with hostile_server(b"x", "endless") as server, expected:
        find_recordings(f"{server.url}/folder/")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    "page", ["<a" + 2000 * " ", 20_000 * "<a ", 20_000 * "<a href=", "<a href='" + 10**6 * " "]
)
def test_no_page_of_a_folder_takes_more_time_than_its_length(album, page):
    begin = time.process_time()
    with serving(album, more_links=page) as server:
        found = find_recordings(f"{server.url}/")
        assert find_recordings(f"{server.url}/*.wav") == [RemotePath(f"{server.url}/a.wav")]
    assert len(found) == len(FORMATS)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(("name", "value"), [("MAX_NAMES", 300), ("LISTING_S", 0.2)])
@pytest.mark.parametrize("given", ["folder/", "folder/**/*.wav"])
def test_folders_without_end_are_refused(monkeypatch, name, value, given):
    monkeypatch.setattr(remote, name, value)
    with hostile_server(b"", FOLDERS) as server:
        with pytest.raises(FileError, match=r"names in it, or takes more than .* give a manifest"):
            find_recordings(f"{server.url}/{given}")
        if name == "MAX_NAMES":
            assert len(server.requests) <= 300
        assert len(find_recordings(f"{server.url}/folder/*/*.wav")) == 2


def test_a_page_of_more_names_than_a_folder_may_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "MAX_NAMES", 1000)
    links = "".join(f"<a href='{n}.wav'>" for n in range(1001))
    expected = pytest.raises(FileError, match="more names than a folder may have")
    with serving(tmp_path, more_links=links) as server, expected:
        find_recordings(f"{server.url}/")


def test_an_archive_with_a_false_list_takes_no_more_memory_than_an_answer(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "MAX_ANSWER_BYTES", 2**20)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        for n in range(20):
            member = zipfile.ZipInfo(f"{n}.wav")
            member.extra = b"\0" * 60_000  # in the list, which zipfile reads at once
            archive.writestr(member, b"")
    expected = pytest.raises(FileError, match="more at once than may be in memory")
    with serving(tmp_path) as server, expected:
        find_recordings(f"zip://::{server.url}/b.zip")
