"""Render the page, and write it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ondes.atomic_file import check_destination, write_atomically
from ondes.report.content import ReportContent, Samples, Source, clock
from ondes.signal.stft import Stft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ondes.report.figures import Picture

__all__ = ["render", "write_report"]


@dataclass(frozen=True)
class Track:
    """A row of the page: its pictures, and a player where it has a sound."""

    id: str
    name: str
    note: str
    pictures: tuple[Picture, ...]
    sound: str = ""


def write_report(path: str | Path, content: ReportContent, *, force: bool = False) -> Path:
    """Write a report as one HTML file, complete or not at all.

    Parameters
    ----------
    path : str or Path
    content : ReportContent
    force : bool
        Whether an existing file may be replaced.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    FileError
        Where the file exists already and `force` is not given, or it cannot be written.
    ModuleNotFoundError
        Where matplotlib or jinja2 is missing.
    """
    check_destination(path, force)  # rendering takes seconds
    write_atomically(path, render(content).encode("utf-8"), force)
    return Path(path)


def render(content: ReportContent) -> str:
    """Render a report as HTML that needs no other file.

    Parameters
    ----------
    content : ReportContent

    Returns
    -------
    str

    Raises
    ------
    ModuleNotFoundError
        Where matplotlib or jinja2 is missing.
    """
    if not all(importlib.util.find_spec(name) for name in ("matplotlib", "jinja2")):
        raise ModuleNotFoundError(
            "A report needs matplotlib and jinja2: pip install 'ondes[report]'."
        )
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from ondes import __version__
    from ondes.report.figures import colour_scale, learning_curve
    from ondes.report.sounds import sound_uris

    style, script = _read("style.css"), _read("script.js")
    stems = [content.mixture, *(source.samples for source in content.sources)]
    sounds = sound_uris([*stems, *content.component_samples], content.sr)
    mixture, *sources = _stem_tracks(content, stems, sounds[: len(stems)])
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    page = environment.from_string(_read("template.html.j2")).render(
        content=content,
        version=__version__,
        duration=clock(content.seconds),
        mixture=mixture,
        sources=sources,
        components=_component_tracks(content, sounds[len(stems) :]),
        curves=[
            (name, picture)
            for name, curve in content.curves
            if (picture := learning_curve(name, curve)) is not None
        ],
        colours=colour_scale(),
        style=Markup(style),
        script=Markup(script),
        # Whatever a name contains, the browser runs this one script and loads nothing.
        policy=f"default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{_sha256(script)}'",
    )
    # File names may contain bytes that are not valid UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def _stem_tracks(
    content: ReportContent, stems: Sequence[Samples], sounds: Sequence[str]
) -> list[Track]:
    """The mixture, then its sources."""
    from ondes.report.figures import Timeline, spectrogram

    stft = Stft(content.n_fft, content.hop_length)
    timeline = Timeline(len(content.mixture), content.sr, stft)
    frames = [stft.power(samples) for samples in stems]
    reference = float(frames[0].max())
    names = ["Mixture", *(source.name for source in content.sources)]
    notes = ["as it was recorded", *(_describe_source(source) for source in content.sources)]
    return [
        Track(
            "mixture" if i == 0 else f"source-{i}",
            name,
            note,
            (spectrogram(name if i else "the mixture", power, timeline, reference),),
            sound,
        )
        for i, (name, note, power, sound) in enumerate(
            zip(names, notes, frames, sounds, strict=True)
        )
    ]


def _describe_source(source: Source) -> str:
    count = len(source.components)
    parts = [] if source.score is None else [f"SI-SDR {source.score:.1f} dB".replace(" -", " −")]
    if count:
        parts.append(f"{count} component{'s' if count > 1 else ''}")
    return " · ".join(parts)


def _component_tracks(content: ReportContent, sounds: Sequence[str]) -> list[Track]:
    """The components source by source, and within a source the loudest first."""
    from ondes.report.figures import Timeline, activation, spectrum

    timeline = Timeline(len(content.mixture), content.sr, Stft(content.n_fft, content.hop_length))
    powers = content.activations * content.dictionary.sum(axis=1)
    shares = powers.sum(axis=0) / (powers.sum() or 1)
    reference = float(powers.max(initial=0))
    owners = {i: n for n, source in enumerate(content.sources) for i in source.components}
    n_sources = len(content.sources)
    order = sorted(range(len(shares)), key=lambda i: (owners.get(i, n_sources), -shares[i]))
    tracks = []
    for i in order:
        name = f"Component {i}"
        owner = [content.sources[owners[i]].name] if i in owners else []
        tracks.append(
            Track(
                f"component-{i}",
                name,
                " · ".join([*owner, f"{shares[i]:.1%} of the power"]),
                (
                    spectrum(name.lower(), content.dictionary[i], content.sr),
                    activation(name.lower(), powers[:, i], timeline, reference),
                ),
                sounds[i] if sounds else "",
            )
        )
    return tracks


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
