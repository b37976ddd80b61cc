"""What several answers have in common: times, pages of long lists, what is allowed at a broker or partition."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

#: A time with its zone; answers have RFC 3339 in UTC.
Time = Annotated[datetime, Meta(tz=True)]
#: The same, written already: of messages, of which there are many.
TimeText = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list; `next` is given if more follows: send it as `after` to get it."""

    next: int | str | None = None


class NamePage(Page, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a list of names, sorted."""

    next: str | None = None


class AccessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed at a broker or partition; `reason` and `until` belong to what is forbidden.

    Without `until` it stays forbidden until it is changed.
    """

    readable: bool = True
    writable: bool = True
    reason: str | None = None
    until: Time | None = None
