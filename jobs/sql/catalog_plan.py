"""What a catalog's schema should hold for a warehouse, and the steps that get it there; without I/O.

The comment of each entry names its maker, its warehouse, and a digest of its definition. From these, a run tells which
entries are unchanged, which have changed, and which others made; the last are never touched. (The comment belongs to
the catalog. A property of a Delta table would be a commit to its log, and only `tables` commits to message tables.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_MADE: Final = re.compile(r"Made by DeltaMQ from (?P<warehouse>.*); definition (?P<digest>[0-9a-f]{16})\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A table (has a `location`) or a view (has a `query`) that the schema should have."""

    name: str
    about: str
    location: str = ""
    query: str = ""
    #: The definition beyond the location (a table's columns): a change of it makes the table anew.
    form: str = ""

    def comment(self, warehouse: str) -> str:
        """Return the comment that the catalog stores with the entry."""
        return f"{self.about} Made by DeltaMQ from {warehouse}; definition {self.digest}."

    @property
    def digest(self) -> str:
        """A short digest of the whole definition."""
        told = "\0".join((self.about, self.location, self.query, self.form))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A table or view that the schema has; `warehouse` is None if DeltaMQ did not make it."""

    name: str
    is_view: bool
    warehouse: str | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class CatalogStep:
    """One statement: what to drop or to make. Making a view replaces one that exists."""

    name: str
    drop_view: bool = False
    drop_table: bool = False
    make: CatalogEntry | None = None


def made_of(name: str, is_view: bool, comment: str) -> Made:
    """Return a table or view of the schema, with the maker that its comment names."""
    told = _MADE.search(comment)
    if told is None:
        return Made(name=name, is_view=is_view)
    return Made(name=name, is_view=is_view, warehouse=told["warehouse"], digest=told["digest"])


def plan_steps(
    wanted: Sequence[CatalogEntry], found: Iterable[Made], warehouse: str
) -> tuple[Sequence[CatalogStep], Sequence[str]]:
    """Return the steps in order, and the wanted names that are taken by tables of others.

    Views are made after all tables and dropped before any table, so no view ever refers to a missing table.
    """
    there: Mapping[str, Made] = {one.name: one for one in found}
    taken = sorted(e.name for e in wanted if e.name in there and there[e.name].warehouse != warehouse)
    free = [entry for entry in wanted if entry.name not in taken]
    steps: list[CatalogStep] = []
    for entry in sorted(free, key=lambda entry: bool(entry.query)):
        made = there.get(entry.name)
        if made is not None and made.digest == entry.digest:
            continue
        if made is not None and not (made.is_view and entry.query):
            steps.append(CatalogStep(entry.name, drop_view=made.is_view, drop_table=not made.is_view))
        steps.append(CatalogStep(entry.name, make=entry))
    names = {entry.name for entry in wanted}
    over = [one for one in there.values() if one.warehouse == warehouse and one.name not in names]
    for one in sorted(over, key=lambda one: (not one.is_view, one.name)):
        steps.append(CatalogStep(one.name, drop_view=one.is_view, drop_table=not one.is_view))
    return steps, taken
