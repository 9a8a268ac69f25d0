"""Files to take away: stems that sum to the recording, the mix, a clean voice, and tables."""

from __future__ import annotations

import contextlib
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError
from ondes.models.model import Model
from ondes.separation.separator import Separator
from ondes.signal.audio_writer import AudioWriter
from ondes.signal.recordings import open_blocks
from ondes.studio.cleaning import Cleaner
from ondes.studio.components import Components
from ondes.studio.jobs import Progress
from ondes.studio.playback import separator
from ondes.studio.project import Mix, Project
from ondes.studio.recording import Recording
from ondes.studio.stems import PartLevels, Stems
from ondes.tables import (
    OF_EVENTS,
    Event,
    LevelBlock,
    check_table,
    find_events,
    rows_of_block,
    rows_of_events,
    table_writer,
    write_labels,
)

__all__ = [
    "Download",
    "Export",
    "Rule",
    "events_of",
    "export_clean",
    "export_events",
    "export_labels",
    "export_levels",
    "export_mix",
    "export_named",
    "export_named_mix",
    "export_stems",
    "gains_of",
    "levels_as_bytes",
]

FORMATS, TABLES = ("wav", "flac"), ("csv", "parquet", "npz")
EVENTS = dict.fromkeys(TABLES) | {"raven": "txt", "kaleidoscope": "csv"}  # and their suffixes
LOWEST_DB, STEPS_PER_DB = -120.0, 2.0  # as in tiles.py
Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Download:
    """A file that the page may fetch once it is ready."""

    path: Path
    name: str


@dataclass(frozen=True)
class Export:
    """What is written, how, and where.

    Parameters
    ----------
    recordings : sequence of Recording
    kind : str
        The format, as a suffix.
    folder : Path
    progress : Progress
    paths : mapping of str to Path
        Where recordings lie that were not dropped onto the page.
    """

    recordings: Sequence[Recording]
    kind: str
    folder: Path
    progress: Progress
    paths: Mapping[str, Path] = field(default_factory=dict)

    def name(self, what: str) -> str:
        """The name of all of the export: of which recordings, and what it holds."""
        first, *others = self.recordings
        more = f" and {len(others)} more" if others else ""
        return f"{_safe(Path(first.name).stem)}{more} - {what}"

    def together(self, files: Sequence[Download], what: str) -> Download:
        """One file as it is; several as one archive."""
        if len(files) == 1:
            return files[0]
        path = self.folder / "all.zip"
        kind = zipfile.ZIP_DEFLATED if self.kind == "txt" else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w", kind) as archive:
            for file in files:
                archive.write(file.path, file.name)
                file.path.unlink()
        return Download(path, f"{self.name(what)}.zip")


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
    low, high : float
        Where the components lie, in hertz.
    """

    name: str
    components: tuple[int, ...]
    threshold: float
    min_length: float = 0.0
    min_gap: float = 0.0
    low: float = math.nan
    high: float = math.nan


# ---- sounds ----


def export_stems(
    export: Export, components: Components, project: Project, groups: Sequence[int]
) -> Download:
    """The chosen groups and "rest", each a file at the recording's own rate and channels."""
    chosen = {group.name: group.components for group in map(project.group, groups)}
    chosen = {name: members for name, members in chosen.items() if members}
    if not chosen:
        raise ValueError("Choose at least one group that has components in it.")
    sources = components.grouped(chosen)
    parts = {name: itemgetter(name) for name in sources.names}
    return _written(export, sources, parts, "groups")


def export_named(export: Export, stems: Stems, names: Sequence[str]) -> Download:
    """The chosen stems, each a file at the recording's own rate and channels."""
    if not names or not set(names) <= set(stems.names):
        raise ValueError("Choose at least one stem.")
    return _written(export, stems.model, {name: itemgetter(name) for name in names}, "stems")


def export_named_mix(export: Export, stems: Stems, gains: Mapping[int, float]) -> Download:
    """What is heard of the stems: each with its gain, as one file per recording."""

    def mixed(blocks: Mapping[str, Samples]) -> Samples:
        weighted = [np.float32(gains[n]) * samples for n, samples in enumerate(blocks.values())]
        total: Samples = np.sum(weighted, axis=0, dtype=np.float32)
        return total

    return _written(export, stems.model, {"mix": mixed}, "mix")


