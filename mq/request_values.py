"""Reading values of a JSON object that a caller sent: another type is the caller's mistake, named by its field."""

from __future__ import annotations

from collections.abc import Mapping

from mq.errors import Refused

__all__ = ["string_or_none", "whole_or_none"]


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
