"""The studio's server: who may talk to it, what it keeps, and that it always ends."""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ondes.errors import FileError

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


# ---- the guard ----


@contextlib.contextmanager
def running(folder, *arguments, browser="", **options):
    """A studio whose files are in `folder`, and its address."""
    command = [sys.executable, "-m", "ondes", "studio", *map(str, arguments)]
    if not browser:
        command.append("--no-browser")
    environment = os.environ | {"TMPDIR": str(folder), "BROWSER": browser}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, **options
    ) as process:
        try:
            yield process, process.stdout.readline().split()[4]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the studio of `address` has its files."""
    return tmp_path_factory.mktemp("studio")


@pytest.fixture(scope="module")
def address(folder):
    """A studio with nothing open."""
    with running(folder) as (_, address):
        yield address


def _ask(url, data=None, **headers):
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def _origin(address):
    return "/".join(address.split("/")[:3])


def test_the_right_address_opens_the_page_under_a_strict_policy(address):
    status, headers, page = _ask(address)
    assert status == 200
    assert b"ondes" in page
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert address.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("path", ["", "wrong/", "wrong/state", "{token}x/", "{token}"])
def test_a_wrong_token_is_refused(address, path):
    token = address.split("/")[3]
    assert _ask(f"{_origin(address)}/{path.format(token=token)}")[0] == 403


def test_another_host_or_origin_is_refused(address):
    port = _origin(address).rsplit(":", 1)[1]
    assert _ask(f"{address}state")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil:{port}"):
        assert _ask(f"{address}state", Host=host)[0] == 403
    body = json.dumps({"action": "undo"}).encode()
    assert _ask(f"{address}do", body, Origin=_origin(address))[0] == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", _origin(address) + "0"):
        assert _ask(f"{address}do", body, Origin=origin)[0] == 403
    assert _ask(f"{address}do", body)[0] == 403
    assert _ask(f"{address}state", **{"Sec-Fetch-Site": "cross-site"})[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "page/../server.py",
        "page/..%2fserver.py",
        "page/%2e%2e/%2e%2e/session.py",
        "page//etc/passwd",
        "download/..%2f..%2fetc%2fpasswd",
        "sound/..%2f..%2fetc%2fpasswd/0",
        "tile/..%2fx/0/0",
        "levels/..%2fx/0",
    ],
)
def test_paths_lead_nowhere(address, path):
    status, _, body = _ask(address + path)
    assert status in (400, 403, 404)
    assert b"import" not in body
    assert b"root:" not in body


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"action": 3}', b'{"action": "move"}', b'{"action": "no such"}',
        b'{"action": "move", "components": [0], "group": 1}', b"[" * 100_000,
        b'{"action": "mix", "key": "c1", "gain": "x"}', b'{"action": "find"}',
        b'{"action": "noise", "recording": "../x", "start": 0, "end": 1}',
        b'{"action": "export", "what": "../../x", "format": "wav"}', b"x" * 2**21,
    ],
)  # fmt: skip
def test_odd_requests_get_one_sentence(address, body):
    status, _, answer = _ask(f"{address}do", body, Origin=_origin(address))
    assert status == 400
    assert json.loads(answer)["error"].endswith(".")
    assert _ask(f"{address}state")[0] == 200


def test_a_dropped_name_is_only_a_name(address):
    name = "..%2f..%2f..%2ftmp%2fevil.wav"
    status, _, answer = _ask(f"{address}drop?name={name}", b"x", Origin=_origin(address))
    assert status == 200
    assert json.loads(answer)["id"].startswith("d")
    assert not Path("/tmp/evil.wav").exists()


# ---- files ----


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def _files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def _wait(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _do(address, action, **values):
    body = json.dumps({"action": action, **values}).encode()
    return _ask(f"{address}do", body, Origin=_origin(address))


def _state(address):
    return json.loads(_ask(f"{address}state")[2])


def _idle(address):
    _wait(lambda: (_state(address)["job"] or {"state": "running"})["state"] != "running")


def _drop(address, name, data):
    answer = _ask(f"{address}drop?name={name}", data, Origin=_origin(address))[2]
    return json.loads(answer)["id"]


def test_uploads_at_once_are_files_of_their_own(address, folder):
    sent = {bytes([n]) * 500_000 for n in range(8)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda data: _drop(address, "a.flac", data), sent))
    assert len(set(ids)) == 8
    assert {path.read_bytes() for path in folder.rglob("d*.flac")} == sent


def test_half_an_upload_leaves_nothing(address, folder):
    host, port = _origin(address).removeprefix("http://").split(":")
    path, before = address.removeprefix(_origin(address)), _files(folder)
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {path}drop?name=a.wav HTTP/1.1\r\nHost: {host}:{port}\r\n"
        head += f"Origin: {_origin(address)}\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 1000)
        _wait(lambda: len(_files(folder)) == len(before) + 1)
    _wait(lambda: _files(folder) == before)


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"100")]])
def test_an_upload_in_pieces_leaves_the_disk_its_reserve(headers):
    from ondes.studio.routes import Studio
    from ondes.studio.session import Session

    session = Session(reserve=2**60)
    sent = []
    scope = {
        "type": "http", "method": "POST", "path": "/drop", "query_string": b"name=a.wav",
        "headers": headers,
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b"x" * 100, "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(Studio(session).app(scope, receive, send))
    assert sent[0]["status"] == 400
    assert b"free space" in sent[1]["body"]
    assert list(session.folder.iterdir()) == []
    session.close()


@pytest.mark.parametrize("is_declared", [True, False])
def test_uploads_at_once_leave_the_disk_its_reserve_together(small_disk, monkeypatch, is_declared):
    from ondes.studio.routes import Studio
    from ondes.studio.session import Session

    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    session = Session(reserve=4 * 2**20)  # of 16
    studio, statuses, lowest = Studio(session), [], [2**60]
    length = [(b"content-length", b"%d" % (8 * 2**20))] if is_declared else []
    scope = {
        "type": "http", "method": "POST", "path": "/drop", "query_string": b"name=a.wav",
        "headers": length,
    }  # fmt: skip

    async def upload():
        left = 128

        async def receive():
            nonlocal left
            left -= 1
            await asyncio.sleep(0)
            lowest.append(shutil.disk_usage(small_disk).free)
            return {"type": "http.request", "body": bytes(2**16), "more_body": left > 0}

        async def send(message):
            statuses.append(message.get("status"))

        await studio.app(scope, receive, send)

    async def both():
        await asyncio.gather(upload(), upload())

    asyncio.run(both())
    statuses = sorted(each for each in statuses if each)
    # Of uploads without a length, both may come to the end of the room before one has left it.
    assert statuses == [200, 400] or (not is_declared and statuses == [400, 400])
    assert min(lowest) >= session.reserve
    assert len(_files(session.folder)) == statuses.count(200)
    session.close()


def test_what_is_fetched_or_closed_is_deleted_at_once(tmp_path):
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "noise.wav", 0.1 * rng.standard_normal(16000), 8000)
    own = tmp_path / "own"
    own.mkdir()
    with running(own) as (process, address):
        text = _drop(address, "notes.txt", b"no sound")
        sound = _drop(address, "noise.wav", (tmp_path / "noise.wav").read_bytes())
        assert len(_files(own)) == 2
        body = json.dumps({"ids": [text, sound]}).encode()
        assert _ask(f"{address}open", body, Origin=_origin(address))[0] == 200
        _idle(address)
        assert _files(own) == [f"{sound}.wav"]
        assert _do(address, "export", what="mix", format="wav")[0] == 200
        _idle(address)
        (download,) = _state(address)["downloads"]
        assert len(_files(own)) == 2
        status, _, data = _ask(f"{address}download/{download['id']}")
        assert (status, data[:4]) == (200, b"RIFF")
        _wait(lambda: _files(own) == [f"{sound}.wav"])
        assert _state(address)["downloads"] == []
        _do(address, "close")
        assert _files(own) == []
        process.terminate()
        assert process.wait(20) == 0
    assert list(own.iterdir()) == []


def test_an_export_that_fails_shows_no_path(tmp_path):
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "noise.wav", 0.1 * rng.standard_normal(16000), 8000)
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))}
    with running(tmp_path, tmp_path / "noise.wav", **limit) as (_, address):
        _idle(address)
        _do(address, "export", what="mix", format="wav")
        _idle(address)
        job = _state(address)["job"]
        assert job["state"] == "failed"
        assert str(tmp_path) not in job["error"]
        assert "/" not in job["error"]
        assert job["error"].endswith(".")
        assert _files(tmp_path) == ["noise.wav"]


# ---- saved work ----


def _work(tmp_path, **changes):
    from ondes.models.model_file import packed

    saved = {
        "version": 1, "groups": [], "noise": None, "voice": None, "is_cleaned": False,
        "mix": {"gains": {}, "muted": [], "soloed": [], "amount": 30.0}, "recordings": [],
    }  # fmt: skip
    path = tmp_path / "work.ondes"
    path.write_bytes(packed(path, {"studio": saved | changes}))
    return path


def test_a_gain_that_is_no_number_is_refused(tmp_path, address):
    from ondes.studio.work_file import read_work

    for mix in ({"gains": {"g1": "nan"}, "amount": 1.0}, {"gains": {}, "amount": "nan"}):
        path = _work(tmp_path, mix={"muted": [], "soloed": [], **mix})
        with pytest.raises(FileError, match="not valid saved work"):
            read_work(path)
    for body in ('{"action":"amount","amount":NaN}', '{"action":"mix","key":"g1","gain":NaN}'):
        assert _ask(f"{address}do", body.encode(), Origin=_origin(address))[0] == 400
        assert _ask(f"{address}state")[0] == 200


def test_work_with_more_groups_than_a_page_can_show_is_refused(tmp_path):
    from ondes.studio.work_file import read_work

    def groups(n):
        own = {"components": [], "is_proposed": False}
        return [{"id": n + 1, "name": f"group {n}", **own} for n in range(n)]

    assert len(read_work(_work(tmp_path, groups=groups(1000))).project.groups) == 1000
    with pytest.raises(FileError, match="1000 groups"):
        read_work(_work(tmp_path, groups=groups(3000)))
    with pytest.raises(FileError, match="share a name"):
        read_work(_work(tmp_path, groups=groups(2) * 2))


# ---- the end ----


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGTERM"])
def test_it_ends_while_a_page_asks_and_a_job_is_blocked(name, tmp_path):
    """A named pipe into which nobody writes blocks whoever opens it."""
    os.mkfifo(tmp_path / "pipe.wav")
    own = tmp_path / "own"
    own.mkdir()
    with running(own, tmp_path / "pipe.wav") as (process, address):
        ended = threading.Event()

        def poll():
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    _ask(f"{address}state")

        pages = [threading.Thread(target=poll) for _ in range(3)]
        for page in pages:
            page.start()
        time.sleep(0.3)
        assert _state(address)["job"]["state"] == "running"
        process.send_signal(getattr(signal, name))
        try:
            assert process.wait(20) == 0
        finally:
            ended.set()
            for page in pages:
                page.join()
    assert list(own.iterdir()) == []


def test_the_token_is_in_no_command_line(tmp_path):
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf "%s" "$*" > {tmp_path}/arguments\n')
    script.chmod(0o700)
    own = tmp_path / "own"
    own.mkdir()
    with running(own, browser=f"{script} %s") as (process, address):
        _wait(lambda: (tmp_path / "arguments").is_file())
        _wait(lambda: (tmp_path / "arguments").read_text())
        opened = (tmp_path / "arguments").read_text()
        assert address.split("/")[3] not in opened
        page = Path(opened.removeprefix("file://"))
        assert address in page.read_text()
        assert page.stat().st_mode & 0o077 == 0
        process.terminate()
        process.wait(20)
        assert not page.exists()


def test_a_private_file_may_lead_to_the_page_and_to_nothing_else(address):
    """A browser calls a navigation from a file cross-site."""
    site = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert _ask(address, **site)[0] == 200
    for path in ("state", "save", "page/main.js"):
        assert _ask(f"{address}{path}", **site)[0] == 403
