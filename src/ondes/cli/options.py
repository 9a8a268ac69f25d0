"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ondes.signal.audio import RawFormat

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
        raise click.BadParameter(f"{given} is no number of threads; -1 is one a core.")
    return given


def _as_raw_format(_: click.Context, __: click.Parameter, given: str | None) -> RawFormat | None:
    if given is None:
        return None
    from ondes.signal.audio import RawFormat

    rate, _colon, rest = given.partition(":")
    channels, _colon, encoding = rest.partition(":")
    try:
        return RawFormat(int(rate), int(channels or 1), encoding or "s16le")
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is not like 44100:2:s16le: {error}") from None


def _as_decibels(_: click.Context, __: click.Parameter, given: str) -> float | None:
    if given.lower() == "off":
        return None
    try:
        return -abs(float(given))
    except ValueError:
        raise click.BadParameter(f"{given!r} is neither decibels nor off.") from None


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


def dictionaries(required: bool, multiple: bool = True) -> Decorator:
    """`-d`, the models to use."""
    return click.option(
        "-d",
        "--dictionary",
        "dictionaries" if multiple else "dictionary",
        required=required,
        multiple=multiple,
        metavar="MODEL",
        type=click.Path(),
        help="A model from `ondes learn`" + ("; one for each source." if multiple else "."),
    )


as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
force = click.option("--force", is_flag=True, help="Replace what exists.")
seed = count("--seed", least=0, default=0, help="Of everything random.")
jobs = click.option(
    "-j",
    "--jobs",
    type=int,
    default=-1,
    metavar="N",
    callback=_as_threads,
    help="Threads.  [default: one a core]",
)
backend = click.option(
    "--backend",
    default="auto",
    show_default=True,
    metavar="NAME",
    callback=_as_backend,
    shell_complete=lambda *_: list(_backend_names()),
    help="Who does the work: native, reference, torch.",
)
device = click.option(
    "--device",
    metavar="NAME",
    help="Where --backend torch works: cpu, cuda, cuda:1, mps.  [default: cpu]",
)
raw = click.option(
    "--raw",
    metavar="RATE:CHANNELS:FORMAT",
    callback=_as_raw_format,
    help="What samples without a header are, as 44100:2:s16le.",
)
silence = click.option(
    "--silence",
    metavar="DB",
    default="-60",
    show_default=True,
    callback=_as_decibels,
    help="Leave out frames so far below the loudest of their recording; off keeps all.",
)
