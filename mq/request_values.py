"""Parsers of values that a caller sent."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["zoned_time"]


def zoned_time(text: str) -> datetime | None:
    """Parse an RFC 3339 time; return None for any other text, and for a time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):  # in UTC it may be in the year 0 or 10,000
        return None
