"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


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
