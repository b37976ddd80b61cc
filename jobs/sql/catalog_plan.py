"""The wanted entries of a catalog's schema, and the steps that make them; without I/O.

The comment of each entry names its maker, its warehouse, and a digest of its definition. They show a run which
entries are unchanged, which have changed, and which DeltaMQ did not make: those are never touched. (The comment belongs
to the catalog. A property of a Delta table would be a commit to its log, and only `tables` commits to message tables.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

_MADE: Final = re.compile(r"Made by DeltaMQ from (?P<warehouse>.*); definition (?P<digest>[0-9a-f]{16})\.")


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A table (has a `location`) or a view (has a `query`) that the schema should have."""

    name: str
    about: str
    location: str = ""
    query: str = ""
    #: The definition beyond the location (a table's columns): a change of it makes the table again.
    form: str = ""

    def comment(self, warehouse: str) -> str:
        """Return the comment that the catalog stores with the entry."""
        return f"{self.about} Made by DeltaMQ from {warehouse}; definition {self.digest}."

    @property
    def digest(self) -> str:
        """A short digest of the whole definition."""
        definition = "\0".join((self.about, self.location, self.query, self.form))
        return hashlib.sha256(definition.encode()).hexdigest()[:16]


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A table or view that the schema has; `warehouse` is None if DeltaMQ did not make it."""

    name: str
    is_view: bool
    warehouse: str | None = None
    digest: str = ""


class CatalogStep(msgspec.Struct, frozen=True):
    """One statement: a drop or a make. Making a view replaces an existing one."""

    name: str
    drop_view: bool = False
    drop_table: bool = False
    make: CatalogEntry | None = None


def made_of(name: str, is_view: bool, comment: str) -> Made:
    """Return a table or view of the schema, with the maker that its comment names."""
    maker = _MADE.search(comment)
    if maker is None:
        return Made(name=name, is_view=is_view)
    return Made(name=name, is_view=is_view, warehouse=maker["warehouse"], digest=maker["digest"])


def plan_steps(
    wanted: Sequence[CatalogEntry], present: Iterable[Made], warehouse: str
) -> tuple[Sequence[CatalogStep], Sequence[str]]:
    """Return the steps in order, and the wanted names that other tables have taken.

    Views are made after all tables and dropped before any table, so no view ever refers to a missing table.
    """
    by_name: Mapping[str, Made] = {made.name: made for made in present}
    taken = sorted(e.name for e in wanted if e.name in by_name and by_name[e.name].warehouse != warehouse)
    free = [entry for entry in wanted if entry.name not in taken]
    steps: list[CatalogStep] = []
    for entry in sorted(free, key=lambda entry: bool(entry.query)):
        made = by_name.get(entry.name)
        if made is not None and made.digest == entry.digest:
            continue
        if made is not None and not (made.is_view and entry.query):
            steps.append(CatalogStep(entry.name, drop_view=made.is_view, drop_table=not made.is_view))
        steps.append(CatalogStep(entry.name, make=entry))
    names = {entry.name for entry in wanted}
    over = [made for made in by_name.values() if made.warehouse == warehouse and made.name not in names]
    for old in sorted(over, key=lambda made: (not made.is_view, made.name)):
        steps.append(CatalogStep(old.name, drop_view=old.is_view, drop_table=not old.is_view))
    return steps, taken
