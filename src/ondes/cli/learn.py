"""`ondes learn`."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ondes.cli import options, terminal

if TYPE_CHECKING:
    from ondes.learning import LearningProgress
    from ondes.nmf.estimator import OnlineISNMF

FIXED_BY_MODEL = ("components", "sr", "n_fft", "hop_length", "silence", "batch_size")


@click.command(short_help="Learn a dictionary from recordings.")
@click.argument("files", nargs=-1, required=True)
@click.option("-o", "--output", required=True, type=click.Path(), help="The model file to write.")
@options.count("-k", "--components", default=32, help="Spectra in the dictionary.")
@options.count("--passes", default=1, help="How often to hear everything.")
@options.count("--sr", default=22050, help="Samples a second to work at.")
@options.count("--n-fft", default=512, help="Samples in a frame.")
@options.count("--hop-length", help="Samples from frame to frame; half of --n-fft if not given.")
@options.count("--batch-size", default=128, help="Frames between two updates.")
@options.silence
@options.seed
@click.option(
    "--continue", "continued", type=click.Path(), metavar="MODEL", help="Go on from this model."
)
@click.option("--resume", is_flag=True, help="Go on where this run was broken off.")
@click.option(
    "--checkpoint",
    type=click.Path(),
    metavar="FILE",
    help="What --resume goes on from; OUTPUT.checkpoint if not given.",
)
@click.option(
    "--checkpoint-every",
    type=click.FloatRange(0),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How much work may be lost.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Share the work out to a Dask cluster: tcp://HOST:8786, or local for -j processes here.",
)
@options.count(
    "--shards", help="Parts of a round on a cluster, two for each worker; 8 if not given."
)
@options.raw
@options.backend
@options.device
@options.jobs
@options.force
@options.as_json
@click.pass_context
def learn(ctx: click.Context, /, **given: Any) -> int:
    """Learn a dictionary from FILES: recordings, folders and globs; - is standard input.

    Memory does not grow with the length, and the order of FILES does not matter. Ctrl-C saves what
    was learned so far.

    A run that was broken off, however it was, goes on with the same command and --resume, and ends
    with the same model as if nothing had happened. With nothing to go on from, --resume begins, and
    with nothing left to do it ends at once. The checkpoint is removed when the model is written.

    \b
    ondes learn piano/ "more/**/*.flac" -k 48 -o piano.ondes
    ffmpeg -i URL -f wav - | ondes learn - -o radio.ondes
    """  # noqa: D301
    output, checkpoint = Path(given["output"]), _checkpoint(given)
    from ondes.archive import check_destination
    from ondes.whole_file import only_writer

    may_be_there = given["resume"] and given["continued"] != given["output"]
    check_destination(output, given["force"] or may_be_there)
    with only_writer(output):
        if checkpoint is not None and given["resume"] and not checkpoint.exists():
            finished = None if given["force"] else _finished(output)
            if finished is not None:
                terminal.complain(f"{output} is finished: nothing is left to do.")
                _print_result(finished, 0.0, finished.provenance_.n_failed)
                return terminal.DONE
            terminal.complain(f"there is no {checkpoint} to go on from: beginning.")
        if checkpoint is not None and given["force"] and not given["resume"]:
            checkpoint.unlink(missing_ok=True)
        return _learn_and_save(ctx, output, checkpoint)


def _checkpoint(given: dict[str, Any]) -> Path | None:
    if "-" in given["files"]:
        if given["resume"] or given["checkpoint"] is not None:
            raise click.UsageError(
                "Standard input can be heard only once: leave out --resume and --checkpoint."
            )
        return None
    if given["checkpoint"] == given["output"]:
        raise click.UsageError("--checkpoint and --output are the same file: name another one.")
    return Path(given["checkpoint"] or f"{given['output']}.checkpoint")


def _finished(output: Path) -> OnlineISNMF | None:
    """The model that is there, unless its learning was interrupted."""
    if not output.exists():
        return None
    model, _ = terminal.load_model(str(output))
    return model if model.provenance_.stopped_by is None else None


def _learn_and_save(ctx: click.Context, output: Path, checkpoint: Path | None) -> int:
    given = ctx.params
    recordings, n_failed = terminal.gather(given["files"])
    if not recordings:
        terminal.complain("no recording is left to learn from.")
        return terminal.FAILED
    if "-" in given["files"] and given["passes"] > 1:
        raise click.UsageError("Standard input can be heard only once: leave out --passes.")
    start = time.perf_counter()
    with terminal.bar("learning") as bar, _warnings_shown_by(bar):

        def draw(progress: LearningProgress) -> None:
            note = f"divergence {progress.divergence:.3f}"
            bar.show(progress.seconds_done, progress.seconds_total, note)

        def report(_: str, error: Exception) -> None:
            nonlocal n_failed
            n_failed += 1
            bar.complain(str(error))

        model = _learn(ctx, recordings, checkpoint=checkpoint, progress=draw, on_error=report)
    if not _save(model, output, given["force"] or given["resume"]):
        return terminal.FAILED
    _print_result(model, time.perf_counter() - start, n_failed)
    if model.provenance_.stopped_by is not None:
        how = "; --resume goes on" if checkpoint is not None and checkpoint.exists() else ""
        terminal.complain(f"interrupted; what was learned so far is in {output}{how}.")
        return terminal.INTERRUPTED
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return terminal.SOME_FAILED if n_failed else terminal.DONE


@contextmanager
def _warnings_shown_by(bar: terminal.Bar) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: bar.complain(str(message))
        yield


def _learn(ctx: click.Context, recordings: Any, **how: Any) -> OnlineISNMF:
    given = ctx.params
    learn, go_on_learning = _teachers(given)
    names = ("passes", "seed", "raw", "checkpoint_every", "resume")
    shared = {name: given[name] for name in names} | how
    if given["continued"] is None:
        return learn(
            recordings,
            given["components"],
            sr=given["sr"],
            n_fft=given["n_fft"],
            hop_length=given["hop_length"],
            silence=given["silence"],
            batch_size=given["batch_size"],
            backend=given["backend"],
            device=given["device"],
            n_jobs=given["jobs"],
            **shared,
        )
    for name in FIXED_BY_MODEL:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is the model's own with --continue: leave it out.")
    model, _ = terminal.load_model(given["continued"])
    model.set_params(
        backend=given["backend"], device=given["device"], precision=None, n_jobs=given["jobs"]
    )
    return go_on_learning(model, recordings, **shared)


def _teachers(given: dict[str, Any]) -> tuple[Callable[..., OnlineISNMF], ...]:
    """What learns and what goes on learning: this process, or a cluster."""
    if given["scheduler"] is None:
        from ondes import learning

        if given["shards"] is not None:
            raise click.UsageError("--shards is of a cluster: give --scheduler, or leave it out.")
        return learning.learn, learning.go_on_learning
    from ondes import distributed

    is_local, jobs = given["scheduler"] == "local", given["jobs"]
    cluster: dict[str, Any] = {"n_workers": jobs if is_local and jobs > 0 else None}
    if given["shards"] is not None:
        cluster["n_shards"] = given["shards"]
    client = None if is_local else given["scheduler"]
    return (
        partial(distributed.learn, client, **cluster),
        partial(distributed.go_on_learning, client, **cluster),
    )


def _save(model: OnlineISNMF, output: Path, force: bool) -> bool:
    """Whether the model could be written where it belongs; it is put elsewhere if not."""
    from ondes.model_file import ModelFileError, save

    try:
        save(model, output, force)
    except ModelFileError as error:
        refuge = Path(tempfile.mkdtemp(prefix="ondes-"))
        try:
            save(model, refuge / output.name)
        except ModelFileError:
            refuge.rmdir()
            raise error from None
        reason = str(error).rstrip(".")
        terminal.complain(f"{reason}, so the model is in {refuge / output.name}: move it.")
        return False
    return True


def _print_result(model: OnlineISNMF, elapsed: float, n_failed: int) -> None:
    given = click.get_current_context().params
    provenance = model.provenance_
    result = {
        "model": given["output"],
        "n_components": model.n_components,
        "n_bins": model.n_features_in_,
        "sr": model.audio_.sr,
        "n_files": provenance.n_files,
        "n_failed": n_failed,
        "n_frames": provenance.n_frames,
        "seconds": provenance.seconds,
        "divergence": provenance.divergence,
        "stopped_by": provenance.stopped_by,
        "backend": model.backend_,
        "elapsed": elapsed,
    }
    if given["as_json"]:
        terminal.print_json(result)
        return
    # What was learned before this process counts for the model, and not for its speed.
    is_all_ours = not given["resume"] and given["continued"] is None
    speed = f"{provenance.seconds / elapsed:.0f} × real time, " if is_all_ours else ""
    click.echo(
        f"{given['output']}: {model.n_components} components from "
        f"{terminal.clock(provenance.seconds)} of sound, divergence {provenance.divergence:.3f} "
        f"per bin, in {terminal.clock(elapsed)} ({speed}{model.backend_})"
    )
