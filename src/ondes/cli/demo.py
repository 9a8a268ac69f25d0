"""`ondes demo`."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.errors import FileError, printable

if TYPE_CHECKING:
    from ondes.learning.dictionary_learning import LearningProgress

N_COMPONENTS = 16
SETTINGS: dict[str, Any] = {"n_fft": 2048, "hop_length": 512, "n_passes": 5}


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
def demo(output: str, **given: Any) -> None:
    """Learn four instruments from one tune, separate them in another, and report the result.

    Both tunes are synthesised. SI-SDR measures in decibels how close a separated source is to the
    true one; the gain is the improvement over the unseparated mixture.
    """
    with terminal.bar("demo") as bar:
        rows, page = _run(Path(output), given, bar)
    if given["as_json"]:
        terminal.print_json({"si_sdr": rows, "folder": output, "report": page})
        return
    header = ("SI-SDR in dB", "mixture", "separated", "gain")
    cells = [[name, *(f"{db:.1f}" for db in scores.values())] for name, scores in rows.items()]
    terminal.print_table(header, cells)
    terminal.say("Both tunes are synthesised: real recordings are harder.")
    terminal.say(f"Recordings and models: {printable(output)}")
    if page is None:
        terminal.complain("no report was written, because that needs pip install 'ondes[report]'.")
    else:
        terminal.say(f"Report, to open in a browser: {printable(str(page))}")


def _run(
    folder: Path, given: dict[str, Any], bar: terminal.Bar
) -> tuple[dict[str, dict[str, float]], Path | None]:
    """SI-SDR of each source, and the report, unless the extra `report` is not installed."""
    from ondes.demo_scene import make_scene
    from ondes.learning.dictionary_learning import learn
    from ondes.report import build_report, describe_dictionaries, write_report
    from ondes.scores import si_sdr
    from ondes.separation import Sources, separate
    from ondes.signal.audio_writer import write_audio

    compute, force = options.compute_settings(given), given["force"]
    _make_folders(folder, force)
    bar.show(0.0, None, "synthesising two tunes")
    scene, other = (make_scene(given["seconds"], random_state=given["seed"] + i) for i in range(2))
    dictionaries = {}
    for name, stem in other.stems.items():
        write_audio(folder / "training" / f"{name}.wav", [stem], other.sr, force=force)
        dictionaries[name] = learn(
            folder / "training" / f"{name}.wav", N_COMPONENTS, sr=other.sr, **SETTINGS, **compute,
            progress=partial(_show_learning, bar, name),
        )  # fmt: skip
        dictionaries[name].save(folder / f"{name}.ondes", force)
    bar.show(0.0, None, "separating")
    write_audio(folder / "mixture.wav", [scene.mixture], scene.sr, force=force)
    sources = Sources.of(dictionaries)
    stems = separate(scene.mixture, sources, sr=scene.sr, **compute)
    scores: dict[str, dict[str, float]] = {}
    for name, stem in scene.stems.items():
        write_audio(folder / "stems" / f"{name}.wav", [stems[name]], scene.sr, force=force)
        before, after = si_sdr(stem, scene.mixture), si_sdr(stem, stems[name])
        scores[name] = {"mixture": before, "separated": after, "gain": after - before}
    if not (find_spec("matplotlib") and find_spec("jinja2")):
        return scores, None
    bar.show(0.0, None, "writing the report")
    content = build_report(
        scene.mixture, sources, title="The demo of ondes: a synthesised tune", stems=stems,
        scores={name: (each["mixture"], each["separated"]) for name, each in scores.items()},
        **describe_dictionaries(dictionaries), **compute,
    )  # fmt: skip
    return scores, write_report(folder / "report.html", content, force=force)


def _show_learning(bar: terminal.Bar, name: str, progress: LearningProgress) -> None:
    bar.show(progress.seconds_done, progress.seconds_total, f"learning {name}")


def _make_folders(folder: Path, force: bool) -> None:
    from ondes.atomic_file import check_destination
    from ondes.demo_scene import LEVELS

    files = [f"{where}/{name}.wav" for where in ("training", "stems") for name in LEVELS]
    files += ["mixture.wav", "report.html", *(f"{name}.ondes" for name in LEVELS)]
    for path in filter(Path.exists, [folder / name for name in files]):
        check_destination(path, force)
    try:
        for each in ("training", "stems"):
            (folder / each).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be written ({error.strerror})") from error
