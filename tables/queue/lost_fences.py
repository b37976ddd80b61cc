"""Fences of a log whose commits are gone, put up again from the metadata (SPEC RELY-9).

A refilled log (`tables.ops`) has the rows of the lost commits, but only its own commit has a fence. The metadata know
who has a partition's broker, which moves are sealed, and the newest reset: a fence with these epochs refuses every
writer that the lost one refused.
"""

from __future__ import annotations

from deltamq.mq.meta.fold import Meta
from deltamq.mq.names import broker_of
from deltamq.tables.log.fences import RESET_FENCE, ROUTE_FENCE
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.placement import fence_epochs_of


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
