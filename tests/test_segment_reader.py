"""Reading from the middle: frames there are those of the whole recording, bit for bit."""

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from ondes.signal.frame_buffer import FrameBuffer
from ondes.signal.segment_reader import SegmentReader, SpanReader
from ondes.signal.segments import FrameSettings, Recording, Segment, survey
from ondes.signal.stft import Stft, power

SR = 8000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recordings")


def recording(folder, n_samples):
    path = folder / f"{n_samples}.flac"
    if not path.exists():
        soundfile.write(path, np.random.default_rng(n_samples).uniform(-0.5, 0.5, n_samples), SR)
    return path


def frames_of(path, stft):
    samples, _ = soundfile.read(path, dtype="float32")
    return power(stft.forward(samples))


def made_of(spans, stft, n_expected=0):
    buffer = FrameBuffer(stft, n_expected)
    for span in spans:
        buffer.add(span)
    return buffer.frames


@settings(max_examples=150)
@given(st.data())
def test_a_recording_is_read_on_from_any_frame(folder, data):
    path = recording(folder, data.draw(st.sampled_from([1, 63, 64, 1000, 40_000])))
    n_fft = data.draw(st.integers(1, 80))
    stft = Stft(n_fft, data.draw(st.integers(1, n_fft)), "boxcar")
    whole = frames_of(path, stft)
    first = data.draw(st.integers(0, len(whole) + 3))
    reader = SpanReader(path, FrameSettings(stft, SR), first)
    for n in data.draw(st.lists(st.integers(1, 500), min_size=1, max_size=5)):
        given = made_of([reader.take(n)], stft)
        assert np.array_equal(given, whole[first : first + n])
        first += len(given)
        assert reader.place == first
    reader.close()


@pytest.mark.parametrize("suffix", ["flac", "ogg"])
def test_segments_are_parts_of_the_whole_in_any_order(tmp_path, suffix):
    paths = [tmp_path / f"{n}.{suffix}" for n in range(2)]
    for seed, path in enumerate(paths):
        soundfile.write(path, np.random.default_rng(seed).uniform(-0.5, 0.5, 60_000), SR)
    how = FrameSettings(Stft(64), SR)
    recordings = survey(paths, how)
    assert {each.can_jump for each in recordings} == {suffix == "flac"}
    reader = SegmentReader(paths, recordings, how)
    whole = [frames_of(path, how.stft) for path in paths]
    for file, first, n in [(0, 0, 100), (1, 300, 50), (0, 100, 40), (0, 7, 9), (1, 350, 1000)]:
        given = made_of((span for _, span in reader.read([Segment(file, first, n)])), how.stft)
        assert np.array_equal(given, whole[file][first : first + n])
    assert reader.failures() == []
    reader.close()


def test_the_last_segment_has_all_that_is_left_however_long(folder):
    path, how = recording(folder, 40_000), FrameSettings(Stft(8), SR)
    short = Recording(path.name, SR, 20_000, how.stft.n_frames(20_000), can_jump=True)
    reader = SegmentReader([path], [short], how)
    segment = Segment(0, 1000, how.stft.n_frames(20_000) - 1000)
    spans = [span for _, span in reader.read([segment])]
    assert max(map(len, spans)) < 10_000  # so that its samples take no more room than others'
    given = made_of(spans, how.stft, segment.n_frames)
    assert np.array_equal(given, frames_of(path, how.stft)[1000:])


def test_frames_that_are_not_kept_make_room_for_the_next():
    stft, samples = Stft(16), np.random.default_rng(0).uniform(-1, 1, (3, 160)).astype(np.float32)
    first, second, third = (made_of([each], stft) for each in samples)
    buffer = FrameBuffer(stft, 30)
    buffer.add(samples[0])
    buffer.add(samples[1])
    is_kept = np.arange(len(second)) % 3 == 1
    buffer.keep(len(first), is_kept)
    buffer.add(samples[2])
    assert np.array_equal(buffer.frames, np.concatenate([first, second[is_kept], third]))
