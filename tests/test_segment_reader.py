"""Reading from the middle: frames there are those of the whole recording, bit for bit."""

import gc

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from ondes.signal import recordings as signal_recordings
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.frame_reader import FrameBuffer
from ondes.signal.schedule import Segment
from ondes.signal.segment_reader import RecordingReader, SegmentReader
from ondes.signal.stft import Stft
from ondes.signal.survey import Recording, survey

SR = 8000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recordings")


def noise(n_samples, channels, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (n_samples, channels))


def recording(folder, n_samples, channels=1):
    path = folder / f"{n_samples} {channels}.{'flac' if channels <= 8 else 'wav'}"
    if not path.exists():
        soundfile.write(path, noise(n_samples, channels, n_samples), SR)
    return path


def frames_of(path, stft):
    samples, _ = soundfile.read(path, dtype="float32")
    return stft.power(samples)


def frames_in(blocks, stft, n_expected=0):
    buffer = FrameBuffer(AudioSettings(SR, stft), n_expected)
    for samples in blocks:
        buffer.add(samples)
    return buffer.frames


@settings(max_examples=150)
@given(st.data())
def test_a_recording_is_read_on_from_any_frame(folder, data):
    n_samples = data.draw(st.sampled_from([1, 63, 64, 1000, 40_000]))
    path = recording(folder, n_samples, data.draw(st.integers(1, 3)))
    n_fft = data.draw(st.integers(1, 80))
    stft = Stft(n_fft, data.draw(st.integers(1, n_fft)), "boxcar")
    whole = frames_of(path, stft)
    first = data.draw(st.integers(0, len(whole) + 3))
    reader = RecordingReader(path, AudioSettings(SR, stft), first=first)
    for n in data.draw(st.lists(st.integers(1, 500), min_size=1, max_size=5)):
        given = frames_in([reader.take(n)], stft)
        assert np.array_equal(given, whole[first : first + n])
        first += len(given)
        assert reader.place == first
    reader.close()


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3"])
@pytest.mark.parametrize("channels", [1, 2])
def test_segments_are_parts_of_the_whole_in_any_order(tmp_path, suffix, channels):
    paths = [tmp_path / f"{n}.{suffix}" for n in range(2)]
    for seed, path in enumerate(paths):
        soundfile.write(path, noise(60_000, channels, seed), SR)
    audio = AudioSettings(SR, Stft(64))
    recordings = survey(paths, audio)
    assert {each.seekable for each in recordings} == {suffix != "mp3"}
    reader = SegmentReader(paths, recordings, audio)
    whole = [audio.stft.power(signal_recordings.read(path)[0]) for path in paths]
    for file, first, n in [(0, 0, 100), (1, 300, 50), (0, 100, 40), (0, 7, 9), (1, 350, 1000)]:
        read = list(reader.read([Segment(file, first, n)]))
        assert {number for number, _ in read} == {file}
        shapes = {samples.shape[1:] for _, samples in read}
        assert shapes == {() if channels == 1 else (channels,)}
        frames = frames_in((samples for _, samples in read), audio.stft)
        assert np.array_equal(frames, whole[file][first : first + n])
    assert reader.failures() == []
    reader.close()


def test_the_last_segment_has_all_that_is_left_however_long(folder):
    path, audio = recording(folder, 40_000), AudioSettings(SR, Stft(8))
    n_declared = audio.stft.n_frames(20_000)
    short = Recording(path.name, SR, 20_000, n_declared, seekable=True)
    reader = SegmentReader([path], [short], audio)
    blocks = [samples for _, samples in reader.read([Segment(0, 1000, n_declared - 1000)])]
    assert max(map(len, blocks)) < 10_000  # so that its samples take no more memory than others'
    frames = frames_in(blocks, audio.stft, n_declared - 1000)
    assert np.array_equal(frames, frames_of(path, audio.stft)[1000:])


@pytest.mark.parametrize("channels", [1, 8, 64])
def test_many_channels_take_no_more_memory_than_a_few(folder, channels):
    path, audio = recording(folder, 20_000, channels), AudioSettings(SR, Stft(8))
    reader = SegmentReader([path], survey([path], audio), audio)
    n_frames = audio.stft.n_frames(20_000)
    blocks = [samples for _, samples in reader.read([Segment(0, 0, n_frames)])]
    assert max(samples.size for samples in blocks) < 8 * 2048 * 4 + 64 * 8
    assert np.array_equal(frames_in(blocks, audio.stft), frames_of(path, audio.stft))


def test_the_number_of_threads_is_checked():
    with pytest.raises(ValueError, match="n_threads must be at least 1, not 0"):
        SegmentReader([], [], AudioSettings(SR, Stft()), n_threads=0)


def test_frames_that_are_not_kept_make_room_for_the_next():
    stft, samples = Stft(16), noise(3, 160).astype(np.float32)
    first, second, third = (frames_in([each], stft) for each in samples)
    buffer = FrameBuffer(AudioSettings(SR, stft), 30)
    buffer.add(samples[0])
    buffer.add(samples[1])
    is_kept = np.arange(len(second)) % 3 == 1
    buffer.keep(len(first), is_kept)
    buffer.add(samples[2])
    assert np.array_equal(buffer.frames, np.concatenate([first, second[is_kept], third]))


def test_segments_that_fail_keep_nothing_but_the_reason(tmp_path):
    """Tracebacks would keep the decoder of every segment, and its buffers."""
    path = tmp_path / "a.flac"
    soundfile.write(path, noise(SR, 1), SR)
    data = bytearray(path.read_bytes())
    data[3000:] = bytes(len(data) - 3000)
    path.write_bytes(data)
    audio = AudioSettings(SR, Stft(64))
    reader = SegmentReader([path], survey([path], audio), audio)
    assert list(reader.read(Segment(0, first, 10) for first in range(100, 200, 10))) == []
    failures = reader.failures()
    reader.close()
    assert len(failures) == 10
    # Not isinstance: it asks __class__ of every object alive, and some of torch's warn when asked.
    assert [each for each in gc.get_objects() if type(each) is RecordingReader] == []
