"""Ogg files, page by page: whether they are complete, and where a decoder can enter.

libsndfile's own seek in Vorbis is at times off by a block (its issue 885). Here a decoder is given
the headers and then the pages from somewhere before the sample it is to reach; from the lengths
that it finds there follows, to the sample, where it is.
"""

from __future__ import annotations

import io
import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

__all__ = ["EnteredOgg", "OggFacts", "can_enter_vorbis", "enter_vorbis", "examine", "examine_end"]

HEADER = struct.Struct("<4sxBqII4xB")  # the mark of a page, flags, granule, serial, number, lengths
HEADER_BYTES, MAX_PAGE_BYTES = 27, 27 + 255 + 255 * 255
MAX_PAGE_HEADER_BYTES = 27 + 255 + 1  # and the first byte of the body
CONTINUED, BEGINS, ENDS = 1, 2, 4  # flags of a page
CHECKSUM_AT = 22  # in the header of a page
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
N_VORBIS_HEADERS = 3
KEPT_BYTES, READ_AT_ONCE = 2**16, 2**18
MAX_HEADER_PAGES = 1000  # a cover picture may take hundreds
# From a page's beginning to its first sample: two packets are lost, of 8192 samples at most.
VORBIS_RUN_IN = 16384
CELT = 16  # the first Opus configuration whose decoder keeps nothing for longer than a second


class _Page(NamedTuple):
    start: int
    end: int
    flags: int
    granule: int  # the number of samples up to its end; negative where no packet ends in it
    serial: int
    number: int
    n_ended: int  # packets that end in it
    toc: int  # the first byte of its body


@dataclass(frozen=True)
class OggFacts:
    """What the pages of a file say.

    Attributes
    ----------
    is_complete : bool
        Whether it ends with the last page of its stream.
    is_chained : bool
        Whether several streams follow one another.
    is_consecutive : bool
        Whether no page is missing, and none comes after the end of the stream.
    is_celt : bool
        For Opus, whether all packets seen are of the music decoder.
    """

    is_complete: bool
    is_chained: bool
    is_consecutive: bool
    is_celt: bool


def examine(file: BinaryIO) -> OggFacts:
    """Look at every page of an Ogg file; the position in the file is moved."""
    size, begun, is_chained, is_consecutive, is_celt = _size(file), False, False, True, True
    last: _Page | None = None
    for page in _pages(file, 0, READ_AT_ONCE):
        if page.flags & BEGINS:
            is_chained = is_chained or begun
        else:
            begun = True
        if last is not None and not page.flags & BEGINS:
            follows = page.serial == last.serial and page.number == last.number + 1
            in_order = page.granule < 0 or page.granule >= last.granule
            is_consecutive &= follows and in_order and not last.flags & ENDS
            has_packet = page.granule > 0 and not page.flags & CONTINUED
            is_celt &= not has_packet or page.toc >> 3 >= CELT
        last = page
    is_complete = last is not None and last.end == size and bool(last.flags & ENDS)
    return OggFacts(is_complete, is_chained, is_complete and is_consecutive, is_celt)


def examine_end(file: BinaryIO) -> OggFacts:
    """The same from the first and the last pages, where all of them would take too long to read."""
    serials, size = set(), _size(file)
    is_celt, n_pages = True, 0
    for page in _pages(file, 0):
        if not page.flags & BEGINS:
            n_pages += 1
            has_packet = page.granule > 0 and not page.flags & CONTINUED
            is_celt &= not has_packet or page.toc >> 3 >= CELT
            if n_pages == 8:
                break
        else:
            serials.add(page.serial)
    last = None
    for page in _found_pages(file, max(0, size - MAX_PAGE_BYTES), size, None):
        last = page
    is_complete = last is not None and last.end == size and bool(last.flags & ENDS)
    is_chained = last is not None and last.serial not in serials
    return OggFacts(is_complete, is_chained, is_complete and len(serials) == 1, is_celt)


