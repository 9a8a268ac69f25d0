"""`ondes learn`."""

from __future__ import annotations

import time
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
@options.raw
@options.backend
@options.jobs
@options.force
@options.as_json
@click.pass_context
def learn(ctx: click.Context, /, **given: Any) -> int:
    """Learn a dictionary from FILES: recordings, folders and globs; - is standard input.

    Memory does not grow with the length, and the order of FILES does not matter. Ctrl-C saves what
    was learned so far.

    \b
    ondes learn piano/ "more/**/*.flac" -k 48 -o piano.ondes
    ffmpeg -i URL -f wav - | ondes learn - -o radio.ondes
    """  # noqa: D301
    from ondes.model_file import check_destination, save

    check_destination(given["output"], given["force"])
    recordings, n_failed = terminal.gather(given["files"])
    if not recordings:
        terminal.complain("no recording is left to learn from.")
        return terminal.FAILED
    if "-" in given["files"] and given["passes"] > 1:
        raise click.UsageError("Standard input can be heard only once: leave out --passes.")
    start = time.perf_counter()
    with terminal.bar("learning") as bar:

        def draw(progress: LearningProgress) -> None:
            note = f"divergence {progress.divergence:.3f}"
            bar.show(progress.seconds_done, progress.seconds_total, note)

        def report(_: str, error: Exception) -> None:
            nonlocal n_failed
            n_failed += 1
            bar.complain(str(error))

        model = _learn(ctx, recordings, progress=draw, on_error=report)
    save(model, given["output"], given["force"])
    _print_result(model, time.perf_counter() - start, n_failed)
    if model.provenance_.stopped_by is not None:
        terminal.complain(f"interrupted; what was learned so far is in {given['output']}.")
        return terminal.INTERRUPTED
    return terminal.SOME_FAILED if n_failed else terminal.DONE


def _learn(ctx: click.Context, recordings: Any, **hooks: Any) -> OnlineISNMF:
    from ondes import learning

    given = ctx.params
    shared = {name: given[name] for name in ("passes", "seed", "raw")} | hooks
    if given["continued"] is None:
        return learning.learn(
            recordings,
            given["components"],
            sr=given["sr"],
            n_fft=given["n_fft"],
            hop_length=given["hop_length"],
            silence=given["silence"],
            batch_size=given["batch_size"],
            backend=given["backend"],
            n_jobs=given["jobs"],
            **shared,
        )
    for name in FIXED_BY_MODEL:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is the model's own with --continue: leave it out.")
    model, _ = terminal.load_model(given["continued"])
    model.set_params(backend=given["backend"], n_jobs=given["jobs"])
    return learning.go_on_learning(model, recordings, **shared)


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
    click.echo(
        f"{given['output']}: {model.n_components} components from "
        f"{terminal.clock(provenance.seconds)} of sound, divergence {provenance.divergence:.3f} "
        f"per bin, in {terminal.clock(elapsed)} "
        f"({provenance.seconds / elapsed:.0f} × real time, {model.backend_})"
    )
