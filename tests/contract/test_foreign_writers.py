"""Other engines at our message tables: they read them, may not write them, and harm nothing (SPEC TABLE-1 to TABLE-4).

`deltalake` plays the other engine, Spark does in `tests/spark/test_foreign_writers.py`. A table of before TABLE-1 is
one whose protocol has no feature of ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltamq.tables.delta.checkpoint import checkpoint_name
from deltamq.tables.delta.creation import create_table
from deltamq.tables.delta.foreign import ForeignCommit
from deltamq.tables.delta.protocol import MESSAGE_FEATURES, UNGUARDED_PROTOCOL
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.metadata import META_PARTITION
from deltamq.tables.queue.refs import revive_ref
from deltamq.tables.schema import DELTA_SCHEMA
from deltamq.tables.settings import LogSettings
from tests.rows import REF, all_bodies, batch, numbered_bodies

OpenWarehouse = Callable[..., Warehouse]


@pytest.fixture
def open_warehouse(tmp_path: Path) -> Iterator[OpenWarehouse]:
    """A function that opens the warehouse, at each call as a further process."""
    opened: list[Warehouse] = []

    def open_one(**settings: int) -> Warehouse:
        opened.append(Warehouse.open(str(tmp_path), settings=LogSettings(**settings)))
        return opened[-1]

    yield open_one
    for warehouse in opened:
        warehouse.close()


def old_table(warehouse: Warehouse, count: int = 0) -> PartitionLog:
    """A table as it was made before TABLE-1, with messages that were stored by then."""
    create_table(
        warehouse.store,
        REF.folder,
        schema=DELTA_SCHEMA,
        name=REF.name,
        configuration={"mq.topic": REF.topic, "mq.partition": REF.name},
        protocol=UNGUARDED_PROTOCOL,
        now_ms=1,
    )
    log = warehouse.open_partition(REF)
    log._log.snapshot.writer_features = MESSAGE_FEATURES  # as a process of that time, which knows no guard
    for body in numbered_bodies("m", count):
        log.append([batch(body)])
    return log


def other(log: PartitionLog) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(log.location)


ROW = pa.table({"offset": pa.array([99], pa.int64())})
Write = Callable[[deltalake.DeltaTable], object]
WRITES: dict[str, Write] = {
    "optimize": lambda table: table.optimize.compact(),
    "vacuum": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
    "delete": lambda table: table.delete("offset < 3"),
    "append": lambda table: deltalake.write_deltalake(table, ROW, mode="append", schema_mode="merge"),
    "add a column": lambda table: table.alter.add_columns([deltalake.Field("more", "string")]),
    "set a property": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    "restore": lambda table: table.restore(1),
}


@pytest.mark.parametrize(
    "ref", [REF, META_PARTITION, revive_ref("default", 0, "broker-a")], ids=["topic", "meta", "revive"]
)
@pytest.mark.parametrize("what", WRITES)
def test_table_01_another_engine_reads_and_may_not_write(
    open_warehouse: OpenWarehouse, what: str, ref: PartitionRef
) -> None:
    log = open_warehouse(rollup_files=4).create(ref)
    for body in numbered_bodies("m", 5):
        log.append([batch(body)])
        log.maintain()
    with pytest.raises(Exception, match="deltamq"):
        WRITES[what](other(log))
    assert other(log).to_pyarrow_table(columns=["offset"]).num_rows == 5
    assert log.append([batch(b"next")])[0].base_offset == 5
    assert all_bodies(open_warehouse().open_partition(ref)) == [*numbered_bodies("m", 5), b"next"]


@pytest.mark.parametrize("checkpoint_commits", [1_000, 2], ids=["from commits", "from a checkpoint"])
def test_table_01_an_older_table_is_guarded_by_the_first_commit_of_a_newer_process(
    open_warehouse: OpenWarehouse, checkpoint_commits: int
) -> None:
    old = old_table(open_warehouse(), 5)
    assert other(old).protocol().writer_features is None
    log = open_warehouse(checkpoint_commits=checkpoint_commits).open_partition(REF)
    assert log.append([batch(b"next")])[0].base_offset == 5
    log.maintain()
    assert other(log).protocol().writer_features == ["appendOnly", "invariants", "deltamq"]
    assert other(log).metadata().configuration["delta.enableExpiredLogCleanup"] == "false"
    version = log.version
    assert open_warehouse().open_partition(REF).append([batch(b"more")])[0].version == version + 1, "once is enough"
    assert old.append([batch(b"from the older process")])[0].base_offset == 7, "which goes on"
    assert all_bodies(log)[5:] == [b"next"]


PASSED_OVER: dict[str, Write] = {
    "vacuum": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
    "set a property": WRITES["set a property"],
    "describe": lambda table: table.alter.set_table_description("our orders"),
}


@pytest.mark.parametrize("what", PASSED_OVER)
def test_table_02_what_another_engine_did_to_no_row_is_passed_over(open_warehouse: OpenWarehouse, what: str) -> None:
    log = old_table(open_warehouse(rollup_files=4), 5)
    log.maintain()
    PASSED_OVER[what](other(log))
    assert other(log).version() > log.version
    assert log.append([batch(b"next")])[0].base_offset == 5
    opened = open_warehouse(checkpoint_commits=1).open_partition(REF)
    opened.append([batch(b"last")])
    opened.maintain()
    assert all_bodies(open_warehouse().open_partition(REF)) == [*numbered_bodies("m", 5), b"next", b"last"]
    assert other(log).to_pyarrow_table(columns=["offset"]).num_rows == 7
    assert [f for f in verify(open_warehouse()) if f.gravity is not Gravity.NOTE] == []
    if what == "describe":
        assert other(log).metadata().description == "our orders", "our checkpoint carries it on"


REFUSED = ["optimize", "delete", "append", "add a column", "restore"]


@pytest.mark.parametrize("what", REFUSED)
def test_table_02_who_changed_rows_or_columns_is_refused_by_name(open_warehouse: OpenWarehouse, what: str) -> None:
    log = old_table(open_warehouse(), 5)
    WRITES[what](other(log))
    refusals = []
    for refuse in (lambda: log.append([batch(b"next")]), lambda: open_warehouse().open_partition(REF)):
        with pytest.raises(ForeignCommit, match=r"of delta-rs:.* at 20") as refused:
            refuse()
        refusals.append(refused.value)
    assert "deltamq verify" in refusals[0].detail and refusals[0].code == "foreign_commit"
    assert "orders@broker-a" in refusals[1].detail


@pytest.mark.parametrize("what", REFUSED)
def test_table_04_a_repair_takes_back_what_it_says_and_loses_nothing(open_warehouse: OpenWarehouse, what: str) -> None:
    log = old_table(open_warehouse(), 5)
    WRITES[what](other(log))
    other(log).create_checkpoint()
    warehouse = open_warehouse()
    found = find_repair(warehouse, REF)
    assert found is not None and (found.kind, found.loses) == (RepairKind.TAKE_BACK, False), found
    assert "delta-rs:" in found.text and "nothing that was acknowledged is lost" in found.text
    if what == "delete":
        assert "offsets 0 to 2, which they removed or changed, are again as they were sent" in found.text
    repair(warehouse, found)
    assert find_repair(warehouse, REF) is None
    assert [f for f in verify(warehouse) if f.gravity is not Gravity.NOTE] == []
    opened = open_warehouse().open_partition(REF)
    assert opened.append([batch(b"next")])[0].base_offset == 5
    assert all_bodies(opened) == [*numbered_bodies("m", 5), b"next"]
    assert other(opened).to_pyarrow_table(columns=["offset"]).num_rows == 6


def test_table_04_a_repair_says_what_another_engine_has_destroyed(open_warehouse: OpenWarehouse) -> None:
    log = old_table(open_warehouse(), 5)
    WRITES["delete"](other(log))
    WRITES["vacuum"](other(log))
    found = find_repair(open_warehouse(), REF)
    assert found is not None and (found.kind, found.lost_from, found.lost_to) == (RepairKind.TAKE_BACK, 0, 3), found
    assert "offsets 0 to 2 are lost: their data files are gone" in found.text


@pytest.mark.parametrize("commits", [1, 5], ids=["on ours", "after ours"])
def test_table_03_a_checkpoint_of_another_engine_is_not_believed_and_does_no_harm(
    open_warehouse: OpenWarehouse, commits: int
) -> None:
    """On ours: it writes over our checkpoint, when the commits that this stands for are cleaned away."""
    log = open_warehouse(checkpoint_commits=4, log_keep_ms=0).create(REF)
    for body in numbered_bodies("m", 7):
        log.append([batch(body)])
        log.maintain()
        log.maintain()
    for _ in range(commits - 1):
        log.append([batch(b"x")])
    if commits == 1:
        # deltalake leaves a checkpoint that is there; this is what an engine writes that does not.
        assert log.checkpoint_version == log.version
        path = Path(log.location) / "_delta_log" / checkpoint_name(log.version)
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    else:
        other(log).create_checkpoint()
    assert log.append([batch(b"next")])[0].base_offset == 6 + commits
    warehouse = open_warehouse()
    assert all_bodies(warehouse.open_partition(REF))[-1] == b"next"
    named = [f for f in verify(warehouse) if f.gravity is not Gravity.NOTE]
    assert named and all(f.gravity is Gravity.BLEMISH for f in named)
    assert any("another engine" in f.problem for f in named)
    found = find_repair(warehouse, REF)
    while found is not None:
        assert not found.loses
        repair(warehouse, found)
        found = find_repair(warehouse, REF)
    assert [f for f in verify(warehouse) if f.gravity is not Gravity.NOTE] == []
    assert other(log).to_pyarrow_table(columns=["offset"]).num_rows == 7 + commits


def test_table_03_the_clean_up_of_another_engine_takes_no_commit_that_we_need(open_warehouse: OpenWarehouse) -> None:
    log = open_warehouse().create(REF)
    for body in numbered_bodies("m", 5):
        log.append([batch(body)])
    for path in (Path(log.location) / "_delta_log").iterdir():
        os.utime(path, (0, 0))
    other(log).create_checkpoint()
    other(log).cleanup_metadata()
    assert all_bodies(open_warehouse().open_partition(REF)) == numbered_bodies("m", 5)
