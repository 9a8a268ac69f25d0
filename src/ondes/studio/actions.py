"""What the page can ask for, by name; arguments are checked here, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ondes.studio import export, field
from ondes.studio.export import Download
from ondes.studio.jobs import Progress
from ondes.studio.project import Span
from ondes.studio.recordings import Recording
from ondes.studio.session import Session

__all__ = ["perform", "rule_of"]

Arguments = Mapping[str, Any]
Export = Callable[[Path, Progress], Download]

SHORTEST_CELL, LONGEST_CELL = 0.05, 3600.0  # seconds


def perform(session: Session, name: str, arguments: Arguments) -> None:
    """Perform one action; ValueError where there is none of this name, or it cannot be done."""
    if name not in _ACTIONS:
        raise ValueError(f"The studio has no action {name!r}; reload the page.")
    try:
        _ACTIONS[name](session, arguments)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"The action {name!r} is incomplete; reload the page.") from error


def _move(session: Session, given: Arguments) -> None:
    components = _components(session, given)
    to = given["group"]
    if to == "new":
        name = given.get("name")
        session.do(lambda project: project.with_new_group(components, name and str(name)))
    else:
        session.do(lambda project: project.moved(components, None if to is None else int(to)))


def _rename(session: Session, given: Arguments) -> None:
    session.do(lambda project: project.renamed(int(given["group"]), str(given["name"])))


def _confirm(session: Session, given: Arguments) -> None:
    group = given.get("group")
    session.do(lambda project: project.confirmed(None if group is None else int(group)))


def _merge(session: Session, given: Arguments) -> None:
    session.do(lambda project: project.merged(int(given["into"]), int(given["other"])))


def _split(session: Session, given: Arguments) -> None:
    components = _components(session, given)
    session.do(lambda project: project.split(int(given["group"]), components))


def _remove(session: Session, given: Arguments) -> None:
    session.do(lambda project: project.without(int(given["group"])))


def _ungroup_all(session: Session, given: Arguments) -> None:
    session.do(lambda project: replace(project, groups=()))


def _select(kind: str) -> Callable[[Session, Arguments], None]:
    def action(session: Session, given: Arguments) -> None:
        span = None
        if given.get("recording") is not None:
            recording = session.recording(str(given["recording"]))
            end = min(float(given["end"]), recording.seconds)
            span = Span(recording.id, float(given["start"]), end)
        change: dict[str, Any] = {kind: span}
        session.do(lambda project: replace(project, **change))

    return action


def _mix(session: Session, given: Arguments) -> None:
    changes = {name: given[name] for name in ("gain", "mute", "solo") if name in given}
    session.set_mix(lambda mix: mix.changed(str(given["key"]), **changes))


def _amount(session: Session, given: Arguments) -> None:
    amount = min(max(float(given["amount"]), 0.0), 60.0)
    session.set_mix(lambda mix: replace(mix, amount=amount))


def _export(session: Session, given: Arguments) -> None:
    what = str(given["what"])
    if what not in _EXPORTS:
        raise ValueError("Choose what to export.")
    title, prepare = _EXPORTS[what]
    session.export(title, prepare(session, given))


def _stems(session: Session, given: Arguments) -> Export:
    groups = [int(each) for each in given["groups"]]
    facts = _recordings(session), session.components(), session.project, groups
    return lambda *last: export.export_stems(*facts, str(given["format"]), *last)


def _heard(session: Session, given: Arguments) -> Export:
    components = session.components()
    gains = export.gains_of(session.project, session.mix, components.n_parts)
    facts = _recordings(session), components, gains
    return lambda *last: export.export_mix(*facts, str(given["format"]), *last)


def _clean(session: Session, given: Arguments) -> Export:
    facts = _recordings(session), session.cleaner(), session.mix.amount
    return lambda *last: export.export_clean(*facts, str(given["format"]), *last)


def _levels(session: Session, given: Arguments) -> Export:
    facts = _recordings(session), session.components(), session.project, _every(given)
    return lambda *last: field.export_levels(*facts, str(given["format"]), *last)


def _events(session: Session, given: Arguments) -> Export:
    facts = _recordings(session), session.components(), rule_of(session, given), _every(given)
    return lambda *last: field.export_events(*facts, str(given["format"]), *last)


def _labels(session: Session, given: Arguments) -> Export:
    facts = _recordings(session), session.components(), rule_of(session, given), _every(given)
    return lambda *last: field.export_labels(*facts, *last)


_EXPORTS: dict[str, tuple[str, Callable[[Session, Arguments], Export]]] = {
    "stems": ("Exporting the groups", _stems),
    "mix": ("Exporting the mix", _heard),
    "clean": ("Exporting the voice", _clean),
    "levels": ("Exporting the levels", _levels),
    "events": ("Exporting the events", _events),
    "labels": ("Exporting the labels", _labels),
}


def rule_of(session: Session, given: Arguments) -> field.Rule:
    """The rule for events that the page has sent."""
    components = _components(session, given)
    if not components:
        raise ValueError("Choose a group or a sound that has components.")
    threshold, *seconds = (float(given[name]) for name in ("threshold", "length", "gap"))
    return field.Rule(str(given["name"]), tuple(components), threshold, *seconds)


def _every(given: Arguments) -> float:
    every = float(given["every"])
    if not SHORTEST_CELL <= every <= LONGEST_CELL:
        raise ValueError(f"A table has one row per {SHORTEST_CELL:g} to {LONGEST_CELL:g} s.")
    return every


def _recordings(session: Session) -> list[Recording]:
    return list(session.recordings.values())


def _learn_sound(session: Session, given: Arguments) -> None:
    span = Span(str(given["recording"]), float(given["start"]), float(given["end"]))
    session.learn_sound(span, str(given["name"]))


def _components(session: Session, given: Arguments) -> list[int]:
    n = session.components().n_parts
    components = [int(each) for each in given["components"]]
    if not all(0 <= each < n for each in components):
        raise ValueError("That component no longer exists; choose another one.")
    return components


_ACTIONS: dict[str, Callable[[Session, Arguments], object]] = {
    "move": _move,
    "rename": _rename,
    "confirm": _confirm,
    "merge": _merge,
    "split": _split,
    "remove": _remove,
    "ungroup": _ungroup_all,
    "noise": _select("noise"),
    "voice": _select("voice"),
    "mix": _mix,
    "amount": _amount,
    "close": lambda session, _: session.clear(),
    "undo": lambda session, _: session.undo(),
    "redo": lambda session, _: session.redo(),
    "cancel": lambda session, _: session.jobs.cancel(),
    "find": lambda session, given: session.find_sounds(
        int(given["components"]), int(given["groups"]), bool(given.get("ultrasonic"))
    ),
    "propose": lambda session, given: session.propose(int(given["groups"])),
    "split further": lambda session, given: session.split_further(int(given["group"])),
    "learn sound": _learn_sound,
    "export": _export,
    "clean": lambda session, _: session.clean(),
}
