"""When a recording was made, from its name."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

__all__ = ["clock_time"]

# AudioMoth 20240131_063000, Song Meter SITE_20240131_063000, ISO 2024-01-31T06-30-00 and the like.
WRITTEN = re.compile(
    r"(?<!\d)(\d{4})([-_.]?)(\d\d)\2(\d\d)(?:[T_ -]|__)?(\d\d)([-_.:h]?)(\d\d)(?:\6|m)?(\d\d)(?!\d)"
)
# AudioMoth before 2019: seconds since 1970 in UTC, as eight hexadecimal digits.
HEXADECIMAL = re.compile(r"[0-9A-F]{8}")
EARLIEST, LATEST = 1990, 2100


def clock_time(path: str | Path) -> datetime | None:
    """The time of a recording's first sample, where its name has it.

    Parameters
    ----------
    path : str or Path
        Such as ``20240131_063000.WAV``, ``SM4_20240131_063000.wav`` or
        ``2024-01-31T06-30-00.flac``. The time zone is the recorder's, so it has none.

    Returns
    -------
    datetime or None

    Examples
    --------
    >>> clock_time("pond/SMU00123_20240131_063000.wav")
    datetime.datetime(2024, 1, 31, 6, 30)
    >>> clock_time("take_2.wav")
    """
    stem = Path(path).stem
    for found in WRITTEN.finditer(stem):
        year, _, month, day, hour, _, minute, second = found.groups()
        try:
            time = datetime(*map(int, (year, month, day, hour, minute, second)))  # type: ignore[arg-type]
        except ValueError:
            continue
        if EARLIEST <= time.year < LATEST:
            return time
    if HEXADECIMAL.fullmatch(stem) and not stem.isdigit():
        time = datetime.fromtimestamp(int(stem, 16))
        if EARLIEST <= time.year < LATEST:
            return time
    return None
