"""Long lists in pages: what comes after the last name of the page before, in the order of names.

A name that is made or goes between two pages moves none of the others, as a page number would.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import Query

__all__ = ["PAGE_MAX", "After", "Limit", "page"]

#: Names in one page at most: 1,000 of the longest are 128 KB.
PAGE_MAX: Final = 1_000

Limit = Annotated[int | None, Query(ge=1, le=PAGE_MAX, description="Names in a page; all of them when left out.")]
After = Annotated[str | None, Query(description="Only names behind this one, as `next` of the page before said.")]


def page(names: Iterable[str], limit: int | None, after: str | None) -> tuple[list[str], str | None]:
    """The names behind `after`, `limit` of them, sorted; and what to ask the next page for, None when there is none."""
    listed = sorted(names)
    start = 0 if after is None else bisect_right(listed, after)
    shown = listed[start:] if limit is None else listed[start : start + limit]
    return shown, shown[-1] if shown and start + len(shown) < len(listed) else None
