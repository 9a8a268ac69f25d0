"""The components of recordings: found, measured, grouped, and split further."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from ondes.learning.dictionary_learning import LearningProgress, learn
from ondes.models.dictionary import Dictionary
from ondes.models.sources import REST, Sources
from ondes.nmf.divergence import Array
from ondes.nmf.fitted import FittedState
from ondes.nmf.statistics import Statistics
from ondes.separation.discovery import SETTINGS, group_components
from ondes.separation.separator import separate_file
from ondes.signal.audio_writer import AudioWriter
from ondes.signal.frame_reader import spectral_frames
from ondes.signal.stft import mean_power
from ondes.studio.jobs import Progress
from ondes.studio.playback import ALL_CORES, power_of_parts
from ondes.studio.project import Project, Span
from ondes.studio.recording import Recording
from ondes.studio.stems import CURVE_DB, PartLevels, curves_of, measured_levels, shares_of

__all__ = [
    "Components",
    "components_within",
    "discover",
    "learn_sound",
    "measured",
    "propose",
    "regrouped",
    "split_further",
]

N_COMPONENTS = 24
MAX_COMPONENTS = 64
FRAME_SECONDS = 0.08  # whole at all common rates; long frames distinguish a bass from a drum
HALVED_ABOVE = 33000  # hertz: sounds differ below half of 22 kHz, and half of the work is enough
FRAMES_WANTED = 20000  # over all passes; a short recording is heard more often
MAX_PASSES = 20
GROUPING_SECONDS, EXCERPT_SECONDS = 1200.0, 10.0
SPECTRUM_STEPS, SPECTRUM_HZ = 32, 40.0
FRAMES_OF_A_BOX, MADE_OF = 400, 0.8  # at most; of the power in it
N_OF_A_SOUND = N_AROUND = 6
AROUND = 5.0  # seconds before and after a sound, which are not that sound
OUTSIDE = 1e-12  # of a component's power in each bin outside its band
# Music is heard by its energy; in hours of field recordings a rare quiet call counts, too.
MUSIC: dict[str, Any] = {"spectrum": "power", "beta_loss": "kullback-leibler", "sparsity": 0.0}
SHARE_OF_A_SOUND, RARE = 0.02, 4.0  # of the power at that moment; of the usual power


@dataclass(frozen=True, eq=False)
class Components:
    """A dictionary of the recordings, and how loud each component is in them.

    Parameters
    ----------
    dictionary : Dictionary
    levels : mapping of str to PartLevels
        By the id of the recording.
    """

    dictionary: Dictionary
    levels: Mapping[str, PartLevels]

    @cached_property
    def model(self) -> Sources:
        """Every component a source of its own, named by its index."""
        return self.grouped({str(index): [index] for index in range(self.n_parts)})

    def grouped(self, groups: Mapping[str, Iterable[int]]) -> Sources:
        """Some components together as sources; what is in none is "rest"."""
        return Sources.from_components(self.dictionary, groups)

    @property
    def n_parts(self) -> int:
        """The number of components."""
        return len(self.dictionary.components)

    @cached_property
    def shares(self) -> Array:
        """What each component has of all that is heard, shape (n_components,); the sum is one."""
        return shares_of(self.levels.values(), self.n_parts)

    @cached_property
    def curves(self) -> list[list[int]]:
        """The level of each component over all recordings in a few steps, 0 to 100."""
        return curves_of(self.levels.values(), self.n_parts)

    @cached_property
    def _power(self) -> tuple[Array, Array]:
        """The power spectra of the components, and the frequencies of their bins in hertz."""
        rows = self.model.dictionary**self.model.exponent
        return rows, np.arange(rows.shape[1]) * self.model.sr / self.model.stft.n_fft

    @cached_property
    def spectra(self) -> list[list[int]]:
        """The spectrum of each component in a few bands from 40 Hz up, 0 to 100."""
        rows, hertz = self._power
        edges = np.searchsorted(
            hertz, np.geomspace(SPECTRUM_HZ, self.model.sr / 2, SPECTRUM_STEPS + 1)
        )
        first = np.minimum(edges[:-1], rows.shape[1] - 1)
        steps = 10 * np.log10(np.maximum(np.maximum.reduceat(rows, first, axis=1), 1e-30))
        scaled = np.clip(100 * (1 + (steps - steps.max(axis=1, keepdims=True)) / CURVE_DB), 0, 100)
        return [list(map(int, row)) for row in scaled]

    @cached_property
    def bands(self) -> list[tuple[int, int]]:
        """The hertz between which each component has the middle 80 % of its power."""
        rows, hertz = self._power
        shares = np.cumsum(rows, axis=1) / rows.sum(axis=1, keepdims=True)
        low, high = ((shares < share).sum(axis=1).clip(0, len(hertz) - 1) for share in (0.1, 0.9))
        return [(round(hertz[a]), round(hertz[b])) for a, b in zip(low, high, strict=True)]

    def grouped_dictionary(self, project: Project) -> Dictionary:
        """The dictionary with the project's groups and names; what is in none is "rest"."""
        owners = (project.owner(index) for index in range(self.n_parts))
        return regrouped(self.dictionary, [REST if each is None else each.name for each in owners])


