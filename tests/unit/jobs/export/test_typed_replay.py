"""Dead letters of typed topics get their columns when they go back, and none is lost (SPEC TYPE-42)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from deltamq.jobs.export.replay import Chosen, Replayed, replay_dead_letters
from deltamq.jobs.sink.open_sink import SinkSettings
from deltamq.tables.config import load
from deltamq.tables.log.batch import Batch
from deltamq.tables.queue.refs import dead_ref
from deltamq.tables.schema import INTERNAL_SCHEMA
from deltamq.tables.typed_row import TYPED
from tests.queue_tables import BROKER, QueueTables
from tests.typed import make_typed


def test_type_42_dead_letters_go_back_with_columns_and_what_does_not_fit_is_quarantined(tmp_path: Path) -> None:
    tables = QueueTables(tmp_path)
    topic, group = tables.topic(), tables.group()
    origin = {"topic": "orders", "partition": topic.route.partitions[0], "offset": 0}
    bodies = ['{"id": 1}', "nonsense", '{"id": 2}']
    letters = [{"body": body.encode(), "origin": origin, "message_id": body} for body in bodies]
    rows = pa.RecordBatch.from_pylist(letters, schema=INTERNAL_SCHEMA)
    tables.warehouse.create(dead_ref(group.name, group.epoch, BROKER)).append([Batch(rows)])
    make_typed(tables.meta, "orders", "columns", "id BIGINT NOT NULL")
    settings = SinkSettings.of(load(overrides={"warehouse.uri": str(tmp_path)}), str(tmp_path))
    assert replay_dead_letters(settings, group.name, Chosen()) == Replayed(matched=3, replayed=3)
    log = tables.log(topic)
    log.refresh()
    stored = log.read(0, max_messages=10, max_bytes=1 << 20, columns=("offset", "key", "body", *TYPED)).rows
    assert stored.column("value").to_pylist() == [{"id": 1}, None, {"id": 2}]
    assert stored.column("invalid").to_pylist()[1]["code"] == "not_json"
    assert stored.column("body").to_pylist() == [b'{"id":1}', b"nonsense", b'{"id":2}']
    back = replay_dead_letters(settings, group.name, Chosen(), to="retry")
    assert back.matched == 3 and tables.retried(group, topic) == []
    tables.close()
