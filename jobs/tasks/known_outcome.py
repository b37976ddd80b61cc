"""Repeats of appends whose outcome is unknown: each is a request named after its cause, and stored once (I11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from deltamq.mq.errors import Unknown

T = TypeVar("T")

#: Tries of an append, before the job or query fails; its next run repeats the request.
_TRIES: Final = 3


def until_known(append: Callable[[], T]) -> T:
    """Call `append` again while its outcome is unknown, a few times; return its result."""
    for _ in range(_TRIES - 1):
        try:
            return append()
        except Unknown:
            continue
    return append()
