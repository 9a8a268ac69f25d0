"""What the page can ask for, by name; arguments are checked here, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ondes.studio import export
from ondes.studio.components import components_within
from ondes.studio.export import Download, Export, Rule
from ondes.studio.project import Span
from ondes.studio.session import Session

__all__ = ["perform", "rule_of", "within"]

Arguments = Mapping[str, Any]
Writing = Callable[[Export], Download]


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


def _noise(session: Session, given: Arguments) -> None:
    span = None
    if given.get("recording") is not None:
        recording = session.recording(str(given["recording"]))
        end = min(float(given["end"]), recording.seconds)
        span = Span(recording.id, float(given["start"]), end)
    session.do(lambda project: replace(project, noise=span))


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
    if not session.recordings:
        raise ValueError("Open a recording first.")
    title, prepare = _EXPORTS[what]
    kind = "txt" if what == "labels" else str(given["format"])
    session.export(title, kind, prepare(session, given))


def _stems(session: Session, given: Arguments) -> Writing:
    groups = [int(each) for each in given["groups"]]
    components, project = session.components(), session.project
    return lambda order: export.export_stems(order, components, project, groups)


def _mixed(session: Session, given: Arguments) -> Writing:
    components = session.components()
    gains = export.gains_of(session.project, session.mix, components.n_parts)
    return lambda order: export.export_mix(order, components, gains)


def _named(session: Session, given: Arguments) -> Writing:
    stems, names = session.stems(), [str(each) for each in given["names"]]
    return lambda order: export.export_named(order, stems, names)


def _named_mix(session: Session, given: Arguments) -> Writing:
    stems, mix = session.stems(), session.mix
    gains = {n: mix.factor(f"s{n}") for n in range(len(stems.names))}
    return lambda order: export.export_named_mix(order, stems, gains)


def _cleaned(session: Session, given: Arguments) -> Writing:
    cleaner, amount = session.cleaner(), session.mix.amount
    return lambda order: export.export_clean(order, cleaner, amount)


def _levels(session: Session, given: Arguments) -> Writing:
    components, every = session.components(), float(given["every"])
    rows = {str(name): _components(session, {"components": own}) for name, own in given["rows"]}
    return lambda order: export.export_levels(order, components, rows, every)


def _events(session: Session, given: Arguments) -> Writing:
    components, rule = session.components(), rule_of(session, given)
    return lambda order: export.export_events(order, components, rule)


def _labels(session: Session, given: Arguments) -> Writing:
    components, rule = session.components(), rule_of(session, given)
    return lambda order: export.export_labels(order, components, rule)


_EXPORTS: dict[str, tuple[str, Callable[[Session, Arguments], Writing]]] = {
    "stems": ("Exporting the groups", _stems),
    "mix": ("Exporting the mix", _mixed),
    "named": ("Exporting the stems", _named),
    "named mix": ("Exporting the mix", _named_mix),
    "clean": ("Exporting the voice", _cleaned),
    "levels": ("Exporting the levels", _levels),
    "events": ("Exporting the events", _events),
    "labels": ("Exporting the labels", _labels),
}


def rule_of(session: Session, given: Arguments) -> Rule:
    """The rule for events that the page has sent."""
    components = _components(session, given)
    if not components:
        raise ValueError("Choose a group or a sound that has components.")
    threshold, length, gap = (float(given[name]) for name in ("threshold", "length", "gap"))
    bands = [session.components().bands[each] for each in components]
    low, high = min(band[0] for band in bands), max(band[1] for band in bands)
    return Rule(str(given["name"]), tuple(components), threshold, length, gap, low, high)


def within(session: Session, given: Arguments) -> list[int]:
    """The components that make up a selection of the page."""
    span = Span(str(given["recording"]), float(given["start"]), float(given["end"]))
    recording, components = session.recording(span.recording), session.components()
    return components_within(components, recording, span, float(given["low"]), float(given["high"]))


def _learn_sound(session: Session, given: Arguments) -> None:
    span = Span(str(given["recording"]), float(given["start"]), float(given["end"]))
    session.learn_sound(span, (float(given["low"]), float(given["high"])), str(given["name"]))


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
    "noise": _noise,
    "mix": _mix,
    "amount": _amount,
    "close": lambda session, _: session.clear(),
    "undo": lambda session, _: session.undo(),
    "redo": lambda session, _: session.redo(),
    "cancel": lambda session, _: session.jobs.cancel(),
    "find": lambda session, given: session.find_sounds(
        int(given["components"]),
        int(given["groups"]),
        is_ultrasonic=bool(given.get("ultrasonic")),
        is_field=bool(given.get("field")),
    ),
    "propose": lambda session, given: session.propose(int(given["groups"])),
    "split further": lambda session, given: session.split_further(int(given["group"])),
    "learn sound": _learn_sound,
    "export": _export,
    "clean": lambda session, given: session.clean(given.get("model")),
    "separate": lambda session, given: session.separate(str(given["model"])),
}
