"""`ondes score`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.models import load_models, named_files
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.models.dictionary import Dictionary
    from ondes.models.trained_separator import TrainedSeparator
    from ondes.signal.locations import Location


@click.command(short_help="Measure how well a model explains recordings.")
@click.argument("files", nargs=-1, required=True)
@options.dictionaries(
    required=True, multiple=False, text="A model from `ondes learn` or `ondes train`."
)
@options.span
@options.raw
@options.compute
@options.as_json
def score(files: tuple[str, ...], dictionary: str, **given: Any) -> int:
    """Measure how well a model explains FILES, or how well a separator separates them.

    For a dictionary, this is the divergence per bin: lower is better, and zero is perfect. Use it
    to compare models that were learned with the same -k, frames and divergence, on recordings that
    none of them was learned from. The last row is the mean over all frames.

    For a trained separator, it is the signal-to-distortion ratio (SI-SDR) in decibels on random
    mixtures of recordings of each source: higher is better, and the mixture itself has about zero.

    \b
    ondes score held-out/ -d piano.ondes
    ondes score speech=lectures/ music=records/ -d talk.ondes
    """  # noqa: D301
    from ondes.models.dictionary import Dictionary

    compute = options.compute_settings(given)
    options.check_span(given)
    (model,) = load_models([f"model={dictionary}"]).values()
    if not isinstance(model, Dictionary):
        return _score_separator(model, dictionary, files, given, compute)
    model.with_compute(**compute)
    recordings, failures = terminal.find_recordings(files)
    n_files = len(recordings) + len(failures)
    rows: list[tuple[str, int, float]] = []
    with terminal.bar("scoring") as bar:
        for n, path in enumerate(recordings):
            bar.show(n, len(recordings), printable(str(path)))
            try:
                rows.append((str(path), *_divergence(model, path, given)))
            except FileError as error:
                bar.complain(str(error))
                failures.append(error)
    n_frames = sum(row[1] for row in rows)
    if not n_frames:
        terminal.complain("nothing is left to score: no recording has a non-silent frame.")
        return terminal.FAILED
    mean = sum(row[1] * row[2] for row in rows if row[1]) / n_frames
    if given["as_json"]:
        listed = [dict(zip(("file", "n_frames", "divergence"), row, strict=True)) for row in rows]
        total = {"n_files": n_files, "n_frames": n_frames, "divergence": mean}
        total |= terminal.listed(failures)
        terminal.print_json({"model": dictionary, **total, "files": listed})
    else:
        shown = [(printable(name), str(n), f"{cost:.4f}") for name, n, cost in rows]
        shown.append(("all", str(n_frames), f"{mean:.4f}"))
        terminal.print_table(("file", "frames", "divergence"), shown)
    return terminal.SOME_FAILED if failures else terminal.DONE


def _score_separator(
    separator: TrainedSeparator,
    path: str,
    files: tuple[str, ...],
    given: dict[str, Any],
    compute: dict[str, Any],
) -> int:
    import numpy as np

    from ondes.separation.evaluation import score_separation
    from ondes.signal.locations import with_span

    if given["raw"] is not None:
        raise click.UsageError(
            "--raw works with dictionaries only; convert the recordings to FLAC."
        )
    if not all("=" in each for each in files):
        wanted = " ".join(f"{printable(name)}=FILES" for name in separator.names)
        raise click.UsageError(
            f"{printable(path)} is a trained separator; give recordings of each source: {wanted}."
        )
    sources: dict[str, list[Any]] = {}
    for name, found in named_files(files).items():
        recordings, failures = terminal.find_recordings(found)
        if failures:
            return terminal.FAILED
        sources[name] = with_span(recordings, given["start"], given["end"])
    with terminal.bar("scoring") as bar:
        bar.show(0, None, "mixtures of " + ", ".join(map(printable, sources)))
        try:
            ratios = score_separation(separator, sources, **compute)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    n_mixtures = min(map(len, ratios.values()))
    middle = {name: np.quantile(each, [0.25, 0.5, 0.75]) for name, each in ratios.items()}
    if given["as_json"]:
        listed = {
            name: {"median": q[1], "quartiles": [q[0], q[2]], "all": ratios[name].tolist()}
            for name, q in middle.items()
        }
        terminal.print_json({"separator": path, "n_mixtures": n_mixtures, "si_sdr": listed})
    else:
        shown = [
            (printable(name), f"{q[1]:.1f}", f"{q[0]:.1f} to {q[2]:.1f}")
            for name, q in middle.items()
        ]
        terminal.print_table(("source", "SI-SDR, dB", "quartiles"), shown)
        terminal.say(f"{n_mixtures} mixtures at equal levels", err=True)
    return terminal.DONE


def _divergence(model: Dictionary, path: Location, given: dict[str, Any]) -> tuple[int, float]:
    """The number of non-silent frames in the part to score, and their mean divergence per bin."""
    if not given["start"] and given["end"] is None:
        return model.divergence(path, raw=given["raw"])
    from ondes.signal.frame_reader import active_frames
    from ondes.signal.recordings import open_span

    assert model.audio is not None
    part = {"start": given["start"], "end": given["end"], "raw": given["raw"]}
    n_frames, total = 0, 0.0
    with open_span(path, sr=model.audio.sr, **part) as blocks:
        for frames in active_frames(blocks, model.audio, blocks.own_sr):
            n_frames += len(frames)
            total -= float(model.learner.score_samples(frames).sum())
    return n_frames, total / n_frames if n_frames else float("nan")
