"""Lookups of the newest value of a key in the table that the job `latest` keeps, and behind it (SPEC TYPE-47)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.export import latest as latest_job
from deltamq.jobs.export.latest import latest
from deltamq.jobs.merge.state_tables import table_at, writing_session
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.mq.errors import Conflict
from deltamq.tables.config import load
from deltamq.tables.state.latest import LatestTables, latest_folder
from deltamq.tables.store.local import LocalStore
from tests.api.queue_calls import queue_in
from tests.queue_tables import with_spark_engine
from tests.typed_tables import FIRST, SECOND, TypedTables

pytestmark = pytest.mark.spark

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Counted(LocalStore):
    """A store that counts the bytes of parts that were read."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.bytes = 0

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        self.bytes += sum(high - low for low, high in ranges)
        return super().read_parts(key, size, ranges)


def looked_up(tables: LatestTables, topic_id: str, key: str) -> object:
    row = tables.look_up(topic_id, key).row
    return None if row is None else row.column("value")[0].as_py()


@pytest.mark.long
def test_type_47_a_lookup_finds_each_row_of_the_table_and_how_far_it_is_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_job, "GROUP_BYTES", 64 * 1024)
    orders = TypedTables(tmp_path / "w", "columns")
    settings = with_spark_engine(load(overrides={"warehouse.uri": orders.uri}))
    store = Counted(orders.uri)
    tables, id_ = LatestTables(store), orders.topic.id
    assert tables.look_up(id_, "k1") == (None, {}), "before the table is made"
    orders.version(FIRST)
    many = 20_000
    orders.send(0, *(json.dumps({"id": n, "amount": n + 0.5}) for n in range(many)))
    orders.send(1, '{"id": -1}', keys=["other"])
    latest(spark, settings, NOW)
    assert looked_up(tables, id_, "k17") == {"id": 17, "amount": 17.5}
    store.bytes = 0
    for n in (0, 1, 9_999, many - 1):
        assert looked_up(tables, id_, f"k{n}") == {"id": n, "amount": n + 0.5}
    size = sum(entry.size for entry in store.entries(latest_folder(id_)))
    assert 0 < store.bytes < size, "of a file that was indexed, a row group each"
    found = tables.look_up(id_, "nothing")
    assert found.row is None and sorted(found.ends.values()) == [1, many]

    orders.version(SECOND)
    orders.send(0, '{"id": 5, "place": {"zip": "z"}}', "", keys=["k5", "k6"])
    assert looked_up(tables, id_, "k5") == {"id": 5, "amount": 5.5}, "as the table is"
    latest(spark, settings, NOW)
    assert looked_up(tables, id_, "k5") == {"id": 5, "amount": None, "place": {"zip": "z", "tags": None}}
    assert looked_up(tables, id_, "k6") is None and looked_up(tables, id_, "k7") is not None
    assert max(tables.look_up(id_, "k7").ends.values()) == many + 2
    # All files are replaced.
    session = writing_session(spark)
    session.sql(f"OPTIMIZE {table_at(store, latest_folder(id_))}")
    assert looked_up(tables, id_, "k5") == {"id": 5, "amount": None, "place": {"zip": "z", "tags": None}}
    with pytest.raises(Conflict, match="more than 100 keys"):
        LatestTables(store, keys_max=100).look_up(id_, "k1")
    orders.close()


def test_type_47_the_service_answers_from_the_table_and_from_what_is_behind_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
    with queue_in(tmp_path / "warehouse") as queue:
        queue.topic(2, schema={"format": "json", "schema": schema})
        settings = with_spark_engine(load(overrides={"warehouse.uri": str(queue.folder)}))

        def shown(key: str) -> object:
            reply = queue.api.call("GET", f"/v1/topics/orders/latest/{key}")
            assert reply.status in (200, 404), reply
            return reply.json["value"]["id"] if reply.status == 200 else None

        for n in range(20):
            queue.send(json.dumps({"id": n}), key=f"k{n}")
        assert latest(spark, settings, NOW)["rows"] == 20
        assert [shown(f"k{n}") for n in range(21)] == [*range(20), None]
        queue.advance(1_000)
        queue.send('{"id": 100}', key="k1")
        queue.send("", key="k2")
        queue.send('{"id": 300}', key="new")
        behind = [shown(key) for key in ("k1", "k2", "new", "k3")]
        assert behind == [100, None, 300, 3]
        assert latest(spark, settings, NOW)["rows"] == 3
        assert [shown(key) for key in ("k1", "k2", "new", "k3")] == behind
        queue.restart()
        assert [shown(key) for key in ("k1", "k2", "new", "k3")] == behind
    close_warehouses()