def export_mix(export: Export, components: Components, gains: Mapping[int, float]) -> Download:
    """What is heard: every component with its gain, as one file per recording."""
    named, sources = (
        {str(n): gains.get(n, 1.0) for n in range(components.n_parts)},
        components.model,
    )
    if sources.exponent == 1:  # the masks of components add up, so those of one gain are one source
        members: dict[str, list[int]] = {}
        for name, gain in named.items():
            members.setdefault(str(round(gain, 6)), []).append(int(name))
        named, sources = {name: float(name) for name in members}, components.grouped(members)

    def mixed(blocks: Mapping[str, Samples]) -> Samples:
        weighted = [np.float32(named[name]) * samples for name, samples in blocks.items()]
        total: Samples = np.sum(weighted, axis=0, dtype=np.float32)
        return total

    return _written(export, sources, {"mix": mixed}, "mix")


def export_clean(export: Export, cleaner: Cleaner, amount: float) -> Download:
    """The voice, and the noise reduced by `amount` decibels."""
    gain = np.float32(10 ** (-amount / 20))

    def mixed(blocks: Mapping[str, Samples]) -> Samples:
        voice = list(blocks.values())[cleaner.voice]
        everything: Samples = np.sum(list(blocks.values()), axis=0, dtype=np.float32)
        return voice + gain * (everything - voice)

    return _written(export, cleaner.model, {"clean": mixed}, "clean")


def gains_of(project: Project, mix: Mix, n_components: int) -> dict[int, float]:
    """The factor of each component, as the page's player has it.

    Examples
    --------
    >>> project = Project(model=0).with_new_group([0, 1], "bass")
    >>> gains_of(project, Mix().changed("g1", gain=-20.0).changed("c1", mute=True), 3)
    {0: 0.1, 1: 0.0, 2: 1.0}
    """
    owners = [project.owner(index) for index in range(n_components)]
    return {
        index: mix.factor(f"c{index}", *([] if owner is None else [f"g{owner.id}"]))
        for index, owner in enumerate(owners)
    }


def _written(
    export: Export,
    model: Model,
    parts: Mapping[str, Callable[[Mapping[str, Samples]], Samples]],
    what: str,
) -> Download:
    if export.kind not in FORMATS:
        raise ValueError("Sounds are exported as WAV or FLAC.")
    total, done = sum(recording.seconds for recording in export.recordings), 0.0
    files: list[Download] = []
    names: set[str] = set()
    for recording in export.recordings:
        with contextlib.ExitStack() as stack:
            writers = {}
            for part in parts:
                name = _free_name(f"{Path(recording.name).stem} - {part}", names)
                path = export.folder / f"{len(files)}.{export.kind}"
                files.append(Download(path, f"{name}.{export.kind}"))
                facts = recording.sr, recording.channels
                writer = AudioWriter(path, *facts, n_samples=recording.n_samples)
                writers[part] = stack.enter_context(writer)
            for blocks in _separated(recording, separator(model, recording.sr)):
                for part, writer in writers.items():
                    writer.write(parts[part](blocks))
                done += len(next(iter(blocks.values()))) / recording.sr
                export.progress(min(1.0, done / total))
    return export.together(files, what)


def _separated(recording: Recording, parts: Separator) -> Iterator[dict[str, Samples]]:
    """Blocks of the original file, not of a decoded copy."""
    try:
        with open_blocks(recording.path) as blocks:
            for block in blocks:
                yield parts.push(block)
    except FileError as error:
        raise FileError(recording.name, error.reason) from error
    yield parts.flush()


def _safe(name: str) -> str:
    """A file name that any system takes."""
    return re.sub(r'[<>:"/\\|?*\x00-\x1f]|^\.+', "_", name).strip(" .")[:120] or "_"


def _free_name(name: str, taken: set[str]) -> str:
    safe = _safe(name)
    numbered = (safe, *(f"{safe} {n}" for n in range(2, len(taken) + 3)))
    free = next(each for each in numbered if each.casefold() not in taken)
    taken.add(free.casefold())
    return free


# ---- tables: what the page shows, to the digit ----


