"""Batch reads of partitions that may not be read (SPEC ROUTE-9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.jobs.read.options import parse_options
from deltamq.jobs.read.row_format import schema_of
from deltamq.jobs.spark.datasource import MessageReader
from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.access import OPEN, Access
from deltamq.mq.meta.access_changes import decide_broker_access
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.log.warehouse import Warehouse
from tests.static_tables import TOPIC, StaticTables

CLOSED = Access(readable=False, reason="its disk is replaced")
Q0, Q1 = queue_name(0), queue_name(1)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[StaticTables]:
    """Queue 0 has five messages on A and three on B; queue 1 has two on B."""
    warehouse = Warehouse.open(str(tmp_path))
    made = StaticTables(warehouse)
    made.send(0, 5)
    made.send(1, 2)
    made.remap(["B"], "strict", [0])
    made.send(0, 3)
    yield made
    warehouse.close()


def reader(orders: StaticTables, **options: str) -> MessageReader:
    asked = options if "assign" in options else {"topic": TOPIC} | options
    parsed = parse_options(asked, warehouse=orders.warehouse.store.uri(""))
    return MessageReader(parsed, schema_of(parsed))


def close(orders: StaticTables, broker: str, access: Access = CLOSED) -> None:
    orders.meta.submit_any(lambda meta: decide_broker_access(meta, broker, access, orders.now_ms))


def test_route_09_a_batch_of_what_may_not_be_read_is_refused_with_the_reason(orders: StaticTables) -> None:
    assert len(reader(orders).partitions()) == 3
    close(orders, "A")
    with pytest.raises(Unavailable) as refused:
        reader(orders).partitions()
    assert refused.value.code == "not_readable"
    assert refused.value.detail == f"{Q0} cannot be read at the moment: its disk is replaced"
    close(orders, "A", OPEN)
    assert len(reader(orders).partitions()) == 3


def test_route_09_a_batch_that_needs_nothing_closed_is_read(orders: StaticTables) -> None:
    close(orders, "A")
    assert len(reader(orders, assign=json.dumps({TOPIC: [Q1]})).partitions()) == 1
    newest = {"startingOffsets": json.dumps({TOPIC: {Q0: 5, Q1: 0}})}
    assert len(reader(orders, **newest).partitions()) == 2, "the closed segment lies before them"


def test_route_09_access_that_has_ended_closes_nothing(orders: StaticTables) -> None:
    close(orders, "A", Access(readable=False, until_ms=orders.now_ms + 1))  # the wall clock is far beyond it
    assert len(reader(orders).partitions()) == 3
