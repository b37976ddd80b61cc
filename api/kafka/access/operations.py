"""What a caller may do to a topic, a group or the cluster, as the bits of Kafka's operations (KIP-430)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltamq.api.auth.calls import named_by
from deltamq.api.kafka.access.needs import Asker
from deltamq.mq.auth.principals import Resource, Verb

#: Kafka's numbers of the operations that each verb allows.
_OPERATIONS: Final[Mapping[Resource, Mapping[Verb, Sequence[int]]]] = {
    "topic": {
        "subscribe": (3,),
        "publish": (4,),
        "create": (5,),
        "delete": (6,),
        "alter": (7, 11),  # 11 is that of settings
        "describe": (8, 10),
    },
    "group": {"subscribe": (3,), "delete": (6,), "describe": (8,)},
    "cluster": {"admin": (5, 7, 8, 10, 11, 12)},
}


def operations(asker: Asker, resource: Resource, name: str) -> int:
    """Return a bit for each operation that the caller may do to a topic, a group or the cluster (`CLUSTER`)."""
    name, entries = named_by(resource, name), _OPERATIONS[resource].items()
    return sum(1 << one for verb, bits in entries if asker.caller.allows(resource, name, verb) for one in bits)
