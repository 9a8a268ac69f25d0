"""Learning decodes each sample about once, whatever the format and however its pages lie."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ondes.signal import av_decoder, soundfile_decoder
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.ogg import _checksum, _pages
from ondes.signal.recordings import open_blocks, probe
from ondes.signal.stft import Stft

SR, SECONDS = 16000, 150
MUSIC = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"), "music", "wesnoth")
AUDIO = AudioSettings(SR, Stft(3840, 960))


@pytest.fixture
def decoded(monkeypatch):
    """Counts the samples that decoders give, those that are skipped included."""
    counts = []

    class Counted(soundfile_decoder._SequentialSoundFile):
        def buffer_read_into(self, buffer, dtype):
            counts.append(super().buffer_read_into(buffer, dtype))
            return counts[-1]

    class CountedAv(av_decoder.AvDecoder):
        def _decode(self):
            block = super()._decode()
            counts.append(0 if block is None else len(block))
            return block

    monkeypatch.setattr(soundfile_decoder, "_SequentialSoundFile", Counted)
    monkeypatch.setattr("ondes.signal.decoders.AvDecoder", CountedAv)
    return counts


def learned_from(path):
    sizes = {"round_size": 1024, "segment_size": 512}
    list(frame_batches([path], AUDIO, 64, on_error=lambda *_: None, **sizes))


def sound(seconds=SECONDS):
    rng = np.random.default_rng(0)
    t = np.arange(seconds * SR) / SR
    return 0.2 * np.sin(t * 900 * (1 + 0.01 * np.sin(t))) + 0.02 * rng.standard_normal(len(t))


def written(path, samples, **options):
    with soundfile.SoundFile(path, "w", SR, 1, **options) as file:
        for second in np.split(samples, len(samples) // SR):  # all at once overflows libvorbis
            file.write(second)


def headers_on_one_page(data):
    """An Ogg stream whose first packets of sound are on the page of its headers."""
    bodies, lacing = b"", b""
    first, second, third, *rest = _pages_of(data)
    for page in (second, third):
        n = page[26]
        lacing, bodies = lacing + page[27 : 27 + n], bodies + page[27 + n :]
    assert len(lacing) < 256
    shared = third[:26] + bytes([len(lacing)]) + lacing + bodies
    return b"".join([first, *(_numbered(page, n) for n, page in enumerate([shared, *rest], 1))])


def _pages_of(data):
    return [data[page.start : page.end] for page in _pages(io.BytesIO(data), 0)]


def _numbered(page, number):
    page = page[:18] + struct.pack("<I", number) + bytes(4) + page[26:]
    return page[:22] + struct.pack("<I", _checksum(page)) + page[26:]


def test_the_checksum_is_that_of_the_pages_of_an_encoder(tmp_path):
    written(tmp_path / "a.ogg", sound(3))
    for page in _pages_of((tmp_path / "a.ogg").read_bytes()):
        assert _numbered(page, struct.unpack_from("<I", page, 18)[0]) == page


@pytest.mark.parametrize(
    "name", ["wav", "flac", "ogg", "opus", "mp3", "shared", "chained", "cut", "span"]
)
def test_every_format_and_layout_is_decoded_once(tmp_path, decoded, name):
    if name in ("mp3", "chained"):
        pytest.importorskip("av", reason="needs PyAV")
    suffix = {"shared": "ogg", "chained": "ogg", "cut": "ogg", "span": "flac"}.get(name, name)
    path, n_samples = tmp_path / f"a.{suffix}", SECONDS * SR
    options = {"format": "OGG", "subtype": "OPUS"} if suffix == "opus" else {}
    written(path, sound(), **options)
    data = path.read_bytes()
    if name == "shared":
        path.write_bytes(headers_on_one_page(data))
        assert probe(path).seekable
    elif name == "chained":
        written(tmp_path / "b.ogg", sound(30))
        path.write_bytes(data + (tmp_path / "b.ogg").read_bytes())
        n_samples += 30 * SR
    elif name == "cut":
        path.write_bytes(data[: 2 * len(data) // 3])
    decoded.clear()
    learned_from(path)
    n_own = 48000 * n_samples // SR if suffix == "opus" and probe(path).sr == 48000 else n_samples
    assert sum(decoded) <= 1.1 * n_own + SR, sum(decoded) / n_own
    if name != "cut":
        assert sum(decoded) >= 0.99 * n_own


def test_sound_on_the_page_of_the_headers_is_entered_exactly(tmp_path):
    path = tmp_path / "a.ogg"
    written(path, sound())
    path.write_bytes(headers_on_one_page(path.read_bytes()))
    with open_blocks(path, block_size=None) as blocks:
        whole = np.concatenate(list(blocks))
    for start in (1, 4000, 3 * SR, SECONDS * SR // 2, (SECONDS - 1) * SR):
        with open_blocks(path, start=start, block_size=None) as blocks:
            assert np.array_equal(np.concatenate(list(blocks)), whole[start:])


@pytest.mark.parametrize("name", ["battle-epic", "elf-land", "sad", "battle"])
def test_real_songs_are_decoded_once(decoded, name):
    path = MUSIC / f"{name}.ogg"
    if not path.exists():
        pytest.skip(f"{name}.ogg is not here: set ONDES_RECORDINGS")
    info = probe(path)
    decoded.clear()
    learned_from(path)
    assert sum(decoded) <= 1.1 * info.n_samples, sum(decoded) / info.n_samples
