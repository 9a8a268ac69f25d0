"""Recordings: found in one order, read to the bit in any blocks, refused in one sentence."""

import contextlib
import ctypes
import io
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from ondes.errors import FileError
from ondes.signal import av_decoder, decoders, recordings
from ondes.signal.audio_writer import AudioWriter, write_audio
from ondes.signal.recordings import RawFormat, find_recordings, open_blocks, probe

SR = 16000


def noise(n, channels=2, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (n, channels)).astype(np.float32)


def read(recording, **options):
    with open_blocks(recording, **options) as blocks:
        return np.concatenate(list(blocks))


def save(path, samples, sr=SR, **options):
    soundfile.write(path, samples, sr, **options)
    return path


def encode(path, codec, samples, sr, container=None, **options):
    """Write a mono recording with PyAV."""
    av = pytest.importorskip("av", reason="needs the extra `formats`")
    with av.open(str(path), "w", options=container or {}) as output:
        stream = output.add_stream(codec, rate=sr, options=options)
        stream.layout = "mono"
        to_codec = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=sr)
        for first in range(0, len(samples), 4096):  # an encoder may take no more at a time
            own = samples[first : first + 4096].reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(own, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = sr, first
            for part in to_codec.resample(frame):
                output.mux(stream.encode(part))
        for part in to_codec.resample(None):
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return path


def quiet_then_loud(n=200_000):
    """Sound on which a variable bit rate varies."""
    ramp = np.linspace(0, 1, n) ** 4
    return (0.3 * np.sin(0.05 * np.arange(n)) + ramp * noise(n, 1)[:, 0] * 0.6).astype(np.float32)


def cut_in_half(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


# Blocks


FILES = {
    "wav": {},
    "flac": {},
    "ogg": {},
    "aiff": {},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "w64": {},
    "rf64": {},
}


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("sr", [None, 11025])
def test_samples_do_not_depend_on_the_block_size_or_the_start(tmp_path, suffix, channels, sr):
    path = save(tmp_path / f"a.{suffix}", noise(80_000, channels), **FILES[suffix])
    whole = read(path, sr=sr, block_size=10**6)
    assert whole.dtype == np.float32
    assert whole.shape[1:] == (channels,)
    assert np.array_equal(read(path, sr=sr, block_size=17), whole)
    for start in (1, 32768, 40_001, len(whole) - 1, len(whole)):
        blocks = open_blocks(path, sr=sr, block_size=4096, start=start)
        rest = np.concatenate([whole[:0], *blocks])
        assert np.array_equal(rest, whole[start:])


@pytest.mark.parametrize("suffix", ["ogg", "opus"])
def test_lossy_files_start_in_the_middle_as_if_read_from_the_beginning(tmp_path, suffix):
    for n in range(65_540, 68_000, 311):
        path = save(tmp_path / f"a.{suffix}", noise(n, 1), **FILES[suffix])
        assert np.array_equal(read(path, start=65_537), read(path)[65_537:])


@pytest.mark.parametrize(("n_missing", "is_refused"), [(4000, False), (40_000, True)])
def test_an_ogg_may_declare_a_little_more_than_it_has(tmp_path, n_missing, is_refused):
    path = save(tmp_path / "a.ogg", noise(100_000))
    n_samples, data = len(read(path)), path.read_bytes()
    start = data.rindex(b"OggS")
    page = bytearray(data[start:])
    counted = int.from_bytes(page[6:14], "little") + n_missing
    page[6:14], page[22:26] = counted.to_bytes(8, "little"), bytes(4)
    page[22:26] = ogg_checksum(page).to_bytes(4, "little")
    path.write_bytes(data[:start] + page)
    assert probe(path).n_samples == 100_000 + n_missing
    with pytest.raises(FileError, match="truncated") if is_refused else contextlib.nullcontext():
        assert n_samples <= len(read(path)) < n_samples + n_missing


def ogg_checksum(page):
    """CRC-32 of polynomial 0x04c11db7 with neither reflection nor inversion: RFC 3533."""
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value >> 31 else 0)) & 0xFFFFFFFF
    return value


def test_every_block_but_the_last_is_full(tmp_path):
    path = save(tmp_path / "a.wav", noise(10_001))
    assert [len(block) for block in open_blocks(path, block_size=4000)] == [4000, 4000, 2001]


