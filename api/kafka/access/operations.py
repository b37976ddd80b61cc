"""What a caller may do to a topic or group, as the bits of Kafka's operations (`authorized_operations`, KIP-430)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from api.auth import named_by
from api.kafka.access.needs import Asker
from mq.auth import Resource, Verb

__all__ = ["operations"]

#: Kafka's number of the operation that each verb allows.
_OPERATIONS: Final[Mapping[str, Mapping[Verb, int]]] = {
    "group": {"subscribe": 3, "delete": 6, "describe": 8},
}


def operations(asker: Asker, resource: Resource, name: str) -> int:
    """Return a bit for each operation that the caller may do to a topic or group."""
    name = named_by(resource, name)
    return sum(
        1 << number for verb, number in _OPERATIONS[resource].items() if asker.caller.allows(resource, name, verb)
    )
