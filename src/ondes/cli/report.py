"""`ondes report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ondes.cli import options, terminal
from ondes.cli.sources import as_sources, check_discovery, discover, load_dictionaries
from ondes.errors import printable

SECONDS = 30.0  # of the excerpt
TOLERANCE = 0.01  # seconds by which the declared length of a recording may be wrong


@click.command(short_help="Write a page to see and hear a separation.")
@click.argument("mix")
@options.dictionaries(required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    callback=terminal.no_minus,
    default="report.html",
    show_default=True,
    help="The page to write.",
)
@options.span
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Length of the excerpt to show.  [default: up to --end, else 30]",
)
@options.discovery
@options.seed
@options.raw
@options.compute
@options.force
def report(mix: str, **given: Any) -> None:
    """Separate MIX, and show the result on one page that opens from disk and loads nothing else.

    The page has the spectrogram and a player of the mixture, of each source and of each component,
    and describes the dictionaries. Without -d, the sources are learned from MIX itself.
    """
    from ondes.atomic_file import check_destination
    from ondes.report import (
        build_report,
        describe_dictionaries,
        describe_excerpt,
        read_excerpt,
        write_report,
    )

    compute = options.compute_settings(given)
    options.check_span(given)
    if given["end"] is not None and given["seconds"] is not None:
        raise click.UsageError("--end and --seconds say the same; give one of them.")
    check_destination(given["output"], given["force"])
    if given["dictionaries"]:
        dictionaries = load_dictionaries(given["dictionaries"])
    else:
        check_discovery([mix], given)
        with terminal.bar("learning") as bar:
            dictionaries = {"mix": discover(mix, given, bar.show_learning)}
    sources = as_sources(dictionaries)
    start, end = given["start"], given["end"]
    if end is None:
        end = start + (given["seconds"] or SECONDS)
    samples, total = read_excerpt(mix, sources.sr, start=start, end=end, raw=given["raw"])
    stop = start + len(samples) / sources.sr
    content = build_report(
        samples,
        sources,
        title=printable(Path(mix).name),
        excerpt=None if total is None else describe_excerpt(start, stop, total - TOLERANCE),
        **describe_dictionaries(dictionaries),
        **compute,
    )
    click.echo(printable(str(write_report(given["output"], content, force=given["force"]))))
