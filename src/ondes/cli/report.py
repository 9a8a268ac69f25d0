"""`ondes report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ondes.cli import options, terminal
from ondes.cli.sources import as_sources, discover, load_models

ROUNDING = 0.01  # seconds by which a recording's length may be told wrong


@click.command(short_help="Make a page to see and hear a separation.")
@click.argument("mix")
@options.dictionaries(required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    default="report.html",
    show_default=True,
    help="The page to write.",
)
@click.option("--start", type=click.FloatRange(0), default=0.0, help="Seconds to pass over.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="Length of the excerpt to show.",
)
@options.count("--sources", default=2, help="Without -d: how many to look for.")
@options.count("-k", "--components", default=24, help="Without -d: of all sources together.")
@options.seed
@options.raw
@options.backend
@options.jobs
@options.force
def report(mix: str, **given: Any) -> None:
    """Separate MIX and show all of it on one page that opens from disk and asks for nothing else.

    The page has the spectrograms and the sound of the mix, of each source and of each component,
    and what is known of the dictionaries. Without -d, the mix itself teaches what it consists of.
    """
    from ondes.excerpt import describe, facts, read_excerpt
    from ondes.model_file import check_destination
    from ondes.report import describe_excerpt, write_report

    check_destination(given["output"], given["force"])
    how = {"backend": given["backend"], "n_jobs": given["jobs"]}
    with terminal.bar("learning") as bar:
        if given["dictionaries"]:
            models = load_models(given["dictionaries"])
        else:
            model = discover(
                Path(mix), given["sources"], given["components"], seed=given["seed"], **how,
                progress=lambda p: bar.show(p.seconds_done, p.seconds_total),
            )  # fmt: skip
            models = {"mix": model}
    sources = as_sources(models)
    start, seconds = given["start"], given["seconds"]
    samples, total = read_excerpt(mix, sources.sr, start=start, seconds=seconds, raw=given["raw"])
    stop = start + len(samples) / sources.sr
    content = describe(
        samples,
        sources,
        title=Path(mix).name,
        excerpt=None if total is None else describe_excerpt(start, stop, total - ROUNDING),
        **facts(models),
        **how,
    )
    click.echo(write_report(given["output"], content, force=given["force"]))
