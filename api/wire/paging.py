"""Long lists in pages: each page begins after the last name of the page before, in the order of names.

Unlike with page numbers, a name that is created or deleted between two pages does not shift the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import Query

#: Maximum number of names in one page: 1,000 of the longest are 128 KB.
PAGE_MAX: Final = 1_000

Limit = Annotated[int | None, Query(ge=1, le=PAGE_MAX, description="Names in a page; without it, all names.")]
After = Annotated[str | None, Query(description="Only names after this one: the `next` of the page before.")]


def page(names: Iterable[str], limit: int | None, after: str | None) -> tuple[list[str], str | None]:
    """Return up to `limit` sorted names after `after`, and the next page's `after`, None if there is no next page."""
    listed = sorted(names)
    start = 0 if after is None else bisect_right(listed, after)
    shown = listed[start:] if limit is None else listed[start : start + limit]
    return shown, shown[-1] if shown and start + len(shown) < len(listed) else None
