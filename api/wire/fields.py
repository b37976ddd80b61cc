"""Parts of several calls' requests and answers: times, access, pages of long lists, the filter of messages."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, TypedDict

import msgspec
import pyarrow as pa
from fastapi import Query
from fastapi.responses import Response
from msgspec import Meta

from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.limits import OFFSET_MAX, REASON_LENGTH_MAX, TAG_BYTES_MAX, TAG_FILTER_TAGS_MAX
from deltamq.mq.meta.access import Access
from deltamq.mq.names import is_tag
from deltamq.tables.row_filter import MessageFilter

#: Python reads no number of thousands of digits.
_OFFSET_DIGITS: Final = len(str(OFFSET_MAX))
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:[Zz]|[+ -]\d\d:\d\d)")


class Moment(datetime):
    """A time in UTC that answers show with six digits of a second, so that texts sort as times do."""

    def text(self) -> str:
        """Return RFC 3339."""
        return f"{self.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


_EPOCH: Final = Moment(1970, 1, 1, tzinfo=UTC)


def moment(time_ms: int) -> Moment:
    """Return milliseconds since 1970 as an answer's time."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def moment_us(time_us: int) -> Moment:
    """Return microseconds since 1970 as an answer's time."""
    return _EPOCH + timedelta(microseconds=time_us)


def rfc3339(time_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 in UTC."""
    return moment_us(time_us).text()


def _written(value: object) -> str:
    """Encode a `Moment`: for a plain datetime, msgspec leaves out the digits of a whole second."""
    assert isinstance(value, Moment), "answers have no other types that msgspec does not know"
    return value.text()


_encoder: Final = msgspec.json.Encoder(enc_hook=_written)


def json_answer(value: object, status: int = 200) -> Response:
    """Return the answer with this document."""
    return Response(_encoder.encode(value), status_code=status, media_type="application/json")


def parse_time(text: str, field: str = "time") -> int:
    """Return RFC 3339 as microseconds since 1970; a `+` that the query's encoding made a space is accepted.

    A refusal names `field`.
    """
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        # In UTC it may fall into the year 0 or 10,000, which cannot be shown.
        time = datetime.fromisoformat((text[:-6] + text[-6:].replace(" ", "+")).upper()).astimezone(UTC)
        return (time - _EPOCH) // _EPOCH.resolution
    except (ValueError, OverflowError):
        raise Refused(f"{field}: write RFC 3339, for example 2013-01-01T05:15:00Z", field=field) from None


class AccessFields(TypedDict):
    """The fields of `AccessInfo`."""

    readable: bool
    writable: bool
    reason: str | None
    until: datetime | None


def is_offset(text: str) -> bool:
    """Return whether the text of a cursor is an offset, or a time that is not negative."""
    return text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS and int(text) <= OFFSET_MAX


def access_fields(access: Access) -> AccessFields:
    """Return the fields that an answer has for an access."""
    return {
        "readable": access.readable,
        "writable": access.writable,
        "reason": access.reason or None,
        "until": None if access.until_ms is None else moment(access.until_ms),
    }


def check_reason(reason: str) -> str:
    """Return a reason that is shown in tables; raise `Unprocessable` if it has unprintable characters."""
    if not reason.isprintable():
        raise Unprocessable("reason must be of printable characters", field="reason")
    return reason


class AccessAsked(msgspec.Struct, forbid_unknown_fields=True):
    """The whole access of a broker or partition: what is left out is allowed."""

    readable: bool | None = None
    writable: bool | None = None
    reason: Annotated[
        Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None, Meta(description="Why, for refused clients.")
    ] = None
    until: Annotated[
        Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(description="RFC 3339: when everything is allowed again."),
    ] = None

    def access(self) -> Access:
        """Return the access; raise `Refused` for an unreadable time or a reason with unprintable characters."""
        reason = check_reason(self.reason or "")
        until_ms = None if self.until is None else parse_time(self.until, "until") // 1000
        readable, writable = self.readable is not False, self.writable is not False
        if readable and writable:
            return Access()
        return Access(readable=readable, writable=writable, reason=reason, until_ms=until_ms)


#: Maximum number of names in one page: 1,000 of the longest are 128 KB.
PAGE_MAX: Final = 1_000

Limit = Annotated[int | None, Query(ge=1, le=PAGE_MAX, description="Names in a page; without it, all names.")]
After = Annotated[str | None, Query(description="Only names after this one: the `next` of the page before.")]


def page(names: Iterable[str], limit: int | None, after: str | None) -> tuple[list[str], str | None]:
    """Return up to `limit` sorted names after `after`, and the next page's `after`, None if there is no next page.

    Unlike with page numbers, a name that is created or deleted between two pages does not shift the others.
    """
    listed = sorted(names)
    start = 0 if after is None else bisect_right(listed, after)
    shown = listed[start:] if limit is None else listed[start : start + limit]
    return shown, shown[-1] if shown and start + len(shown) < len(listed) else None


def message_filter(tags: str | None, filter: str | None) -> MessageFilter | None:
    """Return the filter of `*` or `TagA || TagB`, and of a SQL condition; None if it lets every message pass.

    Raises
    ------
    Unprocessable
        `invalid_tag_filter` or `invalid_filter`; `field` is `tags` or `filter`.
    """
    names = _tags_of(tags)
    condition = None if filter is None else parse_filter(filter)
    return None if names is None and condition is None else MessageFilter(tags=names, condition=condition)


def _tags_of(text: str | None) -> pa.Array | None:
    if text is None or text.strip() == "*":
        return None
    tags = [tag.strip() for tag in text.split("||")]
    if not all(map(is_tag, tags)):
        detail = "tags: write * or TagA||TagB; a tag has no spaces and none of * | & ,"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags")
    if len(tags) > TAG_FILTER_TAGS_MAX:
        detail = f"tags: at most {TAG_FILTER_TAGS_MAX} tags"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_FILTER_TAGS_MAX})
    if any(len(tag.encode()) > TAG_BYTES_MAX for tag in tags):
        detail = f"tags: a tag has at most {TAG_BYTES_MAX} bytes"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_BYTES_MAX})
    return pa.array(tags, pa.string())
