"""A part of a recording is a recording: as if its samples were cut out into a file."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from plain_settings import PLAIN

import ondes
from ondes.errors import FileError
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.locations import RemotePath, Span, as_location, with_span
from ondes.signal.recordings import RawFormat, canonical_order, open_blocks, probe
from ondes.signal.stft import Stft
from ondes.signal.survey import digest, survey

SR = 8000
FORMATS = {
    "wav": {"subtype": "FLOAT"},
    "flac": {},
    "ogg": {},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3"},
}
SMALL = {"sr": SR, "n_fft": 128, "hop_length": 64, **PLAIN}


def noise(n=50_000, channels=2):
    return np.random.default_rng(0).uniform(-0.5, 0.5, (n, channels)).astype(np.float32)


def samples_of(recording, **options):
    with open_blocks(recording, **options) as blocks:
        return np.concatenate(list(blocks))


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.5, None), (1.23456, 4.0), (2.0, 99.0)])
def test_a_part_has_the_samples_between_its_times(tmp_path, suffix, start, end):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, noise(), SR, **FORMATS[suffix])
    whole = samples_of(path)
    part = Span(path, start, end)
    sr = probe(path).sr
    expected = whole[round(start * sr) : None if end is None else round(end * sr)]
    assert np.array_equal(samples_of(part), expected)
    assert np.array_equal(samples_of(part, start=777), expected[777:])
    assert probe(part).n_samples == probe(path).n_samples - len(whole) + len(expected) or end


@pytest.mark.parametrize("suffix", ["flac", "ogg"])
def test_learning_from_parts_is_learning_from_files_of_these_samples(tmp_path, suffix):
    soundfile.write(tmp_path / f"a.{suffix}", noise(80_000), SR)
    parts = [Span(tmp_path / f"a.{suffix}", 0.25, 4.5), Span(tmp_path / f"a.{suffix}", 6)]
    for number, part in enumerate(parts):
        soundfile.write(tmp_path / f"{number}.wav", samples_of(part), SR, subtype="FLOAT")
    from_parts = ondes.learn(parts, 4, **SMALL)
    from_files = ondes.learn([tmp_path / "0.wav", tmp_path / "1.wav"], 4, **SMALL)
    assert from_parts.components.tobytes() == from_files.components.tobytes()
    assert from_parts.history.seconds == pytest.approx(4.25 + 4.0, abs=0.1)


def test_a_part_of_raw_samples_and_of_a_part(tmp_path):
    raw = RawFormat(SR, 2, "f32le")
    (tmp_path / "a.raw").write_bytes(noise().tobytes())
    (part,) = with_span([Span(tmp_path / "a.raw", 1, 4)], 0.5, 2)
    assert part == Span(tmp_path / "a.raw", 1.5, 3)
    assert np.array_equal(samples_of(part, raw=raw), noise()[12_000:24_000])
    assert probe(part, raw).n_samples == 12_000


def test_a_recording_that_ends_before_its_part_begins_is_refused(tmp_path):
    soundfile.write(tmp_path / "a.wav", noise(), SR)
    soundfile.write(tmp_path / "a.ogg", noise(), SR)
    for path in (tmp_path / "a.wav", tmp_path / "a.ogg"):
        with pytest.raises(FileError, match=r"#t=100: ends before 100 s\.$"):
            samples_of(Span(path, 100))
    with pytest.raises(FileError, match="ends before 100 s"):
        samples_of(Span(tmp_path / "a.wav", 100), raw=RawFormat(SR, 2))


@pytest.mark.parametrize(
    ("start", "end"), [(-1, None), (2, 2), (3, 2), (np.inf, None), (0, np.inf)]
)
def test_impossible_times_are_refused(start, end):
    with pytest.raises(ValueError, match="must be 0 or more"):
        Span(Path("a.wav"), start, end)


def test_parts_are_told_apart_in_order_and_in_a_saved_position(tmp_path):
    soundfile.write(tmp_path / "a.wav", noise(), SR)
    parts = [Span(tmp_path / "a.wav", 2, 3), Span(tmp_path / "a.wav", 1, 2), tmp_path / "a.wav"]
    ordered = canonical_order(parts)
    assert ordered == [parts[2], parts[1], parts[0]]
    assert canonical_order([*reversed(parts), *parts]) == ordered
    audio = AudioSettings(SR, Stft(64))
    assert digest(survey(parts[:1], audio)) != digest(survey(parts[1:2], audio))


def test_names_of_places():
    part = Span(RemotePath("s3://bucket/album/song.flac"), 1.5)
    assert (str(part), part.name) == ("s3://bucket/album/song.flac#t=1.5", "song.flac#t=1.5")
    assert (part.stem, part.suffix, part.parent.name) == ("song 1.5-", ".flac", "album")
    assert part.resolve() == part.absolute() == part
    assert RemotePath("zip://x/a.wav::https://h/b.zip").name == "a.wav"


def test_a_file_whose_name_looks_like_a_url_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert as_location("http://a.wav") == RemotePath("http://a.wav")
    Path("http:").mkdir()
    soundfile.write("http://a.wav", noise(100), SR, format="WAV")
    assert as_location("http://a.wav") == Path("http:/a.wav")
    assert as_location("C://a.wav") == Path("C://a.wav")
