"""Everything that is open in the studio; the page is a view of it."""

from __future__ import annotations

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
from ondes.studio import components as finding
from ondes.studio.components import Components
from ondes.studio.export import Download
from ondes.studio.jobs import Busy, Job, Jobs, Progress, sentence
from ondes.studio.project import History, Mix, Project, Span
from ondes.studio.recordings import Recording, digest_of, open_recording
from ondes.studio.sounds import Listening, Separable
from ondes.studio.voice import Cleaner, learn_cleaner
from ondes.studio.work_file import Work, pack_work, read_work

__all__ = ["OpenedFile", "Session"]

AT_ONCE = 1200.0  # seconds: sounds are looked for without being asked
N_PROPOSED = 4
MAX_MESSAGES = 20


@dataclass(frozen=True)
class OpenedFile:
    """A file that a person has named on the command line, or dropped onto the page."""

    path: Path
    name: str
    is_dropped: bool = False


class Session:
    """The recordings, the models learned from them, and the project in the hands of one person.

    Attributes
    ----------
    recordings : dict of str to Recording
    models : list
        `Components` and `Cleaner`; a project names them by index.
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

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ondes-studio-"))
        self.recordings: dict[str, Recording] = {}
        self.models: list[Components | Cleaner] = []
        self.history = History(Project())
        self.mix = Mix()
        self.jobs = Jobs(self._changed)
        self.version = self.work = 0
        self.messages: list[dict[str, Any]] = []
        self.downloads: dict[str, Download] = {}
        self.paths: dict[str, Path] = {}
        self._awaited: Work | None = None
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)

    def new_folder(self) -> Path:
        """An empty folder of this session."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def offer(self, download: Download) -> None:
        """Let the page fetch a file."""
        with self._lock:
            self.downloads[secrets.token_urlsafe(16)] = download
            self._changed()

    def close(self) -> None:
        """End the running job and remove the session's files."""
        self.jobs.cancel()
        self.jobs.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def project(self) -> Project:
        """The present project."""
        return self.history.present

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
            raise ValueError("Select a pause first, and press 'This is noise'.")
        return model

    def recording(self, id: str) -> Recording:  # noqa: A002
        """An open recording; ValueError where there is none of this id."""
        if id not in self.recordings:
            raise ValueError("That recording is no longer open; open it again.")
        return self.recordings[id]

    def model(self, index: int) -> Separable:
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
            self.recordings, self.paths, self.models = {}, {}, []
            self.history, self.mix, self._awaited = History(Project()), Mix(), None
            self.work += 1
            self._changed()

    def add_model(self, model: Components | Cleaner) -> int:
        """Remember a model and return its index."""
        with self._lock:
            self.models.append(model)
            return len(self.models) - 1

    # ---- jobs ----

    def open_files(self, files: Sequence[OpenedFile]) -> int:
        """Open recordings and saved work; unless they are long, look for the sounds in them."""
        return self.jobs.start("Opening", lambda progress: self._open(files, progress))

    def find_sounds(self, n_components: int, n_groups: int, is_ultrasonic: bool = False) -> int:
        """Look for the sounds in all recordings."""
        return self.jobs.start(
            "Finding sounds",
            lambda progress: self._find(n_components, n_groups, progress, is_ultrasonic),
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

    def learn_sound(self, span: Span, name: str) -> int:
        """Learn the sound of one moment as a new group."""
        components, recordings = self.components(), list(self.recordings.values())
        self.project.with_new_group([], name)  # a bad name is reported at once

        def work(progress: Progress) -> None:
            new, indices = finding.learn_sound(
                components,
                self.recording(span.recording),
                span.start,
                span.end,
                recordings,
                progress=progress,
            )
            number = self.add_model(new)
            self.do(lambda project: replace(project, model=number).with_new_group(indices, name))

        return self.jobs.start(f"Learning {name}", work)

    def export(self, title: str, work: Callable[[Path, Progress], Download]) -> int:
        """Write a file and offer it to the page."""
        return self.jobs.start(
            title, lambda progress: self.offer(work(self.new_folder(), progress))
        )

    def packed(self) -> bytes:
        """All of the work as the bytes of a file."""
        with self._lock:
            components = None if self.project.model is None else self.components()
            return pack_work(self.project, self.mix, components, self.recordings, self.paths)

    def clean(self) -> int:
        """Learn to divide the voice from the noise that is selected."""
        project = self.project
        if project.noise is None:
            raise ValueError("Select a pause first, and press 'This is noise'.")
        noise, voice = project.noise, project.voice

        def work(progress: Progress) -> None:
            progress(None)
            cleaner = learn_cleaner(self.recording, noise, voice)
            progress(None)
            number = self.add_model(cleaner)
            self.do(lambda project: replace(project, cleaner=number))

        return self.jobs.start("Learning the noise", work)

    def _open(self, files: Sequence[OpenedFile], progress: Progress) -> None:
        n_before = len(self.recordings)
        for file in files:
            progress(None, f"Opening {file.name}")
            try:
                if file.path.suffix == ".ondes":
                    self._await(read_work(file.path), file, progress)
                else:
                    self._open_recording(file, progress)
            except (FileError, ValueError, OSError) as error:
                text = f"{file.name}: {error.reason}." if isinstance(error, FileError) else ""
                self.say(text or sentence(error), "error")
        recordings = list(self.recordings.values())
        total = sum(recording.seconds for recording in recordings)
        if self._awaited is not None and recordings:
            self._apply(self._awaited, recordings, progress)
        elif len(recordings) > n_before and self.project.model is None and total <= AT_ONCE:
            self._find(finding.N_COMPONENTS, N_PROPOSED, progress)

    def _open_recording(self, file: OpenedFile, progress: Progress) -> None:
        number = f"r{next(self._numbers)}"
        recording = open_recording(file.path, number, file.name, self.folder, progress)
        with self._lock:
            self.recordings[number] = recording
            if not file.is_dropped:
                self.paths[number] = file.path.absolute()
            self._changed()

    def _await(self, work: Work, file: OpenedFile, progress: Progress) -> None:
        """Take saved work; its recordings are opened where a person has named the file."""
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

    def _apply(self, work: Work, recordings: Sequence[Recording], progress: Progress) -> None:
        """Put saved work in the place of the present one."""
        progress(0.0, "Reading the recordings")
        project, model, cleaner = work.on(recordings), None, None
        if work.dictionary is not None:
            heard = finding.listened(work.dictionary, recordings, progress)
            model = self.add_model(heard)
        if project.cleaner is not None and project.noise is not None:
            cleaner = self.add_model(learn_cleaner(self.recording, project.noise, project.voice))
        with self._lock:
            self.history = History(replace(project, model=model, cleaner=cleaner))
            self.mix, self._awaited = work.mix, None
            self.work += 1
            self._changed()

    def _find(
        self, n_components: int, n_groups: int, progress: Progress, is_ultrasonic: bool = False
    ) -> None:
        recordings = list(self.recordings.values())
        if not recordings:
            raise ValueError("Open a recording first.")
        progress(0.0, "Finding sounds")
        found = finding.discover(
            recordings, n_components, is_ultrasonic=is_ultrasonic, progress=progress
        )
        number = self.add_model(found)
        self.do(lambda project: replace(project, model=number, groups=()))
        progress(None, "Grouping")
        n_groups = min(n_groups, found.n_parts)
        proposed = finding.propose(found, recordings, n_groups, self.project, progress=progress)
        with self._lock:
            if self.project.model == number and not self.project.groups:
                self.history.present = replace(
                    self.project, groups=proposed.groups, next_id=proposed.next_id
                )
            self._changed()

    def _changed(self) -> None:
        with self._lock:
            self.version += 1

    @property
    def job(self) -> Job | None:
        """The latest job."""
        return self.jobs.current
