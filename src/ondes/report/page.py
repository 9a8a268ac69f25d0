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
from ondes.report.content import Component, Explained, ReportContent, Sound, Track, clock

if TYPE_CHECKING:
    from ondes.report.figures import Picture

__all__ = ["render", "write_report"]


@dataclass(frozen=True)
class Row:
    """A row of the page: its pictures, and a player where it has a sound."""

    id: str
    name: str
    note: str
    pictures: tuple[Picture, ...]
    sound: Sound | None = None
    owner: int = 0  # the number of the source that a component belongs to
    owner_name: str = ""

    @property
    def uri(self) -> str:
        """The sound as a data URI."""
        assert self.sound is not None
        data = base64.b64encode(self.sound.data).decode("ascii")
        return f"data:{self.sound.media_type};base64,{data}"


def write_report(path: str | Path, content: ReportContent, *, force: bool = False) -> Path:
    """Write a report as one HTML file, complete or not at all."""
    check_destination(path, force)  # rendering takes seconds
    write_atomically(path, render(content).encode("utf-8"), force)
    return Path(path)


def render(content: ReportContent) -> str:
    """Render a report as HTML that needs no other file."""
    if not all(importlib.util.find_spec(name) for name in ("matplotlib", "jinja2")):
        raise ModuleNotFoundError(
            "A report needs matplotlib and jinja2: pip install 'ondes[report]'."
        )
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from ondes import __version__
    from ondes.report.figures import colour_scale

    style, script = _read("style.css"), _read("script.js")
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    components = _component_rows(content)
    page = environment.from_string(_read("template.html.j2")).render(
        content=content,
        version=__version__,
        duration=clock(content.seconds),
        tracks=_track_rows(content),
        components=components,
        component_hint=_describe_players(content),
        summary=_summary(content),
        has_scores=any(source.scores for source in content.sources),
        learning_title="How well the sound is explained" if content.explained else "Numbers",
        has_component_sounds=any(row.sound for row in components),
        bars=_bars(content.explained),
        verdict=_verdict(content.explained),
        colours=colour_scale(),
        style=Markup(style),
        script=Markup(script),
        # Whatever a name contains, the browser runs this one script and loads nothing.
        policy=f"default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{_sha256(script)}'",
    )
    # File names may contain bytes that are not valid UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def _track_rows(content: ReportContent) -> list[Row]:
    """The mixture, then its sources."""
    from ondes.report.figures import spectrogram

    reference = float(content.mixture.spectrogram.max(initial=0))
    rows = []
    for i, track in enumerate((content.mixture, *content.sources)):
        name = track.name if i else "the mixture"
        picture = spectrogram(name, track.spectrogram, content.seconds, content.sr, reference)
        note = _describe_source(track, content.mixture.power) if i else "as it was recorded"
        rows.append(
            Row(f"source-{i}" if i else "mixture", track.name, note, (picture,), track.sound)
        )
    return rows


def _summary(content: ReportContent) -> list[list[str]]:
    """Name, share of the power and, where they are known, SI-SDR before, after and their gain."""
    rows = []
    for source in content.sources:
        cells = [source.name, f"{source.power / (content.mixture.power or 1):.1%}"]
        if source.scores is not None:
            before, after = source.scores
            gain = f"{after - before:+.1f} dB".replace("-", "−")
            cells += [_decibels(before), _decibels(after), gain]
        elif any(other.scores for other in content.sources):
            cells += ["", "", ""]
        rows.append(cells)
    return rows


def _decibels(value: float) -> str:
    return f"{value:.1f} dB".replace("-", "−")


def _describe_source(source: Track, mixture_power: float) -> str:
    count = len(source.components)
    parts = [] if source.scores is None else [f"SI-SDR {_decibels(source.scores[1])}"]
    parts.append(_share(source.power, mixture_power))
    if count:
        parts.append(f"{count} component{'s' if count > 1 else ''}")
    if source.place is not None:
        parts.append(source.place)
    return " · ".join(parts)


def _share(power: float, mixture_power: float) -> str:
    return f"{power / (mixture_power or 1):.1%} of the mixture’s power"


def _component_rows(content: ReportContent) -> list[Row]:
    """The components source by source, and within a source the loudest first."""
    from ondes.report.figures import level, spectrum

    owners = {i: n for n, source in enumerate(content.sources) for i in source.components}
    n_sources = len(content.sources)
    reference = max((float(each.powers.max(initial=0)) for each in content.components), default=0)

    def place(component: Component) -> tuple[int, float]:
        return owners.get(component.index, n_sources), -component.power

    rows = []
    for component in sorted(content.components, key=place):
        name = f"Component {component.index}"
        owner = owners.get(component.index, n_sources)
        owner_name = content.sources[owner].name if owner < n_sources else ""
        rows.append(
            Row(
                f"component-{component.index}",
                name,
                _share(component.power, content.mixture.power),
                (
                    spectrum(name.lower(), component.spectrum, content.model_sr),
                    level(name.lower(), component.powers, content.seconds, reference),
                ),
                component.sound,
                owner,
                owner_name,
            )
        )
    return rows


def _describe_players(content: ReportContent) -> str:
    """What plays of the components, and why not more."""
    players = [each.sound for each in content.components if each.sound is not None]
    parts = ["Levels and shares are those of a component when it plays alone."]
    if players and len(players) < len(content.components):
        parts.append(
            f"Only the loudest {len(players)} of {len(content.components)} components have a "
            "player: more would make this page too large to open on a phone. In a shorter excerpt, "
            "all of them can have one."
        )
    seconds = max((sound.seconds for sound in players), default=content.seconds)
    if seconds < 0.99 * content.seconds:
        parts.append(
            f"Each player has the {seconds:.0f} s where its component is loudest, so that the page "
            "stays small."
        )
    return " ".join(parts)


def _bars(explained: Explained | None) -> list[tuple[str, str, float]]:
    """Name, value and length in percent of the bars that compare divergences."""
    if explained is None:
        return []
    values = {
        "these components": explained.components,
        "one average spectrum": explained.one_spectrum,
        "white noise": explained.flat,
    }
    largest = max(values.values()) or 1.0
    return [(name, f"{value:.3g}", 100 * value / largest) for name, value in values.items()]


def _verdict(explained: Explained | None) -> str:
    if explained is None or not explained.one_spectrum > 0:
        return ""
    gained = 1 - explained.components / explained.one_spectrum
    if gained < 0.05:
        return (
            "The components explain this sound no better than one average spectrum does: they "
            "were learned from too little of it, or from something else."
        )
    return (
        f"The error of the components is {1 - gained:.0%} of the error of one average spectrum. "
        "The smaller this is, the better the components describe the sound."
    )


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
