"""A sink without Spark: the code of tasks and driver, called as Spark calls it, on a warehouse in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import types as T

from deltamq.jobs.sink.batch import commit_staged, decoded, name_of, stage_rows
from deltamq.jobs.sink.columns import SinkColumns, check_schema
from deltamq.jobs.sink.manifest import Manifests, name_in_life
from deltamq.jobs.sink.open_sink import OpenSink, SinkSettings
from deltamq.jobs.sink.staging import StagedMessage
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.moved_keys import moves_of
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore, Store

BROKERS = ("broker-a", "broker-b")
KEYED = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])


def keyed(bodies: Iterable[str], *, keys: int = 7) -> pa.RecordBatch:
    """Return rows whose keys repeat after `keys` rows."""
    values = list(bodies)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([f"k{sum(value.encode()) % keys}" for value in values], pa.string()),
            "value": pa.array([value.encode() for value in values], pa.binary()),
        }
    )


class Sink:
    """One query `name` that writes to `topic`."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        name: str = "query-1",
        topic: str | None = "orders",
        schema: T.StructType = KEYED,
        auto_create: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        **bounds: float,
    ) -> None:
        """Open a sink; `bounds` are those of `OpenSink`."""
        self.store = store or MemoryStore()
        self.name = name
        self.topic = topic
        self.columns: SinkColumns = check_schema(schema, topic=topic)
        log = LogSettings(row_group_rows=64)
        self.settings = SinkSettings(
            warehouse="memory", cluster="deltamq", brokers=BROKERS, auto_create=auto_create, log=log
        )
        self.clock = clock
        self._bounds = bounds
        self.place = self.opened()

    def opened(self) -> OpenSink:
        """Return the place as another process sees it."""
        warehouse = Warehouse.open("memory", settings=self.settings.log, store=self.store, clock=self.clock)
        return OpenSink(self.settings, warehouse, **self._bounds)

    def restart(self) -> None:
        """Open the place anew, as a new process does."""
        self.place = self.opened()

    def put_topic(self, name: str = "orders", **settings: object) -> None:
        """Create or change a topic as the service does."""
        request = TopicRequest(**settings)  # type: ignore[arg-type]

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            events = decide_put_topic(meta.topics, name, request, BROKERS, str(uuid.uuid4()), self.place.now_ms())
            return [*moves_of(meta.topics, events), *events]

        self.place.meta.submit_any(decide)

    def stage(self, batch: int, *tasks: pa.RecordBatch) -> list[StagedMessage]:
        """Return the messages of tasks to the driver, one task for each batch of rows."""
        return [
            stage_rows(self.place, self.columns, self.topic, iter([rows]), name=self.name, batch=batch, task=task)
            for task, rows in enumerate(tasks)
        ]

    def commit(self, batch: int, messages: list[StagedMessage], *, ignores_repeats: bool = False) -> None:
        """Do what Spark's commit does."""
        staged = decoded(messages)
        name = name_of(staged, self.place, self.topic)
        commit_staged(self.place, name, batch, staged, ignores_repeats=ignores_repeats)

    def write(self, batch: int, *tasks: pa.RecordBatch) -> None:
        """Write one batch."""
        self.commit(batch, self.stage(batch, *tasks))

    def stored(self, topic: str = "orders") -> dict[str, list[tuple[str | None, str]]]:
        """Return key and body of every message, by partition, in offset order, as a new process finds them."""
        place = self.opened()
        found = {}
        life = place.meta.state.topics[topic]
        for partition in life.route.partitions:
            found_pages = pages(place.log(life, partition), 0)
            rows = [row for page in found_pages for row in page.rows.select(["offset", "key", "body"]).to_pylist()]
            assert [row["offset"] for row in rows] == list(range(len(rows)))
            found[partition] = [(row["key"], row["body"].decode()) for row in rows]
        return found

    def bodies(self, topic: str = "orders") -> list[str]:
        """Return the bodies of all messages, sorted, with duplicates."""
        return sorted(body for rows in self.stored(topic).values() for _, body in rows)

    def files(self) -> list[str]:
        """Return the names in the sink's folder."""
        return self.store.names(self.folder)

    @property
    def folder(self) -> str:
        """The folder of the query in the present life of its topic."""
        return self.manifests.folder

    @property
    def manifests(self) -> Manifests:
        """The manifests of the query in the present life of its topic."""
        life = None if self.topic is None else self.opened().meta.state.topics.get(self.topic)
        return Manifests(self.store, self.name if life is None else name_in_life(self.name, life.id))
