"""Is a file complete? libsndfile reads what is left of a truncated one and reports nothing.

The position in the file is moved by everything here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO, Literal

from ondes.errors import FileError

__all__ = [
    "check_dump",
    "check_header",
    "check_length",
    "check_packets",
    "is_length_known",
    "is_mpeg",
    "is_of_another_encoding",
    "is_truncated",
    "mp3_has_length",
    "mp3_n_samples",
]

Order = Literal["little", "big"]

MIN_SR, MAX_SR, MAX_CHANNELS = 100, 10**7, 128
MAX_CAF_CHUNKS = 1000
WAV_ENCODINGS = (1, 2, 3, 6, 7, 0x11, 0x31, 0xFFFE)  # that libsndfile reads
OGG_ENCODINGS = (b"\x01vorbis", b"OpusHead")
DUMP_HEADER, DUMP_PACKET = 21, 127  # bytes
# FLAC of digital silence comes nearest to this: 65535 samples in a frame of 13 bytes. The smallest
# frames of MP3 have 12 samples per byte.
MAX_SAMPLES_PER_BYTE, MAX_MP3_SAMPLES_PER_BYTE = 8192, 64
# A writer that cannot seek back leaves a placeholder: ffmpeg zero or the greatest, sox near 2 GiB.
UNKNOWN_LENGTHS = {0, 0xFFFFFFFF, *range(0x7FFFF000, 0x80000000)}


def check_header(path: str | Path, sr: int, channels: int) -> None:
    """Refuse a rate or channels that no recording has: resampling it would fill the memory."""
    if sr < MIN_SR:
        raise FileError(path, f"has {sr} samples per second in its header, too few for any sound")
    if sr > MAX_SR:
        raise FileError(path, f"has {sr} samples per second in its header, more than {MAX_SR}")
    if channels > MAX_CHANNELS:
        raise FileError(path, f"has {channels} channels in its header, more than {MAX_CHANNELS}")


def check_length(path: str | Path, n_samples: int | None, n_bytes: int, encoding: str) -> None:
    """Refuse a length that no file of this size can hold: planning for it would fill the memory."""
    most = MAX_MP3_SAMPLES_PER_BYTE if encoding.startswith("MP3") else MAX_SAMPLES_PER_BYTE
    if n_samples is not None and n_samples > most * n_bytes:
        raise FileError(
            path, f"is damaged: its header claims {n_samples} samples, more than its bytes can hold"
        )


def check_packets(path: str | Path, file: BinaryIO) -> None:
    """Refuse a CAF whose table of ALAC packets is cut short: libsndfile prints about it."""
    n_bytes = file.seek(0, os.SEEK_END)
    file.seek(8)
    is_alac = False
    for _ in range(MAX_CAF_CHUNKS):
        header = file.read(12)
        length = int.from_bytes(header[4:], "big", signed=True)
        if len(header) < 12 or not 0 <= length <= n_bytes:
            return
        place = file.tell()
        if header[:4] == b"desc":
            is_alac = file.read(12)[8:] == b"alac"
        if header[:4] == b"pakt" and is_alac and not _are_sizes_whole(file.read(length)[24:]):
            raise FileError(path, "is damaged: its table of packets is cut short")
        file.seek(place + length)


def _are_sizes_whole(table: bytes) -> bool:
    """Whether each number, seven bits to a byte, ends in time and before the table does."""
    return not (table and table[-1] >= 0x80) and re.search(rb"[\x80-\xff]{5}", table) is None


def check_dump(path: str | Path, file: BinaryIO) -> None:
    """Refuse a MIDI sample dump with a damaged packet: libsndfile prints about it."""
    file.seek(DUMP_HEADER)
    number = 0
    while len(packet := file.read(DUMP_PACKET)) == DUMP_PACKET:
        frame = (packet[:2], packet[3:5], packet[-1:])
        if frame != (b"\xf0\x7e", bytes((2, number % 128)), b"\xf7"):
            raise FileError(path, f"is damaged: packet {number} of its sample dump is broken")
        number += 1


def is_truncated(file: BinaryIO) -> bool:
    """Whether a WAV, RF64, W64 or AIFF file ends before its header says."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    if magic in (b"RIFF", b"RF64"):
        return _chunk_exceeds_file(file, size, b"data", "little")
    if magic == b"FORM":
        return _chunk_exceeds_file(file, size, b"SSND", "big")
    if magic == b"riff":
        return int.from_bytes(file.read(24)[16:], "little") > size
    return False


