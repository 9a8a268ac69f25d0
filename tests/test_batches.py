"""Mini-batches: one sequence whatever the order or the threads; an interrupted run continues."""

import io
import itertools
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import soundfile

from ondes.errors import FileError
from ondes.signal import segment_reader
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import MiniBatches, Rounds, frame_batches
from ondes.signal.frame_reader import FramesRead, HostFrameReader
from ondes.signal.recordings import RawFormat, open_blocks, read
from ondes.signal.schedule import Schedule
from ondes.signal.segment_reader import SegmentReader
from ondes.signal.stft import Stft
from ondes.signal.survey import Recording, survey

SR = 8000
STFT = Stft(64)
LENGTHS = [7000, 20, 3000, 12_000, 1, 500, 4096]


def sound(n, seed):
    loudness = np.repeat(np.random.default_rng(seed).uniform(0, 1, n // 100 + 1) ** 8, 100)[:n]
    return (np.random.default_rng(seed).uniform(-0.5, 0.5, n) * loudness).astype(np.float32)


@pytest.fixture
def album(tmp_path):
    paths = [tmp_path / f"{i}.wav" for i in range(len(LENGTHS))]
    for seed, (path, n) in enumerate(zip(paths, LENGTHS, strict=True)):
        soundfile.write(path, sound(n, seed), SR)
    return paths


def batches_of(paths, **options):
    small = {"batch_size": 30, "round_size": 100, "segment_size": 40, "n_open": 3, "prefetch": 0}
    sr, stft = options.pop("sr", SR), options.pop("stft", STFT)
    audio = AudioSettings(sr, stft, options.pop("top_db", 30.0))
    return frame_batches(paths, audio, **small | options)


def assert_same(some, others):
    some, others = list(some), list(others)
    assert [len(batch) for batch in some] == [len(batch) for batch in others]
    assert all(map(np.array_equal, some, others))


def sorted_rows(frames):
    return frames[np.lexsort(frames.T)]


def frames_of(path, top_db=None):
    frames = STFT.power(read(path, SR)[0])
    if top_db is None:
        return frames
    energy = frames.sum(axis=1)
    return frames[energy > 10 ** (-top_db / 10) * energy.max()]


# Content


@pytest.mark.parametrize("n_open", [1, 3, 20])
@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_every_frame_comes_once_per_pass(album, tmp_path, n_open, suffix):
    if suffix == "ogg":  # which is not seekable
        album = [soundfile_copy(path, tmp_path / f"{path.stem}.ogg") for path in album]
    expected = sorted_rows(np.concatenate([frames_of(path) for path in album]))
    given = list(batches_of(album, top_db=None, n_open=n_open, n_passes=2))
    assert all(batch.dtype == np.float32 for batch in given)
    n_seen = np.cumsum([len(batch) for batch in given])
    n_first = int(np.flatnonzero(n_seen == len(expected))[0]) + 1
    for one_pass in (given[:n_first], given[n_first:]):
        assert np.array_equal(sorted_rows(np.concatenate(one_pass)), expected)
    assert not np.array_equal(given[0], given[n_first]), "another pass, another order"


def soundfile_copy(path, copy):
    soundfile.write(copy, *soundfile.read(path))
    return copy


@pytest.mark.parametrize("round_size", [100, 10_000])
def test_all_batches_of_a_round_but_its_last_are_full(album, round_size):
    sizes = [len(batch) for batch in batches_of(album, top_db=None, round_size=round_size)]
    n_short = sum(size < 30 for size in sizes)
    assert max(sizes) == 30
    assert n_short <= (1 if round_size > sum(sizes) else -(-sum(sizes) // 100))


@pytest.mark.parametrize("top_db", [30.0, 60.0])
def test_silence_is_far_below_the_loudest_of_the_recording(album, top_db):
    expected = sorted_rows(np.concatenate([frames_of(path, top_db) for path in album]))
    at_once = np.concatenate(list(batches_of(album, top_db=top_db, round_size=10_000)))
    assert np.array_equal(sorted_rows(at_once), expected)
    # In small rounds the loudest is known once it was read: from the second pass on.
    once, twice = (
        np.concatenate(list(batches_of(album, top_db=top_db, n_passes=n))) for n in (1, 2)
    )
    assert len(expected) <= len(once) <= sum(len(frames_of(path)) for path in album)
    assert np.array_equal(sorted_rows(twice[len(once) :]), expected)


def test_silence_is_measured_against_the_recording_itself(tmp_path, album):
    faint = tmp_path / "faint.wav"
    soundfile.write(faint, sound(7000, 0) * np.float32(2**-10), SR, subtype="FLOAT")
    soundfile.write(album[0], sound(7000, 0), SR, subtype="FLOAT")
    loud_rows = np.concatenate(list(batches_of(album[:1], round_size=10_000)))
    both = np.concatenate(list(batches_of([album[0], faint], round_size=10_000)))
    assert len(loud_rows) < len(frames_of(album[0]))
    assert len(both) == 2 * len(loud_rows)


def test_frames_of_zeros_are_left_out_unless_asked_for(tmp_path):
    path = tmp_path / "gap.wav"
    soundfile.write(path, np.r_[np.zeros(2000), sound(1000, 1) + 0.1, np.zeros(2000)], SR)
    soundfile.write(tmp_path / "nothing.wav", np.zeros(3000), SR)
    kept = np.concatenate(list(batches_of([path, tmp_path / "nothing.wav"], top_db=300.0)))
    assert (kept.sum(axis=1) > 0).all()
    assert len(kept) == (frames_of(path).sum(axis=1) > 0).sum()
    everything = batches_of([path, tmp_path / "nothing.wav"], top_db=None)
    assert sum(map(len, everything)) == STFT.n_frames(5000) + STFT.n_frames(3000)


def test_a_round_of_silence_is_one_empty_batch(tmp_path):
    soundfile.write(tmp_path / "nothing.wav", np.zeros(6400), SR)
    batches = batches_of([tmp_path / "nothing.wav"])
    done = []
    for batch in batches:
        assert batch.shape == (0, 33)
        done.append(batches.schedule.seconds_done)
    assert done == sorted(done)
    assert len(done) == 2  # of 201 frames
    assert done[-1] == 0.8


def tones(folder, n_files, n_samples, suffix="wav"):
    """Recording i has sound at bin 4 i + 4 only."""
    paths = [folder / f"{i}.{suffix}" for i in range(n_files)]
    for i, path in enumerate(paths):
        tone = np.sin(2 * np.pi * (4 * i + 4) / 64 * np.arange(n_samples))
        soundfile.write(path, 0.5 * tone, SR)
    return paths


def test_each_pass_goes_through_the_recordings_in_another_order(tmp_path):
    paths = tones(tmp_path, 4, 640)
    one_by_one = batches_of(paths, batch_size=21, round_size=0, n_passes=6, top_db=None)
    bins = [int(batch.sum(axis=0).argmax()) for batch in one_by_one]
    passes = [tuple(bins[i : i + 4]) for i in range(0, len(bins), 4)]
    assert all(sorted(order) == [4, 8, 12, 16] for order in passes)
    assert len(set(passes)) > 2


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_a_round_is_a_fair_sample_of_all_recordings(tmp_path, suffix):
    paths = tones(tmp_path, 4, 80_000, suffix)
    rounds = full(batches_of(paths, n_open=4, batch_size=400, round_size=400, segment_size=4))
    shares = [np.bincount(batch.argmax(axis=1), minlength=33)[[4, 8, 12, 16]] for batch in rounds]
    assert len(shares) > 20
    # To the very end of the pass, when one after the other would have the last recording left.
    assert np.min(shares) > 0.05 * 400


def test_a_round_has_frames_from_all_parts_of_a_recording(tmp_path):
    rising = np.sin(2 * np.pi * np.cumsum(np.linspace(2, 30, 64_000)) / 64)
    path = tmp_path / "rising.wav"
    soundfile.write(path, 0.5 * rising, SR)
    for batch in full(batches_of([path], batch_size=400, round_size=400, segment_size=4)):
        assert np.bincount(batch.argmax(axis=1) // 8, minlength=4)[:4].min() > 0.05 * 400


def full(batches):
    return [batch for batch in batches if len(batch) == batches.schedule.batch_size]


# One sequence


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_the_sequence_does_not_depend_on_threads_or_order(album, tmp_path, suffix):
    if suffix == "ogg":
        album = [soundfile_copy(path, tmp_path / f"{path.stem}.ogg") for path in album]
    expected = list(batches_of(album, n_passes=2))
    assert len(expected) > 20
    for prefetch, n_threads in [(1, 1), (3, 1), (0, 4), (2, 3)]:
        threads = {"prefetch": prefetch, "n_threads": n_threads}
        assert_same(batches_of(album, n_passes=2, **threads), expected)
    again = [*reversed(album), album[0].parent / "." / album[0].name, os.path.relpath(album[2])]
    assert_same(batches_of(again, n_passes=2), expected)
    assert_same(batches_of(album, n_passes=2), expected)


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_the_sequence_does_not_depend_on_which_thread_is_first(
    album, tmp_path, monkeypatch, suffix
):
    if suffix == "ogg":
        album = [soundfile_copy(path, tmp_path / f"{path.stem}.ogg") for path in album]
    expected = list(batches_of(album))
    delays = itertools.cycle([0.02, 0.0, 0.01, 0.0, 0.0])

    def delayed(recording, **how):
        time.sleep(next(delays))  # so that a later segment is often there before an earlier one
        return open_blocks(recording, **how)

    monkeypatch.setattr(segment_reader, "open_blocks", delayed)
    for n_threads in (2, 4):
        assert_same(batches_of(album, n_threads=n_threads), expected)


def test_the_random_state_decides(album):
    first = [next(iter(batches_of(album, random_state=seed))) for seed in (0, 1, 0)]
    assert np.array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("sr", [SR, 5000])
def test_wav_and_flac_give_the_same(tmp_path, album, sr):
    (tmp_path / "flac").mkdir()
    copies = [tmp_path / "flac" / f"{path.stem}.flac" for path in album]
    for path, copy in zip(album, copies, strict=True):
        soundfile.write(copy, *soundfile.read(path))
    assert_same(batches_of(copies, sr=sr), batches_of(album, sr=sr))


# Interrupted and continued


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize(
    "how",
    [{}, {"sr": 5000}, {"top_db": None}, {"stft": Stft(64, 24)}, {"stft": Stft(64, 64, "sine")}],
    ids=str,
)
def test_a_run_interrupted_at_any_batch_continues_with_the_same_bits(album, prefetch, how):
    options = {**how, "n_passes": 2, "prefetch": prefetch, "batch_size": 25, "round_size": 80}
    whole = batches_of(album, **options)
    states = [whole.schedule.state()]
    expected = []
    for batch in whole:
        expected.append(batch)
        states.append(whole.schedule.state())
    assert len(expected) > 12
    for n_done, state in enumerate(states):
        resumed = batches_of(album, **options)
        resumed.schedule.restore(state)
        assert_same(resumed, expected[n_done:])


def test_iterating_continues_after_a_break(album):
    batches = batches_of(album, prefetch=1)
    expected = list(batches_of(album))
    given = []
    for n in (1, 4, 2, 1000):
        given += itertools.islice(batches, n)
    assert_same(given, expected)


def test_recordings_that_changed_are_named(tmp_path, album):
    batches = batches_of(album)
    next(iter(batches))
    state = batches.schedule.state()
    with pytest.raises(ValueError, match=r"^0\.wav is missing"):
        batches_of(album[1:]).schedule.restore(state)
    soundfile.write(tmp_path / "more.wav", sound(100, 0), SR)
    with pytest.raises(ValueError, match=r"^more\.wav is new"):
        batches_of([*album, tmp_path / "more.wav"]).schedule.restore(state)
    soundfile.write(album[2], sound(3001, 0), SR)
    with pytest.raises(ValueError, match=r"^2\.wav has 3001 samples .* had 3000"):
        batches_of(album).schedule.restore(state)
    soundfile.write(album[2], sound(3000, 0), SR // 2)
    with pytest.raises(ValueError, match=r"^2\.wav has 3000 samples at 4000 Hz"):
        batches_of(album).schedule.restore(state)
    soundfile.write(album[2], sound(3000, 1), SR)
    with pytest.warns(RuntimeWarning, match=r"^2\.wav has changed since"):
        batches_of(album).schedule.restore(state)


def test_more_passes_may_be_added(album):
    once = batches_of(album)
    n_once = len(list(once))
    again = batches_of(album, n_passes=2)
    again.schedule.restore(once.schedule.state())
    assert_same(again, list(batches_of(album, n_passes=2))[n_once:])


# Unreadable recordings


@pytest.mark.parametrize("prefetch", [0, 1])
def test_unreadable_recordings_are_reported_once_and_the_others_are_read(tmp_path, album, prefetch):
    good = list(batches_of(album, n_passes=2))
    half = sound(100_000, 9)
    half[60_000] = np.nan
    soundfile.write(tmp_path / "a_half.wav", half, SR, subtype="FLOAT")
    (tmp_path / "b_text.wav").write_text("no sound")
    bad = [tmp_path / "a_half.wav", tmp_path / "b_text.wav", tmp_path / "c_gone.wav"]
    reported = []
    options = {"n_passes": 2, "top_db": None, "prefetch": prefetch}
    options["on_error"] = lambda path, error: reported.append(
        (path, error, threading.current_thread())
    )
    given = list(batches_of(album + bad, **options))
    assert sorted(path for path, _, _ in reported) == [str(path) for path in bad]
    assert all(isinstance(error, FileError) for _, error, _ in reported)
    assert {thread for _, _, thread in reported} == {threading.main_thread()}
    # All segments count but the one with the bad samples, and that one up to them.
    n_good, n_half = sum(STFT.n_frames(n) for n in LENGTHS), STFT.n_frames(len(half))
    n_lost = n_good + n_half - sum(map(len, given)) / 2
    assert 0 < n_lost <= -(-16384 // STFT.hop_length) + 40
    first = [path for path, _, _ in reported]
    assert_same(batches_of(album + bad, **options, n_threads=3), given)
    assert [path for path, _, _ in reported] == 2 * first
    assert len(good) > 0


@pytest.mark.parametrize("prefetch", [0, 1])
def test_without_on_error_an_unreadable_recording_is_raised(album, prefetch):
    album[3].write_text("no sound")
    with pytest.raises(FileError, match=r"3\.wav"):
        list(batches_of(album, prefetch=prefetch))


def test_resuming_after_an_unreadable_recording(tmp_path, album):
    album[3].write_bytes(album[3].read_bytes()[:5000])
    options = {"n_passes": 2, "on_error": lambda *_: None}
    whole, states, expected = batches_of(album, **options), [], []
    for batch in whole:
        expected.append(batch)
        states.append(whole.schedule.state())
    for n_done in range(0, len(states), 3):
        resumed = batches_of(album, **options)
        resumed.schedule.restore(states[n_done])
        assert_same(resumed, expected[n_done + 1 :])


# Threads, progress, streams, stopping


@pytest.mark.parametrize("n_threads", [1, 3])
def test_leaving_early_stops_the_threads(album, n_threads):
    names = ("ondes-prefetch", "ondes-read", "ondes-survey")

    def ours():
        return {t.name for t in threading.enumerate() if t.name.startswith(names)}

    iterator = iter(batches_of(album, prefetch=1, n_threads=n_threads, n_passes=1000))
    next(iterator)
    assert "ondes-prefetch" in ours()
    assert (len(ours()) > 1) == (n_threads > 1)
    iterator.close()
    assert ours() == set()


def schedule_of(paths, **options):
    audio = AudioSettings(SR, STFT, 30.0)
    sizes = {"batch_size": 30, "round_size": 100, "segment_size": 40, "n_open": 3}
    return Schedule(survey(paths, audio), audio, **sizes | options)


def rounds_of(paths, reader=HostFrameReader, **options):
    schedule = schedule_of(paths, n_passes=options.pop("n_passes", 1))

    def open_reader():
        files = SegmentReader(paths, schedule.recordings, schedule.audio)
        return reader(files, schedule.audio)

    return Rounds(schedule, open_reader, **options)


def test_leaving_early_does_not_wait_for_the_round_that_is_being_read():
    seen = []

    class SlowReader:
        def read(self, segments, loudest):
            for segment in segments:
                time.sleep(0.005)
                seen.append(segment)
            return FramesRead(np.zeros((0, 33), np.float32), loudest, 0, [])

        def close(self):
            pass

    recordings = [Recording(str(n), SR, 1, 1, seekable=True) for n in range(400)]
    schedule = Schedule(recordings, AudioSettings(SR, STFT), batch_size=1, round_size=200)
    iterator = iter(Rounds(schedule, SlowReader))
    next(iterator)
    while len(seen) <= 200:  # until the second round has begun
        time.sleep(0.005)
    iterator.close()
    time.sleep(0.1)
    assert len(seen) < 350


@pytest.mark.parametrize("prefetch", [1, 3])
def test_as_many_rounds_as_asked_for_are_read_ahead(album, prefetch):
    n_read = itertools.count(1)

    class CountingReader(HostFrameReader):
        def read(self, *given):
            self.n_read = next(n_read)
            counts.append(self.n_read)
            return super().read(*given)

    counts = []
    iterator = iter(rounds_of(album, CountingReader, prefetch=prefetch, n_passes=100))
    for n_taken in (1, 2):
        next(iterator)
        time.sleep(0.2)
        assert len(counts) == n_taken + prefetch
    iterator.close()


def test_rounds_leave_the_position_to_whoever_uses_them(album):
    rounds = rounds_of(album, n_passes=2)
    first, second = itertools.islice(rounds, 2)
    assert rounds.schedule.position == first.start
    assert (first.end, second.start.n_round) == (second.start, 1)
    rounds.schedule.advance(first.end)
    again = next(iter(rounds))
    assert np.array_equal(again.frames[again.order], second.frames[second.order])


@pytest.mark.parametrize("prefetch", [0, 1])
def test_rounds_end_where_a_stop_is_requested(album, prefetch):
    should_stop = threading.Event()
    rounds = rounds_of(album, n_passes=1000, prefetch=prefetch, should_stop=should_stop.is_set)
    batches = iter(MiniBatches(rounds))
    next(batches)
    should_stop.set()
    assert len(list(batches)) < 5  # the round that is there is given out


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
def test_a_requested_stop_ends_the_wait_for_a_pipe():
    out, into = os.pipe()
    raw, should_stop = RawFormat(SR), threading.Event()
    with os.fdopen(out, "rb", buffering=0) as stream, os.fdopen(into, "wb"):
        schedule = Schedule(
            survey([stream], AudioSettings(SR, STFT)),
            AudioSettings(SR, STFT),
            batch_size=10,
            round_size=10,
        )

        def open_reader():
            files = SegmentReader([stream], schedule.recordings, schedule.audio, raw)
            return HostFrameReader(files, schedule.audio)

        threading.Timer(0.3, should_stop.set).start()
        began = time.monotonic()
        assert list(Rounds(schedule, open_reader, should_stop=should_stop.is_set)) == []
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("n_threads", [1, 3])
def test_what_is_not_seekable_is_opened_once_per_pass(album, tmp_path, monkeypatch, n_threads):
    album = [soundfile_copy(path, tmp_path / f"{path.stem}.mp3") for path in album]
    opened = []

    def counted(recording, **how):
        opened.append(recording)
        return open_blocks(recording, **how)

    monkeypatch.setattr(segment_reader, "open_blocks", counted)
    list(batches_of(album, n_passes=2, n_threads=n_threads, segment_size=5))
    assert sorted(opened) == sorted(2 * album)


class Breaking(io.BytesIO):
    def read(self, size=-1):
        raise RuntimeError("the cable is out")


@pytest.mark.parametrize("prefetch", [0, 1])
def test_any_exception_reaches_whoever_asks_for_batches(prefetch):
    with pytest.raises(RuntimeError, match="the cable is out"):
        list(batches_of(Breaking(), raw=RawFormat(SR), prefetch=prefetch))


def test_progress_ends_at_the_total(album):
    batches = batches_of(album, n_passes=2)
    total = 2 * sum(LENGTHS) / SR
    assert batches.schedule.seconds_total == pytest.approx(total)
    done = [batches.schedule.seconds_done for _ in batches]
    assert done == sorted(done)
    assert 0 < done[0] < 0.2 * total
    assert done[-1] == pytest.approx(total)


def test_progress_continues_where_it_stopped(album):
    batches = batches_of(album)
    for _ in itertools.islice(batches, 8):
        pass
    resumed = batches_of(album)
    resumed.schedule.restore(batches.schedule.state())
    next(iter(resumed))
    assert (
        batches.schedule.seconds_done
        < resumed.schedule.seconds_done
        < batches.schedule.seconds_done + 1
    )


def test_a_stream_gives_what_its_file_would(album):
    data = album[3].read_bytes()
    at_once = {"round_size": 10_000}
    expected = list(batches_of([album[3]], **at_once))
    assert_same(batches_of(io.BytesIO(data), **at_once), expected)
    raw = RawFormat(SR, 1, "s16le")
    streamed = batches_of(io.BytesIO(data[44:]), raw=raw, **at_once)
    assert streamed.schedule.seconds_total is None
    assert_same(streamed, expected)
    (album[3].parent / "raw").write_bytes(data[44:])
    assert_same(batches_of([album[3].parent / "raw"], raw=raw, **at_once), expected)
    in_rounds = batches_of(io.BytesIO(data), top_db=None)
    assert np.array_equal(
        sorted_rows(np.concatenate(list(in_rounds))), sorted_rows(frames_of(album[3]))
    )
    assert streamed.schedule.seconds_done > 1
    with pytest.raises(ValueError, match="read only once"):
        batches_of("-", n_passes=2)


READ = """
import itertools, sys, time
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.recordings import RawFormat
from ondes.signal.stft import Stft
how = {"round_size": 200, "n_threads": int(sys.argv[1]), "raw": RawFormat(8000)}
iterator = iter(frame_batches("-", AudioSettings(8000, Stft(64)), 50, **how))
print([batch.shape for batch in itertools.islice(iterator, 6)])
time.sleep(0.5)  # until the thread waits for the pipe
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
@pytest.mark.parametrize("n_threads", ["1", "3"])
def test_an_endless_pipe_that_falls_silent_does_not_keep_the_program_running(n_threads):
    with subprocess.Popen(
        [sys.executable, "-c", READ, n_threads], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        # The first read makes 511 frames, two rounds of 200: the third waits forever.
        noise = np.random.default_rng(0).integers(-9000, 9000, 20_000)
        reader.stdin.write(noise.astype("<i2").tobytes())
        reader.stdin.flush()  # and neither closed nor written to again
        rescue = threading.Timer(30, reader.kill)
        rescue.start()
        assert reader.stdout.read().decode().strip() == str([(50, 33)] * 6)
        assert reader.wait() == 0
        rescue.cancel()
