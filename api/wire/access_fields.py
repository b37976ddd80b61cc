"""Access in requests and answers: what may be read and written to, why not, and until when (SPEC ROUTE-9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta
from pydantic import BaseModel

from deltamq.api.wire.times import parse_time, rfc3339
from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import REASON_LENGTH_MAX
from deltamq.mq.meta.access import Access


class AccessFields(BaseModel):
    """`reason` and `until` belong to what is forbidden; without `until` it stays so until it is changed."""

    readable: bool = True
    writable: bool = True
    reason: str | None = None
    until: str | None = None

    @staticmethod
    def of(access: Access) -> Mapping[str, object]:
        """Return the fields for an access."""
        return {
            "readable": access.readable,
            "writable": access.writable,
            "reason": access.reason or None,
            "until": None if access.until_ms is None else rfc3339(access.until_ms * 1000),
        }


class AccessAsked(msgspec.Struct, forbid_unknown_fields=True):
    """The whole access of a broker or partition: what is left out is allowed."""

    readable: bool | None = None
    writable: bool | None = None
    reason: Annotated[
        Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None, Meta(description="Why, for those who are refused.")
    ] = None
    until: Annotated[
        Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(description="RFC 3339: when everything is allowed again by itself."),
    ] = None

    def access(self) -> Access:
        """Return the access; raise `Refused` for an unreadable time or a reason with unprintable characters."""
        reason = self.reason or ""
        if not reason.isprintable():
            raise Unprocessable("reason must be of printable characters", field="reason")
        until_ms = None if self.until is None else parse_time(self.until, "until") // 1000
        readable, writable = self.readable is not False, self.writable is not False
        if readable and writable:
            return Access()
        return Access(readable=readable, writable=writable, reason=reason, until_ms=until_ms)
