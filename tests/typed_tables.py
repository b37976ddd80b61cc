"""A typed topic of two partitions as a service leaves it, for tests of what reads its tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from deltamq.mq.meta.topics import Topic
from deltamq.mq.schemas.setting import Format, OnInvalid
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.topic_codecs import TopicCodecs
from tests.queue_tables import QueueTables
from tests.typed import make_typed

__all__ = ["FIRST", "SECOND", "TypedTables"]

#: Two versions of a schema, as a DDL; `json_of` has the same in JSON Schema.
FIRST: Final = "id BIGINT NOT NULL, amount DOUBLE"
SECOND: Final = FIRST + ", place STRUCT<zip: STRING, tags: ARRAY<STRUCT<name: STRING>>>"
_JSON: Final = {
    FIRST: '{"properties": {"id": {"type": "integer"}, "amount": {"type": "number"}}, "required": ["id"]}',
    SECOND: '{"properties": {"id": {"type": "integer"}, "amount": {"type": "number"}, "place": {"type": "object", '
    '"properties": {"zip": {"type": "string"}, "tags": {"type": "array", "items": {"type": "object", '
    '"properties": {"name": {"type": "string"}}}}}}}, "required": ["id"]}',
}


class TypedTables:
    """The topic `orders` in a warehouse; what does not fit is quarantined unless said otherwise."""

    def __init__(self, folder: Path, form: Format = "json", on_invalid: OnInvalid = "quarantine") -> None:
        self.uri = str(folder)
        self.tables = QueueTables(folder)
        self.topic: Topic = self.tables.topic(partitions=2)
        self._form: Format = form
        self._on_invalid: OnInvalid = on_invalid
        self._codecs = TopicCodecs(lambda: self.tables.meta.meta)

    def version(self, ddl: str) -> None:
        """Make a schema the topic's newest version."""
        text = ddl if self._form == "columns" else _JSON[ddl]
        make_typed(self.tables.meta, "orders", self._form, text, on_invalid=self._on_invalid)

    def send(self, partition: int, *bodies: str, keys: Sequence[str | None] | None = None) -> PartitionLog:
        """Append bodies in one commit."""
        rows = pa.RecordBatch.from_pydict(
            {
                "key": pa.array(keys or [f"k{at}" for at in range(len(bodies))], pa.string()),
                "body": pa.array([body.encode() for body in bodies], pa.binary()),
            }
        )
        log = self.tables.log(self.topic, partition)
        log.append([Batch(self._codecs.typed(self.tables.meta.state.topics["orders"], rows))])
        return log

    def fill(self) -> None:
        """Rows of before the schema, of two versions, with two that do not fit; partition 1 knows only the first."""
        self.send(0, '{"id": 0}', "of before")
        self.version(FIRST)
        self.send(0, '{"id": 1, "amount": 1.5}', "nonsense")
        self.send(1, '{"id": 10, "amount": 10.0}')
        self.version(SECOND)
        self.send(0, '{"id": 2, "place": {"zip": "z", "tags": [{"name": "t"}]}}', '{"id": "x"}', '{"id": 3}')

    def close(self) -> None:
        """Close the tables."""
        self.tables.close()
