"""The names of logical queues: clients see them as partitions (SPEC STATIC-2, STATIC-19)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from deltamq.mq.limits import PARTITIONS_MAX

#: The broker of every logical queue's name; no process serves it.
LOGICAL_BROKER: Final = "__logical_queue_broker__"
#: The same for queues of topics that cover several clusters: the name shows the scope (SPEC STATIC-19).
GLOBAL_BROKER: Final = "__global_logical_queue_broker__"
_NAME: Final = re.compile(rf"(0|[1-9]\d{{0,3}})@({LOGICAL_BROKER}|{GLOBAL_BROKER})")


def queue_name(index: int) -> str:
    """Return the name under which clients see a logical queue: `3@__logical_queue_broker__` (SPEC STATIC-2)."""
    return _name(index, LOGICAL_BROKER)


@lru_cache(maxsize=64)
def queue_names(total: int) -> tuple[str, ...]:
    """Return the names of the queues of a topic with `total` of them, in order."""
    return tuple(map(queue_name, range(total)))


def queue_index(name: str) -> int | None:
    """Return the number of the logical queue with this name; None if it is not the name of one."""
    return _index(name, LOGICAL_BROKER)


def is_queue_name(name: str) -> bool:
    """Return whether the name is written as a logical queue's, of a topic of one cluster or of several."""
    return name.endswith((f"@{LOGICAL_BROKER}", f"@{GLOBAL_BROKER}"))


def global_queue_name(index: int) -> str:
    """Return the name under which clients see a queue of a global topic."""
    return _name(index, GLOBAL_BROKER)


@lru_cache(maxsize=64)
def global_queue_names(total: int) -> tuple[str, ...]:
    """Return the names of the queues of a global topic with `total` of them, in order."""
    return tuple(map(global_queue_name, range(total)))


def global_queue_index(name: str) -> int | None:
    """Return the number of the global topic's queue with this name; None if it is not the name of one."""
    return _index(name, GLOBAL_BROKER)


def _name(index: int, broker: str) -> str:
    assert 0 <= index < PARTITIONS_MAX, "a topic has at most 1,024 logical queues"
    return f"{index}@{broker}"


def _index(name: str, broker: str) -> int | None:
    match = _NAME.fullmatch(name)
    return None if match is None or match[2] != broker else int(match[1])
