"""The demo: learn four instruments from one tune, and separate them in another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ondes.atomic_file import check_destination
from ondes.errors import FileError
from ondes.learning import LearningProgress, learn
from ondes.report import build_report, describe_dictionaries, write_report
from ondes.scene import LEVELS, make_scene
from ondes.scores import si_sdr
from ondes.separation import Sources, separate
from ondes.signal.audio_writer import write_audio

__all__ = ["DemoResult", "run_demo"]

N_COMPONENTS = 16
SETTINGS: dict[str, Any] = {"n_fft": 2048, "hop_length": 512, "n_passes": 5}


@dataclass(frozen=True)
class DemoResult:
    """What the demo achieved.

    Attributes
    ----------
    mixture_scores, separated_scores : dict of str to float
        SI-SDR of each source in dB: of the mixture taken as its estimate, and as separated.
    folder : Path
        Where the recordings and the dictionaries are.
    report : Path or None
        The page; None where the extra `report` is not installed.
    """

    mixture_scores: dict[str, float]
    separated_scores: dict[str, float]
    folder: Path
    report: Path | None


def run_demo(
    folder: str | Path,
    *,
    seconds: float = 24.0,
    random_state: int = 0,
    force: bool = False,
    progress: Callable[[str, LearningProgress | None], object] | None = None,
    **compute: Any,
) -> DemoResult:
    """Learn each stem of one scene, separate the mixture of another, and write a report.

    Parameters
    ----------
    folder : str or Path
        The folder to write to.
    seconds : float
        Length of each of the two scenes.
    random_state : int
        Decides the tune that is separated; the one to learn from has the next number.
    force : bool
        Whether existing files may be replaced.
    progress : callable, optional
        Called with the current step, and a `LearningProgress` or None.
    **compute
        `backend`, `device` and `n_jobs` of `OnlineNMF`.

    Raises
    ------
    FileError
        Where a file exists already and `force` is not given, or it cannot be written.
    """
    folder = Path(folder)
    training, separated = folder / "training", folder / "stems"
    page = folder / "report.html"
    stem_files = [where / f"{name}.wav" for where in (training, separated) for name in LEVELS]
    models = [folder / f"{name}.ondes" for name in LEVELS]
    for path in filter(Path.exists, [folder / "mixture.wav", page, *stem_files, *models]):
        check_destination(path, force)
    try:
        for each in (training, separated):
            each.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be written ({error.strerror})") from error

    def report(step: str, where: LearningProgress | None = None) -> None:
        if progress is not None:
            progress(step, where)

    report("synthesising two tunes")
    scene, other = (make_scene(seconds, random_state=random_state + i) for i in range(2))
    dictionaries = {}
    for name, stem in other.stems.items():
        write_audio(training / f"{name}.wav", [stem], other.sr, force=force)
        dictionaries[name] = learn(
            training / f"{name}.wav", N_COMPONENTS, sr=other.sr, **SETTINGS, **compute,
            progress=partial(report, f"learning {name}"),
        )  # fmt: skip
        dictionaries[name].save(folder / f"{name}.ondes", force)
    report("separating")
    write_audio(folder / "mixture.wav", [scene.mixture], scene.sr, force=force)
    sources = Sources.of(dictionaries)
    stems = separate(scene.mixture, sources, sr=scene.sr, **compute)
    for name, stem in stems.items():
        write_audio(separated / f"{name}.wav", [stem], scene.sr, force=force)
    before = {name: si_sdr(stem, scene.mixture) for name, stem in scene.stems.items()}
    after = {name: si_sdr(stem, stems[name]) for name, stem in scene.stems.items()}
    if not (find_spec("matplotlib") and find_spec("jinja2")):
        return DemoResult(before, after, folder, None)
    report("writing the report")
    gains = tuple((f"gain of {name}", f"{after[name] - before[name]:+.1f} dB") for name in after)
    texts = describe_dictionaries(dictionaries) | {"numbers": gains}
    content = build_report(
        scene.mixture, sources, title="The demo of ondes", stems=stems, scores=after, **texts,
        **compute,
    )  # fmt: skip
    return DemoResult(before, after, folder, write_report(page, content, force=force))
