"""Sealing of the moves of an ordered topic's expansion, for processes that are not a service (SPEC ROUTE-6, I15).

    fence "route" in the old partition          writers that do not know the seal append nothing more there
    `MoveSealed` with the end behind the fence  the keys go to the new partition

The service seals the moves of its brokers (`api.host.fences`). A process that is held up by a fence without its seal
may seal the move here. Each step may be repeated, so after a kill between them the next process continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.moved_keys import MoveEvent, decide_seal
from deltamq.mq.meta.topics import Topic
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.metadata import MetaLog


def seal_moves(meta: MetaLog, topic: Topic, open_log: Callable[[str], PartitionLog], now_ms: Callable[[], int]) -> int:
    """Seal all moves of a topic that wait for a seal, oldest first; return the number of sealed moves.

    Raises
    ------
    Unknown
        A fence or its seal may be there; calling again is safe.
    """
    sealed = 0
    for source in sorted(meta.meta.moved_keys(topic.id).waiting):
        while waiting := meta.meta.moved_keys(topic.id).unsealed(source):
            end_offset = open_log(source).fence(ROUTE_FENCE, waiting[0])
            failpoint("seal.after_fence")
            decide = partial(_decided, topic.id, source, waiting[0], end_offset, now_ms())
            meta.submit_any(decide)
            sealed += 1
    return sealed


def _decided(topic_id: str, source: str, epoch: int, end_offset: int, now_ms: int, meta: Meta) -> Sequence[MoveEvent]:
    return decide_seal(meta.moved_keys(topic_id), topic_id, source, epoch, end_offset, now_ms)
