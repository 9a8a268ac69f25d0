"""Files to take away: stems that sum to the recording, the mix, and a voice without its noise."""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ondes.separation.separator import Separator
from ondes.separation.sources import Sources
from ondes.signal.audio_writer import AudioWriter
from ondes.signal.recordings import open_blocks
from ondes.studio.components import Components
from ondes.studio.jobs import Progress
from ondes.studio.project import Mix, Project
from ondes.studio.recordings import Recording
from ondes.studio.voice import Cleaner

__all__ = ["Download", "export_clean", "export_mix", "export_stems", "free_name", "gains_of"]

FORMATS = ("wav", "flac")
Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Download:
    """A file that the page may fetch once it is ready."""

    path: Path
    name: str


def export_stems(
    recordings: Sequence[Recording],
    components: Components,
    project: Project,
    groups: Sequence[int],
    kind: str,
    folder: Path,
    progress: Progress,
) -> Download:
    """The chosen groups and "rest", each a file at the recording's own rate and channels."""
    chosen = {}
    for number in groups:
        group = project.group(number)
        if group.components:
            chosen[group.name] = group.components
    if not chosen:
        raise ValueError("Choose at least one group that has components in it.")
    sources = Sources.from_components(components.dictionary, chosen)
    return _written(
        recordings,
        lambda sr: Separator(sources, sr=sr),
        {name: itemgetter(name) for name in sources.names},
        kind,
        folder,
        progress,
    )


def export_mix(
    recordings: Sequence[Recording],
    components: Components,
    gains: Mapping[int, float],
    kind: str,
    folder: Path,
    progress: Progress,
) -> Download:
    """What is heard: every component with its gain, as one file per recording."""
    levels = {round(gains.get(index, 1.0), 6) for index in range(components.n_parts)}
    named = {str(level): level for level in sorted(levels)}
    members = {
        name: [i for i in range(components.n_parts) if round(gains.get(i, 1.0), 6) == level]
        for name, level in named.items()
    }
    sources = Sources.from_components(components.dictionary, members)

    def mixed(blocks: Mapping[str, Samples]) -> Samples:
        weighted = [np.float32(named[name]) * samples for name, samples in blocks.items()]
        total: Samples = np.sum(weighted, axis=0, dtype=np.float32)
        return total

    return _written(
        recordings, lambda sr: Separator(sources, sr=sr), {"mix": mixed}, kind, folder, progress
    )


def export_clean(
    recordings: Sequence[Recording],
    cleaner: Cleaner,
    amount: float,
    kind: str,
    folder: Path,
    progress: Progress,
) -> Download:
    """The voice, and the noise reduced by `amount` decibels."""
    gain = np.float32(10 ** (-amount / 20))

    def cleaned(blocks: Mapping[str, Samples]) -> Samples:
        voice, noise = blocks.values()
        return voice + gain * noise

    return _written(recordings, cleaner.separator, {"clean": cleaned}, kind, folder, progress)


def gains_of(project: Project, mix: Mix, n_components: int) -> dict[int, float]:
    """The factor of each component, as the page's player has it.

    Examples
    --------
    >>> project = Project(model=0).with_new_group([0, 1], "bass")
    >>> gains_of(project, Mix().changed("g1", gain=-20.0).changed("c1", mute=True), 3)
    {0: 0.1, 1: 0.0, 2: 1.0}
    """
    factors = {}
    is_any_soloed = bool(mix.soloed)
    for index in range(n_components):
        owner = project.owner(index)
        keys = [f"c{index}", *([] if owner is None else [f"g{owner.id}"])]
        is_silent = bool(mix.muted.intersection(keys))
        if is_any_soloed and not mix.soloed.intersection(keys):
            is_silent = True
        decibels = sum(mix.gains.get(key, 0.0) for key in keys)
        factors[index] = 0.0 if is_silent else round(10 ** (decibels / 20), 9)
    return factors


def _written(
    recordings: Sequence[Recording],
    separator: Callable[[int], Separator],
    parts: Mapping[str, Callable[[Mapping[str, Samples]], Samples]],
    kind: str,
    folder: Path,
    progress: Progress,
) -> Download:
    if kind not in FORMATS:
        raise ValueError("Sounds are exported as WAV or FLAC.")
    if not recordings:
        raise ValueError("Open a recording first.")
    total, done = sum(recording.seconds for recording in recordings), 0.0
    files: list[Download] = []
    names: set[str] = set()
    for recording in recordings:
        with contextlib.ExitStack() as stack:
            writers = {}
            for part in parts:
                name = free_name(f"{Path(recording.name).stem} - {part}", names)
                files.append(Download(folder / f"{len(files)}.{kind}", f"{name}.{kind}"))
                facts = recording.sr, recording.channels
                writer = AudioWriter(files[-1].path, *facts, n_samples=recording.n_samples)
                writers[part] = stack.enter_context(writer)
            for blocks in _separated(recording, separator(recording.sr)):
                for part, writer in writers.items():
                    writer.write(parts[part](blocks))
                done += len(next(iter(blocks.values()))) / recording.sr
                progress(min(1.0, done / total))
    return files[0] if len(files) == 1 else _zipped(files, folder / "stems.zip")


def _separated(recording: Recording, separator: Separator) -> Iterator[dict[str, Samples]]:
    """Blocks of the original file, not of a decoded copy."""
    with open_blocks(recording.path) as blocks:
        for block in blocks:
            yield separator.push(block)
    yield separator.flush()


def _zipped(files: Sequence[Download], path: Path) -> Download:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            archive.write(file.path, file.name)
            file.path.unlink()
    return Download(path, path.name)


def free_name(name: str, taken: set[str]) -> str:
    """A file name that any system takes, different from those before."""
    safe = re.sub(r'[<>:"/\\|?*\x00-\x1f]|^\.+', "_", name).strip(" .")[:120] or "_"
    numbered = (safe, *(f"{safe} {n}" for n in range(2, len(taken) + 3)))
    free = next(each for each in numbered if each.casefold() not in taken)
    taken.add(free.casefold())
    return free
