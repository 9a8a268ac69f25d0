"""The order in which recordings are read, in segments, and the position in it.

The dictionary remembers its last frames best, so these must be a fair sample of all there are. A
pass therefore goes through short segments of all recordings in one random order, rather than
through one recording after the other.

Work goes in rounds: the frames of some segments, mixed by a generator seeded with (random state,
pass, round) and cut into batches. Where a round starts is a few numbers, so an interrupted run
continues by reading that round again: no frame is ever stored.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ondes.signal.audio_settings import AudioSettings, Loudest
from ondes.signal.survey import INVALID, Recording, SavedFacts, check_same, facts_of, vector

__all__ = ["Position", "Schedule"]

MAX_COUNT = 2**53  # of anything in a position


class Segment(NamedTuple):
    """Frames `first` to `first + n_frames` of the recording number `file`."""

    file: int
    first: int
    n_frames: int


@dataclass(frozen=True)
class Position:
    """Where a round starts, and how many of its batches were given out.

    Attributes
    ----------
    n_pass, n_round : int
        The current pass and the round in it, counted from zero.
    n_unmeasured : int
        Recordings of unknown length that this pass has read to their end.
    frame : int
        Where to continue in the next one of these.
    n_read : int
        Frames read before the round, over all passes, silent ones included.
    n_given : int
        Batches of the round that were given out.
    loudest : dict of int to float
        By recording, the energy of its loudest frame so far.
    """

    n_pass: int = 0
    n_round: int = 0
    n_unmeasured: int = 0
    frame: int = 0
    n_read: int = 0
    n_given: int = 0
    loudest: Loudest = field(default_factory=dict)


COUNTS = tuple(each.name for each in fields(Position) if each.name != "loudest")


class PassOrder:
    """The segments of one pass in the order they are read, and the rounds they make.

    Seekable recordings are cut and mixed freely. The others are put in `n_open` queues, each of
    which is read from its beginning to its end; their segments stand at random places among all,
    in this order. Recordings of unknown length are not part of the order: they come after it.

    Parameters
    ----------
    recordings : sequence of Recording
    generator : numpy.random.Generator
        Decides the order.
    segment_size : int
        Frames in a segment, about.
    round_size : int
        Frames in a round, about: it ends with the segment that fills it.
    n_open : int
        Queues.

    Attributes
    ----------
    unmeasured : list of int
        The recordings of unknown length, in the order they are read.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        generator: np.random.Generator,
        *,
        segment_size: int,
        round_size: int,
        n_open: int,
    ) -> None:
        files = [int(file) for file in generator.permutation(len(recordings))]
        self.unmeasured = [file for file in files if recordings[file].n_frames is None]
        measured = [file for file in files if recordings[file].n_frames]
        seekable = [file for file in measured if recordings[file].seekable]
        others = [file for file in measured if not recordings[file].seekable]
        queues = [others[n::n_open] for n in range(min(n_open, len(others)))]

        cuts = [_cut(part, recordings, segment_size) for part in (seekable, *queues)]
        segments = np.concatenate(cuts)
        places = generator.permutation(len(segments))
        for start, end in itertools.pairwise(np.cumsum([len(cut) for cut in cuts])):
            places[start:end].sort()
        self._segments = segments[np.argsort(places)]
        ends = np.cumsum(self._segments[:, 2])
        rounds = (ends - self._segments[:, 2]) // round_size
        self._starts = np.append(np.flatnonzero(np.diff(rounds, prepend=-1)), len(segments))

    @property
    def n_rounds(self) -> int:
        """Number of rounds of recordings of known length."""
        return len(self._starts) - 1

    def segments(self, n_round: int) -> list[Segment]:
        """The segments of a round, in the order of the recordings."""
        rows = self._segments[self._starts[n_round] : self._starts[n_round + 1]]
        return sorted(Segment(*map(int, row)) for row in rows)


