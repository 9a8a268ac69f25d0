"""What commands over several recordings share: the failure of one, and where results go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ondes.cli import terminal
from ondes.errors import FileError

if TYPE_CHECKING:
    from ondes.signal.audio_writer import AudioWriter
    from ondes.signal.locations import Location
    from ondes.signal.stream_writer import StreamWriter


@contextlib.contextmanager
def failure_of(path: Location, failures: list[FileError]) -> Iterator[None]:
    """Say what is wrong with a recording, and go on with the next one."""
    try:
        yield
    except (FileError, ValueError) as error:
        named = error
        if not isinstance(named, FileError):
            named = FileError(path, str(error).rstrip("."))
        terminal.complain(str(named))
        failures.append(named)


def open_writer(
    file: Path, sr: int, channels: int, given: dict[str, Any], stack: contextlib.ExitStack
) -> AudioWriter | StreamWriter:
    """What writes a stream, or a file in a folder that is made for it; `stack` closes it."""
    from ondes.signal.audio_writer import AudioWriter
    from ondes.signal.stream_writer import StreamWriter
    from ondes.signal.survey import is_stream

    if is_stream(file):
        return stack.enter_context(StreamWriter(file, sr, channels, raw=given["raw"]))
    make_folder(file, stack)
    return stack.enter_context(AudioWriter(file, sr, channels, force=given["force"]))


def make_folder(file: Path, stack: contextlib.ExitStack) -> None:
    """Make the folder of a file, and remove it at the end where it is still empty."""
    folder = file.parent
    missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]

    def remove_if_empty() -> None:
        with contextlib.suppress(OSError):
            for each in missing:
                each.rmdir()

    stack.callback(remove_if_empty)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(file, f"cannot be written ({error.strerror or error})") from error
