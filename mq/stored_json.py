"""Reading JSON values that DeltaMQ stored itself: anything unexpected is damage, not a caller's mistake.

Unknown fields are left alone, so that an older release can read what a newer one wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, Self, TypeVar

from mq.errors import Corrupt

__all__ = ["StoredEvent", "array", "corrupt_when_damaged", "event_of", "integer", "mapping", "pairs", "text"]


class StoredEvent(Protocol):
    """An event of the metadata log, as it reads itself back."""

    @classmethod
    def from_json(cls, value: object) -> Self: ...


E = TypeVar("E", bound=StoredEvent)


@contextmanager
def corrupt_when_damaged(what: str, *, code: str) -> Iterator[None]:
    """Turn what the readers below (and unpacking) raise into `Corrupt`, which names `what`."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} is damaged: {error!r}", code=code) from error


def mapping(value: object) -> Mapping[str, object]:
    """`value` if it is a JSON object, else `TypeError`."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} is not an object")
    return value


def text(value: object) -> str:
    """`value` if it is a string, else `TypeError`."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text")
    return value


def integer(value: object) -> int:
    """`value` if it is a whole number, else `TypeError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is not a whole number")
    return value


def array(value: object) -> list[object]:
    """`value` if it is a JSON array, else `TypeError`."""
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} is not an array")
    return value


def pairs(value: object) -> tuple[tuple[int, int], ...]:
    """`value` if it is a JSON array of pairs of whole numbers, else `TypeError` or `ValueError`."""
    found = []
    for pair in array(value):
        one, other = map(integer, array(pair))
        found.append((one, other))
    return tuple(found)


def event_of(events: Mapping[str, type[E]], kind: str, value: object) -> E | None:
    """The event of this `kind` that its `to_json` wrote; None when the kind is none of `events`.

    Raises
    ------
    Corrupt
        `meta_event_corrupt` when the value is damaged.
    """
    event = events.get(kind)
    if event is None:
        return None
    with corrupt_when_damaged(f"a stored {kind} event", code="meta_event_corrupt"):
        return event.from_json(value)
