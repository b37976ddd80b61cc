"""What a catalog's schema should hold for a warehouse, and what has to be done for it: pure.

Each entry says in its comment who made it, from which warehouse, and a digest of what it is. So a run sees what is
there, what has changed, and what is somebody else's, which it never touches. (The comment is the catalog's own. A
property of a Delta table would be a commit to its log, and message tables have one family of writers.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Entry", "Made", "Step", "made_of", "plan_steps"]

_MADE: Final = re.compile(r"Made by DeltaMQ from (?P<warehouse>.*); definition (?P<digest>[0-9a-f]{16})\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A table (`location`) or a view (`query`) that should be there."""

    name: str
    about: str
    location: str = ""
    query: str = ""
    #: Changes of what a table is that its location does not show.
    form: str = ""

    def comment(self, warehouse: str) -> str:
        """Return what its comment says."""
        return f"{self.about} Made by DeltaMQ from {warehouse}; definition {self.digest}."

    @property
    def digest(self) -> str:
        """A short digest of all that it is."""
        told = "\0".join((self.about, self.location, self.query, self.form))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What is there under a name; `warehouse` is None for what somebody else made."""

    name: str
    is_view: bool
    warehouse: str | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One statement: what to drop, or to make; a view that is there is replaced as it is made."""

    name: str
    drop_view: bool = False
    drop_table: bool = False
    make: Entry | None = None


def made_of(name: str, is_view: bool, comment: str) -> Made:
    """Return what a comment says of who made it."""
    told = _MADE.search(comment)
    if told is None:
        return Made(name=name, is_view=is_view)
    return Made(name=name, is_view=is_view, warehouse=told["warehouse"], digest=told["digest"])


def plan_steps(wanted: Sequence[Entry], found: Iterable[Made], warehouse: str) -> tuple[Sequence[Step], Sequence[str]]:
    """Return the steps, in order, and the names that are wanted and somebody else's.

    A view is made after all tables, and goes before any table does, so none ever names what is not there.
    """
    there: Mapping[str, Made] = {one.name: one for one in found}
    taken = sorted(e.name for e in wanted if e.name in there and there[e.name].warehouse != warehouse)
    free = [entry for entry in wanted if entry.name not in taken]
    steps: list[Step] = []
    for entry in sorted(free, key=lambda entry: bool(entry.query)):
        made = there.get(entry.name)
        if made is not None and made.digest == entry.digest:
            continue
        if made is not None and not (made.is_view and entry.query):
            steps.append(Step(entry.name, drop_view=made.is_view, drop_table=not made.is_view))
        steps.append(Step(entry.name, make=entry))
    names = {entry.name for entry in wanted}
    over = [one for one in there.values() if one.warehouse == warehouse and one.name not in names]
    for one in sorted(over, key=lambda one: (not one.is_view, one.name)):
        steps.append(Step(one.name, drop_view=one.is_view, drop_table=not one.is_view))
    return steps, taken