@pytest.mark.parametrize("suffix", ["wav", "flac", "aiff"])
def test_lossless_files_give_the_samples_written(tmp_path, suffix):
    samples = np.round(noise(50_000) * 2**15) / np.float32(2**15)
    path = save(tmp_path / f"a.{suffix}", samples, subtype="PCM_16")
    assert np.array_equal(read(path), samples)


@pytest.mark.parametrize("rates", [(44100, 22050), (8000, 22050), (48000, 44100)])
def test_resampling_in_blocks_is_resampling_in_one_go(tmp_path, rates):
    samples = noise(100_000)
    path = save(tmp_path / "a.wav", samples, rates[0], subtype="FLOAT")
    expected = soxr.resample(samples, *rates)
    assert np.array_equal(read(path, sr=rates[1]), expected)
    with open_blocks(path, sr=rates[1]) as blocks:
        assert (blocks.sr, blocks.n_samples) == (rates[1], len(expected))


def test_blocks_stay_as_they_are_while_others_are_read(tmp_path):
    path = save(tmp_path / "a.wav", noise(200_000))
    blocks = list(open_blocks(path, block_size=32768))
    assert np.array_equal(np.concatenate(blocks), soundfile.read(path, dtype="float32")[0])


@pytest.mark.parametrize("channels", [1, 3, 32])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_short_recordings_and_many_channels(tmp_path, channels, n):
    path = save(tmp_path / "a.wav", noise(n, channels), subtype="FLOAT")
    assert np.array_equal(read(path), noise(n, channels))
    assert len(read(path, sr=2 * SR)) == 2 * n


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sr", [None, 11025])
def test_a_recording_is_read_into_memory_in_one_call(tmp_path, channels, sr):
    path = save(tmp_path / "a.wav", noise(40_000, channels))
    samples, rate = recordings.read(path, sr)
    assert rate == (sr or SR)
    assert samples.shape[1:] == (() if channels == 1 else (channels,))
    assert np.array_equal(samples.reshape(-1, channels), read(path, sr=sr))
    raw = RawFormat(SR, channels, "f32le")
    samples, _ = recordings.read(io.BytesIO(noise(100, channels).tobytes()), raw=raw)
    assert np.array_equal(samples, noise(100, channels).squeeze())


def test_flac_of_unknown_length_is_read_to_its_end(tmp_path):
    path = save(tmp_path / "a.flac", noise(50_000))
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)  # STREAMINFO: total samples, as ffmpeg pipes leave it
    path.write_bytes(data)
    assert probe(path).n_samples is None
    assert len(read(path)) == 50_000


def test_samples_beyond_one_are_kept(tmp_path):
    path = save(tmp_path / "a.wav", 3 * noise(100), subtype="FLOAT")
    assert np.array_equal(read(path), 3 * noise(100))


def test_probe_describes_a_recording(tmp_path):
    info = probe(save(tmp_path / "a.flac", noise(8000)))
    assert (info.sr, info.channels, info.n_samples, info.format) == (SR, 2, 8000, "FLAC")
    assert info.seconds == 0.5
    assert info.seekable
    assert probe(save(tmp_path / "a.ogg", noise(8000))).seekable
    assert not probe(save(tmp_path / "a.mp3", noise(8000), format="MP3")).seekable


@pytest.mark.parametrize("bad", [{"block_size": 0}, {"start": -1}, {"sr": 0}])
def test_impossible_settings_are_refused(tmp_path, bad):
    with pytest.raises(ValueError, match="at least"):
        open_blocks(tmp_path / "a.wav", **bad)


@pytest.mark.parametrize("is_piped", [False, True])
def test_no_recording_has_very_many_channels(tmp_path, is_piped):
    for channels in (128, 129):
        path = save(tmp_path / "a.wav", noise(10, channels))
        recording = io.BytesIO(path.read_bytes()) if is_piped else path
        if channels == 128:
            assert read(recording, sr=11025).shape[1] == channels
        else:
            with pytest.raises(FileError, match="has 129 channels in its header, more than 128"):
                read(recording)


# MP3, MP4, video


@pytest.fixture(params=["with PyAV", "without PyAV"])
def av_or_not(request, monkeypatch):
    pytest.importorskip("av", reason="needs the extra `formats` to write the files")
    if request.param == "without PyAV":
        monkeypatch.setattr(decoders, "_has_pyav", lambda: False)
    return request.param == "with PyAV"


def test_mp3_is_read_to_its_end(tmp_path, av_or_not):
    sound = quiet_then_loud()
    path = encode(tmp_path / "a.mp3", "libmp3lame", sound, 44100)
    decoded = read(path)
    assert abs(len(decoded) - len(sound)) < 3000
    assert np.corrcoef(decoded[:190_000, 0], sound[:190_000])[0, 1] > 0.9


