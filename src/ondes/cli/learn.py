"""`ondes learn`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ondes.cli import options, terminal
from ondes.cli.models import load_dictionary
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.models.dictionary import Dictionary
    from ondes.models.history import TrainingHistory

FIXED_BY_MODEL = (
    *("preset", "components", "sr", "n_fft", "hop_length", "delay", "fmax", "top_db", "batch_size"),
    *("spectrum", "beta_loss", "sparsity"),
)


@click.command(short_help="Learn a dictionary from recordings.")
@click.argument("files", nargs=-1, required=True)
@options.output("The model file to write.", required=True)
@click.option(
    "--preset",
    type=click.Choice(["separation", "paper"]),
    default="separation",
    show_default=True,
    help="The defaults: those listed below, or those of Lefèvre, Bach and Févotte (2011).",
)
@click.option(
    "-k",
    "--components",
    metavar="N",
    callback=options.as_components,
    help="Number of spectra in the dictionary, or auto: chosen from some frames.  [default: 128]",
)
@options.count("--passes", default=1, help="Number of passes over all recordings.")
@options.count("--sr", help="Sampling rate to resample to, in Hz.  [default: 16000]")
@options.count("--n-fft", help="Samples per frame.  [default: 240 ms, 3840 at 16000 Hz]")
@options.count("--hop-length", help="Samples between frames.  [default: a quarter of --n-fft]")
@options.delay
@click.option(
    "--fmax",
    type=click.FloatRange(0, min_open=True),
    metavar="HZ",
    help="The highest frequency that counts.  [default: 0.45 of --sr, which resampling leaves]",
)
@click.option(
    "--spectrum",
    type=click.Choice(["magnitude", "power"]),
    help="The values of a frame.  [default: magnitude]",
)
@click.option(
    "--beta-loss",
    metavar="NAME",
    callback=options.as_beta_loss,
    help="Divergence: itakura-saito, kullback-leibler, frobenius, or a number from 0 to 2.  "
    "[default: kullback-leibler]",
)
@click.option(
    "--sparsity",
    type=click.FloatRange(0),
    metavar="X",
    help="How strongly to prefer few active spectra at a time.  [default: 2]",
)
@options.count("--batch-size", help="Frames per update of the dictionary.  [default: 128]")
@options.top_db
@options.seed
@click.option(
    "--continue",
    "continued",
    type=click.Path(),
    metavar="MODEL",
    help="Start with this model, and learn from more recordings.",
)
@click.option("--resume", is_flag=True, help="Resume an interrupted run from its checkpoint.")
@click.option(
    "--checkpoint",
    type=click.Path(),
    metavar="FILE",
    help="The checkpoint of this run.  [default: OUTPUT.checkpoint]",
)
@click.option(
    "--checkpoint-every",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Time between two checkpoints.  [default: 60]",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Learn on a Dask cluster: tcp://HOST:8786, or local for -j processes on this machine.",
)
@options.count(
    "--shards", help="On a cluster: parts of each round; choose two per worker.  [default: 8]"
)
@options.span
@options.raw
@options.compute
@options.force
@options.as_json
@click.pass_context
def learn(ctx: click.Context, /, **given: Any) -> int:
    """Learn a dictionary from FILES: recordings, folders, glob patterns; - is standard input.

    Memory does not grow with the length of the recordings, and the order of FILES does not matter.
    Ctrl-C saves what was learned so far.

    To resume a run that was interrupted in any way, repeat the command with --resume: it ends with
    the same model as an uninterrupted run. If there is no checkpoint, --resume starts from the
    beginning; if the model is complete, it does nothing. The checkpoint is removed when the model
    has been written.

    \b
    ondes learn piano/ "more/**/*.flac" -k 48 -o piano.ondes
    ondes learn concert.mp3 --start 12:30 --end 15:00 -o cello.ondes
    ffmpeg -i URL -f wav - | ondes learn - -o radio.ondes
    """  # noqa: D301
    from ondes.atomic_file import check_destination, exclusive_writer

    output, checkpoint = Path(given["output"]), _checkpoint(given)
    _check_usage(ctx)
    may_exist = given["resume"] and given["continued"] != given["output"]
    check_destination(output, given["force"] or may_exist)
    if checkpoint is not None:
        check_destination(checkpoint, force=True)
    with exclusive_writer(output):
        return _learn_and_save(given, output, checkpoint)


def _chosen(given: dict[str, Any], recordings: Sequence[Any]) -> int:
    from ondes.learning.corpus import found
    from ondes.learning.dictionary_learning import components_for
    from ondes.learning.run import RunOptions

    options = RunOptions(random_state=given["seed"], raw=given["raw"])
    choice = components_for(found(recordings), options, _settings(given))
    terminal.complain(str(choice))
    return choice.n_components


def _checkpoint(given: dict[str, Any]) -> Path | None:
    from ondes.atomic_file import companion

    if (stream := _stream(given)) is not None:
        for name in ("resume", "checkpoint", "checkpoint_every"):
            if given[name] not in (None, False):
                option = name.replace("_", "-")
                raise click.UsageError(f"{stream} can be read only once; leave out --{option}.")
        return None
    if given["checkpoint"] == given["output"]:
        raise click.UsageError("--checkpoint and --output are the same file; name another one.")
    return Path(given["checkpoint"] or companion(given["output"], "", ".checkpoint"))


def _stream(given: dict[str, Any]) -> str | None:
    """What to call the stream among the recordings, if there is one."""
    from ondes.signal.survey import is_stream

    if "-" in given["files"]:
        return "Standard input"
    return "A pipe" if any(map(is_stream, given["files"])) else None


def _check_usage(ctx: click.Context) -> None:
    given = ctx.params
    options.check_span(given)
    is_part = given["start"] > 0 or given["end"] is not None
    if is_part and (stream := _stream(given)) is not None:
        raise click.UsageError(
            f"{stream} is always read from beginning to end; leave out --start and --end."
        )
    if given["passes"] > 1 and (stream := _stream(given)) is not None:
        raise click.UsageError(f"{stream} can be read only once; leave out --passes.")
    if given["components"] == "auto" and (stream := _stream(given)) is not None:
        raise click.UsageError(f"{stream} can be read only once; give -k a number.")
    if given["shards"] is not None and given["cluster"] is None:
        raise click.UsageError("--shards needs --cluster; give both, or leave it out.")
    if given["continued"] is not None:
        for name in FIXED_BY_MODEL:
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = name.replace("_", "-")
                raise click.UsageError(
                    f"With --continue, the model determines --{option}; leave it out."
                )


def _history(dictionary: Dictionary) -> TrainingHistory:
    assert dictionary.history is not None
    return dictionary.history


def _learn_and_save(given: dict[str, Any], output: Path, checkpoint: Path | None) -> int:
    from ondes.learning.run import Run, RunOptions
    from ondes.signal.locations import with_span

    is_auto = given["components"] == "auto"
    initial = _untrained(given | {"components": 1} if is_auto else given)
    recordings, failures = terminal.find_recordings(given["files"])
    if not recordings:
        terminal.complain("no recordings are left to learn from.")
        return terminal.FAILED
    recordings = with_span(recordings, given["start"], given["end"])
    if is_auto:
        given["components"] = _chosen(given, recordings)
        initial = _untrained(given)
    n_absent, start = len(failures), time.perf_counter()
    with terminal.bar("learning") as bar, terminal.warnings_shown_by(bar):

        def report(_: str, error: FileError) -> None:
            failures.append(error)
            bar.complain(str(error))

        chosen = _run_options(given) | {"checkpoint": checkpoint, "on_error": report}
        run = Run(
            initial,
            recordings,
            RunOptions(**chosen, progress=bar.show_learning, return_on_interrupt=True),
        )
        if given["resume"] and not given["force"] and output.exists():
            finished = load_dictionary(str(output))
            run.check_finished(output, finished)
            if _history(finished).stopped_by is None and not (checkpoint and checkpoint.exists()):
                bar.complain(f"{printable(str(output))} is complete; nothing is left to do.")
                _print_result(finished, 0.0, [])
                return terminal.DONE
        if checkpoint is not None and given["resume"] and not checkpoint.exists():
            where = printable(str(checkpoint))
            bar.complain(f"there is no {where} to resume from; starting from the beginning.")
        if checkpoint is not None and given["force"] and not given["resume"]:
            checkpoint.unlink(missing_ok=True)
        dictionary = run.learn()
    history = _history(dictionary)
    dictionary.history = history = replace(
        history, n_files=history.n_files + n_absent, n_failed=history.n_failed + n_absent
    )
    if not terminal.save(dictionary, output, given["force"] or given["resume"]):
        return terminal.FAILED
    _print_result(dictionary, time.perf_counter() - start, failures)
    if history.stopped_by is not None:
        can_resume = checkpoint is not None and checkpoint.exists()
        hint = "; --resume continues" if can_resume else ""
        where = printable(str(output))
        terminal.complain(f"interrupted; what was learned so far is in {where}{hint}.")
        return terminal.INTERRUPTED
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return terminal.SOME_FAILED if failures else terminal.DONE


def _run_options(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of `RunOptions` that options decide."""
    is_local = given["cluster"] == "local"
    return {
        "n_passes": given["passes"],
        "random_state": given["seed"],
        "raw": given["raw"],
        "checkpoint_every": given["checkpoint_every"],
        "resume": given["resume"],
        "cluster": given["cluster"],
        "n_workers": given["jobs"] if is_local and given["jobs"] > 0 else None,
        "n_shards": given["shards"],
    }


