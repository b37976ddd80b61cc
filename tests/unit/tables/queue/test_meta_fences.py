"""What a refilled log lacks, the fences of its lost commits, comes from the metadata (SPEC RELY-9)."""

from __future__ import annotations

import pytest

from deltamq.mq.errors import Fenced
from deltamq.mq.meta.brokers import Host, decide_register
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.moved_keys import moves_of
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.paths import LOG_FOLDER, PartitionRef, Space
from deltamq.tables.queue.meta_fences import put_up_fences, seal_moves
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.refs import dead_ref
from deltamq.tables.store.store import MemoryStore
from tests.rows import batch

BROKERS = ("broker-a",)


def _expanded(meta: Meta) -> list[AnyEvent]:
    events = decide_put_topic(meta.topics, "orders", TopicRequest(partitions=2), BROKERS, "no", 0)
    return [*moves_of(meta.topics, events), *events]


def _without_its_fences(files: MemoryStore, ref: PartitionRef) -> Warehouse:
    """Lose all commits without rows, and refill the log."""
    folder = f"{ref.folder}/{LOG_FOLDER}"
    for name in files.names(folder):
        if b"mq.fence." in files.read(f"{folder}/{name}").to_pybytes():
            files.delete(f"{folder}/{name}")
    warehouse = Warehouse.open("", store=files)
    found = find_repair(warehouse, ref)
    assert found is not None and (found.kind, found.loses) == (RepairKind.REFILL, False)
    repair(warehouse, found)
    return Warehouse.open("", store=files)


def test_rely_09_fences_that_are_lost_are_put_up_again_by_the_metadata() -> None:
    files = MemoryStore()
    warehouse = Warehouse.open("", store=files)
    meta = MetaLog(warehouse)
    host = Host(id="host-0", address="", brokers=BROKERS, renewal=0, load=0)
    meta.submit_any(lambda meta: decide_register(meta.brokers, host))
    request = TopicRequest(partitions=1, order_strategy="strict")
    topic = meta.submit(lambda s: decide_put_topic(s, "orders", request, BROKERS, "id-1", 0)).topics["orders"]
    source = PartitionRef(Space.TOPICS, "orders", topic.route.partitions[0])
    log = warehouse.create(source)
    owner = meta.meta.brokers.roles["broker-a"].epoch
    log.fence("broker", owner)
    log.append([batch(b"before")], fence_epochs={"broker": owner})
    meta.submit_any(_expanded)
    seal_moves(meta, topic, lambda name: log, lambda: 0)
    sealed = meta.meta.moved_keys("id-1").sealed_up_to(source.name)
    log.append([batch(b"after")], fence_epochs={"broker": owner, "route": sealed})
    assert dict(log.fences) == {"broker": owner, "route": sealed} and owner and sealed

    again = _without_its_fences(files, source)
    assert not again.open_partition(source).fences
    assert put_up_fences(again, meta.meta, source) == {"broker": owner, "route": sealed}
    assert put_up_fences(again, meta.meta, source) == {}
    for late in ({"broker": owner - 1, "route": sealed}, {"broker": owner, "route": sealed - 1}):
        with pytest.raises(Fenced):
            again.open_partition(source).append([batch(b"late")], fence_epochs=late)


def test_rely_09_dead_letters_get_the_fence_of_the_newest_reset() -> None:
    warehouse = Warehouse.open("", store=MemoryStore())
    ref = dead_ref("billing", 1, "broker-a")
    warehouse.create(ref)
    log = MetaLog(warehouse)
    meta = log.submit_groups(lambda m: decide_put_group(m.groups, "billing", GroupRequest(), 0))
    assert put_up_fences(warehouse, meta, ref) == {"reset": meta.groups.epoch} == {"reset": 1}
