"""Times in requests and answers: RFC 3339, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from deltamq.mq.errors import Refused

_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:[Zz]|[+ -]\d\d:\d\d)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(time_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 in UTC."""
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{(_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()}.{micros:06d}Z"


def parse_time(text: str, field: str = "time") -> int:
    """Return RFC 3339 as microseconds since 1970; a `+` that the query's encoding made a space is accepted.

    A refusal names `field`.
    """
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        # In UTC it may be in the year 0 or 10,000, which could not be shown.
        time = datetime.fromisoformat((text[:-6] + text[-6:].replace(" ", "+")).upper()).astimezone(UTC)
        return (time - _EPOCH) // _EPOCH.resolution
    except (ValueError, OverflowError):
        raise Refused(f"{field}: write RFC 3339, for example 2013-01-01T05:15:00Z", field=field) from None
