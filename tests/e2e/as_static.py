"""Tests of the SDK against static topics: a client cannot tell them apart (SPEC STATIC-2).

What is marked `static_too`, a test or a module, is played with a static topic as well: with `always=True` by `make
test`, else by `make faults`.
"""

from __future__ import annotations

from typing import Any, Final

from deltamq import Admin

__all__ = ["PREFIX", "create"]

#: Begins the names of the topics that `create` makes static.
PREFIX: Final = "static."


def create(admin: Admin, topic: str, partitions: int, **settings: Any) -> list[str]:
    """Create a topic, or change it, and return its partitions as clients know them."""
    if not topic.startswith(PREFIX):
        return [one.partition for one in admin.create_topic(topic, partitions=partitions, **settings).partitions]
    found = admin.create_static_topic(topic, partitions, **settings)
    assert found.logical_queues is not None
    return [one.partition for one in found.logical_queues]
