"""Files that appear under their name complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from ondes.errors import FileError, printable

try:
    import fcntl
except ImportError:  # Windows, where a second writer is not detected
    fcntl = None  # type: ignore[assignment]

# Errors of a file system without locks, where a second writer is not detected either.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
MAX_NAME_BYTES = 255
DRAFT_SUFFIX = ".00000000.part"

__all__ = [
    "atomic_path",
    "check_destination",
    "companion",
    "exclusive_writer",
    "remove_abandoned",
    "write_atomically",
]


def check_destination(path: str | Path, force: bool = False) -> None:
    """Raise FileError where `path` could not be written; to be asked before long work.

    Parameters
    ----------
    path : str or Path
    force : bool
        Whether an existing file may be replaced. A device, a pipe or a socket never is.
    """
    target = Path(path)
    with _write_errors(path):
        mode = _mode(target)
        if stat.S_ISDIR(mode):
            raise FileError(path, "is a folder; name a file in it")
        if mode and not stat.S_ISREG(mode):
            raise FileError(path, "is a device, pipe or socket; name a file")
        if os.path.lexists(target) and not force:  # also a link that leads nowhere
            raise FileError(path, "exists already; choose another name, or replace it (--force)")
        folder = target.absolute().parent
        if not folder.is_dir():
            raise FileError(path, "cannot be written (its folder does not exist)")
        if not os.access(folder, os.W_OK):
            raise FileError(path, "cannot be written (its folder is read-only)")


def companion(path: str | Path, prefix: str, suffix: str) -> Path:
    """A name in the same folder that belongs to `path`, as long as names may be.

    Examples
    --------
    >>> companion("folder/a.ondes", ".", ".lock").name
    '.a.ondes.lock'
    """
    target = Path(path)
    name = os.fsencode(target.name)
    n_room = MAX_NAME_BYTES - len(prefix + suffix)
    if len(name) > n_room:
        start = name[: n_room - 17].decode(errors="ignore")
        name = os.fsencode(f"{start}~{hashlib.sha256(name).hexdigest()[:16]}")
    return target.with_name(f"{prefix}{os.fsdecode(name)}{suffix}")


@contextlib.contextmanager
def atomic_path(path: str | Path, force: bool = False) -> Iterator[Path]:
    """A temporary file in the same folder that takes the name `path` when the block ends well.

    Whatever happens, the file under that name is the old one or the new one, never a part; a
    block that raises leaves nothing behind. The new file has the mode of the one it replaces.

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
    with _write_errors(path), contextlib.ExitStack() as stack:
        draft, file = _new_draft(target, stack)
        mode = _mode(target)
        if mode and os.name != "nt":
            os.fchmod(file.fileno(), mode & 0o777)
        yield draft
        os.fsync(file.fileno())
        check_destination(target, force)
        if os.name == "nt":  # which renames no open file
            file.close()
        draft.replace(target)
        _sync_folder(target.absolute().parent)


def write_atomically(path: str | Path, data: bytes, force: bool = False) -> None:
    """Write `data` as a whole file, or nothing; see `atomic_path`."""
    with atomic_path(path, force) as draft:
        draft.write_bytes(data)


@contextlib.contextmanager
def _write_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(path, f"cannot be written ({error.strerror or error})") from error


def _mode(path: Path) -> int:
    """Type and mode of the file under a name; 0 where there is none."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        if error.errno == errno.ELOOP:
            return 0
        raise


def _new_draft(target: Path, stack: contextlib.ExitStack) -> tuple[Path, FileIO]:
    """The name of a new file, and the file, which holds its lock until the stack is closed."""
    while True:
        draft = companion(target, ".", f".{secrets.token_hex(4)}.part")
        file = FileIO(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666), "r+")
        stack.callback(_ignoring_errors, file.close)
        stack.callback(_ignoring_errors, draft.unlink, missing_ok=True)
        # Until it has its lock it looks abandoned, so another process may have removed it.
        if not _is_locked(file.fileno()) and _is_named(file.fileno(), draft):
            return draft, file


def _ignoring_errors(call: Callable[..., object], *given: Any, **how: Any) -> None:
    with contextlib.suppress(OSError):
        call(*given, **how)


def _sync_folder(folder: Path) -> None:
    """Make sure that a folder's names outlast a power cut."""
    if os.name == "nt":  # which cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- locks ----


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove the temporary files that a killed writer of these files left beside them.

    The lock of a temporary file tells whether its writer still lives.
    """
    if fcntl is None:
        return
    drafts: dict[Path, set[str]] = {}
    for path in paths:
        name = companion(path, ".", DRAFT_SUFFIX).name
        drafts.setdefault(path.absolute().parent, set()).add(name.removesuffix(DRAFT_SUFFIX))
    for folder, names in drafts.items():
        with contextlib.suppress(OSError):
            for each in folder.iterdir():
                found = re.fullmatch(r"(\..*)\.[0-9a-f]{8}\.part", each.name, re.DOTALL)
                if found is not None and found[1] in names:
                    _remove_if_abandoned(each)


def _remove_if_abandoned(draft: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(draft, os.O_RDWR | NO_LINK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
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
    name = companion(path, ".", ".lock")
    descriptor = _acquire(name, path)
    try:
        remove_abandoned([path])
        yield
    finally:
        # The lock is still held, so nobody can have taken over the name.
        _ignoring_errors(name.unlink)
        _ignoring_errors(os.close, descriptor)


def _acquire(name: Path, path: Path) -> int:
    """A descriptor that holds the lock; its last holder may just have removed the name."""
    while True:
        with _write_errors(path):
            try:
                descriptor = os.open(name, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _no_lock(name, path) from error
                raise
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                    raise _no_lock(name, path)
                if _is_locked(descriptor):
                    raise FileError(path, _being_written(descriptor))
                if _is_named(descriptor, name):
                    _sign(descriptor)
                    return descriptor
            except BaseException:
                _ignoring_errors(os.close, descriptor)
                raise
            _ignoring_errors(os.close, descriptor)


def _no_lock(name: Path, path: Path) -> FileError:
    lock = printable(str(name))
    return FileError(path, f"cannot be written (its lock {lock} is a link or no file; remove it)")


def _is_locked(descriptor: int) -> bool:
    """Whether another process holds a file's lock; if not, this one does from now on."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return False


def _is_named(descriptor: int, name: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), name.lstat())
    return False


def _being_written(descriptor: int) -> str:
    holder = os.read(descriptor, 1000).decode(errors="replace") or "unknown"
    return (
        f"is being written by another process ({printable(holder)}); wait until it ends, or "
        "choose another name"
    )


def _sign(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # on a full disk the holder stays unknown
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())
