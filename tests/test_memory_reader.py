"""Recordings in memory give what files with the same samples give."""

import numpy as np
import pytest
import soundfile

from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import MiniBatches, Rounds
from ondes.signal.frame_reader import HostFrameReader
from ondes.signal.schedule import Schedule, Segment
from ondes.signal.segment_reader import MemoryReader, SegmentReader
from ondes.signal.stft import Stft
from ondes.signal.survey import describe, survey

SR = 8000
AUDIO = AudioSettings(SR, Stft(64), 40.0)
SIZES = {"batch_size": 30, "round_size": 100, "segment_size": 40, "n_passes": 2}
SHAPES = [(7000,), (12_000, 2), (20,), (3000, 1), (1,), (5000, 3)]


def arrays_of(dtype):
    rng = np.random.default_rng(0)
    arrays = []
    for shape in SHAPES:
        loudness = np.repeat(rng.choice([0, 0.001, 0.5], shape[0] // 100 + 1), 100)[: shape[0]]
        samples = rng.uniform(-1, 1, shape) * loudness.reshape(-1, *(1 for _ in shape[1:]))
        arrays.append((samples * (2**15 if dtype == np.int16 else 1)).astype(dtype))
    return arrays


def saved(folder, arrays):
    paths = [folder / f"{n}.wav" for n in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        soundfile.write(path, array, SR, subtype="PCM_16" if array.dtype == np.int16 else "FLOAT")
    return paths


def batches_of(recordings, open_samples, audio=AUDIO, **sizes):
    schedule = Schedule(recordings, audio, **SIZES | sizes)
    return MiniBatches(Rounds(schedule, lambda: HostFrameReader(open_samples(), audio)))


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
@pytest.mark.parametrize("audio", [AUDIO, AudioSettings(SR, Stft(100, 33), None)], ids=str)
def test_batches_are_those_of_files_bit_for_bit(tmp_path, dtype, audio):
    arrays = arrays_of(dtype)
    paths = saved(tmp_path, arrays)
    known = survey(paths, audio)
    expected = list(batches_of(known, lambda: SegmentReader(paths, known, audio), audio))
    described = describe(arrays, audio)
    given = list(batches_of(described, lambda: MemoryReader(arrays, audio.stft), audio))
    assert len(expected) > 20
    assert [len(batch) for batch in given] == [len(batch) for batch in expected]
    assert all(map(np.array_equal, given, expected))


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_samples_are_those_of_files_bit_for_bit(tmp_path, dtype):
    arrays = arrays_of(dtype)
    paths = saved(tmp_path, arrays)
    known, described = survey(paths, AUDIO), describe(arrays, AUDIO)
    assert [each.n_frames for each in described] == [each.n_frames for each in known]
    assert all(each.seekable for each in described)
    files, memory = SegmentReader(paths, known, AUDIO), MemoryReader(arrays, AUDIO.stft)
    for file, n_frames in ((n, each.n_frames) for n, each in enumerate(known)):
        for first in {0, min(3, n_frames - 1), n_frames - 1}:
            segment = [Segment(file, first, min(50, n_frames - first))]
            ((_, expected),) = files.read(segment)
            ((number, samples),) = memory.read(segment)
            assert (number, samples.dtype) == (file, dtype)
            scale = np.float32(2**15 if dtype == np.int16 else 1)
            assert np.array_equal(samples / scale, expected)
    assert memory.failures() == []
    memory.close()


def test_arrays_are_not_written_to():
    arrays = arrays_of(np.float32)
    for array in arrays:
        array.flags.writeable = False
    list(batches_of(describe(arrays, AUDIO), lambda: MemoryReader(arrays, AUDIO.stft)))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(100),
        np.zeros((2, 3, 4), np.float32),
        np.zeros((100, 0), np.float32),
        np.float32(3),
        np.zeros(100, np.int32),
    ],
    ids=lambda array: f"{array.shape} {array.dtype}",
)
def test_other_shapes_and_types_are_refused(array):
    with pytest.raises(ValueError, match=r"^Samples of shape .* must be \(n_samples,\) or"):
        describe([np.zeros(10, np.float32), array], AUDIO)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused(value):
    array = np.zeros((2**20 + 5, 2), np.float32)
    array[-1, 1] = value
    with pytest.raises(ValueError, match=r"^Recording 1 has NaN or infinite samples\.$"):
        describe([np.zeros(10, np.int16), array], AUDIO)
