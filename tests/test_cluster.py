"""Learning on a cluster: the same bytes from any number of workers, whatever is lost on the way."""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
import soundfile
from distributed import Client
from distributed.security import Security
from hypothesis import given
from hypothesis import strategies as st
from plain_settings import PLAIN

import ondes
from ondes import AudioSettings, ClusterError, FileError, OnlineNMF, Stft
from ondes.learning import checkpoint as checkpoints
from ondes.learning.cluster import dask_engine, shards
from ondes.learning.cluster.dask_engine import connected
from ondes.learning.cluster.plan import Plan, deal, first_round
from ondes.learning.cluster.rounds import AHEAD, WorkerFrames
from ondes.learning.cluster.shards import InProcess, RoundLost
from ondes.signal.audio_writer import write_audio
from ondes.signal.frame_reader import HostFrameReader
from ondes.signal.schedule import Position, Schedule, Segment
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.survey import Recording, survey

SR, K = 8000, 6
ROUND_SIZE, N_SHARDS = 1024, 24
SIZES = {"round_size": ROUND_SIZE, "n_shards": N_SHARDS}
FRAMES = {"sr": SR, "n_fft": 512, "hop_length": 256, "fmax": SR / 2}
SETTINGS = {**FRAMES, **PLAIN, "n_passes": 2, "random_state": 3, **SIZES}
ALONE = 0.6  # of the run: with these settings the driver learns this share by mini-batches


