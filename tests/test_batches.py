"""Batches: one sequence whatever the cut, the order or the thread; and a stopped run goes on."""

import io
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import soundfile

from ondes.signal import segment_reader
from ondes.signal.audio import AudioError, RawFormat, open_blocks
from ondes.signal.batches import Batches
from ondes.signal.stft import Stft, power

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
    small = {"batch_size": 30, "buffer_size": 100, "segment_size": 40, "n_open": 3}
    small |= {"silence": -30.0, "prefetch": 0}
    return Batches(paths, options.pop("stft", STFT), options.pop("sr", SR), **small | options)


def assert_same(some, others):
    some, others = list(some), list(others)
    assert [len(batch) for batch in some] == [len(batch) for batch in others]
    assert all(map(np.array_equal, some, others))


def sorted_rows(frames):
    return frames[np.lexsort(frames.T)]


def frames_of(path, silence=None):
    with open_blocks(path, sr=SR) as blocks:
        frames = power(STFT.forward(np.concatenate(list(blocks))))
    if silence is None:
        return frames
    energy = frames.sum(axis=1)
    return frames[energy > 10 ** (silence / 10) * energy.max()]


# What is in them


@pytest.mark.parametrize("n_open", [1, 3, 20])
@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_every_frame_comes_once_a_pass(album, tmp_path, n_open, suffix):
    if suffix == "ogg":  # which cannot be read from the middle
        album = [soundfile_copy(path, tmp_path / f"{path.stem}.ogg") for path in album]
    expected = sorted_rows(np.concatenate([frames_of(path) for path in album]))
    given = list(batches_of(album, silence=None, n_open=n_open, n_passes=2))
    assert all(batch.dtype == np.float32 for batch in given)
    n_seen = np.cumsum([len(batch) for batch in given])
    n_first = int(np.flatnonzero(n_seen == len(expected))[0]) + 1
    for one_pass in (given[:n_first], given[n_first:]):
        assert np.array_equal(sorted_rows(np.concatenate(one_pass)), expected)
    assert not np.array_equal(given[0], given[n_first]), "another pass, another order"


def soundfile_copy(path, copy):
    soundfile.write(copy, *soundfile.read(path))
    return copy


