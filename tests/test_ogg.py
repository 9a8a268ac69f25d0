"""Vorbis and Opus entered in the middle: sample by sample what a full decode has there."""

import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hostile import with_ogg_granule
from test_audio import encode, ogg_checksum

from ondes.signal import ogg
from ondes.signal.recordings import open_blocks, probe
from ondes.signal.soundfile_decoder import SoundFileDecoder

SR = 44100
RECORDINGS = Path(os.environ.get("ONDES_RECORDINGS", "recordings"))


def music(seconds, channels=2, seed=0):
    """Tones and clicks, between which an encoder changes its block size, and silence."""
    rng = np.random.default_rng(seed)
    n = round(seconds * SR)
    sound = 0.2 * np.sin(np.arange(n)[:, None] * rng.uniform(0.01, 0.5, channels))
    sound += 0.01 * rng.standard_normal((n, channels))
    for click in rng.integers(0, n, 8 * round(seconds)):
        sound[click : click + 200] += rng.uniform(-0.6, 0.6, (len(sound[click : click + 200]), 1))
    sound[n // 3 : n // 3 + SR // 2] = 0
    return np.clip(sound, -1, 1)


def pages(data):
    """Each page of an Ogg file as bytes: RFC 3533."""
    at = 0
    while at < len(data):
        n_lengths = data[at + 26]
        end = at + 27 + n_lengths + sum(data[at + 27 : at + 27 + n_lengths])
        yield bytearray(data[at:end])
        at = end


def with_checksum(page):
    page[22:26] = bytes(4)
    page[22:26] = ogg_checksum(page).to_bytes(4, "little")
    return bytes(page)


def samples_of(path, **how):
    with open_blocks(path, **how) as blocks:
        return np.concatenate(list(blocks))


def assert_entered_exactly(path, n_places=40):
    whole, rng = samples_of(path), np.random.default_rng(1)
    ends = [1, 20_000, len(whole) - 20_000, len(whole) - 1, len(whole)]
    for place in [*(max(0, end) for end in ends), *rng.integers(0, len(whole), n_places)]:
        with open_blocks(path, start=int(place), block_size=6000, is_known=True) as blocks:
            found = next(blocks, whole[:0])
        assert np.array_equal(found, whole[place : place + 6000]), place


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("how", [{}, {"compression_level": 0.9}])
@pytest.mark.parametrize("seconds", [0.4, 2, 25.3])
def test_vorbis_is_entered_exactly(tmp_path, channels, how, seconds):
    path = tmp_path / "a.ogg"
    soundfile.write(path, music(seconds, channels), SR, **how)
    assert probe(path).seekable
    assert_entered_exactly(path)


def merged(group):
    """One page of several consecutive ones."""
    tables = [page[27 : 27 + page[26]] for page in group]
    bodies = [page[27 + page[26] :] for page in group]
    head = group[-1][:26]
    head[5] = group[0][5] & 1 | group[-1][5] & 4
    return bytearray(head + bytes([sum(map(len, tables))]) + b"".join(tables) + b"".join(bodies))


def test_pages_of_many_packets_are_entered_exactly(tmp_path):
    """As other encoders write them: a second of sound, or more."""
    path = tmp_path / "a.ogg"
    soundfile.write(path, music(40), SR)
    headers, rest = [], []
    for page in pages(path.read_bytes()):
        (rest if page[6:14] != bytes(8) else headers).append(page)
    long = [*headers, *(merged(rest[n : n + 5]) for n in range(0, len(rest), 5))]
    for number, page in enumerate(long):
        page[18:22] = number.to_bytes(4, "little")
    before = samples_of(path)
    path.write_bytes(b"".join(map(with_checksum, long)))
    assert np.array_equal(samples_of(path), before)
    assert probe(path).seekable
    assert_entered_exactly(path)


def test_a_cover_picture_before_the_sound_is_skipped(tmp_path):
    path = tmp_path / "a.ogg"
    with soundfile.SoundFile(path, "w", SR, 2) as file:
        file.comment = "x" * 300_000
        file.write(music(20))
    assert_entered_exactly(path, 20)


@pytest.mark.parametrize("channels", [1, 2])
def test_opus_of_music_is_entered_exactly(tmp_path, channels):
    path = tmp_path / "a.opus"
    soundfile.write(path, music(10, channels), 48000, format="OGG", subtype="OPUS")
    assert probe(path).seekable
    assert_entered_exactly(path, 20)


def test_opus_of_speech_remembers_more_and_is_read_from_its_beginning(tmp_path):
    sound = music(10, 1)[:, 0].astype(np.float32)
    how = {"application": "voip", "b": "12000"}
    path = encode(tmp_path / "a.opus", "libopus", sound, 48000, **how)
    assert not probe(path).seekable
    assert np.array_equal(samples_of(path, start=100_001), samples_of(path)[100_001:])


def test_a_stream_that_was_cut_off_at_its_beginning_counts_from_there(tmp_path):
    """A recording of a radio station: its first page does not begin with sample zero."""
    path = tmp_path / "a.ogg"
    soundfile.write(path, music(20), SR)
    all_pages = list(pages(path.read_bytes()))
    headers = [page for page in all_pages if page[6:14] == bytes(8)]
    kept = [*headers, *all_pages[len(headers) + 5 :]]
    for number, page in enumerate(kept):
        page[18:22] = number.to_bytes(4, "little")
    path.write_bytes(b"".join(map(with_checksum, kept)))
    assert probe(path).seekable
    assert_entered_exactly(path, 20)


def changed(path, change):
    all_pages = list(pages(path.read_bytes()))
    path.write_bytes(b"".join(map(with_checksum, change(all_pages))))


def end_early(all_pages):
    all_pages[len(all_pages) // 2][5] |= 4
    return all_pages


def back_in_time(all_pages):
    page = all_pages[len(all_pages) // 2]
    page[6:14] = (5000).to_bytes(8, "little")
    return all_pages


@pytest.mark.parametrize(
    "change",
    [
        lambda p: [*p[:9], *p[10:]],
        lambda p: [*p[:9], p[10], p[9], *p[11:]],
        end_early,
        back_in_time,
    ],
    ids=["a page is missing", "two are exchanged", "the stream ends twice", "back in time"],
)
def test_a_damaged_stream_is_read_from_its_beginning_only(tmp_path, change):
    path = tmp_path / "a.ogg"
    soundfile.write(path, music(20), SR)
    changed(path, change)
    assert not probe(path).seekable


def test_a_false_length_is_noticed_wherever_reading_begins(tmp_path):
    path = tmp_path / "a.ogg"
    soundfile.write(path, music(5), SR)
    path.write_bytes(with_ogg_granule(path.read_bytes(), 100 * SR))
    with pytest.raises(Exception, match="truncated"):
        samples_of(path, start=50 * SR)


def test_the_bytes_of_an_entered_file_are_those_of_its_headers_and_of_the_rest():
    data = bytes(range(250))
    entered = ogg.EnteredOgg(io.BytesIO(data), data[:10], 100)
    expected = data[:10] + data[100:]
    assert entered.seek(0, os.SEEK_END) == len(expected)
    for at, size in [(0, 5), (5, 20), (10, 3), (155, 99), (160, 1)]:
        entered.seek(at)
        got = entered.read(size)
        assert got == expected[at : at + len(got)]
        assert len(got) > 0 or at >= len(expected)


@pytest.mark.parametrize("name", ["elf-land", "revelation", "northerners", "sad"])
def test_recordings_that_libsndfile_enters_at_a_wrong_place(name):
    path = RECORDINGS / "music" / "wesnoth" / f"{name}.ogg"
    if not path.exists():
        pytest.skip("the recordings are not here: set ONDES_RECORDINGS")
    if probe(path).seekable:
        assert_entered_exactly(path)


class Interrupted(io.BytesIO):
    """A file in memory that gets a signal when it is read the n-th time."""

    n_left = 0

    def readinto(self, buffer):
        self.n_left -= 1
        if self.n_left == 0:
            signal.raise_signal(signal.SIGINT)
        return super().readinto(buffer)


@pytest.mark.parametrize("suffix", ["ogg", "flac"])
def test_a_signal_while_libsndfile_reads_is_raised_and_makes_no_file_shorter(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, music(8), SR)
    expected = soundfile.read(path)[0]
    file, n_raised = Interrupted(path.read_bytes()), 0
    for n in range(1, 60):
        file.n_left = n
        try:
            decoder = SoundFileDecoder("a", file)
            decoder.seek(SR)
            n_read = sum(iter(lambda: len(decoder.read()), 0))  # noqa: B023
        except KeyboardInterrupt:
            n_raised += 1
        else:
            assert file.n_left > 0, "a signal was lost"
            assert n_read == len(expected) - SR
    assert n_raised > 3
