"""Reading what a caller sent: times, and the fields of a JSON object, of which one of another type is named."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from mq.errors import Refused

__all__ = ["string_or_none", "whole_or_none", "zoned_time"]


def whole_or_none(given: Mapping[str, object], name: str) -> int | None:
    """The whole number in the field `name`; None when it is not given. `Refused` (`invalid_type`) for anything else."""
    value = given.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise Refused(f"{name} must be a whole number", code="invalid_type", field=name)
    return value


def string_or_none(given: Mapping[str, object], name: str) -> str | None:
    """The text in the field `name`; None when it is not given. `Refused` (`invalid_type`) for anything else."""
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(f"{name} must be text", code="invalid_type", field=name)
    return value


def zoned_time(text: str) -> datetime | None:
    """The RFC 3339 time that a text is; None for another text, and for a time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
