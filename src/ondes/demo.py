"""A first taste: learn four instruments from one tune, and separate them in another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ondes.excerpt import describe, facts
from ondes.learning import LearningProgress, learn
from ondes.model_file import save
from ondes.report import write_report
from ondes.scene import make_scene
from ondes.scores import si_sdr
from ondes.separation import Sources, separate
from ondes.signal.audio import AudioError, write_audio

__all__ = ["DemoResult", "run_demo"]

N_COMPONENTS = 16
SETTINGS: dict[str, Any] = {"n_fft": 2048, "hop_length": 512, "passes": 5}


@dataclass(frozen=True)
class DemoResult:
    """What the demo achieved.

    Attributes
    ----------
    mixture_scores, separated_scores : dict of str to float
        SI-SDR in dB of each source, if the mixture is taken for it, and as separated.
    folder : Path
        Where the sounds and the models are.
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
    seed: int = 0,
    force: bool = False,
    progress: Callable[[str, LearningProgress | None], object] | None = None,
    **settings: Any,
) -> DemoResult:
    """Learn each stem of one scene, separate the mixture of another, and report.

    Parameters
    ----------
    folder : str or Path
        To write to.
    seconds : float
        Length of either scene.
    seed : int
        Of the scene that is separated; the one learned from has the next.
    force : bool
        Whether files in the folder may be replaced.
    progress : callable, optional
        Called with what is being done and a `LearningProgress` or None.
    **settings
        `backend` and `n_jobs` of `OnlineISNMF`.
    """
    place = Path(folder)
    if place.exists() and not force and (not place.is_dir() or any(place.iterdir())):
        raise AudioError(place, "exists already; choose another folder, or --force")
    (place / "stems").mkdir(parents=True, exist_ok=True)
    (place / "lesson").mkdir(exist_ok=True)

    def tell(step: str, where: LearningProgress | None = None) -> None:
        if progress is not None:
            progress(step, where)

    tell("playing two tunes")
    lesson, scene = make_scene(seconds, seed=seed + 1), make_scene(seconds, seed=seed)
    models = {}
    for name, stem in lesson.stems.items():
        path = place / "lesson" / f"{name}.wav"
        write_audio(path, [stem], lesson.sr, force=force)
        models[name] = learn(
            path, N_COMPONENTS, sr=lesson.sr, **SETTINGS, **settings,
            progress=partial(tell, f"learning {name}"),
        )  # fmt: skip
        save(models[name], place / f"{name}.ondes", force)
    tell("separating")
    write_audio(place / "mixture.wav", [scene.mixture], scene.sr, force=force)
    sources = Sources.of(models)
    stems = separate(scene.mixture, sources, sr=scene.sr, **settings)
    for name, stem in stems.items():
        write_audio(place / "stems" / f"{name}.wav", [stem], scene.sr, force=force)
    before = {name: si_sdr(stem, scene.mixture) for name, stem in scene.stems.items()}
    after = {name: si_sdr(stem, stems[name]) for name, stem in scene.stems.items()}
    report = None
    if find_spec("matplotlib") and find_spec("jinja2"):
        tell("writing the report")
        gains = {name: after[name] - before[name] for name in after}
        numbers = tuple((f"gain of {name}", f"{gain:+.1f} dB") for name, gain in gains.items())
        content = describe(
            scene.mixture, sources, title="The demo of ondes", stems=stems, scores=after,
            **facts(models) | {"numbers": numbers}, **settings,
        )  # fmt: skip
        report = write_report(place / "report.html", content, force=force)
    return DemoResult(before, after, place, report)
