"""What administrators did, and what was refused, over REST (SPEC SEC-42)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from deltamq.mq.client.admin.access_admin import time_text
from deltamq.mq.client.admin.paged_calls import Page, PagedCalls


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


class _Acts(Page):
    acts: list[ActInfo]


class _Refusals(Page):
    refusals: list[RefusalInfo]


class AuditAdmin(PagedCalls):
    """The part of `Admin` for the audit; each call needs `audit` on the cluster."""

    def audit(
        self, *, since: datetime | None = None, principal: str | None = None, limit: int | None = None
    ) -> Iterator[ActInfo]:
        """Yield acts, the oldest first, page by page; at most `limit` of them."""
        return self._rows(["audit"], _Acts, lambda page: page.acts, _asked(since, principal), limit=limit)

    def audit_refusals(
        self, *, since: datetime | None = None, principal: str | None = None, limit: int | None = None
    ) -> Iterator[RefusalInfo]:
        """Yield what was refused, by minute, the oldest first, page by page; at most `limit` rows."""
        path, asked = ["audit", "refusals"], _asked(since, principal)
        return self._rows(path, _Refusals, lambda page: page.refusals, asked, limit=limit)


def _asked(since: datetime | None, principal: str | None) -> dict[str, str | None]:
    return {"since": None if since is None else time_text(since), "principal": principal}
