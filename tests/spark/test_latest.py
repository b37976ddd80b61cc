"""The job `latest` and its view: the newest value of each key of a typed topic (SPEC TYPE-45)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.export.latest import latest
from deltamq.jobs.sql.latest_view import latest_folder
from deltamq.jobs.sql.views import register_views
from deltamq.tables import failpoints
from deltamq.tables.backup.backup import back_up
from deltamq.tables.config import Config, load
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.state.table import read_state_log
from deltamq.tables.store.store import MemoryStore
from tests.queue_tables import with_spark_engine
from tests.typed_tables import FIRST, SECOND, TypedTables

pytestmark = pytest.mark.spark

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["json", "columns"])
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
