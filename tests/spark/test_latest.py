"""The job `latest` and its view: the newest value of each key of a typed topic (SPEC TYPE-45)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from deltamq.jobs.export.latest import latest
from deltamq.jobs.sql.views import register_views
from deltamq.jobs.upkeep.erase import erase
from deltamq.mq.errors import Unavailable
from deltamq.tables import failpoints
from deltamq.tables.backup.backup import back_up
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.config import Config, load
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.ops.erasures import ask, read_erasure, replace_open
from deltamq.tables.state.latest import latest_folder
from deltamq.tables.state.table import read_state_log
from deltamq.tables.store.store import MemoryStore
from tests.queue_tables import with_spark_engine
from tests.typed_tables import FIRST, SECOND, TypedTables
from tests.unit.jobs.upkeep.test_erase import holding

pytestmark = pytest.mark.spark

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["columns", pytest.param("json", marks=pytest.mark.long)])
def orders(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TypedTables]:
    made = TypedTables(tmp_path / "w", request.param)
    yield made
    failpoints.arm("")
    made.close()


def conf(orders: TypedTables) -> Config:
    return with_spark_engine(load(overrides={"warehouse.uri": orders.uri}))


def shown(spark: SparkSession) -> dict[str, tuple[Any, ...]]:
    """Return id and amount by key, as the view has them."""
    rows = spark.sql("SELECT mq_key, id, amount FROM mq_latest_orders").collect()
    found = {row.mq_key: (row.id, row.amount) for row in rows}
    assert len(found) == len(rows), "a key has one row"
    return found


def fill(orders: TypedTables) -> dict[str, tuple[Any, ...]]:
    """Keys in two partitions: one changed, one deleted, one with a later message that does not fit."""
    orders.send(0, '{"id": 99}', keys=["before"])
    orders.version(FIRST)
    orders.send(0, '{"id": 1, "amount": 1.0}', '{"id": 2}', '{"id": 3}', '{"id": 4}', keys=["a", "b", "c", None])
    orders.send(1, '{"id": 10}', keys=["z"])
    orders.send(0, '{"id": 1, "amount": 2.0}', "", "nonsense", keys=["a", "b", "c"])
    return {"a": (1, 2.0), "c": (3, None), "z": (10, None)}


def test_type_45_the_first_query_after_the_acknowledgement_sees_the_newest_value(
    spark: SparkSession, orders: TypedTables
) -> None:
    wanted = fill(orders)
    assert "mq_latest_orders" in register_views(spark, conf(orders))
    assert shown(spark) == wanted, "without a table, too"
    facts = latest(spark, conf(orders), NOW)
    assert (facts["topics"], facts["rows"], facts["lost"]) == (1, 9, 0)
    assert shown(spark) == wanted
    register_views(spark, conf(orders))
    assert shown(spark) == wanted
    orders.send(1, '{"id": 11}', "", keys=["y", "z"])
    orders.send(0, '{"id": 2, "amount": 7.0}', keys=["b"])
    wanted = {"a": (1, 2.0), "b": (2, 7.0), "c": (3, None), "y": (11, None)}
    assert shown(spark) == wanted, "before they are merged"
    assert latest(spark, conf(orders), NOW)["rows"] == 3
    assert shown(spark) == wanted, "and behind that, though the view was made before"
    assert latest(spark, conf(orders), NOW)["rows"] == 0


@pytest.mark.long
def test_type_45_new_fields_and_kills_between_the_steps(spark: SparkSession, orders: TypedTables) -> None:
    fill(orders)
    latest(spark, conf(orders), NOW)
    orders.version(SECOND)
    orders.send(0, '{"id": 5, "place": {"zip": "z", "tags": [{"name": "t"}]}}', "", keys=["c", "a"])
    for point in ("latest.before_merge", "latest.after_merge"):
        failpoints.arm(f"{point}=raise")
        with pytest.raises(FailpointHit):
            latest(spark, conf(orders), NOW)
        failpoints.arm("")
    assert latest(spark, conf(orders), NOW)["rows"] == 0, "the commit of the second run has all of it"
    register_views(spark, conf(orders))
    rows = spark.sql("SELECT mq_key, id, place FROM mq_latest_orders ORDER BY 1").collect()
    assert [(row.mq_key, row.id, row.place and row.place.asDict(recursive=True)) for row in rows] == [
        ("c", 5, {"zip": "z", "tags": [{"name": "t"}]}),
        ("z", 10, None),
    ]


@pytest.mark.long
def test_erase_1_the_newest_value_of_an_erased_key_goes_with_its_messages(spark: SparkSession, tmp_path: Path) -> None:
    orders = TypedTables(tmp_path / "w", "columns")
    fill(orders)
    orders.send(0, '{"id": 77777777, "amount": 1.5}', '{"id": 5}', keys=["ada@example.org", "bob"])
    settings = conf(orders)
    latest(spark, settings, NOW)
    store, folder = orders.tables.warehouse.store, latest_folder(orders.topic.id)
    erasure = ask(store, "orders", ("ada@example.org",), SYSTEM_CLOCK.wall_us())
    erase(spark, settings, NOW)
    erased = read_erasure(store, erasure.id)
    assert (erased.state, erased.rows, erased.copies) == ("erased", 1, {"latest": 1})
    register_views(spark, settings)
    assert shown(spark).keys() == {"a", "c", "z", "bob"}
    latest(spark, settings, NOW)
    assert shown(spark).keys() == {"a", "c", "z", "bob"}
    # As if the time for queries that read old files were over.
    replace_open(store, structs.replace(erased, keep_ms=0))
    erase(spark, settings, NOW)
    assert read_erasure(store, erasure.id).state == "gone"
    assert holding(Path(orders.uri, folder), b"ada@example.org", b"77777777") == []
    orders.close()


def test_erase_1_without_spark_a_key_of_such_a_table_keeps_its_request_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders = TypedTables(tmp_path / "w", "columns")
    fill(orders)
    latest(spark, conf(orders), NOW)
    store = orders.tables.warehouse.store
    erasure = ask(store, "orders", ("a",), SYSTEM_CLOCK.wall_us())
    with pytest.raises(Unavailable, match="engine spark"):
        erase(None, load(overrides={"warehouse.uri": orders.uri}), NOW)
    assert read_erasure(store, erasure.id).state == "waiting"
    orders.close()


def test_type_45_a_backup_has_the_table_and_a_topics_table_goes_with_it(spark: SparkSession, tmp_path: Path) -> None:
    orders = TypedTables(tmp_path / "w", "columns")
    fill(orders)
    latest(spark, conf(orders), NOW)
    store, folder = orders.tables.warehouse.store, latest_folder(orders.topic.id)
    log = read_state_log(store, folder)
    assert log is not None and not log.foreign and log.reader_version == 1
    backup = back_up(store, MemoryStore(), now_ms=lambda: 1_800_000_000_000)
    assert backup.damaged == {} and any(file.key.startswith(folder) for file in backup.files)
    orders.tables.delete_topic(orders.topic)
    assert latest(spark, conf(orders), NOW)["topics"] == 0
    assert read_state_log(store, folder) is None
    orders.close()