def is_of_another_encoding(file: BinaryIO) -> bool:
    """Whether libsndfile may take for damage what it cannot decode: G.722 in WAV, FLAC in Ogg."""
    file.seek(0)
    head = file.read(64)
    if head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        return int.from_bytes(head[20:22], "little") not in WAV_ENCODINGS
    return head[:4] == b"OggS" and not head[28:].startswith(OGG_ENCODINGS)


def is_length_known(length: int) -> bool:
    """Whether the byte length in a header is a length, rather than a placeholder."""
    return length not in UNKNOWN_LENGTHS


def is_mpeg(file: BinaryIO) -> bool:
    """Whether a file begins, after its tags, as MP3 and AAC do."""
    _skip_id3(file)
    head = file.read(2)
    return len(head) == 2 and head[0] == 0xFF and head[1] >= 0xE0


def mp3_has_length(file: BinaryIO) -> bool:
    """Whether the first frame of an MP3 holds the number of frames (Xing, Info or VBRI)."""
    _skip_id3(file)
    head = file.read(4096)
    return any(tag in head for tag in (b"Xing", b"Info", b"VBRI"))


def mp3_n_samples(file: BinaryIO) -> int:
    """Count the samples of an MP3, from frame header to frame header."""
    n_samples, size = 0, file.seek(0, os.SEEK_END)
    _skip_id3(file)
    while len(header := file.read(4)) == 4:
        length, samples = _mp3_frame(header)
        if length:
            n_samples += samples
            file.seek(length - 4, os.SEEK_CUR)
            if file.tell() > size:
                return n_samples - samples
        else:
            file.seek(-3, os.SEEK_CUR)
    return n_samples


def _chunk_exceeds_file(file: BinaryIO, size: int, wanted: bytes, order: Order) -> bool:
    rf64_length = 0
    file.seek(12)
    while len(header := file.read(8)) == 8:
        name = header[:4]
        length = int.from_bytes(header[4:], order)
        if name == b"ds64":
            rf64_length = int.from_bytes(file.read(16)[8:], "little")
            file.seek(-16, os.SEEK_CUR)
        if name == wanted:
            if length == 0xFFFFFFFF and rf64_length:
                return file.tell() + rf64_length > size
            return is_length_known(length) and file.tell() + length > size
        file.seek(length + length % 2, os.SEEK_CUR)
    return False


def _skip_id3(file: BinaryIO) -> None:
    file.seek(0)
    head = file.read(10)
    length = 0
    if head[:3] == b"ID3":
        for byte in head[6:10]:
            length = length << 7 | byte
        length += 10
    file.seek(length)


_BIT_RATES = {
    (3, 3): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (3, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (3, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 3): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 1): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


def _mp3_frame(header: bytes) -> tuple[int, int]:
    """Bytes and samples of the frame with this four-byte header; 0, 0 if it is not one."""
    bits = int.from_bytes(header, "big")
    version, layer = bits >> 19 & 3, bits >> 17 & 3
    bit_rate, rate, padding = bits >> 12 & 15, bits >> 10 & 3, bits >> 9 & 1
    if bits >> 21 != 0x7FF or version == 1 or layer == 0 or bit_rate in (0, 15) or rate == 3:
        return 0, 0
    sr = (44100, 48000, 32000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    kbps = _BIT_RATES[3 if version == 3 else 2, layer][bit_rate - 1]
    if layer == 3:
        return (12000 * kbps // sr + padding) * 4, 384
    samples = 1152 if layer == 2 or version == 3 else 576
    return samples // 8 * 1000 * kbps // sr + padding, samples
