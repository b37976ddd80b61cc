"""Values as people write them: a time with its zone, a duration, a time ago, a host that is this machine."""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime
from typing import Final

_DURATION: Final = re.compile(r"([1-9]\d*)([smhd])", re.ASCII)
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
#: Digits of a time ago: longer ones are no dates.
_AGO_DIGITS_MAX: Final = 6


def zoned_time(text: str) -> datetime | None:
    """Parse an RFC 3339 time; return None for any other text, and for a time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):  # in UTC it may be in the year 0 or 10,000
        return None


def duration_s(text: str, *, digits_max: int) -> int | None:
    """Parse `30m`, `24h` or `7d` into seconds; None if it is no duration, or its number has too many digits."""
    match = _DURATION.fullmatch(text)
    if match is None or len(match[1]) > digits_max:
        return None
    return int(match[1]) * _UNIT_S[match[2]]


def ago_ms(text: str) -> int | None:
    """Parse a time ago, `-24h`, into milliseconds; None for any other text."""
    ago = duration_s(text[1:], digits_max=_AGO_DIGITS_MAX) if text.startswith("-") else None
    return None if ago is None else ago * 1_000


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
