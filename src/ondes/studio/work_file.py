"""Saved work: a model file with groups, and beside it what only the studio knows.

So `ondes separate album/ -d mine.ondes` separates with it, and `ondes studio mine.ondes` goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ondes.dictionary import Dictionary
from ondes.errors import FileError
from ondes.model_file import SavedModel, document_of, model_of, packed, read_document
from ondes.separation.sources import REST
from ondes.studio.components import Components
from ondes.studio.project import Mix, Project, Span, as_plain
from ondes.studio.recordings import Recording

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
    """

    dictionary: Dictionary | None
    project: Project
    mix: Mix
    recordings: tuple[dict[str, Any], ...] = ()

    def on(self, open_recordings: Sequence[Recording]) -> Project:
        """The project for recordings that are open; selections in others are left out."""
        ids = {recording.digest: recording.id for recording in open_recordings}
        by_position = {str(n): ids.get(each["digest"]) for n, each in enumerate(self.recordings)}

        def found(span: Span | None) -> Span | None:
            own = None if span is None else by_position.get(span.recording)
            return None if span is None or own is None else replace(span, recording=own)

        return replace(
            self.project, noise=found(self.project.noise), voice=found(self.project.voice)
        )


def pack_work(
    project: Project,
    mix: Mix,
    components: Components | None,
    recordings: Mapping[str, Recording],
    paths: Mapping[str, Path],
) -> bytes:
    """The bytes of a file with all of the work.

    Parameters
    ----------
    project, mix, components
        As they are in the session.
    recordings : mapping of str to Recording
    paths : mapping of str to Path
        Where recordings lie that were not dropped onto the page.
    """
    positions = {number: str(n) for n, number in enumerate(recordings)}
    plain = as_plain(project)
    for kind in ("noise", "voice"):
        if plain[kind] is not None:
            plain[kind]["recording"] = positions[plain[kind]["recording"]]
    document: dict[str, Any] = {}
    if components is not None:
        dictionary = components.grouped_dictionary(project)
        document = document_of(SavedModel(dictionary.learner, dictionary.audio, dictionary.history))
    document[STUDIO] = {
        "version": VERSION,
        "groups": plain["groups"],
        "noise": plain["noise"],
        "voice": plain["voice"],
        "is_cleaned": project.cleaner is not None,
        "mix": {
            "keys": [*mix.gains],
            "gains": [*mix.gains.values()],
            "muted": sorted(mix.muted),
            "soloed": sorted(mix.soloed),
            "amount": mix.amount,
        },
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


def read_work(path: Path) -> Work:
    """Read saved work, or a dictionary, whose groups are then the project's.

    Raises
    ------
    FileError
        Where the file is neither, or is damaged.
    """
    document = read_document(path)
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
    project = Project(model=None if dictionary is None else 0)
    for group in saved["groups"]:
        members = [int(each) for each in group["components"]]
        if not all(0 <= each < n_components for each in members):
            raise ValueError("a group names a component that does not exist")
        project = replace(project, next_id=int(group["id"]))
        project = project.with_new_group(members, str(group["name"]))
        last = replace(project.groups[-1], is_proposed=bool(group["proposed"]))
        project = replace(project, groups=(*project.groups[:-1], last))
    next_id = 1 + max((group.id for group in project.groups), default=0)
    project = replace(
        project,
        next_id=next_id,
        noise=_span(saved["noise"]),
        voice=_span(saved["voice"]),
        cleaner=0 if saved["is_cleaned"] else None,
    )
    mix = Mix(amount=float(saved["mix"]["amount"]))
    gains = zip(saved["mix"]["keys"], saved["mix"]["gains"], strict=True)
    for key, gain in gains:
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
    return Work(dictionary, project, mix, recordings)


def _span(saved: dict[str, Any] | None) -> Span | None:
    if saved is None:
        return None
    return Span(str(saved["recording"]), float(saved["start"]), float(saved["end"]))


def _project_of_groups(dictionary: Dictionary) -> Project:
    project = Project(model=0)
    labels = [] if dictionary.groups is None else [str(each) for each in dictionary.groups]
    for label in dict.fromkeys(labels):
        if label != REST:
            members = [index for index, each in enumerate(labels) if each == label]
            project = project.with_new_group(members, label)
    return project
