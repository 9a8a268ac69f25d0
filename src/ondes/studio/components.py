"""The components of recordings: found, grouped, and split further."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from sklearn.base import clone

from ondes.dictionary import Dictionary
from ondes.discovery import SETTINGS
from ondes.learning import LearningProgress, learn
from ondes.nmf.divergence import Array
from ondes.nmf.encoding import Compute
from ondes.nmf.fitted_state import FittedState
from ondes.nmf.statistics import Statistics
from ondes.separation.dictionary_masks import DictionaryMasks
from ondes.separation.grouping import group_components
from ondes.separation.separator import separate_file
from ondes.separation.sources import REST, Sources
from ondes.signal.audio_writer import AudioWriter
from ondes.signal.spectral_frames import spectral_frames
from ondes.signal.stft import Stft
from ondes.studio.heard import Heard, listen, step_for
from ondes.studio.jobs import Progress
from ondes.studio.project import Project
from ondes.studio.recordings import Recording

__all__ = [
    "Components",
    "discover",
    "learn_sound",
    "listened",
    "propose",
    "regrouped",
    "split_further",
]

N_COMPONENTS = 24
MAX_COMPONENTS = 64
FRAME_SECONDS = 0.09  # long frames distinguish a bass from a drum
HALVED_ABOVE = 33000  # hertz: sounds differ below half of 22 kHz, and half of the work is enough
FRAMES_WANTED = 20000  # over all passes; a short recording is heard more often
MAX_PASSES = 20
GROUPING_SECONDS, EXCERPT_SECONDS = 1200.0, 10.0
CURVE_STEPS, CURVE_DB = 96, 50.0  # of the curves on the cards
N_OF_A_SOUND = 3
SHARE_OF_A_SOUND, RARE = 0.02, 4.0  # of the power at that moment; of the usual power


@dataclass(frozen=True, eq=False)
class Components:
    """A dictionary of the recordings, and how loud each component is in them.

    Parameters
    ----------
    dictionary : Dictionary
    heard : mapping of str to Heard
        By the id of the recording.
    """

    dictionary: Dictionary
    heard: Mapping[str, Heard]

    @cached_property
    def sources(self) -> Sources:
        """Every component a source of its own, named by its index."""
        names = {str(index): [index] for index in range(self.n_parts)}
        return Sources.from_components(self.dictionary, names)

    @property
    def n_parts(self) -> int:
        """The number of components."""
        return len(self.dictionary.components)

    @property
    def stft(self) -> Stft:
        """The transform of the dictionary."""
        return self.sources.stft

    @property
    def sr(self) -> int:
        """Its sampling rate."""
        return self.sources.sr

    def masks(self, batch_size: int) -> DictionaryMasks:
        """A new stream of the masks of the components."""
        compute = Compute()
        return DictionaryMasks(self.sources, rest=REST, batch_size=batch_size, compute=compute)

    @cached_property
    def shares(self) -> Array:
        """What each component has of all that is heard, shape (n_components,); the sum is one."""
        energies = sum((each.energies() for each in self.heard.values()), np.zeros(self.n_parts))
        shares: Array = energies / (energies.sum() or 1)
        return shares

    @cached_property
    def curves(self) -> list[list[int]]:
        """The level of each component over all recordings in a few steps, 0 to 100."""
        nothing = np.zeros((0, self.n_parts), np.float32)
        levels = np.concatenate([nothing, *(each.levels for each in self.heard.values())])
        if not len(levels):
            return [[0]] * self.n_parts
        edges = np.linspace(0, len(levels), min(CURVE_STEPS, len(levels)) + 1).astype(int)[:-1]
        steps = np.maximum.reduceat(levels, edges, axis=0)
        scaled = np.clip(100 * (1 + (steps - steps.max()) / CURVE_DB), 0, 100)
        return [list(map(int, column)) for column in scaled.T]

    def grouped_dictionary(self, project: Project) -> Dictionary:
        """The dictionary with the project's groups and names; what is in none is "rest"."""
        labels = []
        for index in range(self.n_parts):
            owner = project.owner(index)
            labels.append(REST if owner is None else owner.name)
        return regrouped(self.dictionary, labels)