class EnteredOgg(io.RawIOBase):
    """An Ogg file without the pages between its headers and a place: what a decoder can read.

    Parameters
    ----------
    file : binary file
        Not closed with this.
    headers : bytes
    place : int
        Where in the file the pages after the headers begin.
    """

    def __init__(self, file: BinaryIO, headers: bytes, place: int) -> None:
        self._file, self._headers = file, headers
        self._gap = place - len(headers)
        self._length, self._at = _size(file) - self._gap, 0
        self._kept, self._kept_from = headers, 0  # a decoder asks for two kilobytes at a time

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as in any file."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from here on; less of it at the end of what is kept."""
        start = self._at - self._kept_from
        if not 0 <= start < len(self._kept):
            self._keep_from_here()
            start = 0
        data = self._kept[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _keep_from_here(self) -> None:
        self._kept_from = self._at
        if self._at < len(self._headers):
            self._kept = self._headers[self._at :]
        else:
            self._file.seek(self._at + self._gap)
            self._kept = self._file.read(KEPT_BYTES)


def enter_vorbis(file: BinaryIO, sample: int, n_samples: int) -> EnteredOgg | None:
    """What a decoder can read to come to a sample soon; None for the beginning of the file.

    Parameters
    ----------
    file : binary file
        Of a stream of one part, without gaps, that `can_enter_vorbis`.
    sample : int
    n_samples : int
        That a decoder finds in the whole file.
    """
    if (found := _vorbis_headers(file)) is None:
        return None
    (headers, first), size, last = found, _size(file), None
    serial = HEADER.unpack_from(headers)[3]
    for page in _found_pages(file, max(first, size - MAX_PAGE_BYTES), size, serial):
        last = page
    if last is None:
        return None
    wanted = sample + last.granule - n_samples - VORBIS_RUN_IN
    if wanted <= 0:
        return None
    place = _after_granule(file, first, last, wanted)
    return None if place == first else EnteredOgg(file, headers, place)


def can_enter_vorbis(file: BinaryIO) -> bool:
    """Whether the headers of a Vorbis stream are where they belong; the position is moved."""
    return _vorbis_headers(file) is not None


def _vorbis_headers(file: BinaryIO) -> tuple[bytes, int] | None:
    """The pages of the headers, without sound on the last one, and where that page ends."""
    n_headers = 0
    for page in itertools.islice(_pages(file, 0), MAX_HEADER_PAGES):
        n_headers += page.n_ended
        if n_headers >= N_VORBIS_HEADERS:
            file.seek(0)
            before, last = file.read(page.start), file.read(page.end - page.start)
            kept = page.n_ended - (n_headers - N_VORBIS_HEADERS)
            return before + _first_packets(last, kept), page.end
    return None


def _first_packets(page: bytes, n_packets: int) -> bytes:
    """A page with its first packets alone."""
    body = HEADER_BYTES + page[HEADER_BYTES - 1]
    lengths = page[HEADER_BYTES:body]
    n_kept = [number for number, length in enumerate(lengths, 1) if length < 255][n_packets - 1]
    if n_kept == len(lengths):
        return page
    sound = body + sum(lengths[:n_kept])
    head = page[:CHECKSUM_AT] + bytes(4) + page[CHECKSUM_AT + 4 : HEADER_BYTES - 1]
    shorter = head + bytes([n_kept]) + lengths[:n_kept] + page[body:sound]
    checksum = _checksum(shorter).to_bytes(4, "little")
    return shorter[:CHECKSUM_AT] + checksum + shorter[CHECKSUM_AT + 4 :]


def _checksum(page: bytes) -> int:
    """Ogg's, which is that of zlib with the bits of each byte and of the result reversed."""
    reversed_bits = zlib.crc32(page.translate(REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reversed_bits:032b}"[::-1], 2)


def _after_granule(file: BinaryIO, first: int, last: _Page, wanted: int) -> int:
    """The end of the last page that ends at a granule or before, or `first`.

    The last page of the file is never entered: it is cut off after any sample, so that a decoder
    cannot count back from its end.
    """
    low, low_granule, high, high_granule = first, 0, last.start, max(last.granule, 1)
    step = 0
    while high - low > 2 * MAX_PAGE_BYTES:
        share = (wanted - low_granule) / max(1, high_granule - low_granule)
        share = min(max(share, 0.0), 1.0) if step % 2 == 0 else 0.5
        guess = low + int(share * (high - low)) - MAX_PAGE_BYTES
        guess, step = max(low + 1, min(guess, high - MAX_PAGE_BYTES)), step + 1
        pages = _found_pages(file, guess, high, last.serial)
        found = next((page for page in pages if page.granule >= 0), None)
        if found is None or found.granule > wanted:
            high = guess
            high_granule = high_granule if found is None else found.granule
        else:
            low, low_granule = found.end, found.granule
    for page in _pages(file, low):
        if page.granule > wanted or page.end >= last.start:
            break
        if page.granule >= 0:
            low = page.end
    return low


def _found_pages(file: BinaryIO, start: int, end: int, serial: int | None) -> Iterator[_Page]:
    """The pages that begin between two places, the first of which need not be a page's start."""
    file.seek(start)
    window = file.read(min(end - start, MAX_PAGE_BYTES) + 4)
    at = window.find(b"OggS")
    while at >= 0:
        page = next(_pages(file, start + at), None)
        if page is not None and serial in (None, page.serial) and _is_page_or_end(file, page.end):
            yield from (each for each in _pages(file, page.start) if each.start < end)
            return
        at = window.find(b"OggS", at + 1)


def _is_page_or_end(file: BinaryIO, place: int) -> bool:
    file.seek(place)
    return file.read(4) in (b"OggS", b"")


def _pages(file: BinaryIO, start: int, n_at_once: int = 0) -> Iterator[_Page]:
    """The pages from one on, as long as each begins where the one before it ends.

    Read in parts of `n_at_once` bytes, where all are wanted; else only the beginning of each.
    """
    n_at_once, part, at = max(n_at_once, MAX_PAGE_HEADER_BYTES), b"", 0
    while True:
        if len(part) - at < MAX_PAGE_HEADER_BYTES:
            file.seek(start)
            part, at = file.read(n_at_once), 0
        if len(part) - at < HEADER_BYTES:
            return
        magic, flags, granule, serial, number, n_lengths = HEADER.unpack_from(part, at)
        body = at + HEADER_BYTES + n_lengths
        if magic != b"OggS" or body > len(part):
            return
        lengths = part[at + HEADER_BYTES : body]
        n_bytes = HEADER_BYTES + n_lengths + sum(lengths)
        toc = part[body] if body < len(part) else 0
        n_ended = n_lengths - lengths.count(255)
        yield _Page(start, start + n_bytes, flags, granule, serial, number, n_ended, toc)
        start, at = start + n_bytes, at + n_bytes


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)
