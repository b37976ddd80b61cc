"""Repeats of appends whose outcome is unknown: each is a request named after its cause, and stored once (I11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from deltamq.mq.errors import Unknown

T = TypeVar("T")

#: Tries of an append, before the job or query fails; its next run finds out.
_TRIES: Final = 3


def until_known(append: Callable[[], T]) -> T:
    """Return what `append` returns; it is called again while its outcome is unknown.

    Raises
    ------
    Unknown
        It is still not known after the last try.
    """
    for _ in range(_TRIES - 1):
        try:
            return append()
        except Unknown:
            continue
    return append()