def discover(
    recordings: Sequence[Recording],
    n_components: int = N_COMPONENTS,
    *,
    is_ultrasonic: bool = False,
    is_field: bool = False,
    progress: Progress,
) -> Components:
    """Learn the components of some recordings, and measure their levels.

    They are told apart by what lies below 11 to 16 kHz, or with `is_ultrasonic` by everything.
    With `is_field`, quiet sounds count as much as loud ones.
    """
    if not 2 <= n_components <= MAX_COMPONENTS:
        raise ValueError(f"The number of sounds must lie between 2 and {MAX_COMPONENTS}.")
    sr = max(recording.sr for recording in recordings)
    while sr > HALVED_ABOVE and not is_ultrasonic:
        sr = (sr + 1) // 2
    n_fft = max(32, round(FRAME_SECONDS * sr))
    paths = [recording.readable for recording in recordings]
    settings: dict[str, Any] = {"sr": sr, "n_fft": n_fft, "hop_length": n_fft // 4}
    settings |= {"n_jobs": -1} | (SETTINGS if is_field else MUSIC)
    dictionary = _learned(paths, n_components, settings, recordings, progress, 0.7)
    return measured(dictionary, recordings, progress, 0.7)


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
    sources = components.grouped({"group": members})
    with tempfile.TemporaryDirectory() as folder:
        stems = [Path(folder, f"{n}.rf64") for n in range(len(recordings))]
        for n, (recording, stem) in enumerate(zip(recordings, stems, strict=True)):
            _write_stem(recording, sources, stem, progress, n / len(recordings))
        settings = _settings(components.dictionary)
        new = _learned(stems, n_new, settings, recordings, progress, 0.8, start=0.3)
    dictionary, indices = _replaced(components.dictionary, members, new.estimator.state())
    return measured(dictionary, recordings, progress, 0.8), indices


def learn_sound(
    components: Components,
    recording: Recording,
    span: Span,
    band: tuple[float, float],
    recordings: Sequence[Recording],
    *,
    progress: Progress,
) -> tuple[Components, tuple[int, ...]]:
    """Learn the sound in a box of time and frequency, and measure it everywhere.

    What sounds in the seconds around the box is learned first and stays fixed, so that it is not
    taken for the sound. The new components take the place of those that sounded in the box but
    hardly ever else: with both, each would explain a part of the sound, and neither find it.

    Returns
    -------
    components : Components
        The other components keep their indices.
    members : tuple of int
        The new ones.
    """
    replaced = _sounding(components, recording, span)[:N_OF_A_SOUND]
    n_new = min(N_OF_A_SOUND, len(replaced) + MAX_COMPONENTS - components.n_parts)
    if n_new < 1:
        raise ValueError(
            f"There are {components.n_parts} components already, which is the maximum."
        )
    sr, stft = components.model.sr, components.model.stft
    if (span.end - span.start) * sr < stft.n_fft / 2:
        raise ValueError(f"Select at least {stft.n_fft / 2 / sr:.2g} s of the sound.")
    start, stop = round(span.start * sr) - stft.n_fft // 2, round(span.end * sr) + stft.n_fft // 2
    first = max(0, start - round(AROUND * sr))
    samples = recording.samples(first, stop + round(AROUND * sr), sr)
    outside = [samples[: max(0, start - first)], samples[stop - first :]]
    settings = _settings(components.dictionary) | {"n_passes": MAX_PASSES}
    around = learn(np.concatenate(outside), N_AROUND, **settings)
    progress(0.05)
    inside = samples[max(0, start - first) : stop - first]
    both = learn(inside, N_AROUND + n_new, fixed_components=around.components, **settings)
    progress(0.1)
    hertz = np.arange(both.components.shape[1]) * sr / stft.n_fft
    width = 2 * sr / stft.n_fft  # of the main lobe of a tone
    is_inside = (hertz >= band[0] - width) & (hertz <= band[1] + width)
    state = both.estimator.state()
    dictionary, indices = _replaced(components.dictionary, replaced, state, N_AROUND, is_inside)
    return measured(dictionary, recordings, progress, 0.1), indices


def _sounding(components: Components, recording: Recording, span: Span) -> tuple[int, ...]:
    """Components that belong to one moment: loud in it, and otherwise usually not."""
    own = components.levels[recording.id]
    steps = slice(int(span.start / own.every), int(np.ceil(span.end / own.every)))
    inside = own.power()[steps].mean(axis=0)
    usual = np.median(np.concatenate([each.levels for each in components.levels.values()]), axis=0)
    is_loud = inside > SHARE_OF_A_SOUND * inside.sum()
    is_rare = inside > RARE * 10 ** (usual / 10)
    return tuple(np.flatnonzero(is_loud & is_rare).tolist())


def components_within(
    components: Components, recording: Recording, span: Span, low: float, high: float
) -> list[int]:
    """The components that make up most of what sounds in a span, between two frequencies."""
    stft, sr = components.model.stft, components.model.sr
    samples = recording.samples(round(span.start * sr), round(span.end * sr), sr)
    n_padding = max(0, stft.n_fft - len(samples))
    windows = stft.windows(np.pad(samples, ((n_padding // 2, n_padding - n_padding // 2), (0, 0))))
    windows = windows[np.unique(np.linspace(0, len(windows) - 1, FRAMES_OF_A_BOX).astype(int))]
    power = np.concatenate([mean_power(spectra) for _, spectra in stft.spectra(windows)])
    heard = power_of_parts(components.model, power)
    hertz = np.arange(heard.shape[2]) * sr / stft.n_fft
    energies = heard[:, :, (hertz >= low) & (hertz <= high)].sum(axis=(1, 2))
    if not energies.any():
        raise ValueError("Nothing that was found sounds in this selection; select another.")
    loudest_first = np.argsort(-energies)
    n = 1 + np.searchsorted(np.cumsum(energies[loudest_first]), MADE_OF * energies.sum())
    return [int(index) for index in loudest_first[:n]]


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
    audio = components.model.audio

    def frames() -> Iterator[Array]:
        for blocks in _excerpts(recordings, components.model.sr):
            for part in spectral_frames(blocks, audio):
                progress(None)
                yield part

    labels = group_components(dictionary.components, audio, frames(), n_groups, ALL_CORES)
    loudest_first = np.argsort(-components.shares, kind="stable")
    groups = [[int(n) for n in loudest_first if labels[n] == label] for label in range(n_groups)]
    groups.sort(key=lambda members: -components.shares[members].sum())
    proposed = replace(project, groups=())
    for number, members in enumerate(groups, 1):
        proposed = proposed.with_new_group(members, f"Group {number}")
    return replace(
        proposed, groups=tuple(replace(group, is_proposed=True) for group in proposed.groups)
    )


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


def _settings(dictionary: Dictionary) -> dict[str, Any]:
    """How to learn further components for a dictionary."""
    audio, params = dictionary.audio, dictionary.learner.get_params()
    assert audio is not None
    return {
        "sr": audio.sr, "n_fft": audio.stft.n_fft, "hop_length": audio.stft.hop_length,
        "fmax": audio.fmax, "spectrum": audio.spectrum,
        "beta_loss": params["beta_loss"], "sparsity": params["sparsity"], "n_jobs": -1,
    }  # fmt: skip


def _learned(
    paths: Sequence[Path],
    n_components: int,
    settings: dict[str, Any],
    recordings: Sequence[Recording],
    progress: Progress,
    end: float,
    start: float = 0.0,
) -> Dictionary:
    seconds = sum(recording.seconds for recording in recordings)
    n_frames = max(1.0, seconds * settings["sr"] / settings["hop_length"])
    if n_frames < n_components:
        raise ValueError(f"{seconds:.2g} s of sound are too short to find sounds in.")

    def report(now: LearningProgress) -> None:
        done = now.seconds_done / now.seconds_total if now.seconds_total else 0
        progress(start + (end - start) * min(1.0, done))

    return learn(
        list(paths), n_components, **settings,
        n_passes=int(np.clip(round(FRAMES_WANTED / n_frames), 1, MAX_PASSES)), progress=report,
    )  # fmt: skip


def measured(
    dictionary: Dictionary, recordings: Sequence[Recording], progress: Progress, start: float = 0.0
) -> Components:
    """Measure the levels of a dictionary's components in some recordings, at constant memory."""
    model = Components(dictionary, {}).model
    return Components(dictionary, measured_levels(model, "component", recordings, progress, start))


def _write_stem(
    recording: Recording, sources: Sources, path: Path, progress: Progress, done: float
) -> None:
    stems = separate_file(recording.readable, sources, spatial="none", n_jobs=-1)
    with AudioWriter(path, stems.sr, stems.channels) as writer:
        for blocks in stems:
            writer.write(blocks["group"])
            progress(0.3 * done)


def _replaced(
    dictionary: Dictionary,
    members: Sequence[int],
    added: FittedState,
    first: int = 0,
    is_inside: Array | None = None,
) -> tuple[Dictionary, tuple[int, ...]]:
    """Put new rows, from row `first` on, in the place of some, and the further ones at the end."""
    old, n_new = dictionary.estimator.state(), len(added.components) - first
    n_old = len(old.components)
    n_more = n_new - len(members)
    indices = (*sorted(members), *range(n_old, n_old + n_more))

    def both(before: Array, after: Array) -> Array:
        joined = np.concatenate([before, np.empty((n_more, before.shape[1]))])
        joined[list(indices)] = after[first:]
        return joined

    components = both(old.components, added.components)
    if is_inside is not None:
        rows = np.where(is_inside, components[list(indices)], OUTSIDE)
        components[list(indices)] = rows / rows.sum(axis=1, keepdims=True)

    statistics = Statistics(
        both(old.statistics.numerator, added.statistics.numerator),
        both(old.statistics.denominator, added.statistics.denominator),
        old.statistics.divergence,
        old.statistics.n_frames,
        old.statistics.beta,
    )
    state: FittedState = replace(old, components=components, statistics=statistics)
    estimator = clone(dictionary.estimator).set_params(n_components=n_old + n_more, groups=None)
    return Dictionary(estimator.restore(state), dictionary.audio, dictionary.history), indices