def discover(
    recordings: Sequence[Recording],
    n_components: int = N_COMPONENTS,
    *,
    is_ultrasonic: bool = False,
    progress: Progress,
) -> Components:
    """Learn the components of some recordings, and listen to each of them.

    They are told apart by what lies below 11 to 16 kHz, or with `is_ultrasonic` by everything.
    """
    if not 2 <= n_components <= MAX_COMPONENTS:
        raise ValueError(f"The number of sounds must lie between 2 and {MAX_COMPONENTS}.")
    sr = max(recording.sr for recording in recordings)
    while sr > HALVED_ABOVE and not is_ultrasonic:
        sr = (sr + 1) // 2
    n_fft = 2 ** max(5, round(np.log2(FRAME_SECONDS * sr)))
    paths = [recording.readable for recording in recordings]
    dictionary = _learned(paths, n_components, sr, n_fft, recordings, progress, 0.7)
    return listened(dictionary, recordings, progress, 0.7)


def split_further(
    components: Components,
    members: Sequence[int],
    recordings: Sequence[Recording],
    *,
    progress: Progress,
) -> tuple[Components, tuple[int, ...]]:
    """Learn twice as many components from the sound of one group alone.

    Returns
    -------
    components : Components
        The others keep their indices.
    members : tuple of int
        The components that take the group's place.
    """
    if not members:
        raise ValueError("The group is empty; move components into it first.")
    n_new = min(2 * len(members), len(members) + MAX_COMPONENTS - components.n_parts)
    if n_new <= len(members):
        raise ValueError(
            f"There are {components.n_parts} components already, which is the maximum."
        )
    sources = Sources.from_components(components.dictionary, {"group": members})
    with tempfile.TemporaryDirectory() as folder:
        stems = [Path(folder, f"{n}.rf64") for n in range(len(recordings))]
        for n, (recording, stem) in enumerate(zip(recordings, stems, strict=True)):
            _write_stem(recording, sources, stem, progress, n / len(recordings))
        stft, sr = components.stft, components.sr
        new = _learned(stems, n_new, sr, stft.n_fft, recordings, progress, 0.8, start=0.3)
    dictionary, indices = _replaced(components.dictionary, members, new)
    return listened(dictionary, recordings, progress, 0.8), indices


def learn_sound(
    components: Components,
    recording: Recording,
    start: float,
    end: float,
    recordings: Sequence[Recording],
    *,
    progress: Progress,
) -> tuple[Components, tuple[int, ...]]:
    """Learn the components of one moment of a recording, and listen for them everywhere.

    They take the place of those that sounded at that moment but hardly ever else: with both, each
    would explain a part of the sound, and neither find it.

    Returns
    -------
    components : Components
        The other components keep their indices.
    members : tuple of int
        The new ones.
    """
    replaced = _sounding(components, recording, start, end)
    n_free = MAX_COMPONENTS - components.n_parts
    n_new = min(max(N_OF_A_SOUND, len(replaced)), len(replaced) + n_free)
    if n_new < 1:
        raise ValueError(
            f"There are {components.n_parts} components already, which is the maximum."
        )
    sr, stft = components.sr, components.stft
    samples = recording.samples(round(start * sr), round(end * sr), sr)
    if len(samples) < stft.n_fft:
        raise ValueError(f"Select at least {stft.n_fft / sr:.2g} s of the sound.")
    new = learn(
        samples, n_new, sr=sr, n_fft=stft.n_fft, hop_length=stft.hop_length, **SETTINGS,
        n_passes=MAX_PASSES,
    )  # fmt: skip
    progress(0.1)
    dictionary, indices = _replaced(components.dictionary, replaced, new)
    return listened(dictionary, recordings, progress, 0.1), indices


def _sounding(
    components: Components, recording: Recording, start: float, end: float
) -> tuple[int, ...]:
    """Components that belong to one moment: loud in it, and otherwise usually not."""
    heard = components.heard[recording.id]
    steps = slice(int(start / heard.every), int(np.ceil(end / heard.every)))
    inside = (10 ** (heard.levels[steps].astype(np.float64) / 10)).mean(axis=0)
    usual = np.median(np.concatenate([each.levels for each in components.heard.values()]), axis=0)
    is_loud = inside > SHARE_OF_A_SOUND * inside.sum()
    is_rare = inside > RARE * 10 ** (usual / 10)
    return tuple(np.flatnonzero(is_loud & is_rare).tolist())


def propose(
    components: Components,
    recordings: Sequence[Recording],
    n_groups: int,
    project: Project,
    *,
    progress: Progress,
) -> Project:
    """Group the components by how they sound; the groups are a proposal."""
    dictionary = components.dictionary
    if not 1 <= n_groups <= components.n_parts:
        raise ValueError(f"There can be 1 to {components.n_parts} groups.")
    audio = components.sources.audio

    def frames() -> Iterator[Array]:
        for blocks in _excerpts(recordings, components.sr):
            for part in spectral_frames(blocks, audio):
                progress(None)
                yield part

    labels = group_components(dictionary.components, audio, frames(), n_groups)
    loudest_first = np.argsort(-components.shares, kind="stable")
    empty = replace(project, groups=())
    for label in range(n_groups):
        members = [int(index) for index in loudest_first if labels[index] == label]
        empty = empty.with_new_group(members, f"Group {label + 1}")
    groups = tuple(replace(group, is_proposed=True) for group in empty.groups)
    return replace(empty, groups=groups)


