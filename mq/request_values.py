"""Parsers of values that a caller sent."""

from __future__ import annotations

from datetime import datetime

__all__ = ["zoned_time"]


def zoned_time(text: str) -> datetime | None:
    """Parse an RFC 3339 time; return None for any other text, and for a time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
