"""Dead letters of static topics go back to their logical queue, once, wherever it has moved (STATIC-20, RETRY-3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.jobs.export.replay import Chosen, Replayed, replay_dead_letters
from deltamq.jobs.sink.open_sink import SinkSettings
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.static_topics import RemapMode
from deltamq.tables.config import load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.refs import dead_ref
from deltamq.tables.schema import INTERNAL_SCHEMA
from tests.rows import all_bodies
from tests.static_tables import StaticTables

MODES: tuple[RemapMode, ...] = ("strict", "available")


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    opened = Warehouse.open(str(tmp_path))
    yield opened
    opened.close()


def _letters(warehouse: Warehouse, orders: StaticTables, *bodies: str) -> None:
    meta = orders.meta.submit_groups(lambda m: decide_put_group(m.groups, "billing", GroupRequest(), 0))
    origin = {"topic": "orders", "partition": "orders@A", "offset": 0}
    letters = [{"body": body.encode(), "origin": origin, "message_id": body} for body in bodies]
    rows = pa.RecordBatch.from_pylist(letters, schema=INTERNAL_SCHEMA)
    warehouse.create(dead_ref("billing", meta.groups.group("billing").epoch, "A")).append([Batch(rows)])


def _stored(orders: StaticTables) -> list[list[str]]:
    found = []
    for segment in orders.queues[0].segments:
        log = orders.log(segment.partition)
        log.refresh()
        bodies = [body.decode() for body in all_bodies(log)]
        assert not segment.is_sealed or segment.end_offset == len(bodies), "nothing lies behind a seal"
        found.append(bodies)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sealed", [True, False])
def test_static_20_letters_go_to_the_present_leader_of_their_queue_once(
    warehouse: Warehouse, mode: RemapMode, *, sealed: bool
) -> None:
    orders = StaticTables(warehouse)
    uri = warehouse.store.uri("")
    settings = SinkSettings.of(load(overrides={"warehouse.uri": uri}), uri)
    _letters(warehouse, orders, "a", "b", "c")
    one = Chosen(message_ids=frozenset({"b"}))
    assert replay_dead_letters(settings, "billing", one) == Replayed(matched=1, replayed=1)
    orders.remap(["B"], mode, [0], seal=sealed)
    every = replay_dead_letters(settings, "billing", Chosen())
    assert every == Replayed(matched=3, replayed=2, duplicates=1)
    orders.seal()
    assert replay_dead_letters(settings, "billing", Chosen()) == Replayed(matched=3, duplicates=3)
    assert sorted(chain(*_stored(orders))) == ["a", "b", "c"]
