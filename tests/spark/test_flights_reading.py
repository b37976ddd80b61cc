"""Spark's side of the main job: its account in SQL is that counted from rows, and a look shows what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.flights.account import ROWS_SCHEMA, account_of
from deltamq.jobs.flights.reading import account, look, queries
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space

pytestmark = pytest.mark.spark

TOPIC = "flights"


def event(kind: str, aircraft: str | None, carrier: str = "B6", delay_min: int | None = 0) -> dict[str, object]:
    body = {"event": kind, "carrier": carrier, "delay_min": delay_min, "aircraft": aircraft}
    return {"key": aircraft, "tag": kind, "body": json.dumps(body).encode()}


EVENTS = {
    "flights@a": [
        event("departure", "N1", delay_min=10),
        event("arrival", "N1", delay_min=500),
        event("departure", "N1", delay_min=20),
        event("cancellation", None, delay_min=None),
    ],
    "flights@b": [event("departure", "N2", "UA", -5), event("arrival", "N2", "UA"), event("departure", "N3", "UA", -4)],
    "flights#1@a": [],
}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A topic of three partitions, the last of them empty."""
    folder = tmp_path_factory.mktemp("flights") / "warehouse"
    made = Warehouse.open(str(folder))
    for name, rows in EVENTS.items():
        log = made.create(PartitionRef(Space.TOPICS, TOPIC, name))
        for row in rows:
            log.append([Batch(pa.RecordBatch.from_pylist([row], schema=pa.schema(list(ROWS_SCHEMA)[2:])))])
    yield folder
    made.close()


@pytest.mark.long
def test_sparks_account_is_the_one_counted_from_the_rows(spark: SparkSession, warehouse: Path) -> None:
    rows = [
        {"partition": name, "offset": offset, **row}
        for name, events in EVENTS.items()
        for offset, row in enumerate(events)
    ]
    ends = {name: len(events) for name, events in EVENTS.items() if events}
    counted = account_of(pa.Table.from_pylist(rows, schema=ROWS_SCHEMA), ends=ends, in_row_order=False)
    assert account(spark, TOPIC, warehouse=str(warehouse)) == counted


@pytest.mark.long
def test_a_look_shows_what_is_there(spark: SparkSession, warehouse: Path) -> None:
    seen = look(spark, TOPIC, warehouse=str(warehouse))
    assert seen.messages == 7
    assert seen.busiest == [("N1", 2), ("N2", 1), ("N3", 1)]
    assert seen.delays == [("B6", 15.0), ("UA", -4.5)]


def test_every_statement_is_complete() -> None:
    assert set(queries()) == {
        *("summary", "seen", "busiest", "delays"),
        *("fingerprints", "kinds", "partitions", "checksum", "sequences"),
    }
    assert [name for name, statement in queries().items() if "${" in statement] == []
