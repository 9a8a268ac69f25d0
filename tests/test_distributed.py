"""Learning on a cluster: the same bytes from any number of workers, whatever is lost on the way."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from ondes import OnlineISNMF, load
from ondes.distributed import ClusterError, learn, shards
from ondes.distributed.cluster import connected
from ondes.distributed.plan import Plan, deal, first_round
from ondes.signal.audio import AudioError, open_blocks, write_audio
from ondes.signal.batches import Batches
from ondes.signal.segments import Recording, Segment
from ondes.signal.stft import Stft, power

SR, K = 8000, 6
ROUND_SIZE, N_SHARDS, PASSES = 1024, 24, 2
SETTINGS = {"sr": SR, "round_size": ROUND_SIZE, "n_shards": N_SHARDS, "passes": PASSES, "seed": 3}
ALONE = 0.6  # of the run: so much the driver teaches by itself, with these settings


def sound(seconds, seed):
    """Noise that comes and goes; the loud parts, seldom, tell what was silence before them."""
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
    return learn(None, recordings, K, n_workers=0, **SETTINGS)


@pytest.fixture(scope="module")
def client():
    with connected(None, 2) as client:
        yield client


def same(model, other):
    return (
        model.components_.tobytes() == other.components_.tobytes()
        and model.statistics_.numerator.tobytes() == other.statistics_.numerator.tobytes()
        and model.n_frames_seen_ == other.n_frames_seen_
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


# ---- what is learned ----


def test_rounds_are_what_they_say_in_plain_code(recordings):
    round_size, n_passes = 256, 2
    settings = SETTINGS | {"passes": n_passes, "round_size": round_size}
    expected = learn(None, recordings, K, n_workers=0, **settings)
    sources = sorted(recordings.iterdir())
    portion = first_round(round_size)
    stft = Stft()
    sizes = {"batch_size": portion, "buffer_size": portion, "segment_size": portion // 8}
    batches = Batches(sources, stft, SR, seed=3, n_passes=n_passes, **sizes)
    frames_of = []
    for source in sources:
        stream = stft.stream()
        parts = [power(stream.push(block)) for block in open_blocks(source, sr=SR)]
        frames_of.append(np.concatenate([*parts, power(stream.flush())]))
    plan = Plan(batches, round_size, N_SHARDS, 0)

    by_shards, at_once = None, None
    loudest = dict.fromkeys(range(len(sources)), np.float32(0))

    def sounding(segments):
        kept = [frames_of[file][first : first + n] for file, first, n in segments]
        thresholds = [np.float32(1e-6) * loudest[segment.file] for segment in segments]
        return np.concatenate(
            [part[part.sum(axis=1) > least] for part, least in zip(kept, thresholds, strict=True)]
        )

    def hear(segments):
        for file, first, n in segments:
            energies = frames_of[file][first : first + n].sum(axis=1)
            loudest[file] = max(loudest[file], energies.max())

    def total(statistics):
        first, *others = [each for each in statistics if each is not None]
        for each in others:
            first = first + each
        return first

    order, n_portions = batches.order_of_pass(0), 0
    seed = []
    while sum(map(len, seed)) < 3000 and n_portions < order.n_rounds:
        hear(order.segments(n_portions))
        seed.append(sounding(order.segments(n_portions)))
        n_portions += 1
    by_shards = OnlineISNMF(K, n_passes=n_passes, random_state=3).begin(np.concatenate(seed))
    at_once = OnlineISNMF(K, n_passes=n_passes, random_state=3, batch_size=None).begin(
        np.concatenate(seed)
    )

    loudest.update(dict.fromkeys(loudest, np.float32(0)))
    n_pass, n_portion = 0, 0
    while plan.is_young(n_pass, n_portion):
        order = batches.order_of_pass(n_pass)
        hear(order.segments(n_portion))
        frames = sounding(order.segments(n_portion))
        key = [3, n_pass, n_portion + 1]
        mixed = frames[np.random.default_rng(key).permutation(len(frames))]
        for first in range(0, len(mixed), portion):
            by_shards.partial_fit(mixed[first : first + portion])
            at_once.partial_fit(mixed[first : first + portion])
        n_portion += 1
        if n_portion == order.n_rounds:
            n_pass, n_portion = n_pass + 1, 0
    n_rounds, most_shards = 0, 0
    for planned in plan.rounds(n_pass, n_portion):
        segments = [each for shard in planned.shards.values() for each in shard]
        hear(segments)
        shards = [sounding(shard) for shard in planned.shards.values()]
        summaries = [by_shards.summarise(frames) if len(frames) else None for frames in shards]
        by_shards.absorb(total([total(summaries[n : n + 8]) for n in range(0, len(summaries), 8)]))
        at_once.partial_fit(np.concatenate(shards))
        n_rounds += 1
        most_shards = max(most_shards, len(shards))
    assert n_rounds > 15
    assert most_shards > 8
    assert same(by_shards, expected)
    np.testing.assert_allclose(at_once.components_, expected.components_, rtol=0, atol=1e-6)


def test_two_workers_give_the_same_bytes(recordings, client, expected):
    assert same(learn(client, recordings, K, **SETTINGS), expected)
    assert client.status == "running"


@pytest.mark.parametrize("n_workers", [1, 4])
def test_one_and_four_workers_give_the_same_bytes_and_leave(recordings, expected, n_workers):
    before = psutil.Process().children(recursive=True)
    assert same(learn(None, recordings, K, n_workers=n_workers, **SETTINGS), expected)
    left = set(psutil.Process().children(recursive=True)) - set(before)
    assert not [each for each in left if "resource_tracker" not in " ".join(each.cmdline())]


def test_reading_is_shared_out(recordings, client):
    client.get_task_stream()  # from now on the scheduler keeps it
    before = len(client.get_task_stream())
    learn(client, recordings, K, **SETTINGS)
    done = client.get_task_stream()[before:]
    shares = Counter(task["worker"] for task in done if task["key"].startswith("ondes-read-"))
    assert len(shares) == 2
    assert min(shares.values()) > 0.3 * shares.total()


def faults_of_reading(path):
    """Pages that the system had to find for each of some readings, the first ones left out."""
    batches = Batches([path], Stft(), SR)
    sources = shards.Sources("faults", batches.sources, batches.recordings, batches.how)
    counts = []
    for first in range(0, 5120, 512):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        shards.read(sources, [Segment(0, first, 512)])
        counts.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    return counts[3:]


def test_a_worker_keeps_its_memory_for_the_next_shard(tmp_path, client):
    write_audio(tmp_path / "long.wav", [np.ones(SR * 170, np.float32)], SR, subtype="PCM_16")
    faults = client.submit(faults_of_reading, tmp_path / "long.wav", pure=False).result()
    n_pages = 512 * 257 * 4 // resource.getpagesize()
    assert np.median(faults) < n_pages / 10


def test_another_seed_gives_another_dictionary(recordings, expected):
    other = learn(None, recordings, K, n_workers=0, **SETTINGS | {"seed": 4})
    assert not same(other, expected)


def test_a_model_goes_on_as_it_was(recordings, client, expected):
    from ondes.distributed import go_on_learning

    sizes = {"round_size": ROUND_SIZE, "n_shards": N_SHARDS}
    here, there = (learn(None, recordings, K, n_workers=0, **SETTINGS) for _ in range(2))
    go_on_learning(None, here, recordings, n_workers=0, **sizes)
    go_on_learning(client, there, recordings, **sizes)
    assert same(here, there)
    assert here.n_frames_seen_ > 1.4 * expected.n_frames_seen_


def test_a_bad_recording_is_told_once_and_the_rest_is_learned(tmp_path, recordings, client):
    for path in recordings.iterdir():
        os.link(path, tmp_path / path.name)
    whole = (recordings / "3.flac").read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2 : len(whole) // 2 + 5000] = bytes(5000)
    (tmp_path / "damaged.flac").write_bytes(damaged)
    (tmp_path / "none.flac").write_bytes(b"no sound at all")
    models, told = [], []
    for n_workers, of in ((0, None), (None, client)):
        told.append([])
        models.append(
            learn(
                of,
                tmp_path,
                K,
                n_workers=n_workers,
                on_error=lambda path, error: told[-1].append((path, str(error))),
                **SETTINGS,
            )
        )
    assert same(*models)
    assert sorted(told[0]) == sorted(told[1])
    names = {"damaged.flac", "none.flac"}
    assert {Path(path).name for path, _ in told[0]} == names
    assert len(told[0]) == 2
    assert models[0].provenance_.n_failed == 2
    with pytest.raises(AudioError, match=r"none\.flac"):
        learn(client, tmp_path, K, **SETTINGS)


# ---- what is lost on the way ----


def test_killed_workers_change_nothing(recordings, client, expected):
    killed = []

    def kill():
        killed.append(workers_of(client)[len(killed) % 2])
        os.kill(killed[-1], signal.SIGKILL)

    at = At(ALONE, 0.75, 0.9, do=kill)

    def progress(told):
        if at.is_due(told):
            client.wait_for_workers(2, timeout=60)
            time.sleep(0.5)  # a nanny gives up a worker that is lost while it starts
        at(told)

    assert same(learn(client, recordings, K, progress=progress, **SETTINGS), expected)
    assert len(set(killed)) == 3


def test_a_hung_worker_is_restarted(recordings, client, expected):
    client.wait_for_workers(2, timeout=60)

    def stop():
        os.kill(workers_of(client)[0], signal.SIGSTOP)

    at = At(0.75, do=stop)
    with pytest.warns(RuntimeWarning, match=r"has done nothing for \d+ s: it is restarted"):
        model = learn(client, recordings, K, progress=at, patience=1, **SETTINGS)
    assert same(model, expected)


def test_a_blocked_read_is_done_again_elsewhere(tmp_path, recordings, client, expected):
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
    with pytest.warns(RuntimeWarning, match=r"has done nothing for \d+ s: it is restarted"):
        model = learn(client, tmp_path, K, progress=at, patience=1, **SETTINGS)
    assert same(model, expected)


@contextmanager
def process(*arguments):
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


def scheduler(port):
    return process("-m", "distributed.cli.dask_scheduler", "--port", port, "--no-dashboard")


def worker(port):
    options = ("--nthreads", 1, "--no-dashboard", "--no-nanny")
    return process("-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", *options)


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
    with scheduler(port) as first, worker(port), scheduler_restarter(port, first) as restart:
        wait_for(port)
        at = At(0.75, do=restart)
        with pytest.warns(RuntimeWarning, match="went away; waiting for it"):
            model = learn(f"tcp://127.0.0.1:{port}", recordings, K, progress=at, **SETTINGS)
    assert same(model, expected)


@contextmanager
def scheduler_restarter(port, first):
    from contextlib import ExitStack

    with ExitStack() as stack:

        def restart():
            first.kill()
            first.wait()
            stack.enter_context(scheduler(port))
            stack.enter_context(worker(port))

        yield restart


DRIVER = """
import sys
from ondes.distributed import learn
if __name__ == "__main__":
    folder, checkpoint, settings = sys.argv[1], sys.argv[2], eval(sys.argv[3])
    def tell(progress):
        print(progress.seconds_done / progress.seconds_total, flush=True)
    learn(None, folder, 6, checkpoint=checkpoint, checkpoint_every=0, progress=tell, **settings)
