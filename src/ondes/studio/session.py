"""Everything that is open in the studio; the page is a view of it."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ondes.errors import FileError
from ondes.models.loading import SHELF, from_shelf
from ondes.models.trained_separator import TrainedSeparator
from ondes.studio import cleaning
from ondes.studio import components as finding
from ondes.studio.cleaning import Cleaner
from ondes.studio.components import Components
from ondes.studio.export import Download, Export
from ondes.studio.jobs import Busy, Job, Jobs, Progress, sentence
from ondes.studio.playback import Listening
from ondes.studio.project import History, Mix, Project, Span
from ondes.studio.recording import Recording, digest_of, is_of_the_field, kind_of, open_recording
from ondes.studio.stems import Stems, measured_levels
from ondes.studio.work_file import Work, pack_work, read_work

__all__ = ["OpenedFile", "Session"]

AT_ONCE = 1200.0  # seconds: sounds are looked for without being asked
N_PROPOSED = 4
MAX_MESSAGES = 20
PATIENCE = 1.0  # seconds: a job that is blocked does not see that it is cancelled


@dataclass(frozen=True)
class OpenedFile:
    """A file that a person has named on the command line, or dropped onto the page."""

    path: Path
    name: str
    is_dropped: bool = False


class Session:
    """The recordings, the models learned from them, and the project in the hands of one person.

    Parameters
    ----------
    reserve : int
        Bytes that uploads leave free on the disk.

    Attributes
    ----------
    recordings : dict of str to Recording
    models : list
        `Components`, `Cleaner` and `Stems`; a project names them by index.
    history : History
    mix : Mix
    jobs : Jobs
    version : int
        Grows with every change.
    work : int
        Grows whenever saved work takes the place of the present one.
    folder : Path
        For files of this session; removed by `close`.
    """

    def __init__(self, reserve: int = 2**28) -> None:
        self.reserve = reserve
        self.folder = Path(tempfile.mkdtemp(prefix="ondes-studio-"))
        self.recordings: dict[str, Recording] = {}
        self.models: list[Components | Cleaner | Stems] = []
        self.history = History(Project())
        self.mix = Mix()
        self.jobs = Jobs(self._changed)
        self.version = self.work = 0
        self._kept: tuple[Project, Mix] | None = None  # as it was saved, opened or found
        self._is_saved = False
        self.messages: list[dict[str, Any]] = []
        self.downloads: dict[str, Download] = {}
        self.paths: dict[str, Path] = {}
        self.separators: dict[str, TrainedSeparator] = {}
        self.kind: str | None = None  # of what is open: "music", "speech" or "field"
        self._awaited: Work | None = None
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)

    def offer(self, download: Download) -> None:
        """Let the page fetch a file."""
        with self._lock:
            self.downloads[secrets.token_urlsafe(16)] = download
            self._changed()

    def withdraw(self, id: str) -> None:  # noqa: A002
        """Delete a file that the page has fetched."""
        with self._lock:
            download = self.downloads.pop(id, None)
            self._changed()
        if download is not None:
            self._discard(download.path)

    def close(self) -> None:
        """End the running job, unless it is blocked, and remove the session's files."""
        self.jobs.cancel()
        self.jobs.join(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _discard(self, *paths: Path) -> None:
        """Delete those files that are the session's own."""
        for path in paths:
            if path.is_relative_to(self.folder):
                with contextlib.suppress(
                    OSError
                ):  # Windows keeps what is being read, until the end
                    path.unlink()

    @property
    def project(self) -> Project:
        """The present project."""
        return self.history.present

    @property
    def saved(self) -> str:
        """Whether the present work is "saved", "changed" since, or "nothing" that would be lost."""
        if (self.project, self.mix) == self._kept:
            return "saved" if self._is_saved else "nothing"
        return "nothing" if self.project == Project(model=self.project.model) else "changed"

    def _keep(self, is_saved: bool) -> None:
        self._kept, self._is_saved = (self.project, self.mix), is_saved
        self._changed()

    @property
    def listening(self) -> Listening:
        """How sound reaches the page."""
        return Listening.to(list(self.recordings.values()))

    def components(self) -> Components:
        """The components of the project; ValueError where none have been found yet."""
        model = None if self.project.model is None else self.models[self.project.model]
        if not isinstance(model, Components):
            raise ValueError("No sounds have been found yet; find them first.")
        return model

    def cleaner(self) -> Cleaner:
        """What divides the voice from its noise; ValueError where nothing does yet."""
        model = None if self.project.cleaner is None else self.models[self.project.cleaner]
        if not isinstance(model, Cleaner):
            raise ValueError("Clean the recording first.")
        return model

    def stems(self) -> Stems:
        """The stems of the project; ValueError where there are none yet."""
        model = None if self.project.stems is None else self.models[self.project.stems]
        if not isinstance(model, Stems):
            raise ValueError("Separate the recording into stems first.")
        return model

    def separator(self, name: str) -> TrainedSeparator:
        """A separator that comes with ondes, or that was opened; ValueError where it is neither."""
        if name not in (*SHELF, *self.separators):
            raise ValueError("That model is no longer open; open it again.")
        return self.separators.get(name) or from_shelf(name)

    def recording(self, id: str) -> Recording:  # noqa: A002
        """An open recording; ValueError where there is none of this id."""
        if id not in self.recordings:
            raise ValueError("That recording is no longer open; open it again.")
        return self.recordings[id]

    def model(self, index: int) -> Components | Cleaner | Stems:
        """A model by its index; ValueError where there is none."""
        if not 0 <= index < len(self.models):
            raise ValueError("These sounds no longer exist; find them again.")
        return self.models[index]

    # ---- changes ----

    def do(self, change: Callable[[Project], Project]) -> None:
        """Change the project; the change can be undone."""
        with self._lock:
            self.history.do(change(self.project))
            self._changed()

    def undo(self) -> None:
        """Take the last change back."""
        with self._lock:
            self.history.undo()
            self._changed()

    def redo(self) -> None:
        """Make the change that was taken back again."""
        with self._lock:
            self.history.redo()
            self._changed()

    def set_mix(self, change: Callable[[Mix], Mix]) -> None:
        """Change what is heard."""
        with self._lock:
            self.mix = change(self.mix)

    def say(self, text: str, kind: str = "note") -> None:
        """Show one sentence in the page."""
        with self._lock:
            number = self.messages[-1]["id"] + 1 if self.messages else 1
            self.messages = [*self.messages, {"id": number, "text": text, "kind": kind}]
            self.messages = self.messages[-MAX_MESSAGES:]
            self._changed()

    def clear(self) -> None:
        """Close all recordings and forget the work; `Busy` while something is being computed."""
        if self.jobs.is_busy:
            raise Busy("Something is being computed; wait for it, or cancel it first.")
        with self._lock:
            for recording in self.recordings.values():
                self._discard(recording.path, recording.readable)
            self.recordings, self.paths, self.models = {}, {}, []
            self.history, self.mix, self._awaited = History(Project()), Mix(), None
            self.kind = None
            self.work += 1
            self._changed()

    def add_model(self, model: Components | Cleaner | Stems) -> int:
        """Remember a model and return its index."""
        with self._lock:
            self.models.append(model)
            return len(self.models) - 1

    # ---- jobs ----

    def open_files(self, files: Sequence[OpenedFile]) -> int:
        """Open recordings and saved work; unless they are long, look for the sounds in them."""
        return self.jobs.start("Opening", lambda progress: self._open(files, progress))

    def find_sounds(self, n_components: int, n_groups: int, **kind: bool) -> int:
        """Look for the sounds in all recordings; `kind` as in `discover`."""
        return self.jobs.start(
            "Finding sounds",
            lambda progress: self._find(n_components, n_groups, progress, **kind),
        )

    def propose(self, n_groups: int) -> int:
        """Group the components anew."""
        components, recordings = self.components(), list(self.recordings.values())

        def work(progress: Progress) -> None:
            project = self.project
            proposed = finding.propose(components, recordings, n_groups, project, progress=progress)
            self.do(lambda _: proposed)

        return self.jobs.start("Grouping", work)

    def split_further(self, group_id: int) -> int:
        """Find more components inside one group."""
        components, members = self.components(), self.project.group(group_id).components
        recordings = list(self.recordings.values())

        def work(progress: Progress) -> None:
            new, indices = finding.split_further(components, members, recordings, progress=progress)
            number = self.add_model(new)
            self.do(lambda project: replace(project, model=number).moved(indices, group_id))

        return self.jobs.start("Splitting further", work)

    def learn_sound(self, span: Span, band: tuple[float, float], name: str) -> int:
        """Learn the sound in a box of time and frequency as a new group."""
        components, recordings = self.components(), list(self.recordings.values())
        self.project.with_new_group([], name)  # a bad name is reported at once

        def work(progress: Progress) -> None:
            new, indices = finding.learn_sound(
                components,
                self.recording(span.recording),
                span,
                band,
                recordings,
                progress=progress,
            )
            number = self.add_model(new)
            self.do(lambda project: replace(project, model=number).with_new_group(indices, name))

        return self.jobs.start(f"Learning {name}", work)

    def export(self, title: str, kind: str, write: Callable[[Export], Download]) -> int:
        """Write a file and offer it to the page."""
        recordings, paths = list(self.recordings.values()), dict(self.paths)

        def work(progress: Progress) -> None:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                self.offer(write(Export(recordings, kind, folder, progress, paths)))
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, FileError) and Path(error.path).is_relative_to(folder):
                    raise FileError("The export", error.reason) from error
                raise

        return self.jobs.start(title, work)

    def packed(self) -> bytes:
        """All of the work as the bytes of a file."""
        with self._lock:
            components = None if self.project.model is None else self.components()
            cleaner = None if self.project.cleaner is None else self.cleaner().label
            stems = None if self.project.stems is None else self.stems().label
            data = pack_work(
                self.project, self.mix, components, self.recordings, self.paths, cleaner, stems
            )
            self._keep(is_saved=True)
            return data

    def clean(self, separator: str | None = None) -> int:
        """Divide voice and noise: by a separator, the selected noise, or the quietest pause."""
        if not self.recordings:
            raise ValueError("Open a recording first.")
        model = None if separator is None else self.separator(separator)
        project, recording = self.project, next(iter(self.recordings.values()))

        def work(progress: Progress) -> None:
            progress(None)
            noise = project.noise
            if model is not None and separator is not None:
                cleaner = cleaning.by_separator(model, separator)
            else:
                noise = noise or cleaning.quietest(recording)
                cleaner = cleaning.by_noise(self.recording(noise.recording), noise)
            progress(None)
            number = self.add_model(cleaner)
            self.do(lambda project: replace(project, cleaner=number, noise=noise))

        return self.jobs.start("Cleaning", work)

    def separate(self, name: str) -> int:
        """Divide the recordings into stems with names, by a separator."""
        model, recordings = self.separator(name), list(self.recordings.values())
        if not recordings:
            raise ValueError("Open a recording first.")

        def work(progress: Progress) -> None:
            progress(0.0)
            levels = measured_levels(model, "source", recordings, progress)
            number = self.add_model(Stems(model, name, levels))
            self.do(lambda project: replace(project, stems=number))

        return self.jobs.start(f"Separating by {name}", work)

    def _open(self, files: Sequence[OpenedFile], progress: Progress) -> None:
        n_before = len(self.recordings)
        for file in files:
            progress(None, f"Opening {file.name}")
            try:
                if file.path.suffix == ".ondes":
                    self._open_work(file, progress)
                else:
                    self._open_recording(file, progress)
            except (FileError, ValueError, OSError) as error:
                self._discard(file.path)
                text = f"{file.name}: {error.reason}." if isinstance(error, FileError) else ""
                self.say(text or sentence(error), "error")
        recordings = list(self.recordings.values())
        total = sum(recording.seconds for recording in recordings)
        if self._awaited is not None and recordings:
            self._apply(self._awaited, recordings, progress)
        elif len(recordings) > n_before and self.project.model is None:
            self.kind = kind_of(recordings)
            self._changed()
            is_field = self.kind == "field"
            if is_field or (self.kind == "music" and total <= AT_ONCE):
                self._find(finding.N_COMPONENTS, N_PROPOSED, progress, is_field=is_field)

    def _open_recording(self, file: OpenedFile, progress: Progress) -> None:
        number = f"r{next(self._numbers)}"
        recording = open_recording(file.path, number, file.name, self.folder, progress)
        with self._lock:
            self.recordings[number] = recording
            if not file.is_dropped:
                self.paths[number] = file.path.absolute()
            self._changed()

    def _open_work(self, file: OpenedFile, progress: Progress) -> None:
        """Take saved work or a model; its recordings are opened where a person named the file."""
        work = read_work(file.path)
        self._discard(file.path)
        if not isinstance(work, Work):
            self.separators[file.name] = work
            names = " and ".join(work.names)
            self.say(
                f"{file.name} separates {names}: choose it on the Speech page, or for named stems "
                "on the Music page."
            )
            return
        self._awaited = work
        known = {recording.digest for recording in self.recordings.values()}
        for each in work.recordings:
            path = None if each["path"] is None or file.is_dropped else Path(each["path"])
            if each["digest"] in known:
                continue
            if path is not None and path.is_file() and digest_of(path) == each["digest"]:
                self._open_recording(OpenedFile(path, each["name"]), progress)
            else:
                self.say(f"Open {each['name']}, too: this work belongs to it.")
        if not work.recordings and not self.recordings:
            self.say(f"{file.name} is ready: open a recording to hear its sounds in.")

    def _apply(self, work: Work, recordings: Sequence[Recording], progress: Progress) -> None:
        """Put saved work in the place of the present one."""
        progress(0.0, "Reading the recordings")
        project, model, cleaner, stems = work.on(recordings), None, None, None
        kind = "field" if is_of_the_field(recordings) else "music"
        if work.dictionary is not None:
            model = self.add_model(finding.measured(work.dictionary, recordings, progress))
        if work.cleaner is not None:
            cleaner = self.add_model(cleaning.by_separator(from_shelf(work.cleaner), work.cleaner))
        elif project.cleaner is not None and project.noise is not None:
            recording = self.recording(project.noise.recording)
            cleaner = self.add_model(cleaning.by_noise(recording, project.noise))
        if work.stems is not None:
            separator = from_shelf(work.stems)
            levels = measured_levels(separator, "source", recordings, progress)
            stems = self.add_model(Stems(separator, work.stems, levels))
        with self._lock:
            project = replace(project, model=model, cleaner=cleaner, stems=stems)
            self.history = History(project)
            self.mix, self._awaited = work.mix, None
            is_talk = model is None and stems is None  # there is a cleaner or its noise alone
            self.kind = "speech" if is_talk else kind
            self.work += 1
            self._keep(is_saved=True)

    def _find(self, n_components: int, n_groups: int, progress: Progress, **kind: bool) -> None:
        recordings = list(self.recordings.values())
        if not recordings:
            raise ValueError("Open a recording first.")
        progress(0.0, "Finding sounds")
        found = finding.discover(recordings, n_components, progress=progress, **kind)
        number, is_first = self.add_model(found), self.project.model is None
        self.do(lambda project: replace(project, model=number, groups=()))
        progress(None, "Grouping")
        n_groups = min(n_groups, found.n_parts)
        proposed = finding.propose(found, recordings, n_groups, self.project, progress=progress)
        with self._lock:
            if self.project.model == number and not self.project.groups:
                self.history.present = replace(
                    self.project, groups=proposed.groups, next_id=proposed.next_id
                )
            if is_first:  # there is nothing to go back to
                self.history = History(self.project)
                self._keep(is_saved=False)
            self._changed()

    def _changed(self) -> None:
        with self._lock:
            self.version += 1

    @property
    def job(self) -> Job | None:
        """The latest job."""
        return self.jobs.current
