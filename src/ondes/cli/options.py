"""Options that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ondes.signal.recordings import RawFormat

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _backend_names() -> tuple[str, ...]:
    from ondes.nmf.backends import NAMES

    return NAMES


def _as_backend(_: click.Context, __: click.Parameter, given: str) -> str:
    if given != "auto" and given not in _backend_names():
        raise click.BadParameter(f"{given!r} is not one of {', '.join(_backend_names())}.")
    return given


def _as_threads(_: click.Context, __: click.Parameter, given: int) -> int:
    if given < -1 or given == 0:
        raise click.BadParameter(f"{given} is not a number of threads; -1 is one per core.")
    return given


def _as_raw_format(_: click.Context, __: click.Parameter, given: str | None) -> RawFormat | None:
    if given is None:
        return None
    from ondes.signal.recordings import RawFormat

    rate, _colon, rest = given.partition(":")
    channels, _colon, encoding = rest.partition(":")
    try:
        return RawFormat(int(rate), int(channels or 1), encoding or "s16le")
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is not of the form 44100:2:s16le: {error}") from None


def as_delay(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """Seconds from 30ms, or from 0.03s."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s)", given)
    if found is None:
        raise click.BadParameter(f"{given!r} is not a time such as 30ms.")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1)


def _as_top_db(_: click.Context, __: click.Parameter, given: str) -> float | None:
    if given.lower() == "off":
        return None
    try:
        decibels = float(given)
    except ValueError:
        decibels = 0.0
    if not 0 < decibels < float("inf"):
        raise click.BadParameter(f"{given!r} is neither a positive number of decibels nor off.")
    return decibels


def as_beta_loss(_: click.Context, __: click.Parameter, given: str | None) -> str | float | None:
    """A divergence's name, or its index as a number."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given


TIME = r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d*)?)"


def parse_time(given: str) -> float:
    """Seconds from 75, 75.5, 1:15 or 0:01:15."""
    parts = re.fullmatch(TIME, given)
    if parts is None:
        raise click.BadParameter(f"{given!r} is not a time; give seconds, m:ss or h:mm:ss.")
    hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    if (parts[2] is not None and seconds >= 60) or (parts[1] is not None and minutes >= 60):
        raise click.BadParameter(f"{given!r} has more than 59 minutes or seconds.")
    return 3600 * hours + 60 * minutes + seconds


def _as_time(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    return None if given is None else parse_time(given)


def count(*names: str, help: str, least: int = 1, default: int | None = None) -> Decorator:  # noqa: A002
    """An option that is a whole number."""
    return click.option(
        *names,
        type=click.IntRange(least),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=help,
    )


def as_components(_: click.Context, __: click.Parameter, given: str | None) -> int | str | None:
    """A whole number from 1, or "auto"."""
    if given is None or given == "auto":
        return given
    try:
        number = int(given)
    except ValueError:
        raise click.BadParameter(f"{given!r} is not a whole number, or auto.") from None
    if number < 1:
        raise click.BadParameter(f"{number} is not in the range x>=1.")
    return number


def no_minus(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    """The callback of an output that standard output cannot be."""
    if given == "-":
        raise click.BadParameter("cannot be written to standard output; give a file name.")
    return given


def _no_terminal(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given == "-" and sys.stdout.isatty():
        raise click.BadParameter("Standard output is a terminal; pipe it to a player or a file.")
    return given


def output(help: str, may_be_stream: bool = False, **how: Any) -> Decorator:  # noqa: A002
    """`-o`, the file or folder to write, or a stream; `how` is as of `click.option`."""
    how = {"type": click.Path(), "show_default": "default" in how, **how}
    callback = _no_terminal if may_be_stream else no_minus
    return click.option("-o", "--output", callback=callback, help=help, **how)


def dictionaries(
    required: bool, multiple: bool = True, text: str = "A model from `ondes learn`."
) -> Decorator:
    """`-d`, the models to use."""
    return click.option(
        "-d",
        "--dictionary",
        "dictionaries" if multiple else "dictionary",
        required=required,
        multiple=multiple,
        metavar="MODEL",
        type=click.Path(),
        help="A model from `ondes learn` for each source, or one from `ondes train`, or a "
        "name from `ondes models`; a file or a URL."
        if multiple
        else text,
    )


def discovery(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--sources` and `-k`, for sources that are learned from the mixture; see `discovered`."""
    sources = count("--sources", help="Without -d: learn N sources from the mixture.  [default: 2]")
    return sources(
        count(
            "-k",
            "--components",
            help="Without -d: learn N components of all sources from the mixture.  [default: 32]",
        )(command)
    )


def discovered(given: dict[str, Any]) -> None:
    """Complete the options of `discovery`."""
    given["sources"] = given["sources"] or 2
    given["components"] = given["components"] or 32


def compute(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--backend`, `--device` and `-j`; see `compute_settings`."""
    backend = click.option(
        "--backend",
        default="auto",
        show_default=True,
        metavar="NAME",
        callback=_as_backend,
        shell_complete=lambda *_: list(_backend_names()),
        help="Implementation to use: native, reference or torch.",
    )
    device = click.option(
        "--device",
        metavar="NAME",
        help="Device of --backend torch: cpu, cuda, cuda:1, mps.  [default: cpu]",
    )
    jobs = click.option(
        "-j",
        "--jobs",
        type=int,
        default=-1,
        metavar="N",
        callback=_as_threads,
        help="Number of threads.  [default: one per core]",
    )
    return backend(device(jobs(command)))


def compute_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `compute` by their names in Python, checked before any work."""
    from ondes.nmf.encoding import Compute

    settings = {name: given[name] for name in ("backend", "device")} | {"n_jobs": given["jobs"]}
    try:
        Compute(**settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return settings


def span(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--start` and `--end`, the part of each recording to use; see `check_span`."""
    start = click.option(
        "--start",
        metavar="TIME",
        default="0",
        callback=_as_time,
        help="Where to begin: seconds, m:ss or h:mm:ss.",
    )
    end = click.option(
        "--end", metavar="TIME", callback=_as_time, help="Where to stop.  [default: at the end]"
    )
    return start(end(command))


def check_span(given: Mapping[str, Any]) -> None:
    """Raise UsageError where the values of `span` leave nothing."""
    if given["end"] is not None and given["end"] <= given["start"]:
        raise click.UsageError("--end must be later than --start.")


as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
force = click.option("--force", is_flag=True, help="Replace existing files.")
seed = count("--seed", least=0, default=0, help="Seed of all random numbers.")
raw = click.option(
    "--raw",
    metavar="RATE:CHANNELS:FORMAT",
    callback=_as_raw_format,
    help="Format of samples without a header, such as 44100:2:s16le.",
)
delay = click.option(
    "--delay",
    metavar="TIME",
    callback=as_delay,
    help="For live sound: frames with which separation is late by this at most, such as 30ms.",
)
live_delay = click.option(
    "--delay",
    metavar="TIME",
    callback=as_delay,
    help="For live sound: late by this at most, such as 30ms, and separated less well, from what "
    "came before alone.",
)
top_db = click.option(
    "--top-db",
    metavar="DB",
    default="60",
    show_default=True,
    callback=_as_top_db,
    help="Leave out frames this far below the loudest frame of their recording; off keeps all.",
)
