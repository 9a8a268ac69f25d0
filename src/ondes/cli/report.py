"""`ondes report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.models import as_model, check_discovery, discover, load_models
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.models.model import Model
    from ondes.report.excerpts import ShownExcerpt

SECONDS = 30.0  # of the excerpt
TOLERANCE = 0.01  # seconds by which the declared length of a recording may be wrong


@click.command(short_help="Write a page to see and hear a separation.")
@click.argument("mix")
@options.dictionaries(required=False)
@options.output("The page to write.", default="report.html", type=click.Path(dir_okay=False))
@options.span
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Length of the excerpt to show.  [default: up to --end, else 30]",
)
@click.option(
    "--spatial",
    type=click.Choice(["auto", "none", "room", "pan"]),
    default="auto",
    show_default=True,
    help="As in `ondes separate`; the page shows where the sources are.",
)
@click.option(
    "--mic-distance",
    type=click.FloatRange(0, 10, min_open=True),
    metavar="METRES",
    help="Distance between the first two microphones, to compute angles.  [default: 0.08]",
)
@options.discovery
@options.seed
@options.raw
@options.compute
@options.force
def report(mix: str, **given: Any) -> None:
    """Separate MIX, and write the result as one HTML page, which needs no other file.

    The page has a spectrogram and a player for the mixture and for each source. For each component
    it shows the spectrum and the level over time; the loudest ones have a player. It also shows how
    well the models explain the sound. Levels are those of the sound that is played. Without -d, the
    sources are learned from MIX itself. With --spatial room, the angle of a source is computed from
    the delay between the first two microphones.

    \b
    ondes report band.wav --sources 4
    ondes report talk.mp3 -d speech.ondes -d music.ondes --start 1:00 --seconds 60
    ondes report talk.mp3 -d talk.ondes              (from ondes train)
    ondes report mics.wav -d speech.ondes -d music.ondes --spatial room --mic-distance 0.2
    """  # noqa: D301
    from ondes.atomic_file import check_destination
    from ondes.report import build_report, describe_excerpt, write_report
    from ondes.signal.recordings import find_recordings

    compute = options.compute_settings(given)
    options.discovered(given)
    options.check_span(given)
    if given["end"] is not None and given["seconds"] is not None:
        raise click.UsageError(
            "--end and --seconds both set the end of the excerpt; give one of them."
        )
    if given["mic_distance"] is not None and given["spatial"] != "room":
        raise click.UsageError("--mic-distance is for --spatial room.")
    check_destination(given["output"], given["force"])
    if Path(mix).is_dir():
        found = find_recordings(mix)
        several = f"{len(found)} recording" + ("s" if len(found) > 1 else "")
        reason = f"is a folder of {several}; name one, such as {printable(str(found[0]))}"
        raise FileError(mix, reason)
    model, texts = _model(mix, given)
    start, end = given["start"], given["end"]
    if end is None:
        end = start + (given["seconds"] or SECONDS)

    def excerpt(shown: ShownExcerpt) -> str | None:
        stop = start + shown.n_samples / shown.sr
        total = shown.total
        return None if total is None else describe_excerpt(start, stop, total - TOLERANCE)

    with terminal.bar("separating and drawing") as bar, terminal.warnings_shown_by(bar):
        content = build_report(
            mix,
            model,
            title=printable(Path(mix).name),
            start=start,
            end=end,
            raw=given["raw"],
            excerpt=excerpt,
            options={"spatial": given["spatial"]},
            mic_distance=given["mic_distance"],
            **texts,
            **compute,
        )
    terminal.say(printable(str(write_report(given["output"], content, force=given["force"]))))


def _model(mix: str, given: dict[str, Any]) -> tuple[Model, dict[str, Any]]:
    """The model, and what the page says of it."""
    from ondes.models.dictionary import Dictionary
    from ondes.report import describe_dictionaries, describe_separator

    models: dict[str, Any] = load_models(given["dictionaries"])
    if not models:
        check_discovery([mix], given)
        with terminal.bar("learning") as bar:
            models = {"mix": discover(mix, given, bar.show_learning)}
    described: dict[str, Any] = {}
    for each in models.values():
        if not isinstance(each, Dictionary):
            described = describe_separator(each)
    return as_model(models), described or describe_dictionaries(models)
