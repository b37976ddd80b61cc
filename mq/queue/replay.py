"""Dead letters that are sent back: each is a request of an idempotent producer, named after where it lies.

Whoever repeats a replay, because its answer was lost or by mistake, stores nothing twice in a partition as long as that
remembers the request (see `mq.producer`). A message that dies again is another dead letter, with another name.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from mq.limits import PRODUCER_REQUESTS_KEPT
from mq.names import broker_of
from mq.routing import Places, logical_partition

__all__ = ["Replay", "origin_of", "retry_broker"]


class Replay(NamedTuple):
    """One dead letter of one life of a group."""

    group: str
    group_epoch: int
    #: The dead letters' partition, and the offset there.
    partition: str
    offset: int

    @property
    def producer_id(self) -> str:
        """The same for every copy of the request; as many share one as a partition remembers requests of each."""
        digest = hashlib.sha256(json.dumps([self.group, self.group_epoch, self.partition]).encode()).hexdigest()
        return f"replay-{digest[:16]}-{self.offset // PRODUCER_REQUESTS_KEPT}"

    @property
    def producer_seq(self) -> int:
        return self.offset % PRODUCER_REQUESTS_KEPT


def origin_of(partition: str, key: str | None, offset: int, places: Places) -> str:
    """Where a dead letter that came from `partition` goes in its topic; `offset` is its own, among the dead letters.

    The topic may have been made again, with other partitions: then it goes by its key.
    """
    if partition in places.partitions:
        return partition
    at = offset % len(places.partitions) if key is None else int(places.table[logical_partition(key)])
    return places.partitions[at]


def retry_broker(dead_partition: str, partitions: tuple[str, ...]) -> str:
    """On which broker a dead letter is retried: on its own if the topic is there, since groups look on the topic's."""
    brokers = [broker_of(partition) for partition in partitions]
    own = broker_of(dead_partition)
    return own if own in brokers else brokers[0]
