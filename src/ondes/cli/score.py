"""`ondes score`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ondes.cli import options, terminal

if TYPE_CHECKING:
    from ondes.signal.audio import RawFormat


@click.command(short_help="Measure how well a model explains recordings.")
@click.argument("files", nargs=-1, required=True)
@options.dictionaries(required=True, multiple=False)
@options.raw
@options.jobs
@options.as_json
def score(
    files: tuple[str, ...], dictionary: str, raw: RawFormat | None, jobs: int, as_json: bool
) -> int:
    """Measure how well a model explains FILES: the Itakura-Saito divergence per bin.

    Lower is better, and zero is perfect. On recordings that it did not learn from, this tells
    models of the same --sr, --n-fft and --silence apart. The last row is the mean over all frames.
    """
    from ondes.learning import divergence_of
    from ondes.signal.audio import AudioError

    model, _ = terminal.load_model(dictionary)
    model.set_params(n_jobs=jobs)
    recordings, n_failed = terminal.gather(files)
    rows: list[tuple[str, int, float]] = []
    with terminal.bar("scoring") as bar:
        for n, path in enumerate(recordings):
            bar.show(n, len(recordings), str(path))
            try:
                rows.append((str(path), *divergence_of(model, path, raw=raw)))
            except AudioError as error:
                bar.complain(str(error))
                n_failed += 1
    n_frames = sum(row[1] for row in rows)
    if not n_frames:
        terminal.complain("no sound is left to score.")
        return terminal.FAILED
    mean = sum(row[1] * row[2] for row in rows if row[1]) / n_frames
    if as_json:
        listed = [dict(zip(("file", "n_frames", "divergence"), row, strict=True)) for row in rows]
        total = {"n_frames": n_frames, "divergence": mean, "n_failed": n_failed}
        terminal.print_json({"model": dictionary, **total, "files": listed})
    else:
        shown = [(terminal.printable(name), str(n), f"{cost:.4f}") for name, n, cost in rows]
        shown.append(("all", str(n_frames), f"{mean:.4f}"))
        terminal.print_table(("file", "frames", "divergence"), shown)
    return terminal.SOME_FAILED if n_failed else terminal.DONE
