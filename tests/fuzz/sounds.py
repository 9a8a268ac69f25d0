"""Damaged recordings: anywhere, or with wrong chunks and pages."""

from __future__ import annotations

import io
import random
import struct

import av
import numpy as np
import soundfile
from mutations import BYTE_LEVEL, NUMBERS, damaged

SR = 8000

LIBSNDFILE = {
    "wav": ("WAV", "PCM_16"),
    "wav24": ("WAV", "PCM_24"),
    "wavex": ("WAVEX", "PCM_32"),
    "wav float": ("WAV", "FLOAT"),
    "wav adpcm": ("WAV", "IMA_ADPCM"),
    "wav ms adpcm": ("WAV", "MS_ADPCM"),
    "wav gsm": ("WAV", "GSM610"),
    "rf64": ("RF64", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "aiff": ("AIFF", "PCM_16"),
    "aiff double": ("AIFF", "DOUBLE"),
    "au": ("AU", "ULAW"),
    "caf": ("CAF", "PCM_16"),
    "caf alac": ("CAF", "ALAC_16"),
    "flac": ("FLAC", "PCM_16"),
    "vorbis": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "svx": ("SVX", "PCM_16"),
    "voc": ("VOC", "PCM_16"),
    "nist": ("NIST", "PCM_16"),
    "mat5": ("MAT5", "PCM_16"),
    "htk": ("HTK", "PCM_16"),
    "sds": ("SDS", "PCM_16"),
}
FFMPEG = {
    "m4a": ("ipod", "aac"),
    "aac": ("adts", "aac"),
    "mp2": ("mp2", "mp2"),
    "mka": ("matroska", "flac"),
    "wma": ("asf", "wmav2"),
    "mp4 video": ("mp4", "aac", "mpeg4"),
    "mkv video": ("matroska", "libopus", "mpeg4"),
    "avi video": ("avi", "mp2", "mpeg4"),
}
CHUNKED = {b"RIFF": "<", b"RF64": "<", b"FORM": ">"}


def seeds() -> dict[str, bytes]:
    """A fifth of a second in every format."""
    return libsndfile_seeds() | {name: _by_ffmpeg(*kind) for name, kind in FFMPEG.items()}


def libsndfile_seeds() -> dict[str, bytes]:
    """The formats that need no PyAV, one channel and two in turn."""
    made = {}
    for n, (name, kind) in enumerate(LIBSNDFILE.items()):
        n_channels = 1 if name in ("wav gsm", "sds", "svx") else 1 + n % 2
        made[name] = _by_libsndfile(n_channels, *kind)
    return made | {"chained ogg": made["vorbis"] * 2}


def wav_seeds() -> dict[str, bytes]:
    """Those that can be piped."""
    made = libsndfile_seeds()
    return {name: data for name, data in made.items() if name.startswith(("wav", "rf64"))}


def _sound(n_channels: int) -> np.ndarray:
    time = np.arange(SR // 5) / SR
    tones = [np.sin(2 * np.pi * pitch * time) * np.exp(-5 * time) for pitch in (440, 610)]
    return np.stack(tones[:n_channels], axis=1)


def _by_libsndfile(n_channels: int, container: str, encoding: str) -> bytes:
    samples = _sound(n_channels)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SR, format=container, subtype=encoding)
    return buffer.getvalue()


def _by_ffmpeg(container: str, codec: str, video: str = "") -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        sr = 16000 if codec == "mp2" else SR
        stream = file.add_stream(codec, rate=sr, layout="mono")
        stream.bit_rate = 32000
        if video:
            picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))
            pictures = file.add_stream(video, rate=25, width=16, height=16, pix_fmt="yuv420p")
            file.mux([*pictures.encode(picture), *pictures.encode(None)])
        whole = (30000 * _sound(1)).astype(np.int16).T
        frame = av.AudioFrame.from_ndarray(whole, format="s16", layout="mono")
        frame.sample_rate, frame.pts = sr, 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A recording that is damaged somewhere, if possible unnoticed by its checksums."""
    if data[:4] == b"OggS" and rng.random() < 0.8:
        return _with_other_pages(data, rng)
    if data[:4] in CHUNKED and rng.random() < 0.5:
        return _with_other_chunks(data, CHUNKED[data[:4]], rng)
    return damaged(data, rng)


# ---- chunks: WAV, RF64, AIFF ----


def _with_other_chunks(data: bytes, order: str, rng: random.Random) -> bytes:
    chunks = _chunks(data, order)
    for _ in range(rng.choice((1, 1, 2))):
        if not chunks:
            break
        n = rng.randrange(len(chunks))
        name, length, body = chunks[n]
        what = rng.randrange(6)
        if what == 0:
            chunks.pop(n)
        elif what == 1:
            chunks.insert(rng.randrange(len(chunks)), chunks[n])
        elif what == 2:
            rng.shuffle(chunks)
        elif what == 3:
            chunks[n] = name, rng.choice(NUMBERS) % 2**32, body
        elif what == 4:
            body = rng.choice(BYTE_LEVEL)(body, rng)
            chunks[n] = name, len(body), body
        else:
            chunks[n] = rng.choice((b"LIST", b"JUNK", b"fmt ", b"data", b"\0\0\0\0")), length, body
    joined = b"".join(name + struct.pack(order + "I", n) + body for name, n, body in chunks)
    return data[:4] + struct.pack(order + "I", len(joined) + 4) + data[8:12] + joined


def _chunks(data: bytes, order: str) -> list[tuple[bytes, int, bytes]]:
    chunks, at = [], 12
    while at + 8 <= len(data):
        name, (length,) = data[at : at + 4], struct.unpack(order + "I", data[at + 4 : at + 8])
        n_bytes = min(length + length % 2, len(data) - at - 8)
        chunks.append((name, length, data[at + 8 : at + 8 + n_bytes]))
        at += 8 + n_bytes
    return chunks


# ---- pages: Ogg ----


def _with_other_pages(data: bytes, rng: random.Random) -> bytes:
    pages = [b"OggS" + page for page in data.split(b"OggS")[1:]]
    for _ in range(rng.choice((1, 1, 2))):
        if not pages:
            break
        n = rng.randrange(len(pages))
        what = rng.randrange(5)
        if what == 0:
            pages.pop(n)
        elif what == 1:
            pages.insert(rng.randrange(len(pages)), pages[n])
        elif what == 2:
            rng.shuffle(pages)
        else:
            pages[n] = _with_checksum(rng.choice(BYTE_LEVEL)(pages[n], rng))
    return b"".join(pages)


def _with_checksum(page: bytes) -> bytes:
    if len(page) < 27:
        return page
    blank = page[:22] + bytes(4) + page[26:]
    checksum = 0
    for byte in blank:
        checksum = (checksum << 8 ^ _OGG_TABLE[checksum >> 24 ^ byte]) & 0xFFFFFFFF
    return page[:22] + checksum.to_bytes(4, "little") + page[26:]


def _ogg_table() -> list[int]:
    table = []
    for value in range(256):
        register = value << 24
        for _ in range(8):
            register = (register << 1 ^ (0x04C11DB7 if register >> 31 else 0)) & 0xFFFFFFFF
        table.append(register)
    return table


_OGG_TABLE = _ogg_table()