def sound(seconds, seed):
    """Noise that comes and goes; the rare loud parts decide what was silence before them."""
    rng = np.random.default_rng(seed)
    n = round(seconds * SR)
    loudness = rng.choice([0, 1e-4, 0.02, 0.3], size=n // 1000 + 1, p=[0.2, 0.3, 0.485, 0.015])
    loudness = np.repeat(loudness, 1000)[:n]
    carrier = np.sin(np.arange(n) * rng.uniform(0.1, 2.5)) + 0.1 * rng.standard_normal(n)
    return (loudness * carrier).astype(np.float32)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(4):
        write_audio(folder / f"{number}.flac", [sound(20 + 3 * number, number)], SR)
    soundfile.write(folder / "in_a_row.ogg", sound(15, 9), SR)
    return folder


@pytest.fixture(scope="module")
def expected(recordings):
    return learn_here(recordings)


@pytest.fixture(scope="module")
def client():
    with connected("local", 2) as client:
        yield client


def learn_on(cluster, recordings, **settings):
    return ondes.learn(recordings, K, cluster=cluster, **SETTINGS | settings)


def learn_here(recordings, **settings):
    """The same rounds, computed in this process."""
    return learn_on("in-process", recordings, **settings)


def same(one, other):
    one, other = one.estimator, other.estimator
    return (
        one.components_.tobytes() == other.components_.tobytes()
        and one.statistics_.numerator.tobytes() == other.statistics_.numerator.tobytes()
        and one.n_frames_seen_ == other.n_frames_seen_
    )


def workers_of(client):
    """Process ids of those that have started."""
    known = client.scheduler_info()["workers"]
    return [each.pid for each in client.cluster.workers.values() if each.worker_address in known]


class At:
    """A progress callback that does something in the middle of the round after each share."""

    def __init__(self, *shares, do):
        self.shares, self.do = list(shares), do

    def is_due(self, progress):
        share = progress.seconds_done / progress.seconds_total
        return bool(self.shares) and share > self.shares[0]

    def __call__(self, progress):
        if self.is_due(progress):
            self.shares.pop(0)
            threading.Timer(0.005, self.do).start()


# ---- results ----


def schedule_of(recordings, round_size, **settings):
    portion = first_round(round_size)
    sizes = {"batch_size": portion, "round_size": portion, "segment_size": portion // 8}
    return Schedule(recordings, AudioSettings(SR, Stft()), **sizes, **settings)


class PlainFrames:
    """All frames of some recordings, and the running maximum that decides what is silent."""

    def __init__(self, paths):
        self.frames = [Stft().power(ondes.read(path, sr=SR)[0]) for path in paths]
        self.reset()

    def reset(self):
        self.loudest = dict.fromkeys(range(len(self.frames)), np.float32(0))

    def of(self, segment):
        return self.frames[segment.file][segment.first : segment.first + segment.n_frames]

    def update_loudest(self, segments):
        for each in segments:
            self.loudest[each.file] = max(self.loudest[each.file], self.of(each).sum(axis=1).max())

    def active(self, segments):
        kept = [
            self.of(each)[self.of(each).sum(axis=1) > np.float32(1e-6) * self.loudest[each.file]]
            for each in segments
        ]
        return np.concatenate(kept)


def total(statistics):
    first, *others = [each for each in statistics if each is not None]
    for each in others:
        first = first + each
    return first


def test_rounds_are_what_the_documentation_says_in_plain_code(recordings):
    round_size, n_passes = 256, 2
    expected = learn_here(recordings, n_passes=n_passes, round_size=round_size)
    paths = sorted(recordings.iterdir())
    known = survey(paths, AudioSettings(SR, Stft()))
    schedule = schedule_of(known, round_size, random_state=3, n_passes=n_passes)
    plan, plain = Plan(schedule, round_size, N_SHARDS, 0), PlainFrames(paths)

    order, first, n_portion = schedule.order_of_pass(0), [], 0
    while sum(map(len, first)) < 3000 and n_portion < order.n_rounds:
        plain.update_loudest(order.segments(n_portion))
        first.append(plain.active(order.segments(n_portion)))
        n_portion += 1
    by_shards, at_once = (
        OnlineNMF(K, n_passes=n_passes, random_state=3, batch_size=batch_size)
        for batch_size in (128, None)
    )
    for each in (by_shards, at_once):
        each.initialise(np.concatenate(first))

    plain.reset()
    n_pass, n_portion, portion = 0, 0, schedule.round_size
    while plan.is_young(Position(n_pass, n_portion)):
        order = schedule.order_of_pass(n_pass)
        plain.update_loudest(order.segments(n_portion))
        frames = plain.active(order.segments(n_portion))
        key = [3, n_pass, n_portion + 1]
        mixed = frames[np.random.default_rng(key).permutation(len(frames))]
        for start in range(0, len(mixed), portion):
            by_shards.partial_fit(mixed[start : start + portion])
            at_once.partial_fit(mixed[start : start + portion])
        n_portion += 1
        if n_portion == order.n_rounds:
            n_pass, n_portion = n_pass + 1, 0

    n_rounds, most_shards = 0, 0
    for planned in plan.rounds(n_pass, n_portion):
        plain.update_loudest([each for shard in planned.shards.values() for each in shard])
        frames = [plain.active(shard) for shard in planned.shards.values()]
        sums = [by_shards.summarise(each) if len(each) else None for each in frames]
        by_shards.absorb(total([total(sums[n : n + 8]) for n in range(0, len(sums), 8)]))
        at_once.partial_fit(np.concatenate(frames))
        n_rounds += 1
        most_shards = max(most_shards, len(frames))
    assert n_rounds > 15
    assert most_shards > 8
    assert by_shards.components_.tobytes() == expected.components.tobytes()
    assert by_shards.n_frames_seen_ == expected.history.n_frames
    np.testing.assert_allclose(at_once.components_, expected.components, rtol=0, atol=1e-6)


def test_two_workers_give_the_same_bytes(recordings, client, expected):
    assert same(learn_on(client, recordings), expected)
    assert client.status == "running"


def test_three_workers_give_the_same_bytes_and_end(recordings, expected):
    """Those of two and of one worker are tested below, too."""
    before = psutil.Process().children(recursive=True)
    assert same(learn_on("local", recordings, n_workers=3), expected)
    left = set(psutil.Process().children(recursive=True)) - set(before)
    assert not [each for each in left if "resource_tracker" not in " ".join(each.cmdline())]


def test_reading_is_distributed_over_the_workers(recordings, client):
    client.get_task_stream()  # from now on the scheduler keeps it
    before = len(client.get_task_stream())
    learn_on(client, recordings)
    done = client.get_task_stream()[before:]
    shares = Counter(task["worker"] for task in done if task["key"].startswith("ondes-read-"))
    assert len(shares) == 2
    assert min(shares.values()) > 0.3 * shares.total()


def test_in_the_beginning_the_workers_read_all_but_the_first_frames(
    recordings, client, monkeypatch
):
    read_here = []

    class Watched(SegmentReader):
        def read(self, segments):
            read_here.extend(segments)
            return super().read(segments)

    monkeypatch.setattr("ondes.learning.corpus.SegmentReader", Watched)
    monkeypatch.setattr("ondes.learning.run.INITIAL_FRAMES", 100)
    client.get_task_stream()
    before = len(client.get_task_stream())
    there = learn_on(client, recordings, n_passes=1)  # no more than the beginning
    for_the_first_dictionary = len(read_here)
    keys = [(task["key"], task["worker"]) for task in client.get_task_stream()[before:]]
    assert same(there, learn_here(recordings, n_passes=1))
    assert for_the_first_dictionary < 0.1 * len(read_here)
    assert not [key for key, _ in keys if key.startswith("ondes-summarise-")]
    readers = Counter(worker for key, worker in keys if key.startswith("ondes-read-"))
    assert len(readers) == 2
    assert min(readers.values()) > 0.3 * readers.total()


class Counting(InProcess):
    """Counts the segments that were to be read."""

    n_begun = 0

    def submit(self, function, *arguments, **options):
        self.n_begun += len(arguments[1]) if function is shards.read else 0
        return super().submit(function, *arguments, **options)


@pytest.mark.parametrize("top_db", [60.0, None])
@pytest.mark.parametrize("spectrum", ["power", "magnitude"])
def test_frames_from_workers_are_those_of_the_driver_and_few_are_read_ahead(
    tmp_path, recordings, top_db, spectrum
):
    soundfile.write(tmp_path / "huge.wav", sound(9, 5) * np.float32(1e25), SR, subtype="FLOAT")
    audio = AudioSettings(SR, Stft(), top_db=top_db, spectrum=spectrum)
    paths = sorted([*recordings.iterdir(), *tmp_path.iterdir()])
    known = [
        replace(each, seekable=each.name not in ("1.flac", "3.flac"))
        for each in survey(paths, audio)
    ]
    sizes = {"batch_size": 128, "round_size": 128, "segment_size": 16}
    schedule = Schedule(known, audio, **sizes, n_passes=2)
    plan, engine = Plan(schedule, ROUND_SIZE, N_SHARDS, 0), Counting()
    there = WorkerFrames(engine, plan, shards.SharedCorpus(paths, known, audio))
    here = HostFrameReader(SegmentReader(paths, known, audio), audio)
    portions = [sum(map(len, dealt.values())) for dealt in plan.portions()]
    assert len(portions) > 30
    assert engine.n_begun == sum(portions[:AHEAD])
    loudest, is_dealt = {}, False
    for n_portion in range(len(portions)):
        segments = schedule.segments_at(schedule.position)
        expected, found = (reader.read(segments, loudest) for reader in (here, there))
        assert engine.n_begun == sum(portions[: n_portion + 1 + AHEAD])
        assert found.frames.tobytes() == expected.frames.tobytes()
        assert found.loudest == expected.loudest
        assert found.n_read == expected.n_read
        dealt = deal(segments, known, N_SHARDS)
        in_turn = [each for part in dealt.values() for each in part]
        is_dealt |= in_turn != segments
        loudest = found.loudest
        schedule.advance(schedule.after(schedule.position, found.n_read, loudest))
    assert not plan.is_young(schedule.position)
    assert is_dealt  # shards alone would be in another order


def faults_of_reading(path):
    """Pages that the system had to find for each of some readings, the first ones left out."""
    audio = AudioSettings(SR, Stft())
    recordings = shards.SharedCorpus([path], survey([path], audio), audio)
    counts = []
    for first in range(0, 5120, 512):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        shards.read(recordings, [Segment(0, first, 512)])
        counts.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    return counts[3:]


def test_a_worker_keeps_its_memory_for_the_next_shard(tmp_path, client):
    write_audio(tmp_path / "long.wav", [np.ones(SR * 170, np.float32)], SR, subtype="PCM_16")
    faults = client.submit(faults_of_reading, tmp_path / "long.wav", pure=False).result()
    n_pages = 512 * 257 * 4 // resource.getpagesize()
    assert np.median(faults) < n_pages / 10


def test_another_seed_gives_another_dictionary(recordings, expected):
    assert not same(learn_here(recordings, random_state=4), expected)


def test_the_progress_and_history_are_those_of_the_run(recordings, expected):
    seen = []
    dictionary = learn_here(recordings, progress=seen.append)
    assert same(dictionary, expected)
    history = dictionary.history
    assert history.n_frames == dictionary.estimator.n_frames_seen_ == seen[-1].n_frames
    assert history.divergence == seen[-1].divergence > 0
    assert history.n_files == 5
    assert seen[-1].seconds_done == pytest.approx(seen[-1].seconds_total, rel=0.01)
    assert history.seconds == seen[-1].seconds_done
    done = [each.seconds_done for each in seen]
    assert done == sorted(done)


def test_a_dictionary_continues_alike_here_and_there(recordings, client, expected):
    here, there = (
        ondes.learn(recordings, dictionary=expected, cluster=cluster, **SIZES)
        for cluster in ("in-process", client)
    )
    assert same(here, there)
    assert here.history.n_frames > 1.4 * expected.history.n_frames


def test_a_bad_recording_is_reported_once_and_the_rest_is_learned(tmp_path, recordings, client):
    for path in recordings.iterdir():
        os.link(path, tmp_path / path.name)
    original = (recordings / "3.flac").read_bytes()
    damaged = bytearray(original)
    damaged[len(original) // 2 : len(original) // 2 + 5000] = bytes(5000)
    (tmp_path / "damaged.flac").write_bytes(damaged)
    (tmp_path / "none.flac").write_bytes(b"no sound at all")
    dictionaries, reported = [], []
    for cluster in ("in-process", client):
        found = []
        dictionaries.append(
            learn_on(
                cluster,
                tmp_path,
                n_passes=1,
                on_error=lambda path, error, found=found: found.append((path, str(error))),
            )
        )
        reported.append(sorted(found))
    assert same(*dictionaries)
    assert reported[0] == reported[1]
    assert [Path(path).name for path, _ in reported[0]] == ["damaged.flac", "none.flac"]
    assert dictionaries[0].history.n_failed == 2
    with pytest.raises(FileError, match=r"none\.flac"):
        learn_on(client, tmp_path, n_passes=1)


def test_a_recording_of_unknown_length_is_reported_and_left_out(
    tmp_path, recordings, monkeypatch, expected
):
    for path in [*recordings.iterdir(), recordings / "0.flac"]:
        name = path.name if not (tmp_path / path.name).exists() else "endless.flac"
        os.link(path, tmp_path / name)
    from ondes.learning import corpus

    def with_one_unknown(paths, *others):
        return [
            replace(each, n_samples=None, n_frames=None) if each.name == "endless.flac" else each
            for each in survey(paths, *others)
        ]

    monkeypatch.setattr(corpus, "survey", with_one_unknown)
    reported = []
    found = learn_here(tmp_path, on_error=lambda path, error: reported.append(error.reason))
    assert reported == ["has no length in its header; convert it, for example to FLAC"]
    assert same(found, expected)
    assert found.history.n_failed == 1


# ---- what is lost on the way ----


def test_killed_workers_change_nothing(recordings, client, expected):
    killed = []

    def kill():
        killed.append(workers_of(client)[len(killed) % 2])
        os.kill(killed[-1], signal.SIGKILL)

    at = At(ALONE / 3, ALONE, 0.75, 0.9, do=kill)

    def progress(now):
        if at.is_due(now):
            while len(workers_of(client)) < 2:
                time.sleep(0.05)
            time.sleep(0.5)  # a nanny gives up on a worker that is lost while it starts
        at(now)

    assert same(learn_on(client, recordings, progress=progress), expected)
    assert len(set(killed)) == 4


@pytest.mark.filterwarnings("ignore:The worker at .* does not answer")  # while it imports ondes
def test_dask_restarts_a_worker_without_a_heartbeat(recordings, expected, monkeypatch):
    monkeypatch.setitem(dask_engine.CONFIG, "distributed.scheduler.worker-ttl", "5s")
    stopped = []
    with connected("local", 2) as client:

        def stop():
            stopped.extend([workers_of(client)[0], time.monotonic()])
            os.kill(stopped[0], signal.SIGSTOP)

        assert same(learn_on(client, recordings, progress=At(0.75, do=stop)), expected)
        assert time.monotonic() - stopped[1] < dask_engine.ROUND_LIMIT_S
        assert stopped[0] not in workers_of(client)


def test_a_worker_that_never_finishes_its_part_of_a_round_is_restarted(
    tmp_path, recordings, client, expected, monkeypatch
):
    monkeypatch.setattr(dask_engine, "ROUND_LIMIT_S", 1.0)
    for path in recordings.iterdir():
        os.link(path, tmp_path / path.name)
    client.wait_for_workers(2, timeout=60)

    def block():
        """As a network file system that does not answer: whoever opens the recording waits."""
        (tmp_path / "1.flac").unlink()
        os.mkfifo(tmp_path / "1.flac")
        threading.Timer(4.0, unblock).start()

    def unblock():
        (tmp_path / "1.flac").unlink()
        os.link(recordings / "1.flac", tmp_path / "1.flac")

    at = At(0.7, do=block)
    sentence = r"has not finished its part of a round within \d+ s: it is restarted"
    with pytest.warns(RuntimeWarning, match=sentence):
        found = learn_on(client, tmp_path, progress=at)
    assert same(found, expected)


def test_a_round_that_is_lost_again_and_again_is_reported(recordings, monkeypatch):
    class Lossy(InProcess):
        n_lost = 0

        def results(self, futures):
            Lossy.n_lost += 1
            raise RoundLost("there is no memory left")

    monkeypatch.setattr("ondes.learning.cluster.rounds.InProcess", Lossy)
    sentence = r"A round was lost 6 times in a row, .* this: there is no memory left"
    with pytest.raises(ClusterError, match=sentence):
        learn_here(recordings)
    assert Lossy.n_lost == 6


def test_rounds_that_are_lost_now_and_then_change_nothing(recordings, expected, monkeypatch):
    class Flaky(InProcess):
        n_asked = 0

        def results(self, futures):
            Flaky.n_asked += 1
            if Flaky.n_asked % 3 == 0:
                raise RoundLost("a cable")
            return super().results(futures)

    monkeypatch.setattr("ondes.learning.cluster.rounds.InProcess", Flaky)
    assert same(learn_here(recordings), expected)
    assert Flaky.n_asked > 60


def test_frames_that_take_longer_than_a_poll_arrive(client, monkeypatch):
    monkeypatch.setattr(dask_engine, "POLL_S", 1e-4)
    stops = [False]
    threading.Timer(20, lambda: stops.__setitem__(0, True)).start()
    with dask_engine.DaskEngine(client, lambda: stops[0]) as engine:
        frames = engine.submit(np.ones, 2**22)
        assert engine.results([frames])[0].sum() == 2**22


@pytest.mark.parametrize("share", [ALONE / 2, 0.75])
def test_a_signal_while_results_are_awaited_ends_the_run_which_can_be_resumed(
    tmp_path, recordings, client, expected, share
):
    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 3600}
    stopped_at, pids = [], workers_of(client)

    def stop_all():
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        stopped_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    at = At(share, do=stop_all)
    try:
        stopped = learn_on(client, recordings, progress=at, return_on_interrupt=True, **kept)
        assert time.monotonic() - stopped_at[0] < 10
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert stopped.history.stopped_by == "SIGINT"
    assert stopped.history.n_frames < expected.history.n_frames
    assert client.status == "running"
    assert same(learn_on(client, recordings, resume=True, **kept), expected)


def test_a_slow_worker_changes_nothing(recordings, client, expected):
    def slow_down(seconds):
        from ondes.learning.cluster import shards

        plain = getattr(shards, "plain_loudest", shards.loudest_of)
        shards.plain_loudest = plain
        shards.loudest_of = lambda *given: time.sleep(seconds) or plain(*given)

    slow = [next(iter(client.scheduler_info()["workers"]))]
    client.run(slow_down, 0.01, workers=slow)
    try:
        assert same(learn_on(client, recordings), expected)
    finally:
        client.run(slow_down, 0, workers=slow)


@contextmanager
def process(*arguments):
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


def scheduler(port, protocol="tcp"):
    options = ("--host", "127.0.0.1", "--protocol", protocol, "--no-dashboard")
    return process("-m", "distributed.cli.dask_scheduler", "--port", port, *options)


def worker(port, protocol="tcp"):
    options = ("--nthreads", 1, "--no-dashboard", "--no-nanny")
    return process("-m", "distributed.cli.dask_worker", f"{protocol}://127.0.0.1:{port}", *options)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port):
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the scheduler did not start")


def test_a_scheduler_may_restart_between_rounds(recordings, expected):
    port = free_port()
    with scheduler(port) as first, worker(port), ExitStack() as others:

        def restart():
            first.kill()
            first.wait()
            deadline = time.monotonic() + 30
            while not warned and time.monotonic() < deadline:  # or it might not be missed
                time.sleep(0.05)
            others.enter_context(scheduler(port))
            others.enter_context(worker(port))

        wait_for(port)
        with pytest.warns(RuntimeWarning, match="no longer answers; waiting for it") as warned:
            found = learn_on(f"tcp://127.0.0.1:{port}", recordings, progress=At(0.75, do=restart))
    assert same(found, expected)


def test_a_scheduler_that_is_gone_for_good_ends_the_run_which_can_be_resumed(
    tmp_path, recordings, expected, monkeypatch
):
    monkeypatch.setattr(dask_engine, "WAIT_S", 60.0)
    port, kept = free_port(), {"checkpoint": tmp_path / "run", "checkpoint_every": 3600}
    with scheduler(port) as first, worker(port):
        wait_for(port)
        at = At(0.75, do=lambda: (first.kill(), setattr(dask_engine, "WAIT_S", 1.0)))
        with (
            pytest.warns(RuntimeWarning, match="no longer answers; waiting for it"),
            pytest.raises(ClusterError, match="has not answered for 1 s: start it again"),
        ):
            learn_on(f"tcp://127.0.0.1:{port}", recordings, progress=at, **kept)
    assert checkpoints.read(tmp_path / "run").dictionary.history.n_frames > 0
    assert same(learn_here(recordings, resume=True, **kept), expected)


def test_a_cluster_with_certificates_is_used_by_its_address(
    recordings, expected, tmp_path, monkeypatch
):
    """As in docs/operations.md: Dask's settings say where the certificates are."""
    made = Security.temporary()
    pems = {"ca": made.tls_ca_file, "cert": made.tls_worker_cert, "key": made.tls_worker_key}
    for name, pem in pems.items():
        (tmp_path / name).write_text(pem)
    settings = {"require-encryption": "true", "tls.ca-file": str(tmp_path / "ca")}
    for role in ("scheduler", "worker", "client"):
        settings |= {f"tls.{role}.{each}": str(tmp_path / each) for each in ("cert", "key")}
    for name, value in settings.items():
        variable = name.upper().replace(".", "__").replace("-", "_")
        monkeypatch.setenv(f"DASK_DISTRIBUTED__COMM__{variable}", value)
    settings = {f"distributed.comm.{name}": value for name, value in settings.items()}
    port = free_port()
    with scheduler(port, "tls"), worker(port, "tls"), dask.config.set(settings):
        wait_for(port)
        assert same(learn_on(f"tls://127.0.0.1:{port}", recordings), expected)


DRIVER = """
import sys
import ondes
from ondes import GrowingMemory, Solver
if __name__ == "__main__":
    folder, checkpoint, settings = sys.argv[1], sys.argv[2], eval(sys.argv[3])
    def report(progress):
        print(progress.seconds_done / progress.seconds_total, flush=True)
    kept = {"checkpoint": checkpoint, "checkpoint_every": 0}
    ondes.learn(folder, 6, progress=report, **kept, **settings)
"""


@pytest.mark.parametrize(
    ("share", "cluster"),
    [(ALONE / 2, {"cluster": "in-process"}), (0.75, {"cluster": "local", "n_workers": 1})],
)
def test_a_killed_driver_is_resumed(recordings, expected, tmp_path, share, cluster):
    script, checkpoint = tmp_path / "driver.py", tmp_path / "run.checkpoint"
    script.write_text(DRIVER)
    command = [sys.executable, script, recordings, checkpoint, repr(SETTINGS | cluster)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        for line in driver.stdout:
            if float(line) > share:
                driver.kill()
                break
    kept = checkpoints.read(checkpoint)
    assert kept.dictionary.history.n_frames < expected.history.n_frames
    assert same(learn_here(recordings, checkpoint=checkpoint, resume=True), expected)


# ---- what a local cluster trusts ----


def listeners(process):
    """The listening sockets of a process and of those that it started."""
    found = []
    for each in (process, *process.children(recursive=True)):
        found += [
            (each.pid, connection.laddr)
            for connection in each.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    return found


@pytest.fixture(scope="module")
def own_cluster():
    """A local cluster, and the sockets that it listens on."""
    before = listeners(psutil.Process())
    with connected("local", 1) as client:
        yield client, [each for each in listeners(psutil.Process()) if each not in before]


def test_a_client_without_the_keys_cannot_run_anything(own_cluster, tmp_path):
    client, _ = own_cluster
    address = client.scheduler.address
    assert address.startswith("tls://")
    assert client.submit(sum, [1, 2]).result() == 3
    proof = tmp_path / "proof"
    others = {"plain TCP": (address.replace("tls://", "tcp://"), None)}
    others["another key"] = (address, Security.temporary())
    others["no key"] = (address, Security(require_encryption=True))
    for name, (where, security) in others.items():
        with (
            pytest.raises((OSError, TypeError, ValueError)),
            dask.config.set(QUICK),
            Client(where, security=security, timeout=2, set_as_default=False) as intruder,
        ):
            intruder.submit(proof.write_text, name).result(timeout=2)
    assert not proof.exists()
    assert client.submit(sum, [1, 2], pure=False).result() == 3


QUICK = {"distributed.comm.timeouts.connect": "2s"}


def test_every_socket_of_a_local_cluster_is_on_this_machine_and_asks_for_a_key(own_cluster):
    """Scheduler, nannies and workers; a dashboard would be another socket, without a key."""
    _, sockets = own_cluster
    assert len(sockets) >= 2
    for _, (host, port) in sockets:
        assert host == "127.0.0.1"
        assert answer_without_a_key(host, port) == b""


def answer_without_a_key(host, port):
    """What a client gets that encrypts, but has no certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=5) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(1)
    except (ssl.SSLError, ConnectionError) as error:
        if "WRONG_VERSION" in str(error):  # this socket does not encrypt
            raise
        return b""


def test_ctrl_c_at_the_terminal_is_for_the_driver_alone(client):
    """A terminal sends it to all processes of the group: the workers ignore it."""

    def handler():
        return signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    assert all(client.run(handler).values())


# ---- errors ----


def test_no_scheduler(recordings):
    with pytest.raises(ClusterError, match=r"No scheduler answers at tcp://127.0.0.1:\d+ within"):
        learn_on(f"tcp://127.0.0.1:{free_port()}", recordings)


def test_no_workers(recordings, monkeypatch):
    monkeypatch.setattr(dask_engine, "WAIT_S", 0.5)
    port = free_port()
    with scheduler(port):
        wait_for(port)
        with pytest.raises(ClusterError, match=r"has had no workers for 0\.5 s: start some with"):
            learn_on(f"tcp://127.0.0.1:{port}", recordings)


def test_recordings_that_a_worker_does_not_see(recordings, client, monkeypatch):
    monkeypatch.chdir(recordings)  # the workers are elsewhere
    with pytest.raises(ClusterError, match="is here, but not where a worker looks for it"):
        learn_on(client, "/proc/self/cwd/2.flac", n_passes=4, round_size=256)


def test_a_worker_of_another_version(recordings, client):
    def pretend(version):
        from ondes.learning.cluster import shards

        shards.__version__ = version

    client.run(pretend, "0.0.1")
    try:
        with pytest.raises(ClusterError, match=r"has ondes 0\.0\.1, and this is .* the same"):
            learn_on(client, recordings)
    finally:
        client.run(pretend, ondes.__version__)


def test_a_worker_that_rounds_differently(recordings, client, expected):
    def pretend(is_different):
        from ondes.learning.cluster import shards

        known = shards.hashlib.__class__("known")
        known.sha256 = lambda data: __import__("hashlib").sha256(data + b"!" * is_different)
        shards.hashlib = known

    client.run(pretend, True)
    try:
        with pytest.warns(RuntimeWarning, match="rounds differently from this process"):
            assert same(learn_on(client, recordings), expected)
    finally:
        client.run(pretend, False)


def test_streams_arrays_and_impossible_shards_are_refused(recordings):
    for given_ in ("-", np.ones(SR, np.float32)):
        with pytest.raises(ValueError, match="A cluster needs recordings in files"):
            learn_here(given_, n_passes=1)
    with pytest.raises(ValueError, match=r"n_shards=9 must be .* at most round_size=8"):
        learn_here(recordings, round_size=8, n_shards=9)
    with pytest.raises(ValueError, match="resume=True needs the checkpoint"):
        learn_here(recordings, resume=True)
    with pytest.raises(ValueError, match="checkpoint_every=-1 must be a number of seconds"):
        learn_here(recordings, checkpoint="run", checkpoint_every=-1)


def test_workers_do_not_warn_about_the_threads_of_the_driver(client, recordings, expected):
    assert same(learn_on(client, recordings, n_jobs=2), expected)

    def warned():
        from ondes.nmf import encoding

        return [key for key in getattr(encoding, "__warningregistry__", {}) if key != "version"]

    assert not any(client.run(warned).values())


def test_dask_is_loaded_only_for_a_cluster(recordings):
    code = (
        "import sys; sys.modules['distributed'] = None\n"
        "import ondes\n"
        "ondes.learn(sys.argv[1], 2, sr=8000, cluster='in-process')\n"
        "assert 'dask' not in sys.modules\n"
        "try: ondes.learn(sys.argv[1], cluster='local')\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, recordings], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "A cluster needs Dask: pip install 'ondes[dask]'."


# ---- the plan ----


def test_every_segment_is_dealt_once_and_what_is_not_seekable_keeps_its_place():
    recordings = [Recording(str(n), SR, 9000, 90, seekable=n != 2) for n in range(4)]
    segments = [Segment(file, first, 30) for file in range(4) for first in (0, 30, 60)]
    dealt = deal(segments, recordings, 3)
    assert sorted(each for part in dealt.values() for each in part) == segments
    assert all(number == 2 for number, part in dealt.items() for each in part if each.file == 2)
    free = [sum(each.file != 2 for each in part) for part in dealt.values()]
    assert free == [3, 3, 3]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 12))
def test_shards_are_as_even_as_whole_segments_allow(lengths, n_shards):
    segments = [Segment(0, first, length) for first, length in enumerate(lengths)]
    dealt = deal(segments, [Recording("0", seekable=True)], n_shards)
    for part in dealt.values():
        excess = sum(each.n_frames for each in part) - sum(lengths) / n_shards
        assert excess <= (part[0].n_frames + part[-1].n_frames) / 2


def test_rounds_grow_to_their_size(tmp_path):
    write_audio(tmp_path / "long.wav", [np.zeros(SR * 1300, np.float32)], SR, subtype="PCM_16")
    known = survey([tmp_path / "long.wav"], AudioSettings(SR, Stft()))
    schedule = schedule_of(known, ROUND_SIZE)
    plan, order = Plan(schedule, ROUND_SIZE, N_SHARDS, 0), schedule.order_of_pass(0)
    n_portion = next(n for n in range(1000) if not plan.is_young(Position(0, n)))
    assert n_portion == 32
    sizes, n_shards = [], []
    for planned in plan.rounds(0, n_portion):
        sizes.append(sum(each.n_frames for part in planned.shards.values() for each in part))
        n_shards.append(len(planned.shards))
    before = sum(each.n_frames for n in range(n_portion) for each in order.segments(n))
    assert sum(sizes) + before == known[0].n_frames
    full = sizes[-2]
    assert abs(full - ROUND_SIZE) <= schedule.round_size
    assert n_shards[0] < n_shards[-2] <= N_SHARDS
    for size in sizes[:-1]:
        assert size <= before / 32 + schedule.round_size
        before += size