"""


@pytest.mark.parametrize(("share", "n_workers"), [(ALONE / 2, 0), (0.75, 1)])
def test_a_killed_driver_is_resumed(recordings, expected, tmp_path, share, n_workers):
    script, checkpoint = tmp_path / "driver.py", tmp_path / "run.checkpoint"
    script.write_text(DRIVER)
    settings = SETTINGS | {"n_workers": n_workers}
    command = [sys.executable, script, recordings, checkpoint, repr(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        for line in driver.stdout:
            if float(line) > share:
                driver.kill()
                break
    assert load(checkpoint).n_frames_seen_ < expected.n_frames_seen_
    options = {"n_workers": 0, "checkpoint": checkpoint, "resume": True}
    resumed = learn(None, recordings, K, **options, **SETTINGS)
    assert same(resumed, expected)


# ---- what is said ----


def test_no_scheduler(recordings):
    with pytest.raises(ClusterError, match=r"No scheduler answers at tcp://127.0.0.1:\d+ within"):
        learn(f"tcp://127.0.0.1:{free_port()}", recordings, K)


def test_no_workers(recordings):
    port = free_port()
    with scheduler(port):
        wait_for(port)
        with pytest.raises(ClusterError, match=r"has had no workers for 0\.5 s: start some with"):
            learn(f"tcp://127.0.0.1:{port}", recordings, K, wait=0.5)


def test_recordings_that_a_worker_does_not_see(recordings, client, monkeypatch):
    monkeypatch.chdir(recordings)  # the workers are elsewhere
    with pytest.raises(ClusterError, match="is here, but not where a worker looks for it"):
        learn(client, "/proc/self/cwd/2.flac", K, **SETTINGS | {"passes": 4, "round_size": 256})


def test_a_worker_of_another_version(recordings, client):
    def pretend(version):
        from ondes.distributed import shards

        shards.__version__ = version

    client.run(pretend, "0.0.1")
    try:
        with pytest.raises(ClusterError, match=r"has ondes 0\.0\.1, and this is .* the same"):
            learn(client, recordings, K, **SETTINGS)
    finally:
        from ondes import __version__

        client.run(pretend, __version__)


def test_streams_and_impossible_shards_are_refused(recordings):
    with pytest.raises(ValueError, match="A stream cannot be shared out"):
        learn(None, "-", K, n_workers=0)
    with pytest.raises(ValueError, match=r"n_shards=9 must be .* at most round_size=8"):
        learn(None, recordings, K, n_workers=0, round_size=8, n_shards=9)
    with pytest.raises(ValueError, match="resume=True needs the checkpoint"):
        learn(None, recordings, K, n_workers=0, resume=True)
    with pytest.raises(ValueError, match="checkpoint_every=-1 must be a number of seconds"):
        learn(None, recordings, K, n_workers=0, checkpoint="run", checkpoint_every=-1)


def test_dask_is_loaded_only_for_a_cluster(recordings):
    code = (
        "import sys; sys.modules['distributed'] = None\n"
        "from ondes.distributed import learn\n"
        "learn(None, sys.argv[1], 2, sr=8000, n_workers=0)\n"
        "assert 'dask' not in sys.modules\n"
        "try: learn(None, sys.argv[1])\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, recordings], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "A cluster needs Dask: pip install 'ondes[dask]'."


# ---- the plan ----


def test_every_segment_is_dealt_once_and_what_is_read_in_a_row_keeps_its_place():
    recordings = [Recording(str(n), SR, 9000, 90, can_jump=n != 2) for n in range(4)]
    segments = [Segment(file, first, 30) for file in range(4) for first in (0, 30, 60)]
    dealt = deal(segments, recordings, 3)
    assert sorted(each for part in dealt.values() for each in part) == segments
    assert all(number == 2 for number, part in dealt.items() for each in part if each.file == 2)
    free = [sum(each.file != 2 for each in part) for part in dealt.values()]
    assert free == [3, 3, 3]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 12))
def test_shards_are_as_even_as_whole_segments_allow(lengths, n_shards):
    segments = [Segment(0, first, length) for first, length in enumerate(lengths)]
    dealt = deal(segments, [Recording("0", can_jump=True)], n_shards)
    for part in dealt.values():
        excess = sum(each.n_frames for each in part) - sum(lengths) / n_shards
        assert excess <= (part[0].n_frames + part[-1].n_frames) / 2


def test_rounds_grow_to_their_size(tmp_path):
    write_audio(tmp_path / "long.wav", [np.zeros(SR * 1300, np.float32)], SR, subtype="PCM_16")
    portion = first_round(ROUND_SIZE)
    sizes = {"batch_size": portion, "buffer_size": portion, "segment_size": portion // 8}
    batches = Batches([tmp_path / "long.wav"], Stft(), SR, **sizes)
    plan, order = Plan(batches, ROUND_SIZE, N_SHARDS, 0), batches.order_of_pass(0)
    n_portion = next(n for n in range(1000) if not plan.is_young(0, n))
    assert n_portion == 32
    sizes, shards = [], []
    for planned in plan.rounds(0, n_portion):
        sizes.append(sum(each.n_frames for part in planned.shards.values() for each in part))
        shards.append(len(planned.shards))
    assert sum(sizes) + order.n_frames_before(n_portion) == batches.recordings[0].n_frames
    full = sizes[-2]
    assert abs(full - ROUND_SIZE) <= portion
    assert shards[0] < shards[-2] <= N_SHARDS
    heard = order.n_frames_before(n_portion)
    for size in sizes[:-1]:
        assert size <= heard / 32 + portion
        heard += size
