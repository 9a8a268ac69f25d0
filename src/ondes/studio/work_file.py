"""Saved work: a model file with groups, and beside it what only the studio knows.

So `ondes separate album/ -d mine.ondes` separates with it, and `ondes studio mine.ondes` goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ondes.errors import FileError
from ondes.models.dictionary import Dictionary
from ondes.models.loading import SHELF
from ondes.models.model_file import document_of, model_of, packed, read_document, separator_of
from ondes.models.sources import REST
from ondes.models.trained_separator import TrainedSeparator
from ondes.studio.components import Components
from ondes.studio.project import Group, Mix, Project, Span, checked_name
from ondes.studio.recording import Recording

__all__ = ["Work", "pack_work", "read_work"]

STUDIO = "studio"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Work:
    """What a file holds.

    Parameters
    ----------
    dictionary : Dictionary or None
    project : Project
        Its `model` is 0 where there is a dictionary, its `cleaner` 0 where the noise was learned.
    mix : Mix
    recordings : tuple of dict
        Name, digest and path of each recording; selections name them by their position.
    cleaner, stems : str or None
        The separators that come with ondes by which it is cleaned, and divided into stems.
    """

    dictionary: Dictionary | None
    project: Project
    mix: Mix
    recordings: tuple[dict[str, Any], ...] = ()
    cleaner: str | None = None
    stems: str | None = None

    def on(self, open_recordings: Sequence[Recording]) -> Project:
        """The project for recordings that are open; selections in others are left out."""
        ids = {recording.digest: recording.id for recording in open_recordings}
        by_position = {str(n): ids.get(each["digest"]) for n, each in enumerate(self.recordings)}

        noise = self.project.noise
        own = None if noise is None else by_position.get(noise.recording)
        found = None if noise is None or own is None else replace(noise, recording=own)
        return replace(self.project, noise=found)


def pack_work(
    project: Project,
    mix: Mix,
    components: Components | None,
    recordings: Mapping[str, Recording],
    paths: Mapping[str, Path],
    cleaner: str | None = None,
    stems: str | None = None,
) -> bytes:
    """The bytes of a file with all of the work.

    Parameters
    ----------
    project, mix, components
        As they are in the session.
    recordings : mapping of str to Recording
    paths : mapping of str to Path
        Where recordings lie that were not dropped onto the page.
    cleaner, stems : str, optional
        The separators of the voice and of the stems; kept where they come with ondes.
    """
    positions = {number: str(n) for n, number in enumerate(recordings)}
    plain = asdict(project)
    if plain["noise"] is not None:
        plain["noise"]["recording"] = positions[plain["noise"]["recording"]]
    document: dict[str, Any] = {}
    if components is not None:
        dictionary = components.grouped_dictionary(project)
        document = document_of(dictionary.learner, dictionary.audio, dictionary.history)
    document[STUDIO] = {
        "version": VERSION,
        "groups": plain["groups"],
        "noise": plain["noise"],
        "is_cleaned": project.cleaner is not None,
        "cleaner": cleaner if cleaner in SHELF else None,
        "stems": stems if stems in SHELF else None,
        "mix": mix.as_plain(),
        "recordings": [
            {
                "name": recording.name,
                "digest": recording.digest,
                "path": str(paths[number]) if number in paths else None,
            }
            for number, recording in recordings.items()
        ],
    }
    return packed("work", document)


def read_work(path: Path) -> Work | TrainedSeparator:
    """Read saved work, a dictionary, whose groups are then the project's, or a separator.

    Raises
    ------
    FileError
        Where the file is none of them, or is damaged.
    """
    document = read_document(path)
    if "separator" in document:
        return TrainedSeparator(*separator_of(path, document))
    dictionary = None
    if "parameters" in document:
        dictionary = Dictionary(*model_of(path, document))
    elif STUDIO not in document:
        raise FileError(path, "is neither a dictionary nor saved work")
    if dictionary is not None and dictionary.audio is None:
        raise FileError(path, "was learned from arrays, so it cannot be heard")
    if STUDIO not in document:
        assert dictionary is not None
        return Work(dictionary, _project_of_groups(dictionary), Mix())
    try:
        return _work_of(document[STUDIO], dictionary)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(path, f"is not valid saved work ({error})") from error


def _work_of(saved: dict[str, Any], dictionary: Dictionary | None) -> Work:
    if saved["version"] != VERSION:
        raise ValueError("it was written by a newer ondes")
    n_components = 0 if dictionary is None else len(dictionary.components)
    groups = []
    for group in saved["groups"]:
        members = tuple(int(each) for each in group["components"])
        if not all(0 <= each < n_components for each in members):
            raise ValueError("a group names a component that does not exist")
        name = checked_name(str(group["name"]))
        groups.append(Group(int(group["id"]), name, members, bool(group["is_proposed"])))
    project = Project.of(
        groups,
        model=None if dictionary is None else 0,
        noise=_span(saved["noise"]),
        cleaner=0 if saved["is_cleaned"] else None,
    )
    mix = Mix(amount=float(saved["mix"]["amount"]))
    for key, gain in saved["mix"]["gains"].items():
        mix = mix.changed(str(key), gain=float(gain))
    for key in saved["mix"]["muted"]:
        mix = mix.changed(str(key), mute=True)
    for key in saved["mix"]["soloed"]:
        mix = mix.changed(str(key), solo=True)
    recordings = tuple(
        {
            "name": str(each["name"]),
            "digest": str(each["digest"]),
            "path": None if each["path"] is None else str(each["path"]),
        }
        for each in saved["recordings"]
    )
    # Older work does not have them.
    cleaner, stems = (
        name if name in SHELF else None for name in (saved.get("cleaner"), saved.get("stems"))
    )
    return Work(dictionary, project, mix, recordings, cleaner, stems)


def _span(saved: dict[str, Any] | None) -> Span | None:
    if saved is None:
        return None
    return Span(str(saved["recording"]), float(saved["start"]), float(saved["end"]))


def _project_of_groups(dictionary: Dictionary) -> Project:
    members: dict[str, list[int]] = {}
    for index, label in enumerate([] if dictionary.groups is None else dictionary.groups):
        members.setdefault(str(label), []).append(index)
    members.pop(REST, None)
    groups = (
        Group(n, checked_name(name), tuple(own)) for n, (name, own) in enumerate(members.items(), 1)
    )
    return Project.of(groups, model=0)