def levels_as_bytes(own: PartLevels) -> bytes:
    """Levels of all components in half decibels above -120, and novelty as float32."""
    levels = np.clip((own.levels - LOWEST_DB) * STEPS_PER_DB, 0, 255).astype(np.uint8)
    data: bytes = own.novelty.astype("<f4").tobytes() + levels.tobytes()
    return data


def events_of(components: Components, rule: Rule) -> list[tuple[str, Event]]:
    """The events in all recordings, each with its recording's id."""
    return [
        (number, event)
        for number, own in components.levels.items()
        for event in _found(_rule_block(number, own, rule), rule)
    ]


def export_levels(
    export: Export, components: Components, rows: Mapping[str, Sequence[int]], every: float
) -> Download:
    """The level of each row that the page shows, over cells of a whole number of its steps."""
    path = _table(export)
    with table_writer(path, "source") as table:
        for recording in export.recordings:
            own = components.levels[recording.id]
            n = round(every / own.every)
            if n < 1 or abs(n * own.every - every) > 1e-6:
                raise ValueError(f"The levels have steps of {own.every:g} s; take a multiple.")
            block = _block(recording.name, own, rows)
            edges = np.arange(0, len(block), n)
            counts = np.diff([*edges, len(block)])
            power = np.add.reduceat(10 ** (block.levels / 10), edges) / counts[:, None]
            coarse = replace(
                block,
                start=block.start[edges],
                end=np.append(block.start[edges[1:]], recording.seconds),
                levels=10 * np.log10(power),
                novelty=np.add.reduceat(block.novelty, edges) / counts,
            )
            table.write(rows_of_block(coarse))
    return Download(path, f"{export.name('levels')}.{export.kind}")


def export_events(export: Export, components: Components, rule: Rule) -> Download:
    """One row for each event."""
    if export.kind not in EVENTS:
        raise ValueError("Tables of events are CSV, Parquet, NPZ, for Raven, or for Kaleidoscope.")
    suffix = EVENTS[export.kind] or export.kind
    path = export.folder / f"table.{suffix}"
    with table_writer(path, "source", events=True, layout=export.kind) as table:
        for recording in export.recordings:
            name = recording.name
            if export.kind in OF_EVENTS:  # they lead to the sound
                name = str(export.paths.get(recording.id, name))
            block = _rule_block(name, components.levels[recording.id], rule)
            table.write(rows_of_events(_found(block, rule), block))
    return Download(path, f"{export.name('events')}.{suffix}")


def export_labels(export: Export, components: Components, rule: Rule) -> Download:
    """A label track for each recording; several come as one archive."""
    taken: set[str] = set()
    files: list[Download] = []
    for recording in export.recordings:
        block = _rule_block(recording.name, components.levels[recording.id], rule)
        path = export.folder / f"{len(files)}.txt"
        write_labels(path, _found(block, rule))
        files.append(Download(path, f"{_free_name(Path(recording.name).stem, taken)}.txt"))
    return export.together(files, "labels")


def _table(export: Export) -> Path:
    if export.kind not in TABLES:
        raise ValueError("Tables are CSV, Parquet or NPZ.")
    path = export.folder / f"table.{export.kind}"
    check_table(path)
    return path


def _found(block: LevelBlock, rule: Rule) -> list[Event]:
    lengths = {"min_length": rule.min_length, "min_gap": rule.min_gap}
    found = find_events([block], rule.threshold, **lengths)
    return [replace(event, low=rule.low, high=rule.high) for event in found]


def _rule_block(recording: str, own: PartLevels, rule: Rule) -> LevelBlock:
    return _block(recording, own, {rule.name: rule.components})


def _block(recording: str, own: PartLevels, rows: Mapping[str, Sequence[int]]) -> LevelBlock:
    """The levels of rows: the powers of a row's components add up."""
    power = [own.power(list(members)).sum(axis=1) for members in rows.values()]
    levels = 10 * np.log10(np.maximum(np.stack(power, axis=1), 1e-30))
    start = own.every * np.arange(len(levels))
    return LevelBlock(
        recording,
        tuple(rows),
        start,
        np.minimum(start + own.every, own.seconds),
        levels,
        own.novelty,
        own.clock,
    )