def _untrained(given: dict[str, Any]) -> Dictionary:
    from ondes.learning.dictionary_learning import continued, untrained

    if given["continued"] is not None:
        before = load_dictionary(given["continued"])
        return continued(before, **options.compute_settings(given))
    return untrained(**_settings(given))


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of `ondes.learn` that options decide."""
    same = ("preset", "sr", "n_fft", "hop_length", "delay", "fmax", "spectrum", "beta_loss")
    chosen = {name: given[name] for name in (*same, "sparsity", "batch_size")}
    chosen |= options.compute_settings(given)
    chosen |= {"n_components": given["components"], "n_passes": given["passes"]}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return chosen | {"random_state": given["seed"], "top_db": given["top_db"]}


def _print_result(dictionary: Dictionary, elapsed: float, failures: Sequence[FileError]) -> None:
    given = click.get_current_context().params
    history, backend = _history(dictionary), dictionary.learner.backend_
    assert dictionary.audio is not None
    result = {
        "model": given["output"],
        "n_components": dictionary.n_components,
        "n_bins": dictionary.components.shape[1],
        "sr": dictionary.audio.sr,
        "n_files": history.n_files,
        **terminal.listed(failures),
        "n_failed": history.n_failed,
        "n_frames": history.n_frames,
        "seconds": history.seconds,
        "divergence": history.divergence,
        "stopped_by": history.stopped_by,
        "backend": backend,
        "elapsed": elapsed,
    }
    if given["as_json"]:
        terminal.print_json(result)
        return
    # What was learned before this process counts for the model, but not for its speed.
    is_all_new = not given["resume"] and given["continued"] is None
    speed = f"{history.seconds / elapsed:.0f} × real time, " if is_all_new else ""
    n_passes = dictionary.learner.n_passes or 1
    passes = f" in all {n_passes} passes" if n_passes > 1 else ""
    terminal.say(
        f"{printable(given['output'])}: {dictionary.n_components} components from "
        f"{terminal.clock(history.seconds)} of audio{passes}, divergence {history.divergence:.3f} "
        f"per bin, in {terminal.clock(elapsed)} ({speed}{backend})"
    )
