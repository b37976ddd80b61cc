"""Dead letters that are sent back: each is a request of an idempotent producer, named after where it lies.

Whoever repeats a replay, because its answer was lost or by mistake, stores nothing twice in a partition as long as that
remembers the request (see `mq.producer`). A message that dies again is another dead letter, with another name.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from mq.limits import PRODUCER_REQUESTS_KEPT

__all__ = ["Replay"]


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
