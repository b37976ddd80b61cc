"""Replays of dead letters: each is a request of an idempotent producer, named after the dead letter's place.

A replay that is repeated, because its answer was lost or by mistake, stores nothing twice while the partition remembers
the request (see `mq.producer`). A message that dies again is another dead letter, with another name.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from deltamq.mq.limits import PRODUCER_REQUESTS_KEPT
from deltamq.mq.names import broker_of


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


def retry_broker(dead_partition: str, partitions: tuple[str, ...]) -> str:
    """Return the broker on which a dead letter is retried: its own if the topic has a partition there.

    Groups look for retried messages only on the topic's brokers.
    """
    brokers = [broker_of(partition) for partition in partitions]
    own = broker_of(dead_partition)
    return own if own in brokers else brokers[0]
