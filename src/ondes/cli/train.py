"""`ondes train`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.models import named_files
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.learning.separator_training.trainer import SeparatorProgress


FROM_THE_SHELF = (
    "ondes: starts from the separator '{}', which comes with ondes; --start none starts from "
    "dictionaries, for a separator that is five times as fast and separates less well."
)


@click.command(short_help="Train a separator from recordings of each source.")
@click.argument("sources", nargs=-1, required=True, metavar="NAME=FILES...")
@options.output("Separator to write.", required=True)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="How long to train.",
)
@options.count(
    "--updates",
    help="Train for N updates instead of --minutes; then the same seed gives the same result.",
)
@click.option(
    "--start",
    metavar="NAME|FILE|none",
    default="auto",
    help="A separator to start from: one of `ondes models`, a file that was trained from one, or "
    "none for dictionaries.  [default: the one that has any of the sources by name]",
)
@options.count(
    "-k", "--components", help="Spectra per source of dictionaries.  [default: 64; 128 on a GPU]"
)
@options.count("--sr", default=16000, help="Sampling rate to work at, in Hz.")
@options.count("--n-fft", help="Samples per frame.  [default: 120 ms, 1920 at 16000 Hz]")
@options.seed
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@options.force
@options.as_json
def train(sources: tuple[str, ...], output: str, **given: Any) -> int:
    """Train a separator from recordings of each source: NAME=FILE, NAME=FOLDER or NAME=GLOB.

    It starts from the separator that comes with ondes and has any of the sources by name (speech,
    music, effects, noise), if there is one, and else from a dictionary of each source. Five minutes
    are enough for both. Repeat a NAME to add more recordings to it. Hours of recordings need no
    more memory than minutes. A tenth of the recordings of each source is held out, and their
    mixtures decide which state of the training is kept. Ctrl-C saves the best separator so far.
    Training needs PyTorch; separating does not.

    \b
    ondes train speech=lectures/ music=records/ -o talk.ondes
    ondes separate broadcast.mp3 -d talk.ondes
    """  # noqa: D301
    from ondes.atomic_file import check_destination, companion, exclusive_writer
    from ondes.learning.separator_training.training import start_of
    from ondes.learning.separator_training.training import train as train_separator
    from ondes.models.loading import on_shelf

    inputs = named_files(sources)
    start_from = None if given["start"] == "none" else given["start"]
    frames = given["components"], given["n_fft"]
    start_from = start_of(start_from, tuple(inputs), given["sr"], *frames)
    checkpoint = companion(output, "", ".checkpoint")
    if given["resume"] and not given["force"] and Path(output).exists() and not checkpoint.exists():
        terminal.complain(f"{printable(output)} is complete: there is nothing to resume.")
        return terminal.DONE
    check_destination(output, given["force"] or (given["resume"] and checkpoint.exists()))
    if start_from and on_shelf(start_from):
        terminal.say(FROM_THE_SHELF.format(start_from), err=True)
    failures: list[FileError] = []
    start = time.perf_counter()
    with (
        exclusive_writer(Path(output)),
        terminal.share_bar("training") as bar,
        terminal.warnings_shown_by(terminal.Bar(None, "")),
    ):
        if given["force"] and not given["resume"]:
            check_destination(checkpoint, force=True)
            checkpoint.unlink(missing_ok=True)

        def report(_: str, error: FileError) -> None:
            failures.append(error)
            terminal.complain(str(error))

        def show(progress: SeparatorProgress) -> None:
            ratios = " / ".join(f"{value:.1f}" for value in progress.si_sdr.values())
            bar(progress.share_done, f"held-out SI-SDR {ratios} dB")

        separator = train_separator(
            inputs,
            n_components=given["components"],
            sr=given["sr"],
            n_fft=given["n_fft"],
            minutes=given["minutes"],
            n_updates=given["updates"],
            random_state=given["seed"],
            device=given["device"],
            start=start_from,
            checkpoint=checkpoint,
            resume=given["resume"],
            progress=show,
            on_error=report,
            return_on_interrupt=True,
        )
        if not terminal.save(separator, Path(output), given["force"] or given["resume"]):
            return terminal.FAILED
    history = separator.history
    assert history is not None
    stopped = history.stopped_by is not None
    if not stopped:
        checkpoint.unlink(missing_ok=True)
    elapsed = time.perf_counter() - start
    ratios = dict(zip(separator.names, history.si_sdr, strict=True))
    result = {
        "separator": output,
        "sources": ratios,
        "n_updates": history.n_updates,
        "stopped_by": history.stopped_by,
        "elapsed": elapsed,
    } | terminal.listed(failures)
    if given["as_json"]:
        terminal.print_json(result)
    else:
        each = ", ".join(f"{printable(name)} {value:.1f} dB" for name, value in ratios.items())
        terminal.say(
            f"{printable(output)}: {each} on held-out mixtures, after {history.n_updates} updates "
            f"in {terminal.clock(elapsed)}"
        )
    if stopped:
        terminal.complain(
            f"interrupted; the best so far is in {printable(output)}; --resume continues."
        )
        return terminal.INTERRUPTED
    return terminal.SOME_FAILED if failures else terminal.DONE
