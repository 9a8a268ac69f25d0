"""Decoders: bytes in, float32 samples out, in reads of a fixed length.

Reads always end at the same places, so that what a decoder gives, and where it fails, depends on
the file alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

import soundfile

from ondes.errors import FileError
from ondes.signal import integrity, ogg, remote
from ondes.signal.av_decoder import AvDecoder
from ondes.signal.decoder import Decoder, SpanDecoder
from ondes.signal.locations import Location, RemotePath, Span, as_location
from ondes.signal.pcm import PcmDecoder, RawFormat, standard_input
from ondes.signal.soundfile_decoder import SoundFileDecoder, plain_reason

__all__ = ["Decoder", "open_decoder"]

# Encoders pad and players trim up to a few MP3 frames at both ends.
MP3_TRIM = 4 * 1152
UNRECOGNISED, UNSUPPORTED_ENCODING = 1, 4  # libsndfile's error codes
INSTALL_FORMATS = "install PyAV with: pip install 'ondes[formats]'"
TRUNCATED = "is truncated: it is shorter than its header says; copy it again"
INTACT_OGG = ogg.OggFacts(is_complete=True, is_chained=False, is_consecutive=True, is_celt=True)


def open_decoder(
    recording: str | Location | BinaryIO, raw: RawFormat | None = None, is_known: bool = False
) -> Decoder:
    """Open a recording with the decoder it needs.

    Parameters
    ----------
    recording : str, Path, RemotePath, Span or binary stream
        ``-`` is standard input.
    raw : RawFormat, optional
        The format of samples that have no header.
    is_known : bool
        Whether it was opened before and is seekable: it is then not looked through again.
    """
    if isinstance(recording, str):
        recording = as_location(recording)
    if isinstance(recording, Span):
        return _open_part(recording, raw, is_known)
    if isinstance(recording, RemotePath):
        return _open_remote(recording, raw, is_known)
    if not isinstance(recording, Path):
        return PcmDecoder(recording, str(getattr(recording, "name", "stream")), raw)
    if str(recording) == "-":
        return PcmDecoder(standard_input(), "-", raw)
    try:
        mode = recording.stat().st_mode
        if stat.S_ISDIR(mode):
            raise FileError(recording, "is a folder, not a recording")
        if raw is not None or not stat.S_ISREG(mode):
            decoder = PcmDecoder(recording.open("rb", buffering=0), str(recording), raw, owned=True)
            if raw is not None and stat.S_ISREG(mode):
                decoder.n_samples = recording.stat().st_size // raw.bytes_per_sample
            return decoder
        with recording.open("rb") as file:
            return _open_file(str(recording), recording, file, is_known)
    except OSError as error:
        raise FileError(recording, f"cannot be read ({error.strerror or error})") from error


def _open_part(part: Span, raw: RawFormat | None, is_known: bool) -> Decoder:
    whole = open_decoder(part.path, raw, is_known)
    try:
        return SpanDecoder(whole, str(part), part.start, part.end)
    except BaseException:
        whole.close()
        raise


def _open_remote(path: RemotePath, raw: RawFormat | None, is_known: bool) -> Decoder:
    file = remote.RemoteFile(path)
    try:
        decoder: Decoder
        stream = cast(BinaryIO, file)
        if raw is not None:
            decoder = PcmDecoder(stream, str(path), raw)
            decoder.n_samples = file.size // raw.bytes_per_sample
        else:
            decoder = _open_file(str(path), stream, stream, is_known)
        return remote.RemoteDecoder(decoder, file)
    except FileError as error:
        file.close()
        raise file.failure or error from None
    except BaseException:
        file.close()
        raise


def _open_file(name: str, source: Path | BinaryIO, file: BinaryIO, is_known: bool) -> Decoder:
    """Open a file that can be read anywhere.

    Parameters
    ----------
    name : str
        For messages.
    source : Path or binary file
        What is decoded.
    file : binary file
        The same, for a look at its bytes.
    is_known : bool
        Whether it was looked through before.
    """
    magic = file.read(4)
    if not magic:
        raise FileError(name, "is empty (0 bytes)")
    if integrity.is_mpeg(file) and _has_pyav():  # libmpg123 prints about whatever is damaged
        return AvDecoder(name, source, file)
    if magic == b"caff" and not is_known:
        integrity.check_packets(name, file)
    if magic[:2] == b"\xf0\x7e" and not is_known:
        integrity.check_dump(name, file)
    try:
        decoder = SoundFileDecoder(name, source)
    except soundfile.LibsndfileError as error:
        is_damaged = error.code not in (UNRECOGNISED, UNSUPPORTED_ENCODING)
        if is_damaged and not integrity.is_of_another_encoding(file):
            raise FileError(name, f"is damaged ({plain_reason(error)})") from error
        if _has_pyav():
            is_complete = magic != b"OggS" or ogg.examine_end(file).is_complete
            other = AvDecoder(name, source, file)
            if not is_complete:
                other.close()
                raise FileError(name, TRUNCATED) from None
            return other
        raise FileError(
            name, f"is not a format of libsndfile; if it is MP4 or video, {INSTALL_FORMATS}"
        ) from error
    except TypeError as error:  # soundfile wants a format for names that end in .raw
        raise FileError(name, "has no header; give its raw format") from error
    facts = INTACT_OGG
    try:
        integrity.check_header(name, decoder.sr, decoder.channels)
        if magic == b"OggS" and not is_known:
            facts = ogg.examine(file) if isinstance(source, Path) else ogg.examine_end(file)
        if (decoder.format == "MP3" or facts.is_chained) and _has_pyav():
            decoder.close()
            return AvDecoder(name, source, file)
        if not is_known:
            _check(name, decoder, file, facts)
    except BaseException:
        decoder.close()
        raise
    decoder.allow_seek_in_ogg(None if is_known else file, facts)
    if not isinstance(source, Path) and not is_known:
        decoder.rewind()
    return decoder


def _check(name: str, decoder: SoundFileDecoder, file: BinaryIO, facts: ogg.OggFacts) -> None:
    """Refuse a file that is not what its header says."""
    if facts.is_chained:
        raise FileError(name, f"consists of several Ogg streams; to read it, {INSTALL_FORMATS}")
    if decoder.format == "MP3":
        _check_mp3_length(name, decoder, file)
    elif integrity.is_truncated(file) or not facts.is_complete:
        raise FileError(name, TRUNCATED)
    n_bytes = file.seek(0, os.SEEK_END)
    integrity.check_length(name, decoder.n_samples, n_bytes, decoder.format)
    if decoder.n_samples == 0:
        raise FileError(name, "holds no samples")


def _check_mp3_length(name: str, decoder: SoundFileDecoder, file: BinaryIO) -> None:
    """Refuse an MP3 whose length libsndfile misjudges: it would stop early."""
    found, expected = integrity.mp3_n_samples(file), decoder.n_samples or 0
    if found < expected - MP3_TRIM:
        raise FileError(name, TRUNCATED)
    if found > expected + MP3_TRIM:
        raise FileError(name, f"has no length in its header; to read all of it, {INSTALL_FORMATS}")


def _has_pyav() -> bool:
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True
