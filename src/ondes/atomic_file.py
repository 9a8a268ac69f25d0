"""Files that appear under their name complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from ondes.errors import FileError, printable

try:
    import fcntl
except ImportError:  # Windows, where a second writer is not detected
    fcntl = None  # type: ignore[assignment]

# Errors of a file system without locks, where a second writer is not detected either.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

__all__ = ["atomic_path", "check_destination", "exclusive_writer", "write_atomically"]


def check_destination(path: str | Path, force: bool = False) -> None:
    """Raise FileError where `path` could not be written; to be asked before long work.

    Parameters
    ----------
    path : str or Path
    force : bool
        Whether an existing file may be replaced.
    """
    target = Path(path)
    if target.is_dir():
        raise FileError(path, "is a folder; name a file in it")
    if target.exists() and not force:
        raise FileError(path, "exists already; choose another name, or force")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise FileError(path, "cannot be written (its folder does not exist)")
    if not os.access(folder, os.W_OK):
        raise FileError(path, "cannot be written (its folder is read-only)")


@contextlib.contextmanager
def atomic_path(path: str | Path, force: bool = False) -> Iterator[Path]:
    """A temporary file in the same folder that takes the name `path` when the block ends well.

    Whatever happens, the file under that name is the old one or the new one, never a part; a
    block that raises leaves nothing behind.

    Parameters
    ----------
    path : str or Path
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    FileError
        Where the file exists already or cannot be written.
    """
    target = Path(path)
    check_destination(target, force)
    draft = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        draft.touch(exist_ok=False)
        yield draft
        _sync(draft)
        check_destination(target, force)
        draft.replace(target)
        _sync(target.absolute().parent)
    except OSError as error:
        raise FileError(path, f"cannot be written ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_atomically(path: str | Path, data: bytes, force: bool = False) -> None:
    """Write `data` as a whole file, or nothing; see `atomic_path`."""
    with atomic_path(path, force) as draft:
        draft.write_bytes(data)


def _sync(path: Path) -> None:
    """Make sure that a file's bytes, or a folder's names, outlast a power cut."""
    if path.is_dir() and os.name == "nt":  # which cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_writer(path: Path) -> Iterator[None]:
    """Hold a lock that makes this process the only writer of a file, until the block ends.

    The operating system releases the lock when the process ends, however it ends. Temporary files
    that a killed writer left beside the file are removed.

    Parameters
    ----------
    path : Path
        It need not exist; its folder must.

    Raises
    ------
    FileError
        Where another process holds the lock.
    """
    if fcntl is None:
        yield
        return
    name = path.with_name(f".{path.name[:200]}.lock")
    descriptor = _acquire(name, path)
    try:
        _remove_drafts(path)
        yield
    finally:
        # The lock is still held, so nobody can have taken over the name.
        with contextlib.suppress(OSError):
            name.unlink()
        os.close(descriptor)


def _acquire(name: Path, path: Path) -> int:
    """A descriptor that holds the lock; its last holder may just have removed the name."""
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
        raise FileError(
            path,
            f"is being written by another process ({printable(holder)}); wait until it ends, or "
            "choose another name",
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    with contextlib.suppress(OSError):  # on a full disk the holder stays unknown
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())


def _remove_drafts(path: Path) -> None:
    draft = re.compile(rf"\.{re.escape(path.name[:200])}\.[0-9a-f]{{8}}\.part")
    for each in path.absolute().parent.iterdir():
        if draft.fullmatch(each.name):
            each.unlink(missing_ok=True)
