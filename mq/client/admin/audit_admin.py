"""What administrators did, and what was refused, over REST (SPEC SEC-42)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from mq.client.admin.access_admin import time_text
from mq.client.http import Calls, path_of, read_answer

__all__ = ["ActInfo", "AuditAdmin", "RefusalInfo"]

#: Rows in one page.
_PAGE = 1_000


class ActInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An administrative act: who did what, from where, and what became of it.

    `refused` is the caller's fault, and nothing was done; `failed` an error of the service, without a change of the
    metadata; `unknown` may have been done, in whole or in part, or is still under way. `before` and `after` are the
    states of what it changed in the metadata, None for no change.
    """

    id: str
    time: datetime
    principal: str
    #: Host and port from which it was asked for.
    address: str
    #: The id of the process that carried it out.
    process: str
    call: str
    resource: str
    name: str
    asked: Any = None
    outcome: Literal["done", "refused", "failed", "unknown"]
    #: Status of the answer, and code and detail of its problem.
    status: int | None = None
    code: str | None = None
    detail: str | None = None
    before: Any = None
    after: Any = None


class RefusalInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How often a principal was refused a call in a minute, by one process; `address` is where the last came from."""

    minute: datetime
    principal: str
    call: str
    status: int
    code: str
    count: int
    address: str
    process: str


class _Page(msgspec.Struct, kw_only=True):
    next: int | None = None


class _Acts(_Page):
    acts: list[ActInfo]


class _Refusals(_Page):
    refusals: list[RefusalInfo]


P = TypeVar("P", bound=_Page)
R = TypeVar("R")


class AuditAdmin(Calls):
    """The part of `Admin` for the audit; each call needs `audit` on the cluster."""

    def audit(
        self, *, since: datetime | None = None, principal: str | None = None, limit: int | None = None
    ) -> Iterator[ActInfo]:
        """Yield acts, the oldest first, page by page; at most `limit` of them."""
        return self._rows("audit", _Acts, lambda page: page.acts, _asked(since, principal), limit)

    def audit_refusals(
        self, *, since: datetime | None = None, principal: str | None = None, limit: int | None = None
    ) -> Iterator[RefusalInfo]:
        """Yield what was refused, by minute, the oldest first, page by page; at most `limit` rows."""
        return self._rows("audit/refusals", _Refusals, lambda page: page.refusals, _asked(since, principal), limit)

    def _rows(
        self, path: str, kind: type[P], rows_of: Callable[[P], Sequence[R]], asked: dict[str, str], limit: int | None
    ) -> Iterator[R]:
        while limit is None or limit > 0:
            query = {**asked, "limit": str(min(_PAGE, limit or _PAGE))}
            page = read_answer(self._call("GET", path_of(*path.split("/")), query=query), kind)
            rows = rows_of(page)
            yield from rows
            limit = None if limit is None else limit - len(rows)
            if page.next is None:
                return
            asked["after"] = str(page.next)


def _asked(since: datetime | None, principal: str | None) -> dict[str, str]:
    asked = {"since": None if since is None else time_text(since), "principal": principal}
    return {name: value for name, value in asked.items() if value is not None}
