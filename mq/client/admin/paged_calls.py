"""Lists that a service answers page by page: one loop for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from deltamq.mq.client.http.calls import Calls, read_answer
from deltamq.mq.client.http.endpoint import path_of

#: Rows in one page.
_PAGE_ROWS: Final = 1_000


class Page(msgspec.Struct, kw_only=True):
    """What each page says beside its rows: where the next one begins, None behind the last.

    A service older than paging answers with all rows and says nothing.
    """

    next: int | str | None = None


P = TypeVar("P", bound=Page)
R = TypeVar("R")


class PagedCalls(Calls):
    """Calls of which some are answered in pages."""

    def _rows(
        self,
        path: Sequence[str],
        kind: type[P],
        rows_of: Callable[[P], Sequence[R]],
        asked: Mapping[str, str | None] | None = None,
        *,
        limit: int | None = None,
    ) -> Iterator[R]:
        """Yield the rows of a list, page by page, so that no answer is large; at most `limit` of them.

        Parameters
        ----------
        path
            The segments of its path behind `/v1`.
        kind
            What one page is.
        rows_of
            Returns the rows of a page.
        asked
            What else is asked for; None is left out.
        """
        query = {name: value for name, value in (asked or {}).items() if value is not None}
        while limit is None or limit > 0:
            query["limit"] = str(_PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit))
            page = read_answer(self._call("GET", path_of(*path), query=query), kind)
            rows = rows_of(page)
            yield from rows
            limit = None if limit is None else limit - len(rows)
            if page.next is None:
                return
            query["after"] = str(page.next)
