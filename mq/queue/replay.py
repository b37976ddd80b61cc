"""Replays of dead letters: each is a request of an idempotent producer, named after the dead letter's place.

A replay that is repeated, because its answer was lost or by mistake, stores nothing twice while the partition remembers
the request (see `mq.producer`). A message that dies again is another dead letter, with another name.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple, Protocol

from mq.errors import Unavailable
from mq.limits import PRODUCER_REQUESTS_KEPT
from mq.names import broker_of
from mq.routing import Places, logical_partition

__all__ = ["Origins", "Replay", "origin_of", "retry_broker"]


class Origins(Places, Protocol):
    """Where messages of a topic go, also those that went to a partition that is not written any more."""

    @property
    def unserved(self) -> frozenset[int]:
        """The indexes of partitions that nothing may be sent to."""
        ...

    def successor(self, partition: str) -> str | None:
        """Return the partition that gets what once went to `partition`; None if the topic does not have it.

        Raises
        ------
        Unavailable
            `queue_unserved`: its logical queue cannot be had.
        """
        ...


class Replay(NamedTuple):
    """One dead letter of one life of a group."""

    group: str
    group_epoch: int
    #: The partition of dead letters, and the offset in it.
    partition: str
    offset: int

    @property
    def producer_id(self) -> str:
        """The producer of this replay, the same at each repetition; 16 offsets share one.

        A partition remembers that many requests of each producer.
        """
        digest = hashlib.sha256(json.dumps([self.group, self.group_epoch, self.partition]).encode()).hexdigest()
        return f"replay-{digest[:16]}-{self.offset // PRODUCER_REQUESTS_KEPT}"

    @property
    def producer_seq(self) -> int:
        return self.offset % PRODUCER_REQUESTS_KEPT


def origin_of(partition: str, key: str | None, offset: int, places: Origins) -> str:
    """Return the partition of its topic to which a dead letter goes: `partition`, where it came from, if that exists.

    From a segment of a logical queue it goes to where the queue's messages go now. If the topic was created again with
    other partitions, the key decides; without a key, the dead letter's `offset`.

    Raises
    ------
    Unavailable
        `queue_unserved`: its logical queue cannot be had, and it goes to no other.
    """
    found = places.successor(partition)
    if found is not None:
        return found
    candidates = places.targets if key is None else (int(places.table[logical_partition(key)]),)
    if not candidates or candidates[0] in places.unserved:
        raise Unavailable(
            f"the mapping of the logical queue for a message of {partition} cannot be had; check the topic",
            code="queue_unserved",
        )
    return places.partitions[candidates[offset % len(candidates)]]


def retry_broker(dead_partition: str, partitions: tuple[str, ...]) -> str:
    """Return the broker on which a dead letter is retried: its own if the topic has a partition there.

    Groups look for retried messages only on the topic's brokers.
    """
    brokers = [broker_of(partition) for partition in partitions]
    own = broker_of(dead_partition)
    return own if own in brokers else brokers[0]