def _cut(files: list[int], recordings: Sequence[Recording], segment_size: int) -> NDArray[np.int64]:
    """Segments of nearly equal length, as rows of file, first frame and number of frames."""
    n_frames = np.array([recordings[file].n_frames for file in files], np.int64)
    n_segments = np.maximum(1, np.rint(n_frames / segment_size).astype(np.int64))
    of_file = np.repeat(np.arange(len(files)), n_segments)
    number = np.arange(len(of_file)) - np.repeat(np.cumsum(n_segments) - n_segments, n_segments)
    first, end = ((number + n) * n_frames[of_file] // n_segments[of_file] for n in (0, 1))
    return np.stack([np.array(files, np.int64)[of_file], first, end - first], axis=1)


class Schedule:
    """Which segments are read in which order, and the current position.

    All of it is a function of the recordings, the settings and the random state; no file is opened.

    Parameters
    ----------
    recordings : sequence of Recording
        From `ondes.signal.survey.survey` or `ondes.signal.survey.describe`.
    audio : AudioSettings
    batch_size : int
        Frames in a batch.
    round_size : int
        Frames in a round, about, and at least `batch_size`: they are shuffled among each other.
    segment_size : int
        Consecutive frames of a recording, about, before the next segment is drawn from anywhere.
    n_open : int
        Recordings to read from at a time, of those that are not seekable.
    random_state : int
    n_passes : int
        How often to go through all recordings, each time in another order.

    Attributes
    ----------
    position : Position
        Where the next batch comes from; changed by `advance` and `restore`.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> recordings = [Recording("a.wav", 8000, 8000, 251, seekable=True)]
    >>> sizes = {"batch_size": 50, "round_size": 100, "segment_size": 50}
    >>> schedule = Schedule(recordings, AudioSettings(8000, Stft(64)), **sizes)
    >>> schedule.segments_at(schedule.position)
    [Segment(file=0, first=150, n_frames=50), Segment(file=0, first=200, n_frames=51)]
    >>> schedule.advance(schedule.after(schedule.position, 101, {0: 0.5}))
    >>> schedule.position.n_round, round(schedule.seconds_done, 3), schedule.seconds_total
    (1, 0.404, 1.0)
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        audio: AudioSettings,
        *,
        batch_size: int,
        round_size: int,
        segment_size: int = 1024,
        n_open: int = 32,
        random_state: int = 0,
        n_passes: int = 1,
    ) -> None:
        counts = {"batch_size": batch_size, "n_open": n_open, "segment_size": segment_size}
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")
        if n_passes > 1 and any(recording.sr == 0 for recording in recordings):
            raise ValueError("A stream can be read only once: n_passes must be 1.")
        self.recordings, self.audio = list(recordings), audio
        self.batch_size = operator.index(batch_size)
        self.round_size = max(self.batch_size, operator.index(round_size))
        self.segment_size = min(operator.index(segment_size), self.round_size)
        self.n_open, self.n_passes = operator.index(n_open), operator.index(n_passes)
        self.random_state = operator.index(random_state)
        self.position = Position()
        self._n_done = 0.0
        self._last_order: tuple[int, PassOrder] | None = None

    # ---- order ----

    def order_of_pass(self, n_pass: int) -> PassOrder:
        """The segments of a pass, in rounds; the last pass asked for is kept."""
        if self._last_order is None or self._last_order[0] != n_pass:
            order = PassOrder(
                self.recordings,
                np.random.default_rng([self.random_state, n_pass, 0]),
                segment_size=self.segment_size,
                round_size=self.round_size,
                n_open=self.n_open,
            )
            self._last_order = n_pass, order
            return order
        return self._last_order[1]

    def segments_at(self, position: Position) -> list[Segment]:
        """The segments of the round that starts at a position."""
        order = self.order_of_pass(position.n_pass)
        if position.n_round < order.n_rounds:
            return order.segments(position.n_round)
        if position.n_unmeasured < len(order.unmeasured):
            file = order.unmeasured[position.n_unmeasured]
            return [Segment(file, position.frame, self.round_size)]
        return []

    def after(self, position: Position, n_read: int, loudest: Loudest) -> Position:
        """Where the next round starts.

        Parameters
        ----------
        position : Position
            Where the round started.
        n_read : int
            Frames read in the round, silent ones included.
        loudest : dict of int to float
            By recording, the energy of its loudest frame so far.
        """
        order = self.order_of_pass(position.n_pass)
        n_unmeasured, frame = position.n_unmeasured, position.frame
        if position.n_round >= order.n_rounds and n_unmeasured < len(order.unmeasured):
            is_over = n_read < self.round_size
            n_unmeasured, frame = n_unmeasured + is_over, 0 if is_over else frame + n_read
        n_pass, n_round, n_read = position.n_pass, position.n_round + 1, position.n_read + n_read
        if n_round >= order.n_rounds and n_unmeasured == len(order.unmeasured):
            return Position(n_pass + 1, n_read=n_read, loudest=loudest)
        return Position(n_pass, n_round, n_unmeasured, frame, n_read, loudest=loudest)

    def permutation(self, position: Position, n: int) -> NDArray[np.intp]:
        """The order in which the `n` frames of the round at a position are given out."""
        key = [self.random_state, position.n_pass, position.n_round + 1]
        return np.random.default_rng(key).permutation(n)

    def is_finished(self, position: Position) -> bool:
        """Whether a position is the end of the last pass."""
        return position.n_pass >= self.n_passes

    # ---- position ----

    def advance(self, position: Position, n_done: float | None = None) -> None:
        """Set the current position.

        Parameters
        ----------
        position : Position
        n_done : float, optional
            Frames read up to here, for `seconds_done`; `position.n_read` if not given.
        """
        self.position = position
        self._n_done = position.n_read if n_done is None else n_done

    @property
    def seconds_done(self) -> float:
        """Seconds of sound up to the current position, over all passes."""
        seconds = self._n_done * self.audio.stft.hop_length / self.audio.sr
        return seconds if self.seconds_total is None else min(seconds, self.seconds_total)

    @cached_property
    def seconds_total(self) -> float | None:
        """Seconds of sound in all passes, without unreadable recordings; None where unknown."""
        each = [recording.seconds for recording in self.recordings]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * self.n_passes if len(known) == len(each) else None

    # ---- saved position ----

    def state(self) -> dict[str, Any]:
        """The current position as plain values and arrays: a few numbers per recording."""
        loudest, n = self.position.loudest, len(self.position.loudest)
        return {
            "settings": self._fingerprint,
            "recordings": self._facts,
            "position": [int(getattr(self.position, name)) for name in COUNTS],
            "loudest_files": np.fromiter(loudest.keys(), np.int64, n),
            "loudest_energies": np.fromiter(loudest.values(), np.float64, n),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a `state` of the same recordings and settings.

        Raises
        ------
        ValueError
            Where a recording is gone, new or changed, a setting differs, or the position is
            invalid. A recording with other bytes is a RuntimeWarning.
        """
        try:
            recordings, settings = state["recordings"], str(state["settings"])
            counts = dict(zip(COUNTS, map(_count, state["position"]), strict=True))
            files = vector(state["loudest_files"], np.int64)
            energies = vector(state["loudest_energies"], np.float64)
            loudest = dict(zip(files.tolist(), energies.tolist(), strict=True))
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(INVALID) from error
        check_same(recordings, self.recordings)
        if settings != self._fingerprint:
            raise ValueError(
                "The saved position belongs to other settings: start again without it."
            )
        position = Position(**counts, loudest=loudest)
        are_known = ((files >= 0) & (files < len(self.recordings))).all()
        is_one_each = len(loudest) == len(files)
        if not (are_known and is_one_each and (energies >= 0).all() and self._allows(position)):
            raise ValueError(INVALID)
        self.advance(position)

    def _allows(self, position: Position) -> bool:
        """Whether `after` and the batches of a round can have led to a position."""
        order = self.order_of_pass(position.n_pass)
        n_beyond = position.n_round - order.n_rounds
        if n_beyond < 0 or not order.unmeasured:
            is_place = position.n_round < max(1, order.n_rounds)
            is_place = is_place and position.n_unmeasured == position.frame == 0
        else:
            n_full, n_rest = divmod(position.frame, self.round_size)
            is_place = position.n_unmeasured < len(order.unmeasured) and n_rest == 0
            is_place = is_place and position.n_unmeasured + n_full <= n_beyond
        return is_place and position.frame <= position.n_read and self._has_batches(position)

    def _has_batches(self, position: Position) -> bool:
        """Whether a round can have as many batches as were given out."""
        segments = self.segments_at(position)
        if not all(self.recordings[each.file].seekable for each in segments):
            return True  # the length of the others is an estimate
        # Resampled, a recording may have a frame more than expected.
        n_frames = sum(each.n_frames + 1 for each in segments)
        return position.n_given * self.batch_size <= n_frames

    @cached_property
    def _facts(self) -> SavedFacts:
        return facts_of(self.recordings)

    @cached_property
    def _fingerprint(self) -> str:
        sizes = (self.batch_size, self.round_size, self.segment_size, self.n_open)
        settings = (*astuple(self.audio), *sizes, self.random_state)
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]


def _count(value: Any) -> int:
    """A number from a file that must count something; TypeError where it does not."""
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise TypeError("not a count")
    return value