def test_mp3_of_variable_rate_without_a_length_is_never_truncated(tmp_path, av_or_not):
    sound = quiet_then_loud()
    vbr = {"flags": "+qscale", "global_quality": str(5 * 118)}
    path = encode(tmp_path / "a.mp3", "libmp3lame", sound, 44100, {"write_xing": "0"}, **vbr)
    assert soundfile.info(path).frames < 0.9 * len(sound), "libsndfile#1001 is fixed: use it"
    if av_or_not:
        assert len(read(path)) >= len(sound)
    else:
        with pytest.raises(FileError, match=r"a\.mp3: .*pip install 'ondes\[formats\]'"):
            open_blocks(path)


def test_many_threads_open_files_and_the_limit_on_ffmpegs_memory_is_lifted_again(tmp_path):
    av = pytest.importorskip("av", reason="needs the extra `formats`")
    path = encode(tmp_path / "a.mp3", "libmp3lame", quiet_then_loud(), 44100)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(probe, [path] * 200))) == 1
    ffmpeg = ctypes.CDLL(av._core.__file__)
    ffmpeg.av_malloc.restype, ffmpeg.av_free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    allocated = ffmpeg.av_malloc(ctypes.c_size_t(2**30))
    ffmpeg.av_free(allocated)
    assert allocated is not None


def test_a_truncated_mp3(tmp_path, av_or_not):
    path = cut_in_half(encode(tmp_path / "a.mp3", "libmp3lame", quiet_then_loud(), 44100))
    with pytest.raises(FileError, match="truncated"):
        read(path)


@pytest.mark.parametrize(
    ("name", "codec", "sr"),
    [("a.m4a", "aac", 44100), ("a.mkv", "libopus", 48000), ("a.oga", "flac", 44100)],
)
def test_containers_are_read_by_pyav(tmp_path, name, codec, sr):
    sound = quiet_then_loud()
    path = encode(tmp_path / name, codec, sound, sr)
    decoded = read(path)
    assert 0 <= len(decoded) - len(sound) < 3000
    assert np.corrcoef(decoded[2000 : len(sound), 0], sound[2000:])[0, 1] > 0.9 or codec == "aac"
    assert np.array_equal(read(path, block_size=17), decoded)
    assert np.array_equal(read(path, start=70_001), decoded[70_001:])
    assert abs(probe(path).n_samples - len(decoded)) < 3000
    with pytest.raises(FileError, match=r"truncated|damaged"):
        read(cut_in_half(path))


@pytest.mark.parametrize(("layout", "n_channels"), [("7.1", 8), ("12C", 12), ("64C", 64)])
def test_many_channels_are_read_by_pyav(tmp_path, layout, n_channels):
    """Of eight planes and more PyAV itself reads beyond the last."""
    av = pytest.importorskip("av", reason="needs the extra `formats`")
    samples = (8000 * noise(4000, n_channels)).astype(np.int16)
    frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout=layout)
    frame.sample_rate, frame.pts = 16000, 0
    with av.open(str(tmp_path / "a.mkv"), "w") as file:
        stream = file.add_stream("wavpack", rate=16000, layout=layout)
        for planar in av.AudioResampler("s16p", layout, 16000).resample(frame):
            file.mux(stream.encode(planar))
        file.mux(stream.encode(None))
    decoded = read(tmp_path / "a.mkv")
    # FFmpeg's encoder drops the low bits of loud samples.
    np.testing.assert_allclose(decoded, samples / 2**15, atol=2**-7)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
def test_many_channels_take_no_thread_per_core():
    av = pytest.importorskip("av", reason="needs the extra `formats`")
    if not hasattr(av.filter.Graph(), "threads"):
        pytest.skip("this PyAV does not set the threads of a filter graph")
    frame = av.AudioFrame("fltp", "12C", 100)
    frame.sample_rate, frame.pts = 16000, 0
    before = len(list(Path("/proc/self/task").iterdir()))
    graph = av_decoder._packing(frame)
    assert len(list(Path("/proc/self/task").iterdir())) == before
    graph.push(frame)
    assert graph.pull().to_ndarray().shape == (1, 1200)


def test_a_missing_pyav_is_named(tmp_path, monkeypatch):
    path = encode(tmp_path / "a.m4a", "aac", quiet_then_loud(5000), 44100)
    monkeypatch.setattr(decoders, "_has_pyav", lambda: False)
    with pytest.raises(FileError, match=r"pip install 'ondes\[formats\]'"):
        open_blocks(path)


