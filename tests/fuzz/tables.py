"""Options of `ondes levels`: a table of finite numbers, or one sentence."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import random
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from mutations import NUMBERS

import ondes
from ondes.cli import main
from ondes.errors import FileError

SR = 8000
NUMBER = (*("0", "-1", "1e-9", "0.001", "0.05", "1", "7.3", "1e9", "1e300", "1e400", "nan", "inf"),)
NUMBER += ("-inf", "-0.0", "1_0", "0x10", "", " ", "1e-320", "٣", "0:01", "1:-1", "5:61", "9" * 400)
NUMBER += (*map(str, NUMBERS), "-60", "-45", "-1e308")
NAMES = ("low", "high", "0", "1", "5", "-1", "", "=1+1", "@SUM(A1)", "\x1b[31m", "é", "a" * 500)
OPTIONS: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("--every", "--threshold", "--min-length", "--min-gap", "--start"), NUMBER),
    **dict.fromkeys(("--end", "-j"), NUMBER),
    "--by": ("component", "source", "both"),
    "--source": NAMES,
    "--format": ("csv", "parquet", "npz", "raven", "kaleidoscope", "json"),
    "--raw": ("8000:1:s16le", "1:1:s16le", "0:1:f32le", "8000:9999:f64le", "8e3:1:u8", "::", "a"),
    "--labels": ("OUT.txt", "OUT/", "/dev/null", "-", ""),
    "--backend": ("native", "reference", "cuda"),
    "--device": ("cpu", "cuda:99", ""),
    "--force": None,
    "--json": None,
}
OUTPUTS = ("OUT.csv", "OUT.parquet", "OUT.npz", "OUT.txt", "OUT", "OUT.csv.gz", "/dev/null", "")


@functools.cache
def _folder() -> Path:
    """A recording, and models of two sounds."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    time = np.arange(SR // 2) / SR
    sounds = {name: np.sin(pitch * time) for name, pitch in {"low": 2000, "high": 9000}.items()}
    for name, samples in sounds.items():
        frames = {"n_fft": 256, "hop_length": 128, "sr": SR, "n_passes": 2}
        ondes.learn(0.3 * samples, 2, **frames).save(folder / f"{name}.ondes")
    soundfile.write(folder / "20240131_063000.wav", 0.2 * sum(sounds.values()), SR)
    return folder


def seeds() -> dict[str, bytes]:
    """A table of levels and one of events."""
    import pyarrow.parquet  # noqa: F401  which takes longer than a file may

    _folder()
    events = ["-o", "OUT.txt", "--threshold", "-30", "--labels", "OUT.labels.txt"]
    return {
        "levels": json.dumps(["-o", "OUT.csv", "--every", "0.1"]).encode(),
        "events": json.dumps(events).encode(),
        "parquet": json.dumps(["-o", "OUT.parquet"]).encode(),
    }


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Other values, and more options."""
    arguments = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice(list(OPTIONS))
        values = OPTIONS[name]
        arguments += [name] if values is None else [name, rng.choice(values)]
    if rng.random() < 0.5:
        arguments += ["-o", rng.choice(OUTPUTS)]
    return json.dumps(arguments).encode()


def read(path: Path) -> None:
    """Run the command: it writes a table, or says one sentence and nothing is left."""
    try:
        given = [str(each) for each in json.loads(path.read_bytes())]
    except (ValueError, TypeError):
        return
    out = Path(tempfile.mkdtemp(dir=_folder()))
    given = [each.replace("OUT", str(out / "out")) for each in given]
    models = [f"-d{_folder() / name}.ondes" for name in ("low", "high")]
    command = ["levels", str(_folder() / "20240131_063000.wav"), *models, "-j", "1", *given]
    said: Any = io.StringIO()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.chdir(out))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("default")
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(said))
            status = _status(command)
        left = [each.name for each in out.rglob("*") if each.is_file()]
        if "-" in left or (status and left):
            raise ArithmeticError(f"exit {status}, and {left} was written")
        for each in out.rglob("*.csv"):
            if re.search(r"\b(nan|inf)\b", each.read_text()):
                raise ArithmeticError("a number in the table is not finite")
    finally:
        shutil.rmtree(out)
    if status:
        *_, last = said.getvalue().splitlines() or [""]
        if status not in (1, 2) or "(a bug" in last:
            raise ArithmeticError(f"exit {status}: {last}")
        raise FileError(path, last.removeprefix("Error: ").rstrip("."))


def _status(command: list[str]) -> int:
    try:
        main(command)
    except SystemExit as end:
        return int(end.code or 0)
