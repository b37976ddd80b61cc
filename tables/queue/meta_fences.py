"""Fences that follow from the metadata, put up by processes that are no service (SPEC ROUTE-6, RELY-9, I15).

Sealing of the moves of an ordered topic's expansion:

    fence "route" in the old partition          writers that do not know the seal append nothing more there
    `MoveSealed` with the end behind the fence  the keys go to the new partition

The service seals the moves of its brokers (`api.host.fences`). A process that is held up by a fence without its seal
may seal the move here. Each step may be repeated, so after a kill between them the next process continues.

Fences of a log whose commits are gone: a refilled log (`tables.ops`) has the rows of the lost commits, but only its own
commit has a fence. The metadata know who has a partition's broker, which moves are sealed, and the newest reset: fences
with these epochs refuse every writer that the lost ones refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.moved_keys import MoveEvent, decide_seal
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.fences import RESET_FENCE, ROUTE_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.placement import fence_epochs_of


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


def put_up_fences(warehouse: Warehouse, meta: Meta, ref: PartitionRef) -> dict[str, int]:
    """Put up the fences that the metadata have and the log lacks; return their epochs."""
    log = warehouse.open_partition(ref)
    lost = {name: epoch for name, epoch in _known_epochs(meta, ref).items() if epoch > log.fences.get(name, 0)}
    for name, epoch in lost.items():
        log.fence(name, epoch)
    return lost


def _known_epochs(meta: Meta, ref: PartitionRef) -> dict[str, int]:
    epochs = dict(fence_epochs_of(meta.brokers, broker_of(ref.name)))
    topic = meta.topics.topics.get(ref.topic)
    if ref.space is Space.TOPICS and topic is not None and topic.generation == ref.generation:
        epochs[ROUTE_FENCE] = meta.moved_keys(topic.id).sealed_up_to(ref.name)
    if ref.space in (Space.RETRY, Space.DLQ):
        epochs[RESET_FENCE] = meta.groups.epoch
    return epochs
