"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where a second writer goes unnoticed
    fcntl = None  # type: ignore[assignment]

# What a file system says that has no locks: a second writer goes unnoticed there, too.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

__all__ = ["FileInUseError", "only_writer", "sync_folder", "write_whole"]


class FileInUseError(OSError):
    """Another process is going to write the same file."""


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` under a name at once: the file is the old one or the new, never a part.

    Parameters
    ----------
    path : Path
    data : bytes

    Raises
    ------
    OSError
        Where it cannot be written; nothing is left behind.
    """
    draft = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.absolute().parent)


def sync_folder(folder: Path) -> None:
    """Make sure that names given in a folder outlast a power cut."""
    if os.name == "nt":  # which cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Be the only process that is going to write a file, until the end of the block.

    The system lets go of the claim when the process ends, however it ends. What a killed writer
    left behind beside the file is removed.

    Parameters
    ----------
    path : Path
        It need not exist; its folder must.

    Raises
    ------
    FileInUseError
        Where another process is that writer.
    """
    if fcntl is None:
        yield
        return
    name = path.with_name(f".{path.name[:200]}.lock")
    descriptor = _claim(name, path)
    try:
        _remove_drafts(path)
        yield
    finally:
        # Still claimed: nobody can have taken over the name. One that has to stay harms nobody.
        with contextlib.suppress(OSError):
            name.unlink()
        os.close(descriptor)


def _claim(name: Path, path: Path) -> int:
    """A descriptor that holds the lock; the last one to hold it may have removed the name."""
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), name.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 1000).decode(errors="replace") or "unknown"
        raise FileInUseError(
            f"{path}: is being written by another process ({holder}); wait for its end, or choose "
            "another name."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    with contextlib.suppress(OSError):  # a full disk: who it is will not be known, only that
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())


def _remove_drafts(path: Path) -> None:
    draft = re.compile(rf"\.{re.escape(path.name[:200])}\.[0-9a-f]{{8}}\.part")
    for each in path.absolute().parent.iterdir():
        if draft.fullmatch(each.name):
            each.unlink(missing_ok=True)
