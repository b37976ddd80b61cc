"""Reading JSON values that DeltaMQ stored itself: anything unexpected is damage, not a caller's mistake.

Unknown fields are left alone, so that an older release can read what a newer one wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mq.errors import Corrupt

__all__ = ["array", "corrupt_when_damaged", "integer", "mapping", "text"]


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
