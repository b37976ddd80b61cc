"""What a read of a topic asks of an object store, which is paid for each call and answers after a round trip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from obstore.store import MemoryStore

from deltamq.jobs.read import query_topics, range_reader
from deltamq.jobs.read.offset_range import stored_partitions
from deltamq.jobs.read.options import ReadOptions, parse_options
from deltamq.jobs.read.query_topics import SharePartition, plan_shares, ranges_of_share
from deltamq.jobs.read.range_reader import read_range
from deltamq.jobs.read.stored_partition import OpenedTables
from deltamq.jobs.read.topics import Catalog
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.object import ObjectStore
from tests.unit.jobs.warehouses import rows

URI = "memory:///"
PARTITIONS, COMMITS = 3, 20
#: Of a table that is opened: its version 0, a commit for each append, the one that is not there yet, and `.head`.
OPEN = COMMITS + 3
OPTIONS = parse_options({"topic": "orders"}, warehouse=URI)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    store = ObjectStore(URI, MemoryStore())
    warehouse = Warehouse(store, settings=LogSettings(), clock=SYSTEM_CLOCK)
    for number in range(PARTITIONS):
        log = warehouse.create(PartitionRef(Space.TOPICS, "orders", f"orders@broker-{number}"))
        for _ in range(COMMITS):
            log.append([Batch(rows([b"x"]))])
    for module in (query_topics, range_reader):
        monkeypatch.setattr(module, "storage", lambda _: store)
    yield store
    warehouse.close()


def _gets(store: ObjectStore) -> int:
    return store.calls.so_far().calls["get"].requests


def _read(options: ReadOptions, shares: list[SharePartition], columns: list[str]) -> int:
    return sum(
        table.num_rows
        for share in shares
        for one in ranges_of_share(options, share)
        for table in read_range(options.warehouse, one, columns)
    )


@pytest.mark.parametrize(("columns", "each"), [(["offset"], 0), (["key", "body"], 1)])
def test_a_worker_opens_each_table_once_for_a_query_and_gets_each_small_file_once(
    store: ObjectStore, columns: list[str], each: int
) -> None:
    shares = plan_shares(OPTIONS, rows_max=7)
    assert len(shares) > PARTITIONS
    before = _gets(store)
    assert _read(OPTIONS, shares, columns) == PARTITIONS * COMMITS
    # the two values on which the tasks of a query agree are not there yet
    assert _gets(store) - before == 2 + PARTITIONS * (OPEN + each * COMMITS)


def test_a_worker_opens_a_table_again_that_ends_before_what_the_query_agreed_on(store: ObjectStore) -> None:
    """Another worker's task was first, and saw messages that this one's did not."""
    where = PartitionRef(Space.TOPICS, "orders", "orders@broker-0")
    partition = next(one for one in Catalog(store).partitions("orders") if one.ref == where)
    opened = OpenedTables(store)
    (early,) = stored_partitions(store, [partition], opened=opened)
    Warehouse(store, settings=LogSettings(), clock=SYSTEM_CLOCK).create(where).append([Batch(rows([b"later"]))])
    before = _gets(store)
    (same,) = stored_partitions(store, [partition], {"orders": {where.name: (0, COMMITS)}}, opened)
    assert (same, _gets(store)) == (early, before)
    (later,) = stored_partitions(store, [partition], {"orders": {where.name: (0, COMMITS + 1)}}, opened)
    assert later.offsets.end == COMMITS + 1
    assert later.tables[0].files[-1].end == COMMITS + 1
