"""Fences of a log whose commits are gone, put up again by what the metadata tell (SPEC RELY-9).

A refilled log (`tables.ops`) has the rows of the lost commits, but a fence is in its commit alone. The metadata know
who has a partition's broker, which moves are sealed, and the newest reset: a fence of these epochs shuts out all whom
the lost one did.
"""

from __future__ import annotations

from deltamq.mq.meta.fold import Meta
from deltamq.mq.names import broker_of
from deltamq.tables.log.fences import RESET_FENCE, ROUTE_FENCE
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.placement import fence_epochs_of


def put_up_fences(warehouse: Warehouse, meta: Meta, ref: PartitionRef) -> dict[str, int]:
    """Put up the fences that the metadata tell of and the log lacks; return their epochs."""
    log = warehouse.open_partition(ref)
    lost = {name: epoch for name, epoch in _told(meta, ref).items() if epoch > log.fences.get(name, 0)}
    for name, epoch in lost.items():
        log.fence(name, epoch)
    return lost


def _told(meta: Meta, ref: PartitionRef) -> dict[str, int]:
    told = dict(fence_epochs_of(meta.brokers, broker_of(ref.name)))
    topic = meta.topics.topics.get(ref.topic)
    if ref.space is Space.TOPICS and topic is not None and topic.generation == ref.generation:
        told[ROUTE_FENCE] = meta.moved_keys(topic.id).sealed_up_to(ref.name)
    if ref.space in (Space.RETRY, Space.DLQ):
        told[RESET_FENCE] = meta.groups.epoch
    return told