def test_all_of_several_ogg_streams_are_read(tmp_path, av_or_not):
    first = save(tmp_path / "a.ogg", noise(50_000)).read_bytes()
    path = tmp_path / "both.ogg"
    path.write_bytes(first + first)
    if av_or_not:
        assert abs(len(read(path)) - 100_000) < 2000
    else:
        with pytest.raises(FileError, match=r"several Ogg streams.*ondes\[formats\]"):
            open_blocks(path)


# Bad files


@pytest.mark.parametrize("suffix", FILES)
def test_a_truncated_file(tmp_path, suffix):
    path = cut_in_half(save(tmp_path / f"a.{suffix}", noise(100_000), **FILES[suffix]))
    with pytest.raises(FileError, match=r"truncated|damaged") as caught:
        read(path)
    assert caught.value.path == str(path)
    assert "\n" not in str(caught.value)


def test_an_ogg_that_ends_between_two_pages_is_truncated_too(tmp_path):
    path = save(tmp_path / "a.ogg", noise(100_000))
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"OggS")])
    with pytest.raises(FileError, match="truncated"):
        read(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite(tmp_path, value):
    samples = noise(100_000, 1)[:, 0]
    samples[70_000] = value
    path = save(tmp_path / "a.wav", samples, subtype="FLOAT")
    given = []
    with pytest.raises(FileError, match=r"NaN or infinite samples at 4\.1 s"):
        given.extend(open_blocks(path, block_size=50_000))
    assert np.array_equal(np.concatenate(given)[:, 0], samples[:65536])
    with pytest.raises(FileError, match=r"at 4\.2 s"):  # from the beginning of the recording
        list(open_blocks(path, start=67_200))


def _write(data):
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_write(b""), "is empty"),
        (_write(b"no sound here\n" * 100), "not audio|not a format|no audio"),
        (_write(b"RIFF"), "damaged|not audio|not a format"),
        (_write(b"OggS"), "damaged|not audio|not a format"),
        (lambda path: save(path, noise(0)), "holds no samples"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: None, "cannot be read"),
    ],
    ids=["empty", "text", "magic only", "ogg magic only", "no samples", "folder", "missing"],
)
@pytest.mark.parametrize("name", ["a.wav", "two words\nand a newline.wav"])
def test_unreadable_files_are_refused_in_one_line(tmp_path, make, reason, name, av_or_not):
    path = tmp_path / name
    make(path)
    with pytest.raises(FileError, match=reason) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert name.split("\n")[0] in str(caught.value)
    with pytest.raises(FileError):
        probe(path)


