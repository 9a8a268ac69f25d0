"""`ondes demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.errors import printable

if TYPE_CHECKING:
    from ondes.learning import LearningProgress


@click.command(short_help="Learn from a synthetic tune, and separate another.")
@options.output("The folder to write to.", default="ondes-demo", type=click.Path(file_okay=False))
@click.option(
    "--seconds",
    type=click.FloatRange(2),
    default=24.0,
    show_default=True,
    help="Length of each tune.",
)
@options.seed
@options.compute
@options.force
@options.as_json
def demo(output: str, seconds: float, seed: int, **given: Any) -> None:
    """Learn four instruments from one tune, separate them in another, and report the result.

    Both tunes are synthesised. SI-SDR measures in decibels how close a separated source is to the
    true one; the gain is the improvement over the unseparated mixture.
    """
    from ondes.demo import run_demo

    with terminal.bar("demo") as bar:

        def draw(step: str, progress: LearningProgress | None) -> None:
            if progress is None:
                bar.show(0.0, None, step)
            else:
                bar.show(progress.seconds_done, progress.seconds_total, step)

        result = run_demo(
            output,
            seconds=seconds,
            random_state=seed,
            force=given["force"],
            progress=draw,
            **options.compute_settings(given),
        )
    rows = {
        name: {"mixture": before, "separated": result.separated_scores[name]}
        for name, before in result.mixture_scores.items()
    }
    for scores in rows.values():
        scores["gain"] = scores["separated"] - scores["mixture"]
    if given["as_json"]:
        terminal.print_json({"si_sdr": rows, "folder": result.folder, "report": result.report})
        return
    header = ("SI-SDR in dB", "mixture", "separated", "gain")
    cells = [[name, *(f"{db:.1f}" for db in scores.values())] for name, scores in rows.items()]
    terminal.print_table(header, cells)
    click.echo(f"Recordings and models: {printable(str(result.folder))}")
    if result.report is None:
        terminal.complain("no report was written, because that needs pip install 'ondes[report]'.")
    else:
        click.echo(f"Report, to open in a browser: {printable(str(result.report))}")