@pytest.mark.parametrize("buffer_size", [100, 10_000])
def test_all_batches_of_a_round_but_its_last_are_full(album, buffer_size):
    sizes = [len(batch) for batch in batches_of(album, silence=None, buffer_size=buffer_size)]
    n_short = sum(size < 30 for size in sizes)
    assert max(sizes) == 30
    assert n_short <= (1 if buffer_size > sum(sizes) else -(-sum(sizes) // 100))


@pytest.mark.parametrize("silence", [-30.0, -60.0])
def test_silence_is_far_below_the_loudest_of_the_recording(album, silence):
    expected = sorted_rows(np.concatenate([frames_of(path, silence) for path in album]))
    at_once = np.concatenate(list(batches_of(album, silence=silence, buffer_size=10_000)))
    assert np.array_equal(sorted_rows(at_once), expected)
    # In small rounds the loudest is known once it was heard: from the second pass on.
    once, twice = (
        np.concatenate(list(batches_of(album, silence=silence, n_passes=n))) for n in (1, 2)
    )
    assert len(expected) <= len(once) <= sum(len(frames_of(path)) for path in album)
    assert np.array_equal(sorted_rows(twice[len(once) :]), expected)


def test_silence_is_measured_against_the_recording_itself(tmp_path, album):
    faint = tmp_path / "faint.wav"
    soundfile.write(faint, sound(7000, 0) * np.float32(2**-10), SR, subtype="FLOAT")
    soundfile.write(album[0], sound(7000, 0), SR, subtype="FLOAT")
    loud_rows = np.concatenate(list(batches_of(album[:1], buffer_size=10_000)))
    both = np.concatenate(list(batches_of([album[0], faint], buffer_size=10_000)))
    assert len(loud_rows) < len(frames_of(album[0]))
    assert len(both) == 2 * len(loud_rows)


def test_frames_of_zeros_are_left_out_unless_asked_for(tmp_path):
    path = tmp_path / "gap.wav"
    soundfile.write(path, np.r_[np.zeros(2000), sound(1000, 1) + 0.1, np.zeros(2000)], SR)
    soundfile.write(tmp_path / "nothing.wav", np.zeros(3000), SR)
    kept = np.concatenate(list(batches_of([path, tmp_path / "nothing.wav"], silence=-300.0)))
    assert (kept.sum(axis=1) > 0).all()
    assert len(kept) == (frames_of(path).sum(axis=1) > 0).sum()
    everything = batches_of([path, tmp_path / "nothing.wav"], silence=None)
    assert sum(map(len, everything)) == STFT.n_frames(5000) + STFT.n_frames(3000)
    assert list(batches_of([tmp_path / "nothing.wav"])) == []


def tones(folder, n_files, n_samples, suffix="wav"):
    """Recording i sounds at bin 4 i + 4 alone."""
    paths = [folder / f"{i}.{suffix}" for i in range(n_files)]
    for i, path in enumerate(paths):
        tone = np.sin(2 * np.pi * (4 * i + 4) / 64 * np.arange(n_samples))
        soundfile.write(path, 0.5 * tone, SR)
    return paths


def test_each_pass_goes_through_the_recordings_in_another_order(tmp_path):
    paths = tones(tmp_path, 4, 640)
    one_by_one = batches_of(paths, batch_size=21, buffer_size=0, n_passes=6, silence=None)
    heard = [int(batch.sum(axis=0).argmax()) for batch in one_by_one]
    passes = [tuple(heard[i : i + 4]) for i in range(0, len(heard), 4)]
    assert all(sorted(order) == [4, 8, 12, 16] for order in passes)
    assert len(set(passes)) > 2


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_a_round_is_a_fair_sample_of_all_recordings(tmp_path, suffix):
    paths = tones(tmp_path, 4, 80_000, suffix)
    rounds = full(batches_of(paths, n_open=4, batch_size=400, buffer_size=400, segment_size=4))
    shares = [np.bincount(batch.argmax(axis=1), minlength=33)[[4, 8, 12, 16]] for batch in rounds]
    assert len(shares) > 20
    # To the very end of the pass, when one after the other would have the last recording left.
    assert np.min(shares) > 0.05 * 400


def test_a_recording_is_heard_from_all_its_parts(tmp_path):
    rising = np.sin(2 * np.pi * np.cumsum(np.linspace(2, 30, 64_000)) / 64)
    path = tmp_path / "rising.wav"
    soundfile.write(path, 0.5 * rising, SR)
    for batch in full(batches_of([path], batch_size=400, buffer_size=400, segment_size=4)):
        assert np.bincount(batch.argmax(axis=1) // 8, minlength=4)[:4].min() > 0.05 * 400


def full(batches):
    return [batch for batch in batches if len(batch) == batches.batch_size]


# One sequence


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_the_sequence_does_not_depend_on_threads_or_order(album, tmp_path, suffix):
    if suffix == "ogg":
        album = [soundfile_copy(path, tmp_path / f"{path.stem}.ogg") for path in album]
    expected = list(batches_of(album, n_passes=2))
    assert len(expected) > 20
    for prefetch, n_readers in [(1, 1), (3, 1), (0, 4), (2, 3)]:
        threads = {"prefetch": prefetch, "n_readers": n_readers}
        assert_same(batches_of(album, n_passes=2, **threads), expected)
    again = [*reversed(album), album[0].parent / "." / album[0].name, os.path.relpath(album[2])]
    assert_same(batches_of(again, n_passes=2), expected)
    assert_same(batches_of(album, n_passes=2), expected)


def test_the_seed_decides(album):
    first = [next(iter(batches_of(album, seed=seed))) for seed in (0, 1, 0)]
    assert np.array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("sr", [SR, 5000])
def test_wav_and_flac_give_the_same(tmp_path, album, sr):
    (tmp_path / "flac").mkdir()
    copies = [tmp_path / "flac" / f"{path.stem}.flac" for path in album]
    for path, copy in zip(album, copies, strict=True):
        soundfile.write(copy, *soundfile.read(path))
    assert_same(batches_of(copies, sr=sr), batches_of(album, sr=sr))


# Stopped and gone on


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize(
    "how",
    [{}, {"sr": 5000}, {"silence": None}, {"stft": Stft(64, 24)}, {"stft": Stft(64, 64, "sine")}],
    ids=str,
)
def test_a_run_stopped_at_any_batch_goes_on_with_the_same_bits(album, prefetch, how):
    options = {**how, "n_passes": 2, "prefetch": prefetch, "batch_size": 25, "buffer_size": 80}
    whole = batches_of(album, **options)
    states = [whole.state()]
    expected = []
    for batch in whole:
        expected.append(batch)
        states.append(whole.state())
    assert len(expected) > 12
    for n_done, state in enumerate(states):
        resumed = batches_of(album, **options)
        resumed.restore(json.loads(json.dumps(state)))
        assert_same(resumed, expected[n_done:])
    assert len(json.dumps(states[-2])) < 1000


def test_iterating_goes_on_after_a_break(album):
    batches = batches_of(album, prefetch=1)
    expected = list(batches_of(album))
    given = []
    for n in (1, 4, 2, 1000):
        given += itertools.islice(batches, n)
    assert_same(given, expected)


def test_a_position_of_other_settings_is_refused(album):
    batches = batches_of(album)
    next(iter(batches))
    for other in (
        batches_of(album, seed=1),
        batches_of(album, batch_size=31),
        batches_of(album, stft=Stft(64, 16)),
        batches_of(album, silence=None),
    ):
        with pytest.raises(ValueError, match="of other settings"):
            other.restore(batches.state())


def test_recordings_that_changed_are_named(tmp_path, album):
    batches = batches_of(album)
    next(iter(batches))
    state = batches.state()
    with pytest.raises(ValueError, match=r"^0\.wav is gone"):
        batches_of(album[1:]).restore(state)
    soundfile.write(tmp_path / "more.wav", sound(100, 0), SR)
    with pytest.raises(ValueError, match=r"^more\.wav is new"):
        batches_of([*album, tmp_path / "more.wav"]).restore(state)
    soundfile.write(album[2], sound(3001, 0), SR)
    with pytest.raises(ValueError, match=r"^2\.wav has 3001 samples .* had 3000"):
        batches_of(album).restore(state)
    soundfile.write(album[2], sound(3000, 0), SR // 2)
    with pytest.raises(ValueError, match=r"^2\.wav has 3000 samples at 4000 Hz"):
        batches_of(album).restore(state)
    soundfile.write(album[2], sound(3000, 1), SR)
    with pytest.warns(RuntimeWarning, match=r"^2\.wav has other bytes than when"):
        batches_of(album).restore(state)


def test_of_two_recordings_of_one_name_one_is_missed(tmp_path, album):
    (tmp_path / "b").mkdir()
    soundfile.write(tmp_path / "b" / "0.wav", sound(100, 0), SR)
    batches = batches_of([*album, tmp_path / "b" / "0.wav"])
    next(iter(batches))
    with pytest.raises(ValueError, match=r"^0\.wav is gone"):
        batches_of(album).restore(batches.state())
    with pytest.raises(ValueError, match=r"^0\.wav is new"):
        batches.restore(batches_of(album).state())


def test_more_passes_may_be_added(album):
    once = batches_of(album)
    n_once = len(list(once))
    again = batches_of(album, n_passes=2)
    again.restore(once.state())
    assert_same(again, list(batches_of(album, n_passes=2))[n_once:])


# Bad recordings


@pytest.mark.parametrize("prefetch", [0, 1])
def test_bad_recordings_are_told_once_and_the_rest_go_on(tmp_path, album, prefetch):
    good = list(batches_of(album, n_passes=2))
    half = sound(100_000, 9)
    half[60_000] = np.nan
    soundfile.write(tmp_path / "a_half.wav", half, SR, subtype="FLOAT")
    (tmp_path / "b_text.wav").write_text("no sound")
    bad = [tmp_path / "a_half.wav", tmp_path / "b_text.wav", tmp_path / "c_gone.wav"]
    told = []
    options = {"n_passes": 2, "silence": None, "prefetch": prefetch}
    options["on_error"] = lambda path, error: told.append((path, error, threading.current_thread()))
    given = list(batches_of(album + bad, **options))
    assert sorted(path for path, _, _ in told) == [str(path) for path in bad]
    assert all(isinstance(error, AudioError) for _, error, _ in told)
    assert {thread for _, _, thread in told} == {threading.main_thread()}
    # All segments count but the one with the bad samples, and that one up to them.
    n_good, n_half = sum(STFT.n_frames(n) for n in LENGTHS), STFT.n_frames(len(half))
    n_lost = n_good + n_half - sum(map(len, given)) / 2
    assert 0 < n_lost <= -(-16384 // STFT.hop_length) + 40
    first_told = [path for path, _, _ in told]
    assert_same(batches_of(album + bad, **options, n_readers=3), given)
    assert [path for path, _, _ in told] == 2 * first_told
    assert len(good) > 0


@pytest.mark.parametrize("prefetch", [0, 1])
def test_without_a_hook_a_bad_recording_is_raised(album, prefetch):
    album[3].write_text("no sound")
    with pytest.raises(AudioError, match=r"3\.wav"):
        list(batches_of(album, prefetch=prefetch))


def test_resuming_after_a_bad_recording(tmp_path, album):
    album[3].write_bytes(album[3].read_bytes()[:5000])
    options = {"n_passes": 2, "on_error": lambda *_: None}
    whole, states, expected = batches_of(album, **options), [], []
    for batch in whole:
        expected.append(batch)
        states.append(whole.state())
    for n_done in range(0, len(states), 3):
        resumed = batches_of(album, **options)
        resumed.restore(states[n_done])
        assert_same(resumed, expected[n_done + 1 :])


# Threads, progress, streams


@pytest.mark.parametrize("n_readers", [1, 3])
def test_leaving_early_stops_the_threads(album, n_readers):
    def ours():
        return {t.name for t in threading.enumerate() if t.name.startswith("ondes-")}

    iterator = iter(batches_of(album, prefetch=1, n_readers=n_readers, n_passes=1000))
    next(iterator)
    assert "ondes-decode" in ours()
    assert (len(ours()) > 1) == (n_readers > 1)
    iterator.close()
    assert ours() == set()


@pytest.mark.parametrize("prefetch", [1, 3])
def test_as_many_rounds_as_said_are_drawn_before_they_are_asked_for(album, monkeypatch, prefetch):
    drawn, draw = [], Batches._draw
    monkeypatch.setattr(Batches, "_draw", lambda *given: drawn.append(0) or draw(*given))
    batches = batches_of(album, prefetch=prefetch, n_passes=100)
    iterator = iter(batches)
    for n_taken in (1, 2):
        while len(next(iterator)) == batches.batch_size:
            pass  # the last of a round is short, here
        time.sleep(0.2)
        assert len(drawn) == n_taken + prefetch
    iterator.close()


@pytest.mark.parametrize("n_readers", [1, 3])
def test_what_must_be_read_in_a_row_is_opened_once_a_pass(album, tmp_path, monkeypatch, n_readers):
    album = [soundfile_copy(path, tmp_path / f"{path.stem}.ogg") for path in album]
    opened = []

    def counted(source, **how):
        opened.append(source)
        return open_blocks(source, **how)

    monkeypatch.setattr(segment_reader, "open_blocks", counted)
    list(batches_of(album, n_passes=2, n_readers=n_readers, segment_size=5))
    assert sorted(opened) == sorted(2 * album)


class Breaking(io.BytesIO):
    def read(self, size=-1):
        raise RuntimeError("the cable is out")


@pytest.mark.parametrize("prefetch", [0, 1])
def test_any_exception_reaches_who_asks_for_batches(prefetch):
    with pytest.raises(RuntimeError, match="the cable is out"):
        list(batches_of(Breaking(), raw=RawFormat(SR), prefetch=prefetch))


def test_progress_ends_at_the_total(album):
    batches = batches_of(album, n_passes=2)
    total = 2 * sum(LENGTHS) / SR
    assert batches.seconds_total == pytest.approx(total)
    done = [batches.seconds_done for _ in batches]
    assert done == sorted(done)
    assert 0 < done[0] < 0.2 * total
    assert done[-1] == pytest.approx(total)


def test_progress_goes_on_where_it_stopped(album):
    batches = batches_of(album)
    for _ in itertools.islice(batches, 8):
        pass
    resumed = batches_of(album)
    resumed.restore(batches.state())
    next(iter(resumed))
    assert batches.seconds_done < resumed.seconds_done < batches.seconds_done + 1


def test_a_stream_gives_what_its_file_would(album):
    data = album[3].read_bytes()
    at_once = {"buffer_size": 10_000}
    expected = list(batches_of([album[3]], **at_once))
    assert_same(batches_of(io.BytesIO(data), **at_once), expected)
    raw = RawFormat(SR, 1, "s16le")
    streamed = batches_of(io.BytesIO(data[44:]), raw=raw, **at_once)
    assert streamed.seconds_total is None
    assert_same(streamed, expected)
    (album[3].parent / "raw").write_bytes(data[44:])
    assert_same(batches_of([album[3].parent / "raw"], raw=raw, **at_once), expected)
    in_rounds = batches_of(io.BytesIO(data), silence=None)
    assert np.array_equal(
        sorted_rows(np.concatenate(list(in_rounds))), sorted_rows(frames_of(album[3]))
    )
    assert streamed.seconds_done > 1
    with pytest.raises(ValueError, match="heard only once"):
        batches_of("-", n_passes=2)


LISTEN = """
import itertools, sys, time
from ondes.signal.audio import RawFormat
from ondes.signal.batches import Batches
from ondes.signal.stft import Stft
sizes = {"buffer_size": 200, "n_readers": int(sys.argv[1])}
batches = Batches("-", Stft(64), 8000, 50, **sizes, raw=RawFormat(8000))
iterator = iter(batches)
print([batch.shape for batch in itertools.islice(iterator, 6)])
time.sleep(0.5)  # for the thread to come to wait at the pipe
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
@pytest.mark.parametrize("n_readers", ["1", "3"])
def test_an_endless_pipe_that_falls_silent_does_not_hold_the_program(n_readers):
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, n_readers], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as listener:
        # The first read makes 511 frames, two rounds of 200: the third waits for ever.
        noise = np.random.default_rng(0).integers(-9000, 9000, 20_000)
        listener.stdin.write(noise.astype("<i2").tobytes())
        listener.stdin.flush()  # and neither closed nor written to again
        rescue = threading.Timer(30, listener.kill)
        rescue.start()
        assert listener.stdout.read().decode().strip() == str([(50, 33)] * 6)
        assert listener.wait() == 0
        rescue.cancel()