def _excerpts(recordings: Sequence[Recording], sr: int) -> Iterator[Iterable[Array]]:
    """Enough sound to group components by: all of it, or of hours many short parts."""
    total = sum(recording.seconds for recording in recordings)
    for recording in recordings:
        if total <= GROUPING_SECONDS:
            yield recording.blocks(sr)
            continue
        n_parts = max(1, round(GROUPING_SECONDS * recording.seconds / total / EXCERPT_SECONDS))
        for start in np.linspace(0, recording.seconds, n_parts, endpoint=False):
            first = round(start * sr)
            yield [recording.samples(first, first + round(EXCERPT_SECONDS * sr), sr)]


def regrouped(dictionary: Dictionary, labels: Sequence[str]) -> Dictionary:
    """The same dictionary with other groups."""
    estimator = clone(dictionary.estimator).set_params(groups=list(labels))
    return Dictionary(
        estimator.restore(dictionary.estimator.state()), dictionary.audio, dictionary.history
    )


def _learned(
    paths: Sequence[Path],
    n_components: int,
    sr: int,
    n_fft: int,
    recordings: Sequence[Recording],
    progress: Progress,
    end: float,
    start: float = 0.0,
) -> Dictionary:
    seconds = sum(recording.seconds for recording in recordings)
    n_frames = max(1.0, seconds * sr / (n_fft / 4))
    if n_frames < n_components:
        raise ValueError(f"{seconds:.2g} s of sound are too short to find sounds in.")

    def report(now: LearningProgress) -> None:
        done = now.seconds_done / now.seconds_total if now.seconds_total else 0
        progress(start + (end - start) * min(1.0, done))

    return learn(
        list(paths), n_components, sr=sr, n_fft=n_fft, hop_length=n_fft // 4, **SETTINGS,
        n_passes=int(np.clip(round(FRAMES_WANTED / n_frames), 1, MAX_PASSES)), progress=report,
        n_jobs=min(4, os.cpu_count() or 1),
    )  # fmt: skip


def listened(
    dictionary: Dictionary, recordings: Sequence[Recording], progress: Progress, start: float = 0.0
) -> Components:
    """Listen to the components of a dictionary in some recordings."""
    unheard = Components(dictionary, {})
    total, done = sum(recording.seconds for recording in recordings), 0.0
    heard = {}
    for recording in recordings:

        def report(fraction: float, before: float = done, own: float = recording.seconds) -> None:
            progress(start + (1 - start) * (before + fraction * own) / total)

        heard[recording.id] = listen(recording, unheard.sources, step_for(total), report)
        done += recording.seconds
    return Components(dictionary, heard)


def _write_stem(
    recording: Recording, sources: Sources, path: Path, progress: Progress, done: float
) -> None:
    stems = separate_file(recording.readable, sources)
    with AudioWriter(path, stems.sr, stems.channels) as writer:
        for blocks in stems:
            writer.write(blocks["group"])
            progress(0.3 * done)


def _replaced(
    dictionary: Dictionary, members: Sequence[int], new: Dictionary
) -> tuple[Dictionary, tuple[int, ...]]:
    """Put new rows in the place of some, and the further ones at the end."""
    old, added = dictionary.estimator.state(), new.estimator.state()
    n_old, n_new = len(old.components), len(added.components)
    n_more = n_new - len(members)
    indices = (*sorted(members), *range(n_old, n_old + n_more))

    def both(before: Array, after: Array) -> Array:
        joined = np.concatenate([before, np.empty((n_more, before.shape[1]))])
        joined[list(indices)] = after
        return joined

    statistics = Statistics(
        both(old.statistics.numerator, added.statistics.numerator),
        both(old.statistics.denominator, added.statistics.denominator),
        old.statistics.divergence,
        old.statistics.n_frames,
        old.statistics.beta,
    )
    state: FittedState = replace(
        old, components=both(old.components, added.components), statistics=statistics
    )
    estimator = clone(dictionary.estimator).set_params(n_components=n_old + n_more, groups=None)
    return Dictionary(estimator.restore(state), dictionary.audio, dictionary.history), indices
