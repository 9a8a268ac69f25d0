"""Tables of what sounds when: levels, events, and labels for Audacity."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ondes.separation.sources import Sources
from ondes.studio.components import Components
from ondes.studio.export import Download, free_name
from ondes.studio.jobs import Progress
from ondes.studio.project import Project
from ondes.studio.recordings import Recording
from ondes.tables import (
    Event,
    LevelBlock,
    check_table,
    clock_time,
    find_events,
    recording_levels,
    rows_of_block,
    rows_of_events,
    table_writer,
    write_labels,
)

__all__ = [
    "Rule",
    "events_of",
    "export_events",
    "export_labels",
    "export_levels",
    "levels_as_bytes",
]

LOWEST_DB, STEPS_PER_DB = -120.0, 2.0  # as in pictures.py
TABLES = ("csv", "parquet", "npz")
MAX_SHOWN = 2000


@dataclass(frozen=True)
class Rule:
    """What counts as an event: some components together, louder than a threshold.

    Parameters
    ----------
    name : str
    components : tuple of int
    threshold : float
        In decibels re full scale.
    min_length, min_gap : float
        In seconds.
    """

    name: str
    components: tuple[int, ...]
    threshold: float
    min_length: float = 0.0
    min_gap: float = 0.0


def events_of(components: Components, rule: Rule) -> list[tuple[str, Event]]:
    """The events in all recordings, each with its recording's id; at the steps of `Heard`."""
    return [
        (number, event)
        for number, heard in components.heard.items()
        for event in heard.events(
            number, rule.name, rule.components, rule.threshold, rule.min_length, rule.min_gap
        )
    ]


def levels_as_bytes(components: Components, recording: str) -> bytes:
    """Levels of all components in half decibels above -120, and oddness as float32."""
    heard = components.heard[recording]
    levels = np.clip((heard.levels - LOWEST_DB) * STEPS_PER_DB, 0, 255).astype(np.uint8)
    data: bytes = heard.oddness.astype("<f4").tobytes() + levels.tobytes()
    return data


def export_levels(
    recordings: Sequence[Recording],
    components: Components,
    project: Project,
    every: float,
    kind: str,
    folder: Path,
    progress: Progress,
) -> Download:
    """The level of each group and "rest", or of each sound where there are no groups."""
    path = folder / f"levels.{_checked(kind)}"
    sources, by = _rows(components, project)
    with table_writer(path, by) as table:
        for block in _blocks(recordings, sources, by, every, progress):
            table.write(rows_of_block(block))
    return Download(path, path.name)


def export_events(
    recordings: Sequence[Recording],
    components: Components,
    rule: Rule,
    every: float,
    kind: str,
    folder: Path,
    progress: Progress,
) -> Download:
    """One row for each event."""
    path = folder / f"events.{_checked(kind)}"
    with table_writer(path, "source") as table:
        for recording in recordings:
            blocks = list(_rule_blocks([recording], components, rule, every, progress))
            if blocks:
                table.write(rows_of_events(_found(blocks, rule), blocks[0]))
    return Download(path, path.name)


def export_labels(
    recordings: Sequence[Recording],
    components: Components,
    rule: Rule,
    every: float,
    folder: Path,
    progress: Progress,
) -> Download:
    """A label track for each recording; several come as one archive."""
    taken: set[str] = set()
    files: list[Download] = []
    for recording in recordings:
        blocks = _rule_blocks([recording], components, rule, every, progress)
        name = free_name(Path(recording.name).stem, taken)
        path = folder / f"{len(files)}.txt"
        write_labels(path, _found(blocks, rule))
        files.append(Download(path, f"{name}.txt"))
    if len(files) == 1:
        return files[0]
    path = folder / "labels.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file.path, file.name)
    return Download(path, path.name)


def _found(blocks: Iterator[LevelBlock] | Sequence[LevelBlock], rule: Rule) -> list[Event]:
    found = find_events(blocks, rule.threshold, min_length=rule.min_length, min_gap=rule.min_gap)
    return [event for event in found if event.name == rule.name]


def _rows(components: Components, project: Project) -> tuple[Sources, str]:
    groups = {group.name: group.components for group in project.groups if group.components}
    if not groups:
        return components.sources, "component"
    return Sources.from_components(components.dictionary, groups), "source"


def _rule_blocks(
    recordings: Sequence[Recording],
    components: Components,
    rule: Rule,
    every: float,
    progress: Progress,
) -> Iterator[LevelBlock]:
    """The levels of the rule's components together, exactly as their sound would be."""
    sources = Sources.from_components(components.dictionary, {rule.name: rule.components})
    for block in _blocks(recordings, sources, "source", every, progress):
        own = block.names.index(rule.name)
        yield replace(block, names=(rule.name,), levels=block.levels[:, own : own + 1])


def _blocks(
    recordings: Sequence[Recording], sources: Sources, by: str, every: float, progress: Progress
) -> Iterator[LevelBlock]:
    total, done = sum(recording.seconds for recording in recordings), 0.0
    for recording in recordings:
        for block in recording_levels(recording.readable, sources, by=by, every=every):
            if len(block):
                progress(min(1.0, (done + float(block.end[-1])) / total))
            yield replace(block, recording=recording.name, clock=clock_time(recording.name))
        done += recording.seconds


def _checked(kind: str) -> str:
    if kind not in TABLES:
        raise ValueError("Tables are CSV, Parquet or NPZ.")
    check_table(f"table.{kind}")
    return kind
