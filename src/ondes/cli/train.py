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
@options.count("-k", "--components", help="Spectra per source.  [default: 64; 128 on a GPU]")
@options.count("--sr", default=16000, help="Sampling rate to work at, in Hz.")
@options.count("--n-fft", help="Samples per frame.  [default: 120 ms, 1920 at 16000 Hz]")
@options.seed
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@options.force
@options.as_json
def train(sources: tuple[str, ...], output: str, **given: Any) -> int:
    """Train a separator from recordings of each source: NAME=FILE, NAME=FOLDER or NAME=GLOB.

    Repeat a NAME to add more recordings to it. Hours of recordings need no more memory than
    minutes. A tenth of the recordings of each source is held out, and their mixtures decide which
    state of the training is kept. Ctrl-C saves the best separator so far. Training needs PyTorch;
    separating does not.

    \b
    ondes train speech=lectures/ music=records/ -o talk.ondes
    ondes separate broadcast.mp3 -d talk.ondes
    """  # noqa: D301
    from ondes.atomic_file import check_destination, companion, exclusive_writer
    from ondes.learning.separator_training.training import train as train_separator

    inputs = named_files(sources)
    checkpoint = companion(output, "", ".checkpoint")
    if given["resume"] and not given["force"] and Path(output).exists() and not checkpoint.exists():
        terminal.complain(f"{printable(output)} is complete: there is nothing to resume.")
        return terminal.DONE
    check_destination(output, given["force"] or (given["resume"] and checkpoint.exists()))
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