@contextlib.contextmanager
def as_nobody():
    """As root every file is readable, so run as another user for a while."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(me)


def test_an_unreadable_file(tmp_path):
    path = save(tmp_path / "a.wav", noise(100))
    read(path)  # whatever is imported on first use is imported by now
    path.chmod(0)
    with as_nobody(), pytest.raises(FileError, match="Permission denied"):
        open_blocks(path)


def test_a_video_without_sound(tmp_path):
    av = pytest.importorskip("av", reason="needs the extra `formats`")
    with av.open(str(tmp_path / "a.mkv"), "w") as output:
        stream = output.add_stream("mpeg4", rate=24)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with pytest.raises(FileError, match="has no audio"):
        open_blocks(tmp_path / "a.mkv")


def test_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(FileError("a.wav", "is empty")))
    assert (str(error), error.path) == ("a.wav: is empty.", "a.wav")


# Pipes


def wav_bytes(samples, subtype="PCM_16", length=None):
    file = io.BytesIO()
    soundfile.write(file, samples, SR, subtype=subtype, format="WAV")
    data = bytearray(file.getvalue())
    if length is not None:
        at = data.index(b"data") + 4
        data[4:8] = data[at : at + 4] = length.to_bytes(4, "little")
    return bytes(data)


class Trickle(io.RawIOBase):
    """A pipe that gives a few bytes at a time, in parts of any length."""

    def __init__(self, data):
        self._data, self._at = data, 0

    def read(self, size=-1):
        part = self._data[self._at : self._at + min(size, 1009)]
        self._at += len(part)
        return part


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("length", [None, 0, 0xFFFFFFFF, 0x7FFFF024])
def test_piped_wav_is_the_file(tmp_path, subtype, length):
    samples = noise(50_000)
    data = wav_bytes(samples, subtype, length)
    path = save(tmp_path / "a.wav", samples, subtype=subtype)
    piped = read(Trickle(data))
    if length is not None:  # chunks after samples of unknown length look like samples
        piped = piped[:50_000]
    assert np.array_equal(piped, read(path))


@pytest.mark.parametrize(
    ("encoding", "dtype", "scale"),
    [("u8", "u1", 128), ("s16le", "<i2", 2**15), ("s32le", "<i4", 2**31), ("f64le", "<f8", 1)],
)
def test_raw_samples(encoding, dtype, scale):
    samples = np.round(noise(3000) * 100) / scale if scale > 1 else noise(3000)
    offset = 128 if encoding == "u8" else 0
    data = (samples * scale + offset).astype(dtype).tobytes()
    raw = RawFormat(SR, 2, encoding)
    np.testing.assert_array_equal(read(Trickle(data), raw=raw), np.float32(samples))
    half_a_sample_more = Trickle(data + b"\0")
    assert len(read(half_a_sample_more, raw=raw)) == 3000


def test_a_pipe_that_ends_early_and_a_pipe_of_something_else():
    data = wav_bytes(noise(100_000))
    given = []
    with pytest.raises(FileError, match="truncated"):
        given.extend(open_blocks(Trickle(data[:-2001]), block_size=1000))
    assert sum(map(len, given)) == 99_499
    for other, reason in [(b"", "empty"), (b"fLaC" * 99, "not WAV"), (data[:44], "truncated")]:
        with pytest.raises(FileError, match=reason):
            read(Trickle(other))
    with pytest.raises(FileError, match="holds no samples"):
        read(Trickle(b""), raw=RawFormat(SR))
    with pytest.raises(ValueError, match="No encoding 'mp3'"):
        RawFormat(SR, 2, "mp3")


READ = """
import sys
from ondes.signal.recordings import open_blocks
blocks = open_blocks("-", block_size=1000)
for _ in range({n}):
    block = next(blocks)
