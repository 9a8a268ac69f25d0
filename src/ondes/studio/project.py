"""The work in the studio as immutable values: groups of components, selections, and the mix.

Every action makes a new `Project` from the old one, so undo is a list of projects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

__all__ = ["Group", "History", "Mix", "Project", "Span", "checked_name"]

MAX_NAME, MAX_GROUPS = 80, 1000
MIN_DB, MAX_DB = -60.0, 12.0


@dataclass(frozen=True)
class Group:
    """Components that sound together.

    Parameters
    ----------
    id : int
        Stays the same while the group lives; its colour follows from it.
    name : str
    components : tuple of int
    is_proposed : bool
        Whether nobody has confirmed it yet.
    """

    id: int
    name: str
    components: tuple[int, ...] = ()
    is_proposed: bool = False


@dataclass(frozen=True)
class Span:
    """A part of a recording, in seconds."""

    recording: str
    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end < float("inf"):
            raise ValueError("Select a part first: drag over the picture.")


@dataclass(frozen=True)
class Project:
    """What can be undone.

    Parameters
    ----------
    model : int or None
        Which model of the session the components are of.
    cleaner : int or None
        Which model of the session divides a voice from its noise.
    stems : int or None
        Which model of the session divides the recordings into stems with names.
    groups : tuple of Group
        In the order of the lanes. Components in none are "the rest".
    noise : Span or None
        Where the noise is alone.
    next_id : int
        Identifies the next group.

    Examples
    --------
    >>> project = Project(model=0).with_new_group([0, 2], "bass").with_new_group([1], "drums")
    >>> project = project.moved([2], 2)
    >>> [(group.name, group.components) for group in project.groups]
    [('bass', (0,)), ('drums', (1, 2))]
    """

    model: int | None = None
    cleaner: int | None = None
    stems: int | None = None
    groups: tuple[Group, ...] = ()
    noise: Span | None = None
    next_id: int = 1

    @classmethod
    def of(cls, groups: Iterable[Group], **others: Any) -> Self:
        """A project with these groups; ValueError where two share a name, an id or a component."""
        groups = tuple(groups)
        if len(groups) > MAX_GROUPS:
            raise ValueError(f"There can be {MAX_GROUPS} groups.")
        members = [component for group in groups for component in group.components]
        ids, names = [group.id for group in groups], [group.name.casefold() for group in groups]
        if any(len(set(each)) < len(each) for each in (members, ids, names)):
            raise ValueError("Two groups share a name, a number or a component.")
        return cls(groups=groups, next_id=1 + max(ids, default=0), **others)

    def group(self, id: int) -> Group:  # noqa: A002
        """The group of an id; ValueError where there is none."""
        for group in self.groups:
            if group.id == id:
                return group
        raise ValueError("That group no longer exists; choose another one.")

    def owner(self, component: int) -> Group | None:
        """The group that a component is in."""
        return self._owners.get(component)

    @cached_property
    def _owners(self) -> dict[int, Group]:
        return {component: group for group in self.groups for component in group.components}

    def with_new_group(self, components: Iterable[int], name: str | None = None) -> Self:
        """Put components into a new group."""
        taken = {group.name for group in self.groups}
        if name is None:
            numbers = (f"Group {n}" for n in range(1, len(taken) + 2))
            name = next(each for each in numbers if each not in taken)
        if len(self.groups) == MAX_GROUPS:
            raise ValueError(f"There can be {MAX_GROUPS} groups.")
        group = Group(self.next_id, self._free_name(name))
        grown = replace(self, groups=(*self.groups, group), next_id=self.next_id + 1)
        return grown.moved(components, group.id)

    def moved(self, components: Iterable[int], to: int | None) -> Self:
        """Move components into a group, or with None out of every group."""
        moving = tuple(dict.fromkeys(components))
        if to is not None:
            self.group(to)
        groups = []
        for group in self.groups:
            kept = tuple(each for each in group.components if each not in moving)
            if group.id == to:
                kept = (*kept, *moving)
            is_same = kept == group.components
            groups.append(
                replace(group, components=kept, is_proposed=group.is_proposed and is_same)
            )
        return replace(self, groups=tuple(groups))

    def renamed(self, id: int, name: str) -> Self:  # noqa: A002
        """Give a group another name."""
        group = self.group(id)
        if name == group.name:
            return self._with(replace(group, is_proposed=False))
        return self._with(replace(group, name=self._free_name(name), is_proposed=False))

    def confirmed(self, id: int | None = None) -> Self:  # noqa: A002
        """Accept one proposed group, or all of them."""
        return replace(
            self,
            groups=tuple(
                replace(group, is_proposed=group.is_proposed and id not in (None, group.id))
                for group in self.groups
            ),
        )

    def merged(self, into: int, other: int) -> Self:
        """Put all components of another group into one, and remove the other."""
        if into == other:
            return self
        return self.moved(self.group(other).components, into).without(other)

    def without(self, id: int) -> Self:  # noqa: A002
        """Remove a group; its components are in none."""
        self.group(id)
        return replace(self, groups=tuple(group for group in self.groups if group.id != id))

    def split(self, id: int, components: Iterable[int]) -> Self:  # noqa: A002
        """Move some components of a group into a new one beside it."""
        group = self.group(id)
        moving = [each for each in components if each in group.components]
        if not moving or len(moving) == len(group.components):
            raise ValueError("Select some of the group's components, not all of them.")
        grown = self.with_new_group(moving, f"{group.name} 2")
        *others, new = grown.groups
        at = next(n for n, each in enumerate(others) if each.id == id) + 1
        return replace(grown, groups=(*others[:at], new, *others[at:]))

    def _with(self, changed: Group) -> Self:
        groups = tuple(changed if group.id == changed.id else group for group in self.groups)
        return replace(self, groups=groups)

    def _free_name(self, name: str) -> str:
        name = checked_name(name)
        if name.casefold() in {group.name.casefold() for group in self.groups}:
            raise ValueError(f"There is a group {name!r} already; choose another name.")
        return name


def checked_name(name: str) -> str:
    """A name as one short line; ValueError where nothing is left, or "rest"."""
    name = " ".join("".join(c if c.isprintable() else " " for c in name).split())[:MAX_NAME]
    if not name:
        raise ValueError("A group needs a name.")
    if name.casefold() == "rest":  # of what is in no group
        raise ValueError("'rest' is the name of what is in no group; choose another name.")
    return name


@dataclass(frozen=True)
class Mix:
    """What is heard; saved, but not undone.

    Parameters
    ----------
    gains : mapping of str to float
        Decibels by key: ``c3`` is component 3, ``g1`` group 1, ``s0`` stem 0. Missing keys are 0.
    muted, soloed : frozenset of str
    amount : float
        Decibels by which the noise is reduced.

    Examples
    --------
    >>> Mix().changed("g1", gain=-6.0, mute=True).gains
    {'g1': -6.0}
    """

    gains: dict[str, float] = field(default_factory=dict)
    muted: frozenset[str] = frozenset()
    soloed: frozenset[str] = frozenset()
    amount: float = 30.0

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.amount, *self.gains.values()))):
            raise ValueError("A gain must be a number of decibels.")

    def changed(
        self,
        key: str,
        *,
        gain: float | None = None,
        mute: bool | None = None,
        solo: bool | None = None,
    ) -> Self:
        """Another gain, mute or solo of one component or group."""
        if not (key[:1] in "cgs" and key[1:].isdecimal() and len(key) < 9):
            raise ValueError(f"{key!r} names no component, group or stem.")
        gains = dict(self.gains)
        if gain is not None:
            gains[key] = min(max(float(gain), MIN_DB), MAX_DB)
        muted = self.muted if mute is None else _toggled(self.muted, key, mute)
        soloed = self.soloed if solo is None else _toggled(self.soloed, key, solo)
        return replace(self, gains=gains, muted=muted, soloed=soloed)

    def factor(self, *keys: str) -> float:
        """The factor of what has these keys: a component and its group, or a stem.

        Examples
        --------
        >>> mix = Mix().changed("s1", solo=True).changed("g1", gain=-20.0)
        >>> mix.factor("s0"), mix.factor("s1"), mix.factor("c0", "g1")
        (0.0, 1.0, 0.1)
        """
        is_stem = keys[0].startswith("s")
        soloed = {key for key in self.soloed if key.startswith("s") == is_stem}
        if self.muted.intersection(keys) or (soloed and not soloed.intersection(keys)):
            return 0.0
        return round(10 ** (sum(self.gains.get(key, 0.0) for key in keys) / 20), 9)

    def as_plain(self) -> dict[str, Any]:
        """What is heard as lists and dicts, for the page and for a file."""
        return {**asdict(self), "muted": sorted(self.muted), "soloed": sorted(self.soloed)}


def _toggled(keys: frozenset[str], key: str, is_on: bool) -> frozenset[str]:
    return keys | {key} if is_on else keys - {key}


class History:
    """The present project, and those before and after it.

    Examples
    --------
    >>> history = History(Project())
    >>> history.do(Project(model=3))
    >>> history.undo()
    >>> history.present.model, history.can_redo
    (None, True)
    """

    MAX_STEPS = 500

    def __init__(self, present: Project) -> None:
        self._past: list[Project] = []
        self._future: list[Project] = []
        self.present = present

    @property
    def can_undo(self) -> bool:
        """Whether there is a project before."""
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        """Whether there is a project after."""
        return bool(self._future)

    def do(self, project: Project) -> None:
        """Make a new present; what was undone before is lost."""
        if project != self.present:
            self._past = [*self._past, self.present][-self.MAX_STEPS :]
            self.present, self._future = project, []

    def undo(self) -> None:
        """Go one step back, if there is one."""
        if self._past:
            self._future.append(self.present)
            self.present = self._past.pop()

    def redo(self) -> None:
        """Go one step forward again, if there is one."""
        if self._future:
            self._past.append(self.present)
            self.present = self._future.pop()