print(block[:3, 0].tolist())
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
def test_standard_input_is_read_as_it_arrives(tmp_path):
    reader = subprocess.Popen(
        [sys.executable, "-c", READ.format(n=3000)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    header = wav_bytes(noise(0, 1), length=0xFFFFFFFF)[:44]
    reader.stdin.write(header)
    block = (np.arange(1000) * 8).astype("<i2").tobytes()
    for _ in range(4000):  # the reader leaves after 3000, whatever else would come
        try:
            reader.stdin.write(block)
        except BrokenPipeError:
            break
    with reader.stdout as output:
        printed = output.read()
    with contextlib.suppress(BrokenPipeError):
        reader.stdin.close()
    assert reader.wait() == 0
    assert printed.decode().strip() == str([0.0, 8 / 2**15, 16 / 2**15])


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
def test_a_named_pipe_is_a_stream(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    save(tmp_path / "a.wav", noise(50_000))
    with subprocess.Popen(["sh", "-c", f"cat '{tmp_path}/a.wav' > '{fifo}'"]):
        assert np.array_equal(read(fifo), read(tmp_path / "a.wav"))


# Finding


def test_recordings_are_found_once_and_in_one_order(tmp_path, monkeypatch):
    names = ["b/deep/x.FLAC", "a 1.wav", "b/y.ogg", "c [live].mp3", "b/notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.wav").symlink_to(tmp_path / "a 1.wav")
    monkeypatch.chdir(tmp_path)
    inputs = ["b", "*.wav", tmp_path / "a 1.wav", "c [live].mp3", "b/**/*.ogg", "b/deep"]
    found = find_recordings(inputs)
    assert [path.resolve().relative_to(tmp_path.resolve()).as_posix() for path in found] == [
        "a 1.wav",
        "b/deep/x.FLAC",
        "b/y.ogg",
        "c [live].mp3",
    ]
    assert find_recordings(reversed(inputs)) == found
    assert find_recordings("b/y.ogg") == find_recordings(["b/y.ogg"])
    assert [str(path) for path in find_recordings(["-"])] == ["-"]


def test_nothing_found_is_an_error(tmp_path):
    (tmp_path / "notes.txt").touch()
    for given, reason in [
        (tmp_path, "has no recordings"),
        (tmp_path / "*.wav", "matches no files"),
        (tmp_path / "gone.wav", "does not exist"),
    ]:
        with pytest.raises(FileError, match=reason):
            find_recordings([given])


# Writing


@pytest.mark.parametrize(("name", "step"), [("a.wav", 0), ("a.flac", 2**-23), ("a.aiff", 0)])
@pytest.mark.parametrize("channels", [1, 2])
def test_what_is_written_is_read_again(tmp_path, name, step, channels):
    samples = noise(10_000, channels)
    blocks = (samples[i : i + 999] for i in range(0, 10_000, 999))
    write_audio(tmp_path / name, blocks, SR, channels)
    np.testing.assert_allclose(read(tmp_path / name), samples, rtol=0, atol=step)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("suffix", [".wav", ".rf64", ".aiff", ".flac"])
def test_the_same_samples_are_the_same_bytes_a_second_later(tmp_path, suffix):
    for name in ("first", "second"):
        write_audio(tmp_path / f"{name}{suffix}", [noise(1000)], SR, 2)
        time.sleep(1.1)
    first, second = (tmp_path / f"{name}{suffix}" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    np.testing.assert_allclose(soundfile.read(first)[0], noise(1000), atol=2**-23)


def test_a_failure_while_writing_leaves_nothing(tmp_path):
    def broken():
        yield noise(10_000)
        assert not (tmp_path / "a.wav").exists()
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_audio(tmp_path / "a.wav", broken(), SR, 2)
    assert list(tmp_path.iterdir()) == []


def test_existing_files_need_force(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(b"precious")
    with pytest.raises(FileError, match="exists already"):
        write_audio(path, [noise(10)], SR, 2)
    with contextlib.suppress(KeyError), AudioWriter(path, SR, force=True) as writer:
        writer.write(noise(10, 1))
        raise KeyError
    assert path.read_bytes() == b"precious"
    write_audio(path, [noise(10)], SR, 2, force=True)
    assert np.array_equal(read(path), noise(10))


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "a.wav"

    def meanwhile():
        yield noise(10, 1)
        path.write_bytes(b"precious")

    with pytest.raises(FileError, match="exists already"):
        write_audio(path, meanwhile(), SR)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"precious"]


def test_what_cannot_be_written_is_refused(tmp_path):
    for name, channels, subtype, reason in [
        ("a.mp3", 1, None, "choose one of"),
        ("gone/a.wav", 1, None, "cannot be written"),
        ("a.flac", 32, None, "cannot hold 32 channels"),
        ("a.wav", 1, "VORBIS", "cannot hold"),
    ]:
        with (
            pytest.raises(FileError, match=reason),
            AudioWriter(tmp_path / name, SR, channels, subtype=subtype),
        ):
            pass
    assert list(tmp_path.iterdir()) == []


def test_clipping_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"peaks at 2\.00, clipped"):
        write_audio(tmp_path / "a.flac", [np.array([2.0, -0.5])], SR)
    assert np.abs(read(tmp_path / "a.flac")).max() <= 1


def test_a_wav_too_long_for_its_header_becomes_rf64(tmp_path):
    write_audio(tmp_path / "a.wav", [noise(10, 1)], SR, n_samples=2**31)
    assert probe(tmp_path / "a.wav").format == "RF64"
    assert np.array_equal(read(tmp_path / "a.wav"), noise(10, 1))


def test_a_length_that_is_guessed_from_the_bit_rate_is_no_truncation(tmp_path):
    sound = np.concatenate([np.zeros(44100, np.float32), noise(200_000, 1)[:, 0]])
    path = encode(tmp_path / "a.aac", "aac", sound, 44100)
    decoded = read(path)
    assert probe(path).n_samples > len(decoded) + 44100
    assert 0 <= len(decoded) - len(sound) < 3000


@pytest.mark.parametrize(
    ("suffix", "codec"), [("wav", "g722"), ("g722", "g722"), ("wav", "adpcm_yamaha")]
)
def test_encodings_that_libsndfile_takes_for_damage_are_read_where_pyav_is(tmp_path, suffix, codec):
    av = pytest.importorskip("av", reason="needs the extra `formats`")
    path = tmp_path / f"a.{suffix}"
    tone = (0.3 * np.sin(np.arange(32000) * 0.2) * 2**15).astype(np.int16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone[None], format="s16", layout="mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    with open_blocks(path) as blocks:
        samples = np.concatenate(list(blocks))[:, 0]
        assert blocks.sr == 16000
    n = min(len(samples), len(tone)) - 100
    best = max(np.corrcoef(samples[k : n + k], tone[:n])[0, 1] for k in range(64))
    assert len(samples) >= len(tone) - 100
    assert best > 0.99
